"""OpenAI chat data: rows of messages, request/response logs, or bare lists of messages.

    {messages, tools, reward | score | rating, task_id}        a row; the completion begins at the first assistant turn
                                                               that the model wrote (weight 0: it did not)
    {request: {messages, tools}, response: {choices}}          a log; the completion is the answer alone. The request's
                                                               fields may also stand beside the response
    [message, ...]                                             a conversation without a score

task = task_id, prompt_id, question_id or instance_id, else a hash of prompt and tools; an `id` names the row, not its
task, and goes to info. run = run, trial, sample_index or attempt. An answer with several choices gives an experience
for each, all of one task and step.
Old `functions` are tools. Numbers, texts and small objects that are left over go to info.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, identifier, index, items, json_value, mapping, score, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected, build, guarded, split_at_first_answer
from pairwright.sources.shapes.chat_messages import message_from_chat, tools_from_chat
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind
from pairwright.sources.shapes.traces import pick_reward

NAME = "openai-chat"
REWARD_KEYS = ("reward", "score", "rating")
TASK_KEYS = ("task_id", "prompt_id", "question_id", "instance_id")
RUN_KEYS = ("run", "run_index", "trial", "sample_index", "attempt")
_MAX_CHOICES = 128
_READ = frozenset({"messages", "tools", "functions", "request", "response", "reward_components", *TASK_KEYS})
# What other formats put beside `messages`; a row with one of these is theirs.
_FOREIGN = (
    "chosen", "rejected", "chosen_messages", "rejected_messages", "traj", "trajectory", "conversations", "eid",
    "trajectory_format", "resolved", "test_result", "samples", "completions", "preferred_output",
)  # fmt: skip


def matches(value: Any) -> bool:
    if isinstance(value, list):
        return bool(value) and all(map(_is_message, value)) and any(item["role"] == "assistant" for item in value)
    if not isinstance(value, dict) or any(key in value for key in _FOREIGN):
        return False
    if isinstance(value.get("request"), dict) and _has_choices(value):
        return _is_conversation(value["request"].get("messages"))
    return _is_conversation(value.get("messages"))


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    if isinstance(value, list):
        value = {"messages": value}
    row = mapping(value, "row")
    if "messages" not in row or _has_choices(row):
        yield from _read_log(row, origin, options)
        return
    messages = _messages(row.get("messages"), "messages")
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("messages: no assistant message that the model wrote, so there is no completion")
    yield _experience(row, row, origin, options, prompt=prompt, completion=completion)


def _read_log(row: Json, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    """A logged request: what was sent is the prompt, each choice of the answer is a completion."""
    request = row if "messages" in row else mapping(row.get("request"), "request")
    response = mapping(row.get("response"), "response")
    prompt = _messages(request.get("messages"), "request.messages")
    choices = items(response.get("choices"), "response.choices")
    if not choices:
        raise BadRecord("response.choices: none, so there is no completion")
    for number, choice in enumerate(choices):
        where = f"response.choices[{number}]"
        choice = mapping(choice, where)
        answer = message_from_chat({"role": "assistant", **mapping(choice.get("message"), f"{where}.message")}, where)
        model = response.get("model", request.get("model"))
        yield _experience(
            row,
            request,
            origin,
            options,
            prompt=prompt,
            completion=[answer],
            # Choices need runs of their own: each line of the file has room for 128.
            run=origin.ordinal * _MAX_CHOICES + number if len(choices) > 1 else None,
            model=model if isinstance(model, str) else None,
            truncate_status="response_truncated" if choice.get("finish_reason") == "length" else None,
        )


def _experience(
    row: Json,
    request: Json,
    origin: Origin,
    options: Options,
    *,
    prompt: list[Message],
    completion: list[Message],
    run: int | None = None,
    model: str | None = None,
    truncate_status: str | None = None,
) -> Experience:
    # Tools stand in the request, scores and ids in the row around it.
    tools = tools_of(request)
    reward, components = reward_of(row, options)
    return build(
        NAME,
        origin,
        task=task_of(row),
        run=run_of(row) if run is None else run,
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=error_sites([*prompt, *completion], tools, result_error_kind),
        info=_info(row, request),
        model_version=model,
        truncate_status=truncate_status,
    )


def task_of(row: Json) -> int | str | None:
    """The id that the row gives its task, or None."""
    for key in TASK_KEYS:
        task = identifier(row.get(key))
        if task is not None:
            return task
    return None


def run_of(row: Json) -> int | None:
    for key in RUN_KEYS:
        number = index(row.get(key))
        if number is not None:
            return number
    return None


def tools_of(row: Json) -> list[Json]:
    """The tools of a row or request: `tools`, also as JSON text, or the old `functions`."""
    tools = json_value(row.get("tools"), "tools")
    if not tools and row.get("functions"):
        functions = tools_from_chat(json_value(row["functions"], "functions"), "functions")
        return [{"type": "function", "function": function} for function in functions]
    return tools_from_chat(tools, "tools")


def reward_of(row: Json, options: Options) -> tuple[float | None, Json | None]:
    """The first of reward, score and rating; the component that the user names goes before them."""
    components = row.get("reward_components")
    components = components if isinstance(components, dict) else None
    value = next((row[key] for key in REWARD_KEYS if row.get(key) is not None), None)
    if isinstance(value, dict):
        # A reward that is an object holds components; those under their own key override it.
        components, value = {**value, **(components or {})}, None
    if options.reward is not None:
        named = score((components or {}).get(options.reward))
        return (score(row.get(options.reward)) if named is None else named), components
    # No single number: the rule for components decides.
    if value is None and components:
        return pick_reward(components, None), components
    return score(value), components


def _messages(value: Any, where: str) -> list[Message]:
    """The messages; an assistant turn of weight 0 was not written here and is not generated."""
    messages = []
    for number, item in enumerate(items(json_value(value, where), where)):
        # OpenAI's fine-tuning data mark turns that are not trained with weight 0.
        weight = item.get("weight") if isinstance(item, dict) else None
        generated = False if weight == 0 and item.get("role") == "assistant" else None
        messages.append(message_from_chat(item, f"{where}[{number}]", generated=generated))
    return messages


def _info(row: Json, request: Json) -> Json:
    info = small_fields(row, _READ)
    for key in REWARD_KEYS:  # a score that is no number, such as "good", stays
        if isinstance(info.get(key), dict) or score(info.get(key)) is not None:
            del info[key]
    parallel = request.get("parallel_tool_calls")
    if parallel is not None:
        info["parallel_tool_calls"] = parallel
    return info


def _has_choices(row: Json) -> bool:
    return isinstance(row.get("response"), dict) and "choices" in row["response"]


def _is_message(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("role"), str):
        return False
    content = value.get("content")
    if isinstance(content, list) and any(isinstance(part, dict) and "value" in part for part in content):
        return False  # LLaMA-Factory's parts
    return "type" not in value or value["type"] == "message"


def _is_conversation(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_message, value))


read = guarded(read_unit)

FORMAT = Format(
    name=NAME, unit="record", matches=matches, read=read, summary="OpenAI chat rows, logs and conversations"
)
