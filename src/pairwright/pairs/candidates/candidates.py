"""Read experiences as narrow rows and group those that can be compared; every other row gets a reason.

A group has one task, one step (optionally one run) and equal prompts (canonical form, tools included). Its candidates
are scored, not empty and not failed. Rows are sorted by group, then by descending reward, with ties broken by content
and id, so that results do not depend on the order of reading. Groups are sorted by prompt hash, so that partitioning
rows by prompt hash does not change the result.

Gaps are decimal: 0.3 - 0.1 is 0.2, not 0.19999999999999998. A reward is treated as the decimal number of its shortest
representation. Nearly all rewards have at most nine decimals: they are integer multiples of 1e-9, and their differences
are exact. Others are subtracted as floats, and as decimals if the result is so close to a threshold that rounding could
matter. Rewards that differ only by float noise are tied, such as 1.0 and 0.9999999999999998. The tolerance is
relative to the larger magnitude, which is at least `TIE_FLOOR`, so that 0.1 + 0.2 - 0.3 ties with 0.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from pairwright.errors import PairwrightError
from pairwright.pairs.candidates.pair_ids import Words, words_of
from pairwright.pairs.decisions.exclusions import read_exclusions
from pairwright.pairs.funnel import NUM_EXAMPLES, Reason, Stage
from pairwright.pairs.options import PairOptions
from pairwright.records.json_text import from_json
from pairwright.records.messages import content_hash
from pairwright.store.conditions import parse_where
from pairwright.store.table import Table

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
_UNITS = 1e9  # units per reward: nine decimals
TIE_TOLERANCE = 1e-9
TIE_FLOOR = 1e-6
_LIMIT = 2.0**52  # integers below it, and their differences, are exact
GROUP_KEYS = ("prompt_hash", "tid", "step")
# 2**64 over the golden ratio, the multiplier of Fibonacci hashing: spreads small scope numbers over all bits.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
# A row number is (table << 40) + place in the table, so that it is unique among all tables of a build.
PLACE_BITS = 40
_NARROW = ("uid", "tid", "task", "step", "kind", "reward", "prompt_hash", "completion_hash", "source_format")
_WITHIN = "within:"
_MASKED, _FAILED = "mask_sample", "_ng_failure_class"
_READ = (
    *_NARROW, "num_prompt_messages", "num_completion_messages", "num_completion_characters", "num_tool_calls",
    "truncate_status", "model_version", "prompt_text", "response_text", "info",
)  # fmt: skip
_BATCH_BYTES = 32 * 2**20


def reward_gaps(higher: Floats, lower: Floats, *, near: Sequence[float] = ()) -> Floats:
    """Return higher - lower elementwise, in decimal arithmetic; exact if close to a threshold in `near`.

    >>> import numpy as np
    >>> 0.3 - 0.1 >= 0.2, bool(reward_gaps(np.array([0.3]), np.array([0.1]))[0] >= 0.2)
    (False, True)
    """
    higher, lower = np.broadcast_arrays(higher, lower)
    units_high, on_grid_high = _units(higher)
    units_low, on_grid_low = _units(lower)
    on_grid = on_grid_high & on_grid_low
    with np.errstate(over="ignore"):  # rewards of 1e308 and -1e308 overflow; the gap is capped below
        plain = np.minimum(higher - lower, np.finfo(np.float64).max)
    # Units are 0 for rewards off the grid; `where` takes the plain difference there.
    gaps: Floats = np.where(on_grid, (units_high - units_low) / _UNITS, plain)
    if near and not on_grid.all():
        off_grid = ~on_grid
        size = np.maximum(np.abs(higher), np.abs(lower))
        for threshold in near:
            # 1e-12 is far above the rounding error of one subtraction (about 1e-16): no doubtful gap is missed.
            doubtful = off_grid & (np.abs(gaps - threshold) <= 1e-12 * np.maximum(size, abs(threshold)))
            for place in zip(*np.nonzero(doubtful), strict=True):
                gaps[place] = decimal_gap(higher[place], lower[place])
    return gaps


def decimal_gap(higher: float, lower: float) -> float:
    """Return higher - lower of two numbers in exact decimal arithmetic."""
    return float(Decimal(repr(float(higher))) - Decimal(repr(float(lower))))


def is_tied(higher: Floats | float, lower: Floats | float, tolerance: float) -> Flags:
    """Mask of rewards that differ by at most `tolerance` times the larger magnitude, which is at least `TIE_FLOOR`.

    In sorted order, the rewards that tie with a given one are contiguous.

    >>> is_tied(np.array([1.0, 1.0, 2e-12]), np.array([0.9999999999999998, 0.999, 1e-12]), 1e-9).tolist()
    [True, False, False]
    """
    with np.errstate(over="ignore"):
        size = np.maximum(np.maximum(np.abs(higher), np.abs(lower)), TIE_FLOOR)
        tied: Flags = np.abs(higher - lower) <= tolerance * size
    return tied


def is_tied_expression(tolerance: float) -> pl.Expr:
    """Polars expression: `is_tied` of the rewards of drafts."""
    chosen, rejected = pl.col("chosen_reward"), pl.col("rejected_reward")
    tied: pl.Expr = (chosen - rejected).abs() <= tolerance * pl.max_horizontal(chosen.abs(), rejected.abs(), TIE_FLOOR)
    return tied


def _units(rewards: Floats) -> tuple[Floats, npt.NDArray[np.bool_]]:
    with np.errstate(over="ignore", invalid="ignore"):
        units = np.rint(rewards * _UNITS)
        # A reward is on the grid if its rounded number of units converts back to the same float.
        on_grid = (np.abs(units) < _LIMIT) & (units / _UNITS == rewards)
    return np.where(on_grid, units, 0.0), on_grid


@dataclass(frozen=True)
class Scale:
    """Number, exact sum, minimum and maximum of the rewards of a source; the sum does not depend on the order."""

    num: int
    total: Fraction
    least: float
    most: float

    def __add__(self, other: "Scale") -> "Scale":
        least, most = min(self.least, other.least), max(self.most, other.most)
        return Scale(self.num + other.num, self.total + other.total, least, most)

    def as_json(self) -> dict[str, float]:
        return {"min": self.least, "mean": float(self.total / self.num), "max": self.most}


def scales_of(rows: pl.DataFrame) -> dict[str, Scale]:
    """Return the scale of each source format that has rewards."""
    scored = rows.select("source_format", "reward").drop_nulls("reward")
    scales = {}
    for (name,), some in scored.group_by("source_format"):
        rewards = some["reward"].to_numpy()
        scales[str(name)] = Scale(len(rewards), exact_sum(rewards), float(rewards.min()), float(rewards.max()))
    return scales


def add_scales(one: dict[str, Scale], other: dict[str, Scale]) -> dict[str, Scale]:
    """Merge two sets of scales by name."""
    both = {name: one[name] + other[name] for name in one.keys() & other.keys()}
    return dict(sorted({**one, **other, **both}.items()))


def exact_sum(values: Floats) -> Fraction:
    """Return the exact sum of finite floats: integer mantissas are summed for each exponent.

    >>> exact_sum(np.array([0.1] * 10 + [-1.0])) == 10 * Fraction(0.1) - 1
    True
    """
    # value = mantissa * 2**exponent with a mantissa below 1 in magnitude, so mantissa * 2**53 is whole.
    mantissas, exponents = np.frexp(values)
    wholes = np.ldexp(mantissas, 53).astype(np.int64)
    total = Fraction(0)
    for exponent in np.unique(exponents).tolist():
        some = wholes[exponents == exponent]
        # Summed as high part and low 26 bits: int64 does not overflow below 2**36 values.
        whole = (int((some >> 26).sum()) << 26) + int((some & (2**26 - 1)).sum())
        total += Fraction(whole) * Fraction(2) ** (exponent - 53)
    return total


def group_keys(options: PairOptions) -> tuple[str, ...]:
    """Return the columns that define a group."""
    return (*GROUP_KEYS, *narrower_keys(options))


def narrower_keys(options: PairOptions) -> tuple[str, ...]:
    """Return the columns that split groups further: the run (of one file), or the field that `within` names."""
    runs = ("run", "source") if options.within_run else ()
    return (*runs, f"{_WITHIN}{options.within}") if options.within is not None else runs


@dataclass(frozen=True)
class Candidates:
    """Sorted rows that can be paired; group g has the rows from starts[g] up to starts[g + 1].

    `scopes` is the scope number of each group: groups with the same first key, such as the prompt hash, share a scope.
    If it is None, each group is its own scope.
    """

    frame: pl.DataFrame
    starts: Indices
    scopes: Indices | None = None

    @property
    def rewards(self) -> Floats:
        return self.frame["reward"].to_numpy()

    @property
    def sizes(self) -> Indices:
        return np.diff(self.starts)

    @property
    def groups(self) -> Indices:
        """The group number of each row."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    @cached_property
    def completions(self) -> Words:
        """The completion hash of each row, as two words."""
        return words_of(self.frame["completion_hash"])

    @cached_property
    def recurring(self) -> Indices:
        """Rows whose completion also occurs in another row of their scope; may contain false positives."""
        scopes = self.groups if self.scopes is None else self.scopes[self.groups]
        # One uint64 per row, from half of the completion hash. A collision only adds a false positive.
        marks = self.completions[:, 0] ^ (scopes.astype(np.uint64) * _SPREAD)
        in_order = np.sort(marks)
        again = in_order[1:][in_order[1:] == in_order[:-1]]
        return np.flatnonzero(np.isin(marks, again)) if len(again) else np.zeros(0, np.int64)

    def first_uids(self, groups: Flags) -> list[str]:
        """Return the ids of the first candidates of a few groups in the mask, as examples for the funnel."""
        return self.frame["uid"].gather(self.starts[:-1][groups]).bottom_k(NUM_EXAMPLES).to_list()


def distinct(values: Indices) -> Indices:
    """Return the sorted distinct values; much faster here than `np.unique`, which hashes."""
    in_order = np.sort(values)
    # The first value, and each that differs from the one before it.
    return np.compress(np.append(np.ones(min(1, len(values)), np.bool_), in_order[1:] != in_order[:-1]), in_order)


def with_reasons(rows: pl.DataFrame, options: PairOptions) -> pl.DataFrame:
    """Add the column `reason`: why a row cannot be a candidate; null for rows that can."""
    wants_pairs = options.strategy == "imported"
    is_pair = pl.col("kind") == "preference"
    # In order of precedence: `coalesce` takes the first condition that holds.
    checks: list[tuple[Reason, pl.Expr]] = [
        (Reason.REPEATED_RECORD, _is_repeated(rows)),
        (Reason.IS_NO_PAIR, is_pair.not_()) if wants_pairs else (Reason.IS_A_PAIR, is_pair),
        (Reason.NO_PROMPT, pl.col("no_prompt")),
    ]
    if "is_filtered" in rows.columns:
        checks.insert(0, (Reason.FILTERED, pl.col("is_filtered")))
    if not wants_pairs:
        checks.insert(2, (Reason.UNSCORED, pl.col("reward").is_null()))
        # A message without text that calls a tool is an action, not an empty completion.
        empty = pl.col("completion_hash").is_null() | ((pl.col("num_characters") == 0) & pl.col("has_calls").not_())
        checks.append((Reason.EMPTY, empty))
    if not options.keep_masked:
        checks.insert(2, (Reason.FAILED, pl.col("failed")))
    if options.drop_truncated:
        checks.append((Reason.TRUNCATED, pl.col("truncated")))
    checks.insert(0, (Reason.EXCLUDED, pl.col("is_excluded")))
    reason = pl.coalesce([pl.when(condition).then(pl.lit(name.value)) for name, condition in checks])
    return rows.with_columns(reason=reason)


def count_reasons(rows: pl.DataFrame, stage: Stage) -> None:
    """Count rows by reason in a stage of the funnel, with example ids that do not depend on the order of rows."""
    dropped = rows.filter(pl.col("reason").is_not_null())
    counts = dropped.group_by("reason").agg(pl.len(), pl.col("uid").bottom_k(NUM_EXAMPLES)).sort("reason")
    for reason, count, examples in counts.iter_rows():
        stage.drop(Reason(reason), count, examples)


def assign_groups(
    rows: pl.DataFrame, options: PairOptions, *, keys: Sequence[str] | None = None
) -> tuple[pl.DataFrame, Candidates]:
    """Group rows by `keys`; returns the rows, with a reason for those that have no counterpart, and the candidates.

    Comparable rows come first, sorted as the candidates are. A candidate that is alone in its group gets the reason
    SINGLE; whether its step has candidates at other prompts is known only after all partitions are planned.
    """
    keys = group_keys(options) if keys is None else keys
    free = pl.col("reason").is_null()
    order = list(dict.fromkeys([*keys, "reward", "completion_hash", "prompt_hash", "uid"]))
    free_rows = rows.filter(free).sort(order, descending=[name == "reward" for name in order])
    starts = _starts(free_rows, keys)
    sizes = np.repeat(np.diff(starts), np.diff(starts))
    repeated = ~_is_new(free_rows, [*keys, "reward", "completion_hash", "prompt_hash"]) & options.dedupe
    names = [(Reason.SINGLE, sizes == 1), (Reason.REPEATED_CANDIDATE, repeated)]
    reason = pl.coalesce([pl.when(pl.lit(pl.Series(bad))).then(pl.lit(name.value)) for name, bad in names])
    free_rows = free_rows.with_columns(reason=reason) if free_rows.height else free_rows
    frame = free_rows.filter(free).drop("reason")
    return pl.concat([free_rows, rows.filter(~free)]), _candidates(frame, keys)


def candidates_of(rows: pl.DataFrame) -> Candidates:
    """Group all rows without a reason, including those that are alone in their group."""
    frame = rows.filter(pl.col("reason").is_null()).drop("reason")
    frame = frame.sort([*GROUP_KEYS, "reward", "completion_hash", "uid"], descending=[*[False] * 3, True, False, False])
    return _candidates(frame, GROUP_KEYS)


def _candidates(frame: pl.DataFrame, keys: Sequence[str]) -> Candidates:
    """Split sorted rows into groups; groups with the same first key share a scope."""
    starts = _starts(frame, keys)
    return Candidates(frame, starts, np.cumsum(_is_new(frame, keys[:1]), dtype=np.int64)[starts[:-1]])


def _starts(sorted_rows: pl.DataFrame, keys: Sequence[str]) -> Indices:
    return np.append(np.flatnonzero(_is_new(sorted_rows, keys)), sorted_rows.height).astype(np.int64)


def _is_new(sorted_rows: pl.DataFrame, keys: Sequence[str]) -> Flags:
    """Mask of rows whose keys differ from the keys of the previous row."""
    # `ne_missing`: null equals null, so rows without a run or source form one group.
    differs = pl.any_horizontal([pl.col(key).ne_missing(pl.col(key).shift()) for key in keys])
    new: Flags = sorted_rows.select(differs.alias("new")).to_series().to_numpy().copy()
    new[:1] = True
    return new


def _is_repeated(rows: pl.DataFrame) -> pl.Expr:
    """Polars expression: True for all but the first (by content) of the rows with the same id and prompt."""
    if rows["uid"].n_unique() == rows.height:
        return pl.lit(False)
    return pl.int_range(pl.len()).over("uid", "prompt_hash", order_by=["completion_hash", "reward"]) > 0


def read_candidate_rows(
    tables: Sequence[Table], *, first: int = 0, where: str | None = None, keys: Sequence[str] = ()
) -> pl.DataFrame:
    """Read the narrow rows of all experiences, with the columns of `narrower_keys`; `first` numbers the first table.

    With `where`, the column `is_filtered` is True for rows that do not satisfy the condition.
    """
    if not tables:
        raise PairwrightError("no experience table was named")
    return pl.concat(
        [
            _select_narrow(table.lazy(), number << PLACE_BITS, where, keys, read_exclusions(table.path))
            for number, table in enumerate(tables, first)
        ]
    )


def row_batches(
    tables: Sequence[Table], *, where: str | None = None, keys: Sequence[str] = ()
) -> Iterator[pl.DataFrame]:
    """Yield the rows of `read_candidate_rows` in frames read from about 32 MB each."""
    # The condition may need columns that planning does not read.
    conditions = () if where is None else parse_where(where).meta.root_names()
    columns = tuple(dict.fromkeys((*_READ, *conditions, *(("run", "source") if keys else ()))))
    for number, table in enumerate(tables):
        first, exclusions = number << PLACE_BITS, read_exclusions(table.path)
        for rows in _read_together(table.scan(columns=columns)):
            yield _select_narrow(rows.lazy(), first, where, keys, exclusions)
            first += rows.height


def _read_together(batches: Iterable[pa.RecordBatch]) -> Iterator[pl.DataFrame]:
    """Concatenate batches into frames of about 32 MB."""
    pending: list[pa.RecordBatch] = []
    num_bytes = 0
    for batch in batches:
        pending.append(batch)
        num_bytes += batch.nbytes
        if num_bytes >= _BATCH_BYTES:
            yield pl.DataFrame(pa.Table.from_batches(pending))
            pending, num_bytes = [], 0
    if pending:
        yield pl.DataFrame(pa.Table.from_batches(pending))


def _select_narrow(
    experiences: pl.LazyFrame, first: int, where: str | None, keys: Sequence[str], excluded: Iterable[str]
) -> pl.DataFrame:
    """Select the narrow columns of experiences; `first` is the row number of the first one, `excluded` has ids."""
    ids = pl.Series(list(excluded), dtype=pl.String)
    no_prompt, no_completion = pl.col("num_prompt_messages") == 0, pl.col("num_completion_messages") == 0
    # A cheap substring test on the JSON text: `_fix_rare_rows` decodes only the rows that match.
    mentions = pl.any_horizontal([pl.col("info").str.contains(key, literal=True) for key in (_MASKED, _FAILED)])
    narrow = experiences.with_row_index("row").select(
        *_NARROW,
        *(key_column(key) for key in keys),
        pl.col("row").cast(pl.Int64) + first,
        pl.when(no_completion)
        .then(pl.col("response_text").str.len_chars().cast(pl.Int64))
        .otherwise("num_completion_characters")
        .fill_null(0)
        .alias("num_characters"),
        (pl.col("num_tool_calls") > 0).alias("has_calls"),
        pl.col("truncate_status").is_not_null().alias("truncated"),
        pl.col("model_version"),
        (no_prompt & (pl.col("prompt_text").fill_null("") == "")).alias("no_prompt"),
        pl.when(no_prompt).then("prompt_text").alias("prompt_text"),
        pl.when(mentions & ~_is_fine()).then("info").alias("failure"),
        pl.col("uid").is_in(ids.implode()).alias("is_excluded"),
        *([] if where is None else [parse_where(where).not_().alias("is_filtered")]),
    )
    return _fix_rare_rows(narrow.collect())


def key_column(key: str) -> pl.Expr:
    """Polars expression for a key of `narrower_keys`: a column of the table, or else a field of `info`."""
    name = key.removeprefix(_WITHIN)
    if key in ("run", "source"):
        return pl.col(key)
    if name in ("model", "source"):
        return pl.col("model_version" if name == "model" else "source").alias(key)
    steps = "".join(f"['{step}']" for step in name.replace("'", "").split("."))
    return pl.col("info").str.json_path_match(f"${steps}").alias(key)


def _is_fine() -> pl.Expr:
    """Polars expression: `info` shows, without decoding, a rollout that is not masked and has not failed."""
    info = pl.col("info")
    once = info.str.count_matches(f'"{_MASKED}"', literal=True) == 1
    return once & info.str.contains(f'"{_MASKED}":false', literal=True) & ~info.str.contains(_FAILED, literal=True)


def _fix_rare_rows(rows: pl.DataFrame) -> pl.DataFrame:
    """Add `failed`, and include plain-text prompts in `prompt_hash`; the few rows that need either are decoded."""
    odd = rows["failure"].drop_nulls()
    failed = pl.Series([_is_failed(text) for text in odd], dtype=pl.Boolean)
    places = rows["failure"].is_not_null().arg_true()
    rows = rows.with_columns(failed=pl.repeat(False, rows.height, eager=True).scatter(places, failed))
    # A plain-text prompt has no messages in its hash, so its text is hashed in.
    if rows["prompt_text"].null_count() < rows.height:
        hashes = [
            content_hash(digest, text) if text else digest
            for digest, text in rows.select("prompt_hash", "prompt_text").iter_rows()
        ]
        rows = rows.with_columns(pl.Series("prompt_hash", hashes))
    return rows.drop("failure", "prompt_text")


def _is_failed(text: str) -> bool:
    info = from_json(text)
    return isinstance(info, dict) and (info.get(_MASKED) not in (None, False, 0) or bool(info.get(_FAILED)))
