"""Turn drafts into rows of the pairs table: fetch the texts of kept drafts, and copy or rewrite them into rows.

The experience tables are scanned once. For a row that is only ever rejected, only the completion is kept. If the texts
of all pairs do not fit in memory, they are spilled in slices: each slice has the texts of a contiguous range of pairs,
and pairs are written slice by slice.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import TableError
from pairwright.generate.template_variables import KEY
from pairwright.pairs.candidates.candidates import PLACE_BITS, Indices, distinct
from pairwright.pairs.candidates.pair_ids import hex_digits, pair_key, pair_keys, words_of
from pairwright.pairs.candidates.trajectories import messages_of
from pairwright.pairs.pair_table import PAIR_SCHEMA, ROWS_PER_GROUP, Filling, first_uses, index_array, int64_array
from pairwright.pairs.spill import Spill
from pairwright.pairs.strategies.imported import side_messages
from pairwright.paths import Place
from pairwright.paths.paths import footers_of
from pairwright.records.json_text import encode, from_json
from pairwright.records.messages import (
    TEXT,
    Message,
    canonical_messages,
    completion_of_text,
    content_hash,
    prompt_hash,
    text_prompt,
)
from pairwright.store.table import Table

# Rewritten texts: plain text as messages, trajectories cut at a message, imported preferences

_LONG = pa.large_string()
_OF_TEXT = ("prompt_text", "response_text")
REJECTED_KEY = f"rejected_{KEY}"  # in the info of a pair whose rejected side had other template variables
REWRITTEN = ("cut", "row_uid", "chosen_at", "rejected_at")  # a draft that has one of them is not a mere copy
_REWRITTEN_COLUMNS = ("id", "prompt_hash", "prompt", "tools", "chosen", "rejected")


def with_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert plain-text prompts and completions to messages, and add `prompt_hash` and `completion_hash`.

    The hashes are null for rows that already had messages. A plain-text prompt becomes a message with the role `text`,
    and so does the completion that follows it.
    """
    columns = {name: rows.column(name) for name in rows.schema.names if name not in _OF_TEXT}
    columns["info"] = _select_variables(columns["info"])
    for name, text in (("prompt", "prompt_text"), ("completion", "response_text")):
        hashes: list[str | None] = []
        if rows.column(text).null_count < len(rows) and columns[name].null_count:
            values = columns[name].to_pylist()
            for row, messages in enumerate(_messages_of_text(rows, name, text)):
                is_text = bool(messages) and values[row] is None
                values[row] = encode(messages).decode() if is_text else values[row]
                hashes.append(_hash(name, messages, columns["tools"][row].as_py()) if is_text else None)
            columns[name] = pa.array(values, _LONG)
        columns[f"{name}_hash"] = pa.array(hashes, pa.string()) if hashes else pa.nulls(len(rows), pa.string())
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def rewrite_texts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Build ids, prompts and sides of drafts that need decoding: cut trajectories and imported preferences.

    `chosen` and `rejected` are the positions of the sides' rows in `texts`. Returns arrays by column name.
    """
    names = [name for name in ("prompt", "tools", "completion", "chosen", "rejected") if name in texts.schema.names]
    # Each row is decoded once, however many pairs it is in; `which` leads back from sides to rows.
    places, which = np.unique(np.concatenate([chosen, rejected]), return_inverse=True)
    rows = texts.select(names).take(places).to_pylist()
    columns: list[list[str | None]] = [[] for _ in _REWRITTEN_COLUMNS]
    for (cut, is_imported, *at), one, two in zip(
        drafts.select(REWRITTEN).iter_rows(), *np.split(which, 2), strict=True
    ):
        if cut is None and is_imported is None:
            values = _cut_at_action(rows[one], rows[two], *at)
        else:
            values = _cut_at_message(rows[one], rows[two], cut)
        for column, value in zip(columns, values, strict=True):
            column.append(value)
    arrays = {name: pa.array(values, _LONG) for name, values in zip(_REWRITTEN_COLUMNS, columns, strict=True)}
    return arrays | {name: arrays[name].cast(pa.string()) for name in ("id", "prompt_hash")}


def _messages_of_text(rows: pa.RecordBatch, name: str, text: str) -> Iterator[tuple[Message, ...]]:
    """Return the plain text of each row as messages."""
    texts = rows.column(text).to_pylist()
    if name == "prompt":
        return map(text_prompt, texts)
    sizes = rows.column("num_prompt_messages").to_pylist()
    return (completion_of_text(value, prompt_is_text=size == 0) for value, size in zip(texts, sizes, strict=True))


def _cut_at_message(row: dict[str, Any], opposite: dict[str, Any], cut: int | None) -> tuple[str | None, ...]:
    """Split two runs after their first `cut` messages, which are the prompt; None: the row is a preference."""
    prompt = messages_of(row["prompt"] or "[]")
    if cut is None:
        prompt_is_text = not prompt or prompt[0].role == TEXT
        chosen, rejected = (side_messages(row[side], prompt_is_text=prompt_is_text) for side in ("chosen", "rejected"))
    else:
        whole = prompt + messages_of(row["completion"] or "[]")
        prompt, chosen = whole[:cut], whole[cut:]
        rejected = (messages_of(opposite["prompt"] or "[]") + messages_of(opposite["completion"] or "[]"))[cut:]
    digest = prompt_hash(prompt, _schemas(row["tools"]))
    key = pair_key(digest, *(content_hash(canonical_messages(side)) for side in (chosen, rejected)))
    texts = [encode(messages).decode() for messages in (prompt, chosen, rejected)]
    return key, digest, texts[0], row["tools"], *texts[1:]


def _cut_at_action(
    row: dict[str, Any], opposite: dict[str, Any], chosen_at: int | None, rejected_at: int | None
) -> tuple[str | None, ...]:
    """Compare single messages of two runs; returns id, prompt hash, prompt, tools, chosen and rejected.

    The prompt is everything before the rejected message, or before the chosen one if only that has a position.
    """
    chosen, rejected = row["completion"] or "[]", opposite["completion"] or "[]"
    prompt, tools = row["prompt"] or "[]", row["tools"]
    if chosen_at is not None:
        prompt, chosen = _cut_out(row, chosen_at)
    if rejected_at is not None:
        (prompt, rejected), tools = _cut_out(opposite, rejected_at), opposite["tools"]
    digest = prompt_hash(messages_of(prompt), _schemas(tools))
    key = pair_key(digest, *(content_hash(canonical_messages(messages_of(side))) for side in (chosen, rejected)))
    return key, digest, prompt, tools, chosen, rejected


def _cut_out(row: dict[str, Any], at: int) -> tuple[str, str]:
    """Return the messages before position `at`, and the message at it, both as JSON."""
    whole = messages_of(row["prompt"] or "[]") + messages_of(row["completion"] or "[]")
    return encode(whole[:at]).decode(), encode(whole[at : at + 1]).decode()


def _hash(name: str, messages: Sequence[Message], tools: str | None) -> str:
    return prompt_hash(messages, _schemas(tools)) if name == "prompt" else content_hash(canonical_messages(messages))


def _schemas(tools: str | None) -> list[Any]:
    return list(msgspec.json.decode(tools)) if tools else []


# Rows of the pairs table, built from drafts and texts

SIDES = ("chosen", "rejected")
_SHARED = ("prompt", "tools", "completion")
_CUT_SIDE = '"truncate_status":"response_truncated"'  # in the JSON of a side; texts have their quotes escaped


@dataclass(frozen=True)
class _Shared:
    """A deduplicated text column.

    texts     the text of each row
    codes     code of each row; rows with equal texts have equal codes, -1 is null
    firsts    the first row of each code
    lengths   length of each code's text in bytes, followed by 0 for null
    """

    texts: pl.Series
    codes: Indices
    firsts: Indices
    lengths: npt.NDArray[np.int64]

    def of(self, rows: Indices) -> pa.DictionaryArray:
        """Return the texts of some rows as a dictionary array."""
        used, places = first_uses(self.codes[rows], len(self.firsts))
        return pa.DictionaryArray.from_arrays(index_array(places), self.texts.gather(self.firsts[used]).to_arrow())

    def sizes(self, rows: Indices) -> npt.NDArray[np.int64]:
        return self.lengths[self.codes[rows]]


def slice_rows(drafts: pl.DataFrame, texts: pa.Table, filling: Filling) -> Iterator[pa.RecordBatch]:
    """Yield batches of the pairs table for the drafts of one slice.

    Args:
        drafts: The drafts of the slice.
        texts: Texts of all rows that the drafts need, sorted by row number.
        filling: State of the current row group; batches end where row groups end.
    """
    drafts = drafts if drafts["place"].is_sorted() else drafts.sort("place")
    copies = all(drafts[name].null_count() == drafts.height for name in REWRITTEN)
    shared = {name: _shared(pl.Series(texts[name])) for name in _SHARED} if copies else {}
    known, uids = texts["row"].to_numpy(), pl.Series(texts["uid"])
    # Rows of a slice come in ascending order, so a binary search finds the place of each side.
    chosen, rejected = (np.searchsorted(known, drafts[f"{side}_row"].to_numpy()) for side in SIDES)
    for side, rows_of_side in (("chosen", chosen), ("rejected", rejected)):
        expected = drafts["row_uid" if drafts["row_uid"].null_count() == 0 else f"{side}_uid"]
        if not uids.gather(rows_of_side).equals(expected):
            raise TableError("the experience table has changed while pairs were built: build them again")
    for start, stop in _pieces(drafts, shared, chosen, rejected, filling):
        some, one, other = drafts.slice(start, stop - start), chosen[start:stop], rejected[start:stop]
        if copies:
            arrays = {name: shared[name].of(one) for name in ("prompt", "tools")}
            arrays |= {"chosen": shared["completion"].of(one), "rejected": shared["completion"].of(other)}
            arrays |= _identities(some, texts, one, other)
        else:
            arrays = rewrite_texts(some, texts, one, other)
        arrays |= _token_facts(some, texts, one, other) | _template_facts(some, texts, one, other)
        columns = [arrays[name] if name in arrays else some[name].to_arrow() for name in PAIR_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, names=PAIR_SCHEMA.names)


def _token_facts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Return for each side whether its experience has recorded token ids, and whether it is truncated.

    The tokens stage needs both. A run is truncated at its end, so a side that is a single message of it is truncated
    only if it is the last message.
    """
    recorded = pc.is_valid(texts["num_tokens"])
    is_cut = pc.equal(texts["truncate_status"], "response_truncated").fill_null(False)
    facts: dict[str, pa.Array] = {}
    for side, rows in zip(SIDES, (chosen, rejected), strict=True):
        own = is_cut
        if side in texts.column_names:  # preferences, whose sides have a status of their own
            own = pc.or_(is_cut, pc.match_substring(texts[side], _CUT_SIDE).fill_null(False))
        facts[f"{side}_recorded"] = recorded.take(int64_array(rows)).combine_chunks()
        facts[f"{side}_cut"] = own.take(int64_array(rows)).combine_chunks()
        if drafts[f"{side}_at"].null_count() < drafts.height:
            last = pc.subtract(pc.add(texts["num_prompt_messages"], texts["num_completion_messages"]), 1)
            is_last = pc.equal(drafts[f"{side}_at"].to_arrow(), last.take(int64_array(rows)).combine_chunks())
            facts[f"{side}_cut"] = pc.and_(facts[f"{side}_cut"], is_last.fill_null(True))
    return facts


def _select_variables(info: pa.Array) -> pa.Array:
    """Of the `info` of experiences only the variables of the chat template, as JSON; null where there are none."""
    mentions = pc.match_substring(info, f'"{KEY}"').fill_null(False)
    if not pc.any(mentions).as_py():
        return pa.nulls(len(info), _LONG)
    values = [
        from_json(text).get(KEY) if mentioned else None
        for text, mentioned in zip(info.to_pylist(), mentions.to_pylist(), strict=True)
    ]
    return pa.array([encode(value, order="sorted").decode() if value else None for value in values], _LONG)


def _template_facts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Return `info` with the template variables that the sides were sampled with, where there are any."""
    if texts["info"].null_count == texts.num_rows:
        return {}
    left, right = (texts["info"].take(int64_array(rows)).to_pylist() for rows in (chosen, rejected))
    infos = []
    for info, mine, theirs in zip(drafts["info"].to_list(), left, right, strict=True):
        facts = {} if mine is None and theirs is None else {KEY: from_json(mine or "{}")}
        if mine != theirs:
            facts[REJECTED_KEY] = from_json(theirs or "{}")
        infos.append(encode({**from_json(info or "{}"), **facts}).decode() if facts else info)
    return {"info": pa.array(infos, _LONG)}


def _pieces(
    drafts: pl.DataFrame, shared: dict[str, _Shared], chosen: Indices, rejected: Indices, filling: Filling
) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of the drafts of each batch."""
    if not shared:
        yield from (
            (start, min(start + ROWS_PER_GROUP, drafts.height)) for start in range(0, drafts.height, ROWS_PER_GROUP)
        )
        return
    sizes = drafts["info"].str.len_bytes().fill_null(0).cast(pl.Int64).to_numpy()
    sizes = shared["completion"].sizes(rejected) + sizes
    for name in _SHARED:
        sizes = sizes + shared[name].sizes(chosen)
    yield from ((start, stop) for start, stop, _ in filling.cut(sizes) if stop > start)


def _shared(texts: pl.Series) -> _Shared:
    codes, firsts = _number_texts(texts)
    lengths = texts.str.len_bytes().gather(firsts).fill_null(0).cast(pl.Int64).to_numpy()
    return _Shared(texts, codes, firsts, np.append(lengths, 0))


def _number_texts(texts: pl.Series) -> tuple[Indices, Indices]:
    """Return a code for each row, equal for equal texts and -1 for null; and the first row of each code."""
    if texts.null_count() == len(texts):
        return np.full(len(texts), -1), np.zeros(0, np.int64)
    # Numbered by 64-bit hash: much faster than by text, and checked below.
    _, firsts, codes = np.unique(texts.hash().to_numpy(), return_index=True, return_inverse=True)
    again = np.flatnonzero(firsts[codes] != np.arange(len(codes)))
    if not texts.gather(again).eq_missing(texts.gather(firsts[codes[again]])).all():  # two texts with one hash
        groups = pl.DataFrame({"text": texts}).with_row_index("row").group_by("text", maintain_order=True).agg("row")
        firsts = groups["row"].list.first().to_numpy()
        codes = np.empty(len(texts), np.int64)
        codes[groups["row"].list.explode().to_numpy()] = np.repeat(np.arange(groups.height), groups["row"].list.len())
    return np.where(texts.is_null().to_numpy(), -1, codes), firsts


def _identities(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Return the ids of pairs and the hashes of their prompts."""
    keys, prompts = drafts["key"], drafts["prompt_hash"]
    if any(texts[name].null_count < texts.num_rows for name in ("prompt_hash", "completion_hash")):
        # plain text is written as a message, whose hash is another
        sides = (
            ("prompt", prompts, chosen),
            ("completion", drafts["chosen_hash"], chosen),
            ("completion", drafts["rejected_hash"], rejected),
        )
        hashes = [
            pl.select(pl.coalesce(pl.Series(texts[f"{name}_hash"].take(int64_array(rows))), hashes)).to_series()
            for name, hashes, rows in sides
        ]
        keys, prompts = hex_digits(pair_keys(*map(words_of, hashes))), hashes[0]
    return {"id": keys.to_arrow(), "prompt_hash": prompts.to_arrow()}


# Fetching the texts of kept drafts, in slices

MAX_SLICES = 1024
_CONTENT = (
    "uid", "prompt", "tools", "completion", "prompt_text", "response_text", "num_prompt_messages",
    "num_completion_messages", "num_tokens", "truncate_status", "info",
)  # fmt: skip
_OF_CHOSEN = ("prompt", "tools", "prompt_text")  # what a pair copies from its chosen row alone
_PIECE_BYTES = 8 * 2**20  # of texts that are parted into slices together
_HELD = 3  # what texts take while they are held and copied, as a multiple of their size
WANTED_BITS = 11  # of a wanted row: the slice that needs it, and in the last bit whether all of it is needed


class PairTexts:
    """Kept drafts and their texts: add all drafts first, then read the rows of the pairs table."""

    def __init__(self, num_drafts: int, num_slices: int, folder: Place | None) -> None:
        folder = None if num_slices == 1 else folder
        self.drafts = Spill(folder, "drafts", kind=pl.DataFrame)
        self._texts = Spill(folder, "texts", kind=pa.Table)
        self._bounds = np.linspace(0, num_drafts, num_slices + 1).astype(np.int64)[1:]
        self._wanted: list[Indices] = []
        self.columns: tuple[str, ...] = _CONTENT

    def add(self, drafts: pl.DataFrame, places: Indices) -> None:
        """Add drafts; `places` are their row numbers in the pairs table."""
        slices = np.searchsorted(self._bounds, places, side="right")
        rewritten_too = (
            drafts.select(pl.any_horizontal(pl.col("cut", "row_uid", "rejected_at").is_not_null()))
            .to_series()
            .to_numpy()
        )
        for side, whole in (("chosen", True), ("rejected", rewritten_too)):
            # Three fields in one int64: row number, slice (10 bits), and whether the prompt is needed too (1 bit).
            self._wanted.append(distinct(drafts[f"{side}_row"].to_numpy() << WANTED_BITS | slices << 1 | whole))
        if drafts["row_uid"].null_count() < drafts.height:
            self.columns = (*_CONTENT, *SIDES)
        drafts = drafts.with_columns(pl.Series("place", places))
        for number in np.flatnonzero(np.bincount(slices)).tolist():
            self.drafts.add(number, drafts if len(self._bounds) == 1 else drafts.filter(pl.Series(slices == number)))

    @property
    def num_slices(self) -> int:
        return len(self._bounds)

    def take_wanted(self) -> Indices:
        """Return the rows whose texts are needed, sorted, and clear the list; the low `WANTED_BITS` are flags.

        The flags are the slice that needs the row and, in the last bit, whether the prompt is needed as well.
        """
        wanted = distinct(np.concatenate([np.zeros(0, np.int64), *self._wanted]))
        self._wanted = []
        twice = (wanted & 1 == 0) & (np.append(wanted[1:], -1) == wanted + 1)  # once in part, and once all of it
        return np.compress(~twice, wanted)

    def rows(self, tables: Sequence[Table]) -> Iterator[pa.RecordBatch]:
        """Yield batches of the pairs table, in order."""
        wanted = self.take_wanted()
        for number, table in enumerate(tables):
            # Table numbers are the highest bits, so the wanted rows of a table are one slice of the sorted array.
            ends = np.array([number, number + 1]) << (PLACE_BITS + WANTED_BITS)
            first, last = np.searchsorted(wanted, ends).tolist()
            for some, texts in fetch_texts_of(
                table, self.columns, wanted[first:last] - ends[0], first=number << PLACE_BITS
            ):
                self._texts.add(some, texts)
        del wanted
        filling = Filling()
        for number in range(self.num_slices):
            drafts = self.drafts.take(number)
            if drafts is not None:
                texts_of_slice = self._texts.take(number)
                assert texts_of_slice is not None, "pairs have texts"
                yield from slice_rows(drafts, texts_of_slice, filling)


def fetch_texts_of(
    table: Table, columns: Sequence[str], wanted: Indices, *, first: int = 0
) -> Iterator[tuple[int, pa.Table]]:
    """Scan a table up to the last text that is needed; yields (slice number, texts).

    Args:
        table: The table, or one segment of it.
        columns: Columns to read.
        wanted: Sorted row positions in the table, shifted left by `WANTED_BITS` and combined with their flags.
        first: Row number of the first row of the table.
    """
    pieces: list[pa.Table] = []
    slices: list[Indices] = []
    num_bytes = 0
    for rows, own in _read_wanted(table, columns, wanted, first):
        pieces, slices, num_bytes = [*pieces, rows], [*slices, own], num_bytes + rows.nbytes
        if num_bytes >= _PIECE_BYTES:
            yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))
            pieces, slices, num_bytes = [], [], 0
    if pieces:
        yield from _by_slice(pa.concat_tables(pieces), np.concatenate(slices))


def _read_wanted(
    table: Table, columns: Sequence[str], wanted: Indices, first: int
) -> Iterator[tuple[pa.Table, Indices]]:
    """Yield the wanted rows of each batch of a table, and the slice that needs each row."""
    places = wanted >> WANTED_BITS
    start = done = 0
    for batch in table.scan(columns=columns) if len(wanted) else ():
        stop = start + batch.num_rows
        end = int(np.searchsorted(places, stop))
        if end > done:
            taken = _take_rows(batch, places[done:end] - start, wanted[done:end] & 1)
            rows = pa.Table.from_batches([with_messages(taken)])
            rows = rows.append_column("row", int64_array(first + places[done:end]))
            yield rows, (wanted[done:end] & 2**WANTED_BITS - 1) >> 1
        start, done = stop, end
        if done == len(wanted):
            return
    if done < len(wanted):
        raise TableError(f"{table.path}: has fewer experiences than when pairs were planned: build them again")


def _by_slice(rows: pa.Table, slices: Indices) -> Iterator[tuple[int, pa.Table]]:
    """Partition rows by the slice that needs them."""
    for number in np.flatnonzero(np.bincount(slices)).tolist():
        own = np.flatnonzero(slices == number)
        yield number, rows.take(int64_array(own)) if len(own) < len(slices) else rows


def _take_rows(batch: pa.RecordBatch, places: Indices, whole: Indices) -> pa.RecordBatch:
    """Take rows of a batch; prompt and tools are null for rows whose flag in `whole` is 0."""
    if len(places) == batch.num_rows and whole.all() and (np.diff(places) > 0).all():
        return batch
    rows = int64_array(places)
    prompts = pc.if_else(pa.array(whole != 0), rows, pa.scalar(None, pa.int64()))
    columns = [batch.column(name).take(prompts if name in _OF_CHOSEN else rows) for name in batch.schema.names]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def num_slices(tables: Sequence[Table], num_rows: int, *, memory_megabytes: int) -> int:
    """Return the number of slices for the texts of `num_rows` rows, so that half of the memory holds one slice."""
    size = total = 0
    for footer in footers_of([part for table in tables for part in table.parts()]):
        columns = [footer.schema.names.index(name) for name in (*_CONTENT, *SIDES)]
        groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
        size += sum(group.column(column).total_uncompressed_size for group in groups for column in columns)
        total += footer.num_rows
    # Assumes rows of average size; no more than the whole tables can be needed.
    needed = _HELD * size * min(1.0, num_rows / max(1, total))
    # 2**19: half of the memory allowed, in bytes.
    return min(MAX_SLICES, max(1, int(-(-needed // (memory_megabytes * 2**19)))))
