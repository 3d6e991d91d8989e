"""Declared formats of public datasets and services: preferences, ranked answers, rated answers, demonstrations.

    openai-preference    {input: {messages, tools}, preferred_output, non_preferred_output}, also used by
                         Together and Fireworks; `input` may be the messages themselves, or the user's text
    customizer           {prompt, chosen_response, rejected_response} of NeMo Customizer
    nemo-rl-preference   {context, completions: [{rank, completion}, ...]}, a lower rank is better; {prompt, chosen,
                         rejected} only if the format is named, since TRL uses the same keys, or with the `reward_gap`,
                         `chosen_reward` and `rejected_reward` of NeMo Gym's DPO guide. Text becomes a chat turn
    alpaca-eval          {instruction, input, output_1, output_2, preference, ...}, an annotation; {instruction, output,
                         generator}, the output of a model
    ultrafeedback        {instruction, completions: [{model, response, overall_score, annotations}]}, the original
                         {instruction | prompt, generations | responses, ratings}, parallel lists
                         {problem, generations, correctness_math_verify | correctness_llama}, OpenR1 and Trinity tasks
                         {raw_text, completions: [text], models, aspect, text}, requests to a judge: unscored
    customizer-sft       {prompt, completion} or {messages} of NeMo Customizer: demonstrations, with the reward 1.0 or
                         the score that `--reward` names. Only with `--format`: the rows themselves do not say that
                         the answers are good, so otherwise they are unscored (datasets/rows.py)
    xlam                 {query, answers: [{name, arguments}], tools: [{name, description, parameters}]} (xLAM, APIGen),
                         with the calls as JSON text: one turn with these calls, unscored

Scores of the sides are their rewards. Two ranked completions are a preference; more than two, or two of one rank, are
experiences of one task with reward = 0 - rank, or the `reward` of the completion. `preference` of AlpacaEval is 1 or 2,
or a number between them for weighted annotators: below 1.5 the first output is better. UltraFeedback varied the system
prompt between the answers of a row: answers to different system prompts belong to different tasks.
"""

import math
from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message, ToolCall
from pairwright.sources.assemble import split_at_first_answer
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    is_preference_row,
    prompt_from,
)
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    items,
    json_text,
    json_value,
    mapping,
    object_or_empty,
    objects,
    optional_text,
    score,
    small_fields,
    text,
    text_or_none,
)
from pairwright.sources.shapes.chat_messages import messages_from_chat
from pairwright.sources.shapes.row_fields import REWARD_KEYS, task_of, tools_of


def _sides(row: Json, prompt: str, chosen: str, rejected: str) -> Json:
    """Return the preference of a row; its answers may be conversations that include the prompt."""
    given, one, other = conversations_from(
        prompt_from(row.get(prompt), prompt),
        answer_from(row.get(chosen), chosen),
        answer_from(row.get(rejected), rejected),
    )
    return {"prompt": given, "chosen": one, "rejected": other}


_OPENAI = frozenset({"input", "preferred_output", "non_preferred_output"})


def _take_openai(row: Json) -> Iterator[Json]:
    given = row.get("input")
    request = {"messages": given} if isinstance(given, str | list) else mapping(given, "input")
    prompt = prompt_from(request.get("messages"), "input.messages")
    yield {
        "prompt": [*system_of(request, prompt), *prompt],
        "chosen": answer_from(row.get("preferred_output"), "preferred_output"),
        "rejected": answer_from(row.get("non_preferred_output"), "non_preferred_output"),
        "tools": tools_of(request),
        "info": small_fields(request, frozenset({"messages", "tools", "functions", *SYSTEMS})),
    }


OPENAI_PREFERENCE = RowFormat(
    "openai-preference",
    "OpenAI preference fine-tuning data",
    lambda value: has(value, *_OPENAI),
    _take_openai,
    _OPENAI,
)

_CUSTOMIZER = frozenset({"prompt", "chosen_response", "rejected_response"})


def _take_customizer(row: Json) -> Iterator[Json]:
    if not row.keys() >= _CUSTOMIZER:
        raise BadRecord(f"expected the keys prompt, chosen_response and rejected_response, got {sorted(row)[:10]}")
    yield _sides(row, "prompt", "chosen_response", "rejected_response")


CUSTOMIZER = RowFormat(
    "customizer",
    "NeMo Customizer preference data",
    lambda value: has(value, *_CUSTOMIZER),
    _take_customizer,
    _CUSTOMIZER | SCORES | {"tools", *SYSTEMS},
    matches_named=lambda value: True,
)

_GUIDE_REWARDS = ("reward_gap", "chosen_reward", "rejected_reward")


def _is_nemo_rl(value: Any) -> bool:
    if is_preference_row(value) and has(value, *_GUIDE_REWARDS):
        return isinstance(value["prompt"], str)
    is_ranked = has(value, context=str | list, completions=list) and bool(value["completions"])
    return is_ranked and all(has(item, "rank", "completion") for item in value["completions"])


def _take_nemo_rl(row: Json) -> Iterator[Json]:
    if "completions" not in row:
        yield _sides(row, "prompt", "chosen", "rejected")
        return
    # NeMo RL's task_name is the dataset's name, equal in all rows: it stays in info.
    shared: Json = {
        "prompt": prompt_from(row.get("context"), "context"),
        "task": task_of({key: item for key, item in row.items() if key != "task_name"}),
    }
    ranked: list[tuple[float, Json]] = []
    for where, item in objects(row["completions"], "completions"):
        rank = score(item.get("rank"))
        if rank is None or math.isnan(rank):
            raise BadRecord(f"{where}.rank: expected a number, got {item.get('rank')!r}")
        answer = answer_from(item.get("completion"), f"{where}.completion")
        ranked.append((rank, {"completion": answer, "reward": score(item.get("reward")), "row": item}))
    if not ranked:
        raise BadRecord("completions: none")
    if len(ranked) == 2 and ranked[0][0] != ranked[1][0]:
        better, worse = (fields for _, fields in sorted(ranked, key=lambda one: one[0]))
        rewards = {"chosen_reward": better["reward"], "rejected_reward": worse["reward"]}
        yield {**shared, **rewards, "chosen": better["completion"], "rejected": worse["completion"]}
        return
    for number, (rank, fields) in enumerate(ranked):
        # 0.0 - rank, since -rank would give -0.0 for the best rank 0.
        reward = 0.0 - rank if fields["reward"] is None else fields["reward"]
        yield {**shared, **fields, "reward": reward, "run": number, "info": {"rank": rank}}


NEMO_RL_PREFERENCE = RowFormat(
    "nemo-rl-preference",
    "NeMo RL preference data",
    _is_nemo_rl,
    _take_nemo_rl,
    frozenset({"context", "completions", "prompt", "chosen", "rejected", "tools", *SCORES, *SYSTEMS}),
    matches_named=is_preference_row,
)

_TIE = 1.5


def _is_alpaca_eval(value: Any) -> bool:
    if has(value, instruction=str, output_1=str, output_2=str):
        return "preference" in value
    return has(value, instruction=str, output=str, generator=str)


def _take_alpaca_eval(row: Json) -> Iterator[Json]:
    instruction, more = text(row.get("instruction"), "instruction"), optional_text(row.get("input"), "input")
    prompt = [Message("user", f"{instruction}\n{more}" if more else instruction)]
    if "output_1" not in row:
        answer = answer_from(row.get("output"), "output")
        yield {"prompt": prompt, "completion": answer, "model_version": text_or_none(row.get("generator"))}
        return
    preference = score(row.get("preference"))
    if preference is None or math.isnan(preference):
        raise BadRecord("preference: none, so the annotation failed")
    if preference in (0, _TIE):
        raise BadRecord(f"preference: {preference} is a tie")
    if not 1 <= preference <= 2:
        raise BadRecord(f"preference: expected 1 to 2, got {preference}")
    names = ("output_1", "output_2") if preference < _TIE else ("output_2", "output_1")
    chosen, rejected = (answer_from(row.get(key), key) for key in names)
    yield {"prompt": prompt, "chosen": chosen, "rejected": rejected}


ALPACA_EVAL = RowFormat(
    "alpaca-eval",
    "AlpacaEval annotations and outputs",
    _is_alpaca_eval,
    _take_alpaca_eval,
    frozenset({"instruction", "input", "output", "output_1", "output_2", *REWARD_KEYS}),
)

# UltraFeedback: common names of each field; the first one present is used.
_PROMPTS = ("instruction", "raw_text", "prompt", "question", "problem")
_ANSWERS = ("completions", "generations", "responses")
_RATINGS = ("ratings", "rating", "scores", "correctness_math_verify", "correctness_llama", "correctness")
_MODELS = ("models", "generation_models", "model_names")
_SCORES = ("overall_score", "fine-grained_score", "score", "rating")
_READ_OF_ANSWER = frozenset({"response", "completion", "text", "model", "annotations", *_SCORES, *SYSTEMS})


def _is_ultrafeedback(value: Any) -> bool:
    if not isinstance(value, dict) or not any(isinstance(value.get(key), str | list) for key in _PROMPTS):
        return False
    if any(key in value for key in ("labels", "context", "chosen")):
        return False
    answers = next((value[key] for key in _ANSWERS if isinstance(value.get(key), list)), None)
    if not answers:
        return False
    if all(isinstance(answer, dict) for answer in answers):
        return all(isinstance(answer.get("response", answer.get("completion")), str | list) for answer in answers)
    # A list of texts is ambiguous without a parallel list of ratings or models.
    return all(isinstance(answer, str) for answer in answers) and any(key in value for key in (*_RATINGS, *_MODELS))


def _take_ultrafeedback(row: Json) -> Iterator[Json]:
    key = next((key for key in _PROMPTS if row.get(key) is not None), None)
    if key is None:
        raise BadRecord(f"no prompt: expected one of {', '.join(_PROMPTS)}")
    prompt = prompt_from(row[key], key)
    field = next((key for key in _ANSWERS if key in row), "completions")
    answers = items(row.get(field), field)
    if not answers:
        raise BadRecord(f"{field}: none")
    for number, item in enumerate(answers):
        where = f"{field}[{number}]"
        answer = item if isinstance(item, dict) else _answer_beside(row, number, text(item, where))
        texts = (answer[key] for key in ("response", "completion", "text") if answer.get(key) is not None)
        components = _components(answer)
        yield {
            "task": identifier(row.get("prompt_hash")) or task_of(row),
            "run": number,
            "prompt": [*(system_of(answer, prompt) or system_of(row, prompt)), *prompt],
            "completion": answer_from(next(texts, None), where),
            "tools": (),
            "reward": next((components[key] for key in _SCORES if key in components), None),
            "reward_components": components,
            "info": small_fields(answer, _READ_OF_ANSWER),
            "model_version": text_or_none(answer.get("model")),
        }


def _components(answer: Json) -> Json:
    """Return all numeric scores of an answer by name, and the rating of each aspect."""
    components = filled({key: score(answer.get(key)) for key in _SCORES})
    for aspect, annotation in object_or_empty(answer.get("annotations")).items():
        # Of several judgements of one aspect, the first is used.
        first = object_or_empty(annotation[0] if isinstance(annotation, list) and annotation else annotation)
        components |= filled({aspect: score(first.get("Rating", first.get("rating")))})
    return components


def _answer_beside(row: Json, number: int, answer: str) -> Json:
    """Return a text answer as an object, with its score and model from the parallel lists."""
    fields: Json = {"response": answer}
    for name, keys in (("score", _RATINGS), ("model", _MODELS)):
        values: list[Any] = next((row[key] for key in keys if isinstance(row.get(key), list)), [])
        if number < len(values) and values[number] is not None:
            fields[name] = values[number]
    return fields


ULTRAFEEDBACK = RowFormat(
    "ultrafeedback",
    "UltraFeedback answers with ratings",
    _is_ultrafeedback,
    _take_ultrafeedback,
    frozenset({*_PROMPTS, *_ANSWERS, *_RATINGS, *_MODELS, *SYSTEMS}),
    has_system=False,
)


def _take_demonstration(row: Json) -> Iterator[Json]:
    if "messages" in row:
        prompt, answer = split_at_first_answer(messages_from_chat(row["messages"], "messages"))
    elif "prompt" in row and "completion" in row:
        prompt, answer = prompt_from(row["prompt"], "prompt"), answer_from(row["completion"], "completion")
    else:
        raise BadRecord(f"expected the keys prompt and completion, or messages, got {sorted(row)[:10]}")
    if not (prompt or system_of(row, prompt)) or not answer or not answer[0].is_generated:
        raise BadRecord("expected a prompt and an answer of the assistant after it")
    if not any(message.text.strip() or message.tool_calls for message in answer):
        raise BadRecord("the answer is empty")
    # The user declared it a demonstration with `--format`, so it counts as correct.
    yield {"prompt": prompt, "completion": answer, "reward": 1.0, "reward_components": None}


CUSTOMIZER_SFT = RowFormat(
    "customizer-sft",
    "NeMo Customizer fine-tuning data",
    lambda value: False,
    _take_demonstration,
    frozenset({"prompt", "completion", "messages", "tools", *SYSTEMS}),
    matches_named=lambda value: True,
)

_XLAM = frozenset({"query", "answers", "tools"})
_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "list": "array", "dict": "object"}


def _is_xlam(value: Any) -> bool:
    if not has(value, *_XLAM, query=str):
        return False
    try:
        listed = [json_value(value[key], key) for key in ("answers", "tools")]
    except BadRecord:
        return False
    return all(isinstance(one, list) and bool(one) and all(has(item, "name") for item in one) for one in listed)


def _take_xlam(row: Json) -> Iterator[Json]:
    calls = tuple(
        ToolCall(text(call.get("name"), f"{where}.name"), json_text(call.get("arguments", {})), f"call_{number}")
        for number, (where, call) in enumerate(objects(json_value(row.get("answers"), "answers"), "answers"))
    )
    tools = [_schema(tool) for _, tool in objects(json_value(row.get("tools"), "tools"), "tools")]
    yield {
        "prompt": [Message("user", text(row.get("query"), "query"))],
        "completion": [Message("assistant", tool_calls=calls)],
        "tools": tools,
    }


def _schema(tool: Json) -> Json:
    """Return a tool as a function schema; parameters by name, {a: {type: str}}, become the properties of an object."""
    parameters = tool.get("parameters")
    if isinstance(parameters, dict) and "properties" not in parameters:
        properties = {name: _property(item) for name, item in parameters.items()}
        parameters = {"type": "object", "properties": properties}
    return {"type": "function", "function": {**tool, "parameters": parameters}}


def _property(item: Any) -> Any:
    if not has(item, type=str):
        return item
    kind = item["type"].partition(",")[0].strip()  # "str, optional"
    return {**item, "type": _TYPES.get(kind, kind)}


XLAM = RowFormat("xlam", "xLAM function calls", _is_xlam, _take_xlam, _XLAM)
