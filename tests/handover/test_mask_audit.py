"""`tokens audit`: what TRL's own preparation trains, counted against what the model generated."""

import json

import pytest
from typer.testing import CliRunner

from handover.tool_runs import TOOLS, make_model
from pairwright.cli.main import app
from pairwright.errors import PairwrightError
from pairwright.tokens import ChatTokenizer
from pairwright.trl.mask_audit import audit_file

pytestmark = pytest.mark.filterwarnings("default")  # of TRL and its dependencies
CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
RESULT = {"role": "tool", "tool_call_id": "1", "content": "the dog sat on the log"}
QUESTION = [{"role": "user", "content": "where is the cat"}]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("audit") / "model")


def answer(text):
    return {"role": "assistant", "content": text}


def write(path, rows):
    path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_rows_of_one_turn_are_trained_as_generated(tmp_path, model):
    rows = [{"prompt": QUESTION, "chosen": [answer("on the mat")], "rejected": [answer("no")]}] * 3
    found = audit_file(write(tmp_path / "pairs.jsonl", rows), model)
    assert (found.trainer, found.rows, found.sequences, found.equal) == ("dpo", 3, 6, 6)
    assert found.trained == found.both == found.generated > 0
    assert (found.not_generated, found.left_out, found.refused) == ({}, 0, {})


def test_tool_output_and_headers_after_the_prompt_are_counted(tmp_path, model):
    said = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    sides = {name: [said, RESULT, answer(text)] for name, text in (("chosen", "on the mat"), ("rejected", "no"))}
    row = {"prompt": QUESTION, **sides, "tools": json.dumps(TOOLS)}
    found = audit_file(write(tmp_path / "pairs.jsonl", [row]), model)
    tokenizer = ChatTokenizer.from_folder(str(model))
    # The result's own text; its header, its end and the next header are the template's.
    assert found.not_generated["tool output"] == 2 * len(tokenizer.encode(RESULT["content"])[0])
    assert found.not_generated["template"] == 2 * 3
    assert found.not_generated["encoded otherwise"] > 0, "the template writes the text of arguments as JSON once more"
    as_object = json.loads(json.dumps(row).replace('"{\\"at\\": 1}"', '{"at": 1}'))
    objects = audit_file(write(tmp_path / "objects.jsonl", [as_object]), model)
    assert objects.trained == found.trained - found.not_generated["encoded otherwise"]
    assert (objects.left_out, "encoded otherwise" in objects.not_generated) == (0, False)


def test_sft_trains_everything_and_cuts_at_its_own_length(tmp_path, model):
    rows = [{"messages": [*QUESTION, answer("the mat " * 20)]}, {"messages": [*QUESTION, answer("no")]}]
    path = write(tmp_path / "chats.jsonl", rows)
    whole = audit_file(path, model)
    assert whole.trainer == "sft"
    assert whole.both == whole.generated
    assert whole.not_generated["user"] > 0
    cut = audit_file(path, model, arguments={"max_length": 30})
    assert cut.left_out > 0
    assert cut.both + cut.left_out == cut.generated == whole.generated


def test_kto_rows_and_rows_that_trl_drops_are_counted(tmp_path, model):
    rows = [{"prompt": QUESTION, "completion": [answer("on the mat")], "label": label} for label in (True, False)]
    rows.append({"prompt": [{"role": "user", "content": "the cat " * 30}], "completion": [answer("no")], "label": True})
    found = audit_file(write(tmp_path / "kto.jsonl", rows), model, arguments={"max_length": 40})
    assert (found.trainer, found.rows, found.rows_left_out) == ("kto", 3, 1)
    assert found.left_out > 0


def test_the_command_prints_counts(tmp_path, model):
    rows = [{"prompt": QUESTION, "chosen": [answer("on the mat"), RESULT], "rejected": [answer("no")]}]
    words = ["tokens", "audit", str(write(tmp_path / "pairs.jsonl", rows)), "--tokenizer", str(model)]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    assert '"rows": 1' in done.stdout or '"rows":1' in done.stdout
    assert "of which the model did not generate" in done.stderr
    refused = CliRunner().invoke(app, [*words, "--trainer", "axolotl"])
    assert "'axolotl' is not one of 'trl'" in refused.output


def test_a_file_without_records_is_an_error(tmp_path, model):
    with pytest.raises(PairwrightError):
        audit_file(write(tmp_path / "odd.jsonl", [{"x": 1}]), model)


def test_real_runs_of_tau_bench_are_audited(traces):
    """The figures of docs/how-to/trl.md."""
    tokenizer = traces.parent / "tokenizers" / "qwen2_5"
    if not tokenizer.is_dir():
        pytest.skip("no tokenizer of Qwen2.5 beside the project")
    found = audit_file(traces / "tau_bench" / "gpt-4o-airline-12-tasks.json", tokenizer)
    assert (found.trained, found.both, found.left_out, found.generated) == (49_104, 0, 58_409, 58_409)
