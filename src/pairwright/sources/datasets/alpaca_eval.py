"""AlpacaEval and AlpacaFarm:

    {instruction, input, output_1, output_2, preference, generator_1, generator_2, annotator, ...}   an annotation
    {instruction, output, generator, dataset}                                                        a model's output

`preference` is 1 or 2, or a number between them where the annotator was weighted: below 1.5 the first output is the
better one, above it the second. Ties (0 or 1.5) and annotations that failed (null) are quarantined. An annotation is a
preference without scores; a model's output is an unscored experience of its instruction.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.preference_rows import answer_from, preference_from
from pairwright.sources.fields import BadRecord, identifier, mapping, optional_text, score, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.row_fields import REWARD_KEYS, reward_of, task_of

NAME = "alpaca-eval"
_READ = frozenset({"instruction", "input", "output", "output_1", "output_2", *REWARD_KEYS})
_TIE = 1.5


def matches(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("instruction"), str):
        return False
    if isinstance(value.get("output_1"), str) and isinstance(value.get("output_2"), str):
        return "preference" in value
    return isinstance(value.get("output"), str) and isinstance(value.get("generator"), str)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "row")
    instruction, more = text(row.get("instruction"), "instruction"), optional_text(row.get("input"), "input")
    prompt = [Message("user", f"{instruction}\n{more}" if more else instruction)]
    info = small_fields(row, _READ)
    if "output_1" not in row:
        model = row.get("generator")
        reward, components = reward_of(row)
        yield Parts(
            NAME,
            origin,
            task=task_of(row),
            prompt=prompt,
            completion=answer_from(row.get("output"), "output"),
            reward=reward,
            reward_components=components,
            model_version=model if isinstance(model, str) else None,
            info=info,
        )
        return
    first, second = (answer_from(row.get(key), key) for key in ("output_1", "output_2"))
    chosen, rejected = (first, second) if _prefers_first(row) else (second, first)
    yield preference_from(
        NAME,
        origin,
        prompt=prompt,
        chosen=chosen,
        rejected=rejected,
        tools=[],
        task=identifier(task_of(row)),
        info=info,
    )


def _prefers_first(row: Json) -> bool:
    preference = score(row.get("preference"))
    if preference is None or preference != preference:
        raise BadRecord("preference: none, so the annotation failed")
    if preference in (0, _TIE):
        raise BadRecord(f"preference: {preference} is a tie")
    if not 1 <= preference <= 2:
        raise BadRecord(f"preference: expected 1 to 2, got {preference}")
    return preference < _TIE


FORMAT = Format(NAME, "record", matches, read, "AlpacaEval annotations and outputs")
