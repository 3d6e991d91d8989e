"""Converts engine results to OpenAI responses.

`logprobs` cover every sampled token, including the stop token.
"""

import os
import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache

from pairwright.generate import Engine, Result
from pairwright.generate.tool_calls import CallFormat, split_calls
from pairwright.records.messages import Json, ToolCall
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked

# SentencePiece spells a byte that no other token covers in hexadecimal, such as <0x0A>.
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_LEAST = -9999.0  # OpenAI's value for a probability of zero; JSON has no infinity


class TokenTexts:
    """Cache of the text and bytes of single tokens, for log-probabilities; a token may be part of a character."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # token id -> its text, and its bytes as numbers
        self._known: dict[int, tuple[str, list[int]]] = {}
        backend = getattr(engine.tokenizer, "backend_tokenizer", None)
        self._is_byte_level = backend is not None and "ByteLevel" in str(backend.decoder)

    def logprob(self, token: int, logprob: float) -> Json:
        if token not in self._known:
            self._known[token] = self._read_token(token)
        text, as_bytes = self._known[token]
        return {"token": text, "logprob": max(float(logprob), _LEAST), "bytes": as_bytes}

    def _read_token(self, token: int) -> tuple[str, list[int]]:
        piece = str(self._engine.tokenizer.convert_ids_to_tokens(int(token)))
        if match := _BYTE.fullmatch(piece):
            content = bytes([int(match[1], 16)])
        # Byte-level BPE: each letter of the token represents one byte.
        elif self._is_byte_level and all(character in byte_letters() for character in piece):
            content = bytes(byte_letters()[character] for character in piece)
        else:
            content = self._engine.text([token], skip_special_tokens=False).encode()
        return content.decode("utf-8", "replace"), list(content)


@lru_cache(1)
def byte_letters() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes: printable bytes to themselves, others from code point 256 on."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(number): number for number in printed}
    others = [number for number in range(256) if number not in set(printed)]
    return letters | {chr(256 + place): number for place, number in enumerate(others)}


def envelope(kind: str, prefix: str, model: str) -> Json:
    """Build the fields that all chunks of a response share."""
    return {"id": f"{prefix}-{os.urandom(12).hex()}", "object": kind, "created": int(time.time()), "model": model}


def chat_answer(
    head: Json, asked: ChatAsked, result: Result, prompt: Iterable[int], texts: TokenTexts, form: CallFormat | None
) -> Json:
    choices = []
    for choice in result.choices:
        content, calls = split_calls(form, choice.text)
        # OpenAI uses null as content of calls without text.
        message: Json = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if calls:
            message["tool_calls"] = [call_json(call) for call in calls]
        body: Json = {
            "index": choice.index,
            "message": message,
            "finish_reason": finish_reason(choice.finish_reason, calls),
            "logprobs": None,
        }
        if asked.logprobs:
            tops = choice.top_logprobs or [()] * len(choice.tokens)
            tokens = zip(choice.tokens.tolist(), choice.logprobs.tolist(), tops, strict=True)
            body["logprobs"] = {"content": [chat_logprob(*token, texts) for token in tokens], "refusal": None}
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
            logprobs = None
            if asked.logprobs is not None:
                tops = choice.top_logprobs if asked.logprobs else ()
                logprobs = completion_logprobs(choice.tokens.tolist(), choice.logprobs.tolist(), tops, texts)
            body: Json = {
                "index": len(choices),
                "text": choice.text,
                "finish_reason": finish_reason(choice.finish_reason, []),
                "logprobs": logprobs,
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


def chat_logprob(token: int, logprob: float, top: Sequence[tuple[int, float]], texts: TokenTexts) -> Json:
    likeliest = [texts.logprob(other, value) for other, value in top]
    return {**texts.logprob(token, logprob), "top_logprobs": likeliest}


def completion_logprobs(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    tops: Sequence[Sequence[tuple[int, float]]],
    texts: TokenTexts,
    *,
    offset: int = 0,
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
