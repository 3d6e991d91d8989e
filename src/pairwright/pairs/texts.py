"""Turn drafts and their texts into rows of the pairs table."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import TableError
from pairwright.generate.template_variables import KEY
from pairwright.pairs.candidates.candidates import Indices
from pairwright.pairs.candidates.pair_ids import hex_digits, pair_keys, words_of
from pairwright.pairs.pair_table import PAIR_SCHEMA
from pairwright.pairs.rewritten_texts import LONG_TEXT, REJECTED_KEY, REWRITTEN, rewrite_texts
from pairwright.pairs.row_groups import ROWS_PER_GROUP, Filling, first_uses, index_array, int64_array
from pairwright.records.json_text import encode, from_json

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

    `texts` are sorted by row number. Batches end where row groups end, which `filling` tracks.
    """
    drafts = drafts if drafts["place"].is_sorted() else drafts.sort("place")
    copies = all(drafts[name].null_count() == drafts.height for name in REWRITTEN)
    shared = {name: _shared(pl.Series(texts[name])) for name in _SHARED} if copies else {}
    known, uids = texts["row"].to_numpy(), pl.Series(texts["uid"])
    # Rows of a slice are in ascending order, so a binary search finds the position of each side.
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
        if side in texts.column_names:  # preferences: each side has its own status
            own = pc.or_(is_cut, pc.match_substring(texts[side], _CUT_SIDE).fill_null(False))
        facts[f"{side}_recorded"] = recorded.take(int64_array(rows)).combine_chunks()
        facts[f"{side}_cut"] = own.take(int64_array(rows)).combine_chunks()
        if drafts[f"{side}_at"].null_count() < drafts.height:
            last = pc.subtract(pc.add(texts["num_prompt_messages"], texts["num_completion_messages"]), 1)
            is_last = pc.equal(drafts[f"{side}_at"].to_arrow(), last.take(int64_array(rows)).combine_chunks())
            facts[f"{side}_cut"] = pc.and_(facts[f"{side}_cut"], is_last.fill_null(True))
    return facts


def _template_facts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """Return `info` with the template variables of both sides; no column if there are none."""
    if texts["info"].null_count == texts.num_rows:
        return {}
    left, right = (texts["info"].take(int64_array(rows)).to_pylist() for rows in (chosen, rejected))
    infos = []
    for info, mine, theirs in zip(drafts["info"].to_list(), left, right, strict=True):
        facts = {} if mine is None and theirs is None else {KEY: from_json(mine or "{}")}
        if mine != theirs:
            facts[REJECTED_KEY] = from_json(theirs or "{}")
        infos.append(encode({**from_json(info or "{}"), **facts}).decode() if facts else info)
    return {"info": pa.array(infos, LONG_TEXT)}


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
    # Numbered by 64-bit hash, much faster than by text; collisions are checked below.
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
        # Plain text is written as a message, which changes the hash.
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
