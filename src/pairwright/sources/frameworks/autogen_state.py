"""States saved by AutoGen AgentChat (`save_state`): of one agent, or of a team with the states of its agents.

    {type: AssistantAgentState, llm_context{messages[]} | llm_messages[]}
    {type: TeamState, agent_states{name: {agent_state | state}}}

    UserMessage, SystemMessage        content
    AssistantMessage                  content: text, or calls [{id, name, arguments}]; `thought` is the reasoning
    FunctionExecutionResultMessage    content: results [{call_id, name, content, is_error}]

Every agent whose state holds messages is a record. The system prompt and the tools are in the agent's configuration,
not in its state: prompts are incomplete. There is no reward. Written from the schema.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import NO_ANSWER, Parts
from pairwright.sources.fields import BadRecord, object_or_empty, objects, optional_text, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.anthropic import text_block
from pairwright.sources.shapes.chat_messages import read_call

NAME = "autogen"
_ROLES = {"UserMessage": "user", "SystemMessage": "system", "AssistantMessage": "assistant"}
_RESULTS = "FunctionExecutionResultMessage"


def matches(value: Any) -> bool:
    kinds = {str(object_or_empty(one).get("type")) for messages in _histories(value).values() for one in messages}
    return not kinds.isdisjoint((*_ROLES, _RESULTS))


def _histories(value: Any) -> dict[str, list[Any]]:
    """Return the messages of each agent by name; the name is empty in the state of a single agent."""
    state = object_or_empty(value)
    listed = state.get("llm_messages", object_or_empty(state.get("llm_context")).get("messages"))
    histories = {"": listed} if isinstance(listed, list) else {}
    for name, member in object_or_empty(state.get("agent_states")).items():
        inner = object_or_empty(member)
        for history in _histories(inner.get("agent_state", inner.get("state", inner))).values():
            histories[str(name)] = history
    return histories


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    for number, (name, listed) in enumerate(_histories(value).items()):
        try:
            messages = [turn for at, one in objects(listed, "") for turn in _turns(one, at)]
            if not any(message.is_generated for message in messages):
                raise BadRecord(NO_ANSWER)
            yield Parts(NAME, origin, name, messages=messages, step=number, info={"agent": name} if name else None)
        except BadRecord as error:
            yield origin.rejected(f"agent {name!r}: {error}" if name else error, NAME)


def _turns(message: Json, where: str) -> Iterator[Message]:
    kind, content = message.get("type"), message.get("content")
    if kind == _RESULTS:
        for _, result in objects(content, f"{where}.content"):
            call_id, name = (optional_text(result.get(key), key) for key in ("call_id", "name"))
            extra = {"is_error": True} if result.get("is_error") is True else {}
            yield Message("tool", text(result.get("content"), "content"), tool_call_id=call_id, name=name, extra=extra)
        return
    if not isinstance(kind, str) or kind not in _ROLES:
        raise BadRecord(f"{where}.type: expected {', '.join(_ROLES)} or {_RESULTS}, got {kind!r}")
    thought = optional_text(message.get("thought"), f"{where}.thought")
    if kind == "AssistantMessage" and isinstance(content, list):
        calls = [read_call(call, place) for place, call in objects(content, f"{where}.content")]
        yield Message("assistant", None, thought, tuple(calls))
    elif isinstance(content, list):
        parts = [text_block(part) if isinstance(part, str) else part for part in content]
        yield Message(_ROLES[kind], parts, thought)
    else:
        yield Message(_ROLES[kind], text(content, f"{where}.content"), thought)


FORMAT = Format(NAME, "record", matches, read, "AutoGen AgentChat states")
