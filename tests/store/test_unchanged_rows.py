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
    "atif.json": "2+0 5142f34157439cbd",
    "claude_code.jsonl": "4+0 4b2fb8952e50a979",
    "codex.jsonl": "3+0 4d9bcc984c1a90d2",
    "customizer.jsonl": "2+0 efe36545d06e266b",
    "customizer_sft.jsonl": "2+0 b0dc5efce4c6de19",
    "inspect_log.json": "1+1 ac10e08bb05a9435",
    "langfuse.json": "2+0 c35274b0072be893",
    "langsmith.json": "1+0 d7a1b4d6f7859cc8",
    "mini_swe_agent.traj.json": "1+0 8a3c793bffcc8a04",
    "nat.json": "4+0 1c12e4102da2038e",
    "nemo_gym.jsonl": "5+0 89e21555ba8dba72",
    "nemo_rl_preference.jsonl": "6+0 63ebcefe54d36d3e",
    "openai_chat.jsonl": "4+0 447c4088e148f3f4",
    "openai_preference.jsonl": "1+0 81173ffd5769bb14",
    "openhands_events.jsonl": "2+0 c1e12d2cebfad4fa",
    "openhands_rows.json": "1+0 e22279cb965cc32d",
    "otel_genai.json": "1+0 a0e9f8466e27675d",
    "pairwright.jsonl": "2+0 71c77a8489a6496a",
    "phoenix.json": "1+0 7b32d3ed435f8184",
    "sharegpt.jsonl": "4+0 ca79eacf9294526a",
    "swe_agent.traj": "1+0 57f7ec3bb25811ad",
    "tau_bench.json": "2+0 02365ae145bccc10",
    "trinity.jsonl": "4+0 4fc624add754853f",
    "trl_preference.jsonl": "8+0 661e8541dcd2c60a",
    "ultrafeedback.jsonl": "6+0 311ff53e5a17ed6b",
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
