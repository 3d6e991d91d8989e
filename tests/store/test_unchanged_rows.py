"""Rows of the hand-written fixtures are what they were: uids, hashes, texts, arrays, and what was rejected.

A digest that changes means that tables written before and after differ: importing a file again would add its rows twice.
"""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
import xxhash

from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect
from pairwright.store.import_task import ImportTask, run_tasks

FIXTURES = Path(__file__).parents[1] / "sources" / "fixtures"
DIGESTS = {
    "gemini_stream.jsonl": "1+0 7f7d579de09473b7",
    "deepeval_trace.json": "1+0 938cf6cb5fcd10fc",
    "run_state.json": "1+0 4fc535697d59f42b",
    "xlam.jsonl": "1+0 6a298871c1c1631b",
    "deepeval.json": "2+1 600a70677e23561d",
    "prm800k.jsonl": "3+0 478f7ab74622708e",
    "opik.jsonl": "2+0 de4047241a64c737",
    "oasst.jsonl": "3+0 48791c26e15a85f2",
    "gateway_logs.jsonl": "3+1 7cf66d15afc6a613",
    "braintrust.jsonl": "1+0 0708895538ec6453",
    "adk.json": "1+0 f6a3c47bf1e9983f",
    "agent_data.json": "1+0 040077202a02f280",
    "agent_lightning.jsonl": "1+0 1d0cc656b772784e",
    "alpaca_eval.json": "2+2 544c7d2a560eb5bb",
    "alpaca_eval_outputs.json": "1+0 d9d3d1758c7649ab",
    "anthropic_batch.jsonl": "1+1 7120c7a8ef097364",
    "api_log.jsonl": "3+1 6b639c9c8038f7d7",
    "argilla.json": "6+1 d281f891d7cf5b9f",
    "atif.json": "2+0 5142f34157439cbd",
    "autogen.json": "1+0 29d6d908d33d8645",
    "batch_requests.jsonl": "0+3 8f436ecf193e96f2",
    "batch_results.jsonl": "4+2 2c327af39e25a1ef",
    "chatgpt.json": "2+0 fc7f1a6f119475c8",
    "claude_code.jsonl": "4+0 37ee3551fb745388",
    "claude_stream.jsonl": "3+0 65df29295cdaff44",
    "cline.json": "2+0 5151f3a91dfcbae4",
    "cline_history.json": "1+0 8a7488a7e0966045",
    "codex.jsonl": "3+0 0d0e0fcf5be08460",
    "copilot_cli.jsonl": "1+0 6dec4b0c6ac44c73",
    "cursor.jsonl": "1+0 1f53e9a390fcbc44",
    "cursor_stream.jsonl": "1+0 6e349a74b6057776",
    "customizer.jsonl": "2+0 efe36545d06e266b",
    "customizer_sft.jsonl": "2+0 7f0ef34cd9e9fea0",
    "dspy.jsonl": "3+0 678e8cf6039af3a8",
    "gemini_batch.jsonl": "2+1 4bc87f545421dba0",
    "gemini_cli.json": "1+0 4d5eec0696ecb406",
    "gemini_cli_lines.jsonl": "2+0 5e41c31c0860cf9c",
    "goose.json": "2+0 6334f585e824e459",
    "goose_lines.jsonl": "1+0 a0431feceebf5812",
    "goose_stream.jsonl": "1+0 d08618d64282d549",
    "hermes.json": "1+0 48b93e42a976e953",
    "inspect_log.json": "1+1 72a8b0049c05a4c6",
    "kiro_cli.jsonl": "2+0 bcb2c396b8273382",
    "kiro_saved.json": "1+0 8f40b222b54f302c",
    "label_studio.json": "4+0 13a01d41f0047949",
    "langchain.jsonl": "3+0 a69e9bb4802bd683",
    "langfuse.json": "2+0 c35274b0072be893",
    "langsmith.json": "1+0 d7a1b4d6f7859cc8",
    "litellm.jsonl": "1+2 5b6216791f2067eb",
    "llamafactory_media.json": "3+1 7da156001046a149",
    "lm_eval.jsonl": "2+1 efc1f21d5c9c2dd3",
    "managed_agents.jsonl": "1+0 9fc70e155d80a4ad",
    "message_rows.jsonl": "2+0 faffce3cd7e33268",
    "mini_swe_agent.traj.json": "1+0 8a3c793bffcc8a04",
    "mlflow.json": "1+0 a04e3475020f1a6c",
    "nat.json": "4+0 f03002572db9d0fb",
    "nat_atof.jsonl": "1+0 8a25523aa1450809",
    "nemo_gym.jsonl": "5+0 e6833646af35c596",
    "nemo_rl_preference.jsonl": "6+0 63ebcefe54d36d3e",
    "openai_agents.jsonl": "1+1 7de372eaafd7150f",
    "openai_chat.jsonl": "4+0 7c11b62d7d4390e5",
    "openai_evals.jsonl": "2+0 ee6827e2c3023016",
    "openai_evals_log.jsonl": "2+0 03b2236097a51e7b",
    "openai_preference.jsonl": "1+0 81173ffd5769bb14",
    "openclaw_telemetry.jsonl": "1+0 ff0a0f07824d308f",
    "opencode.json": "1+0 135210a9b50ae099",
    "openhands_events.jsonl": "2+0 e0c5bf92652bc957",
    "openhands_legacy.json": "1+0 464b8ca065cad3db",
    "openhands_legacy_rows.jsonl": "1+0 ff127fbda8663c97",
    "openhands_rows.json": "1+0 e22279cb965cc32d",
    "otel_genai.json": "1+0 a0e9f8466e27675d",
    "pairwright.jsonl": "2+0 71c77a8489a6496a",
    "phoenix.json": "1+0 7b32d3ed435f8184",
    "pi.jsonl": "3+0 dc394f5c2daf3991",
    "promptfoo.json": "2+1 f22c7ee7b0daa9ff",
    "pydantic_ai.json": "1+0 edfec02cbb51181e",
    "qwen_code.jsonl": "2+0 3261c37b4ce2831b",
    "rows.jsonl": "5+0 21349761de42247b",
    "s1.jsonl": "2+1 978ec0ccdecb60af",
    "session_lines.jsonl": "1+0 cec8e2c87857e0aa",
    "sharegpt.jsonl": "4+0 ca79eacf9294526a",
    "skyrl.jsonl": "2+0 9774d571d88ff244",
    "slack.json": "2+0 b99ed2a8be6c2187",
    "smolagents.json": "1+0 73026ad885791aee",
    "swe_agent.traj": "1+0 57f7ec3bb25811ad",
    "tau2_bench.json": "1+1 9377c61147ef79d6",
    "tau_bench.json": "2+0 02365ae145bccc10",
    "terminal_bench.json": "0+1 a964a90e38a84efc",
    "trinity.jsonl": "4+0 4fc624add754853f",
    "trl_completions.jsonl": "3+0 8842f4d0844fecb9",
    "trl_preference.jsonl": "8+0 661e8541dcd2c60a",
    "ultrafeedback.jsonl": "6+0 32f104fe2ab2a761",
    "vercel_spans.json": "1+0 42aa0d4982781fd2",
    "verifiers_results.jsonl": "4+0 a6d7e7e5bfe59e88",
    "verifiers_traces.jsonl": "2+1 235a55dd68278464",
    "verl.jsonl": "2+0 8f0684c18d4f9c2f",
    "weave.jsonl": "1+0 671278a85a761e82",
}


def digest_of(file: Path, folder: Path) -> str:
    """Number of rows and of rejections, and a hash of all of them without the path of the file."""
    layout = detect(file)
    assert not isinstance(layout, Rejected), layout.reason
    result = run_tasks([ImportTask(file, layout, folder, Options(), label=f"some/{file.name}")])
    rows = [] if result.part is None else pq.read_table(result.part).drop_columns(["source"]).to_pylist()
    rejected = [] if result.quarantine is None else result.quarantine.read_text().splitlines()
    text = repr(
        (rows, sorted((+result.counts[layout.format]).items()), [line.replace(str(file), "FILE") for line in rejected])
    )
    return f"{len(rows)}+{len(rejected)} {xxhash.xxh3_64_hexdigest(text.encode())}"


@pytest.mark.parametrize("name", sorted(file.name for file in FIXTURES.iterdir()))
def test_the_rows_of_a_fixture_are_what_they_were(name, tmp_path):
    assert digest_of(FIXTURES / name, tmp_path) == DIGESTS[name]
