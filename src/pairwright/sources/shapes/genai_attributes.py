"""Read messages and tools from span attributes and events.

OpenInference has flat keys such as `llm.input_messages.0.message.role`:

    llm.input_messages.N.message.{role, content, name, tool_call_id}
    llm.input_messages.N.message.tool_calls.M.tool_call.{id, function.name, function.arguments}
    llm.input_messages.N.message.contents.M.message_content.{type, text, image.image.url}
    llm.tools.N.tool.json_schema        JSON text of a schema

Older GenAI attributes number messages in the same way: gen_ai.prompt.N.{role, content, tool_calls.M.*}. The oldest
instrumentations write one event per message: gen_ai.user.message, gen_ai.choice, gen_ai.content.prompt, ...
A gap in the numbers means that the exporter lost a message: the rest is not a conversation and is refused.

The Vercel AI SDK has JSON text: ai.prompt.messages or ai.prompt, ai.prompt.tools, ai.response.{text, toolCalls, object,
reasoning, finishReason}; before version 4, ai.result.*.
"""

from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, filled_text, json_text, list_or_empty, objects_in, text_or_none
from pairwright.sources.shapes.any_messages import conversation, decode_json_text, tool_content, tools_in
from pairwright.sources.shapes.chat_messages import message_from_chat, with_finish_reason
from pairwright.sources.shapes.vercel import calls_from_vercel

# Values of gen_ai.operation.name for model calls and for agents.
_CALL_OPERATIONS = frozenset({"chat", "text_completion", "generate_content", "completion", "generate"})
_AGENT_OPERATIONS = frozenset({"invoke_agent", "create_agent", "invoke_workflow"})
# Suffixes of ai.operationId of the Vercel AI SDK for model calls, which are nested in the program's operations.
_VERCEL_CALLS = ("doGenerate", "doStream")
_VERCEL_OPERATIONS = frozenset({"ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject"})


def role_of_span(attributes: Json) -> str:
    """Return the kind of a span by its attributes: "call", "tool", "agent", "other", or "" if unknown."""
    kind = text_or_none(attributes.get("openinference.span.kind", attributes.get("traceloop.span.kind"))) or ""
    operation = text_or_none(attributes.get("gen_ai.operation.name", attributes.get("llm.request.type"))) or ""
    vercel = text_or_none(attributes.get("ai.operationId")) or ""
    kind = kind.upper()
    if kind == "LLM" or operation in _CALL_OPERATIONS or vercel.endswith(_VERCEL_CALLS):
        return "call"
    if kind == "TOOL" or operation == "execute_tool" or vercel == "ai.toolCall" or "gen_ai.tool.call.id" in attributes:
        return "tool"
    if kind == "AGENT" or operation in _AGENT_OPERATIONS or vercel in _VERCEL_OPERATIONS:
        return "agent"
    return "other" if kind or operation or vercel else ""


def input_in_attributes(attributes: Json) -> list[Message]:
    """Return the input of a model call from the attributes that hold messages, or []."""
    messages = system_in_attributes(attributes)
    if "gen_ai.input.messages" in attributes:
        return messages + conversation(attributes["gen_ai.input.messages"], "gen_ai.input.messages", role="user")
    for reader, prefix in ((read_numbered_messages, "gen_ai.prompt"), (openinference_messages, "llm.input_messages")):
        if prompt := reader(attributes, prefix):
            return messages + prompt
    for key in ("ai.prompt.messages", "ai.prompt"):
        if attributes.get(key) is not None:
            return messages + conversation(decode_json_text(attributes[key]), key, role="user")
    prompts = decode_json_text(attributes.get("llm.prompts"))  # of completion models
    if isinstance(prompts, list) and len(prompts) == 1 and isinstance(prompts[0], str):
        return [*messages, Message("user", prompts[0])]
    return []


def system_in_attributes(attributes: Json) -> list[Message]:
    """Return the system prompt stored outside the messages."""
    system = decode_json_text(attributes.get("gen_ai.system_instructions"))
    # Parts without a role form one system message.
    if isinstance(system, list) and system and all(isinstance(part, dict) and "role" not in part for part in system):
        system = [{"role": "system", "parts": system}]
    return conversation(system, "gen_ai.system_instructions", role="system")


def answers_in_attributes(attributes: Json) -> list[list[Message]]:
    """Return the alternative answers of a model call from the attributes that hold messages, if any do."""
    if "gen_ai.output.messages" in attributes:
        messages = conversation(attributes["gen_ai.output.messages"], "gen_ai.output.messages", role="assistant")
        return alternatives_of(messages)
    if messages := read_numbered_messages(attributes, "gen_ai.completion"):
        return alternatives_of(messages)
    if messages := openinference_messages(attributes, "llm.output_messages"):
        return [messages]
    if (message := _vercel_answer(attributes)) is not None:
        return [[message]]
    return []


def alternatives_of(messages: list[Message]) -> list[list[Message]]:
    """Return assistant messages as alternative answers; if there are other roles, all are one conversation."""
    if all(message.role == "assistant" for message in messages):
        return [[message] for message in messages]
    return [messages]


def _vercel_answer(attributes: Json) -> Message | None:
    """Return the answer of a call of the Vercel AI SDK, or None."""
    parts = ("text", "toolCalls", "object")
    heads = ("ai.response", "ai.result")
    held = (head for head in heads if any(attributes.get(f"{head}.{part}") is not None for part in parts))
    head = next(held, None)
    if head is None:
        return None
    content, thought = attributes.get(f"{head}.text"), attributes.get(f"{head}.reasoning")
    if not content and attributes.get(f"{head}.object") is not None:  # structured output: the model wrote its JSON
        content = json_text(attributes[f"{head}.object"])
    return Message(
        "assistant",
        content=text_or_none(content),
        reasoning=filled_text(thought),
        tool_calls=calls_from_vercel(decode_json_text(attributes.get(f"{head}.toolCalls")), f"{head}.toolCalls"),
    )


def add_finish_reason(messages: list[Message], attributes: Json) -> list[Message]:
    """Add the reason why the model stopped to the last message, unless it has one."""
    reasons = decode_json_text(attributes.get("gen_ai.response.finish_reasons"))
    reason = reasons[0] if isinstance(reasons, list) and len(reasons) == 1 else None
    for key in ("ai.response.finishReason", "ai.finishReason", "llm.finish_reason"):
        reason = attributes.get(key) if reason is None else reason
    has_reason = bool(messages) and "finish_reason" in messages[-1].extra
    return messages if has_reason else with_finish_reason(messages, reason)


def number_groups(attributes: Json, prefix: str, *, is_whole: bool = False) -> list[Json]:
    """Return the groups `prefix.0.*`, `prefix.1.*`, ... in order; with `is_whole`, BadRecord if one is missing."""
    groups: dict[int, Json] = {}
    start = f"{prefix}."
    for key, value in attributes.items():
        if key.startswith(start):
            number, _, rest = key[len(start) :].partition(".")
            # At most nine digits, since keys are untrusted.
            if number.isascii() and number.isdigit() and len(number) < 10:
                groups.setdefault(int(number), {})[rest] = value
    lost = next((number for number in range(len(groups)) if number not in groups), None)
    if is_whole and lost is not None:
        raise BadRecord(f"{prefix}.{lost}: not among the {len(groups)} messages: lost by the exporter")
    return [groups[number] for number in sorted(groups)]


def openinference_messages(attributes: Json, prefix: str) -> list[Message]:
    """Read the messages under `llm.input_messages` or `llm.output_messages`."""
    messages = []
    for number, group in enumerate(number_groups(attributes, prefix, is_whole=True)):
        # Keys of one message, e.g. "message.role" -> "role"; calls and parts are numbered groups in it.
        bare = {key.removeprefix("message."): value for key, value in group.items()}
        if prefix == "llm.output_messages":
            bare.setdefault("role", "assistant")
        calls = [_call(call, "tool_call.") for call in number_groups(bare, "tool_calls")]
        if isinstance(bare.get("function_call_name"), str):
            calls.append({"name": bare["function_call_name"], "arguments": bare.get("function_call_arguments_json")})
        parts = [_part(part) for part in number_groups(bare, "contents")]
        messages.append(_message(bare, parts or bare.get("content"), calls, f"{prefix}.{number}"))
    return messages


def read_numbered_messages(attributes: Json, prefix: str) -> list[Message]:
    """Read the messages under `gen_ai.prompt` or `gen_ai.completion`."""
    messages = []
    for number, group in enumerate(number_groups(attributes, prefix, is_whole=True)):
        calls = [_call(call, "") for call in number_groups(group, "tool_calls")]
        content = group.get("content")
        inside = decode_json_text(content)
        if isinstance(inside, list) and inside and all(isinstance(part, dict) and "type" in part for part in inside):
            content = inside  # parts stored as JSON text
        group = {"role": "assistant", **group} if prefix == "gen_ai.completion" else group
        messages.append(_message(group, content, calls, f"{prefix}.{number}"))
    return messages


def tools_of_attributes(attributes: Json) -> tuple[list[Json], int]:
    """Return the tool schemas, and the number of schemas that could not be decoded (usually truncated)."""
    for key in ("gen_ai.tool.definitions", "ai.prompt.tools"):
        if tools := tools_in(attributes.get(key)):
            return tools, 0
    schemas = [group.get("tool.json_schema") for group in number_groups(attributes, "llm.tools")]
    if schemas:
        tools = [schema for schema in map(decode_json_text, schemas) if isinstance(schema, dict)]
        return tools, len(schemas) - len(tools)
    request = decode_json_text(attributes.get("model_request_parameters"))
    if isinstance(request, dict):  # older pydantic-ai, without an attribute for tool definitions
        listed = [*list_or_empty(request.get("function_tools")), *list_or_empty(request.get("output_tools"))]
        names = {"name": "name", "description": "description", "parameters": "parameters_json_schema"}
        schemas = [{name: tool.get(key) for name, key in names.items()} for tool in objects_in(listed)]
        return [{"type": "function", "function": schema} for schema in schemas], 0
    functions = number_groups(attributes, "llm.request.functions")
    return [{**tool, "parameters": decode_json_text(tool.get("parameters"))} for tool in functions], 0


def messages_of_events(events: list[tuple[str, Json]], *, answers_wanted: bool) -> list[Message]:
    """Read the input messages of a call from its events, or its output messages if `answers_wanted`."""
    messages: list[Message] = []
    for name, attributes in events:
        # The body is JSON text in one attribute, or its fields are the attributes themselves.
        body = decode_json_text(attributes.get("gen_ai.event.content"))
        body = {**attributes, **body} if isinstance(body, dict) else attributes
        if name == "gen_ai.content.prompt" and not answers_wanted:
            messages += conversation(body.get("gen_ai.prompt"), name, role="user")
        elif name == "gen_ai.content.completion" and answers_wanted:
            messages += conversation(body.get("gen_ai.completion"), name, role="assistant")
        elif name == "gen_ai.choice" and answers_wanted:
            inner = decode_json_text(body.get("message"))
            inner = inner if isinstance(inner, dict) else {**body, "content": body.get("content", inner)}
            messages.append(_event_message({**inner, "finish_reason": body.get("finish_reason")}, "assistant"))
        elif name.startswith("gen_ai.") and name.endswith(".message") and not answers_wanted:
            # gen_ai.user.message -> user
            messages.append(_event_message(body, name.split(".")[1]))
    return messages


def _event_message(body: Json, role: str) -> Message:
    chat: Json = {"role": body["role"] if isinstance(body.get("role"), str) else role}
    for key in ("content", "tool_calls", "finish_reason", "name", "reasoning_content"):
        if body.get(key) is not None:
            chat[key] = decode_json_text(body[key]) if key == "tool_calls" else body[key]
    chat.setdefault("content", None)
    # The event of a result has the call's id as its own `id`.
    if chat["role"] == "tool" and isinstance(body.get("id"), str):
        chat["tool_call_id"] = body["id"]
    return conversation([chat], "event", role=role)[0]


def _message(group: Json, content: Any, calls: list[Json], where: str) -> Message:
    chat: Json = {"role": group.get("role", "user"), "content": content, "tool_calls": calls}
    for key in ("name", "tool_call_id", "finish_reason", "reasoning_content"):
        if isinstance(group.get(key), str):
            chat[key] = group[key]
    if chat["role"] == "tool" or not isinstance(content, str | list):
        chat["content"] = tool_content(content)
    return message_from_chat(chat, where)


def _call(group: Json, prefix: str) -> Json:
    call = {key.removeprefix(prefix).removeprefix("function."): value for key, value in group.items()}
    call_id = call.get("id")
    return {
        "id": call_id if call_id is None or isinstance(call_id, str) else json_text(call_id),
        "name": call.get("name"),
        "arguments": call.get("arguments"),
    }


def _part(group: Json) -> Json:
    part = {key.removeprefix("message_content."): value for key, value in group.items()}
    url = part.get("image.image.url")
    if isinstance(url, str):
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "text", **part} if "text" in part else part
