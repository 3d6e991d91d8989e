"""One call of a model API: a request and its answer, in the forms of OpenAI, Anthropic and Google.

    chat completions    {messages, tools}                       {choices: [{message, finish_reason}]}
    completions         {prompt: text}                          {choices: [{text, finish_reason}]}, raw text
    Responses           {input: text or items, instructions}    {object: response, output: [item], status}
    Messages            {system, messages, tools}               {type: message, role: assistant, content: [block]}
    generateContent     {contents, systemInstruction, tools}    {candidates: [{content: {parts}, finishReason}]}

The prompt is exactly the request, the completion is the answer; several choices are candidates of one task and step. A
request that continues a conversation stored on the server is refused, since the model's input is incomplete.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.row_format import history
from pairwright.sources.fields import BadRecord, has, items, mapping, object_or_empty, plain_numbers, text
from pairwright.sources.rollouts.verifiers_results import tools_as_functions
from pairwright.sources.shapes.anthropic import (
    is_anthropic_response,
    messages_from_anthropic,
    tools_from_anthropic,
    turn_from_anthropic,
)
from pairwright.sources.shapes.chat_messages import message_from_chat, messages_from_chat
from pairwright.sources.shapes.google_genai import answers_from_genai, request_from_genai, tools_from_genai
from pairwright.sources.shapes.responses import messages_from_items
from pairwright.sources.shapes.row_fields import tools_of

# Stop reasons of truncated answers.
_CUT = ("length", "max_tokens", "max_output_tokens", "MAX_TOKENS")
_ELSEWHERE = ("previous_response_id", "conversation", "prompt")


def is_answer(value: Any) -> bool:
    return isinstance(value, dict) and (isinstance(value.get("choices"), list) or request_field(value) is not None)


def request_field(answer: Any) -> str | None:
    """Return the key of the input in the request of an answer; None for chat completions and other values."""
    if is_response_object(answer):
        return "input"
    if is_anthropic_response(answer):
        return "messages"
    return "contents" if isinstance(answer, dict) and isinstance(answer.get("candidates"), list) else None


def is_response_object(value: Any) -> bool:
    """Whether the value is an answer of the Responses API."""
    return has(value, output=list) and value.get("object") == "response"


def records_of_call(request: Json, answer: Json) -> Iterator[Json]:
    """Yield the records of a call, one per choice, as `RowFormat.take` does."""
    if is_response_object(answer):
        prompt, tools = _responses_request(request)
        completion = messages_from_items(answer["output"], "output")
        if answer.get("status") in ("failed", "cancelled"):
            raise BadRecord(f"the response has the status {answer['status']}")
        candidates = [(completion, object_or_empty(answer.get("incomplete_details")).get("reason"))]
    elif is_anthropic_response(answer):
        prompt = messages_from_anthropic(request.get("system"), request.get("messages"), "messages")
        tools = tools_from_anthropic(request.get("tools"), "tools")
        candidates = [(turn_from_anthropic(answer, "answer"), answer.get("stop_reason"))]
    elif isinstance(answer.get("candidates"), list):
        _check_roles(request.get("contents"))
        _check_roles([item.get("content") for item in answer["candidates"] if isinstance(item, dict)])
        prompt, tools = request_from_genai(request, "request"), tools_from_genai(request, "tools")
        turns = answers_from_genai(answer, "response")
        candidates = [(turn, turn[-1].extra.get("finish_reason") if turn else None) for turn in turns]
    else:
        if "messages" not in request and isinstance(request.get("prompt"), str):
            prompt, tools = [Message(TEXT, request["prompt"])], []
        else:
            prompt, tools = messages_from_chat(request.get("messages"), "messages"), tools_of(request)
        is_text = bool(prompt) and prompt[0].role == TEXT
        choices = items(answer.get("choices"), "choices")
        candidates = [_choice(choice, f"choices[{number}]", is_text) for number, choice in enumerate(choices)]
    if not candidates:
        raise BadRecord("choices: none, so there is no completion")
    if not prompt:
        raise BadRecord("the request has no messages, so the prompt is unknown")
    model = answer.get("model") or answer.get("modelVersion") or request.get("model")
    for completion, reason in candidates:
        yield history(
            [*prompt, *completion],
            len(prompt),
            tools=tools,
            model_version=model if isinstance(model, str) else None,
            truncate_status="response_truncated" if reason in _CUT else None,
            metrics=plain_numbers(answer.get("usage")),
        )


def _responses_request(request: Json) -> tuple[list[Message], list[Json]]:
    for key in _ELSEWHERE:
        if request.get(key):
            raise BadRecord(f"{key}: the server holds a part of the prompt, which is not in the file")
    value = request.get("input")
    prompt = [Message("user", value)] if isinstance(value, str) else messages_from_items(items(value, "input"), "input")
    instructions = request.get("instructions")
    if isinstance(instructions, list):
        prompt = messages_from_items(instructions, "instructions") + prompt
    elif instructions:
        prompt.insert(0, Message("system", text(instructions, "instructions")))
    return prompt, tools_as_functions(request.get("tools"))


def _check_roles(contents: Any) -> None:
    """Refuse contents of generateContent whose roles are not text."""
    for content in contents if isinstance(contents, list) else [contents]:
        role = content.get("role") if isinstance(content, dict) else None
        if role is not None:
            text(role, "role")


def _choice(value: Any, where: str, is_text: bool) -> tuple[list[Message], Any]:
    choice = mapping(value, where)
    reason = choice.get("finish_reason")
    if is_text:
        return [Message(TEXT, text(choice.get("text"), f"{where}.text"), generated=True)], reason
    message = mapping(choice.get("message"), f"{where}.message")
    return [message_from_chat({"role": "assistant", **message}, f"{where}.message")], reason
