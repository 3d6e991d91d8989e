"""Find what a template does not render: text and calls of messages, tool schemas, images.

If the template does not render something that the model generated in a trained turn, this is a Refusal (unless
allowed): the turn would be trained without it, down to a bare stop token. Content missing from the prompt is reported,
except reasoning of earlier turns, which templates omit from the history by design, also at inference.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import CALL, CONTENT, REASONING, Chat

Fields = tuple[tuple[int, str], ...]  # (message, name of the field)
Missing = Mapping[int, Sequence[str]]  # message -> fields that are not rendered

WHOLE = -1  # message index of fields of the whole conversation
_MAX_NAMED = 5  # messages that a refusal names
_MEDIA = ("image", "audio", "video", "file", "document", "blob")  # in the type of a content part
_MEDIA_KEYS = frozenset({"image", "image_url", "audio", "input_audio", "video", "video_url"})
# Tags that a template may write as its own text: <think>, </tool_call>, [TOOL_CALLS].
_TAG = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{1,40}\]")
_ARGUMENTS = ("arguments", "parameters", "input")


class LeftOut(NamedTuple):
    dropped: Fields  # of trained turns
    prompt_dropped: Fields  # of other messages, and (-1, "tools") if a tool schema is not rendered
    num_images: int  # content parts other than text


def find_left_out(
    rendered: Rendered,
    chat: Chat,
    tools: list[Json] | None,
    trained: Mapping[int, int],
    known: Missing | None = None,
) -> LeftOut:
    """Compare a rendered conversation with its messages. `trained` maps trained turns to their ends: the model did not
    generate text after it (a call's name repeated in the header of the result). `known` has the missing fields of other
    messages, if already known."""
    own = rendered.pieces_by_message()
    dropped: list[tuple[int, str]] = []
    prompt_dropped = [(WHOLE, "tools")] if tools and _has_lost_tools(rendered, tools) else []
    num_images = 0
    for number, message in enumerate(chat):
        content = message.get("content")
        if isinstance(content, list):
            num_images += sum(1 for _ in _media_types(content))
            if content and str(content) in rendered.text:
                types = ", ".join(sorted({str(part.get("type")) for part in content if isinstance(part, dict)}))
                detail = f"the template writes the parts of its content ({types}) as a Python list, not as text"
                raise Refusal("template_error", detail, message=number)
        if number in trained:
            block = [item for item in _block(own.get(number, [])) if rendered.pieces[item].start < trained[number]]
            names = find_dropped_fields(rendered, block, message, trained[number])
            dropped += [(number, name) for name in names]
        elif known is not None and number in known:
            prompt_dropped += [(number, name) for name in known[number]]
        else:
            prompt_dropped += [(number, name) for name in _find_dropped_context(rendered, own.get(number, []), message)]
    return LeftOut(tuple(dropped), tuple(prompt_dropped), num_images)


def refuse_dropped(dropped: Fields, *, allow: bool, where: str = "") -> None:
    """Raise a Refusal if a field of a trained turn is not rendered, unless allowed."""
    if not dropped or allow:
        return
    fields: dict[int, list[str]] = {}
    for message, name in dropped:
        fields.setdefault(message, []).append(name)
    (first, names), *others = fields.items()
    detail = describe_dropped(tuple(names))
    if others:
        more = ", ".join(f"{message} ({' and '.join(names)})" for message, names in others[:_MAX_NAMED])
        detail += f"; the same in message {more}" + (", ..." if len(others) > _MAX_NAMED else "")
    raise Refusal("dropped", f"{where}{detail}", message=first)


def describe_dropped(names: tuple[str, ...], *, has_calls: bool = False) -> str:
    """Describe what is missing from a turn; for calls, also what to do about it."""
    detail = f"the template does not render {' and '.join(names)} of this turn, which the model generated"
    if has_calls or "tool_calls" in names:
        detail += "; calls can be written as text: tokens.tools_as_text=hermes, --tools-as-text hermes"
    return detail


def refuse_media(chat: Sequence[Json], *, allow: bool) -> None:
    """Raise a Refusal for the first content part that is an image, audio, video or file, unless these are allowed."""
    if allow:
        return
    for number, message in enumerate(chat):
        content = message.get("content")
        if isinstance(content, list) and (kind := next(_media_types(content), None)) is not None:
            raise Refusal("multimodal", f"a content part of type {kind!r}: only tokens are trained", message=number)


def refuse_media_inputs(experience: Experience, *, allow: bool) -> None:
    """Like `refuse_media`, for an experience: its messages, and the inputs recorded beside its tokens."""
    if allow:
        return
    if experience.multi_modal_inputs:
        names = ", ".join(sorted(experience.multi_modal_inputs))
        raise Refusal("multi_modal_inputs", f"it has {names}: only tokens are trained")
    refuse_media([{"content": message.content} for message in experience.messages], allow=False)


def count_media(experience: Experience) -> int:
    """Count content parts other than text; at least 1 if inputs were recorded beside the tokens."""
    parts = [message.content for message in experience.messages if isinstance(message.content, list)]
    return max(sum(1 for part in parts for _ in _media_types(part)), int(bool(experience.multi_modal_inputs)))


def _media_types(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _media_types(item)
    elif isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and any(word in kind for word in _MEDIA):
            yield kind
        elif kind is None and (keys := _MEDIA_KEYS.intersection(value)):
            yield min(keys)
        else:
            for item in value.values():
                if isinstance(item, list | dict):
                    yield from _media_types(item)


def find_dropped_fields(rendered: Rendered, own: list[int], message: Json, limit: int | None = None) -> list[str]:
    """Return the fields of a turn whose text is not rendered. `limit` is the start of the next message's text; up to
    there a template may write arguments as its own text."""
    dropped = []
    for field, key, name in ((CONTENT, "content", "content"), (REASONING, "reasoning_content", "reasoning")):
        text = _text(message.get(key))
        if not text:
            continue
        shown = _shown_text(rendered, own, field)
        if _is_text_missing(rendered, own, text, shown):
            dropped.append(name)
        elif isinstance(message.get(key), str) and _is_space_missing(text, shown):
            dropped.append(f"white space inside {name}")
    if _are_calls_missing(rendered, own, _calls(message), limit):
        dropped.append("tool_calls")
    return dropped


def _find_dropped_context(rendered: Rendered, own: list[int], message: Json) -> list[str]:
    """Return the fields of an untrained message that are not rendered, except reasoning in the content of a turn."""
    text = _text(message.get("content"))
    if message.get("role") == "assistant":
        text = text.rpartition("</think>")[2]
    dropped = ["content"] if _is_text_missing(rendered, own, text, _shown_text(rendered, own, CONTENT)) else []
    if _are_calls_missing(rendered, own, _calls(message)):
        dropped.append("tool_calls")
    return dropped


def _block(own: list[int]) -> list[int]:
    """Return the first run of consecutive pieces: later pieces repeat the turn's text (a call's name)."""
    size = next((size for size in range(1, len(own)) if own[size] != own[size - 1] + 1), len(own))
    return own[:size]


def _is_text_missing(rendered: Rendered, own: list[int], text: str, shown: str) -> bool:
    """Return whether text is not `shown`, except white space at its ends and tags that the template writes."""
    if len(shown) >= len(text) or text.strip() in shown:  # the usual case
        return False
    squeezed = squeeze(text)
    size = len(squeeze(shown))
    if size >= len(squeezed):
        return False
    if not own or size < len(_TAG.sub("", squeezed)):
        return True
    # The template wrote tags as its own text: search between the neighbouring messages.
    pieces = rendered.pieces
    before = pieces[own[0] - 1].end if own[0] else 0
    after = pieces[own[-1] + 1].start if own[-1] + 1 < len(pieces) else len(rendered.text)
    return squeezed not in squeeze(rendered.text[before:after])


def _is_space_missing(text: str, shown: str) -> bool:
    """Return whether white space inside a text is not shown; beside tags it may be stripped."""
    if len(shown) >= len(text) or text.strip() in shown:  # the usual case
        return False
    position = 0
    for part in map(str.strip, _TAG.split(text)):
        position = shown.find(part, position)
        if position < 0:
            return True
        position += len(part)
    return False


def _shown_text(rendered: Rendered, own: list[int], field: int) -> str:
    pieces = [rendered.pieces[number] for number in own]
    return "".join([rendered.text[piece.start : piece.end] for piece in pieces if piece.field == field])


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return ""
    parts = (part.get("text", part.get("refusal")) for part in value if isinstance(part, dict))
    return "".join(part for part in parts if isinstance(part, str))


def squeeze(text: str) -> str:
    return "".join(text.split())


def _calls(message: Json) -> list[Json]:
    calls = message.get("tool_calls")
    items = (*(calls if isinstance(calls, list) else ()), message.get("function_call"))
    functions = [call.get("function", call) for call in items if isinstance(call, dict)]
    return [function for function in functions if isinstance(function, dict)]


def _are_calls_missing(rendered: Rendered, own: list[int], calls: list[Json], limit: int | None = None) -> bool:
    """Return whether a name or an argument of a call is not rendered."""
    if not calls:
        return False
    pieces: list[Piece] = [rendered.pieces[number] for number in own]
    text = "\n".join(rendered.text[piece.start : piece.end] for piece in pieces if piece.field == CALL)
    names = [name for call in calls if isinstance(name := call.get("name"), str) and name]
    # Two calls of the same tool need its name twice.
    if any(text.count(name) < names.count(name) for name in names):
        return True
    arguments = [value for call in calls for key in _ARGUMENTS if (value := call.get(key))]
    if any(_is_value_missing(text, value) for value in arguments):
        # Some templates write values like Python, or escape them, which makes them template text.
        whole = rendered.text[pieces[0].start : limit] if limit is not None and pieces else ""
        if not whole or any(_is_value_missing(whole, value) for value in arguments):
            return True
    # n equal calls need their arguments n times.
    counts = Counter(value if isinstance(value, str) else json.dumps(value) for value in arguments)
    return any(
        0 < text.count(leaf) < num_equal
        for value, num_equal in counts.items()
        if num_equal > 1
        for leaf in _leaves(decode_text(value))
    )


def decode_text(text: str) -> Any:
    """Decode JSON; text that is not JSON is returned unchanged."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return text


def _is_value_missing(text: str, value: Any) -> bool:
    """Return whether a call's text lacks part of its arguments, as JSON or as separate keys and values."""
    if isinstance(value, str):
        return value.strip() not in ("{}", "null") and not _is_written(text, value)
    if not value or json.dumps(value, ensure_ascii=False) in text:
        return False
    return not all(_is_written(text, leaf) for leaf in _leaves(value))


def _is_written(text: str, leaf: str) -> bool:
    if leaf in text:
        return True
    squeezed = squeeze(text)
    # Plain, escaped as JSON with or without non-ASCII characters, or as Python's repr; white space is ignored.
    forms = (leaf, json.dumps(leaf, ensure_ascii=False)[1:-1], json.dumps(leaf)[1:-1], repr(leaf)[1:-1])
    return any(squeeze(form) in squeezed for form in forms)


def _leaves(value: Any) -> Iterator[str]:
    """Yield keys, texts and numbers of a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield str(key)
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield repr(value)


def _has_lost_tools(rendered: Rendered, tools: list[Json]) -> bool:
    """Return whether the name of a tool is missing from the template text."""
    for tool in tools:
        function = tool.get("function", tool)
        name = function.get("name") if isinstance(function, dict) else None
        if isinstance(name, str) and name and not _is_template_text(rendered, name):
            return True
    return False


def _is_template_text(rendered: Rendered, word: str) -> bool:
    """Return whether a word occurs outside the text of messages."""
    # Occurrences and pieces are both sorted, so one pass over each is enough.
    position, pieces, number = rendered.text.find(word), rendered.pieces, 0
    while position >= 0:
        while number < len(pieces) and pieces[number].end <= position:
            number += 1
        if number == len(pieces) or pieces[number].start >= position + len(word):
            return True
        position = rendered.text.find(word, position + 1)
    return False
