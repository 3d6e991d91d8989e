"""Converts engine results to OpenAI responses.

`logprobs` cover every sampled token, including the stop token.
"""

import os
import time
from collections.abc import Iterable, Sequence

from pairwright.generate import Choice, Result
from pairwright.generate.tool_calls import CallFormat, split_calls
from pairwright.records.messages import Json, ToolCall
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked
from pairwright.serve.token_texts import TokenTexts


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
