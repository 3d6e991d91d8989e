"""Queries of the page over pairs tables: rows, facets, one pair, and lint findings of each pair."""

from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.pairs.candidates.candidates import is_tied
from pairwright.pairs.near_duplicates import Signature, near_duplicates, signature
from pairwright.pairs.pair_stats import MAX_SIGNED, NEAR, side_words, tie_tolerance
from pairwright.pairs.pair_table import FILE_NAME, PAIR_SCHEMA, pairs_of_batch
from pairwright.records.experience import Pair
from pairwright.records.messages import canonical_messages, content_hash, decode_messages
from pairwright.report.pairs_section import count_same_turns
from pairwright.store.table import Table
from pairwright.view.experience_queries import add_beginnings, messages_view, plain
from pairwright.view.facets import FacetColumn, count_facets
from pairwright.view.library import Item, Library
from pairwright.view.row_queries import Derived, Query, RowQueries, Snapshot
from pairwright.view.uid_maps import UidMap, mapped

LISTED = (
    "id",
    "task",
    "step",
    "strategy",
    "gap",
    "weight",
    "split",
    "chosen_reward",
    "rejected_reward",
    "num_chosen_characters",
    "num_rejected_characters",
    "length_ratio",
    "across_groups",
)
FACETS = (
    FacetColumn("gap", "gap", "number"),
    FacetColumn("length_ratio", "length ratio, chosen to rejected", "number"),
    FacetColumn("strategy", "strategy"),
    FacetColumn("split", "split"),
)
_CONTENT = ("prompt", "chosen", "rejected")
MAX_LINTED_TEXTS = 200_000  # larger tables are linted by narrow columns only
NARROW_FINDINGS = ("not-rising", "tied", "duplicates", "across-groups", "split-prompts", "split-tasks")
TEXT_FINDINGS = ("empty", "white-space", "contradictions", "near-duplicates")


class PairQueries:
    def __init__(self, item: Item, library: Library) -> None:
        self._item = item
        self._library = library
        self._file = item.path / FILE_NAME
        self.rows = RowQueries(item.key, lambda: [self._file], PAIR_SCHEMA, text=_CONTENT)
        self._lint: tuple[Any, pl.Series] | None = None  # signature of the linted snapshot, findings of each pair
        lengths = ("num_chosen_characters", "num_rejected_characters")
        ratio = pl.when(pl.col(lengths[1]) > 0).then(pl.col(lengths[0]) / pl.col(lengths[1]))
        self.rows.derived = {
            "length_ratio": Derived(pa.float64(), lengths, lambda frame: frame.select(ratio).to_series()),
            "lint": Derived(pa.string(), ("id",), self._lint_words, prepare=self._prepare_lint),
        }
        if self._tables:
            self.rows.derived["source"] = mapped("chosen_uid", self._read_sources)

    @cached_property
    def _tables(self) -> list[Item]:
        return self._library.tables_of_pairs(self._item)

    def _read_sources(self) -> UidMap:
        frames = (
            pl.DataFrame(batch).rename({"source": "word"})
            for item in self._tables
            for batch in Table(item.path, create=False).scan(columns=["uid", "source"])
        )
        return UidMap(frames)

    def list_rows(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        page: dict[str, Any] = plain(self.rows.read_page(query, offset, limit, LISTED))
        add_beginnings(self.rows, page["rows"], prompt=("prompt",), answer=("chosen",))
        return page

    def list_facets(self, query: Query) -> list[dict[str, Any]]:
        facets = [*FACETS, FacetColumn("lint", "lint", "words")]
        if self._tables:
            facets.append(FacetColumn("source", "source"))
        return count_facets(self.rows, query, facets)

    def read_pair(self, query: Query, *, position: int | None = None, identity: str = "") -> dict[str, Any]:
        """Return the pair at a position of the list, or the one with an id and its position in the list, if any."""
        snapshot = self.rows.snapshot()
        numbers = self.rows.select(query, snapshot)
        num_matches = snapshot.num_rows if numbers is None else len(numbers)
        if identity:
            number = self.rows.find("id", identity, snapshot)
            if numbers is None:
                position = number
            else:
                places = np.flatnonzero(numbers == number)
                position = int(places[0]) if len(places) else None
        elif position is None or not 0 <= position < num_matches:
            return {"matches": num_matches, "position": None, "pair": None}
        else:
            number = position if numbers is None else int(numbers[position])
        (pair,) = pairs_of_batch(self.rows.batch_at(number, snapshot))
        return {
            "matches": num_matches,
            "position": position,
            "pair": {"row": number, **pair_view(pair), "lint": self._lint_names(number, snapshot)},
            "tables": [item.key for item in self._tables],
        }

    def read_raw(self, identity: str) -> dict[str, Any]:
        snapshot = self.rows.snapshot()
        (pair,) = pairs_of_batch(self.rows.batch_at(self.rows.find("id", identity, snapshot), snapshot))
        return {"text": msgspec.json.format(msgspec.json.encode(pair), indent=2).decode()}

    def _prepare_lint(self) -> None:
        """Lint all pairs, with one bit of `flags` per finding; texts are read once per version of the file."""
        snapshot = self.rows.snapshot()
        if self._lint is not None and self._lint[0] == snapshot.signature:
            return
        flags = _narrow_flags(self._file, tie_tolerance(self._item.path))
        if snapshot.num_rows <= MAX_LINTED_TEXTS:
            flags |= _text_flags(self.rows, snapshot) << len(NARROW_FINDINGS)
        names = [*NARROW_FINDINGS, *TEXT_FINDINGS]
        words = [" ".join(name for bit, name in enumerate(names) if kind >> bit & 1) or None for kind in flags.tolist()]
        self._lint = snapshot.signature, pl.Series(words, dtype=pl.Categorical)

    def _lint_words(self, frame: pl.DataFrame) -> pl.Series:
        assert self._lint is not None
        return self._lint[1].gather(frame["row"]).cast(pl.String)

    def _lint_names(self, number: int, snapshot: Snapshot) -> list[str]:
        # A single pair does not wait for the lint of all pairs, which the facets trigger.
        if self._lint is None or self._lint[0] != snapshot.signature:
            return []
        return (self._lint[1][number] or "").split()


def _narrow_flags(file: Path, tolerance: float) -> np.ndarray[Any, Any]:
    """Return the findings from narrow columns, one bit each, in the order of NARROW_FINDINGS."""
    names = ["id", "tid", "prompt_hash", "split", "chosen_reward", "rejected_reward", "across_groups"]
    frame = pl.read_parquet(file, columns=names, glob=False)
    rewards = [frame[f"{side}_reward"].to_numpy() for side in ("chosen", "rejected")]
    checks = [
        frame["chosen_reward"] <= frame["rejected_reward"],
        pl.Series(is_tied(rewards[0], rewards[1], tolerance)),
        frame["id"].is_duplicated(),
        frame["across_groups"],
        frame.select(pl.col("split").n_unique().over("prompt_hash") > 1).to_series(),
        frame.select(pl.col("split").n_unique().over("tid") > 1).to_series(),
    ]
    flags = np.zeros(frame.height, np.uint16)
    for bit, check in enumerate(checks):
        flags |= check.fill_null(False).to_numpy().astype(np.uint16) << bit
    return flags


def _text_flags(rows: RowQueries, snapshot: Snapshot) -> np.ndarray[Any, Any]:
    """Return the findings that need texts, one bit each, in the order of TEXT_FINDINGS; the same as `pairs lint`."""
    flags = np.zeros(snapshot.num_rows, np.uint16)
    preferences: list[tuple[str, str, str]] = [("", "", "")] * snapshot.num_rows
    signatures: list[Signature | None] = [None] * min(MAX_SIGNED, snapshot.num_rows)

    def look(frame: pl.DataFrame) -> None:
        for prompt, chosen_text, rejected_text, number in frame.iter_rows():
            chosen, rejected = decode_messages(chosen_text or "[]"), decode_messages(rejected_text or "[]")
            forms = canonical_messages(chosen), canonical_messages(rejected)
            words = side_words(chosen), side_words(rejected)
            flags[number] = (not words[0] or not words[1]) | (
                ("".join(words[0]) == "".join(words[1]) and forms[0] != forms[1]) << 1
            )
            preferences[number] = (prompt, content_hash(forms[0]), content_hash(forms[1]))
            if number < len(signatures):
                signatures[number] = signature(" ".join([prompt, *words[0], *words[1]]))

    rows.scan(snapshot, ["prompt_hash", "chosen", "rejected"], look)
    known = set(preferences)
    for number, (prompt, chosen, rejected) in enumerate(preferences):
        if (prompt, rejected, chosen) in known:
            flags[number] |= 1 << 2
    flags[: len(signatures)] |= np.asarray(near_duplicates(signatures, NEAR)).astype(np.uint16) << 3
    return flags


def pair_view(pair: Pair) -> dict[str, Any]:
    """Convert a pair for the page; `same` is the number of common first turns of both sides."""
    return {
        "id": pair.id,
        "task": str(pair.chosen_eid.task),
        "gap": plain(pair.gap),
        "weight": plain(pair.weight),
        "strategy": pair.strategy,
        "split": pair.split,
        "prompt": list(messages_view(pair.prompt)),
        "tools": [plain(tool) for tool in pair.tools],
        "chosen": list(messages_view(pair.chosen)),
        "rejected": list(messages_view(pair.rejected)),
        "chosen_reward": plain(pair.chosen_reward),
        "rejected_reward": plain(pair.rejected_reward),
        "chosen_uid": pair.chosen_eid.uid,
        "rejected_uid": pair.rejected_eid.uid,
        "same": count_same_turns(pair.chosen, pair.rejected) if pair.chosen and pair.rejected else 0,
        "info": plain(pair.info),
    }
