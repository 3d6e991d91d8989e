"""What the chat template does not render is refused, counted in train.json and said before the first update."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from pairwright.cli import app
from pairwright.config import Config
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.experience import EID, Experience, Pair
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.store.table import Table
from pairwright.training import read_status, train
from pairwright.training.data import DataError
from training.made_runs import made_pair, make_runs

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}

CALL = Message("assistant", "go", tool_calls=(ToolCall("look", '{"at": "left"}', "call00000"),))
FAILED = Message("tool", "no such file", tool_call_id="call00000")
SETTINGS = {"batch_size": 4, "max_steps": 1, "threads": 1}


def config(allow: dict | None = None, **channels: float) -> Config:
    return Config.model_validate({"train": {**SETTINGS, "channels": channels}, "tokens": allow or {}})


def pair_with_calls(number: int) -> Pair:
    plain = made_pair(number)
    return Pair(
        id=pair_id(plain.prompt, (), plain.chosen, [CALL]), prompt=plain.prompt, chosen=plain.chosen, rejected=[CALL],
        chosen_reward=1.0, rejected_reward=0.0, chosen_eid=plain.chosen_eid, rejected_eid=plain.rejected_eid,
        gap=1.0, strategy="all",
    )  # fmt: skip


def run_with_calls(number: int, **fields) -> Experience:
    given = {
        "kind": "multi_turn", "prompt": [Message("user", f"count {number // 2}")], "reward": float(number % 2),
        "completion": [CALL, FAILED, Message("assistant", f"it is {number}")],
    }  # fmt: skip
    return Experience(**({"eid": EID(batch=0, task=number // 2, run=number % 2)} | given | fields))


def test_pairs_with_calls_are_refused_and_counted(model, tmp_path):
    pairs = [*(made_pair(number) for number in range(4)), pair_with_calls(4), pair_with_calls(5)]
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    notes: list[str] = []
    train(
        config(dpo=1, sft=1), model=model, pairs=tmp_path / "pairs", output=tmp_path / "run",
        progress=lambda event: notes.append(event.get("note", "")),
    )  # fmt: skip
    status = json.loads((tmp_path / "run" / "train.json").read_text())
    assert [status["counts"][name]["refused: dropped"] for name in ("dpo", "sft")] == [2, 2]
    assert "dpo: 2 records are refused: dropped 2" in notes
    assert "dpo: 2 records are refused: dropped 2" in status["notes"]
    allowed = config({"allow_dropped": True}, dpo=1)
    train(allowed, model=model, pairs=tmp_path / "pairs", output=tmp_path / "allowed")
    counts = json.loads((tmp_path / "allowed" / "train.json").read_text())["counts"]["dpo"]
    assert ("refused: dropped" in counts, counts["with_dropped_content"]) == (False, 2)


def test_only_refused_pairs_are_an_error_that_names_the_reason(model, tmp_path):
    write_pairs(tmp_path / "pairs", [pairs_to_batch([pair_with_calls(0)])])
    with pytest.raises(DataError, match=r"no pair to train on .1 × refused: dropped"):
        train(config(dpo=1), model=model, pairs=tmp_path / "pairs", output=tmp_path / "run")


def test_runs_with_calls_and_images_are_refused_in_every_channel(model, tmp_path):
    site = ErrorSite(2, "file_not_found", "no such file")
    plain = {"completion": [Message("assistant", "go left"), FAILED, Message("assistant", "yes")], "errors": [site]}
    again = {"completion": [CALL, FAILED, CALL], "errors": [site]}
    rows = [
        *(run_with_calls(number, **plain) for number in range(4)),
        run_with_calls(4, **again),
        run_with_calls(5, prompt=[Message("user", [{"type": "text", "text": "x"}, IMAGE])], **plain),
        run_with_calls(
            6, prompt=[CALL, FAILED], **{**plain, "errors": [ErrorSite(3, "file_not_found", "no such file")]}
        ),
    ]
    with Table(tmp_path / "table") as table:
        table.append(rows)
    train(config(dpo=0, grpo=1, sdpo=1), model=model, experience=tmp_path / "table", output=tmp_path / "run")
    status = json.loads((tmp_path / "run" / "train.json").read_text())
    for name in ("grpo", "sdpo"):
        counts = status["counts"][name]
        assert (counts["refused: dropped"], counts["refused: multimodal"]) == (1, 1), counts
        assert counts["with_dropped_prompt_content"] == 1, counts
        assert any(note.startswith(f"{name}: 2 records are refused") for note in status["notes"])
    held = config(dpo=0, sft=1)
    train(held, model=model, experience=tmp_path / "table", validation=tmp_path / "table", output=tmp_path / "held")
    counts = json.loads((tmp_path / "held" / "train.json").read_text())["counts"]["sft"]
    assert (counts["refused: dropped"], counts["validation: refused: dropped"]) == (1, 1)


@pytest.mark.parametrize("channel", ["grpo", "sft", "sdpo"])
def test_recorded_inputs_that_no_channel_uses_stop_the_run(channel, model, tmp_path):
    site = ErrorSite(2, "file_not_found", "no such file")
    plain = {"completion": [Message("assistant", "go left"), FAILED, Message("assistant", "yes")], "errors": [site]}
    with Table(tmp_path / "table") as table:
        table.append(
            [run_with_calls(0, **plain), run_with_calls(1, **plain, multi_modal_inputs={"pixels": np.ones(3)})]
        )
    with pytest.raises(DataError, match=r"multi_modal_inputs, which no channel uses.*--allow-images"):
        train(config(dpo=0, **{channel: 1}), model=model, experience=tmp_path / "table", output=tmp_path / "run")


def test_images_are_left_out_where_that_is_allowed(model, tmp_path):
    with Table(tmp_path / "table") as table:
        table.append([run_with_calls(n, completion=[Message("assistant", "yes")], multi_modal_inputs={"pixels": np.ones(3)})
                      for n in range(4)])  # fmt: skip
    allowed = config({"allow_images": True}, dpo=0, grpo=1)
    train(allowed, model=model, experience=tmp_path / "table", output=tmp_path / "allowed")
    counts = json.loads((tmp_path / "allowed" / "train.json").read_text())["counts"]["grpo"]
    assert counts["with_images_left_out"] == 4


def test_sequences_that_are_cut_are_noted(model, pairs, tmp_path):
    options = {"train": {"batch_size": 4, "threads": 1, "max_steps": 1}, "tokens": {"workers": 1, "max_length": 24}}
    train(Config.model_validate(options), model=model, pairs=pairs, output=tmp_path / "cut")
    status = read_status(tmp_path / "cut")
    count = status.counts["dpo"]["truncated"]
    assert count > 0
    assert f"dpo: {count} sequences are cut at the limit of their length; see tokens.max_length" in status.notes


def test_the_command_names_what_no_channel_reads(model, pairs, tmp_path):
    runs = make_runs(tmp_path / "runs")
    words = ["train", "--pairs", pairs, "--model", model, "-o", tmp_path / "run", "train.max_steps=1"]
    unused = ["--experience", runs, "--validation", runs]
    done = CliRunner().invoke(app, [str(word) for word in (*words, *unused)])
    assert done.exit_code == 0, done.exception
    for name in ("--experience", "--validation"):
        assert f"note: {name} has no effect" in done.stderr
    assert "--pairs has no effect" not in done.stderr
