"""Test runs of DeepEval: `{testCases: [{input, actualOutput, expectedOutput, success, metricsData[{name, score}]}]}`.

Every test case is a record. Its metrics are the scores, by name; the reward is the only metric, or the one that
`--reward` names. The expected output and `success` go to info. A test case with a `trace` of model calls is read from
its spans (tracing/span_formats.py), with the same scores. Written from the schema.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, read_each
from pairwright.sources.fields import filled, has, mapping, optional_objects, score, small_fields, text, value_at
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.tracing.span_formats import DEEPEVAL

NAME = "deepeval"
_READ = frozenset({"input", "actualOutput", "metricsData"})


def matches(value: Any) -> bool:
    return has(value, testCases=list) and any(has(case, "actualOutput") for case in value["testCases"][:3])


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    cases = mapping(value, "run").get("testCases")

    def read_case(case: Json, number: int) -> Iterator[Parts | Rejected]:
        metrics = [metric for _, metric in optional_objects(case.get("metricsData"), "metricsData")]
        if value_at(case, "trace.llmSpans"):
            trace = case["trace"]
            yield from DEEPEVAL.read({**trace, "metricsData": metrics or trace.get("metricsData")}, origin, options)
            return
        yield Parts(
            NAME,
            origin,
            run=origin.ordinal + number,
            prompt=[Message("user", text(case.get("input"), "input"))],
            completion=[Message("assistant", text(case.get("actualOutput"), "actualOutput"))],
            reward_components=filled({str(metric.get("name")): score(metric.get("score")) for metric in metrics}),
            row=case,
            info=small_fields(case, _READ),
        )

    yield from read_each(NAME, origin, cases, "testCases", read_case)


FORMAT = Format(NAME, "record", matches, read, "DeepEval test runs")
