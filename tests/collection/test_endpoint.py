"""A thousand tasks at once against a slow, failing endpoint; retries, limits, seeds, keys."""

import asyncio
from collections import Counter

import pytest

from collection.failing_endpoint import FailingEndpoint
from pairwright import Table
from pairwright.collection import Ask, PolicyError, collect, endpoint_policy
from pairwright.collection.chat_completions import completions_of_chat
from pairwright.collection.endpoint_policy import EndpointPolicy, RateLimit, backoff, retry_after
from pairwright.config import Config, PolicyConfig
from pairwright.errors import ConfigError
from pairwright.records.messages import Message

pytestmark = pytest.mark.stress


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(endpoint_policy, "_RETRY_SECONDS", 0.01)
    monkeypatch.setattr(endpoint_policy, "_MAX_RETRY_SECONDS", 0.2)


async def one_step(task, policy, recorder):
    async with recorder.step(f"task {task.id}") as s:
        for answer in await policy.complete(s.prompt, n=2):
            s.candidate(answer, score=float(answer.text[-1]))


def config(endpoint, **collect_options) -> Config:
    return Config.model_validate(
        {
            "policy": {"base_url": endpoint.url, "model": "m", "max_retries": 30, "timeout_seconds": 300},
            "collect": {"max_concurrency": 1000, **collect_options},
        }
    )  # fmt: skip


def test_a_thousand_tasks_at_once_against_a_failing_endpoint_all_finish_and_none_twice(tmp_path):
    with FailingEndpoint(fault_rate=0.1, delay=0.05, hold=1000) as endpoint:
        collected = collect(config(endpoint, num_tasks=1000), output=tmp_path, workflow=one_step)
    assert collected.status.num_done == 1000
    assert collected.status.num_failed == 0
    assert set(endpoint.faults) == {"500", "503", "429", "drop", "half", "garbage"}
    assert set(collected.status.retries) == {"server_error", "rate_limited", "connection", "bad_response"}
    assert sum(collected.status.retries.values()) == sum(endpoint.faults.values())
    assert endpoint.most_in_flight == 1000
    records = list(Table(tmp_path / "experience").records())
    assert len(records) == 2000 == len({record.eid.uid for record in records})
    places = Counter((record.eid.task, record.eid.step) for record in records)
    assert set(places.values()) == {2}
    assert len(places) == 1000
    assert set(endpoint.answered.values()) == {1}  # what was answered whole was not asked for again
    assert collected.status.num_pairs == 1000


def test_what_cannot_finish_is_reported_and_only_that_is_tried_again(tmp_path):
    async def one(task, policy, recorder):
        hopeless = " hopeless" if task.id % 10 == 0 else ""
        async with recorder.step(f"task {task.id}{hopeless}") as s:
            for answer in await policy.complete(s.prompt):
                s.candidate(answer, score=1.0)

    with FailingEndpoint(fault_rate=0.05, delay=0.0, forever=True) as endpoint:
        settings = config(endpoint, num_tasks=50).model_copy(
            update={"policy": config(endpoint).policy.model_copy(update={"max_retries": 8})}
        )
        collected = collect(settings, output=tmp_path, workflow=one)
        assert collected.status.failures == {"server_error": 5}
        assert sorted(entry.task for entry in collected.errors) == [0, 10, 20, 30, 40]
        assert all("500" in entry.message for entry in collected.errors)
        before = dict(endpoint.answered)
        endpoint._forever = False
        moved = settings.model_copy(update={"policy": settings.policy.model_copy(update={"max_retries": 30})})
        again = collect(moved, output=tmp_path, workflow=one, resume=True)
        assert (again.status.num_done, again.status.num_before, again.status.num_failed) == (50, 45, 0)
        asked = {key: count for key, count in endpoint.answered.items() if before.get(key) != count}
        assert sorted(asked) == [f"task {number} hopeless" for number in (0, 10, 20, 30, 40)]
    assert Table(tmp_path / "experience").count() == 50


def asked(endpoint, ask: Ask, **options):
    async def main():
        policy = EndpointPolicy(PolicyConfig(base_url=endpoint.url, model="m", **options))
        try:
            return await policy.complete(ask)
        finally:
            await policy.close()

    return asyncio.run(main())


ASK = Ask(messages=(Message("user", "hello"),), n=5, seed=7, temperature=0.5, max_tokens=9, stop=("x",), tools=({"type": "function", "function": {"name": "f"}},))  # fmt: skip


def test_everything_that_is_asked_reaches_the_endpoint(monkeypatch):
    monkeypatch.setenv("MY_KEY", "secret-17")
    with FailingEndpoint(fault_rate=0) as endpoint:
        found = asked(endpoint, ASK, api_key_env="MY_KEY", logprobs=True, return_token_ids=True, extra_body={"mine": 1})
    (body,) = endpoint.bodies
    assert len(found) == 5
    expected = {"model": "m", "n": 5, "seed": 7, "temperature": 0.5, "max_tokens": 9, "stop": ["x"], "logprobs": True, "return_token_ids": True, "mine": 1}  # fmt: skip
    assert {key: body[key] for key in expected} == expected
    assert body["tools"] == list(ASK.tools)
    assert body["messages"] == [{"role": "user", "content": "hello"}]
    assert endpoint.headers[0]["authorization"] == "Bearer secret-17"


def test_an_endpoint_that_gives_few_answers_at_once_is_asked_for_the_rest_with_other_seeds():
    with FailingEndpoint(fault_rate=0) as endpoint:
        found = asked(endpoint, ASK, max_choices_per_request=2)
    assert [(body["n"], body["seed"]) for body in endpoint.bodies] == [(2, 7), (2, 9), (1, 11)]
    assert len({answer.text for answer in found}) == 5


def test_a_key_is_never_sent_unless_named_and_a_missing_one_is_an_error(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "do-not-send")
    with FailingEndpoint(fault_rate=0) as endpoint:
        asked(endpoint, ASK)
        assert "do-not-send" not in str(endpoint.headers)
        with pytest.raises(ConfigError, match="NO_SUCH_KEY"):
            asked(endpoint, ASK, api_key_env="NO_SUCH_KEY")


def test_the_number_of_requests_in_flight_is_limited(tmp_path):
    with FailingEndpoint(fault_rate=0, delay=0.01, hold=3) as endpoint:
        settings = config(endpoint, num_tasks=40)
        limited = settings.model_copy(update={"policy": settings.policy.model_copy(update={"max_in_flight": 3})})
        collect(limited, output=tmp_path, workflow=one_step)
        assert endpoint.most_in_flight == 3


def test_what_the_endpoint_refuses_is_not_repeated():
    with FailingEndpoint(fault_rate=0) as endpoint:

        async def refuse(writer, body, fault):
            await endpoint._send(writer, 400, '{"error": {"message": "too long", "code": "context"}}')
            return True

        endpoint._answer = refuse
        with pytest.raises(PolicyError, match=r"400.*too long") as caught:
            asked(endpoint, ASK)
        assert caught.value.kind == "refused"
        assert len(endpoint.bodies) == 1


def test_a_closed_port_is_a_connection_failure_after_the_retries():
    with FailingEndpoint() as endpoint:
        pass
    with pytest.raises(PolicyError) as caught:
        asked(endpoint, ASK, max_retries=2)
    assert caught.value.kind == "connection"


def test_waits_double_with_jitter_and_honour_what_the_endpoint_asks():
    waits = [backoff(attempt, first=1, longest=10, asked=None) for attempt in range(6) for _ in range(20)]
    assert all(0.5 <= wait <= 10 for wait in waits)
    assert max(waits[:20]) <= 1 < min(waits[60:80])
    assert len(set(waits)) == len(waits)
    assert all(30 <= backoff(0, first=1, longest=10, asked=30) <= 33 for _ in range(20))
    assert retry_after({"retry-after": "2.5"}) == 2.5
    assert retry_after({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert retry_after({"retry-after": "Fri, 31 Dec 2199 23:59:59 GMT"}) > 3500
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_a_rate_limit_spaces_requests_and_waits_for_tokens_that_were_spent(monkeypatch):
    now, slept = [100.0], []

    async def sleep(seconds):
        slept.append(round(seconds, 6))
        now[0] += seconds

    monkeypatch.setattr("pairwright.collection.endpoint_policy.time.monotonic", lambda: now[0])
    monkeypatch.setattr("pairwright.collection.endpoint_policy.asyncio.sleep", sleep)
    requests, tokens = RateLimit(requests_per_minute=30), RateLimit(tokens_per_minute=60)
    for _ in range(3):
        asyncio.run(requests.wait())
    assert slept == [2.0, 2.0]
    slept.clear()
    tokens.spend(90)  # half a minute beyond what a minute allows
    asyncio.run(tokens.wait())
    assert slept == [30.0]


def test_token_ids_and_logprobs_are_read_where_they_are_given():
    def choice(**fields):
        return {
            "message": {"role": "assistant", "content": "hi", "tool_calls": None},
            "finish_reason": "stop",
            **fields,
        }

    plain = {
        "content": [
            {"token": "h", "logprob": -1.5, "top_logprobs": []},
            {"token": "i", "logprob": 0, "top_logprobs": []},
        ]
    }
    named = {"content": [{"token": "token_id:4", "logprob": -1.5}, {"token": "token_id:9", "logprob": -2}]}
    response = {
        "id": "r",
        "model": "m",
        "prompt_token_ids": [1, 2],
        "usage": {"prompt_tokens": 2, "completion_tokens": 6},
    }
    response["choices"] = [choice(token_ids=[4, 9], logprobs=plain), choice(logprobs=named), choice(logprobs=plain)]
    ids, by_name, texts = completions_of_chat(response)
    assert (ids.prompt_ids, ids.token_ids, ids.logprobs, ids.token_texts) == ([1, 2], [4, 9], [-1.5, 0.0], None)
    assert (by_name.token_ids, by_name.logprobs) == ([4, 9], [-1.5, -2.0])
    assert (texts.token_ids, texts.token_texts, texts.logprobs) == (None, ["h", "i"], [-1.5, 0.0])
    for nonsense in ({}, {"choices": []}, {"choices": [{}]}, "text", {"choices": [{"message": {"content": 5}}]}):
        with pytest.raises(PolicyError, match="endpoint"):
            completions_of_chat(nonsense)


def test_template_variables_are_sent_and_those_of_a_call_come_on_top(tmp_path):
    async def ask(task, policy, recorder):
        recorder.trajectory("q", (await policy.complete("q", chat_template_kwargs={"b": 2}))[0], reward=1.0)

    with FailingEndpoint(fault_rate=0) as endpoint:
        settings = config(endpoint, num_tasks=1)
        policy = settings.policy.model_copy(update={"chat_template_kwargs": {"a": 1, "b": 1}})
        collect(settings.model_copy(update={"policy": policy}), output=tmp_path, workflow=ask)
        assert endpoint.bodies[0]["chat_template_kwargs"] == {"a": 1, "b": 2}
    (record,) = Table(tmp_path / "experience").records()
    assert record.info["chat_template_kwargs"] == {"a": 1, "b": 2}
