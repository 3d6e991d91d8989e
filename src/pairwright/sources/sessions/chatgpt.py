"""ChatGPT data exports: `conversations.json`, a list of `{title, mapping{id: {message, parent}}, conversation_id}`.

    author.role user, system   a turn; empty and hidden system messages are left out
    author.role assistant      an answer; with a `recipient` other than "all", a call to that tool with the
                               text as input
    author.role tool           the result of the previous call on its path: the export has no call ids
    content_type thoughts      reasoning of the following answer

The nodes form a tree: every path from a root to a leaf is an experience, so a regenerated answer is a separate run. The
system prompt and the tools of ChatGPT are not in the export: prompts are incomplete. There is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import has, identifier, items, mapping, objects, optional_text, text, text_at, value_at
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import (
    assistant_from_blocks,
    call_block,
    plain_content,
    text_block,
    thought_block,
)
from pairwright.sources.shapes.session_entries import Entry, Session, read_entries

NAME = "chatgpt"


def matches(value: Any) -> bool:
    return has(value, mapping=dict) and any(has(node, "message", "parent") for node in value["mapping"].values())


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    record = mapping(value, "conversation")
    session = Session(NAME, identifier(record.get("conversation_id")) or identifier(record.get("id")))
    session.note(record, "title")
    session.model = optional_text(record.get("default_model_slug"), "default_model_slug")
    nodes = {key: mapping(node, f"mapping.{key}") for key, node in mapping(record.get("mapping"), "mapping").items()}
    thoughts: dict[str, list[Json]] = {}  # node -> reasoning at the start of its children
    calls: dict[str, str] = {}  # node -> call answered by the next result below it
    entries: list[Entry] = []
    for key in _in_order(nodes):
        parent = nodes[key].get("parent")
        parent = parent if isinstance(parent, str) and parent in nodes else ""
        blocks = list(thoughts.get(parent, []))
        message = nodes[key].get("message")
        messages = [] if message is None else _messages(mapping(message, key), key, blocks, calls.get(parent), session)
        if not messages and blocks:
            thoughts[key] = blocks
        call_ids = [call.id for turn in messages for call in turn.tool_calls if call.id]
        if call_ids or parent in calls:
            calls[key] = call_ids[0] if call_ids else calls[parent]
        entries.append(Entry(messages, key, parent))
    yield from read_entries(session, entries, origin)


def _messages(message: Json, key: str, blocks: list[Json], call_id: str | None, session: Session) -> list[Message]:
    """Convert a node; reasoning without other content is added to `blocks`."""
    author = mapping(message.get("author"), "author")
    role, recipient = text(author.get("role"), "author.role"), message.get("recipient", "all")
    content = mapping(message.get("content"), "content")
    if content.get("content_type") == "thoughts":
        for _, thought in objects(content.get("thoughts", []), "thoughts"):
            blocks.append(thought_block(text(thought.get("content"), "thoughts")))
        return []
    parts = _parts(content)
    is_hidden = value_at(message, "metadata.is_visually_hidden_from_conversation") is True
    if not parts or (role == "system" and is_hidden):
        return []
    if role == "tool":
        name = optional_text(author.get("name"), "name")
        return [Message("tool", plain_content(parts), tool_call_id=call_id, name=name)]
    if role != "assistant":
        return [Message(role, plain_content(parts))]
    session.model = text_at(message, "metadata.model_slug") or session.model
    if isinstance(recipient, str) and recipient != "all":
        source = "".join(str(part.get("text", "")) for part in parts)
        # Text other than a JSON object (code) is the only argument of the call.
        arguments = source if source.lstrip().startswith("{") else {"input": source}
        return [assistant_from_blocks([*blocks, call_block(key, recipient, arguments)], "content")]
    return [assistant_from_blocks([*blocks, *parts], "content")]


def _parts(content: Json) -> list[Json]:
    """Return content as parts, without empty texts."""
    if isinstance(content.get("text"), str):  # code and tool output
        return [text_block(content["text"])] if content["text"] else []
    parts: list[Json] = []
    for part in items(content.get("parts", []), "content.parts"):
        if isinstance(part, str):
            parts += [text_block(part)] if part else []
        elif has(part, text=str):
            parts.append(text_block(part["text"]))
        elif isinstance(part, dict):
            parts.append({"type": str(part.get("content_type")), **part})
    if len(parts) > 1 and all(part["type"] == "text" for part in parts):
        return [text_block("\n".join(part["text"] for part in parts))]
    return parts


def _in_order(nodes: dict[str, Json]) -> list[str]:
    """Return the nodes depth first, siblings in file order; cycles are left out."""
    children: dict[str, list[str]] = {}
    for key, node in nodes.items():
        parent = node.get("parent")
        children.setdefault(parent if isinstance(parent, str) and parent in nodes else "", []).append(key)
    order: list[str] = []
    stack = list(reversed(children.get("", [])))
    while stack:
        key = stack.pop()
        order.append(key)
        stack += reversed(children.get(key, []) if key else [])
    return order


FORMAT = Format(NAME, "record", matches, read, "ChatGPT data exports")
