"""Convert client requests to engine requests."""

import os
from collections.abc import Sequence

from pairwright.errors import RecordError
from pairwright.generate import Engine, GenerateError, Request, Sampling
from pairwright.generate.template_variables import KEY
from pairwright.records.messages import Json, Message
from pairwright.serve.limited_chat import check_chat, check_completion
from pairwright.serve.openai_errors import Refused
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.chat_messages import message_from_chat

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text")


def chat_request(engine: Engine, asked: ChatAsked) -> Request:
    """Render a chat with the template of the model. Tools are left out if `tool_choice` is "none"."""
    check_chat(asked, engine.context)
    messages = [_message(value, f"messages[{number}]") for number, value in enumerate(asked.messages)]
    # Without tools the template does not mention them, so the model cannot call any.
    tools: Sequence[Json] = [] if asked.tool_choice == "none" else asked.tools or []
    for number, tool in enumerate(tools):
        if not isinstance(tool.get("function"), dict) or not isinstance(tool["function"].get("name"), str):
            where = f"tools[{number}]"
            raise Refused(f"{where}: expected {{type: 'function', function: {{name, ...}}}}", param=where)
    try:
        prompt = engine.prompt_ids(messages, tools, variables=asked.chat_template_kwargs)
        top = (asked.top_logprobs or 0) if asked.logprobs else 0
        # Special tokens delimit tool calls in many templates, so the parsed text keeps them.
        sampling = _sampling(asked, asked.limit, top=top, skip_special_tokens=not tools)
        return _check_request(engine, Request(prompt.tolist(), sampling))
    except GenerateError as error:
        raise _refusal_of(error) from None


def completion_requests(engine: Engine, asked: CompletionAsked) -> list[Request]:
    check_completion(asked, engine.context)
    try:
        sampling = _sampling(asked, asked.max_tokens, top=asked.logprobs or 0)
        prompts = [engine.text_ids(item).tolist() if isinstance(item, str) else item for item in asked.prompts]
        return [_check_request(engine, Request(prompt, sampling)) for prompt in prompts]
    except GenerateError as error:
        raise _refusal_of(error) from None


def _message(value: Json, where: str) -> Message:
    """Parse a chat message; content parts must be text."""
    try:
        message = message_from_chat(value, where)
        if message.role not in _ROLES:
            raise Refused(f"{where}.role: got {message.role!r}, expected one of {', '.join(_ROLES)}", param=where)
        if not isinstance(message.content, list):
            return message
        for number, part in enumerate(message.content):
            if part.get("type") not in _TEXT_PARTS or not isinstance(part.get("text"), str):
                place = f"{where}.content[{number}]"
                raise Refused(f"{place}: {part.get('type')!r}: this model reads text only", param=place)
        return Message(
            message.role,
            message.text,
            reasoning=message.reasoning,
            tool_calls=message.tool_calls,
            tool_call_id=message.tool_call_id,
            name=message.name,
        )
    except (BadRecord, RecordError) as error:
        raise Refused(str(error), param=where) from None


def _sampling(
    asked: ChatAsked | CompletionAsked, limit: int | None, *, top: int, skip_special_tokens: bool = True
) -> Sampling:
    """Build the sampling parameters. `temperature` and `top_p` default to 1, the seed is random."""
    # The engine takes an unsigned 64-bit seed; negative ones wrap around.
    seed = int.from_bytes(os.urandom(8)) if asked.seed is None else asked.seed % 2**64
    return Sampling(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_p=asked.top_p or 1.0,
        # "No limit" is 0 for the engine, -1 for clients.
        top_k=max(asked.top_k or 0, 0),
        max_tokens=limit,
        n=asked.n or 1,
        seed=seed,
        stop=tuple(asked.stop),
        top_logprobs=top,
        skip_special_tokens=skip_special_tokens,
    )


def _check_request(engine: Engine, request: Request) -> Request:
    engine.check(request)
    limit = request.sampling.max_tokens
    if limit is not None and len(request.prompt) + limit > engine.context:
        raise Refused(
            f"this model's context has {engine.context:,} tokens; {len(request.prompt):,} of the prompt and {limit:,} "
            f"to be written do not fit: shorten the prompt or ask for fewer",
            code="context_length_exceeded",
        )
    return request


def _refusal_of(error: GenerateError) -> Refused:
    # The engine has one exception for all refusals; clients detect a prompt that is too long by the code.
    code = "context_length_exceeded" if "the context of" in str(error) else None
    return Refused(str(error), param=KEY if str(error).startswith(f"{KEY}: ") else None, code=code)
