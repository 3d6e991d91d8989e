"""Results of evaluation tools: lm-evaluation-harness samples, promptfoo results, OpenAI eval items and logs.

    lm-eval        {doc_id, doc, arguments, resps, filtered_resps, metrics: [name], <name>: number}, one per line
    promptfoo      {results: {results: [{prompt{raw}, response{output}, score, provider, vars}]}}, or its rows as lines
    openai-evals   {object: "eval.run.output_item", sample{input, output}, results: [{name, score, passed}]};
                   logs of the package `evals`: {sample_id, type: "sampling" | "match" ..., data}, one event per line

`doc`, `target` and `vars` hold the question or the reference, never an answer.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.datasets.rows import read_turns
from pairwright.sources.fields import (
    BadRecord,
    filled,
    has,
    identifier,
    items,
    mapping,
    object_or_empty,
    objects_in,
    score,
    small_fields,
    text,
    text_or_none,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.score_values import read_score
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.traces import pick_reward

PROMPTFOO, OPENAI_EVALS = "promptfoo", "openai-evals"
_EVENTS = ("sampling", "match", "metrics", "raw_sample")
_LM_EVAL = frozenset({"arguments", "resps", "filtered_resps", "doc", "doc_id"})


def _prompt(value: Any, where: str) -> list[Message]:
    value = decode_json_text(value)
    return [Message("user", value)] if isinstance(value, str) else read_turns(value, where)


def _take_lm_eval(row: Json) -> Iterator[Json]:
    asked = row.get("arguments")
    if isinstance(asked, dict):  # {gen_args_0: {arg_0: prompt, arg_1: settings}}
        asked = [list(mapping(one, "arguments").values()) for one in asked.values()]
    requests = [one for one in items(asked, "arguments") if isinstance(one, list) and one]
    responses = row.get("resps") or row.get("filtered_resps")
    # Samples of one request; likelihoods of given continuations are (number, flag) pairs.
    answers = [one for some in items(responses, "resps") for one in (some if isinstance(some, list) else [some])]
    if not answers or not all(isinstance(answer, str) for answer in answers):
        raise BadRecord("resps: likelihoods of given answers, so the model wrote none")
    if len(requests) != 1:
        raise BadRecord(f"arguments: {len(requests)} requests, expected one that generates text")
    asked = requests[0][0]
    prompt = _prompt(asked[0] if isinstance(asked, list) and len(asked) == 1 else asked, "arguments")
    metrics = row.get("metrics")
    names = metrics if isinstance(metrics, list) else [name for name in row if name not in _LM_EVAL]
    components = filled({name: score(row.get(name)) for name in names if isinstance(name, str)})
    for answer in answers:
        yield {
            "task": identifier(row.get("doc_id")),
            "prompt": prompt,
            "completion": [Message("assistant", answer)],
            "tools": (),
            "reward": pick_reward(components, None) if len(answers) == 1 else None,
            "reward_components": components if len(components) > 1 or len(answers) > 1 else None,
            "read_fields": frozenset(components),
        }


def _promptfoo_rows(value: Any) -> list[Json]:
    results = object_or_empty(value).get("results")
    inner = results.get("results") if isinstance(results, dict) else results
    rows = inner if isinstance(inner, list) else [value]
    return [row for row in rows if has(row, "response", "vars", "success")]


def read_promptfoo(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield an experience for each answer of a provider; rows without an answer are rejected with their error."""

    def read_row(row: Json, number: int) -> list[Parts]:
        return [_promptfoo_row(row, origin.at(origin.line, origin.ordinal + number))]

    yield from read_each(PROMPTFOO, origin, _promptfoo_rows(value), "results", read_row)


def _promptfoo_row(row: Json, origin: Origin) -> Parts:
    response = mapping(row["response"], "response")  # checked by `_promptfoo_rows`
    output = response.get("output")
    if output in (None, ""):
        raise BadRecord(f"no output: {str(row.get('error') or response.get('error') or 'no error given')[:200]}")
    if isinstance(output, str):
        answer = [Message("assistant", output)]
    else:
        calls = {"content": None, "tool_calls": output} if isinstance(output, list) else output
        answer = read_turns([{"role": "assistant", **mapping(calls, "response.output")}], "response.output")
    asked = row.get("prompt")
    raw = asked.get("raw") if isinstance(asked, dict) else asked
    if not raw:
        raise BadRecord("prompt.raw: the prompt that was sent is missing")
    components = {name: score(number) for name, number in object_or_empty(row.get("namedScores")).items()}
    chosen = row.get("score") if row.get("score") is not None else row["success"]
    provider = row.get("provider")
    model = provider.get("label") or provider.get("id") if isinstance(provider, dict) else provider
    return Parts(
        PROMPTFOO,
        origin,
        prompt=_prompt(raw, "prompt.raw"),
        completion=answer,
        reward=read_score(chosen),
        reward_components=filled(components) or None,
        info=small_fields(row, frozenset({"response", "prompt", "score", "namedScores", "provider"})),
        model_version=text_or_none(model),
    )


def _take_openai_item(row: Json) -> Iterator[Json]:
    """Yield the record of an output item; its reward is the score of its only grader, or of the named one."""
    sample = mapping(row.get("sample"), "sample")
    grades = {}
    for number, result in enumerate(objects_in(items(row.get("results", []), "results"))):
        grade = score(result.get("score"))
        grades[str(result.get("name", number))] = read_score(result.get("passed")) if grade is None else grade
    components = filled(grades)
    reward = pick_reward(components, None)
    if reward is None and len(components) > 1:
        reward = read_score(row.get("status"))  # "pass" if all graders passed
    yield {
        "task": identifier(row.get("datasource_item_id")),
        "prompt": read_turns(sample.get("input"), "sample.input"),
        "completion": read_turns(sample.get("output"), "sample.output"),
        "reward": reward,
        "reward_components": components if len(components) > 1 else None,
        "model_version": text_or_none(sample.get("model")),
    }


def is_openai_log(value: Any) -> bool:
    return any(event.get("type") in _EVENTS and has(event, "sample_id", data=dict) for event in objects_in(value))


def read_openai_log(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield an experience for each sampling event, scored by the events of the same sample."""
    by_sample: dict[Any, list[Json]] = {}
    for event in items(value, "events"):
        if has(event, data=dict):
            by_sample.setdefault(identifier(event.get("sample_id")), []).append(event)
    for number, (sample, events) in enumerate(by_sample.items()):
        sampled = [event["data"] for event in events if event.get("type") == "sampling"]
        scores = {
            name: found
            for event in events
            if event.get("type") in ("match", "metrics")
            for name, part in event["data"].items()
            if (found := score(part)) is not None and not isinstance(part, str)
        }
        try:
            if len(sampled) != 1:
                raise BadRecord(f"sample {sample!r}: {len(sampled)} sampling events, expected one")
            answers = sampled[0].get("sampled")
            answer = answers[0] if isinstance(answers, list) and answers else answers
            yield Parts(
                OPENAI_EVALS,
                origin.at(origin.line, number),
                task=sample,
                prompt=_prompt(sampled[0].get("prompt"), "prompt"),
                completion=[Message("assistant", text(answer, "sampled"))],
                reward=scores.get("correct", pick_reward(scores, None)),
                reward_components=scores if len(scores) > 1 else None,
            )
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, None, str(error), OPENAI_EVALS)


LM_EVAL_FORMAT = RowFormat(
    "lm-eval",
    "Samples of lm-evaluation-harness",
    lambda value: has(value, "doc_id", "arguments", "filtered_resps"),
    _take_lm_eval,
    _LM_EVAL,
    has_system=False,
).format
PROMPTFOO_FORMAT = Format(
    PROMPTFOO, "record", lambda value: bool(_promptfoo_rows(value)), read_promptfoo, "promptfoo results"
)
OPENAI_ITEM_FORMAT = RowFormat(
    OPENAI_EVALS,
    "OpenAI eval items and logs",
    lambda value: has(value) and value.get("object") == "eval.run.output_item",
    _take_openai_item,
    frozenset({"sample", "results", "datasource_item_id"}),
).format
OPENAI_LOG_FORMAT = Format(OPENAI_EVALS, "file", is_openai_log, read_openai_log, "OpenAI eval items and logs")
