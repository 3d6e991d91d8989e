"""Every generated token has one fate a channel, and the sums agree from the table to the losses."""

import json
import tempfile
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ledger.small_flows import STOP, dumped, experience_of, letters, make_model, run_of, train_on
from pairwright.cli.main import app
from pairwright.errors import PairwrightError
from pairwright.ledger import build_ledger, train_folders
from pairwright.tokens.recorded import find_mask_spans

WORDS = ["hello", "there", "please", "look up", "the weather", "ok ok"]
FAMILIES = ["chatml", "chatml with calls", "drops old reasoning", "the next header is the stop"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[str, Path]:
    return {family: make_model(tmp_path_factory.mktemp("models") / family, family) for family in FAMILIES}


def fates(folder: Path, channel: str, **options) -> dict[str, tuple[int, int]]:
    ledger = build_ledger("run", folder, **options)
    assert ledger.problems == []
    (account,) = [one for one in ledger.accounts if one.channel == channel]
    assert account.loss_tokens == sum(len(trained) for name, _, _, trained in dumped(folder) if name == channel)
    return {fate.name: (fate.turns, fate.tokens) for fate in account.fates}


def test_sides_that_were_not_picked_refused_or_held_out_are_distinguished(models, tmp_path):
    runs = [
        run_of(0, 0, ["hello"], reward=1.0, is_recorded=True),  # 5 letters and a stop
        run_of(0, 1, ["there"], reward=0.0, is_recorded=True, is_cut=True),  # 5 letters, no stop
        run_of(0, 2, ["ok"], reward=0.5, is_recorded=True),  # between best and worst
        run_of(1, 0, ["look"], reward=1.0, is_recorded=True),  # too long below, with its opponent
        run_of(1, 1, ["please please please please please please please please"], reward=0.0),
        run_of(2, 0, ["hello"], reward=None, is_recorded=True),
    ]
    folder = train_on(
        tmp_path, models["chatml"], runs, pairs={"strategy": "best-worst"}, max_steps=3,
        tokens={"max_length": 19, "truncation": "drop"},
    )  # fmt: skip
    found = fates(folder, "dpo")
    assert found["trained"] == (2, 6 + 5)
    assert found["not paired: not picked by the strategy"] == (1, 3)
    assert found["not paired: unscored: no reward, NaN or infinite"] == (1, 6)
    turns, tokens = found["refused: too_long"]
    assert turns == 2
    assert tokens > 5
    assert sum(turns for turns, _ in found.values()) == 6


def test_turns_before_two_runs_part_are_not_compared_and_held_out_pairs_not_trained(models, tmp_path):
    runs = [
        run_of(task, number, ["hello", answer], reward=float(number), is_recorded=True)
        for task in range(6)
        for number, answer in enumerate(("ok", "there"))
    ]
    folder = train_on(
        tmp_path, models["chatml"], runs, pairs={"strategy": "divergence", "validation": 0.4, "seed": 3}, max_steps=1,
    )  # fmt: skip
    found = fates(folder, "dpo")
    assert found["not compared by its pairs"] == (12, 12 * 6)
    assert found["held out for validation"][0] > 0
    assert found["not drawn: training ended first"][0] > 0
    assert sum(turns for turns, _ in found.values()) == 24


def test_runs_of_the_policy_channel_are_trained_cut_unscored_or_flat(models, tmp_path):
    runs = [
        run_of(0, 0, ["hello", "ok"], reward=1.0, is_recorded=True),
        run_of(0, 1, ["there", "ok"], reward=0.0, is_recorded=True),
        run_of(1, 0, ["hello"], reward=1.0, is_recorded=True),
        run_of(1, 1, ["there"], reward=1.0, is_recorded=True),
        run_of(2, 0, ["look"], reward=None, is_recorded=True),
    ]
    folder = train_on(
        tmp_path, models["chatml"], runs, channels={"grpo": 1.0}, max_steps=2, tokens={"max_length": 20},
    )  # fmt: skip
    found = fates(folder, "grpo")
    assert found == {
        "trained": (2, 3 + 3), "cut: longer than tokens.max_length": (2, 6 + 6), "unscored": (1, 5),
        "no advantage: equal rewards": (2, 6 + 6),
    }  # fmt: skip


def test_runs_of_several_sequences_are_counted_once(models, tmp_path):
    answers = ["<think>\nhi\n</think>\n\nhello", "<think>\nhi\n</think>\n\nthere", "ok"]
    runs = [run_of(0, number, answers, reward=reward) for number, reward in enumerate((1.0, 0.0, None))]
    folder = train_on(tmp_path, models["drops old reasoning"], runs, channels={"grpo": 1.0}, max_steps=1)
    assert len(dumped(folder)) > 0
    status = json.loads((folder / "train.json").read_text())
    assert status["counts"]["grpo"]["unscored"] == 1
    assert any("grpo: 2 of 2 runs have no recorded log-probabilities" in note for note in status["notes"])


def test_hinted_turns_are_trained_as_they_were_sampled(models, tmp_path):
    runs = [
        run_of(task, 0, ["hello", "there"], reward=0.0, is_recorded=True, fails=True) for task in range(3)
    ]  # fmt: skip
    folder = train_on(tmp_path, models["chatml"], runs, channels={"sdpo": 1.0}, max_steps=2)
    assert fates(folder, "sdpo") == {"trained": (3, 18), "not taught": (3, 18)}
    assert {tuple(trained) for _, _, _, trained in dumped(folder)} == {(*letters("there"), STOP)}


def test_a_ledger_that_does_not_add_up_is_exit_code_2(models, tmp_path):
    runs = [run_of(0, number, [word], reward=float(number), is_recorded=True) for number, word in enumerate(WORDS[:2])]
    folder = train_on(tmp_path, models["chatml"], runs, max_steps=2)
    result = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "trained" in result.output
    rows = pl.read_parquet(folder / "trained.parquet")
    rows.with_columns(digest=pl.col("digest") + 1).write_parquet(folder / "trained.parquet")
    assert "recorded turns were trained with other ids" in build_ledger("run", folder).problems[0]
    rows.with_columns(times=pl.col("times") + 1).write_parquet(folder / "trained.parquet")
    assert "the losses saw" in build_ledger("run", folder).problems[0]
    result = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert isinstance(result.exception, PairwrightError)
    assert result.exception.exit_code == 2


def test_added_tokens_of_trained_sequences_are_counted(tmp_path):
    """A template without a stop: EOS is added to each turn."""
    model = make_model(tmp_path / "model", "no stop at all")
    runs = [run_of(0, 0, ["hello"], reward=1.0), run_of(0, 1, ["there"], reward=0.0), run_of(1, 0, ["ok"], reward=0.5)]
    folder = train_on(tmp_path, model, runs, pairs={"strategy": "best-worst"}, max_steps=2)
    (account,) = build_ledger("run", folder).accounts
    # Both sides of the only pair; the third run is not trained.
    assert (account.added_tokens, account.num_with_added) == (2, 2)
    result = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert "2 added tokens in 2 trained sequences" in " ".join(result.output.split())


def test_a_run_without_an_end_has_no_ledger_and_says_so(tmp_path):
    with pytest.raises(PairwrightError, match="no training run"):
        train_folders(tmp_path)
    (tmp_path / "train.json").write_text('{"state": "stopped"}')
    with pytest.raises(PairwrightError, match="the training is stopped"):
        build_ledger("run", train_folders(tmp_path)[0][1])


answers = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)
runs = st.fixed_dictionaries(
    {
        "task": st.integers(0, 2), "answers": answers, "is_recorded": st.booleans(), "is_cut": st.booleans(),
        "fails": st.booleans(), "reward": st.one_of(st.none(), st.sampled_from([0.0, 0.5, 1.0])),
    }
)  # fmt: skip
options = st.fixed_dictionaries(
    {
        "family": st.sampled_from(FAMILIES),
        "channels": st.sampled_from(
            [{"dpo": 1.0}, {"dpo": 1.0, "sft": 0.1}, {"sft": 1.0}, {"grpo": 1.0}, {"sdpo": 1.0},
             {"dpo": 1.0, "grpo": 1.0, "sdpo": 1.0}]
        ),
        "strategy": st.sampled_from(["all", "best-worst", "divergence"]),
        "contrast": st.sampled_from(["single", "all", "decisions"]),
        "validation": st.sampled_from([0.0, 0.3]),
        "tokens": st.sampled_from(
            [{}, {"max_length": 40}, {"max_length": 28, "truncation": "keep_start"}, {"recorded": "ignore"},
             {"max_length": 30, "truncation": "drop"}, {"require_stop": False}]
        ),
        "max_steps": st.integers(1, 4),
    }
)  # fmt: skip


def check_flow(models, drawn, chosen) -> bool:
    """Run a flow and check it; whether there was anything to train."""
    made = [
        run_of(one["task"], number, one["answers"], **{name: one[name] for name in ("reward", "is_recorded", "is_cut", "fails")})
        for number, one in enumerate(drawn)
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as place:
        try:
            folder = train_on(
                Path(place), models[chosen["family"]], made, channels=chosen["channels"], tokens=chosen["tokens"],
                pairs={"strategy": chosen["strategy"], "validation": chosen["validation"]}, max_steps=chosen["max_steps"],
                dpo={"contrast": chosen["contrast"]},
            )  # fmt: skip
        except PairwrightError:
            return False  # nothing to train on, said with its reason
        ledger = build_ledger("run", folder)
        assert ledger.problems == []
        find, rows = experience_of(folder), dumped(folder)
        for account in ledger.accounts:
            own = [row for row in rows if row[0] == account.channel]
            assert account.loss_tokens == sum(len(trained) for *_, trained in own)
            assert account.turns == sum(len(one["answers"]) for one in drawn)
            for channel, name, side, trained in own:
                source = find(channel, name, side)
                if source.tokens is not None and chosen["tokens"].get("recorded") != "ignore":
                    check_sampled(channel, source, trained)
    return True


def check_sampled(channel: str, source, trained: list[int]) -> None:
    """What was trained is some of the sampled turns, whole and in order; of a pair's side the last ones."""
    response = source.tokens[source.prompt_length :]
    turns = [response[start:end].tolist() for start, end in find_mask_spans(source.action_mask)]
    if channel in ("dpo", "sft"):
        tails = [[token for turn in turns[number:] for token in turn] for number in range(len(turns))]
        assert trained in tails
        return
    for turn in turns:
        if trained[: len(turn)] == turn:
            trained = trained[len(turn) :]
    assert trained == []


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(runs, min_size=2, max_size=6), chosen=options)
def test_random_flows_add_up_and_train_what_was_sampled(models, drawn, chosen):
    check_flow(models, drawn, chosen)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(runs, min_size=2, max_size=8), chosen=options)
def test_many_random_flows_add_up_and_train_what_was_sampled(models, drawn, chosen):
    check_flow(models, drawn, chosen)


@pytest.mark.parametrize("is_recorded", [True, False])
def test_turns_that_are_not_selected_have_that_fate_in_every_channel(models, tmp_path, is_recorded):
    runs = [
        run_of(0, number, ["hello", "there", answer], reward=float(number), is_recorded=is_recorded)
        for number, answer in enumerate(("ok", "please"))
    ]
    folder = train_on(
        tmp_path, models["chatml"], runs, pairs={"strategy": "best-worst"}, max_steps=1,
        channels={"dpo": 1.0, "grpo": 1.0, "sft": 1.0}, tokens={"train_turns": "last"}, dpo={"contrast": "all"},
    )  # fmt: skip
    for channel in ("dpo", "grpo"):
        found = fates(folder, channel)
        assert (found["trained"][0], found["not selected (tokens.train_turns)"][0]) == (2, 4)
        assert found["not selected (tokens.train_turns)"][1] > 0
        assert len(found) == 2
    assert fates(folder, "sft")["not selected (tokens.train_turns)"][0] == 2
    last = {"ok": [*letters("ok"), STOP], "please": [*letters("please"), STOP]}
    if is_recorded:
        assert {tuple(trained) for name, _, _, trained in dumped(folder) if name == "grpo"} == set(
            map(tuple, last.values())
        )
