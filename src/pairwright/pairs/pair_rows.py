"""Rows of the pairs table, from drafts and the texts of their rows.

Prompts, tools and completions are JSON text in the experience table and stay that; only a trajectory that is cut, the
sides of a given preference, and plain text are written anew (rewriting.py). A batch has each text once, and says which
row has which. Batches end where the row groups of the file will, so that a text is copied here and not again.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.errors import TableError
from pairwright.pairs.candidates import Indices
from pairwright.pairs.identity import hex_digits, pair_keys, words_of
from pairwright.pairs.rewriting import REWRITTEN, rewritten
from pairwright.pairs.row_groups import ROWS_PER_GROUP, Filling, first_uses, index_array, int64_array
from pairwright.pairs.table import PAIR_SCHEMA

SIDES = ("chosen", "rejected")
_SHARED = ("prompt", "tools", "completion")
_CUT_SIDE = '"truncate_status":"response_truncated"'  # in the JSON of a side; texts have their quotes escaped


@dataclass(frozen=True)
class _Shared:
    """The texts of one column. `codes` says which rows have equal ones, -1 for none; `firsts` the first row of each
    code, and `lengths` how many bytes it has, with 0 for none at the end."""

    texts: pl.Series
    codes: Indices
    firsts: Indices
    lengths: npt.NDArray[np.int64]

    def of(self, rows: Indices) -> pa.DictionaryArray:
        """The texts of some rows, equal ones once."""
        used, places = first_uses(self.codes[rows], len(self.firsts))
        return pa.DictionaryArray.from_arrays(index_array(places), self.texts.gather(self.firsts[used]).to_arrow())

    def sizes(self, rows: Indices) -> npt.NDArray[np.int64]:
        return self.lengths[self.codes[rows]]


def slice_rows(drafts: pl.DataFrame, texts: pa.Table, filling: Filling) -> Iterator[pa.RecordBatch]:
    """The rows of drafts whose texts are all there; `filling` knows how full the row group is that they go to."""
    drafts = drafts if drafts["place"].is_sorted() else drafts.sort("place")
    copies = all(drafts[name].null_count() == drafts.height for name in REWRITTEN)
    shared = {name: _shared(pl.Series(texts[name])) for name in _SHARED} if copies else {}
    known, uids = texts["row"].to_numpy(), pl.Series(texts["uid"])
    chosen, rejected = (np.searchsorted(known, drafts[f"{side}_row"].to_numpy()) for side in SIDES)
    for side, found in (("chosen", chosen), ("rejected", rejected)):
        expected = drafts["row_uid" if drafts["row_uid"].null_count() == 0 else f"{side}_uid"]
        if not uids.gather(found).equals(expected):
            raise TableError("the experience table has changed while pairs were built: build them again")
    for start, stop in _pieces(drafts, shared, chosen, rejected, filling):
        some, one, other = drafts.slice(start, stop - start), chosen[start:stop], rejected[start:stop]
        if copies:
            made = {name: shared[name].of(one) for name in ("prompt", "tools")}
            made |= {"chosen": shared["completion"].of(one), "rejected": shared["completion"].of(other)}
            made |= _identities(some, texts, one, other)
        else:
            made = rewritten(some, texts, one, other)
        made |= _token_facts(some, texts, one, other)
        columns = [made[name] if name in made else some[name].to_arrow() for name in PAIR_SCHEMA.names]
        yield pa.RecordBatch.from_arrays(columns, names=PAIR_SCHEMA.names)


def _token_facts(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """What the tokens stage needs of each side: whether its experience recorded token ids, and was cut short.

    A run is cut at its end: a side that is one message of it is cut only if that is the last one.
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


def _pieces(
    drafts: pl.DataFrame, shared: dict[str, _Shared], chosen: Indices, rejected: Indices, filling: Filling
) -> Iterator[tuple[int, int]]:
    """From where to where drafts are one batch."""
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
    codes, firsts = _encoded(texts)
    lengths = texts.str.len_bytes().gather(firsts).fill_null(0).cast(pl.Int64).to_numpy()
    return _Shared(texts, codes, firsts, np.append(lengths, 0))


def _encoded(texts: pl.Series) -> tuple[Indices, Indices]:
    """Which rows have equal texts, by number, -1 for none; and the first row of each number."""
    if texts.null_count() == len(texts):
        return np.full(len(texts), -1), np.zeros(0, np.int64)
    _, firsts, codes = np.unique(texts.hash().to_numpy(), return_index=True, return_inverse=True)
    again = np.flatnonzero(firsts[codes] != np.arange(len(codes)))
    if not texts.gather(again).eq_missing(texts.gather(firsts[codes[again]])).all():  # two texts with one hash
        found = pl.DataFrame({"text": texts}).with_row_index("row").group_by("text", maintain_order=True).agg("row")
        firsts = found["row"].list.first().to_numpy()
        codes = np.empty(len(texts), np.int64)
        codes[found["row"].list.explode().to_numpy()] = np.repeat(np.arange(found.height), found["row"].list.len())
    return np.where(texts.is_null().to_numpy(), -1, codes), firsts


def _identities(drafts: pl.DataFrame, texts: pa.Table, chosen: Indices, rejected: Indices) -> dict[str, pa.Array]:
    """The ids of pairs, and the hashes of their prompts."""
    keys, prompts = drafts["key"], drafts["prompt_hash"]
    if any(texts[name].null_count < texts.num_rows for name in ("prompt_hash", "completion_hash")):
        # plain text is written as a message, whose hash is another
        sides = (("prompt", prompts, chosen), ("completion", drafts["chosen_hash"], chosen),
                 ("completion", drafts["rejected_hash"], rejected))  # fmt: skip
        hashes = [
            pl.select(pl.coalesce(pl.Series(texts[f"{name}_hash"].take(int64_array(rows))), hashes)).to_series()
            for name, hashes, rows in sides
        ]
        keys, prompts = hex_digits(pair_keys(*map(words_of, hashes))), hashes[0]
    return {"id": keys.to_arrow(), "prompt_hash": prompts.to_arrow()}
