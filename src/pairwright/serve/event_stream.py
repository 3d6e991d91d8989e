"""Responses streamed as server-sent events: a chunk per piece of text, and `[DONE]` at the end.

The generator owns the work. When the client disconnects, the generator is closed, and its requests leave the batch.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import msgspec

from pairwright.generate import Batcher, Piece, Request, Result
from pairwright.generate.tool_calls import CallFormat, CallStream
from pairwright.records.messages import Json
from pairwright.serve.openai_answers import (
    TokenTexts,
    call_json,
    chat_logprob,
    completion_logprobs,
    finish_reason,
    usage,
)
from pairwright.serve.openai_errors import broken
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked


def chat_events(
    batcher: Batcher, request: Request, asked: ChatAsked, head: Json, texts: TokenTexts, form: CallFormat | None
) -> AsyncIterator[bytes]:
    """Yield the events of a chat completion."""
    # One stream per choice; it holds back text that may be the beginning of a tool call.
    streams = [CallStream(form) for _ in range(request.sampling.n)]
    with_ids = bool(asked.return_token_ids)

    def choices_of(_: int, piece: Piece) -> Iterator[Json]:
        text = streams[piece.choice].add(piece.text)
        logprobs = None
        if asked.logprobs:
            logprobs = {"content": [chat_logprob(piece.token, piece.logprob, piece.top_logprobs, texts)]}
        # A token may add no text: a partial character, or held-back text.
        if text or logprobs or with_ids:
            choice = _chat_choice(piece.choice, {"content": text}, logprobs=logprobs)
            yield {**choice, "token_ids": [piece.token]} if with_ids else choice
        if piece.finish_reason is not None:
            yield from _last(streams[piece.choice], piece)

    opening = [
        _event(head, [_chat_choice(number, {"role": "assistant", "content": ""})], **_prompt_ids(with_ids, request))
        for number in range(request.sampling.n)
    ]
    return _stream(batcher, [request], asked, head, choices_of, opening)


def _last(stream: CallStream, piece: Piece) -> list[Json]:
    """Build the final chunks of a choice: held-back text, tool calls, finish reason."""
    rest, calls = stream.finish()
    choices = [_chat_choice(piece.choice, {"content": rest})] if rest else []
    if calls:
        deltas = [{"index": number, **call_json(call)} for number, call in enumerate(calls)]
        choices.append(_chat_choice(piece.choice, {"tool_calls": deltas}))
    reason = finish_reason(piece.finish_reason or "stop", calls)
    return [*choices, _chat_choice(piece.choice, {}, finish_reason=reason)]


def completion_events(
    batcher: Batcher, requests: Sequence[Request], asked: CompletionAsked, head: Json, texts: TokenTexts
) -> AsyncIterator[bytes]:
    """Yield the events of a completion; choice indices are global across prompts."""
    # choice -> number of characters sent
    offsets: dict[int, int] = {}
    begun: set[int] = set()  # choices whose prompt ids were sent

    def choices_of(number: int, piece: Piece) -> Iterator[Json]:
        # All prompts have the same n.
        index = number * requests[0].sampling.n + piece.choice
        choice: Json = {"index": index, "text": piece.text, "finish_reason": piece.finish_reason, "logprobs": None}
        if asked.logprobs is not None:
            top = [piece.top_logprobs] if asked.logprobs else []
            offset = offsets.get(index, 0)
            choice["logprobs"] = completion_logprobs([piece.token], [piece.logprob], top, texts, offset=offset)
            offsets[index] = offset + len(choice["logprobs"]["tokens"][0])
        if asked.return_token_ids:
            choice["token_ids"] = [piece.token]
            choice |= {} if index in begun else _prompt_ids(True, requests[number])
            begun.add(index)
        if piece.text or piece.finish_reason or choice["logprobs"] or asked.return_token_ids:
            yield choice

    return _stream(batcher, requests, asked, head, choices_of)


async def _stream(
    batcher: Batcher,
    requests: Sequence[Request],
    asked: ChatAsked | CompletionAsked,
    head: Json,
    choices_of: Callable[[int, Piece], Iterator[Json]],
    opening: Sequence[bytes] = (),
) -> AsyncIterator[bytes]:
    """Yield an event for each of the choices of (request index, piece), as they are generated; then usage and end."""
    for event in opening:
        yield event
    queue: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()  # None marks the end
    group = object()  # for fair scheduling among requests

    async def one(number: int, request: Request) -> Result:
        return await batcher.submit(request, lambda piece: queue.put_nowait((number, piece)), group=group)

    async def together() -> list[Result]:
        try:
            return await asyncio.gather(*(one(number, request) for number, request in enumerate(requests)))
        finally:
            queue.put_nowait(None)

    work = asyncio.create_task(together())
    try:
        while (item := await queue.get()) is not None:
            for choice in choices_of(*item):
                yield _event(head, [choice])
        results = await work
        if asked.wants_usage_in_stream:
            yield _event(head, [], usage=usage(results))
        yield b"data: [DONE]\n\n"
    except Exception as error:  # boundary of the server: the response has begun, so the error is its last event
        yield b"data: " + msgspec.json.encode(broken(error).body) + b"\n\n"
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


def _chat_choice(index: int, delta: Json, *, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _prompt_ids(is_wanted: bool, request: Request) -> Json:
    return {"prompt_token_ids": [int(token) for token in request.prompt]} if is_wanted else {}


def _event(head: Json, choices: list[Json], **more: Any) -> bytes:
    return b"data: " + msgspec.json.encode({**head, "choices": choices, **more}) + b"\n\n"
