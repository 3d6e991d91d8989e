"""LLaMA-Factory rows with images, videos or audio:

    {messages | conversations: [turn, ...], images | videos | audios: [path, ...]}, perhaps with {chosen, rejected}

Every `<image>`, `<video>` or `<audio>` mark in the text refers to the next file of its list and becomes a message part
with the file's name, so prompts with different files differ. Rows whose numbers of marks and files differ are refused,
and so are rows with tool calls.
"""

import re
from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.openai_chat import CHAT
from pairwright.sources.datasets.preference_rows import SCORES, preference_of_row
from pairwright.sources.fields import BadRecord, items, mapping, objects_in, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.chat_messages import message_from_chat, messages_from_chat

NAME = "llamafactory-media"
_KINDS = {"images": "image", "videos": "video", "audios": "audio"}
_MARK = re.compile(r"<(image|video|audio)>")
_ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
_READ = frozenset({"messages", "conversations", "chosen", "rejected", "tools", *_KINDS, *SCORES})


def matches(value: Any) -> bool:
    """Whether a row has files and a mark for one of them in a turn."""
    if not isinstance(value, dict) or not any(isinstance(value.get(key), list) and value[key] for key in _KINDS):
        return False
    turns = value.get("messages", value.get("conversations"))
    texts = [turn.get(key) for turn in objects_in(turns) for key in ("content", "value")]
    return any(isinstance(content, str) and _MARK.search(content) for content in texts)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    files = {kind: list(items(row.get(key) or [], key)) for key, kind in _KINDS.items()}
    key = "messages" if "messages" in row else "conversations"
    turns = [_turn(turn, f"{key}[{number}]", files) for number, turn in enumerate(items(row.get(key), key))]
    sides = [_turn(row[side], side, files) for side in ("chosen", "rejected") if isinstance(row.get(side), dict)]
    if unused := [kind for kind, names in files.items() if names]:
        raise BadRecord(f"{unused[0]}: more files than marks in the text")
    if len(sides) == 2:
        prompt, chosen, rejected = messages_from_chat(turns, key), *(message_from_chat(side, key) for side in sides)
        yield preference_of_row(NAME, origin, row, (prompt, [chosen], [rejected]), small_fields(row, _READ))
        return
    rest = {name: item for name, item in row.items() if name not in _KINDS and name != key}
    yield from CHAT.read({**rest, "messages": turns}, origin, options)


def _turn(value: Any, where: str, files: dict[str, list[Any]]) -> Json:
    """Return a turn as a chat message with a part for each mark; pops the files from the front of their lists."""
    turn = mapping(value, where)
    role = turn.get("role", turn.get("from"))
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRecord(f"{where}: a turn of {role!r} in a row with files")
    content = text(turn.get("content", turn.get("value")), where)
    parts: list[Json] = []
    for number, piece in enumerate(_MARK.split(content)):
        if number % 2 == 0:
            parts += [{"type": "text", "text": piece}] if piece else []
        elif not files[piece]:
            raise BadRecord(f"{where}: more marks of {piece} than files")
        else:
            parts.append({"type": piece, piece: files[piece].pop(0)})
    return {"role": _ROLES[role], "content": parts if any(part["type"] != "text" for part in parts) else content}


FORMAT = Format(NAME, "record", matches, read, "LLaMA-Factory rows with files")
