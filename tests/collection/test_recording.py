"""Steps, candidates, trajectories, events: what comes out as experiences, and when."""

import asyncio

import pytest

from pairwright.collection import Completion, Recorder, Task
from pairwright.errors import RecordError
from pairwright.records.messages import Message, ToolCall

TASK = Task("t", {"q": 1}, batch=2, run=3, seed=9)


def recorder(**options):
    emitted = []
    return Recorder(TASK, lambda prompt_hash, items: emitted.extend(items), model_version="m", **options), emitted


def test_a_candidate_is_recorded_with_its_tokens_when_its_step_ends():
    made, emitted = recorder()
    answer = Completion(
        message=Message("assistant", "yes"), finish_reason="length", response_id="r1", prompt_ids=[1, 2], token_ids=[3, 4],
        logprobs=[-0.5, -0.25],
    )  # fmt: skip
    with made.step([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], name="move") as s:
        s.candidate(answer, score=1, components={"style": 0.5}, info={"mine": 1}, metrics={"len": 3})
        assert emitted == []
    (record,) = emitted
    assert (record.eid.batch, record.eid.task, record.eid.run, record.eid.step) == (2, "t", 3, 0)
    assert record.prompt == (Message("system", "s"), Message("user", "u"))
    assert (record.reward, record.reward_components, record.metrics) == (1.0, {"style": 0.5}, {"len": 3})
    assert record.info == {"candidate": 0, "step_name": "move", "finish_reason": "length", "response_id": "r1", "mine": 1}  # fmt: skip
    assert (record.tokens.tolist(), record.prompt_length, record.logprobs.tolist()) == ([1, 2, 3, 4], 2, [-0.5, -0.25])
    assert (record.truncate_status, record.model_version) == ("response_truncated", "m")


def test_the_same_candidate_has_the_same_id_and_another_one_has_not():
    ids = []
    for text in ("a", "a", "b"):
        made, emitted = recorder()
        with made.step("q") as s:
            s.candidate(text, score=1)
            s.candidate(text, score=1)
        ids.append([record.eid.uid for record in emitted])
    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2]}) == 4


def test_unscored_candidates_wait_for_the_final_reward_and_own_scores_take_precedence():
    made, emitted = recorder()
    with made.step("q") as s:
        s.candidate("a")
        s.candidate("b", score=0.25)
    made.trajectory("q2", [Message("assistant", None, tool_calls=(ToolCall("f", "{}", "1"),)), Message("tool", "x", tool_call_id="1"), Message("assistant", "done")])  # fmt: skip
    assert emitted == []
    made.reward(2)
    asyncio.run(made.close())
    assert [(record.completion[-1].text, record.reward) for record in emitted] == [("a", 2.0), ("b", 0.25), ("done", 2.0)]  # fmt: skip
    assert [record.kind.value for record in emitted] == ["single_turn", "single_turn", "multi_turn"]


def test_candidates_without_any_score_are_kept_unscored():
    made, emitted = recorder()
    with made.step("q") as s:
        s.candidate("a")
    asyncio.run(made.close())
    asyncio.run(made.close())
    assert [record.reward for record in emitted] == [None]


def test_an_end_without_a_start_is_fine_when_it_brings_its_prompt():
    made, emitted = recorder()
    made.start("move", "where?")
    made.end("move", "left", score=1)
    made.end("move", "right", score=0)
    made.end("say", "hello", prompt="who?", score=0.5)
    made.end("say", "bye", score=0.25)
    with pytest.raises(RecordError, match="step 'other': it has no start"):
        made.end("other", "x", score=1)
    found = [(r.eid.step, r.prompt[0].text, r.completion[0].text, r.reward) for r in emitted]
    assert found == [(0, "where?", "left", 1), (0, "where?", "right", 0), (1, "who?", "hello", 0.5), (1, "who?", "bye", 0.25)]  # fmt: skip


def test_a_step_that_fails_keeps_what_was_scored_and_asks_no_scorer():
    asked = []

    async def score(step):
        asked.append(step)

    made, emitted = recorder(score_step=score)

    async def main():
        with pytest.raises(ValueError, match="boom"):
            async with made.step("q") as s:
                s.candidate("a", score=1)
                raise ValueError("boom")

    asyncio.run(main())
    assert (len(emitted), asked) == (1, [])


@pytest.mark.parametrize("value", [5, [5], [{"content": "no role"}], {"role": "user", "content": 5, "tool_calls": "x"}])
def test_an_invalid_prompt_is_refused(value):
    made, _ = recorder()
    with pytest.raises(RecordError, match="prompt"):
        made.step(value)


def test_failed_calls_of_a_collected_run_are_error_sites_as_those_of_an_imported_one():
    made, emitted = recorder()
    calls = [Message("assistant", None, tool_calls=(ToolCall(name, "{}", "1"),)) for name in ("look", "send")]
    results = [Message("tool", text, tool_call_id="1") for text in ("line 1", "ToolError: line 1 is closed")]
    made.trajectory("q", [calls[0], results[0], calls[1], results[1], Message("assistant", "sorry")], reward=0.0)
    (record,) = emitted
    assert [(site.index, site.kind, site.tool) for site in record.errors] == [(4, "tool_error", "send")]
