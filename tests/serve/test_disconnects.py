"""A disconnect stops only the work of that client; requests that wait together form one batch."""

import asyncio

import httpx
import openai
import pytest

from generate.test_batching import count_steps
from serve.served_models import served, tiny_engine

pytestmark = pytest.mark.stress

LONG = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 100_000, "seed": 0}


@pytest.fixture
def place():
    """A server whose model never ends by itself."""
    engine = tiny_engine(context=200_000)
    engine.stop_ids = frozenset()
    with served(engine) as running:
        yield running


def is_at_rest(place) -> bool:
    """Return whether neither the server nor the engine has open requests."""
    return place.server.num_open == 0 and place.server.batcher.num_open == 0 and place.server.batcher.is_idle


async def until(condition):
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never happened")


def test_a_stream_that_is_closed_leaves_the_batch(place):
    async def go():
        async with (
            httpx.AsyncClient(timeout=30) as client,
            client.stream("POST", f"{place.url}/v1/chat/completions", json={**LONG, "stream": True}) as stream,
        ):
            lines = stream.aiter_lines()
            for _ in range(6):
                await anext(lines)
            assert place.server.num_open == 1
            health = await client.get(f"{place.url}/health")
            assert health.json()["status"] == "ok", "health answers while the model works"
        await until(lambda: is_at_rest(place))

    asyncio.run(go())


def test_a_client_that_hangs_up_before_its_answer_leaves_the_batch(place):
    async def go():
        async with httpx.AsyncClient(timeout=30) as client:
            asking = asyncio.create_task(client.post(f"{place.url}/v1/chat/completions", json=LONG))
            await until(lambda: place.server.num_open == 1)
            await asyncio.sleep(0.05)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        await until(lambda: is_at_rest(place))

    asyncio.run(go())


def test_requests_that_come_together_are_answered_in_few_steps_and_as_if_alone(place, monkeypatch):
    sizes = count_steps(place.server.engine, monkeypatch)

    async def go():
        async with openai.AsyncOpenAI(base_url=f"{place.url}/v1", api_key="x", max_retries=0) as client:
            options = {"model": "tiny", "max_tokens": 10}
            asked = [
                {"seed": seed, "messages": [{"role": "user", "content": "the " * (seed % 5 + 1)}]} for seed in range(40)
            ]
            alone = [await client.chat.completions.create(**options, **item) for item in asked[:5]]
            sizes.clear()
            together = await asyncio.gather(*(client.chat.completions.create(**options, **item) for item in asked))
        return [item.choices[0].message.content for item in alone], [
            item.choices[0].message.content for item in together
        ]

    alone, together = asyncio.run(go())
    assert together[:5] == alone
    assert len(sizes) < 200, "40 requests of 10 tokens, one by one, are 400 steps"
