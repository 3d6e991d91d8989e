"""Limits on rendering and tokenising a chat: no request can make the template run or allocate without bound."""

from datetime import datetime
from typing import Any

import msgspec

from pairwright.generate import Engine, GenerateError
from pairwright.records.messages import Json
from pairwright.serve.openai_errors import Refused
from pairwright.serve.openai_schema import ChatAsked, CompletionAsked
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.template.render import Template, plain_chat

_MAX_ITEMS = {"messages": 4096, "tools": 512, "prompt": 1024}
_MAX_TOKENS = 2**20  # prompts x n x max_tokens
_SECONDS = 5.0  # timeout of one render
_MAX_TEMPLATES = 64  # cached templates, one per set of variables
_MAX_BYTES = 4 * 2**20  # maximum size of a prompt, which takes some seconds to tokenise
_BYTES_PER_TOKEN = 32  # bounds the text for a context; no tokenizer averages more


def check_chat(asked: ChatAsked, context: int) -> None:
    """Refuse a chat that is too large, before anything is rendered."""
    _check_count("messages", len(asked.messages))
    _check_count("tools", len(asked.tools or ()))
    size = len(msgspec.json.encode((asked.messages, asked.tools, asked.chat_template_kwargs)))
    _check_bytes("messages", size, context)
    _check_work(asked.n or 1, asked.limit, context)


def check_completion(asked: CompletionAsked, context: int) -> None:
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
