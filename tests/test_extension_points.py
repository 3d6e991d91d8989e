"""A reader, a strategy, a loss, an export target and a backend outside of the package, with public imports only."""

import json
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

import pairwright as pw
from pairwright.cli.main import app
from pairwright.config import load_config
from pairwright.config.user_code import installed

READER = """
from pairwright import Message
from pairwright.sources import BadRecord, Format, Parts

def matches(value):
    return isinstance(value, dict) and "frage" in value

def read(value, origin, options):
    if not value["antworten"]:
        raise BadRecord("antworten: empty")
    for number, one in enumerate(value["antworten"]):
        yield Parts("quiz", origin, task=value["frage"], run=number, prompt=[Message("user", value["frage"])],
                    completion=[Message("assistant", one["text"])], reward=one["punkte"])

FORMAT = Format(name="quiz", unit="record", matches=matches, read=read, summary="Our quiz")
"""
STRATEGY = '''
def neighbours(group, options):
    """Pair each candidate with the next worse one."""
    return [(n, n + 1) for n in range(len(group.rewards) - 1)]

def wrong(group, options):
    return [(1, 0)]
'''
LOSS = """
import torch
from pairwright.losses import PreferenceLoss

def squared_hinge(scores, strength):
    z_B = strength.beta * (scores.chosen_B - scores.rejected_B)
    return torch.relu(1 - z_B) ** 2

AVERAGED = PreferenceLoss(squared_hinge, needs_reference=False, always_averages=True)
"""
TARGET = """
def to_csv_row(pair):
    if len(pair["chosen"]) > 1:
        return None
    return {"q": pair["prompt"][-1]["content"], "good": pair["chosen"][0]["content"], "bad": pair["rejected"][0]["content"],
            "gap": pair["chosen_reward"] - pair["rejected_reward"]}
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files of a user, and rows of a format that only they know."""
    for name, text in {"quiz.py": READER, "pick.py": STRATEGY, "hinge.py": LOSS, "rows.py": TARGET}.items():
        (tmp_path / name).write_text(text)
    rows = [
        {"frage": f"Frage {n}?", "antworten": [{"text": f"a{n}{k}", "punkte": k} for k in range(3)]} for n in range(2)
    ]
    (tmp_path / "own.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"frage": "x", "antworten": []}])
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def run(*words):
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_reader_a_strategy_and_a_target_work_from_the_command_line(folder):
    run("import", "own.jsonl", "-o", "t", "--format", "quiz.py:FORMAT")
    table = pw.Table("t")
    assert sorted(exp.reward for exp in table.records()) == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    assert {exp.source.format for exp in table.records()} == {"quiz"}
    assert "antworten: empty" in (folder / "t" / "quarantine.jsonl").read_text()
    run("pairs", "t", "-o", "p", "--strategy", "pick.py:neighbours")
    run("export", "p", "--to", "rows.py:to_csv_row", "-o", "out.jsonl")
    rows = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    assert sorted((row["good"], row["bad"], row["gap"]) for row in rows) == [
        ("a01", "a00", 1.0), ("a02", "a01", 1.0), ("a11", "a10", 1.0), ("a12", "a11", 1.0)
    ]  # fmt: skip


def test_they_work_from_a_configuration(folder):
    text = (
        "name: own\nsources: {paths: [own.jsonl], format: 'quiz.py:FORMAT'}\npairs: {strategy: 'pick.py:neighbours'}\n"
    )
    (folder / "c.yaml").write_text(text + "train: {dpo: {loss: 'hinge.py:squared_hinge'}}\n")
    config = load_config(folder / "c.yaml")
    assert (config.pairs.strategy, config.train.dpo.loss) == ("pick.py:neighbours", "hinge.py:squared_hinge")
    run("import", "--config", "c.yaml")
    run("pairs", "--config", "c.yaml")
    assert len(list(pw.Pairs("runs/own/pairs"))) == 4


def test_a_pick_that_does_not_exist_is_an_error(folder):
    run("import", "own.jsonl", "-o", "t", "--format", "quiz.py:FORMAT")
    result = CliRunner().invoke(app, ["pairs", "t", "-o", "p", "--strategy", "pick.py:wrong"])
    assert result.exit_code != 0
    assert "picked (1, 0) in a group of 3" in str(result.exception)


def test_a_loss_of_ones_own_is_trained_with(folder):
    torch = pytest.importorskip("torch")
    from pairwright.losses import PairLogps, PreferenceOptions, check_preference, preference_loss

    chosen, rejected, four = torch.tensor([-1.0]), torch.tensor([-3.0]), torch.tensor([4])
    logps = PairLogps(chosen, rejected, four, four, ref_chosen_B=chosen * 0, ref_rejected_B=rejected * 0)
    summed = preference_loss("hinge.py:squared_hinge", logps, PreferenceOptions(beta=0.1))
    assert summed.loss_B.item() == pytest.approx((1 - 0.1 * 2) ** 2)
    averaged = preference_loss({"hinge.py:AVERAGED": 1.0}, logps, PreferenceOptions(beta=0.1))
    assert averaged.loss_B.item() == pytest.approx((1 - 0.1 * 0.5) ** 2)
    assert not check_preference("hinge.py:AVERAGED", PreferenceOptions()).needs_reference


@pytest.mark.parametrize(
    ("key", "value"),
    [("pairs.strategy", "bestworst"), ("train.dpo.loss", "dpoo"), ("backend.name", "nowhere")],
)
def test_an_unknown_name_is_refused_with_the_names_there_are(key, value):
    with pytest.raises(pw.ConfigError, match=r"or your own as path/file\.py:NAME"):
        load_config(None, overrides=[(key, value)])


def test_unknown_formats_and_targets_are_refused(folder):
    with pytest.raises(pw.ConfigError, match=r"expected one of auto, .*or file\.py:FORMAT"):
        pw.import_traces("own.jsonl", "t", format="quizz")
    with pytest.raises(pw.ConfigError, match="did you mean 'trl'"):
        pw.export_pairs("p", "trll", "x.jsonl")
    with pytest.raises(pw.ConfigError, match="expected a Format, got function"):
        pw.import_traces("own.jsonl", "t", format="quiz.py:read")


def test_an_installed_format_takes_part_in_auto(folder, monkeypatch):
    point = EntryPoint(name="quiz", value="quiz:FORMAT", group="pairwright.formats")
    monkeypatch.setattr(
        "pairwright.config.user_code.entry_points", lambda group: [point] if group == point.group else []
    )
    monkeypatch.syspath_prepend(str(folder))
    installed.cache_clear()
    try:
        pw.import_traces("own.jsonl", "t")
    finally:
        installed.cache_clear()
    assert pw.Table("t").count() == 6


def test_data_never_loads_code(folder):
    """A backend that is named only by a job file is not imported."""
    from pairwright.jobs import BackendError, Job, JobState, backend_of

    (folder / "evil.py").write_text("raise SystemExit('loaded')\n")
    job = Job(id="j", backend="evil.py:BACKEND", state=JobState.CREATED, created_at=0.0, updated_at=0.0, model="m")
    with pytest.raises(BackendError, match="name its code"):
        backend_of(job, load_config(None))


def test_a_backend_of_ones_own_is_found_by_its_name(folder):
    from pairwright.jobs import find_backend

    (folder / "mine.py").write_text(
        "from pairwright.jobs import BACKENDS, Backend\n"
        "from dataclasses import replace\n"
        "BACKEND = replace(BACKENDS['local'], name='mine')\n"
    )
    assert load_config(None, overrides=[("backend.name", "mine.py:BACKEND")]).backend.name == "mine.py:BACKEND"
    assert find_backend("mine.py:BACKEND").name == "mine"
