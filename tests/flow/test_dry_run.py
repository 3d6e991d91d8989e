"""`run --dry-run`: what a run would do with each stage, by the keys that the run itself compares."""

import json
import shutil

import pytest
from typer.testing import CliRunner

from flow.test_flow import imported, run, scored, written
from pairwright.cli.main import app
from pairwright.config import load_config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.flow import Flow, GateClosed
from pairwright.flow.dry_run import plan_rows
from pairwright.store.table import Table
from training.made_runs import make_model

STAGES = ("collect", "pairs", "tokens", "train", "evaluate")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def finished(model, tmp_path_factory):
    """A run of two rounds that is done; tests copy it."""
    folder = tmp_path_factory.mktemp("finished")
    run(written(folder, model, loop__rounds=2, loop__evaluate="never"), folder / "run")
    return folder / "run"


def plan_of(config, folder):
    return Flow(load_config(config, environment={}), folder, base=config.parent).plan()


def states_of(config, folder):
    return [state for _, state in plan_of(config, folder).steps]


def copied(finished, tmp_path):
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def test_an_unchanged_run_is_done_and_its_plan_writes_nothing(model, finished, tmp_path):
    folder = copied(finished, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    plan = plan_of(written(tmp_path, model, loop__rounds=2, loop__evaluate="never"), folder)
    assert plan.steps == [(f"round-{n}/{stage}", "done") for n in (1, 2) for stage in STAGES[:-1]]
    assert plan.refusal is None
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_changed_learning_rate_does_training_and_what_follows_again(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model), folder)
    changed = written(tmp_path, model, train__learning_rate=5e-4)
    assert states_of(changed, folder) == ["done", "done", "done", "again", "again"]
    lines: list[str] = []
    run(changed, folder, lines)
    assert [line.split(":")[0] for line in lines if line.endswith("started")] == ["round-1/train", "round-1/evaluate"]
    assert states_of(changed, folder) == ["done"] * 5
    assert states_of(written(tmp_path, model, evaluate__num_tasks=10), folder)[3:] == ["again", "again"]


def test_another_compaction_prompt_is_another_import(model, tmp_path):
    (tmp_path / "rows.jsonl").write_text("{}\n")
    request = tmp_path / "request.txt"
    config = written(
        tmp_path, model, collect={}, sources={"paths": ["rows.jsonl"], "compaction_prompt": "request.txt"},
        loop__evaluate="never",
    )  # fmt: skip
    keys = []
    for text in ("Summarise.", "Summarise.", "Say what matters."):
        request.write_text(text)
        flow = Flow(load_config(config, environment={}), tmp_path / "run", base=tmp_path)
        keys.append(flow.gather(1, tmp_path / "run" / "experience", None, "").key)
    assert keys[0] == keys[1] != keys[2]


def test_a_collection_that_would_be_in_the_way_is_shown_as_the_refusal_that_the_run_makes(model, finished, tmp_path):
    """Other weights after round 1 are another policy for round 2, whose collection is never removed."""
    folder = copied(finished, tmp_path)
    config = written(tmp_path, model, loop__rounds=2, loop__evaluate="never", train__learning_rate=5e-4)
    plan = plan_of(config, folder)
    states = [state for _, state in plan.steps]
    assert states == ["done", "done", "done", "again", "refused", "not reached", "not reached", "not reached"]
    assert "round-2/experience was made with another configuration and is kept" in str(plan.refusal)
    with pytest.raises(ConfigError, match="is kept") as caught:
        run(config, folder)
    assert str(caught.value) == str(plan.refusal)
    first = written(tmp_path, model, loop__rounds=2, loop__evaluate="never", collect__num_tasks=9)
    assert states_of(first, folder) == ["refused", *["not reached"] * 7]


def test_the_command_ends_as_the_run_would(model, finished, tmp_path):
    folder = copied(finished, tmp_path)
    config = written(tmp_path, model, loop__rounds=2, loop__evaluate="never", collect__num_tasks=9)
    result = CliRunner().invoke(app, ["run", str(config), "--output", str(folder), "--dry-run", "--json"])
    assert isinstance(result.exception, ConfigError)
    rows = json.loads(result.stdout)
    assert (rows[0]["state"], "is kept" in rows[0]["expected"], rows[1]["state"]) == ("refused", True, "not reached")


def test_a_cut_off_collection_under_another_seed_is_refused_by_the_plan_too(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model, loop__evaluate="never"), folder)
    shutil.rmtree(folder / "round-1/experience")
    config = written(tmp_path, model, loop__evaluate="never", seed=5)
    plan = plan_of(config, folder)
    assert [state for _, state in plan.steps] == ["refused", "not reached", "not reached", "not reached"]
    with pytest.raises(PairwrightError, match="the collection there has other settings") as caught:
        run(config, folder)
    assert str(caught.value) == str(plan.refusal)


def test_interrupted_failed_and_missing_stages_are_distinguished(model, finished, tmp_path):
    folder = copied(finished, tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["stages"]["round-2/tokens"]["state"] = "running"
    manifest["stages"]["round-2/train"]["state"] = "failed"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(folder / "round-2/pairs")
    config = written(tmp_path, model, loop__rounds=2, loop__evaluate="never")
    assert states_of(config, folder)[4:] == ["done", "again", "resume", "retry"]
    longer = written(tmp_path, model, loop__rounds=3, loop__evaluate="never")
    assert states_of(longer, folder)[8:] == ["new"] * 4


def test_a_closed_gate_is_in_the_plan(model, tmp_path):
    config = written(tmp_path, model, evaluate__gate={"min_improvement": 100.0, "min_tasks": 2})
    with pytest.raises(GateClosed):
        run(config, tmp_path / "run")
    plan = plan_of(config, tmp_path / "run")
    assert [state for _, state in plan.steps] == ["done"] * 5
    assert isinstance(plan.refusal, GateClosed)


def test_what_is_missing_before_the_first_stage_is_an_error_of_the_plan_too(tmp_path):
    config = written(tmp_path, tmp_path / "none")
    with pytest.raises(ConfigError, match="is not the folder of a model"):
        plan_rows(Flow(load_config(config, environment={}), tmp_path / "run", base=tmp_path))


def test_another_score_of_the_runs_does_training_again(model, tmp_path):
    rows = "".join(scored(task, text, reward) for task in range(4) for text, reward in (("a", 1), ("bb", 0)))
    config = imported(
        tmp_path,
        model,
        rows,
        train__channels={"dpo": 0.0, "kto": 1.0},
        train__score="length",
        train__kto={"sft_loss_weight": 1.0},
    )
    scores = tmp_path / "run/round-1/experience/scores/length.jsonl"
    with pytest.raises(PairwrightError, match="length"):
        run(config, tmp_path / "run")  # imports and builds pairs, but has no score to train on
    table = Table(tmp_path / "run/round-1/experience")
    table.score(lambda one: len(one.completion[-1].text), name="length")
    run(config, tmp_path / "run")
    assert states_of(config, tmp_path / "run") == ["done"] * 4
    scores.unlink()
    table.score(lambda one: -len(one.completion[-1].text), name="length")
    assert states_of(config, tmp_path / "run") == ["done", "done", "done", "again"]
