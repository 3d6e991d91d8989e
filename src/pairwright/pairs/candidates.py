"""Which experiences may be compared: read as narrow columns, each either a candidate of a group or left under a reason.

A group is one task and step with equal prompts (canonical form, tools included). Its candidates are scored, not empty,
not failed. Rows are sorted by group, then from the highest reward down, with ties broken by content and id, so that
nothing that follows depends on the order in which they were read.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from pairwright.canonical import content_hash
from pairwright.errors import PairwrightError
from pairwright.jsontext import from_json
from pairwright.pairs.funnel import Reason, Stage
from pairwright.pairs.gaps import Floats
from pairwright.pairs.options import PairOptions
from pairwright.store.table import Table

Indices = npt.NDArray[np.int64]
_NARROW = (
    "uid", "tid", "task", "run", "step", "kind", "reward", "prompt_hash", "completion_hash", "truncate_status",
    "model_version", "source_format",
)  # fmt: skip
_FAILURE_KEYS = ("mask_sample", "_ng_failure_class")
GROUP_KEYS = ("tid", "step", "prompt_hash")


@dataclass(frozen=True)
class Candidates:
    """Rows that may be paired, sorted; group g has the rows from starts[g] up to starts[g + 1]."""

    frame: pl.DataFrame
    starts: Indices

    @property
    def rewards(self) -> Floats:
        return self.frame["reward"].to_numpy()

    @property
    def sizes(self) -> Indices:
        return np.diff(self.starts)

    @property
    def groups(self) -> Indices:
        """The group of each row."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def select(self, keep: npt.NDArray[np.bool_]) -> "Candidates":
        """Only the groups for which `keep` holds."""
        rows = np.repeat(keep, self.sizes)
        return Candidates(self.frame.filter(pl.Series(rows)), np.concatenate([[0], np.cumsum(self.sizes[keep])]))

    def first_uids(self, groups: npt.NDArray[np.bool_]) -> list[str]:
        """The ids of the first candidates of a few of these groups, as examples."""
        return self.frame["uid"].gather(self.starts[:-1][groups][:5]).to_list()


def read_rows(tables: Sequence[Table]) -> pl.DataFrame:
    """The narrow columns of all experiences, and what eligibility needs of the content."""
    frames = [
        table.lazy().select(
            *_NARROW,
            pl.lit(number, pl.UInt32).alias("table"),
            pl.col("num_completion_characters").alias("num_characters"),
            (pl.col("num_prompt_messages") == 0).alias("no_messages"),
            (pl.col("num_tool_calls") > 0).alias("has_calls"),
            pl.when(_mentions_failure()).then("info").alias("failure"),
            pl.when(pl.col("num_prompt_messages") == 0).then("prompt_text").alias("prompt_text"),
            pl.when(pl.col("num_completion_messages") == 0)
            .then(pl.col("response_text").str.len_chars().cast(pl.Int64))
            .alias("num_text_characters"),
        )
        for number, table in enumerate(tables)
    ]
    if not frames:
        raise PairwrightError("no experience table was named")
    return _with_plain_text(pl.concat(frames).collect())


def with_reasons(rows: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Rows with a column `reason`: null for those that may be candidates."""
    wants_pairs = options.strategy == "given"
    is_pair = pl.col("kind") == "preference"
    checks: list[tuple[Reason, pl.Expr]] = [
        (Reason.REPEATED_RECORD, pl.int_range(pl.len()).over("uid") > 0),
        (Reason.IS_NO_PAIR, is_pair.not_()) if wants_pairs else (Reason.IS_A_PAIR, is_pair),
        (Reason.NO_PROMPT, pl.col("no_messages") & (pl.col("prompt_text").fill_null("") == "")),
    ]
    if not wants_pairs:
        checks.insert(2, (Reason.UNSCORED, pl.col("reward").is_null()))
        empty = pl.col("completion_hash").is_null() | ((pl.col("num_characters") == 0) & pl.col("has_calls").not_())
        checks.append((Reason.EMPTY, empty))
    if not options.keep_masked:
        checks.insert(2, (Reason.FAILED, pl.col("failed")))
    if options.drop_truncated:
        checks.append((Reason.TRUNCATED, pl.col("truncate_status").is_not_null()))
    reason = pl.coalesce([pl.when(condition).then(pl.lit(name.value)) for name, condition in checks])
    return rows.with_columns(reason=reason)


def count_reasons(rows: pl.DataFrame, stage: Stage) -> None:
    """Count the rows that have a reason, with example ids that do not depend on the order of reading."""
    dropped = rows.filter(pl.col("reason").is_not_null())
    found = dropped.group_by("reason").agg(pl.len(), pl.col("uid").sort().head(5)).sort("reason")
    for reason, count, examples in found.iter_rows():
        stage.drop(Reason(reason), count, examples)


def grouped(rows: pl.DataFrame, options: PairOptions, *, keys: Sequence[str] = GROUP_KEYS) -> pl.DataFrame:
    """Rows with the reason filled in for those that have nobody to be compared with."""
    free = pl.col("reason").is_null()
    num_candidates = free.sum().over(keys)
    others = free.sum().over("tid", "step") - num_candidates
    # What a prompt's other groups say counts too where contradictions are looked for; a group keeps one row of each.
    same = list(dict.fromkeys([*keys, "prompt_hash", "completion_hash", "reward", "reason"]))
    first = pl.int_range(pl.len()).over(same, order_by="uid")
    no_partner = (
        pl.when(num_candidates >= max(2, options.min_candidates))
        .then(None)
        .when((num_candidates == 1) & (others > 0))
        .then(pl.lit(Reason.DIFFERENT_PROMPTS.value))
        .when(num_candidates == 1)
        .then(pl.lit(Reason.SINGLE.value))
        .otherwise(pl.lit(Reason.TOO_FEW.value))
    )
    repeated = pl.when(first > 0).then(pl.lit(Reason.REPEATED_CANDIDATE.value)) if options.dedupe else pl.lit(None)
    return rows.with_columns(reason=pl.when(free).then(pl.coalesce(no_partner, repeated)).otherwise("reason"))


def candidates_of(rows: pl.DataFrame, *, keys: Sequence[str] = GROUP_KEYS) -> Candidates:
    """The rows without a reason, sorted and cut into groups."""
    frame = rows.filter(pl.col("reason").is_null()).drop("reason").sort(
        [*keys, "reward", "completion_hash", "uid"], descending=[False] * len(keys) + [True, False, False]
    )  # fmt: skip
    if not frame.height:
        return Candidates(frame, np.zeros(1, np.int64))
    new = frame.select(pl.struct(keys).rle_id()).to_series().to_numpy()
    starts = np.flatnonzero(np.diff(new, prepend=-1)).astype(np.int64)
    return Candidates(frame, np.append(starts, frame.height))


def _mentions_failure() -> pl.Expr:
    info = pl.col("info")
    return pl.any_horizontal([info.str.contains(key, literal=True) for key in _FAILURE_KEYS])


def _with_plain_text(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose prompt or completion is plain text, and those that may have failed, seen to one by one: few are."""
    failed = [_is_failed(from_json(text)) if text is not None else False for text in rows["failure"]]
    rows = rows.with_columns(
        pl.Series("failed", failed, pl.Boolean),
        pl.coalesce("num_text_characters", "num_characters").alias("num_characters"),
    )
    if rows["prompt_text"].null_count() < rows.height:
        hashes = [
            content_hash(digest, text) if text else digest
            for digest, text in rows.select("prompt_hash", "prompt_text").iter_rows()
        ]
        rows = rows.with_columns(pl.Series("prompt_hash", hashes))
    return rows.drop("failure", "num_text_characters")


def _is_failed(info: Any) -> bool:
    return isinstance(info, dict) and (
        info.get("mask_sample") not in (None, False, 0) or bool(info.get(_FAILURE_KEYS[1]))
    )
