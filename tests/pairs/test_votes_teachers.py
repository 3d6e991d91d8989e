"""Votes of people and answers of teachers instead of rewards."""

import pytest
from made_tables import built, candidate, dropped, made, rewards_of, several

from pairwright import Message
from pairwright.errors import SourceError
from pairwright.pairs.funnel import Reason

ROWS = [candidate(None, text, run=run) for run, text in enumerate(("a", "b", "c"))]
A, B, C = (row.eid.uid for row in ROWS)


def csv_of(tmp_path, *lines):
    path = tmp_path / "votes.csv"
    path.write_text(
        "".join(",".join(f'"{cell}"' for cell in (cell.replace('"', '""') for cell in line)) + "\n" for line in lines)
    )
    return path


def test_ratings_take_the_place_of_rewards(tmp_path):
    votes = csv_of(tmp_path, ("uid", "rating"), (A, "5"), (A, "3"), (B, "1"))
    (pair,), summary = built(tmp_path, ROWS, votes=votes)
    assert (rewards_of([pair]), pair.chosen[0].text, dropped(summary)) == ([(4.0, 1.0)], "a", {Reason.UNSCORED: 1})


def test_the_majority_of_votes_on_two_answers_decides(tmp_path):
    lines = [(A, B), (A, B), (B, A), (B, C), (C, B), (C, A)]
    votes = csv_of(tmp_path, ("chosen", "rejected"), *lines)
    pairs, summary = built(tmp_path, ROWS, votes=votes)
    assert {(pair.chosen[0].text, pair.rejected[0].text) for pair in pairs} == {("a", "b"), ("c", "a")}
    assert sorted(rewards_of(pairs)) == [(2 / 3, 1 / 3), (1.0, 0.0)]
    assert {pair.strategy for pair in pairs} == {"votes"}
    assert dropped(summary) == {Reason.TIED: 1}


def test_votes_meet_the_rules_that_rewards_meet(tmp_path):
    rows = [
        *ROWS,
        candidate(1.0, "d", run=3, prompt=(Message("user", "other"),)),
        candidate(1.0, "a", run=4),
        candidate(1.0, "", run=5),
    ]
    lines = [(A, rows[3].eid.uid), (A, rows[4].eid.uid), (A, rows[5].eid.uid)]
    pairs, summary = built(tmp_path, rows, votes=csv_of(tmp_path, ("chosen", "rejected"), *lines))
    assert pairs == []
    assert dropped(summary) == {
        Reason.NO_VOTE: 2, Reason.EMPTY: 1, Reason.DIFFERENT_PROMPTS: 1, Reason.IDENTICAL: 1, Reason.UNUSABLE_VOTE: 1
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([("uid", "rating"), ("nobody", "1")], "votes.csv:2: got id 'nobody'"),
        ([("uid", "rating"), (A, "good")], "votes.csv:2: rating: got 'good'"),
        ([("uid", "rating"), (A, "nan")], "expected a number"),
        ([("chosen", "rejected"), (A, A)], "against itself"),
        ([("who", "what")], "expected uid,rating or chosen,rejected"),
    ],
)
def test_a_bad_file_of_votes_is_refused_with_the_line(tmp_path, lines, message):
    with pytest.raises(SourceError, match=message.replace("[", "\\[")):
        built(tmp_path, ROWS, votes=csv_of(tmp_path, *lines))


def teacher(folder, *answers):
    """A table with one answer for each prompt; as on import, equal records of two files have equal ids."""
    rows = [
        candidate(None, text, task="teach", run=run, prompt=(Message("user", f"q{run}"),), suffix=text)
        for run, text in enumerate(answers)
        if text
    ]
    return made(folder, rows).path


def student(*answers):
    return [
        candidate(None, text, task="learn", run=run, prompt=(Message("user", f"q{run}"),))
        for run, text in enumerate(answers)
    ]


def test_what_teachers_agree_on_is_chosen_over_what_the_student_did(tmp_path):
    teachers = (teacher(tmp_path / "x", "good", "good", "left", ""), teacher(tmp_path / "y", "good", "good", "right", ""),
                teacher(tmp_path / "z", "odd", "poor", "up", ""))  # fmt: skip
    pairs, summary = built(tmp_path, student("poor", "good", "poor", "poor"), strategy="teachers", teachers=teachers)
    (pair,) = pairs
    assert (pair.prompt[0].text, pair.chosen[0].text, pair.rejected[0].text) == ("q0", "good", "poor")
    assert rewards_of(pairs) == [(2 / 3, 0.0)]
    assert (pair.chosen_eid.task, pair.rejected_eid.task) == ("teach", "learn")
    assert dropped(summary) == {Reason.NO_TEACHER: 1, Reason.AGREES: 1, Reason.TEACHERS_DISAGREE: 1}


def test_the_required_number_of_agreeing_teachers_is_an_option(tmp_path):
    teachers = tuple(teacher(tmp_path / name, text) for name, text in (("x", "good"), ("y", "good"), ("z", "odd")))
    for least, count in ((1, 1), (2, 1), (3, 0)):
        pairs, _ = built(
            tmp_path / str(least), student("poor"), strategy="teachers", teachers=teachers, min_teachers=least
        )
        assert len(pairs) == count


def test_a_rated_table_goes_on_with_any_strategy(tmp_path):
    rows = several(0.0, 0.1, 0.2)
    votes = csv_of(tmp_path, ("uid", "rating"), *((row.eid.uid, str(3 - run)) for run, row in enumerate(rows)))
    pairs, _ = built(tmp_path, rows, votes=votes, strategy="best-worst")
    assert rewards_of(pairs) == [(3.0, 1.0)]
