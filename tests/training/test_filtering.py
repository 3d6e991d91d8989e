"""`train.where`: excluded records are not trained on, and are counted."""

import json

import pytest

from pairwright import Table
from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.ledger.build_ledger import build_ledger
from pairwright.pairs.decisions import ExclusionFile
from pairwright.training import read_status, train
from training.made_runs import make_failed_runs, make_pairs, make_runs


def config(channel: str, where: str | None, **more) -> Config:
    channels = {"dpo": 0.0, channel: 1.0}
    return Config.model_validate(
        {"train": {"batch_size": 4, "threads": 1, "dump_batches": 99, "channels": channels, "where": where, **more}}
    )


def trained_ids(folder) -> set[str]:
    batches = [json.loads(path.read_bytes()) for path in (folder / "batches").iterdir()]
    return {item["id"] for batch in batches for items in batch["channels"].values() for item in items}


def test_pairs(model, tmp_path):
    pairs = make_pairs(tmp_path / "pairs", 8, held=2)
    settings = config("dpo", "task IN ('0', '3', '5', '8')")
    train(settings, model=model, pairs=pairs, output=tmp_path / "run")
    status = read_status(tmp_path / "run")
    assert status.where == settings.train.where
    assert status.counts["dpo"]["filtered by --where"] == 6
    assert len(trained_ids(tmp_path / "run")) == 3
    with pytest.raises(PairwrightError, match=r"no pair to train on .10 × filtered by --where"):
        train(config("dpo", "gap > 5"), model=model, pairs=pairs, output=tmp_path / "none")
    with pytest.raises(
        ConfigError, match=r"train\.where 'reward > 0': at character 1: no column 'reward'; the table has id, tid"
    ):
        train(config("dpo", "reward > 0"), model=model, pairs=pairs, output=tmp_path / "bad")


@pytest.mark.parametrize("channel", ["sft", "grpo"])
def test_experiences(model, tmp_path, channel):
    runs = make_runs(tmp_path / "runs", num_tasks=4, num_runs=3)
    train(config(channel, "task != '1' AND run < 2"), model=model, experience=runs, output=tmp_path / "run")
    assert read_status(tmp_path / "run").counts[channel]["filtered by --where"] == 6
    assert {(json.loads(uid)[1], json.loads(uid)[2]) for uid in trained_ids(tmp_path / "run")} == {
        (task, run) for task in (0, 2, 3) for run in (0, 1)
    }


def test_experiences_that_a_person_excluded_are_not_trained_and_the_ledger_says_so(model, tmp_path):
    runs = make_runs(tmp_path / "runs", num_tasks=2, num_runs=3)
    uids = [experience.eid.uid for experience in Table(runs)]
    ExclusionFile(runs).exclude("ada", uids[0], "the tool was down")
    train(config("sft", None), model=model, experience=runs, output=tmp_path / "run")
    assert read_status(tmp_path / "run").counts["sft"]["excluded by hand"] == 1
    assert trained_ids(tmp_path / "run") == set(uids[1:])
    (account,) = build_ledger("run", tmp_path / "run").accounts
    assert {fate.name: fate.turns for fate in account.fates}["excluded by hand"] == 1


def test_error_turns(model, tmp_path):
    runs = make_failed_runs(tmp_path / "runs", num_tasks=3, num_runs=2)
    templates = {"templates": {"file_not_found": "Look first."}}
    settings = config("sdpo", "reward > 0.5", sdpo=templates)
    train(settings, model=model, experience=runs, output=tmp_path / "run")
    assert read_status(tmp_path / "run").counts["sdpo"]["filtered by --where"] == 3
    assert {json.loads(uid)[2] for uid in trained_ids(tmp_path / "run")} == {0}


def test_the_command_takes_a_condition_with_quotes(model, tmp_path):
    from typer.testing import CliRunner

    from pairwright.cli import app

    pairs = make_pairs(tmp_path / "pairs", 4)
    words = ["train", "--pairs", pairs, "--model", model, "-o", tmp_path / "run", "--batch-size", 2, "--json"]
    done = CliRunner().invoke(app, [*map(str, words), "--where", "task = '1' OR task LIKE '%: 3'"])
    assert done.exit_code == 0, done.exception
    assert read_status(tmp_path / "run").counts["dpo"]["filtered by --where"] == 3


def test_trainers_that_get_text_refuse_it():
    from pairwright.jobs.nemo_rl import refuse_untranslatable

    with pytest.raises(ConfigError, match=r"train\.where"):
        refuse_untranslatable(config("dpo", "gap > 0").train)
