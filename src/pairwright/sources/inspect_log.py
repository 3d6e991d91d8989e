"""Inspect logs: a `.json` log `{eval, samples[]}`, or one sample of an `.eval` file `{eval, sample}` (inspect_eval.py).

    sample {id, epoch, input, target, messages[], output, scores{name: {value, answer}}, attachments{}, events[], error}

task = sample id, run = epoch. The conversation is `messages`; the prompt ends before the first assistant message that
the model generated (`source` is not "input"). Tools are those of the model events whose answers stand in it.
`attachment://` (and `tc://` of old logs) is replaced by the text that it stands for.

Reward: "C" (correct) is 1, "I" (incorrect) 0, "P" (partial) 0.5, "N" (no answer) 0, yes/true 1, no/false 0; numbers and
booleans are what they are. By default the first scorer's, which is the one that Inspect reports first; options.reward
names another scorer, or `scorer.key` where a value is an object. An object without a named key gives no reward, unless
it has one key only. All are kept in reward_components.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.errors import RecordError
from pairwright.messages import Json, Message
from pairwright.records import Experience
from pairwright.sources.boundary import guarded
from pairwright.sources.errors_seen import error_sites
from pairwright.sources.fields import BadRecord, identifier, index, items, mapping, optional_mapping, score
from pairwright.sources.format import Format, Options, Origin, Rejected, build, split_at_first_answer
from pairwright.sources.inspect_messages import error_kind, message_from_inspect, resolved, tools_of_events

NAME = "inspect"
_GRADES = {"C": 1.0, "I": 0.0, "P": 0.5, "N": 0.0, "yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}
_CUT_SHORT = ("max_tokens", "model_length")


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("eval"), dict) or "task" not in value["eval"]:
        return False
    return isinstance(value.get("samples"), list) or "sample" in value or ("version" in value and "status" in value)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Experience | Rejected]:
    log = mapping(value, "log")
    header = optional_mapping(log.get("eval"), "eval")
    if isinstance(log.get("problem"), str):  # a member of an .eval file that could not be read
        raise BadRecord(log["problem"])
    if "sample" in log:
        yield _experience(mapping(log["sample"], "sample"), header, origin, options)
        return
    if log.get("samples") is None:
        raise BadRecord("samples: the log has none (it is only a header, or the run did not finish)")
    for number, sample in enumerate(items(log["samples"], "samples")):
        where = f"samples[{number}]"
        try:
            yield _experience(mapping(sample, where), header, origin, options)
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, origin.line, f"{where}: {error}", format=NAME)


def _experience(sample: Json, header: Json, origin: Origin, options: Options) -> Experience:
    stored = _stored(sample)
    output = optional_mapping(sample.get("output"), "output")
    messages = _messages(sample, output, stored)
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("messages: the model generated none, so there is no completion")
    tools = tools_of_events(sample, stored)
    reward, components = _reward(_scores(sample), options.reward)
    return build(
        NAME,
        origin,
        task=identifier(sample.get("id")),
        run=index(sample.get("epoch")),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        errors=error_sites(messages, tools, error_kind),
        info=_info(sample, header),
        metrics=_metrics(sample),
        model_version=_model(output, header),
        truncate_status="response_truncated" if _stop_reason(output) in _CUT_SHORT else None,
    )


def _stored(sample: Json) -> Json:
    """Texts that are kept once and referred to, by their reference."""
    stored: Json = {}
    transcript = sample.get("transcript")
    old = transcript.get("content") if isinstance(transcript, dict) else None
    for prefix, texts in (("tc://", old), ("attachment://", sample.get("attachments"))):
        if isinstance(texts, dict):
            stored.update({prefix + key: item for key, item in texts.items() if isinstance(item, str)})
    return stored


def _messages(sample: Json, output: Json, stored: Json) -> list[Message]:
    turns = resolved(sample.get("messages"), stored)
    if not turns:  # some logs keep only what went in and what came out
        given = resolved(sample.get("input"), stored)
        turns = [{"role": "user", "content": given}] if isinstance(given, str) else list(items(given, "input"))
        choices = output.get("choices")
        if isinstance(choices, list) and choices:
            turns.append(resolved(mapping(choices[0], "output.choices[0]").get("message"), stored))
    return [
        message_from_inspect(turn, f"messages[{number}]") for number, turn in enumerate(items(turns, "messages"))
    ]  # fmt: skip


def _scores(sample: Json) -> Json:
    """The entries of the scorers by name; old logs have one without a name."""
    if isinstance(sample.get("scores"), dict):
        return dict(sample["scores"])
    return {"score": sample["score"]} if isinstance(sample.get("score"), dict) else {}


def _reward(scores: Json, name: str | None) -> tuple[float | None, Json]:
    """The reward, and all scores that are numbers."""
    grades = {key: grade for key, value in _values(scores).items() if (grade := _grade(value)) is not None}
    if name is None:
        first = list(_values(dict(list(scores.items())[:1])))
        name = first[0] if len(first) == 1 else None
    return (None if name is None else grades.get(name)), grades


def _values(scores: Json) -> Json:
    """The value of every scorer; an object gives one value for each key, as `scorer.key`."""
    values: Json = {}
    for scorer, entry in scores.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        if isinstance(value, dict):
            values.update({f"{scorer}.{key}": item for key, item in value.items()})
        else:
            values[scorer] = value
    return values


def _grade(value: Any) -> float | None:
    if isinstance(value, str):
        for grade in (value, value.strip(), value.strip().lower()):
            if grade in _GRADES:
                return _GRADES[grade]
    return score(value)


def _info(sample: Json, header: Json) -> Json:
    info: Json = {}
    for key in ("task", "run_id", "eval_id"):
        if isinstance(header.get(key), str):
            info[f"eval_{key}" if key == "task" else key] = header[key]
    for key in ("target", "metadata", "limit"):
        if sample.get(key):
            info[key] = sample[key]
    error = sample.get("error")
    if error is not None:
        info["error"] = error.get("message") if isinstance(error, dict) else error
    scores = _scores(sample)
    for key, found in (
        ("answers", {name: entry.get("answer") for name, entry in scores.items() if isinstance(entry, dict)}),
        ("other_scores", {name: value for name, value in _values(scores).items() if _grade(value) is None}),
    ):
        if found := {name: value for name, value in found.items() if value is not None}:
            info[key] = found
    return info


def _metrics(sample: Json) -> Json:
    metrics: Json = {
        key: sample[key] for key in ("total_time", "working_time") if isinstance(sample.get(key), int | float)
    }  # fmt: skip
    usage = sample.get("model_usage")
    entries = list(usage.values()) if isinstance(usage, dict) else []
    for key in ("input_tokens", "output_tokens"):
        counts = [index(entry.get(key)) for entry in entries if isinstance(entry, dict)]
        if any(counts):
            metrics[key] = sum(count or 0 for count in counts)
    return metrics


def _model(output: Json, header: Json) -> str | None:
    for value in (header.get("model"), output.get("model")):
        if isinstance(value, str) and value:
            return value
    return None


def _stop_reason(output: Json) -> Any:
    choices = output.get("choices")
    return (
        choices[0].get("stop_reason")
        if isinstance(choices, list) and choices and isinstance(choices[0], dict)
        else None
    )


FORMAT = Format(name=NAME, unit="record", matches=matches, read=guarded(read), summary="Inspect evaluation logs")
