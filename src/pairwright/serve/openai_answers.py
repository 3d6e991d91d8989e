"""Converts engine results to OpenAI responses, whole or as server-sent events.

`logprobs` cover every sampled token, including the stop token.
"""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from pairwright.generate import Batcher, Choice, Engine, Piece, Request, Result
from pairwright.generate.tool_calls import CallFormat, CallStream, split_calls
from pairwright.records.messages import Json, ToolCall
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked, broken

# Text and bytes of single tokens, for log-probabilities; a token may be part of a character

# SentencePiece writes a byte that is in no token as <0x0A>.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LEAST = -9999.0  # what OpenAI writes for a probability of zero; JSON has no infinity


class TokenTexts:
    """Cache of the text and bytes of single tokens."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By token id: its text, and its bytes as numbers.
        self._known: dict[int, tuple[str, list[int]]] = {}
        self._is_byte_level = _has_byte_level(engine.tokenizer)

    def of(self, token: int) -> tuple[str, list[int]]:
        if token not in self._known:
            self._known[token] = self._read_token(token)
        return self._known[token]

    def logprob(self, token: int, logprob: float) -> Json:
        text, as_bytes = self.of(token)
        return {"token": text, "logprob": max(float(logprob), _LEAST), "bytes": as_bytes}

    def _read_token(self, token: int) -> tuple[str, list[int]]:
        piece = str(self._engine.tokenizer.convert_ids_to_tokens(int(token)))
        if match := _BYTE.fullmatch(piece):
            content = bytes([int(match[1], 16)])
        # Byte-level BPE: each letter of the token stands for one byte.
        elif self._is_byte_level and all(character in byte_letters() for character in piece):
            content = bytes(byte_letters()[character] for character in piece)
        else:
            content = self._engine.text([token], skip_special_tokens=False).encode()
        return content.decode("utf-8", "replace"), list(content)


def _has_byte_level(tokenizer: Any) -> bool:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return backend is not None and "ByteLevel" in str(backend.decoder)


@lru_cache(1)
def byte_letters() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes: printable bytes to themselves, others from code point 256 on."""
    # Bytes that byte-level BPE (GPT-2) keeps as they are: printable, without space and soft hyphen.
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(number): number for number in printed}
    others = [number for number in range(256) if number not in set(printed)]
    return letters | {chr(256 + place): number for place, number in enumerate(others)}


# Responses


def envelope(kind: str, prefix: str, model: str) -> Json:
    """Build the fields that all chunks of a response share."""
    return {"id": f"{prefix}-{os.urandom(12).hex()}", "object": kind, "created": int(time.time()), "model": model}


def chat_answer(
    head: Json, asked: ChatAsked, result: Result, prompt: Iterable[int], texts: TokenTexts, form: CallFormat | None
) -> Json:
    """Build the response of a chat completion."""
    choices = []
    for choice in result.choices:
        content, calls = split_calls(form, choice.text)
        # OpenAI has null as content beside calls, else text.
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = [call_json(call) for call in calls]
        body: Json = {
            "index": choice.index,
            "message": message,
            "finish_reason": finish_reason(choice.finish_reason, calls),
            "logprobs": chat_logprobs(choice, asked, texts),
        }
        if asked.return_token_ids:
            body["token_ids"] = choice.tokens.tolist()
        choices.append(body)
    answer = {**head, "choices": choices, "usage": usage([result])}
    return {**answer, "prompt_token_ids": [int(token) for token in prompt]} if asked.return_token_ids else answer


def completion_answer(
    head: Json, asked: CompletionAsked, results: Sequence[Result], prompts: Sequence[Iterable[int]], texts: TokenTexts
) -> Json:
    """Build the response of a completion, with the choices of all prompts."""
    choices: list[Json] = []
    for result, prompt in zip(results, prompts, strict=True):
        for choice in result.choices:
            body: Json = {
                # Numbered through all prompts.
                "index": len(choices),
                "text": choice.text,
                "finish_reason": finish_reason(choice.finish_reason, []),
                "logprobs": None if asked.logprobs is None else completion_logprobs(choice, asked.logprobs, texts),
            }
            if asked.return_token_ids:
                body |= {"token_ids": choice.tokens.tolist(), "prompt_token_ids": [int(token) for token in prompt]}
            choices.append(body)
    return {**head, "choices": choices, "usage": usage(results)}


def usage(results: Sequence[Result]) -> Json:
    prompt, drawn = sum(result.num_prompt_tokens for result in results), sum(result.num_tokens for result in results)
    return {"prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn}


def finish_reason(reason: str, calls: Sequence[ToolCall]) -> str:
    return "tool_calls" if calls and reason == "stop" else reason


def call_json(call: ToolCall) -> Json:
    return {
        "id": f"call_{os.urandom(12).hex()}",
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def chat_logprobs(choice: Choice, asked: ChatAsked, texts: TokenTexts) -> Json | None:
    if not asked.logprobs:
        return None
    tops = choice.top_logprobs or [()] * len(choice.tokens)
    return {
        "content": [
            chat_logprob(token, logprob, top, texts)
            for token, logprob, top in zip(choice.tokens.tolist(), choice.logprobs.tolist(), tops, strict=True)
        ],
        "refusal": None,
    }


def chat_logprob(token: int, logprob: float, top: Sequence[tuple[int, float]], texts: TokenTexts) -> Json:
    likeliest = [texts.logprob(other, value) for other, value in top]
    return {**texts.logprob(token, logprob), "top_logprobs": likeliest}


def completion_logprobs(choice: Choice, num_top: int, texts: TokenTexts) -> Json:
    return completion_logprobs_of(
        choice.tokens.tolist(), choice.logprobs.tolist(), choice.top_logprobs if num_top else (), texts, offset=0
    )


def completion_logprobs_of(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[Sequence[tuple[int, float]]],
    texts: TokenTexts,
    *,
    offset: int,
) -> Json:
    """Build log-probabilities in the completions format: parallel lists. `offset`: text offset of the first token."""
    columns: Json = {"tokens": [], "token_logprobs": [], "top_logprobs": [] if tops else None, "text_offset": []}
    for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
        one = texts.logprob(token, logprob)
        columns["tokens"].append(one["token"])
        columns["token_logprobs"].append(one["logprob"])
        columns["text_offset"].append(offset)
        offset += len(one["token"])
        if tops:
            likeliest = [texts.logprob(other, value) for other, value in tops[place]]
            columns["top_logprobs"].append({item["token"]: item["logprob"] for item in likeliest})
    return columns


# Streams responses as server-sent events: a chunk per piece of text, and `[DONE]` at the end.
#
# The generator owns the work. When the client disconnects, the generator is closed, and its requests leave the batch
# at the next token.


_DONE = b"data: [DONE]\n\n"


async def pieces(batcher: Batcher, requests: Sequence[Request]) -> AsyncIterator[tuple[int, Piece] | list[Result]]:
    """Yield (request index, piece) as they are generated, and finally the list of all results."""
    # None marks the end.
    queue: asyncio.Queue[tuple[int, Piece] | None] = asyncio.Queue()

    group = object()  # the prompts of a request take turns with those of others

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
            yield item
        yield await work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def chat_events(
    batcher: Batcher, request: Request, asked: ChatAsked, head: Json, texts: TokenTexts, form: CallFormat | None
) -> AsyncIterator[bytes]:
    """Yield the events of a chat completion."""
    # For each choice: holds back text that may be the beginning of a tool call.
    streams = [CallStream(form) for _ in range(request.sampling.n)]
    with_ids = bool(asked.return_token_ids)
    for number in range(request.sampling.n):
        opening = [_chat_choice(number, {"role": "assistant", "content": ""})]
        yield _event(head, opening, **_prompt_ids(with_ids, request))
    try:
        async for item in pieces(batcher, [request]):
            if isinstance(item, list):
                results = item
                break
            piece = item[1]
            text = streams[piece.choice].add(piece.text)
            logprobs = None
            if asked.logprobs:
                logprobs = {"content": [chat_logprob(piece.token, piece.logprob, piece.top_logprobs, texts)]}
            # A token may add no text: half a character, or text that is held back.
            if text or logprobs or with_ids:
                choice = _chat_choice(piece.choice, {"content": text}, logprobs=logprobs)
                yield _event(head, [{**choice, "token_ids": [piece.token]} if with_ids else choice])
            if piece.finish_reason is not None:
                for choice in _last(streams[piece.choice], piece):
                    yield _event(head, [choice])
    except Exception as error:  # as at the door of the server: the answer has begun, so the error is its last event
        yield b"data: " + msgspec.json.encode(broken(error).body) + b"\n\n"
        return
    if asked.wants_usage_in_stream:
        yield _event(head, [], usage=usage(results))
    yield _DONE


def _last(stream: CallStream, piece: Piece) -> list[Json]:
    """Build the final chunks of a choice: held-back text, tool calls, finish reason."""
    rest, calls = stream.finish()
    choices = [_chat_choice(piece.choice, {"content": rest})] if rest else []
    if calls:
        deltas = [{"index": number, **call_json(call)} for number, call in enumerate(calls)]
        choices.append(_chat_choice(piece.choice, {"tool_calls": deltas}))
    reason = finish_reason(piece.finish_reason or "stop", calls)
    return [*choices, _chat_choice(piece.choice, {}, finish_reason=reason)]


async def completion_events(
    batcher: Batcher, requests: Sequence[Request], asked: CompletionAsked, head: Json, texts: TokenTexts
) -> AsyncIterator[bytes]:
    """Yield the events of a completion; choices are numbered across prompts."""
    # By choice: how many characters were sent.
    offsets: dict[int, int] = {}
    begun: set[int] = set()  # choices of which a client knows the prompt's ids
    try:
        async for item in pieces(batcher, requests):
            if isinstance(item, list):
                results = item
                break
            number, piece = item
            # All prompts have the same n.
            index = number * requests[0].sampling.n + piece.choice
            choice: Json = {"index": index, "text": piece.text, "finish_reason": piece.finish_reason, "logprobs": None}
            if asked.logprobs is not None:
                top = [piece.top_logprobs] if asked.logprobs else []
                choice["logprobs"] = completion_logprobs_of(
                    [piece.token], [piece.logprob], top, texts, offset=offsets.get(index, 0)
                )
                offsets[index] = offsets.get(index, 0) + len(choice["logprobs"]["tokens"][0])
            if asked.return_token_ids:
                choice["token_ids"] = [piece.token]
                choice |= {} if index in begun else _prompt_ids(True, requests[number])
                begun.add(index)
            if piece.text or piece.finish_reason or choice["logprobs"] or asked.return_token_ids:
                yield _event(head, [choice])
    except Exception as error:  # as at the door of the server: the answer has begun, so the error is its last event
        yield b"data: " + msgspec.json.encode(broken(error).body) + b"\n\n"
        return
    if asked.wants_usage_in_stream:
        yield _event(head, [], usage=usage(results))
    yield _DONE


def _chat_choice(index: int, delta: Json, *, logprobs: Json | None = None, finish_reason: str | None = None) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def _prompt_ids(is_wanted: bool, request: Request) -> Json:
    return {"prompt_token_ids": [int(token) for token in request.prompt]} if is_wanted else {}


def _event(head: Json, choices: list[Json], **more: Any) -> bytes:
    return b"data: " + msgspec.json.encode({**head, "choices": choices, **more}) + b"\n\n"
