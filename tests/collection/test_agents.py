"""Agents that talk to an OpenAI-compatible endpoint inside a collection: real SDK clients, a policy behind them."""

import asyncio
import contextlib
import json
import socket

import httpx
import pytest
from openai import OpenAI

from pairwright.collection import Completion, collect
from pairwright.collection.proxy import agent_endpoint
from pairwright.collection.run_failures import PolicyError
from pairwright.collection.tasks import Task
from pairwright.config import Config
from pairwright.engines import listening
from pairwright.errors import ConfigError
from pairwright.records.messages import Message, ToolCall

pytestmark = pytest.mark.stress

TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
TASKS = [{"id": f"t{number}", "question": f"{number} + 2?"} for number in range(2)]


class Adder:
    """A policy that calls a tool and then tells its result. Ids: ten for each message of the prompt, two of the answer."""

    name = "adder"

    def __init__(self, **failures) -> None:
        self.asks = []
        self.failures = failures

    async def complete(self, ask):
        self.asks.append(ask)
        await asyncio.sleep(0)
        last = ask.messages[-1]
        if last.text in self.failures:
            raise PolicyError(self.failures[last.text], "the model is away")
        message = Message("assistant", f"It is {last.text}.")
        if ask.tools and last.role == "user":
            message = Message("assistant", None, tool_calls=(ToolCall("add", '{"a":1,  "b":2}', "call_0"),))
        start = 10 * len(ask.messages)
        return [
            Completion(
                message=message,
                finish_reason="stop",
                prompt_ids=list(range(start)),
                token_ids=[start, start + 1],
                logprobs=[-0.5, -0.25],
                num_tokens=2,
                num_prompt_tokens=start,
            )
            for _ in range(ask.n)
        ]

    async def close(self):
        pass


def play_all(workflow, output, policy=None, **options):
    config = Config.model_validate({"collect": {"num_runs": 1, **options}, "policy": {"temperature": 0.7}})
    return collect(config, output=output, workflow=workflow, policy=policy or Adder(), tasks=TASKS)


def spelled_differently(calls):
    """The calls as many frameworks send them back: arguments parsed and written again."""
    return [
        {**call, "function": {**call["function"], "arguments": json.dumps(json.loads(call["function"]["arguments"]))}}
        for call in calls
    ]


async def ask_with_tools(task):
    messages = [{"role": "user", "content": task["question"]}]
    while True:
        response = await task.client.chat.completions.create(
            model="any", messages=messages, tools=TOOLS, temperature=0, seed=1, max_tokens=9
        )
        message = response.choices[0].message
        if not message.tool_calls:
            return 1.0
        assert response.choices[0].finish_reason == "tool_calls"
        calls = spelled_differently([call.model_dump() for call in message.tool_calls])
        messages.append({"role": "assistant", "content": "", "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "3"} for call in calls]


def test_an_agent_with_tools_is_one_experience_with_ids_tools_and_reward(tmp_path):
    policy = Adder()
    collected = play_all(ask_with_tools, tmp_path, policy)
    assert collected.errors == []
    assert collected.status.mean_reward == 1.0
    first, _ = sorted(collected.table, key=lambda row: row.eid.task)
    assert [message.text for message in first.prompt] == ["0 + 2?"]
    call, result, answer = first.completion
    assert call.tool_calls[0].arguments == '{"a":1,  "b":2}'  # as it was sampled, not as the agent spelled it
    assert result.tool_call_id == call.tool_calls[0].id
    assert answer.text == "It is 3."
    assert list(first.tools) == TOOLS
    assert first.reward == 1.0
    assert first.tokens.tolist() == [*range(30), 30, 31]
    assert first.action_mask.tolist() == [1, 1] + [0] * 18 + [1, 1]
    # the configuration decides how answers are drawn, the agent how long they may be
    assert {(ask.temperature, ask.max_tokens) for ask in policy.asks} == {(0.7, 9)}
    assert len({ask.seed for ask in policy.asks}) == 4


def stream_with_tools(task):
    """A plain function with the blocking client."""
    with OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        return stream_with(client, task["question"])


def stream_with(client, question):
    messages, text, calls = [{"role": "user", "content": question}], "", []
    for _ in range(2):
        options = {"stream": True, "stream_options": {"include_usage": True}}
        for chunk in client.chat.completions.create(model="any", messages=messages, tools=TOOLS, **options):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                calls += choice.delta.tool_calls or []
        if text:
            assert chunk.usage.completion_tokens == 2
            return {"reward": 0.5}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call.model_dump() for call in calls]})
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
    raise AssertionError("no answer")


def test_a_plain_function_streams(tmp_path):
    collected = play_all(stream_with_tools, tmp_path)
    assert collected.errors == []
    assert [(len(row.completion), row.reward, len(row.tokens)) for row in collected.table] == [(3, 0.5, 32)] * 2


def use_responses(task):
    with OpenAI(base_url=task.base_url, api_key=task.api_key) as client:
        return respond(client, task)


def respond(client, task):
    tools = [{"type": "function", "name": "add", "parameters": {"type": "object"}}]
    first = client.responses.create(model="any", input=task["question"], instructions="Be short.", tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    new = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
    *_, end = client.responses.create(model="any", input=new, previous_response_id=first.id, tools=tools, stream=True)
    assert end.type == "response.completed"
    return float(end.response.output_text == "It is 3.")


def test_the_responses_api_is_answered_and_joined_too(tmp_path):
    collected = play_all(use_responses, tmp_path)
    assert collected.errors == []
    for row in collected.table:
        assert [message.role for message in (*row.prompt, *row.completion)] == [
            "system", "user", "assistant", "tool", "assistant",
        ]  # fmt: skip
        assert row.reward == 1.0
        assert list(row.tools) == TOOLS
        assert row.tokens is not None


async def go_two_ways(task):
    """One beginning with two continuations, and an unrelated question."""
    create, question = task.client.chat.completions.create, {"role": "user", "content": task["question"]}
    first = (await create(model="m", messages=[question])).choices[0].message
    for more in ("left", "right"):
        start = [question, {"role": "assistant", "content": first.content}]
        await create(model="m", messages=[*start, {"role": "user", "content": more}])
    await create(model="m", messages=[{"role": "user", "content": "other"}])
    return 1


def test_branches_are_trajectories_and_no_turn_is_trained_twice(tmp_path):
    rows = [row for row in play_all(go_two_ways, tmp_path).table if row.eid.task == "t0"]
    texts = {tuple(m.text for m in row.completion): [m.is_generated for m in row.completion] for row in rows}
    first = "It is 0 + 2?."
    assert texts == {
        (first, "left", "It is left."): [True, False, True],
        (first, "right", "It is right."): [False, False, True],
        ("It is other.",): [True],
    }
    assert {row.eid.step for row in rows} == {0, 1, 2}


async def two_calls_then_fail(task):
    create = task.client.chat.completions.create
    await create(model="m", messages=[{"role": "user", "content": task["question"]}])
    await create(model="m", messages=[{"role": "user", "content": "away"}])
    return 1


@pytest.mark.parametrize("kind", ["refused", "rate_limited"])
def test_a_failure_of_the_policy_is_the_failure_of_the_run_and_resume_asks_nothing_twice(kind, tmp_path):
    policy = Adder(away=kind)
    collected = play_all(two_calls_then_fail, tmp_path, policy)
    assert {(entry.kind, entry.message) for entry in collected.errors} == {(kind, "the model is away")}
    again = Adder()
    config = Config.model_validate({"policy": {"temperature": 0.7}})
    done = collect(config, output=tmp_path, workflow=two_calls_then_fail, policy=again, tasks=TASKS, resume=True)
    assert done.errors == []
    assert [ask.messages[-1].text for ask in again.asks] == ["away"] * 2  # the first call is in the log


async def block_the_loop(task):
    with OpenAI(base_url=task.base_url, api_key=task.api_key, max_retries=0) as client:
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def test_a_blocking_client_in_an_async_workflow_gets_an_error_with_the_fix(tmp_path, monkeypatch):
    monkeypatch.setattr(agent_endpoint, "_BUSY_SECONDS", 0.3)
    collected = play_all(block_the_loop, tmp_path, max_concurrency=1)
    assert all("make it a plain `def` function" in entry.message for entry in collected.errors)
    assert len(collected.errors) == 2


async def ask_for_more(task):
    create = task.client.chat.completions.create
    await create(
        model="m", messages=[{"role": "user", "content": "hi"}], tools=TOOLS, tool_choice="required",
        parallel_tool_calls=True, reasoning_effort="low", user="me",
    )  # fmt: skip
    return 0


def test_parameters_without_effect_are_counted_and_an_endpoint_gets_them(tmp_path):
    collected = play_all(ask_for_more, tmp_path / "local")
    assert collected.status.ignored == {"tool_choice": 2, "reasoning_effort": 2}
    policy = Adder()
    policy.takes_extra = True
    assert not play_all(ask_for_more, tmp_path / "endpoint", policy).status.ignored
    assert policy.asks[0].extra == {"tool_choice": "required", "reasoning_effort": "low"}


ADDRESSES = []


def send_nonsense(task):
    ADDRESSES.append(task.base_url)
    bodies = (b"{", b"[]", b'{"messages": []}', b'{"messages": [{"role": "user", "content": "x"}], "n": 0}')
    codes = [httpx.post(f"{task.base_url}/chat/completions", content=body).status_code for body in bodies]
    assert codes == [400] * 4
    wrong = task.base_url.replace(task.api_key, "pw-guessed")
    assert httpx.post(f"{wrong}/chat/completions", content=b"{}").status_code == 404
    assert httpx.get(f"{task.base_url}/models").json()["data"][0]["id"] == "adder"


def test_requests_that_cannot_be_read_and_runs_that_ended_are_refused(tmp_path):
    collected = play_all(send_nonsense, tmp_path)
    assert collected.errors == []
    assert collected.status.num_silent == 2
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{ADDRESSES[0]}/models")


def send_half_a_head(task):
    url = httpx.URL(task.base_url)
    answers = []
    for rest in (b"", b"x: " + b"y" * 100_000):
        with socket.create_connection((url.host, url.port), timeout=120) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"GET /run/x/v1/models HTTP/1.1\r\nhost: x\r\n" + rest)
            try:
                answers.append(connection.recv(12))
            except ConnectionResetError:
                answers.append(b"")
    assert answers[0] == b""
    assert answers[1] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")
    assert httpx.get(f"{task.base_url}/models").status_code == 200


def test_connections_to_the_endpoint_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(listening, "HEAD_SECONDS", 0.2)
    assert play_all(send_half_a_head, tmp_path).errors == []


def test_outside_of_a_collection_a_task_has_no_endpoint():
    with pytest.raises(ConfigError, match="only while a collection runs it"):
        Task("t").base_url


async def record_itself(task, policy, recorder):
    response = await task.client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    recorder.trajectory("hi", response.choices[0].message.content, reward=0.25)


def test_a_workflow_that_records_decides_what_is_recorded(tmp_path):
    rows = list(play_all(record_itself, tmp_path).table)
    assert [(row.reward, row.tokens.tolist()) for row in rows] == [(0.25, [*range(10), 10, 11])] * 2
