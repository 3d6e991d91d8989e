"""Convert client requests to engine requests: no request can make the template run or allocate without bound."""

import os
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from pairwright.errors import RecordError
from pairwright.generate import Engine, GenerateError, Request, Sampling
from pairwright.generate.template_variables import KEY
from pairwright.records.messages import Json, Message
from pairwright.serve.openai_errors import Refused
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked
from pairwright.sources.fields import BadRecord
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.template.render import Template, plain_chat

_MAX_ITEMS = {"messages": 4096, "tools": 512, "prompt": 1024}
_MAX_TOKENS = 2**20  # prompts x n x max_tokens
_SECONDS = 5.0  # timeout of one render
_MAX_TEMPLATES = 64  # cached templates, one per set of variables
_MAX_BYTES = 4 * 2**20  # maximum size of a prompt, which takes some seconds to tokenise
_BYTES_PER_TOKEN = 32  # bounds the text for a context; no tokenizer averages more
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PARTS = ("text", "input_text", "output_text")


def chat_request(engine: Engine, asked: ChatAsked) -> Request:
    """Render a chat with the template of the model. Tools are left out if `tool_choice` is "none"."""
    _check_chat(asked, engine.context)
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
    _check_completion(asked, engine.context)
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


def _check_chat(asked: ChatAsked, context: int) -> None:
    """Refuse a chat that is too large, before anything is rendered."""
    _check_count("messages", len(asked.messages))
    _check_count("tools", len(asked.tools or ()))
    size = len(msgspec.json.encode((asked.messages, asked.tools, asked.chat_template_kwargs)))
    _check_bytes("messages", size, context)
    _check_work(asked.n or 1, asked.limit, context)


def _check_completion(asked: CompletionAsked, context: int) -> None:
    """Refuse prompts that are too many or too long, before they are tokenised."""
    prompts = asked.prompts
    _check_count("prompt", len(prompts))
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str):
            _check_bytes(f"prompt[{number}]", len(prompt), context)
    _check_work(len(prompts) * (asked.n or 1), asked.max_tokens, context)


def _check_count(param: str, count: int) -> None:
    limit = _MAX_ITEMS[param]
    if count > limit:
        raise Refused(f"{param}: {count:,} in one request, at most {limit:,}", param=param, code="too_many_items")


def _check_work(num_choices: int, max_tokens: int | None, context: int) -> None:
    num_tokens = min(max_tokens or context, context)
    # one choice up to the full context is always allowed
    if num_choices > 1 and num_choices * num_tokens > _MAX_TOKENS:
        raise Refused(
            f"{num_choices:,} choices of up to {num_tokens:,} tokens are more than {_MAX_TOKENS:,} tokens in "
            f"one request: ask for fewer choices or a smaller max_tokens",
            param="max_tokens",
            code="request_too_large",
        )


def _check_bytes(param: str, size: int, context: int) -> None:
    limit = min(max(65_536, _BYTES_PER_TOKEN * context), _MAX_BYTES)
    if size > limit:
        raise Refused(
            f"{param}: {size:,} bytes are too many for a context of {context:,} tokens: at most {limit:,} are read",
            param=param,
            code="context_length_exceeded",
        )


def limit_templates(engine: Engine) -> None:
    """Make an engine render chats with the limits of the tokens stage. The text is the same."""
    templates: dict[bytes, Template] = {}

    def render(chat: list[Json], tools: list[Json] | None, variables: Json | None) -> str:
        source: Any = engine.tokenizer.chat_template
        if isinstance(source, dict):
            source = source["tool_use" if tools and "tool_use" in source else "default"]
        key = msgspec.json.encode((source, variables), order="deterministic")
        try:
            if key not in templates:
                if len(templates) >= _MAX_TEMPLATES:
                    templates.clear()
                names = {**engine.tokenizer.special_tokens_map, **(variables or {})}
                templates[key] = Template(source, variables=names, clock=datetime.now, seconds=_SECONDS)
            return templates[key].text(plain_chat(chat), tools, prompt=True)
        except TemplateError as error:
            raise GenerateError(f"the chat template refuses this conversation: {error}") from None

    engine.use_renderer(render)
