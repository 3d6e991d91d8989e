"""Events of Anthropic's managed agents: `{type, id, ...}` in a list or one per line, or logged calls of the client.

    user.message, agent.message, agent.thinking            content blocks
    agent.tool_use, agent.mcp_tool_use, agent.custom_tool_use      a call; its id is the event's id
    agent.tool_result, agent.mcp_tool_result               a result, by tool_use_id (mcp_tool_use_id)
    user.custom_tool_result                                a result, by custom_tool_use_id
    session, or the response of sessions.create            the agent: its model, system prompt and tools

A line may be `[method, payload]`, written by recorders of the client. Sent events are repeated in the stream, so only
the stream is read if there is one. Calls between two results of the model form one turn. Server-side tools
(`agent_toolset_...`) are logged only by name. There is no reward.
"""

from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.fields import identifier, items, mapping, object_or_empty, text, text_at
from pairwright.sources.shapes.anthropic import (
    call_block,
    result_block,
    system_from_anthropic,
    text_block,
    thought_block,
    tools_from_anthropic,
)
from pairwright.sources.shapes.session_entries import Session, SessionFormat, user_messages

_CALLS = frozenset({"agent.tool_use", "agent.mcp_tool_use", "agent.custom_tool_use"})
# Type of a result -> key of its call's id
_RESULTS = {
    "agent.tool_result": "tool_use_id",
    "agent.mcp_tool_result": "mcp_tool_use_id",
    "user.custom_tool_result": "custom_tool_use_id",
    "user.tool_result": "tool_use_id",
}
_TEXTS = frozenset({"user.message", "agent.message"})


def matches(value: Any) -> bool:
    events = _events(value) if isinstance(value, list) else []
    kinds = {str(event.get("type")) for _, event in events if "data" not in event}
    return not kinds.isdisjoint({*_CALLS, "agent.message"})


def _streamed(lines: list[Any]) -> list[tuple[int, Json]]:
    """Return the events; sent events, which have no id, only if there is no stream."""
    events = _events(lines)
    has_stream = any("id" in event and str(event.get("type")) in _TEXTS for _, event in events)
    return [one for one in events if not has_stream or "id" in one[1] or one[1].get("type") == "session"]


def _take(event: Json, session: Session) -> None:
    turns, kind = session.turns, text(event.get("type"), "type")
    if kind == "session":
        _describe(session, event)
    elif kind == "user.message":
        turns.add_messages(user_messages(event.get("content"), "content"))
    elif kind == "agent.message":
        for block in _blocks(event.get("content")):
            turns.add(block)
    elif kind == "agent.thinking":
        for block in _blocks(event.get("content")):
            turns.add(thought_block(block.get("thinking", block.get("text"))))
    elif kind in _CALLS:
        turns.add(call_block(event.get("id"), event.get("name"), event.get("input")))
    elif kind in _RESULTS:
        is_error = event.get("is_error") is True
        turns.add(result_block(event.get(_RESULTS[kind]), event.get("content"), is_error=is_error))
    else:
        session.others[kind] += 1


def _blocks(content: Any) -> list[Json]:
    blocks = [text_block(content)] if isinstance(content, str) else items(content or [], "content")
    return [mapping(block, "content") for block in blocks]


def _describe(session: Session, event: Json) -> None:
    """Read the session object: its agent has the model, the system prompt and the tools."""
    session.id = identifier(event.get("id"))
    agent = object_or_empty(event.get("agent"))
    session.model = text_at(agent, "model.id", "model")
    session.system = system_from_anthropic(agent.get("system"), "agent.system")
    tools = tools_from_anthropic(agent.get("tools"), "agent.tools")
    session.tools = [tool for tool in tools if "function" in tool]
    toolsets = [tool for tool in tools if "function" not in tool]
    session.has_other_tools = bool(toolsets)
    session.info = {"agent": agent.get("name"), "toolsets": toolsets}


def _events(lines: list[Any]) -> list[tuple[int, Json]]:
    """Return (line, event) of each event; payloads of logged calls are unwrapped."""
    events: list[tuple[int, Json]] = []
    for number, line in enumerate(lines):
        if isinstance(line, list) and len(line) == 2 and isinstance(line[0], str):
            line = line[1]
        if isinstance(line, list) and len(line) == 2 and isinstance(line[1], dict):
            line = line[1]  # arguments of a call: session id, body
        if isinstance(line, dict):
            sent = line.get("events", line.get("data"))
            inner = sent if isinstance(sent, list) else [line]
            events += [(number, event) for event in inner if isinstance(event, dict)]
    return events


FORMAT = SessionFormat(
    "managed-agents", "Events of Anthropic's managed agents", matches, _take, lines=_streamed, others="other_events"
).format
