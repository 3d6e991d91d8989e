"""What becomes of drafts: duplicates, contradictions, caps, samples, splits, lengths, near-duplicates, curriculum."""

import numpy as np
import pytest
from made_tables import built, candidate, dropped, rewards_of, several

from pairwright import Message
from pairwright.pairs.funnel import Reason
from pairwright.pairs.near_duplicates import near_duplicates, signature
from pairwright.pairs.pair_stats import pair_statistics


def twice(first, second):
    """Two answers at one prompt, scored in two batches."""
    rows = [candidate(first[0], "A", batch=0, run=0), candidate(first[1], "B", batch=0, run=1)]
    return [*rows, candidate(second[0], "A", batch=1, run=0), candidate(second[1], "B", batch=1, run=1)]


def test_a_pair_that_is_there_twice_is_kept_once_with_the_larger_gap(tmp_path):
    pairs, summary = built(tmp_path / "a", twice((1.0, 0.0), (0.7, 0.0)))
    assert (rewards_of(pairs), dropped(summary)) == ([(1.0, 0.0)], {Reason.DUPLICATE: 1})
    assert len(built(tmp_path / "b", twice((1.0, 0.0), (0.7, 0.0)), dedupe=False)[0]) == 2


def test_contradictions_are_dropped_on_both_sides(tmp_path):
    pairs, summary = built(tmp_path, twice((1.0, 0.0), (0.0, 1.0)))
    assert (pairs, dropped(summary)) == ([], {Reason.CONTRADICTION: 2})
    assert "--contradictions" in summary["hint"]


def test_contradictions_may_be_kept_or_decided_by_the_majority(tmp_path):
    rows = [*twice((1.0, 0.0), (0.0, 1.0)), candidate(1.0, "A", batch=2, run=0), candidate(0.2, "B", batch=2, run=1)]
    pairs, summary = built(tmp_path / "a", rows, contradictions="majority")
    assert [pair.chosen[0].text for pair in pairs] == ["A"]
    assert dropped(summary) == {Reason.CONTRADICTION: 1, Reason.DUPLICATE: 1}
    assert len(built(tmp_path / "b", rows, contradictions="keep")[0]) == 2
    assert built(tmp_path / "c", twice((1.0, 0.0), (0.0, 1.0)), contradictions="majority")[0] == []


def test_a_contradiction_is_found_even_where_the_cap_left_its_opposite_out(tmp_path):
    rows = [*twice((1.0, 0.0), (0.4, 0.5)), candidate(0.9, "C", batch=1, run=2), candidate(0.0, "D", batch=1, run=3)]
    pairs, summary = built(tmp_path, rows, strategy="best-worst")
    assert [(pair.chosen[0].text, pair.rejected[0].text) for pair in pairs] == [("C", "D")]
    assert dropped(summary)[Reason.CONTRADICTION] == 1


def test_the_same_answer_sampled_twice_is_one_candidate(tmp_path):
    rows = [candidate(1.0, "A"), candidate(1.0, "A", run=1), candidate(0.0, "B", run=2)]
    pairs, summary = built(tmp_path, rows)
    assert (len(pairs), dropped(summary)) == (1, {Reason.REPEATED_CANDIDATE: 1})


def many(tasks=30):
    return [
        row
        for task in range(tasks)
        for row in several(0.9, 0.5, 0.1, task=f"t{task}", prompt=(Message("user", f"q{task}"),))
    ]


def test_caps_of_a_task_keep_the_largest_gaps(tmp_path):
    pairs, summary = built(tmp_path, many(3), max_pairs_per_task=1)
    assert (rewards_of(pairs), dropped(summary)) == ([(0.9, 0.1)] * 3, {Reason.TASK_CAP: 6})


def test_a_sample_is_seeded_and_smaller_samples_are_part_of_larger_ones(tmp_path):
    ids = {}
    for name, seed, most in (("a", 0, 20), ("b", 0, 40), ("c", 1, 20), ("d", 0, 20)):
        pairs, summary = built(tmp_path / name, many(), max_pairs=most, seed=seed)
        ids[name] = {pair.id for pair in pairs}
        assert len(ids[name]) == most
        assert dropped(summary) == {Reason.SAMPLED: 90 - most}
    assert ids["a"] == ids["d"]
    assert ids["a"] < ids["b"]
    assert ids["a"] != ids["c"]


def test_the_split_is_by_prompt_and_stays_when_data_is_added(tmp_path):
    small = {pair.id: pair.split for pair in built(tmp_path / "a", many(30), validation=0.3)[0]}
    large = {pair.id: pair.split for pair in built(tmp_path / "b", many(60), validation=0.3)[0]}
    assert {"train", "validation"} == set(small.values())
    assert all(large[identity] == split for identity, split in small.items())
    assert 0.1 < np.mean([split == "validation" for split in large.values()]) < 0.5


def test_tasks_that_share_a_prompt_are_on_one_side(tmp_path):
    rows = []
    for task in range(20):
        for number in (task // 2, 100 + (task + 1) // 2):  # a chain: every task shares a prompt with the next
            rows += several(1.0, 0.0, task=f"t{task}", prompt=(Message("user", f"q{number}"),), step=number)
    pairs, _ = built(tmp_path, rows, validation=0.5, dedupe=False)
    assert len({pair.split for pair in pairs}) == 1


def lengths(longer, shorter):
    rows = []
    for number in range(longer + shorter):
        good, bad = ("g" * 300, "b" * (20 + number)) if number < longer else ("g" * 20, "b" * (250 + number))
        prompt = (Message("user", f"q{number}"),)
        rows += [
            candidate(1.0, good, task=number, prompt=prompt),
            candidate(0.0, bad, task=number, run=1, prompt=prompt),
        ]
    return rows


def test_lengths_are_balanced_by_dropping_no_more_than_is_needed(tmp_path):
    _, free = built(tmp_path / "a", lengths(30, 10))
    assert free["length_effect"] > 0.5
    pairs, summary = built(tmp_path / "b", lengths(30, 10), length_balance=0.2)
    assert abs(summary["length_effect"]) <= 0.2
    assert len(pairs) == 40 - dropped(summary)[Reason.LENGTH] > 20


def test_near_duplicates_go_on_request(tmp_path):
    text = " ".join(f"word{number}" for number in range(200))
    rows = []
    for task, ending in enumerate(("one", "two")):
        prompt = (Message("user", f"{text} {ending}"),)
        rows += [
            candidate(1.0, f"{text} yes", task=task, prompt=prompt),
            candidate(0.0, f"{text} no", task=task, run=1, prompt=prompt),
        ]
    rows += several(1.0, 0.0, task=9, prompt=(Message("user", "something else entirely"),))
    assert len(built(tmp_path / "a", rows)[0]) == 3
    pairs, summary = built(tmp_path / "b", rows, near_duplicates=0.8)
    assert (len(pairs), dropped(summary)) == (2, {Reason.NEAR_DUPLICATE: 1})
    assert [pair_statistics(tmp_path / name / "pairs")["near_duplicates"] for name in "ab"] == [1, 0]


def test_the_estimate_of_similarity_is_near_the_truth():
    words = [f"w{number}" for number in range(1000)]
    one, other = signature(" ".join(words)), signature(" ".join(words[250:] + [f"x{number}" for number in range(250)]))
    assert (one == other).mean() == pytest.approx(0.6, abs=0.2)
    assert near_duplicates([one, other, one], 0.9).tolist() == [False, False, True]


def test_a_curriculum_goes_from_easy_tasks_to_hard_ones_or_back(tmp_path):
    rows = [
        row for task, mean in (("a", 0.2), ("b", 0.8), ("c", 0.5)) for row in several(mean + 0.1, mean - 0.1, task=task)
    ]
    assert [pair.chosen_eid.task for pair in built(tmp_path / "a", rows, curriculum="easy-first")[0]] == ["b", "c", "a"]
    assert [pair.chosen_eid.task for pair in built(tmp_path / "b", rows, curriculum="hard-first")[0]] == ["a", "c", "b"]
    pairs, summary = built(tmp_path / "c", rows, curriculum="easy-first", curriculum_share=0.34)
    assert [pair.chosen_eid.task for pair in pairs] == ["b"]
    assert dropped(summary) == {Reason.CURRICULUM: 2}
