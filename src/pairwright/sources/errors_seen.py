"""Error sites: failures that a conversation shows, found on the tool results that show them."""

from collections.abc import Callable
from typing import Any

from pairwright.messages import ErrorSite, Json, Message

# Is this tool result an error? Returns its kind, or None. Formats that mark errors pass their own.
ErrorKind = Callable[[int, Message], str | None]


def tool_names(tools: list[Json]) -> tuple[str, ...]:
    """The names in tool schemas of either shape: {"function": {"name"}} or {"name"}."""
    names: list[str] = []
    for tool in tools:
        function = tool.get("function")
        name: Any = function.get("name") if isinstance(function, dict) else tool.get("name")
        if isinstance(name, str):
            names.append(name)
    return tuple(names)


def error_sites(messages: list[Message], tools: list[Json], kind_of: ErrorKind) -> list[ErrorSite]:
    """The error sites of a conversation: what `kind_of` says of a tool result, and calls of tools that do not exist."""
    available = tool_names(tools)
    callers: dict[str, str] = {}
    sites: list[ErrorSite] = []
    for index, message in enumerate(messages):
        for call in message.tool_calls:
            if call.id is not None:
                callers[call.id] = call.name
            if available and call.name not in available:
                sites.append(
                    ErrorSite(
                        index=index, kind="unknown_tool", text=f"no tool named {call.name!r}", tool=call.name,
                        call_id=call.id, available_tools=available,
                    )
                )  # fmt: skip
        if message.role != "tool":
            continue
        kind = kind_of(index, message)
        if kind is not None:
            tool = callers.get(message.tool_call_id or "", message.name)
            sites.append(
                ErrorSite(
                    index=index, kind=kind, text=message.text, tool=tool,
                    call_id=message.tool_call_id, available_tools=available,
                )
            )  # fmt: skip
    return sites


def no_errors(index: int, message: Message) -> str | None:
    """For formats that do not mark failed calls."""
    return None
