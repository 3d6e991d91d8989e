"""What one request may ask of the model server: bounded work, fair turns, no way to stop the event loop."""

import asyncio
import threading
import time

import httpx
import pytest

from pairwright.serve import engine_requests, model_app
from serve.served_models import served, tiny_engine

pytestmark = pytest.mark.stress

MESSAGES = [{"role": "user", "content": "the cat"}]
LOOPING = (
    "{% for i in range(rounds or 1) %}{% for j in range(rounds or 1) %}{% endfor %}{% endfor %}"
    "{{ messages[0].content }}<|assistant|>"
)


@pytest.fixture(scope="module")
def place():
    engine = tiny_engine(context=512, template=LOOPING)
    engine.stop_ids = frozenset()
    with served(engine) as running:
        yield running


def post(place, path: str, **body) -> httpx.Response:
    return httpx.post(f"{place.url}/v1/{path}", json={"model": "tiny", **body}, timeout=60)


@pytest.mark.parametrize(
    "name",
    ["chat_template", "return_dict", "max_length", "padding", "truncation", "tokenize", "tokenizer_kwargs", "bos_token",
     "eos_token", "add_generation_prompt", "continue_final_message", "messages", "tools", "nonesuch"],
)  # fmt: skip
def test_templates_and_internals_of_the_tokenizer_are_refused(place, name):
    answer = post(place, "chat/completions", messages=MESSAGES, chat_template_kwargs={name: "{{ 'mine' }}"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "chat_template_kwargs"
    assert f"no variable {name!r}; it reads rounds" in error["message"]


def test_a_template_that_runs_without_end_is_stopped_and_others_are_answered_meanwhile(place, monkeypatch):
    monkeypatch.setattr(engine_requests, "_SECONDS", 2.0)
    chat = f"{place.url}/v1/chat/completions"

    async def go():
        async with httpx.AsyncClient(timeout=60) as client:
            body = {"model": "tiny", "messages": MESSAGES, "chat_template_kwargs": {"rounds": 90_000}}
            looping = asyncio.create_task(client.post(chat, json=body))
            await asyncio.sleep(0.1)
            assert (await client.get(f"{place.url}/health")).status_code == 200
            text = {"model": "tiny", "prompt": [20, 21], "max_tokens": 1}
            assert not looping.done(), "health is answered while the template runs"
            refused = await looping
            assert (await client.post(f"{place.url}/v1/completions", json=text)).status_code == 200
            return refused

    refused = asyncio.run(go())
    assert refused.status_code == 400
    assert "ran for more than 2 seconds" in refused.json()["error"]["message"]
    assert post(place, "chat/completions", messages=MESSAGES, max_tokens=1).status_code == 200


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        ("completions", {"prompt": ["the"] * 2000, "max_tokens": 1}, "too_many_items"),
        ("completions", {"prompt": ["the"] * 1000, "n": 100, "max_tokens": 128}, "request_too_large"),
        ("completions", {"prompt": "the " * 500_000, "max_tokens": 1}, "context_length_exceeded"),
        ("chat/completions", {"messages": MESSAGES * 5000}, "too_many_items"),
        ("chat/completions", {"messages": [{"role": "user", "content": "the " * 50_000}]}, "context_length_exceeded"),
    ],
)
def test_a_request_that_asks_for_too_much_is_refused_before_any_work(place, monkeypatch, path, body, code):
    def refuse(*_, **__):
        raise AssertionError("rendered or tokenised before it was refused")

    for name in ("text_ids", "prompt_ids"):
        monkeypatch.setattr(place.server.engine, name, refuse)
    answer = post(place, path, **body)
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == code


def test_a_one_token_request_behind_hundreds_of_prompts_is_answered_and_the_work_ends_with_its_client(place):
    many = {"model": "tiny", "prompt": [[20 + number % 100] * 3 for number in range(1000)], "max_tokens": 400}
    one = {"model": "tiny", "prompt": [20, 21], "max_tokens": 1}
    url = f"{place.url}/v1/completions"

    async def go():
        async with httpx.AsyncClient(timeout=120) as client:
            large = asyncio.create_task(client.post(url, json=many))
            while place.server.batcher.num_open < 1000:
                await asyncio.sleep(0.01)
            assert (await client.post(url, json=one)).status_code == 200
            assert place.server.batcher.num_open == 1000, "not one of the long answers is complete"
            large.cancel()
            with pytest.raises(asyncio.CancelledError):
                await large
        deadline = time.monotonic() + 60
        while place.server.batcher.num_open or not place.server.batcher.is_idle:
            assert time.monotonic() < deadline, "the work goes on without its client"
            await asyncio.sleep(0.01)

    asyncio.run(go())


def test_every_request_is_a_separate_group(place, monkeypatch):
    groups: list = []
    submit = place.server.batcher.submit

    async def note(request, *rest, group=None):
        groups.append(group)
        return await submit(request, *rest, group=group)

    monkeypatch.setattr(place.server.batcher, "submit", note)
    asks = [("chat/completions", {"messages": MESSAGES}), ("completions", {"prompt": ["the", "cat"]})]
    for path, body in asks:
        for stream in (False, True):
            for _ in range(2):
                assert post(place, path, **body, stream=stream, max_tokens=1).status_code == 200
    # two of each chat, then two of each completion, whose two prompts are one group
    assert None not in groups
    assert [groups.index(group) for group in groups] == [0, 1, 2, 3, 4, 4, 6, 6, 8, 8, 10, 10]


def test_a_large_body_is_parsed_beside_the_event_loop(place, monkeypatch):
    threads: list[str] = []
    parse = model_app._parse
    monkeypatch.setattr(
        model_app, "_parse", lambda *given: threads.append(threading.current_thread().name) or parse(*given)
    )
    answer = post(place, "completions", prompt="the", max_tokens=1, user="x" * 100_000)
    assert answer.status_code in (200, 400)
    assert threads
    assert all(name.startswith("prompts") for name in threads)


def test_without_a_token_a_web_page_cannot_ask(place):
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
        answer = httpx.get(f"{place.url}/v1/models", headers=headers, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "foreign_host")


def test_nothing_is_parsed_without_the_token(monkeypatch):
    def refuse(*_):
        raise AssertionError("parsed before the token was checked")

    with served(tiny_engine(), token="secret") as place:
        monkeypatch.setattr("msgspec.json.decode", refuse)
        answer = httpx.post(f"{place.url}/v1/completions", content=b"[" * 3_000_000, timeout=60)
    assert answer.status_code == 401
