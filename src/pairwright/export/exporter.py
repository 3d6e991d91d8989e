"""The export loop: read pairs batch by batch, write the output atomically, count refused and noted pairs.

A target describes its lines as a sequence of parts (`Layout`), and the lines of a batch are joined at once:

    [*checks, *json_line({"prompt": Part(write_chat, "prompt"), "chosen": Part(write_chat, "chosen"), ...})]

A part depends on some columns of a pair, and is computed once for each distinct combination of their values: a text
that is in many pairs is decoded, checked and encoded once. Columns are `prompt`, `chosen` and `rejected` (Content),
`tools` (JSON text with functions nested as in chat APIs, or None), and both rewards. Parts and checks run in the order
of the layout. The first one that raises Unfit refuses the pair, and later ones skip it. A pair that is written
incompletely, or that the target trains differently, is noted. Always pairs = written + refused.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import ConfigError, PairwrightError
from pairwright.export.chat_lines import (
    Content,
    Context,
    Unfit,
    check_has_prompt,
    check_is_chat,
    check_side,
    note_extra,
    read_contents,
    refuse_if,
)
from pairwright.pairs.memory_pool import plain_memory
from pairwright.pairs.pair_table import has_tools, pair_batches
from pairwright.paths import Place, write_atomic
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Json, canonical_messages
from pairwright.records.tool_texts import to_chat_tool

Indices = npt.NDArray[np.int64]
NARROW = ("id", "weight", "chosen_reward", "rejected_reward")
_MESSAGES = ("prompt", "chosen", "rejected")
CONTENT = (*_MESSAGES, "tools")
_NUM_EXAMPLES = 5


class Part:
    """Bytes of a line: `function` takes the column values; raises Unfit if the target cannot represent them."""

    def __init__(self, function: Callable[..., bytes], *columns: str) -> None:
        self.function, self.columns = function, columns


class Check:
    """A check that writes nothing: `function` returns the reasons under which the pair is noted, or raises Unfit.

    It runs once for all plain contents with the same roles, so it must not depend on their texts.
    """

    def __init__(self, function: Callable[..., Sequence[str]], *columns: str) -> None:
        self.function, self.columns = function, columns


class Cut:
    """Move the common prefix of both sides to the prompt, and reduce each side to its next message.

    Refuses pairs in which one side continues the other, and notes those that were cut.
    """


Layout = Sequence[bytes | Part | Check | Cut]
Fields = dict[str, Part | Layout]  # fields of a JSON object by name
# For targets that apply a chat template.
CHAT_CHECKS: Layout = (Check(check_has_prompt, "prompt"), *(Check(check_is_chat, name) for name in _MESSAGES))
# For targets with several messages per side, after these are written.
SIDE_CHECKS: Layout = (Check(note_extra, "prompt"), Check(check_side, "chosen"), Check(check_side, "rejected"))
# After the cut, a side must be an assistant message that the model generated.
_check_is_generated = refuse_if(
    lambda side: side.role != "assistant" or not (side.is_plain or side.messages[0].is_generated),
    "sides_part_at_no_assistant_message",
)
# For targets with one assistant message per side.
CUT_AT_DIVERGENCE: Layout = (Cut(), Check(_check_is_generated, "chosen"), Check(_check_is_generated, "rejected"))


def json_object(fields: Fields) -> Layout:
    """Return the layout of a JSON object."""
    layout: list[bytes | Part | Check | Cut] = []
    for number, (name, value) in enumerate(fields.items()):
        layout.append(b'%b"%b":' % (b"," if number else b"{", name.encode()))
        layout += [value] if isinstance(value, Part) else value
    return [*layout, b"}"]


def json_line(fields: Fields) -> Layout:
    """Return the layout of a line with one JSON object."""
    return [*json_object(fields), b"\n"]


# Results of a function, indexed by the code of its value (None if unfit or unused), and the reason of each unfit code.
_Results = tuple[list[Any], dict[int, str]]


class LineBatch:
    """The pairs of a batch while their lines are written.

    rows      row numbers of the pairs that fit so far
    values    the distinct values of each column; prompts and sides share one list
    codes     for each column, the index in `values` of each pair in `rows`
    refused   reason by row number
    noted     reasons by row number; those of refused pairs are ignored
    """

    def __init__(self, batch: pa.RecordBatch, arguments: str) -> None:
        self.rows = np.arange(batch.num_rows)
        self.refused: dict[int, str] = {}
        self.noted: dict[int, set[str]] = {}
        self.values: dict[str, list[Any]] = {}
        self.codes: dict[str, Indices] = {}
        self._written: list[bytes | npt.NDArray[np.object_]] = []
        self._results: dict[Callable[..., Any], _Results] = {}
        for name in ("chosen_reward", "rejected_reward"):
            self.values[name], self.codes[name] = batch.column(name).to_pylist(), self.rows
        tools, self.codes["tools"] = _distinct_texts([batch.column("tools")])
        self.values["tools"] = [text if text is None else _nest_tools(text) for text in tools]
        texts, codes = _distinct_texts([batch.column(name) for name in _MESSAGES])
        self.codes |= dict(zip(_MESSAGES, np.split(codes, len(_MESSAGES)), strict=True))
        self.values |= dict.fromkeys(_MESSAGES, read_contents(texts, arguments))
        self._kinds = _kinds(self.values["prompt"])
        # Only whole-table targets can store a weight.
        for row in np.flatnonzero(batch.column("weight").to_numpy(zero_copy_only=False) != 1.0).tolist():
            self.noted[row] = {"weight_left_out"}

    def join(self, layout: Layout) -> bytes:
        """Return the lines of all pairs that fit."""
        for part in layout:
            if isinstance(part, bytes) and self._written and isinstance(last := self._written[-1], bytes):
                self._written[-1] = last + part
            elif isinstance(part, bytes):
                self._written.append(part)
            elif isinstance(part, Cut):
                self._cut()
            else:
                self._run(part)
        # Shape (pairs, parts): read row by row, these are the pieces of the file.
        pieces = np.empty((len(self.rows), len(self._written)), object)
        for number, column in enumerate(self._written):
            pieces[:, number] = column
        return b"".join(pieces.ravel().tolist())

    def _run(self, part: Part | Check) -> None:
        """Compute a part or a check for all pairs; refused pairs leave the batch."""
        values, codes = self._combine(part.columns, by_kind=isinstance(part, Check))
        # Prompts and sides share their values, hence also the results of single-column functions.
        is_single = len(part.columns) == 1
        is_shared = is_single and part.columns[0] in _MESSAGES
        found, unfit = self._results.setdefault(part.function, ([], {})) if is_shared else ([], {})
        found += [None] * (len(values) - len(found))
        run: Callable[..., Any] = part.function
        used = np.flatnonzero(np.bincount(codes)).tolist()
        for code in used:
            if found[code] is None:
                try:
                    found[code] = run(values[code]) if is_single else run(*values[code])
                except Unfit as error:
                    unfit[code] = error.reason
        if unfit:
            codes = codes[self._refuse(_places(codes, unfit, len(values)), codes, unfit)]
        if isinstance(part, Part):
            column = np.empty(len(values), object)
            column[:] = found
            self._written.append(column[codes])
        elif notes := {code: found[code] for code in used if found[code]}:
            for place in _places(codes, notes, len(values)).tolist():
                self.noted.setdefault(int(self.rows[place]), set()).update(notes[int(codes[place])])

    def _combine(self, columns: Sequence[str], *, by_kind: bool) -> tuple[list[Any], Indices]:
        """Return the distinct values of some columns together (tuples if several), and the code of each pair.

        With `by_kind`, the first of the plain contents with the same roles represents them all.
        """
        own = [self._kinds[self.codes[name]] if by_kind and name in _MESSAGES else self.codes[name] for name in columns]
        if len(columns) == 1:
            return self.values[columns[0]], own[0]
        codes = own[0]
        for name, others in zip(columns[1:], own[1:], strict=True):
            # Renumbered after each column, since the product of all sizes may overflow.
            both = codes * len(self.values[name]) + others
            _, firsts, codes = np.unique(both, return_index=True, return_inverse=True)
        parts = (
            [self.values[name][code] for code in others[firsts].tolist()]
            for name, others in zip(columns, own, strict=True)
        )
        return list(zip(*parts, strict=True)), codes

    def _refuse(self, places: Indices, codes: Indices, reasons: dict[int, str]) -> npt.NDArray[np.bool_]:
        """Remove the pairs at some places; returns a mask of the others."""
        fits = np.ones(len(self.rows), np.bool_)
        if len(places):
            fits[places] = False
            for place in places.tolist():
                self.refused[int(self.rows[place])] = reasons[int(codes[place])]
            self.rows = self.rows[fits]
            self.codes = {name: column[fits] for name, column in self.codes.items()}
            self._written = [column if isinstance(column, bytes) else column[fits] for column in self._written]
        return fits

    def _cut(self) -> None:
        """Apply `Cut` to the pairs whose sides have several messages."""
        contents = self.values["prompt"]
        chosen, rejected = (self._kinds[self.codes[name]] for name in _MESSAGES[1:])
        is_single = np.zeros(len(contents), np.bool_)
        for code in np.unique(np.concatenate([chosen, rejected])).tolist():
            is_single[code] = len(contents[code].roles) == 1
        several = np.flatnonzero(~(is_single[chosen] & is_single[rejected]))
        if not len(several):
            return
        codes = {name: self.codes[name].copy() for name in _MESSAGES}
        numbers: dict[tuple[int, ...], int] = {}  # number of each new content, by the contents it was cut from
        reasons: dict[int, str] = {}

        def add(key: tuple[int, ...], messages: Sequence[Any]) -> int:
            if key not in numbers:
                numbers[key] = len(contents)
                contents.append(contents[key[0]].replace_messages(messages))
            return numbers[key]

        for place in several.tolist():
            prompt, *sides = (int(codes[name][place]) for name in _MESSAGES)
            try:
                length = _count_shared(*(contents[side] for side in sides))
            except Unfit as unfit:
                reasons[place] = unfit.reason
                continue
            self.noted.setdefault(int(self.rows[place]), set()).add("cut_at_divergence")
            for name, side in zip(_MESSAGES[1:], sides, strict=True):
                codes[name][place] = add((side, length), contents[side].messages[length : length + 1])
            if length:
                whole = (*contents[prompt].messages, *contents[sides[0]].messages[:length])
                codes["prompt"][place] = add((prompt, sides[0], length), whole)
        self.codes |= codes
        self._kinds = _kinds(contents)
        self._refuse(np.array(list(reasons), np.int64), np.arange(len(self.rows)), reasons)


def _count_shared(chosen: Content, rejected: Content) -> int:
    """Return the length of the common prefix of the sides; raises Unfit if one side continues the other."""
    both = zip(canonical_messages(chosen.messages), canonical_messages(rejected.messages), strict=False)
    length = sum(1 for _ in takewhile(lambda forms: forms[0] == forms[1], both))
    if length == min(len(chosen.roles), len(rejected.roles)):
        raise Unfit("one_side_continues_the_other")
    return length


def _distinct_texts(columns: Sequence[pa.DictionaryArray]) -> tuple[list[bytes | None], Indices]:
    """Return the distinct texts of some columns, followed by None for null, and the code of each row."""
    dictionaries, codes = [], []
    num_texts = 0
    for column in columns:
        size = len(column.dictionary)
        own = column.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        used = np.flatnonzero(np.bincount(own[own >= 0], minlength=size))  # a filtered batch may not need all texts
        ranks = np.full(size + 1, -1)  # -1 (null) indexes the last entry
        ranks[used] = np.arange(num_texts, num_texts + len(used))
        codes.append(ranks[own])
        texts = column.dictionary if len(used) == size else column.dictionary.take(pa.array(used))
        dictionaries.append(texts.cast(pa.large_binary()))
        num_texts += len(used)
    distinct = pa.concat_arrays(dictionaries).dictionary_encode()
    numbers = np.append(distinct.indices.to_numpy(zero_copy_only=False), len(distinct.dictionary)).astype(np.int64)
    return [*distinct.dictionary.to_numpy(zero_copy_only=False).tolist(), None], numbers[np.concatenate(codes)]


def _nest_tools(text: bytes) -> str:
    """Return tool schemas in the nested form of chat APIs and templates; unchanged if they already have it."""
    tools = decode(text)
    nested = [to_chat_tool(tool) for tool in tools]
    return (text if nested == tools else encode(nested)).decode()


def _kinds(contents: list[Content]) -> Indices:
    """Return for each content its own code, or that of the first plain content with the same roles."""
    firsts: dict[Any, int] = {}
    return np.array(
        [firsts.setdefault(content.roles, code) if content.is_plain else code for code, content in enumerate(contents)],
        np.int64,
    )


def _places(codes: Indices, some: dict[int, Any], num_codes: int) -> Indices:
    """Return the positions of pairs whose code is a key of `some`."""
    flags = np.zeros(num_codes, np.bool_)
    flags[list(some)] = True
    return np.flatnonzero(flags[codes])


class ExportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of an export; targets ignore those that do not apply to them."""

    split: Literal["train", "validation", "all"] = "all"
    history: bool = False  # customizer: messages with the full history as prompt, instead of text
    arguments: Literal["text", "object"] = "text"  # tool call arguments in TRL's files: JSON text or objects
    needs_rows: bool = False  # raise NothingFits instead of writing a file without rows

    def __post_init__(self) -> None:
        for name, known in (("split", ("train", "validation", "all")), ("arguments", ("text", "object"))):
            if getattr(self, name) not in known:
                raise ConfigError(f"--{name} {getattr(self, name)!r}: expected {', '.join(known)}")


class ExportSummary(msgspec.Struct, kw_only=True):
    """Counts of an export: `pairs` were read, `written` of them are in the output as `rows` rows.

    >>> import pairwright as pw
    >>> summary = pw.Pairs("runs/first/pairs").export("trl", "pairs.jsonl")
    >>> summary.pairs, summary.written, summary.refused
    (4, 4, {})
    """

    target: str
    pairs: int = 0
    written: int = 0
    rows: int = 0
    refused: dict[str, int] = {}
    noted: dict[str, int] = {}
    examples: dict[str, list[str]] = {}

    def refuse(self, pair: str, reason: str) -> None:
        self._count(self.refused, pair, reason)

    def note(self, pair: str, reason: str) -> None:
        self._count(self.noted, pair, reason)

    def _count(self, counts: dict[str, int], pair: str, reason: str) -> None:
        counts[reason] = counts.get(reason, 0) + 1
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _NUM_EXAMPLES:
            examples.append(pair)


class NothingFits(PairwrightError):
    """Raised if no pair was written; an existing output is unchanged. `summary` has the counts."""

    def __init__(self, summary: ExportSummary, pairs: Place, split: str) -> None:
        self.summary = summary
        if not summary.pairs:
            which = "no pairs" if split == "all" else f"no pairs of the split {split!r}"
            super().__init__(f"{pairs}: {which} to export; see: pairwright pairs stats {pairs}")
            return
        reasons = ", ".join(f"{num:,} × {reason}" for reason, num in sorted(summary.refused.items()))
        super().__init__(
            f"none of {summary.pairs:,} pairs fits {summary.target} ({reasons}); nothing was written. "
            "The page Exports of the documentation says what each target can represent"
        )


def refuse_empty(summary: ExportSummary, pairs: Place, options: ExportOptions) -> None:
    """Raise NothingFits if no pair was written and `needs_rows` is set."""
    if options.needs_rows and not summary.written:
        raise NothingFits(summary, pairs, options.split)


Exporter = Callable[[Place, Place, ExportOptions], ExportSummary]


_OWN_COLUMNS = ("prompt", "chosen", "rejected", "tools", "chosen_reward", "rejected_reward")


def own_lines(write: Callable[[Json], Json | None]) -> Callable[[Context], Layout]:
    """Return the layout of a user's target: `write` returns the row of a pair, or None if the target cannot hold it."""

    def write_line(prompt: Content, chosen: Content, rejected: Content, tools: str | None, *rewards: float) -> bytes:
        messages = [decode(content.json) for content in (prompt, chosen, rejected)]
        row = write(dict(zip(_OWN_COLUMNS, [*messages, decode(tools or "[]"), *rewards], strict=True)))
        if row is None:
            raise Unfit("refused_by_the_target")
        return encode(row) + b"\n"

    return lambda context: [Part(write_line, *_OWN_COLUMNS)]


def jsonl_exporter(target: str, layout_of: Callable[[Context], Layout]) -> Exporter:
    """Return an exporter that writes the lines of each pair to a JSON Lines file."""

    def export(pairs: Place, output: Place, options: ExportOptions) -> ExportSummary:
        summary = ExportSummary(target=target)
        with (
            plain_memory(),
            write_atomic(output, error=PairwrightError) as temporary,
            open(temporary, "wb", buffering=2**16) as file,
        ):
            file.writelines(_all_lines(pairs, layout_of, options, summary))
            refuse_empty(summary, pairs, options)
        return summary

    export.__doc__ = layout_of.__doc__
    return export


def _all_lines(
    pairs: Place, layout_of: Callable[[Context], Layout], options: ExportOptions, summary: ExportSummary
) -> Iterator[bytes]:
    """Yield the lines of all pairs, a batch at a time, and count written, refused and noted pairs in `summary`."""
    layout: Layout = ()
    for batch in split_batches(pairs, options.split, [*NARROW, *CONTENT], dictionaries=True):
        if not summary.pairs:
            layout = layout_of(Context(options.history, _has_tools(pairs, options.split), _is_text(batch)))
        lines = LineBatch(batch, options.arguments)
        text = lines.join(layout)
        num_written = batch.num_rows - len(lines.refused)
        summary.pairs += batch.num_rows
        summary.written += num_written
        summary.rows += num_written * sum(part.count(b"\n") for part in layout if isinstance(part, bytes))
        for row in sorted(lines.refused.keys() | lines.noted.keys()):
            pair = batch.column("id")[row].as_py()
            if row in lines.refused:
                summary.refuse(pair, lines.refused[row])
            else:  # notes count only for pairs that are written
                for reason in sorted(lines.noted[row]):
                    summary.note(pair, reason)
        yield text


def split_batches(
    pairs: Place, split: str, columns: list[str] | None = None, *, dictionaries: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield batches of the pairs of a split, or of all pairs for the split "all"."""
    if split == "all":
        yield from pair_batches(pairs, columns, dictionaries=dictionaries)
        return
    for batch in pair_batches(pairs, None if columns is None else [*columns, "split"], dictionaries=dictionaries):
        rows = batch.filter(pc.equal(batch.column("split"), split))
        if rows.num_rows:
            yield rows if columns is None else rows.select(columns)


def begins_with_text(pairs: Place) -> bool:
    """Return whether the first pair of a table is raw text, outside any chat template."""
    return any(_is_text(batch) for batch in islice(pair_batches(pairs, ["prompt"]), 1))


def _is_text(batch: pa.RecordBatch) -> bool:
    """Return whether the first pair of a batch is raw text."""
    prompt = batch.column("prompt")[0].as_py() if batch.num_rows else None
    # Stored messages are compact JSON that begins with the role: no need to decode.
    return prompt is not None and prompt.startswith('[{"role":"text"')


def _has_tools(pairs: Place, split: str) -> bool:
    if not has_tools(pairs):
        return False
    batches = split_batches(pairs, split, ["tools"], dictionaries=True)
    return any(batch.column("tools").null_count < batch.num_rows for batch in batches)
