"""What a training on pairs does that names neither channels nor a contrast: single turns are compared, whole runs imitated."""

import json
from pathlib import Path

import pytest

from ledger.small_flows import dumped, make_model, run_of, train_on
from pairwright.config import Config
from pairwright.ledger import build_ledger


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "model")


def runs_of(task: int, num_turns: int, *, is_recorded: bool = False):
    answers = (["good"] * num_turns, 1.0), (["bad"] * num_turns, 0.0)
    return [
        run_of(task, run, turns, reward=reward, is_recorded=is_recorded) for run, (turns, reward) in enumerate(answers)
    ]


def channels_of(folder: Path) -> set[str]:
    return {channel for channel, *_ in dumped(folder)}


@pytest.mark.parametrize("is_recorded", [False, True])
def test_pairs_of_several_turns_train_their_chosen_sides(model, tmp_path, is_recorded):
    folder = train_on(tmp_path, model, runs_of(1, 2, is_recorded=is_recorded))
    assert [(channel, side) for channel, _, side, _ in dumped(folder)] == [("sft", "")]
    (note,) = [note for note in json.loads((folder / "train.json").read_text())["notes"] if "contrast" in note]
    assert note == (
        "1 of 1 pairs compare several turns: their chosen sides train by sft, without tokens sampled below 0.02. "
        "train.dpo.contrast=all compares them"
    )
    assert build_ledger("run", folder).problems == []


def test_pairs_of_single_turns_are_compared(model, tmp_path):
    folder = train_on(tmp_path, model, runs_of(1, 1))
    assert channels_of(folder) == {"dpo"}


def test_most_pairs_decide(model, tmp_path):
    runs = [*runs_of(1, 1), *runs_of(2, 3)]
    half = train_on(tmp_path / "half", model, runs)
    most = train_on(tmp_path / "most", model, [*runs, *runs_of(3, 2)])
    assert (channels_of(half), channels_of(most)) == ({"dpo"}, {"sft"})


@pytest.mark.parametrize(
    "options",
    [
        {"dpo": {"contrast": "all"}},
        {"dpo": {"contrast": "decisions"}},
        {"dpo": {"loss": "ipo"}},
        {"dpo": {"mixture": {"sigmoid": 1.0, "apo_zero": 1.0}}},
    ],
)
def test_a_contrast_or_a_loss_that_is_set_compares_whole_runs(model, tmp_path, options):
    assert channels_of(train_on(tmp_path, model, runs_of(1, 2), **options)) == {"dpo"}


def test_the_weight_of_pairs_goes_to_sft(model, tmp_path):
    folder = train_on(tmp_path, model, runs_of(1, 2), channels={"dpo": 1.5, "sft": 0.5}, epochs=1)
    plain = train_on(tmp_path / "plain", model, runs_of(1, 2), channels={"sft": 2.0}, epochs=1)
    losses = [json.loads((place / "metrics.jsonl").read_text().splitlines()[0])["loss"] for place in (folder, plain)]
    assert losses[0] == losses[1]


def test_a_written_configuration_means_the_same(model, tmp_path):
    """Ray workers, jobs and RUN/config.yaml have every key, set or not."""
    train = Config().train.model_dump(mode="json", include={"channels", "dpo", "min_probability"})
    assert channels_of(train_on(tmp_path, model, runs_of(1, 2), **train)) == {"sft"}


def test_the_customizer_name_of_dpo_compares_whole_runs():
    train = Config.model_validate({"train": {"training_type": "dpo", "dpo": {"beta": 0.3}}}).train
    assert (train.channels.dpo, train.dpo.contrast, train.dpo.beta) == (1.0, "all", 0.3)
    assert Config.model_validate({"train": {"training_type": "sft"}}).train.dpo.contrast == "single"
