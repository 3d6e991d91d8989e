"""Messages in the form that a template takes.

Templates disagree on a few things, which are found out once by rendering a small conversation each way. Arguments: most
want an object (and write it as JSON), some want text. The content beside tool calls: some want it null, some fail on
null or print it as "None"; the form whose render says nothing is taken. Content: a few read a list of parts, no text;
many read text and no list, there parts of text become one text, as inference servers have it.
Ids of calls: Mistral's demand nine letters or digits, so longer ones become short, call and result alike. Reasoning:
some write an empty thinking block before text that has one of its own (Kimi); there it becomes a field.

Records are converted. Chat dicts stay as they are, except where a template would drop what they hold, print or refuse a
null, or refuse their ids or parts.
"""

import hashlib
import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from pairwright.records.messages import Json, Message, to_template_chat
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.spans.grammar import Tags, learn_grammar
from pairwright.tokens.template.render import Rendered
from pairwright.tokens.template.tracked_str import CALL, CONTENT, Chat, plain_chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

_ID_LENGTH = 9  # of the ids that Mistral's templates take
_LONG_ID = "call_zq0000000001"


class Forms(msgspec.Struct, frozen=True):
    """What a template takes.

    arguments    "object" or "text"
    empty        the content beside calls where there is no text: None or ""
    drops_text   arguments given as JSON text would not be rendered, as an object they are
    needs_text   arguments given as an object are refused, as JSON text they are not
    wants_parts  content given as text is not rendered, as a list of parts it is
    short_ids    ids of calls other than nine letters or digits are refused
    thought_tags  tags of a thinking block that is written twice, empty and then as it is, where text begins with one
    reasoning_key  the only key under which reasoning is rendered, where it is none that transformers gives
    """

    arguments: str = "object"
    empty: str | None = None
    drops_text: bool = False
    needs_text: bool = False
    wants_parts: bool = False
    short_ids: bool = False
    thought_tags: Tags | None = None
    reasoning_key: str = ""


def move_thought(message: Json, tags: Tags) -> Json:
    """A message whose text begins with a thought, with that as its reasoning; else the message as it is.

    >>> move_thought({"role": "assistant", "content": "<think>why</think>\\n\\nso"}, Tags("<think>", "</think>"))
    {'role': 'assistant', 'content': 'so', 'reasoning_content': 'why'}
    """
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"text": content}]
    text = parts[0].get("text") if parts and isinstance(parts[0], dict) else None
    if not isinstance(text, str) or not text.lstrip().startswith(tags.opening) or tags.closing not in text:
        return message
    inside, _, rest = text.lstrip().removeprefix(tags.opening).partition(tags.closing)
    rest = rest.lstrip()
    reasoning = str(message.get("reasoning_content") or "") + inside
    moved: Json = {**message, "content": rest if content is text else [{**parts[0], "text": rest}, *parts[1:]]}
    return {**moved, "reasoning_content": reasoning} if reasoning.strip() else moved


def adapt_records(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: list[Json] | None) -> tuple[Chat, int]:
    """Chat messages of records, and how many ids of calls were rewritten."""
    forms = find_forms(tokenizer, tokenizer.renderer(tools))
    chat = plain_chat(to_template_chat(messages, arguments=forms.arguments, empty=forms.empty))
    if forms.thought_tags is not None:
        chat = [
            move_thought(message, forms.thought_tags) if message.get("role") == "assistant" else message
            for message in chat
        ]
    return _fit_chat(_join_parts(tokenizer, tokenizer.renderer(tools), chat), forms)


def adapt_dicts(tokenizer: ChatTokenizer, messages: Sequence[Any], tools: list[Json] | None) -> tuple[Chat, int]:
    """Chat dicts as they are, but for what the template would drop, print or refuse; and the number of new ids."""
    forms = find_forms(tokenizer, tokenizer.renderer(tools))
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
                function["arguments"] = _decode_object(arguments)
            elif forms.needs_text and isinstance(arguments, dict):
                function["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return _fit_chat(_join_parts(tokenizer, tokenizer.renderer(tools), chat), forms)


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


def _join_parts(tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat) -> Chat:
    """Content in parts as text, where all parts are text and the template reads no parts in messages of that role.
    Several parts are joined by a line break, as vLLM does; not those of the model, which wrote no line break there."""
    for number, message in enumerate(chat):
        parts, role = message.get("content"), message.get("role")
        if not isinstance(parts, list) or not parts or not isinstance(role, str):
            continue
        is_text = all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in parts)
        is_text = is_text and all(part.keys() <= {"type", "text"} for part in parts)
        if not is_text or (role == "assistant" and len(parts) > 1):
            continue
        key = ("text_only", renderer.hash, role)
        if key not in tokenizer.learnt:
            tokenizer.learnt[key] = _reads_text_only(renderer, role, find_forms(tokenizer, renderer))
        if tokenizer.learnt[key]:
            chat[number] = {**message, "content": "\n".join(part["text"] for part in parts)}
    return chat


def _reads_text_only(renderer: Renderer, role: str, forms: Forms) -> bool:
    """Whether a message of that role is rendered with text, and not with a part of that text."""
    message: Json = {"role": role, "content": "zqu"}
    before: Chat = [] if role in ("user", "system", "developer") else [_USER]
    after: Chat = [_USER] if role in ("system", "developer") else []
    if role == "tool":
        arguments: object = {"zqa": "zqx"} if forms.arguments == "object" else '{"zqa": "zqx"}'
        call = {"id": "zq0000000", "type": "function", "function": {"name": "zqf", "arguments": arguments}}
        before.append({"role": "assistant", "content": forms.empty, "tool_calls": [call]})
        message |= {"tool_call_id": "zq0000000", "name": "zqf"}
    place = len(before)
    as_text = _render(renderer, [*before, message, *after])
    return not _is_missing(as_text, place) and _is_missing(_render(renderer, [*before, _parts(message), *after]), place)


def _decode_object(text: str) -> Any:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text
    return value if isinstance(value, dict) else text


def _shorten_ids(chat: Chat) -> int:
    """Give calls and results ids of nine characters, the same one for the same id; returns how many were rewritten.

    As inference servers do, the last nine characters stay where they are letters and digits and tell the ids apart.
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


# What a template takes, tried on a small conversation.


def find_forms(tokenizer: ChatTokenizer, renderer: Renderer) -> Forms:
    """What this template takes, tried once."""
    key = ("forms", renderer.hash)
    if key not in tokenizer.learnt:
        grammar = learn_grammar(tokenizer, renderer)
        tags = next((tags for tags in grammar.tags if _doubles(renderer, tags)), None)
        forms = _try_forms(renderer)
        tokenizer.learnt[key] = msgspec.structs.replace(forms, thought_tags=tags, reasoning_key=grammar.reasoning_key)
    found: Forms = tokenizer.learnt[key]
    return found


def _try_forms(renderer: Renderer) -> Forms:
    text = _render(renderer, [_USER])
    wants_parts = _is_missing(text) and not _is_missing(_render(renderer, [_parts(_USER)]))
    short_ids = False
    # Each form of a small call; the first that shows name and arguments as JSON, and no null, wins.
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
    return Forms(arguments, empty, drops_text, needs_text, wants_parts, short_ids)


_USER: Json = {"role": "user", "content": "zqu"}
# Messages of the small conversation with a call: with a result, an answer and a question after it, since some templates
# look at ids or at earlier turns only there; one that takes no such conversation is tried with less.
_SIZES = (5, 3, 2)


def _doubles(renderer: Renderer, tags: Tags) -> bool:
    """Does the template write an empty thinking block before one that is in the text?"""
    opening, closing = tags
    turn: Json = {"role": "assistant", "content": f"{opening}zqr{closing}zqc"}
    rendered = _render(renderer, [_USER, turn])
    if rendered is None:
        return False
    before, _, _ = rendered.text.partition(f"{opening}zqr{closing}")
    empty = re.escape(opening) + r"\s*" + re.escape(closing) + r"\s*$"
    return before != rendered.text and re.search(empty, before) is not None


def _parts(message: Json) -> Json:
    return {**message, "content": [{"type": "text", "text": message["content"]}]}


def _render(renderer: Renderer, chat: Chat) -> Rendered | None:
    try:
        return renderer.render(chat, None)
    except TemplateError:
        return None


def _render_call(
    renderer: Renderer,
    arguments: str,
    content: str | None,
    size: int,
    name: str = "zq0000000",
    *,
    wants_parts: bool,
) -> Rendered | None:
    # Words that begin with zq are in no template, so finding one in the text means that it was rendered.
    value: object = {"zqa": "zqx"} if arguments == "object" else '{"zqa": "zqx"}'
    call = {"id": name, "type": "function", "function": {"name": "zqf", "arguments": value}}
    turn: Json = {"role": "assistant", "content": content, "tool_calls": [call]}
    result: Json = {"role": "tool", "content": "zqr", "tool_call_id": name, "name": "zqf"}
    chat: Chat = [_USER, turn, result, {"role": "assistant", "content": "zqc"}, _USER][:size]
    if wants_parts:
        chat = [_parts(message) if isinstance(message["content"], str) else message for message in chat]
    return _render(renderer, chat)


def _is_missing(rendered: Rendered | None, number: int = 0) -> bool:
    """Is the content of a message, the first by default, not in the text?"""
    return rendered is None or not any(
        piece.message == number and piece.field == CONTENT and "zqu" in rendered.text[piece.start : piece.end]
        for piece in rendered.pieces
    )


def _prints_null(null: Rendered | None, empty: Rendered | None) -> bool:
    """Does null content become a word that empty content does not?"""
    if null is None or empty is None:
        return False
    return any(null.text.count(word) > empty.text.count(word) for word in ("None", "none", "null"))


def _is_whole(rendered: Rendered) -> bool:
    """Are name and arguments in the text, the arguments as the JSON that they are?"""
    texts = [rendered.text[piece.start : piece.end] for piece in rendered.pieces if piece.field == CALL]
    has_both = any("zqf" in text for text in texts) and any("zqx" in text for text in texts)
    # An escaped quote before the key: the template wrote a string that was JSON already as JSON once more.
    return has_both and '\\"zqa' not in rendered.text
