"""Declared row formats: a predicate, the fields that are read, and a hook that finds prompt and answers.

Fields common to all row formats are read here: task, tools and scores under their usual names (shapes/row_fields.py),
a separate system prompt, and the small fields that go to info.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.datasets.preference_rows import side_score
from pairwright.sources.datasets.row_names import system_of
from pairwright.sources.fields import BadRecord, mapping, small_fields
from pairwright.sources.format import Format, Options, Origin
from pairwright.sources.shapes.row_fields import REWARD_KEYS, TASK_KEYS, reward_of, run_of, task_of, tools_of

MAX_ANSWERS = 128  # per row: each candidate is a separate run
_OF_ROWS = frozenset({*REWARD_KEYS, *TASK_KEYS, "reward_components", "tools", "functions"})


@dataclass(frozen=True)
class RowFormat:
    """A declared row format.

    `take` yields the fields of `Parts` for each record of a row: prompt and completion, messages, or prompt, chosen and
    rejected. Other fields that it yields override those of the row; `info` is merged with the row's.
    """

    name: str
    summary: str
    matches: Callable[[Any], bool]
    take: Callable[[Json], Iterable[Json]]
    read_fields: frozenset[str]  # others go to info
    begin: Callable[[Any], Json] = lambda value: mapping(value, "row")  # returns the row of a unit
    has_system: bool = True  # False: `take` puts the system prompt into the prompt
    has_runs: bool = False  # a row names its run
    matches_named: Callable[[Any], bool] = lambda value: False
    is_general: bool = False

    def read(self, value: Any, origin: Origin, options: Options) -> Iterator[Parts]:
        row = self.begin(value)
        found = list(self.take(row))
        for number, fields in enumerate(found):
            known = self.read_fields
            if "read_fields" in fields:
                known = known | fields.pop("read_fields")
            usual: Json = {"task": task_of(row), "tools": tools_of(row)}
            info = small_fields(row, known)
            if "chosen" in fields:
                usual |= {f"{side}_reward": side_score(row, side) for side in ("chosen", "rejected")}
            else:
                usual["reward"], usual["reward_components"] = reward_of(row)
                if usual["reward"] is None:  # a non-numeric score, such as "good", stays in info
                    info |= {key: row[key] for key in REWARD_KEYS if key in known and isinstance(row.get(key), str)}
            if len(found) > 1:
                usual["run"] = origin.ordinal * MAX_ANSWERS + number
            elif self.has_runs:
                usual["run"] = run_of(row)
            info |= fields.pop("info", {})
            if self.has_system:
                key = "messages" if "messages" in fields else "prompt"
                fields[key] = [*system_of(row, fields[key]), *fields[key]]
            yield Parts(self.name, origin, **{**usual, **fields, "info": info})

    @property
    def format(self) -> Format:
        return Format(
            self.name,
            "record",
            self.matches,
            self.read,
            self.summary,
            matches_named=self.matches_named,
            is_general=self.is_general,
        )


def history_format(
    name: str,
    summary: str,
    matches: Callable[[Any], bool],
    take: Callable[[Json], Iterable[Json]],
    read_fields: frozenset[str] = frozenset(),
    begin: Callable[[Any], Json] = lambda value: as_row(value),
) -> Format:
    """Return the format of a framework's message history: a bare list, or in a row with the usual fields."""
    return RowFormat(
        name, summary, matches, take, _OF_ROWS | read_fields, begin=begin, has_system=False, has_runs=True
    ).format


def as_row(value: Any) -> Json:
    """Return a row; a bare list of messages becomes the row's only field."""
    return {"messages": value} if isinstance(value, list) else mapping(value, "row")


def history(messages: Sequence[Message], num_prompt: int | None = None, **fields: Any) -> Json:
    """Return the record of a conversation, whose prompt ends before the first answer or has `num_prompt` messages."""
    prompt, completion = split_at_first_answer(list(messages))
    if num_prompt is not None:
        prompt, completion = list(messages[:num_prompt]), list(messages[num_prompt:])
    if not any(message.is_generated for message in completion):
        raise BadRecord("no message that the model wrote, so there is no completion")
    if not prompt:
        raise BadRecord("the conversation begins with an answer, so the prompt is unknown")
    return {"prompt": prompt, "completion": completion, **fields}


def history_in(value: Any, keys: Sequence[str]) -> tuple[Any, str]:
    """Return (history, path) of a unit: the unit itself if it is a list, else the value under one of `keys`."""
    if isinstance(value, dict):
        for key in keys:
            if isinstance(value.get(key), list):
                return value[key], key
    return value, "messages"
