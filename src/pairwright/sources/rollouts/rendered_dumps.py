"""Rollouts that verl and SkyRL dump as decoded text:

    verl     {input, output, gts, score, step, ...}                              further numbers are reward components
    SkyRL    {input_prompt, output_response, score, stop_reason, env_class, env_extras, data_source}

The texts are already rendered by a chat template, so they are raw text (role `text`) and never rendered again. The task
is a hash of prompt and ground truth. A list of scores has one score per token; the reward is its sum.
"""

from collections.abc import Callable, Iterator
from typing import Any

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.assemble import Parts, ReadParts
from pairwright.sources.fields import BadRecord, index, mapping, score, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected

VERL, SKYRL = "verl", "skyrl"
# Format -> names of prompt, completion and ground truth
_FIELDS = {VERL: ("input", "output", "gts"), SKYRL: ("input_prompt", "output_response", "env_extras")}
_NO_SCORES = frozenset({"step", "score", "request_id", "uid", "index"})


def matches_verl(value: Any) -> bool:
    return _has_texts(value, VERL) and "score" in value and index(value.get("step")) is not None


def matches_skyrl(value: Any) -> bool:
    return _has_texts(value, SKYRL) and "score" in value


def _has_texts(value: Any, name: str) -> bool:
    return isinstance(value, dict) and all(isinstance(value.get(key), str) for key in _FIELDS[name][:2])


def _reader(name: str) -> ReadParts:
    prompt_key, completion_key, truth_key = _FIELDS[name]
    read_fields = frozenset({prompt_key, completion_key, "score"})

    def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
        row = mapping(value, "row")
        components = {
            key: item for key, item in row.items() if type(item) in (int, float, bool) and key not in _NO_SCORES
        }
        completion = text(row.get(completion_key), completion_key)
        yield Parts(
            name,
            origin,
            task=None,
            task_metadata=row.get(truth_key),
            prompt=[Message(TEXT, text(row.get(prompt_key), prompt_key))],
            completion=[Message(TEXT, completion, generated=True)],
            reward=_reward(row),
            reward_components=components,
            truncate_status="response_truncated" if row.get("stop_reason") == "length" else None,
            info=small_fields(row, read_fields | components.keys()),
        )

    return read


def _reward(row: Json) -> float | None:
    value = row.get("score")
    if not isinstance(value, list):
        return score(value)
    scores = [score(item) for item in value]
    if None in scores:
        raise BadRecord("score: a list with something that is not a number")
    return sum(number for number in scores if number is not None)


def _format(name: str, matches: Callable[[Any], bool], summary: str) -> Format:
    return Format(name, "record", matches, _reader(name), summary)


VERL_FORMAT = _format(VERL, matches_verl, "Rollouts that verl dumps")
SKYRL_FORMAT = _format(SKYRL, matches_skyrl, "Evaluations that SkyRL dumps")
