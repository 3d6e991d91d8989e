"""Convert messages to the form that a template takes.

Templates differ in a few ways, which are tested once by rendering a small conversation in each form:

    arguments   most templates take an object (and write it as JSON), some take text
    empty content beside tool calls   some take null, some fail on it or print "None"; use the form that prints nothing
    content     a few read only a list of parts; many read only text, so text parts are joined, as inference servers do
    call ids    Mistral's templates require nine letters or digits; other ids are shortened, in calls and results
    reasoning   some (Kimi) write an empty thinking block before text that already begins with one; the block in the
                text is moved to the reasoning field

Records are always converted. Chat dicts change only if the template would drop or refuse their content, ids or parts,
or print a null.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from pairwright.records.messages import Json, Message, to_template_chat
from pairwright.tokens.spans.dropped import decode_text
from pairwright.tokens.spans.grammar import Grammar, Tags, learn_grammar, try_render
from pairwright.tokens.template.render import Rendered, Template
from pairwright.tokens.template.tracked_str import CALL, CONTENT, Chat, plain_chat
from pairwright.tokens.tokenizer import ChatTokenizer

_ID_LENGTH = 9  # length of call ids that Mistral's templates accept
_LONG_ID = "call_zq0000000001"


class Forms(msgspec.Struct, frozen=True):
    """The message form that a template takes."""

    arguments: str = "object"  # or "text"
    empty: str | None = None  # content beside calls without text: None or ""
    drops_text: bool = False  # arguments are rendered as an object, but not as JSON text
    needs_text: bool = False  # arguments are accepted as JSON text, but refused as an object
    wants_parts: bool = False  # content is rendered as a list of parts, but not as text
    short_ids: bool = False  # call ids other than nine letters or digits are refused
    thought_tags: Tags | None = None  # if the template writes an empty thinking block before text that begins with one
    reasoning_key: str = ""  # key under which reasoning is rendered, if it is not one of transformers' keys


def move_thought(message: Json, tags: Tags) -> Json:
    """Move a thought at the start of a message's text to its reasoning; other messages are returned unchanged.

    >>> move_thought({"role": "assistant", "content": "<think>why</think>\\n\\nso"}, Tags("<think>", "</think>"))
    {'role': 'assistant', 'content': 'so', 'reasoning_content': 'why'}
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = parts[0].get("text") if parts and isinstance(parts[0], dict) else None
    if not isinstance(text, str) or (split := tags.split(text)) is None:
        return message
    inside, rest = split
    reasoning = str(message.get("reasoning_content") or "") + inside
    moved: Json = {**message, "content": rest if content is text else [{**parts[0], "text": rest}, *parts[1:]]}
    return {**moved, "reasoning_content": reasoning} if reasoning.strip() else moved


def adapt_records(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: list[Json] | None) -> tuple[Chat, int]:
    """Convert records to chat messages; also return the number of rewritten call ids."""
    renderer = tokenizer.renderer(tools)
    forms = find_forms(tokenizer, renderer)
    chat = plain_chat(to_template_chat(messages, arguments=forms.arguments, empty=forms.empty))
    if forms.thought_tags is not None:
        chat = [
            move_thought(message, forms.thought_tags) if message.get("role") == "assistant" else message
            for message in chat
        ]
    return _fit_chat(_join_parts(tokenizer, renderer, chat), forms)


def adapt_dicts(tokenizer: ChatTokenizer, messages: Sequence[Any], tools: list[Json] | None) -> tuple[Chat, int]:
    """Change chat dicts only where the template would drop content, print a null or raise an error; also return the
    number of rewritten call ids."""
    renderer = tokenizer.renderer(tools)
    forms = find_forms(tokenizer, renderer)
    chat = plain_chat(messages)
    for message in chat:
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            continue
        if message.get("content", "") is None:
            message["content"] = forms.empty
        for call in calls if forms.drops_text or forms.needs_text else ():
            function = call.get("function", call) if isinstance(call, dict) else {}
            arguments = function.get("arguments") if isinstance(function, dict) else None
            if forms.drops_text and isinstance(arguments, str):
                decoded = decode_text(arguments)
                function["arguments"] = decoded if isinstance(decoded, dict) else arguments
            elif forms.needs_text and isinstance(arguments, dict):
                function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return _fit_chat(_join_parts(tokenizer, renderer, chat), forms)


def _fit_chat(chat: Chat, forms: Forms) -> tuple[Chat, int]:
    if forms.reasoning_key:
        for message in chat:
            if "reasoning_content" in message:
                message.setdefault(forms.reasoning_key, message["reasoning_content"])
    if forms.wants_parts:
        for message in chat:
            if isinstance(message.get("content"), str):
                message["content"] = [{"type": "text", "text": message["content"]}]
    return (chat, _shorten_ids(chat)) if forms.short_ids else (chat, 0)


def _join_parts(tokenizer: ChatTokenizer, renderer: Template, chat: Chat) -> Chat:
    """Join text parts into text if the template does not read parts in messages of this role. Several parts are joined
    by a line break, as vLLM does, except in assistant messages: the model generated no line break there."""
    for number, message in enumerate(chat):
        parts, role = message.get("content"), message.get("role")
        if not isinstance(parts, list) or not parts or not isinstance(role, str):
            continue
        is_text = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)
        is_text = is_text and all(part.keys() <= {"type", "text"} for part in parts)
        if not is_text or (role == "assistant" and len(parts) > 1):
            continue
        reads_text_only = partial(_reads_text_only, tokenizer, renderer, role)
        if tokenizer.learn(("text_only", renderer.hash, role), reads_text_only):
            chat[number] = {**message, "content": "\n".join(part["text"] for part in parts)}
    return chat


def _reads_text_only(tokenizer: ChatTokenizer, renderer: Template, role: str) -> bool:
    """Return whether the template renders content of this role as text, but not as a list of parts."""
    forms = find_forms(tokenizer, renderer)
    message: Json = {"role": role, "content": "zqu"}
    before: Chat = [] if role in ("user", "system", "developer") else [_USER]
    after: Chat = [_USER] if role in ("system", "developer") else []
    if role == "tool":
        before.append(_call_turn(forms.arguments, forms.empty, "zq0000000"))
        message |= {"tool_call_id": "zq0000000", "name": "zqf"}
    place = len(before)
    as_text = try_render(renderer, [*before, message, *after])
    as_parts = try_render(renderer, [*before, _parts(message), *after])
    return not _is_missing(as_text, place) and _is_missing(as_parts, place)


def _shorten_ids(chat: Chat) -> int:
    """Map ids of calls and results to nine characters, consistently; return how many were rewritten.

    Like inference servers, keep the last nine characters if they are alphanumeric and unique; else use a hash.
    """
    holders: list[tuple[Json, str]] = []
    for message in chat:
        calls = message.get("tool_calls")
        holders += [(call, "id") for call in (calls if isinstance(calls, list) else []) if isinstance(call, dict)]
        holders.append((message, "tool_call_id"))
    ids = [holder[key] for holder, key in holders if isinstance(holder.get(key), str)]
    short: dict[str, str] = {}
    for name in dict.fromkeys(ids):
        if len(name) == _ID_LENGTH and name.isalnum() and name.isascii():
            short[name] = name
    for name in dict.fromkeys(ids):
        if name not in short:
            end = name[-_ID_LENGTH:]
            is_fit = len(end) == _ID_LENGTH and end.isalnum() and end.isascii() and end not in short.values()
            short[name] = end if is_fit else hashlib.sha256(name.encode()).hexdigest()[:_ID_LENGTH]
    for holder, key in holders:
        if isinstance(holder.get(key), str):
            holder[key] = short[holder[key]]
    return sum(name != new for name, new in short.items())


def find_forms(tokenizer: ChatTokenizer, renderer: Template) -> Forms:
    """Return the forms that this template takes; tested once and cached."""
    return tokenizer.learn(("forms", renderer.hash), lambda: _try_forms(renderer, learn_grammar(tokenizer, renderer)))


def _try_forms(renderer: Template, grammar: Grammar) -> Forms:
    text = try_render(renderer, [_USER])
    wants_parts = _is_missing(text) and not _is_missing(try_render(renderer, [_parts(_USER)]))
    short_ids = False
    # Try each form of a small call: the first that shows name and arguments as JSON, and prints no null, wins.
    forms = list(itertools.product(("object", "text"), (None, "")))
    for size in _SIZES:
        renders = {form: _render_call(renderer, *form, size, wants_parts=wants_parts) for form in forms}
        if any(renders.values()):
            break
    if any(renders.values()) and size > 2:
        short_ids = _render_call(renderer, *forms[1], size, _LONG_ID, wants_parts=wants_parts) is None
        short_ids &= renders[forms[1]] is not None
    prints_null = any(_prints_null(renders[kind, None], renders[kind, ""]) for kind in ("object", "text"))
    silent = [form for form in forms if not (prints_null and form[1] is None)]
    whole = [form for form in silent if (render := renders[form]) is not None and _is_whole(render)]
    accepted = [form for form in silent if renders[form] is not None]
    arguments, empty = (whole or accepted or forms)[0]
    as_text = renders["text", empty]
    drops_text = arguments == "object" and bool(whole) and (as_text is None or "zqx" not in as_text.text)
    needs_text = arguments == "text" and bool(whole) and renders["object", empty] is None
    tags = next((tags for tags in grammar.tags if _doubles(renderer, tags)), None)
    return Forms(arguments, empty, drops_text, needs_text, wants_parts, short_ids, tags, grammar.reasoning_key)


_USER: Json = {"role": "user", "content": "zqu"}
# Lengths of the small conversation with a call, longest first. Some templates check ids or earlier turns only if a
# result, an answer and a question follow; templates that refuse this are tried with fewer messages.
_SIZES = (5, 3, 2)


def _doubles(renderer: Template, tags: Tags) -> bool:
    """Return whether the template writes an empty thinking block before the thinking block of a text."""
    opening, closing = tags
    turn: Json = {"role": "assistant", "content": f"{opening}zqr{closing}zqc"}
    rendered = try_render(renderer, [_USER, turn])
    if rendered is None:
        return False
    before, _, _ = rendered.text.partition(f"{opening}zqr{closing}")
    empty = re.escape(opening) + r"\s*" + re.escape(closing) + r"\s*$"
    return before != rendered.text and re.search(empty, before) is not None


def _parts(message: Json) -> Json:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _render_call(
    renderer: Template,
    arguments: str,
    content: str | None,
    size: int,
    name: str = "zq0000000",
    *,
    wants_parts: bool,
) -> Rendered | None:
    turn = _call_turn(arguments, content, name)
    result: Json = {"role": "tool", "content": "zqr", "tool_call_id": name, "name": "zqf"}
    chat: Chat = [_USER, turn, result, {"role": "assistant", "content": "zqc"}, _USER][:size]
    if wants_parts:
        chat = [_parts(message) if isinstance(message["content"], str) else message for message in chat]
    return try_render(renderer, chat)


def _call_turn(arguments: str, content: str | None, name: str) -> Json:
    # No template contains words that begin with zq, so such a word in the text comes from a message.
    value: object = {"zqa": "zqx"} if arguments == "object" else '{"zqa": "zqx"}'
    call = {"id": name, "type": "function", "function": {"name": "zqf", "arguments": value}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def _is_missing(rendered: Rendered | None, number: int = 0) -> bool:
    """Return whether the content of a message (by default the first) is not rendered."""
    return rendered is None or not any(
        piece.message == number and piece.field == CONTENT and "zqu" in rendered.text[piece.start : piece.end]
        for piece in rendered.pieces
    )


def _prints_null(null: Rendered | None, empty: Rendered | None) -> bool:
    """Return whether null content is printed as a word, unlike empty content."""
    if null is None or empty is None:
        return False
    return any(null.text.count(word) > empty.text.count(word) for word in ("None", "none", "null"))


def _is_whole(rendered: Rendered) -> bool:
    """Return whether name and arguments are rendered, with the arguments not encoded as JSON twice."""
    texts = [rendered.text[piece.start : piece.end] for piece in rendered.pieces if piece.field == CALL]
    has_both = any("zqf" in text for text in texts) and any("zqx" in text for text in texts)
    # An escaped quote before the key: the template encoded JSON text as JSON again.
    return has_both and '\\"zqa' not in rendered.text
