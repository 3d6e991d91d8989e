"""The messages of mini-SWE-agent, in the shapes of its versions.

first files      a plain list of {role, content}; an observation is a user turn `<returncode>1</returncode>...`
version 1        {info, messages, trajectory_format: "mini-swe-agent-1"}; the same turns
version 2        {..., trajectory_format: "mini-swe-agent-1.1"}: turns with tool calls and tool results, or
                 Responses objects {object: "response", output[]} and function_call_output items;
                 what the program adds is in `extra`; the last turn has the role `exit`, which no model saw
"""

import re
from typing import Any

from pairwright.messages import Json, Message
from pairwright.sources.chat import message_from_chat
from pairwright.sources.fields import items, mapping
from pairwright.sources.responses import messages_from_items

_RETURN_CODE = re.compile(r"\s*<returncode>\s*(-?\d{1,12})\s*</returncode>")
_KEPT = ("returncode", "exception_info", "interrupt_type")
_FAILURES = (
    ("timeout", re.compile(r"\s*(<exception>|The last command ).{0,2000}?timed out", re.DOTALL)),
    ("invalid_arguments", re.compile(r"\s*(Please always provide EXACTLY ONE action|Tool call error|Unknown tool)")),
)


def is_mini(value: Any) -> bool:
    """Whether this is a whole mini-SWE-agent file."""
    if isinstance(value, dict):
        form, info = value.get("trajectory_format"), value.get("info")
        if not isinstance(value.get("messages"), list):
            return False
        if isinstance(form, str) and form.startswith("mini-swe-agent"):
            return True
        return isinstance(info, dict) and "exit_status" in info and ("submission" in info or "mini_version" in info)
    return is_plain_list(value)


def is_plain_list(value: Any) -> bool:
    """A bare list of turns is ours only if an observation in it looks like ours: any chat is a list of turns."""
    if not isinstance(value, list) or not all(isinstance(turn, dict) and "role" in turn for turn in value):
        return False
    return any(isinstance(turn.get("content"), str) and _RETURN_CODE.match(turn["content"]) for turn in value)


def messages_of_mini(value: Any, where: str) -> list[Message]:
    messages: list[Message] = []
    for number, turn in enumerate(items(value, where)):
        turn, here = mapping(turn, f"{where}[{number}]"), f"{where}[{number}]"
        if turn.get("role") == "exit":
            continue
        extra = turn.get("extra")
        kept = {key: extra[key] for key in _KEPT if extra.get(key) is not None} if isinstance(extra, dict) else {}
        plain = {key: item for key, item in turn.items() if key not in ("extra", "timestamp")}
        if turn.get("object") == "response":
            messages += messages_from_items(items(turn.get("output"), f"{here}.output"), f"{here}.output")
        elif "role" not in turn and isinstance(turn.get("type"), str):
            messages += [_with_extra(message, kept) for message in messages_from_items([plain], here)]
        else:
            messages.append(_with_extra(message_from_chat(plain, here), kept))
    return messages


def mini_error_kind(message: Message) -> str | None:
    """What an observation tells of a failure: a return code, an exception, or the program's own complaint."""
    code: Any = message.extra.get("returncode")
    if code is None and (found := _RETURN_CODE.match(message.text)):
        code = int(found[1])
    if message.extra.get("exception_info"):
        return "timeout" if "timed out" in str(message.extra["exception_info"]) else "exception"
    for kind, start in _FAILURES:
        if start.match(message.text):
            return kind
    return "nonzero_exit" if isinstance(code, int) and code != 0 else None


def model_of_mini(info: Json) -> str | None:
    config = info.get("config")
    model = config.get("model") if isinstance(config, dict) else None
    name = model.get("model_name") if isinstance(model, dict) else None
    return name if isinstance(name, str) else None


def _with_extra(message: Message, kept: Json) -> Message:
    if not kept:
        return message
    return Message(
        message.role, message.content, message.reasoning, message.tool_calls, message.tool_call_id, message.name,
        message.generated, {**message.extra, **kept},
    )  # fmt: skip
