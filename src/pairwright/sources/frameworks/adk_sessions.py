"""Sessions of Google's Agent Development Kit, saved by its session services and its web page.

    {id, appName, userId, state, events[{invocationId, author, content{role, parts[]}, partial, actions{}}]}

Names are in camel or snake case. Events with `partial` are pieces of an answer that a later event repeats as a whole. A
session is read only if its events are the model's actual input: with several agents, each sees the others' turns in a
form that is not logged, and a rewind or a compaction changes the previous context. Neither instructions nor tools are
logged: prompts are incomplete. There is no reward.
"""

from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, has, mapping, object_or_empty, text
from pairwright.sources.format import Origin
from pairwright.sources.shapes.google_genai import field, messages_from_genai
from pairwright.sources.shapes.session_entries import Entry, Session, SessionFormat

# Actions after which the model's input differs from the previous events.
_CHANGES = ("rewind_before_invocation_id", "compaction")


def matches(value: Any) -> bool:
    first = value["events"][:1] if has(value, "id", events=list) else []
    return any(has(event, author=str) and isinstance(field(event, "invocation_id"), str) for event in first)


def _begin(value: Any, session: Session, origin: Origin) -> Any:
    record = mapping(value, "session")
    if field(record, "past_events"):
        raise BadRecord("past_events: events of an earlier version of ADK, whose place in the prompt is not known")
    session.note({name: field(record, name) for name in ("app_name", "user_id")}, "app_name", "user_id")
    return record


def _take(event: Json, session: Session) -> Entry | None:
    actions = object_or_empty(event.get("actions"))
    for name in _CHANGES:
        if field(actions, name):
            raise BadRecord(f"actions.{name}: the model's input after it is not logged")
    if event.get("partial") is True or not isinstance(event.get("content"), dict):
        session.others["partial" if event.get("partial") is True else "without content"] += 1
        return None
    author = text(event.get("author"), "author")
    agent = session.info.setdefault("agent", author) if author != "user" else None
    if agent not in (None, author):
        raise BadRecord(
            f"events of several agents ({agent}, {author}): ADK shows each the turns of the others in words that the "
            "session does not have; import its traces (otel) instead"
        )
    # An agent's content may lack its role.
    role = event["content"].get("role") or ("user" if author == "user" else "model")
    return Entry(messages_from_genai([{**event["content"], "role": role}], None, "content"))


FORMAT = SessionFormat(
    "adk",
    "Sessions of Google's Agent Development Kit",
    matches,
    _take,
    paths={"id": "id", "lines": "events"},
    begin=_begin,
    others="other_events",
    unit="record",
).format
