"""Calls kept by DSPy in `lm.history`, one entry per call:

    {messages | prompt, outputs: [text | {text, reasoning_content, tool_calls}], kwargs: {tools, n, ...}, model,
     model_type, usage, cost, timestamp, uuid}

The messages hold signature, demonstrations and inputs, as rendered by the adapter. Each output is an experience; all
share task and step. Models of type `text` receive the messages as one text that ends in "BEGIN RESPONSE:", which is the
prompt here. DSPy stores no scores: `--scores`, or a reward next to the entry, adds them.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.row_format import history, history_format
from pairwright.sources.fields import BadRecord, items, mapping, optional_mapping, plain_numbers, text
from pairwright.sources.shapes.chat_messages import message_from_chat, messages_from_chat
from pairwright.sources.shapes.row_fields import tools_of


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("outputs"), list) or "kwargs" not in value:
        return False
    return isinstance(value.get("messages"), list) or isinstance(value.get("prompt"), str)


def _take(row: Json) -> Iterator[Json]:
    kwargs = optional_mapping(row.get("kwargs"), "kwargs")
    if row.get("messages"):
        prompt = messages_from_chat(row["messages"], "messages")
    else:
        prompt = [Message("user", text(row.get("prompt"), "prompt"))]
    is_text = row.get("model_type") == "text"
    if is_text:
        prompt = [Message(TEXT, "\n\n".join([*(message.text for message in prompt), "BEGIN RESPONSE:"]))]
    outputs = items(row.get("outputs"), "outputs")
    if not outputs:
        raise BadRecord("outputs: none, so there is no completion")
    model = row.get("response_model") or row.get("model")
    for number, output in enumerate(outputs):
        answer = _answer(output, f"outputs[{number}]", is_text)
        yield history(
            [*prompt, answer],
            len(prompt),
            tools=tools_of(kwargs),
            model_version=model if isinstance(model, str) else None,
            metrics=plain_numbers(row.get("usage")),
        )


def _answer(output: Any, where: str, is_text: bool) -> Message:
    if isinstance(output, str):
        return Message(TEXT if is_text else "assistant", output, generated=True if is_text else None)
    fields = mapping(output, where)
    if "text" not in fields and not fields.get("tool_calls"):
        raise BadRecord(f"{where}: an output with neither text nor calls")
    # Log-probabilities are logged without token ids, so they are not used.
    more = {key: fields[key] for key in ("reasoning_content", "tool_calls") if fields.get(key)}
    return message_from_chat({"role": "assistant", "content": fields.get("text"), **more}, where)


FORMAT = history_format(
    "dspy",
    "Calls in the history of DSPy",
    matches,
    _take,
    frozenset({"prompt", "messages", "outputs", "response", "usage"}),
)
