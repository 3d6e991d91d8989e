"""Rollouts that verl and SkyRL dump as decoded text:

    verl     {input, output, gts, score, step, ...}                              further numbers are reward components
    SkyRL    {input_prompt, output_response, score, stop_reason, env_class, env_extras, data_source}

The texts are already rendered by a chat template, so they are raw text (role `text`) and never rendered again. The task
is a hash of prompt and ground truth. A list of scores has one score per token; the reward is its sum.
"""

from collections.abc import Iterator

from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.datasets.row_format import RowFormat
from pairwright.sources.fields import BadRecord, has, index, score, text

_NO_SCORES = frozenset({"step", "score", "request_id", "uid", "index"})


def _take(row: Json, prompt_key: str, completion_key: str, truth_key: str) -> Iterator[Json]:
    components = {key: item for key, item in row.items() if type(item) in (int, float, bool) and key not in _NO_SCORES}
    value = row.get("score")
    scores = list(map(score, value)) if isinstance(value, list) else None
    if scores is not None and None in scores:
        raise BadRecord("score: a list with something that is not a number")
    yield {
        "task": None,
        "task_metadata": row.get(truth_key),
        "completion": [Message(TEXT, text(row.get(completion_key), completion_key), generated=True)],
        "prompt": [Message(TEXT, text(row.get(prompt_key), prompt_key))],
        "tools": (),
        "reward": score(value) if scores is None else sum(number for number in scores if number is not None),
        "reward_components": components,
        "truncate_status": "response_truncated" if row.get("stop_reason") == "length" else None,
        "read_fields": frozenset(components),
    }


VERL_FORMAT = RowFormat(
    "verl",
    "Rollouts that verl dumps",
    lambda value: has(value, "score", input=str, output=str) and index(value.get("step")) is not None,
    lambda row: _take(row, "input", "output", "gts"),
    frozenset({"input", "output", "score"}),
    has_system=False,
).format
SKYRL_FORMAT = RowFormat(
    "skyrl",
    "Evaluations that SkyRL dumps",
    lambda value: has(value, "score", input_prompt=str, output_response=str),
    lambda row: _take(row, "input_prompt", "output_response", "env_extras"),
    frozenset({"input_prompt", "output_response", "score"}),
    has_system=False,
).format
