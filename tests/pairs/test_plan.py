"""Who may be paired with whom: the defects of the systems before us, each as a test, and the promises of a build."""

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_tables import built, candidate, dropped, made, rewards_of, several

from pairwright import EID, Experience, Message, Side, Table, ToolCall
from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.funnel import Reason
from pairwright.pairs.pair_table import pair_batches, pair_id, read_pairs
from pairwright.records.messages import canonical_messages, prompt_hash


def test_the_guides_example_gives_three_pairs_or_one(tmp_path):
    pairs, _ = built(tmp_path / "all", several(0.9, 0.7, 0.5))
    assert set(rewards_of(pairs)) == {(0.9, 0.5), (0.7, 0.5), (0.9, 0.7)}
    assert [pair.gap for pair in pairs] == [0.4, 0.2, 0.2]
    pairs, _ = built(tmp_path / "one", several(0.9, 0.7, 0.5), strategy="best-worst")
    assert rewards_of(pairs) == [(0.9, 0.5)]


def test_ties_never_pair_whatever_the_threshold(tmp_path):
    pairs, summary = built(tmp_path, [candidate(0.5, "a"), candidate(0.5, "b", run=1), candidate(0.2, "c", run=2)])
    assert rewards_of(pairs) == [(0.5, 0.2), (0.5, 0.2)]
    assert dropped(summary) == {Reason.TIED: 1}


def test_nan_infinite_and_missing_rewards_never_pair(tmp_path):
    pairs, summary = built(tmp_path, several(float("nan"), float("inf"), float("-inf"), None, 1.0, 0.0))
    assert rewards_of(pairs) == [(1.0, 0.0)]
    assert dropped(summary) == {Reason.UNSCORED: 4}


def test_identical_completions_never_pair_even_where_they_are_written_differently(tmp_path):
    def call(arguments, identity, reward, run):
        calls = (ToolCall("go", arguments, id=identity),)
        return Experience(eid=EID("b", "t", run, 0, "s"), kind="single_turn", prompt=[Message("user", "go")],
                          completion=[Message("assistant", None, tool_calls=calls)], reward=reward)  # fmt: skip

    pairs, summary = built(tmp_path, [call('{"a": 1, "b": 2}', "x", 1.0, 0), call('{"b":2,"a":1}', "y", 0.0, 1)])
    assert pairs == []
    assert dropped(summary) == {Reason.IDENTICAL: 1}


@pytest.mark.parametrize("empty", ["", ()])
def test_an_empty_side_never_pairs(tmp_path, empty):
    pairs, summary = built(tmp_path, [candidate(1.0, "a"), candidate(0.5, "b", run=1), candidate(0.0, empty, run=2)])
    assert rewards_of(pairs) == [(1.0, 0.5)]
    assert dropped(summary) == {Reason.EMPTY: 1}


def test_a_call_without_arguments_is_not_an_empty_side_and_stays_a_call(tmp_path):
    calls = (ToolCall("stop", ""),)
    acting = Experience(eid=EID("b", "t", 1, 0, "s"), kind="single_turn", prompt=[Message("user", "Which way?")],
                        completion=[Message("assistant", None, tool_calls=calls)], reward=0.0)  # fmt: skip
    (pair,), _ = built(tmp_path, [candidate(1.0), acting])
    assert pair.rejected[0].tool_calls == calls


def test_candidates_with_different_prompts_or_tools_are_never_paired(tmp_path):
    other = [Message("user", "Which other way?")]
    rows = [candidate(1.0), candidate(0.5, run=1, prompt=other), candidate(0.0, run=2, tools=({"name": "go"},))]
    pairs, summary = built(tmp_path, rows)
    assert pairs == []
    assert dropped(summary) == {Reason.DIFFERENT_PROMPTS: 3}
    assert "--strategy divergence" in summary["hint"]


def test_equal_last_user_messages_after_different_histories_are_different_prompts(tmp_path):
    histories = [[Message("user", text), Message("assistant", "ok"), Message("user", "and now?")] for text in "ab"]
    pairs, _ = built(tmp_path, [candidate(float(run), prompt=prompt, run=run) for run, prompt in enumerate(histories)])
    assert pairs == []


def test_prompts_of_plain_text_are_compared_too(tmp_path):
    def plain(prompt, answer, reward, run):
        return Experience(
            eid=EID("b", "t", run, 0, "s"), kind="single_turn", prompt_text=prompt, response_text=answer, reward=reward
        )

    rows = [plain("one", "a", 1.0, 0), plain("one", "b", 0.0, 1), plain("two", "c", 0.5, 2), plain(None, "d", 0.7, 3)]
    (pair,), summary = built(tmp_path, rows)
    assert pair.prompt == (Message("text", "one"),)
    assert (pair.chosen, pair.rejected) == tuple((Message("text", answer, generated=True),) for answer in "ab")
    assert pair.id == pair_id(pair.prompt, pair.tools, pair.chosen, pair.rejected)
    assert dropped(summary) == {Reason.DIFFERENT_PROMPTS: 1, Reason.NO_PROMPT: 1}


def test_text_that_was_cut_says_so_and_text_after_messages_is_an_assistant_turn(tmp_path):
    def plain(answer, reward, run, **more):
        eid = EID("b", "t", run, 0, "s")
        return Experience(eid=eid, kind="single_turn", response_text=answer, reward=reward, **more)

    rows = [
        plain("a", 1.0, 0, prompt_text="one"),
        plain("b", 0.0, 1, prompt_text="one", truncate_status="response_truncated"),
    ]
    (pair,), _ = built(tmp_path / "text", rows)
    assert pair.chosen == (Message("text", "a", generated=True),)
    assert pair.rejected == (Message("text", "b", generated=True),)
    rows = pl.read_parquet(tmp_path / "text" / "pairs" / "pairs.parquet")
    assert rows.select("chosen_cut", "rejected_cut").row(0) == (False, True)
    asked = {"prompt": [Message("user", "Which way?")], "prompt_text": "<user>Which way?<assistant>"}
    (pair,), _ = built(tmp_path / "chat", [plain("a", 1.0, 0, **asked), plain("b", 0.0, 1, **asked)])
    assert (pair.prompt, pair.chosen) == ((Message("user", "Which way?"),), (Message("assistant", "a"),))


def test_ids_with_separators_do_not_collide(tmp_path):
    pairs, _ = built(tmp_path, [candidate(1.0, task="a::1", batch="b"), candidate(0.0, task="1", batch="b::a")])
    assert pairs == []


def test_a_task_id_that_is_used_twice_keeps_all_its_candidates(tmp_path):
    rows = [candidate(reward, run=0, suffix=f"s{reward}") for reward in (0.9, 0.7, 0.5)]
    pairs, _ = built(tmp_path, rows)
    assert len(pairs) == 3


def test_failed_and_masked_rollouts_are_left_out_unless_asked_for(tmp_path):
    rows = [
        candidate(1.0), candidate(0.6, run=1, info={"mask_sample": False}),
        candidate(0.5, run=2, info={"mask_sample": True}), candidate(0.2, run=3, info={"_ng_failure_class": "timeout"}),
    ]  # fmt: skip
    pairs, summary = built(tmp_path / "a", rows)
    assert rewards_of(pairs) == [(1.0, 0.6)]
    assert dropped(summary) == {Reason.FAILED: 2}
    assert len(built(tmp_path / "b", rows, keep_masked=True)[0]) == 6


def test_truncated_ones_are_left_out_on_request(tmp_path):
    rows = [candidate(1.0), candidate(0.0, run=1, truncate_status="response_truncated")]
    assert len(built(tmp_path / "a", rows)[0]) == 1
    pairs, summary = built(tmp_path / "b", rows, drop_truncated=True)
    assert (pairs, dropped(summary)) == ([], {Reason.TRUNCATED: 1, Reason.SINGLE: 1})


def test_the_minimum_gap_is_decimal(tmp_path):
    pairs, _ = built(tmp_path / "a", several(0.3, 0.1), min_gap=0.2)
    assert [pair.gap for pair in pairs] == [0.2]
    pairs, summary = built(tmp_path / "b", several(0.3, 0.1, 0.25), min_gap=0.21)
    assert pairs == []
    assert "--min-gap 0.2 would let some through, now 0.21" in summary["hint"]


def test_gaps_above_the_maximum_are_left_out(tmp_path):
    pairs, summary = built(tmp_path, several(1.0, 0.6, 0.0), max_gap=0.6, max_pairs_per_group=1)
    assert [pair.gap for pair in pairs] == [0.6]
    assert dropped(summary) == {Reason.ABOVE_GAP: 1, Reason.GROUP_CAP: 1}


@pytest.mark.parametrize(("weight", "expected"), [("one", 1.0), ("gap", 0.4), ("chosen", 0.9)])
def test_the_weight_is_one_or_the_gap_or_the_chosen_reward(tmp_path, weight, expected):
    (pair,), _ = built(tmp_path, several(0.9, 0.5), weight=weight)
    assert pair.weight == expected


def test_a_negative_reward_cannot_be_a_weight(tmp_path):
    with pytest.raises(PairwrightError, match="--weight gap"):
        built(tmp_path, several(-1.0, -2.0), weight="chosen")


def preference(task, chosen="yes", rejected="no", rewards=(None, None), run=0):
    sides = [
        Side(messages=[Message("assistant", text)], reward=reward)
        for text, reward in zip((chosen, rejected), rewards, strict=True)
    ]
    return Experience(
        eid=EID("b", task, run, 0, "s"),
        kind="preference",
        prompt=[Message("user", task)],
        chosen=sides[0],
        rejected=sides[1],
    )


def test_preferences_pass_through_with_their_rewards_or_one_and_zero(tmp_path):
    rows = [
        preference("a"), preference("b", rewards=(0.3, 0.1)), preference("c", rewards=(0.1, 0.3)),
        preference("d", "yes", "yes"), preference("e", rewards=(0.1, 0.1)), preference("f", "yes", ""), candidate(1.0),
    ]  # fmt: skip
    pairs, summary = built(tmp_path / "a", rows, strategy="imported")
    assert [(pair.chosen_eid.task, pair.chosen_reward, pair.rejected_reward, pair.gap) for pair in pairs] == [
        ("a", 1.0, 0.0, 1.0), ("b", 0.3, 0.1, 0.2)
    ]  # fmt: skip
    assert dropped(summary) == {
        Reason.IS_NO_PAIR: 1, Reason.OPPOSITE: 1, Reason.IDENTICAL: 1, Reason.TIED: 1, Reason.EMPTY: 1
    }  # fmt: skip
    assert dropped(built(tmp_path / "b", rows)[1])[Reason.IS_A_PAIR] == 6


def test_verbatim_keeps_every_preference_in_the_order_of_the_table(tmp_path):
    rows = [
        preference("z"), preference("a", "no", "yes"), preference("z", run=1), preference("a", run=1),
        preference("b", "yes", ""), preference("c", "yes", "yes"), preference("d", rewards=(0.1, 0.3)),
    ]  # fmt: skip
    pairs, summary = built(tmp_path / "a", rows, strategy="imported", verbatim=True)
    assert [(pair.chosen_eid.task, pair.chosen[0].text, pair.rejected[0].text) for pair in pairs] == [
        ("z", "yes", "no"), ("a", "no", "yes"), ("z", "yes", "no"), ("a", "yes", "no"), ("b", "yes", "")
    ]  # fmt: skip
    assert dropped(summary) == {Reason.IDENTICAL: 1, Reason.OPPOSITE: 1}  # these prefer nothing
    assert next(pair_batches(tmp_path / "a" / "pairs"))["num_rejected_characters"].to_pylist()[-1] == 0
    plain, _ = built(tmp_path / "b", rows, strategy="imported")
    assert [pair.chosen_eid.task for pair in plain] == ["z"]


@pytest.mark.parametrize(
    "options",
    [{"strategy": "best"}, {"min_gap": -1}, {"min_gap": float("nan")}, {"max_gap": 0.1, "min_gap": 0.2}, {"max_pairs": 0},
     {"validation": 1.5}, {"across_groups": True}, {"strategy": "teachers"}, {"verbatim": True}],
)  # fmt: skip
def test_options_that_make_no_sense_are_refused(options):
    with pytest.raises(ConfigError):
        PairOptions(**options)


texts = st.sampled_from(["yes", "no", "maybe", "", "a longer answer", "yes "])
rewards = st.sampled_from([0.0, 0.1, 0.2, 0.3, 0.5, 1.0, None, float("nan"), float("inf"), -1.5, 0.1 + 0.2])


@st.composite
def tables(draw):
    rows = draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1), st.integers(0, 2), texts, rewards), max_size=25)
    )
    return [
        candidate(
            reward,
            text,
            task=f"t{task}",
            step=step,
            run=run,
            prompt=(Message("user", f"prompt {prompt}"),),
            batch=run % 2,
        )
        for run, (task, step, prompt, text, reward) in enumerate(rows)
    ]


options = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(["all", "best-worst", "stratified", "divergence"]),
        "min_gap": st.sampled_from([0.0, 0.1, 0.2, 0.4]),
        "max_gap": st.sampled_from([None, 0.5]),
        "max_pairs_per_group": st.sampled_from([None, 1, 3]),
        "max_pairs_per_task": st.sampled_from([None, 2]),
        "max_pairs": st.sampled_from([None, 4]),
        "contradictions": st.sampled_from(["drop", "majority", "keep"]),
        "dedupe": st.booleans(),
        "validation": st.sampled_from([0.0, 0.4]),
        "length_balance": st.sampled_from([None, 0.3]),
        "curriculum": st.sampled_from(["none", "easy-first"]),
    }
)


@given(tables(), options, st.randoms(use_true_random=False))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_every_pair_is_comparable_the_funnel_adds_up_and_order_does_not_matter(tmp_path_factory, rows, chosen, rng):
    folder = tmp_path_factory.mktemp("p")
    pairs, summary = built(folder, rows, **chosen)
    by_uid = {row.eid.uid: row for row in rows}
    for pair in pairs:
        best, worst = by_uid[pair.chosen_eid.uid], by_uid[pair.rejected_eid.uid]
        assert best.eid.tid == worst.eid.tid
        assert pair.chosen_reward > pair.rejected_reward
        assert pair.gap >= chosen["min_gap"]
        assert canonical_messages(pair.chosen) != canonical_messages(pair.rejected)
        assert (
            prompt_hash(best.prompt, best.tools)
            == prompt_hash(worst.prompt, worst.tools)
            == prompt_hash(pair.prompt, pair.tools)
        )
        assert pair.id == pair_id(pair.prompt, pair.tools, pair.chosen, pair.rejected)
        assert (best.reward, worst.reward) == (pair.chosen_reward, pair.rejected_reward)
    sides = [
        {prompt_hash(pair.prompt, pair.tools) for pair in pairs if pair.split == split}
        for split in ("train", "validation")
    ]
    assert not sides[0] & sides[1]
    for stage in summary["stages"]:
        assert stage["in"] == stage["out"] + sum(drop["count"] for drop in stage["drops"])
    assert summary["stages"][0]["in"] == len(rows)
    assert summary["stages"][-1]["out"] == len(pairs) == summary["pairs"]
    shuffled = rng.sample(rows, len(rows))
    middle = rng.randint(0, len(rows))
    parts = [made(folder / "x", shuffled[:middle]), made(folder / "y", shuffled[middle:])]
    build_pairs(parts, folder / "again", PairOptions(**chosen))
    for name in ("pairs.parquet", "funnel.json", "outcomes.parquet"):
        assert (folder / "pairs" / name).read_bytes() == (folder / "again" / name).read_bytes()


def test_a_record_that_is_in_two_tables_counts_once(tmp_path):
    rows = several(1.0, 0.0)
    tables = [made(tmp_path / name, rows) for name in "ab"]
    summary = build_pairs(tables, tmp_path / "pairs")
    assert (summary["pairs"], dropped(summary)) == (1, {Reason.REPEATED_RECORD: 2})


def test_an_empty_table_gives_no_pairs_and_says_so(tmp_path):
    summary = build_pairs([Table(tmp_path / "e")], tmp_path / "pairs")
    assert summary["pairs"] == 0
    assert "empty" in summary["hint"]
    assert list(read_pairs(tmp_path / "pairs")) == []


def test_the_choice_among_equal_candidates_does_not_depend_on_their_order(tmp_path):
    rows = [candidate(1.0, "A", run=run) for run in range(5)] + [candidate(0.0, "B", run=run) for run in range(5, 10)]
    (pair,), _ = built(tmp_path / "a", rows, strategy="best-worst", dedupe=False)
    (again,), _ = built(tmp_path / "b", rows[::-1], strategy="best-worst", dedupe=False)
    assert (pair.chosen_eid, pair.rejected_eid) == (again.chosen_eid, again.rejected_eid)
