"""Concurrent tasks share batches, and only that: each gets its own result, its own pieces, its own error."""

import asyncio
import threading

import pytest

from generate.tiny_models import byte_tokenizer, llama
from pairwright.generate import Batcher, Engine, GenerateError, Request, Sampling
from pairwright.generate.scheduler import Ticket
from pairwright.generate.text_stream import TextStream

pytestmark = pytest.mark.stress


@pytest.fixture
def engine() -> Engine:
    tokenizer = byte_tokenizer()
    return Engine(llama(tokenizer), tokenizer)


def asked(number: int, **options) -> Request:
    return Request([20 + number % 200] * (1 + number % 7), Sampling(**{"seed": number, "max_tokens": 5} | options))


def add(scheduler, request: Request, group: str) -> Ticket:
    ticket = Ticket(request, group)
    scheduler.add(ticket)
    return ticket


def count_steps(engine, monkeypatch) -> list[int]:
    """Tokens of each forward pass from now on."""
    sizes: list[int] = []
    forward = engine.model.forward
    monkeypatch.setattr(
        engine.model, "forward", lambda *args, **kw: sizes.append(kw["input_ids"].shape[-1]) or forward(*args, **kw)
    )
    return sizes


def test_tasks_that_ask_together_share_steps_and_get_the_answers_they_get_alone(engine, monkeypatch):
    alone = [engine.generate([asked(number)])[0] for number in (*range(60), *range(1000, 1060))]
    sizes = count_steps(engine, monkeypatch)

    async def agent(batcher, number):
        first = await batcher.submit(asked(number))
        second = await batcher.submit(asked(number + 1000))
        return first, second

    async def main():
        async with Batcher(engine) as batcher:
            return await asyncio.gather(*(agent(batcher, number) for number in range(60)))

    pairs = asyncio.run(main())
    assert len(sizes) < 120, "120 requests of 5 tokens, one by one, are 600 steps"
    together = [pair[turn] for turn in (0, 1) for pair in pairs]
    assert [r.choices[0].tokens.tolist() for r in together] == [r.choices[0].tokens.tolist() for r in alone]


def test_a_short_request_behind_a_long_one_is_answered_in_the_next_steps(engine):
    async def main():
        async with Batcher(engine) as batcher:
            pieces = []
            long = asyncio.create_task(
                batcher.submit(Request([9] * 5, Sampling(temperature=0, max_tokens=240, n=30)), pieces.append)
            )
            while len(pieces) < 30:
                await asyncio.sleep(0.001)
            before = len(pieces)
            await batcher.submit(asked(2, max_tokens=1), group="another client")
            # the pieces of the steps in between arrive in the event loop before the answer
            assert len(pieces) - before <= 30 * 20
            assert not long.done()
            long.cancel()

    asyncio.run(main())


def test_results_come_as_they_are_complete(engine):
    requests = [asked(number, max_tokens=1 + 9 * (number == 0)) for number in range(4)]
    pieces = []
    engine.generate(requests, on_piece=pieces.append)
    assert [piece.request for piece in pieces if piece.finish_reason][-1] == 0


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


def test_tokens_in_flight_are_those_of_requests_that_are_not_complete(engine):
    async def main():
        async with Batcher(engine) as batcher:
            counts = []
            request = asked(1, max_tokens=40, temperature=0)
            result = await batcher.submit(request, lambda _: counts.append(batcher.load.num_tokens))
            return counts, batcher.load.num_tokens, len(result.choices[0].tokens)

    counts, after, total = asyncio.run(main())
    assert counts == sorted(counts)
    assert 1 <= counts[0] <= counts[-1] == total
    assert after == 0


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


def test_a_bad_request_fails_alone_and_a_broken_step_fails_those_in_work_only(engine, monkeypatch):
    async def main():
        batcher = Batcher(engine)
        first, second = await asyncio.gather(
            batcher.submit(asked(1)), batcher.submit(Request([])), return_exceptions=True
        )
        assert isinstance(second, GenerateError)
        assert len(first.choices) == 1
        with monkeypatch.context() as patch:

            def fail(*_, **__):
                raise RuntimeError("out of memory")

            patch.setattr(engine.model, "forward", fail)
            with pytest.raises(RuntimeError, match="out of memory"):
                await batcher.submit(asked(13))
        assert len((await batcher.submit(asked(14))).choices) == 1
        await batcher.close()
        with pytest.raises(GenerateError, match="closed"):
            await batcher.submit(asked(1))

    asyncio.run(main())


def test_a_group_with_many_requests_does_not_keep_another_from_its_turn(engine):
    scheduler = engine.open_scheduler()
    scheduler._max_choices = 8
    many = [add(scheduler, asked(number, temperature=0, max_tokens=40), "many") for number in range(200)]
    for _ in range(3):
        scheduler.step()
    one = add(scheduler, asked(7, max_tokens=1), "one")
    complete = scheduler.step() + scheduler.step()
    assert one in complete
    while not scheduler.is_idle:
        complete += scheduler.step()
    assert len(complete) == 201
    expected = engine.generate([ticket.request for ticket in many])
    for ticket, result in zip(many, expected, strict=True):
        assert ticket.result.choices[0].tokens.tolist() == result.choices[0].tokens.tolist(), "rows that were put back"


@pytest.mark.parametrize("max_choices", [1, 2, 3])
def test_groups_take_turns_whatever_the_first_has_in_its_queue(engine, max_choices):
    scheduler = engine.open_scheduler()
    scheduler._max_choices = max_choices
    # prompts of one token each, all different: those of a step are complete in the order in which they started
    for group, numbers in (("a", range(30)), ("b", range(30, 33)), ("c", range(33, 36))):
        for number in numbers:
            add(scheduler, asked(7 * number, max_tokens=1), group)
    order = ""
    while not scheduler.is_idle:
        order += "".join(ticket.group for ticket in scheduler.step())
    assert order == "abc" * 3 + "a" * 27


def test_a_request_that_joins_between_steps_has_its_turn_before_the_next_of_the_others(engine):
    scheduler = engine.open_scheduler()
    scheduler._max_choices = 2
    for number in range(20):
        add(scheduler, asked(number, max_tokens=1), "ab"[number % 2])
    order = [ticket.group for ticket in scheduler.step()]
    add(scheduler, asked(50, max_tokens=1), "late")
    order += [ticket.group for ticket in scheduler.step() + scheduler.step()]
    assert order[:2] == ["a", "b"]
    assert "late" in order[2:5]


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
