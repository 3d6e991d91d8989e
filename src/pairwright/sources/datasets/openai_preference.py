"""OpenAI preference fine-tuning data (also Together and Fireworks).

    {input: {messages, tools, parallel_tool_calls}, preferred_output: [...], non_preferred_output: [...]}

The input messages are the prompt, regardless of their roles; the outputs are the two sides.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.preference_rows import answer_from, preference_from, prompt_from
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import mapping, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.row_fields import task_of, tools_of

NAME = "openai-preference"
_READ = frozenset({"input", "preferred_output", "non_preferred_output"})
_READ_OF_INPUT = frozenset({"messages", "tools", "functions", *SYSTEMS})


def matches(value: Any) -> bool:
    return isinstance(value, dict) and all(key in value for key in _READ)


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the preference of a row."""
    row = mapping(value, "row")
    input_value = row.get("input")
    # `input` may also be the messages themselves, or the text of the user.
    request = {"messages": input_value} if isinstance(input_value, str | list) else mapping(input_value, "input")
    prompt = prompt_from(request.get("messages"), "input.messages")
    yield preference_from(
        NAME,
        origin,
        task=task_of(row),
        prompt=[*system_of(request, prompt), *prompt],
        chosen=answer_from(row.get("preferred_output"), "preferred_output"),
        rejected=answer_from(row.get("non_preferred_output"), "non_preferred_output"),
        tools=tools_of(request),
        info={**small_fields(row, _READ), **small_fields(request, _READ_OF_INPUT)},
    )


FORMAT = Format(NAME, "record", matches, read, "OpenAI preference fine-tuning data")
