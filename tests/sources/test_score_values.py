"""Scores in the notations that people use, and values that are not scores."""

import json

import pytest

from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.sources.rewards import score_names
from pairwright.sources.score_values import read_score, verdict

GOOD = [
    "👍",
    "👍🏽",
    "up",
    "Thumbs up",
    "yes",
    "Ja",
    "oui",
    "sí",
    "sim",
    "да",
    "はい",
    "是",
    "예",
    "PASS",
    "passed",
    "✅",
    "correct",
    ":+1:",
]
BAD = [
    "👎",
    "down",
    "NO",
    "nein",
    "non",
    "não",
    "нет",
    "いいえ",
    "否",
    "아니오",
    "FAIL",
    "❌",
    "wrong",
    "not helpful",
    ":-1:",
]


@pytest.mark.parametrize("word", GOOD)
def test_good_words_are_one(word):
    assert (verdict(word), read_score(word)) == (1.0, 1.0)


@pytest.mark.parametrize("word", BAD)
def test_bad_words_are_zero(word):
    assert (verdict(word), read_score(word)) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("text", "number"),
    [("4/5", 0.8), ("4 out of 5", 0.8), ("95%", 0.95), ("95 %", 0.95), ("4,5", 4.5), ("0,125", 0.125), ("★★★☆☆", 3.0),
     ("⭐⭐", 2.0), ("3 stars", 3.0), ("-1.5", -1.5)],
)  # fmt: skip
def test_numbers_are_read_as_they_are_written(text, number):
    assert read_score(text) == number


@pytest.mark.parametrize(
    "text", ["", "n/a", "1,234", "2026-01-05", "1/1/2020", "no idea", "yes, but not always", "x" * 99, "3/0"]
)
def test_text_that_is_no_score_is_none(text):
    assert read_score(text) is None


def reward_of(row, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"prompt": "Which knot?", "response": "The bowline.", **row}) + "\n")
    layout = detect(path)
    if isinstance(layout, Rejected):
        return layout.reason
    (exp,) = read_file(path, layout, Options())
    return exp.reward


@pytest.mark.parametrize(
    ("row", "reward"),
    [
        ({"stars": 4}, 4.0),
        ({"helpful": "yes"}, 1.0),
        ({"result": "FAIL"}, 0.0),
        ({"feedback": "👎"}, 0.0),
        ({"judge": {"model": "m", "score": 7, "reason": "fine"}}, 7.0),
        ({"evaluation": {"overall": 3, "style": 5}}, 3.0),
        ({"evals": [{"name": "facts", "score": 0.5}]}, 0.5),
        ({"Bewertung": "gut"}, 1.0),
        # no scores
        ({"correct_answer": 42}, None),
        ({"max_score": 10}, None),
        ({"feedbackDisabled": False}, None),
        ({"error_rate": 0.5}, None),
        ({"toxicity_score": 0.5}, None),
        ({"result": "The bowline holds best."}, None),
        ({"feedback": "It was fine, thank you"}, None),
        ({"judge": {"confidence": 0.5}}, None),
    ],
)
def test_a_score_is_found_and_what_is_none_is_not(row, reward, tmp_path):
    assert reward_of(row, tmp_path) == reward


def test_unscored_records_list_what_could_be_the_score():
    info = {"quality": "poor", "toxicity": 0.2, "points": 3, "ts": 12, "user_id": 4, "comment": "so so"}
    assert score_names({}, info) == ["quality: poor", "-toxicity", "points"]


def test_answers_settings_of_requests_and_our_own_counts_are_no_scores_to_choose():
    info = {
        "answer": "4368",
        "parallel_tool_calls": False,
        "stream": True,
        "expected_outcome": "The user gets a refund",
    }
    assert score_names({}, {**info, "other_events": {"without content": 3}, "points": 3}) == ["points"]


def test_a_rating_of_minus_one_beside_one_to_five_needs_the_users_word(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "Q?", "response": f"a{n}", "rating": n}) + "\n" for n in (-1, 2, 5)))
    assert "choose with --map 'reward=rating,scores={-1: null}' or --map reward=rating" in detect(path).reason
    path.write_text("".join(json.dumps({"prompt": "Q?", "response": f"a{n}", "vote": n}) + "\n" for n in (-1, 1)))
    assert detect(path).format == "rows"  # a vote against and a vote for
