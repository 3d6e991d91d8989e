"""What the files of a run say, whatever state they are in."""

import json

import pytest

from pairwright.ledger.run_status import read_status
from pairwright.service.rows.job_progress import read_metrics, summary

pytestmark = pytest.mark.stress


def write(folder, lines, **status):
    folder.mkdir(exist_ok=True)
    (folder / "metrics.jsonl").write_text(
        "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
    )
    if status:
        (folder / "train.json").write_text(json.dumps(status))
    return folder


def test_without_a_run_there_is_a_number_all_the_same(tmp_path):
    assert read_status(tmp_path, strict=False) is None
    assert read_metrics(tmp_path) == {}
    assert summary(tmp_path, is_completed=False)["percentage_done"] == 0.0
    assert summary(tmp_path, is_completed=True)["percentage_done"] == 100.0


def test_a_torn_file_says_nothing_and_what_was_known_stays(tmp_path):
    (tmp_path / "train.json").write_text('{"state": "runn')
    before = summary(tmp_path, is_completed=False) | {"percentage_done": 40.0, "train_loss": 0.5}
    assert summary(tmp_path, is_completed=False, before=before) == before
    for text in ("[]", "{}", '{"state": 3}', "null"):
        (tmp_path / "train.json").write_text(text)
        assert read_status(tmp_path, strict=False) is None


def test_curves_have_the_names_of_the_protocol_and_each_step_once(tmp_path):
    lines = [
        {"step": 1, "epoch": 0.1, "time": 10.0, "loss": 3.0, "rewards/accuracies": 0.5, "note": "text"},
        {"step": 2, "loss": float("nan"), "time": 11.0},
        {"step": 3, "loss": 2.0},
        {"step": 3, "loss": 1.5},  # the step again, after a resume
        {"step": 3, "eval_loss": 1.25, "eval_rewards/accuracies": 1},
        '{"step": 4, "lo',
    ]
    curves = read_metrics(write(tmp_path, lines))
    assert [(point["step"], point["value"]) for point in curves["train_loss"]] == [(1, 3.0), (3, 1.5)]
    assert [point["value"] for point in curves["val_loss"]] == [1.25]
    assert set(curves) == {"train_loss", "val_loss", "train_accuracy", "val_accuracy"}


def test_a_long_curve_is_thinned_and_keeps_its_ends(tmp_path):
    write(tmp_path, [{"step": step, "loss": 1 / step} for step in range(1, 5001)])
    steps = [point["step"] for point in read_metrics(tmp_path, max_points=100)["train_loss"]]
    assert len(steps) <= 100
    assert (steps[0], steps[-1]) == (1, 5000)


def test_the_numbers_of_a_run(tmp_path):
    status = {
        "state": "running",
        "step": 15,
        "num_steps": 60,
        "steps_per_epoch": 10,
        "epoch": 1.5,
        "epochs": 6,
        "best_step": 10,
        "counts": {"dpo": {"truncated": 3, "refused: too long": 2, "recorded": 1}},
    }
    write(tmp_path, [{"step": 15, "loss": 0.5}, {"step": 15, "eval_loss": 0.75}], **status)
    found = summary(tmp_path, is_completed=False)
    assert found == {
        "percentage_done": 25.0, "epochs_completed": 1, "steps_completed": 15, "steps_per_epoch": 10, "best_epoch": 0,
        "train_loss": 0.5, "val_loss": 0.75, "truncated_sequences": 3, "refused_rows": 2,
    }  # fmt: skip
