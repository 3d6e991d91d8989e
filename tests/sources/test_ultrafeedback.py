"""UltraFeedback: rated answers, and requests to a judge."""

import json
from pathlib import Path

import pytest

from pairwright.records.messages import Message
from pairwright.sources.datasets.public_sets import ULTRAFEEDBACK
from pairwright.sources.format import Options, Origin

DEFAULTS = Options()
FIXTURE = Path(__file__).parent / "fixtures" / "ultrafeedback.jsonl"
SAMPLE = Path(__file__).parents[2].parent / "shared/data/traces/ultrafeedback_argilla/helpfulness-full.jsonl"


def read_file(path, options=DEFAULTS):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert all(map(ULTRAFEEDBACK.matches, rows))
    return [
        experience
        for ordinal, row in enumerate(rows)
        for experience in ULTRAFEEDBACK.format.read(row, Origin("f.jsonl", ordinal + 1, ordinal), options)
    ]


def test_each_answer_is_an_experience_of_its_prompt():
    best, unrated = read_file(FIXTURE)[:2]
    assert unrated.prompt == (Message("user", "Name a knot."),)
    assert best.prompt == (Message("system", "Be helpful."), *unrated.prompt)
    assert best.eid.tid != unrated.eid.tid  # another system prompt is another task
    assert (best.eid.run, unrated.eid.run) == (0, 1)
    assert (best.completion, best.model_version) == ((Message("assistant", "Bowline"),), "m-a")
    assert (best.reward, unrated.reward) == (8.5, None)
    assert best.reward_components == {"overall_score": 8.5, "fine-grained_score": 4.5, "helpfulness": 5.0}
    assert best.info == {"source": "sea"}


def test_the_user_may_name_an_aspect():
    assert [e.reward for e in read_file(FIXTURE, Options(reward="helpfulness"))[:2]] == [5.0, 2.0]


def test_ratings_beside_the_answers_are_theirs():
    good, unrated = read_file(FIXTURE)[2:4]
    assert (good.completion[0].content, good.reward, good.model_version) == ("North Sea", 5.0, "m-a")
    assert (unrated.completion[0].content, unrated.reward, unrated.model_version) == ("Bern", None, "m-b")


def test_answers_in_a_request_to_a_judge_are_unscored():
    first, second = read_file(FIXTURE)[4:6]
    assert first.prompt == (Message("user", "Name a wind."),)
    assert (first.completion[0].content, second.completion[0].content) == ("Mistral", "Rain")
    assert (first.eid.task, first.reward, second.model_version) == ("h1", None, "m-b")
    assert (first.info["aspect"], first.info["text"]) == ("helpfulness", "Judge these.")


def test_the_real_file_is_read_completely():
    if not SAMPLE.is_file():
        pytest.skip("the sample traces are not on this machine")
    experiences = read_file(SAMPLE)
    assert len(experiences) == 8
    assert len({experience.eid.tid for experience in experiences}) == 2
    assert all(len(experience.messages) == 2 for experience in experiences)
