"""Sessions of Google's Agent Development Kit, as its session services and its web page save them.

    {id, appName, userId, state, events[{invocationId, author, content{role, parts[]}, partial, actions{}}]}

Names are in camel or in snake case. Events with `partial` are pieces of an answer that a later event has whole. A
session is read only where its events are what the model was given: with several agents, each is shown the turns of the
others in words that are not logged, and a rewind or a compaction changes what came before. Neither instructions nor
tools are logged: prompts are incomplete. There is no reward.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts
from pairwright.sources.fields import BadRecord, identifier, items, mapping
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.google_genai import field, messages_from_genai
from pairwright.sources.shapes.session_entries import Entry, Session, read_entries

NAME = "adk"
_USER = "user"
# Actions after which the model is given something else than the events before.
_CHANGES = ("rewind_before_invocation_id", "compaction")


def matches(value: Any) -> bool:
    """Whether the value is a session: its events have an author and an invocation."""
    events = value.get("events") if isinstance(value, dict) else None
    first = events[0] if isinstance(events, list) and events else None
    if not isinstance(first, dict) or "id" not in value:
        return False
    return isinstance(first.get("author"), str) and isinstance(field(first, "invocation_id"), str)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the experience of a session."""
    record = mapping(value, "session")
    if field(record, "past_events"):
        raise BadRecord("past_events: events of an earlier version of ADK, whose place in the prompt is not known")
    info = {name: field(record, name) for name in ("app_name", "user_id") if isinstance(field(record, name), str)}
    session = Session(NAME, identifier(record.get("id")), info=info)
    entries: list[Entry] = []
    agents: list[str] = []
    others: Counter[str] = Counter()
    for number, item in enumerate(items(record.get("events"), "events")):
        event = mapping(item, f"events[{number}]")
        _check_actions(event, number)
        if event.get("partial") is True or not isinstance(event.get("content"), dict):
            others["partial" if event.get("partial") is True else "without content"] += 1
            continue
        author = event.get("author")
        if not isinstance(author, str):
            raise BadRecord(f"events[{number}].author: expected text")
        if author != _USER and author not in agents:
            agents.append(author)
        # An agent's content may lack its role.
        content = {**event["content"], "role": event["content"].get("role") or (_USER if author == _USER else "model")}
        entries.append(Entry(messages_from_genai([content], None, f"events[{number}].content")))
    if len(agents) > 1:
        raise BadRecord(
            f"events of {len(agents)} agents ({', '.join(agents[:5])}): ADK shows each the turns of the others in "
            "words that the session does not have; import its traces (otel) instead"
        )
    session.info.update({"agent": agents[0] if agents else None, "other_events": dict(others)})
    yield from read_entries(session, entries, origin)


def _check_actions(event: Json, number: int) -> None:
    actions = event.get("actions")
    for name in _CHANGES if isinstance(actions, dict) else ():
        if field(actions, name):
            raise BadRecord(f"events[{number}].actions.{name}: what the model was given from there on is not logged")


FORMAT = Format(NAME, "record", matches, read, "Sessions of Google's Agent Development Kit")
