"""Convert completions of a policy to OpenAI responses: chat completions and Responses API, whole or as events."""

import time
from collections.abc import Iterator, Sequence

import msgspec

from pairwright.collection.policies import Completion
from pairwright.records.messages import Json, to_chat_message


def chat_reply(completions: Sequence[Completion], *, name: str, response_id: str, logprobs: bool) -> Json:
    """Return the body of a chat completion with one choice per completion."""
    choices = []
    for number, completion in enumerate(completions):
        message = completion.message
        content = message.text if message.text or not message.tool_calls else None
        reason = completion.finish_reason or "stop"
        choices.append(
            {
                "index": number,
                "message": {**to_chat_message(message, missing_id=""), "content": content},
                # clients expect "tool_calls" if there are any, unless the answer is truncated
                "finish_reason": "tool_calls" if message.tool_calls and reason != "length" else reason,
                "logprobs": _logprobs(completion) if logprobs else None,
            }
        )
    return {
        "id": response_id,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": name,
        "choices": choices,
        "usage": _usage(completions, "prompt_tokens", "completion_tokens"),
    }


def chat_events(reply: Json, *, with_usage: bool) -> Iterator[bytes]:
    """Yield a chat completion as a stream; the policy returns whole turns, so each choice is one chunk."""
    head = {key: reply[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in reply["choices"]:
        delta = {key: value for key, value in choice["message"].items() if value is not None}
        for number, call in enumerate(delta.get("tool_calls", ())):
            call["index"] = number
        piece = {"index": choice["index"], "delta": delta, "logprobs": choice["logprobs"], "finish_reason": None}
        yield _data({**head, "choices": [piece]})
        end = {"index": choice["index"], "delta": {}, "logprobs": None, "finish_reason": choice["finish_reason"]}
        yield _data({**head, "choices": [end]})
    if with_usage:
        yield _data({**head, "choices": [], "usage": reply["usage"]})
    yield b"data: [DONE]\n\n"


def response_reply(completion: Completion, request: Json, *, name: str, response_id: str) -> Json:
    message, is_cut = completion.message, completion.finish_reason == "length"
    status = "incomplete" if is_cut else "completed"
    output: list[Json] = []
    if message.reasoning:
        text = {"type": "reasoning_text", "text": message.reasoning}
        output.append({"type": "reasoning", "id": f"rs_{response_id}", "summary": [], "content": [text]})
    if message.text or not message.tool_calls:
        part = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        item = {"type": "message", "id": f"msg_{response_id}", "role": "assistant", "status": status, "content": [part]}
        output.append(item)
    for number, call in enumerate(message.tool_calls):
        fields = {"call_id": call.id, "name": call.name, "arguments": call.arguments, "status": "completed"}
        output.append({"type": "function_call", "id": f"fc_{response_id}_{number}", **fields})
    usage = _usage([completion], "input_tokens", "output_tokens")
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "error": None,
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "instructions": request.get("instructions"),
        "metadata": {},
        "model": name,
        "output": output,
        "parallel_tool_calls": bool(request.get("parallel_tool_calls", True)),
        "temperature": request.get("temperature"),
        "tool_choice": request.get("tool_choice", "auto"),
        "tools": request.get("tools") or [],
        "top_p": request.get("top_p"),
        "usage": usage | details,
    }


def response_events(reply: Json) -> Iterator[bytes]:
    """Yield a response as a stream: each output item, then the whole response."""
    started = {**reply, "status": "in_progress", "output": [], "usage": None}
    events: list[Json] = [{"type": "response.created", "response": started}]
    for number, item in enumerate(reply["output"]):
        events.append({"type": "response.output_item.added", "output_index": number, "item": item})
        events.append({"type": "response.output_item.done", "output_index": number, "item": item})
    events.append({"type": f"response.{reply['status']}", "response": reply})
    for number, event in enumerate(events):
        name = event["type"].encode()
        yield b"event: " + name + b"\n" + _data({**event, "sequence_number": number})


def _logprobs(completion: Completion) -> Json | None:
    """Return log-probabilities with token texts, or with ids in vLLM's form."""
    if completion.logprobs is None:
        return None
    texts = completion.token_texts or [f"token_id:{number}" for number in completion.token_ids or ()]
    pairs = zip(texts, completion.logprobs, strict=False)
    return {"content": [{"token": text, "logprob": value, "bytes": None, "top_logprobs": []} for text, value in pairs]}


def _usage(completions: Sequence[Completion], prompt_key: str, answer_key: str) -> Json:
    num_prompt, num_answer = completions[0].num_prompt_tokens, sum(item.num_tokens for item in completions)
    return {prompt_key: num_prompt, answer_key: num_answer, "total_tokens": num_prompt + num_answer}


def _data(value: Json) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
