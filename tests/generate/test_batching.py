"""Concurrent tasks share batches, and only that: each gets its own result, its own pieces, its own error."""

import asyncio
import threading

import pytest

from generate.tiny_models import byte_tokenizer, llama
from pairwright.generate import Batcher, Engine, GenerateError, Request, Sampling
from pairwright.generate.decoding import TextStream


@pytest.fixture
def engine() -> Engine:
    tokenizer = byte_tokenizer()
    return Engine(llama(tokenizer), tokenizer)


def asked(number: int, **options) -> Request:
    return Request([20 + number % 200] * (1 + number % 7), Sampling(**{"seed": number, "max_tokens": 5} | options))


def test_tasks_that_ask_together_are_answered_in_few_batches(engine, monkeypatch):
    sizes = []
    generate = engine.generate
    monkeypatch.setattr(
        engine, "generate", lambda requests, **kw: sizes.append(len(requests)) or generate(requests, **kw)
    )

    async def agent(batcher, number):
        first = await batcher.submit(asked(number))
        second = await batcher.submit(asked(number + 1000))
        return first, second

    async def main():
        async with Batcher(engine) as batcher:
            return await asyncio.gather(*(agent(batcher, number) for number in range(60)))

    found = asyncio.run(main())
    assert sum(sizes) == 120
    assert len(sizes) <= 6
    for number, (first, second) in enumerate(found):
        for result, request in ((first, asked(number)), (second, asked(number + 1000))):
            assert result.choices[0].tokens.tolist() == generate([request])[0].choices[0].tokens.tolist()


def test_pieces_come_in_the_event_loop_before_the_result(engine):
    async def main():
        async with Batcher(engine) as batcher:
            here, heard = threading.current_thread(), []
            listened = batcher.submit(
                asked(3), lambda piece: heard.append((piece.request, piece.token, threading.current_thread() is here))
            )
            result, _ = await asyncio.gather(listened, batcher.submit(asked(4)))
            assert heard == [(0, token, True) for token in result.choices[0].tokens.tolist()]

    asyncio.run(main())


def test_a_cancelled_task_leaves_the_batch(engine):
    async def main():
        async with Batcher(engine) as batcher:
            started = asyncio.Event()
            doomed = asyncio.create_task(batcher.submit(asked(1, max_tokens=None, n=20), lambda _: started.set()))
            await started.wait()
            doomed.cancel()
            with pytest.raises(asyncio.CancelledError):
                await doomed
            assert len((await batcher.submit(asked(2))).choices) == 1

    asyncio.run(main())


def test_a_bad_request_fails_alone_and_a_broken_engine_fails_its_batch_only(engine, monkeypatch):
    generate = engine.generate

    def sometimes(requests, **kw):
        if any(request.sampling.seed == 13 for request in requests):
            raise RuntimeError("out of memory")
        return generate(requests, **kw)

    monkeypatch.setattr(engine, "generate", sometimes)

    async def main():
        batcher = Batcher(engine)
        found = await asyncio.gather(batcher.submit(asked(1)), batcher.submit(Request([])), return_exceptions=True)
        assert isinstance(found[1], GenerateError)
        assert len(found[0].choices) == 1
        with pytest.raises(RuntimeError, match="out of memory"):
            await batcher.submit(asked(13))
        assert len((await batcher.submit(asked(14))).choices) == 1
        await batcher.close()
        with pytest.raises(GenerateError, match="closed"):
            await batcher.submit(asked(1))

    asyncio.run(main())


def test_characters_of_several_tokens_come_whole():
    tokenizer = byte_tokenizer()
    text = "né 🙂 日本 the cat"
    ids = tokenizer.encode(text)
    assert len(ids) > len(text)
    stream = TextStream(tokenizer.decode)
    given = [stream.add(token) for token in ids]
    assert "".join(given) + stream.finish() == text
    assert not any("�" in piece for piece in given)


def test_a_stop_text_across_tokens_is_never_given_out():
    stream = TextStream(lambda ids: "".join("ab\ncd"[number] for number in ids), stop=("\nc", "bx"))
    given = [stream.add(number) for number in (0, 1, 0, 1, 2, 3)]
    assert "".join(given) == "abab"
    assert given[1] == ""  # b may be the beginning of bx
    assert stream.stop_text == "\nc"
    open_end = TextStream(lambda ids: "".join("ab\ncd"[number] for number in ids), stop=("\nc",))
    assert [open_end.add(1), open_end.add(2), open_end.finish()] == ["b", "", "\n"]
