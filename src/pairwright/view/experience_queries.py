"""Queries of the page over experience tables: rows, facets, tasks, one record, its lineage to pairs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.config.sections import CreditConfig
from pairwright.pairs.decisions.turn_votes import read_turn_votes
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES_NAME
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME
from pairwright.pairs.turn_credit import find_credit
from pairwright.records.experience import Experience, Kind, Side
from pairwright.records.json_text import encode
from pairwright.records.messages import Message, decode_messages
from pairwright.sources.datasets.pairwright_rows import experience_to_json
from pairwright.store.arrow import from_batch
from pairwright.store.columns import SCHEMA
from pairwright.store.journal import SUFFIX
from pairwright.store.score_log import proposed_runs, stored_scores
from pairwright.store.table import Table
from pairwright.view.facets import FacetColumn, count_facets, quote
from pairwright.view.library import Item, Library
from pairwright.view.row_queries import Numbers, Query, RowQueries, Snapshot
from pairwright.view.uid_maps import mapped, outcome_map, split_map

LISTED = (
    "uid",
    "batch",
    "task",
    "run",
    "step",
    "kind",
    "reward",
    "reward_unscored",
    "num_prompt_messages",
    "num_completion_messages",
    "num_completion_characters",
    "num_tool_calls",
    "num_errors",
    "truncate_status",
    "model_version",
    "source_format",
    "source",
)
TEXT_COLUMNS = ("prompt", "completion", "chosen", "rejected", "prompt_text", "response_text")
FACETS = (
    FacetColumn("reward", "reward", "number"),
    # The column is JSON text: a word is the kind of an error with its key.
    FacetColumn(
        "errors",
        "error kind",
        "words",
        word=r'"kind":"(?:[^"\\]|\\.)*"',
        show=lambda text: str(json.loads(f"{{{text}}}")["kind"]),
    ),
    FacetColumn("kind", "kind"),
    FacetColumn("source_format", "format"),
    FacetColumn("source", "source"),
    FacetColumn("batch", "batch"),
    FacetColumn("model_version", "model"),
    FacetColumn("num_errors", "errors", "number"),
    FacetColumn("num_tool_calls", "tool calls", "number"),
    FacetColumn("num_completion_characters", "length (characters)", "number"),
    FacetColumn("truncate_status", "truncated"),
)
_OF_PAIRS = (FacetColumn("outcome", "in pairs"), FacetColumn("split", "split"))
MAX_PAIRS_OF_RECORD = 50
MAX_BEGINNING = 120  # characters of a prompt or an answer in a list


class ExperienceQueries:
    def __init__(self, item: Item, library: Library) -> None:
        self._item = item
        self._library = library
        self._table = Table(item.path, create=False)
        self._by_gap: tuple[tuple[Any, ...], Numbers] | None = None
        self.rows = RowQueries(item.key, self._list_files, SCHEMA, text=TEXT_COLUMNS, read_journal=self._read_journal)
        if pairs := library.pairs_of_table(item):
            self.rows.derived = {
                "outcome": mapped("uid", lambda: outcome_map(pairs[0].path)),
                "split": mapped("uid", lambda: split_map(pairs[0].path)),
            }

    @property
    def proposed(self) -> list[str]:
        """Ids of the runs that `score --calibrate` proposes to label next."""
        return proposed_runs(self._item.path)

    def _list_files(self) -> list[Path]:
        folder = self._item.path
        names = {path.name for path in folder.iterdir()}
        files = ((f"{segment}.parquet", f"{segment}{SUFFIX}") for segment in self._table.segments())
        return [folder / (parquet if parquet in names else journal) for parquet, journal in files]

    def _read_journal(self, path: Path) -> pa.Table:
        return pa.Table.from_batches(self._table.part(path.stem).scan(columns=list(SCHEMA.names)), schema=SCHEMA)

    def list_rows(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return a page of the list: rows with narrow columns, the number of matches, and of all rows."""
        page: dict[str, Any] = plain(self.rows.read_page(query, offset, limit, LISTED))
        add_beginnings(
            self.rows, page["rows"], prompt=("prompt", "prompt_text"), answer=("completion", "response_text")
        )
        return page

    def list_facets(self, query: Query) -> list[dict[str, Any]]:
        facets = [*FACETS[:2], *(_OF_PAIRS if self.rows.derived else ()), *FACETS[2:]]
        return count_facets(self.rows, query, facets)

    def list_tasks(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return the tasks of the matching rows: runs, rewards, errors. Sorted by one of these, or in table order."""
        snapshot = self.rows.snapshot()
        numbers = self.rows.select(Query(query.where, query.text), snapshot)
        # A row is kept as numbers, its task as a hash: texts are read only for the tasks of the page.
        frames = self.rows.scan(
            snapshot,
            ["tid", "run", "reward", "num_errors"],
            lambda frame: frame.with_columns(pl.col("tid").hash()),
            numbers,
        )
        if not frames:
            return {"total": snapshot.num_rows, "matches": 0, "offset": 0, "rows": []}
        reward = pl.col("reward")
        tasks = (
            pl.concat(frames)
            .group_by("tid")
            .agg(
                pl.col("row").min(),
                runs=pl.col("run").n_unique(),
                experiences=pl.len(),
                mean=reward.mean(),
                min=reward.min(),
                max=reward.max(),
                errors=pl.col("num_errors").sum(),
            )
            .with_columns(spread=pl.col("max") - pl.col("min"))
            .sort("row")
        )
        name = query.sort.removeprefix("-")
        if name in ("runs", "experiences", "mean", "min", "max", "spread", "errors"):
            tasks = tasks.sort(name, descending=query.sort.startswith("-"), nulls_last=True, maintain_order=True)
        page = tasks.slice(offset, limit).drop("tid")
        names = self.rows.take(page["row"].to_list(), ["tid", "task"], snapshot)
        return {
            "total": snapshot.num_rows,
            "matches": tasks.height,
            "offset": offset,
            "rows": [plain({**name, **task}) for name, task in zip(names, page.to_dicts(), strict=True)],
        }

    def list_by_gap(self, snapshot: Snapshot) -> Numbers:
        """Return all row numbers by the smallest reward gap to another run of the task; rows without one come last."""
        if self._by_gap is None or self._by_gap[0] != snapshot.signature:
            rows = self.rows.collect(snapshot, ["tid", "reward"])
            rows = rows.with_columns(pl.col("tid").hash()).sort("tid", "reward", "row", nulls_last=True)
            step = pl.col("reward").diff().over("tid")
            gap = pl.min_horizontal(step, step.shift(-1).over("tid")).alias("gap")
            rows = rows.select("row", gap).sort("gap", "row", nulls_last=True)
            self._by_gap = snapshot.signature, np.asarray(rows["row"].to_numpy(), np.int64)
        return self._by_gap[1]

    def read_record(self, uid: str, near: int | None) -> dict[str, Any]:
        """Return one experience with its texts, and the other experiences of its task."""
        exp, number = self._read(uid, near)
        snapshot = self.rows.snapshot()
        others = self.rows.select(Query((f"tid = {quote(exp.eid.tid)}",)), snapshot)
        assert others is not None
        listed = others[:200].tolist()
        columns = ["uid", "run", "step", "reward", "num_errors"]
        siblings = self.rows.take(listed, columns, snapshot)
        view = experience_view(exp)
        # Stored scores are shown with the components of the recorded reward.
        view["components"] |= plain(stored_scores(self._item.path, exp.eid.uid).get(exp.eid.uid, {}))
        return {
            "row": number,
            **view,
            "credit": self._read_credit(exp),
            "siblings": [{"row": row, **sibling} for row, sibling in zip(listed, siblings, strict=True)],
            "num_siblings": len(others),
        }

    def _read_credit(self, exp: Experience) -> list[dict[str, Any]]:
        """Return the credit of the generated turns of a run; empty for a preference."""
        if exp.kind is Kind.PREFERENCE:
            return []
        votes = read_turn_votes(self._item.path).get(exp.eid.uid)
        credits = find_credit(exp, CreditConfig(), votes).values()
        return [{"turn": one.turn, "verdict": one.verdict, "value": one.value, "source": one.source} for one in credits]

    def read_task(self, task: str, limit: int) -> list[dict[str, Any]]:
        snapshot = self.rows.snapshot()
        numbers = self.rows.select(Query((f"task = {quote(task)}",)), snapshot)
        assert numbers is not None
        records = [from_batch(self.rows.batch_at(int(number), snapshot))[0] for number in numbers[:limit]]
        return [experience_view(exp) for exp in sorted(records, key=lambda exp: (exp.eid.run, exp.eid.step))]

    def read_raw(self, uid: str, near: int | None) -> dict[str, Any]:
        """Return one experience as indented JSON, as `pairwright export` of an experience table writes it."""
        exp, _ = self._read(uid, near)
        return {"text": msgspec.json.format(encode(experience_to_json(exp)), indent=2).decode()}

    def read_lineage(self, uid: str) -> list[dict[str, Any]]:
        """Return the outcome and the pairs of an experience in every pairs table."""
        results = []
        for item in self._library.pairs_of_table(self._item):
            own = (pl.col("chosen_uid") == uid) | (pl.col("rejected_uid") == uid)
            pairs = pl.scan_parquet(item.path / PAIRS_NAME, glob=False).filter(own)
            side = pl.when(pl.col("chosen_uid") == uid).then(pl.lit("chosen")).otherwise(pl.lit("rejected"))
            rows = pairs.select("id", "gap", "strategy", "split", side.alias("side")).collect()
            reason = None
            if not rows.height and (item.path / OUTCOMES_NAME).is_file():
                outcome = pl.scan_parquet(item.path / OUTCOMES_NAME, glob=False).filter(pl.col("uid") == uid)
                reason = outcome.select("reason").head(1).collect().to_series().to_list()
            entry = {"source": item.key, "pairs": rows.head(MAX_PAIRS_OF_RECORD).to_dicts(), "num_pairs": rows.height}
            results.append({**entry, "reason": reason[0] if reason else None})
        return results

    def _read(self, uid: str, near: int | None) -> tuple[Experience, int]:
        snapshot = self.rows.snapshot()
        number = self.rows.find("uid", uid, snapshot, near)
        (exp,) = from_batch(self.rows.batch_at(number, snapshot))
        return exp, number


def experience_view(exp: Experience) -> dict[str, Any]:
    source = exp.source
    return {
        "uid": exp.eid.uid,
        "tid": exp.eid.tid,
        "batch": str(exp.eid.batch),
        "task": str(exp.eid.task),
        "run": exp.eid.run,
        "step": exp.eid.step,
        "kind": exp.kind.value,
        "reward": _number(exp.reward),
        "components": plain(exp.reward_components),
        "metrics": plain(exp.metrics),
        "info": plain(exp.info),
        "model": None if exp.model_version is None else str(exp.model_version),
        "truncated": exp.truncate_status,
        "source": None if source is None else {"file": source.file, "line": source.line, "format": source.format},
        "prompt": list(messages_view(exp.prompt)),
        "completion": list(messages_view(exp.completion)),
        "tools": [plain(tool) for tool in exp.tools],
        "prompt_text": exp.prompt_text,
        "response_text": exp.response_text,
        "chosen": _side_view(exp.chosen),
        "rejected": _side_view(exp.rejected),
        "errors": [
            {"index": site.index, "kind": site.kind, "text": site.text, "tool": site.tool} for site in exp.errors
        ],
        "num_tokens": None if exp.tokens is None else len(exp.tokens),
    }


def _side_view(side: Side | None) -> dict[str, Any] | None:
    if side is None:
        return None
    return {"messages": list(messages_view(side.messages)), "text": side.text, "reward": _number(side.reward)}


def add_beginnings(
    rows: RowQueries, page: list[dict[str, Any]], *, prompt: tuple[str, ...], answer: tuple[str, ...]
) -> None:
    """Add the beginnings of prompt and answer to each row, from the first column that is not empty."""
    snapshot = rows.snapshot()
    texts = rows.take([row["row"] for row in page], [*prompt, *answer], snapshot) if page else []
    for row, cells in zip(page, texts, strict=True):
        row["prompt_start"] = next(filter(None, (_beginning(cells[name], -1) for name in prompt)), "")
        row["answer_start"] = next(filter(None, (_beginning(cells[name], 0) for name in answer)), "")


def _beginning(cell: str | None, place: int) -> str:
    """Return the beginning of a text cell, or of the message at `place` in a cell of messages."""
    text = cell or ""
    if text.startswith("["):
        messages = decode_messages(text)
        message = messages[place] if messages else Message("user", "")
        text = message.text or ", ".join(f"{call.name}({call.arguments})" for call in message.tool_calls)
    return " ".join(text.split())[:MAX_BEGINNING]


def messages_view(messages: tuple[Message, ...]) -> Iterator[dict[str, Any]]:
    """Yield messages for the page: text, calls, and the types of non-text parts."""
    for message in messages:
        content = message.content
        parts = content if isinstance(content, list) else []
        yield {
            "role": message.role,
            "name": message.name,
            "text": content if isinstance(content, str) else message.text,
            "parts": [str(part.get("type", "part")) for part in parts if not isinstance(part.get("text"), str)],
            "reasoning": message.reasoning,
            "calls": [{"name": call.name, "arguments": call.arguments, "id": call.id} for call in message.tool_calls],
            "answers": message.tool_call_id,
            "generated": message.generated,
        }


def plain(value: Any) -> Any:
    """Return a JSON value in which NaN and infinities are replaced by their names."""
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    # JavaScript numbers are 64-bit floats: larger integers are sent as text.
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**53:
        return str(value)
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def _number(value: float | None) -> float | str | None:
    return value if value is None or abs(value) < float("inf") else str(value)
