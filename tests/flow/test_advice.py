"""`pairwright advise`: figures of a table counted by hand, and the advice of each rule for given figures."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from pairwright import EID, ErrorSite, Experience, Table
from pairwright.cli.main import app
from pairwright.config import Config, load_config
from pairwright.flow.advice import Figures, advise, is_followed, measure, recommended
from pairwright.flow.recipes import flatten


def run(task: str, number: int, reward: float | None, kind: str | None = None) -> Experience:
    """A call, its result, an answer; the result is a failure of `kind`."""
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    return Experience(
        eid=EID(batch=1, task=task, run=number), kind="multi_turn", reward=reward,
        prompt=[{"role": "user", "content": task}],
        completion=[
            {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x", "tool_call_id": "a"},
            {"role": "assistant", "content": f"done {number}"},
        ],
        errors=[] if kind is None else [ErrorSite(2, kind, call_id="a")],
    )  # fmt: skip


@pytest.fixture
def table(tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append(
            [
                run("a", 0, 1.0), run("a", 1, 0.0, "tool_error"), run("a", 2, 0.0), run("a", 3, 0.5),
                run("b", 0, 0.5, "tool_error"), run("b", 1, 0.0),
                run("c", 0, 0.0), run("c", 1, 0.0),
                run("d", 0, None),
            ]
        )  # fmt: skip
    return Table(tmp_path / "experience")


def test_the_figures_of_a_table_are_those_counted_by_hand(table):
    figures = measure(table)
    assert (figures.runs, figures.scored, figures.tasks, figures.groups) == (9, 8, 3, 3)
    assert (figures.groups_with_spread, figures.pairs) == (2, 5 + 1)  # a: six pairs of runs, one a tie; b: one
    assert (figures.solved_from, figures.solved_runs, figures.tasks_with_solved) == (1.0, 1, 1)
    assert figures.share_solved_tasks == pytest.approx(1 / 3)
    # a: 1, 0, 0, 0.5 around 0.375; b: 0.5, 0 around 0.25; c: none
    assert figures.spread_within == pytest.approx((0.171875**0.5 + 0.25 + 0) / 3)
    assert figures.spread_between == pytest.approx(((0.375**2 + 0.25**2 + 0) / 3 - (0.625 / 3) ** 2) ** 0.5)
    # best runs of a and b: two generated turns each, one failed
    assert (figures.chosen_turns, figures.chosen_failed, figures.failed_by_kind) == (4, 1, {"tool_error": 1})
    assert measure(table, solved=0.5).solved_runs == 3


def test_solved_is_not_guessed_where_rewards_have_another_scale(tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([run("a", 0, 80.0), run("a", 1, 20.0)])
    assert measure(Table(tmp_path / "experience")).solved_runs is None
    assert measure(Table(tmp_path / "experience"), solved=80).solved_runs == 1


GOOD = Figures(
    runs=960, scored=960, tasks=160, groups=160, groups_with_spread=150, pairs=1400, solved_from=1.0, solved_runs=20,
    tasks_with_solved=16, spread_within=0.2, spread_between=0.1, chosen_turns=1000, chosen_failed=0,
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "rules", "first"),
    [
        ({}, ["solved runs", "pairs"], "solved runs"),
        ({"scored": 0, "solved_runs": 0, "groups_with_spread": 0}, ["no rewards"], None),
        ({"groups_with_spread": 0, "solved_runs": 3}, ["no spread"], None),
        ({"solved_runs": 0}, ["0 solved runs", "pairs"], "pairs"),
        ({"solved_runs": None}, ["pairs"], "pairs"),
        (
            {"chosen_failed": 200, "failed_by_kind": {"tool_error": 200}},
            ["failed turns in chosen sides", "solved runs", "pairs"],
            "failed turns in chosen sides",
        ),
        # a kind that often follows the right step needs a look
        (
            {"chosen_failed": 200, "failed_by_kind": {"exception": 200}},
            ["failed turns in chosen sides", "solved runs", "pairs"],
            "solved runs",
        ),
        ({"chosen_failed": 20, "failed_by_kind": {"tool_error": 20}}, ["solved runs", "pairs"], "solved runs"),
        ({"spread_between": 0.5}, ["solved runs", "pairs", "tasks differ more than runs"], "solved runs"),
    ],
)
def test_rules_say_what_fits_the_figures(changes, rules, first):
    advice = advise(replace(GOOD, **changes))
    assert [item.rule for item in advice] == rules
    chosen = recommended(advice)
    assert (None if chosen is None else chosen.rule) == first


def test_every_snippet_is_a_configuration_and_every_rule_has_evidence():
    figures = replace(GOOD, chosen_failed=200, failed_by_kind={"exception": 150, "tool_error": 50})
    advice = advise(figures)
    for item in advice:
        assert item.evidence
        config = load_config(overrides=list(flatten(item.snippet or {})), environment={})
        if item.rule == "failed turns in chosen sides":
            assert config.tokens.train_turns == "accepted"
            assert {"exception", "tool_error"} <= set(config.tokens.credit.kinds)
    assert len({item.rule for item in advice}) == len(advice)


def test_the_command_prints_figures_advice_and_a_snippet(table):
    done = CliRunner().invoke(app, ["advise", str(table.path)])
    assert done.exit_code == 0, done.output
    assert "share_failed_turns\t0.25" in done.stdout
    assert "failed turns in chosen sides (recommended): 25% of the turns you are about to imitate failed" in done.stdout
    assert "      train_turns: accepted" in done.stdout
    told = json.loads(CliRunner().invoke(app, ["advise", str(table.path), "--json"]).stdout)
    assert told["figures"]["pairs"] == 6
    assert told["recommended"] == "failed turns in chosen sides"


def test_advice_is_followed_by_a_configuration_that_has_all_its_values(table):
    items = {item.rule: item for item in advise(replace(measure(table), chosen_turns=4, chosen_failed=1))}
    item = items["failed turns in chosen sides"]
    assert item.snippet is not None
    assert is_followed(item, Config.model_validate(item.snippet | {"seed": 3}))
    other = {**item.snippet, "train": {"channels": {"dpo": 1.0}}}
    assert not is_followed(item, Config.model_validate(other))
    assert not is_followed(replace(item, snippet=None), Config())
