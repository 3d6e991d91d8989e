"""Strategy `teachers`: at each decision of a student, prefer the answer that teachers agree on to the student's.

A pair compares single messages: the one that the student generated at a state and the one that teachers generated at
the same state, matched by prompt hash. A teacher is a table, or a model if a table has several. The chosen answer is
the one that most teachers gave, then the best-scored one; at least `min_teachers` must have given it, by default more
than half of those that answered. If the student gave the same answer, there is no pair. Rewards are the shares of
teachers that gave the chosen and the student's answer.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.pairs.candidates.candidates import PLACE_BITS, Indices, read_candidate_rows, with_reasons
from pairwright.pairs.candidates.trajectories import prompt_messages
from pairwright.pairs.funnel import NUM_EXAMPLES, Reason
from pairwright.pairs.options import PairOptions
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import add_keys, no_drafts
from pairwright.records.messages import canonical_messages, content_hash, decode_messages
from pairwright.store.columns import num_characters
from pairwright.store.table import Table

_IN_ORDER = ("tid", "step", "prompt_hash", "uid", "decision")
_CONTENT = ("prompt", "tools", "completion", "prompt_text")
_PER_DECISION = {"prompt_hash": pl.String, "completion_hash": pl.String, "num_characters": pl.Int64}
_SCHEMA: dict[str, Any] = {
    "row": pl.Int64,
    "at": pl.Int64,
    "decision": pl.Int64,
    "is_empty": pl.Boolean,
    **_PER_DECISION,
}


def plan_teachers(state: PartitionState) -> pl.DataFrame:
    """Return the drafts of all decisions at which teachers answered."""
    options = state.options
    unscored = pl.col("reason") == Reason.UNSCORED.value  # teachers decide, so unscored experiences are usable
    state.rows = state.rows.with_columns(reason=pl.when(unscored).then(None).otherwise("reason"))
    students = state.rows.filter(pl.col("reason").is_null())
    decisions = _split_decisions(students, state.tables[: len(state.tables) - len(options.teachers)])
    without = pl.col("reason").is_null() & pl.col("row").is_in(decisions["row"].unique().implode()).not_()
    state.rows = state.rows.with_columns(
        reason=pl.when(without).then(pl.lit(Reason.NO_DECISION.value)).otherwise("reason")
    )
    answers = _answers(state.tables, options)
    state.funnel.stage("decisions", decisions.height)
    asked = pl.col("prompt_hash").is_in(answers["prompt_hash"].unique().implode())
    for reason, bad in ((Reason.EMPTY, pl.col("is_empty")), (Reason.NO_TEACHER, asked.not_())):
        gone = decisions.filter(bad)
        state.stage.drop(reason, gone.height, gone["uid"].unique().bottom_k(NUM_EXAMPLES).sort().to_list())
        if gone.height:
            rows = gone.select(chosen_row="row", rejected_row="row")
            state.lost.append(rows.with_columns(reason=pl.lit(reason.value)))
        decisions = decisions.filter(~bad)
    state.stage.close(decisions.height)
    state.funnel.stage("pairs", decisions.height)
    if not decisions.height:
        return no_drafts()
    drafts = _drafts(decisions.sort(_IN_ORDER), answers)
    majority = pl.col("num_votes") * 2 > pl.col("num_teachers")
    enough = majority if options.min_teachers is None else pl.col("num_votes") >= options.min_teachers
    checks = [
        (Reason.AGREES, pl.col("chosen_hash") == pl.col("rejected_hash")),
        (Reason.TEACHERS_DISAGREE, ~enough),
        (Reason.TIED, pl.col("gap") <= 0),
        *state.gap_checks(),
    ]
    return state.drop_where(drafts, checks).drop("num_votes", "num_teachers")


def _answers(tables: Sequence[Table], options: PairOptions) -> pl.DataFrame:
    """Return one row per answer and state: number of teachers that gave it, of all, and its rank (0: favourite)."""
    # Table by table: two teachers with the same answer have two votes, even if their records share an id.
    first = len(tables) - len(options.teachers)
    usable = pl.col("reason").is_null() | (pl.col("reason") == Reason.UNSCORED.value)
    several = []
    for number, table in enumerate(tables[first:], first):
        rows = with_reasons(read_candidate_rows([table], first=number), options).filter(usable)
        rows = _split_decisions(rows, [table], first=number).filter(~pl.col("is_empty"))
        several.append(rows.with_columns(table=pl.lit(number, pl.UInt32)))
    rows = pl.concat(several).with_columns(teacher=pl.struct("table", "model_version"))
    # A teacher with several answers has one vote: its best-scored answer, ties by id.
    rows = rows.sort("reward", "uid", "decision", descending=[True, False, False], nulls_last=True)
    rows = rows.unique(["prompt_hash", "teacher"], keep="first", maintain_order=True)
    answers = rows.group_by("prompt_hash", "completion_hash", maintain_order=True).agg(
        pl.len().alias("num_votes"),
        pl.col("uid").sort().first().alias("teacher_uid"),
        pl.col("row").sort_by("uid").first().alias("teacher_row"),
        pl.col("at").sort_by("uid").first().alias("teacher_at"),
        pl.col("num_characters").sort_by("uid").first().alias("num_teacher_characters"),
        pl.col("reward").max().alias("score"),
    )
    answers = answers.sort("num_votes", "score", "completion_hash", descending=[True, True, False], nulls_last=True)
    return answers.with_columns(
        num_teachers=pl.col("num_votes").sum().over("prompt_hash"),
        place=pl.int_range(pl.len()).over("prompt_hash"),
    )


def _drafts(students: pl.DataFrame, answers: pl.DataFrame) -> pl.DataFrame:
    """Return one draft per decision of a student: the teachers' favourite answer against its own."""
    # Answers are sorted within each state, so place 0 is the favourite.
    favourites = answers.filter(pl.col("place") == 0)
    own = answers.select("prompt_hash", "completion_hash", num_own="num_votes")
    joined = students.join(
        favourites.rename({"completion_hash": "teacher_hash"}), on="prompt_hash", how="left", maintain_order="left"
    ).join(own, on=["prompt_hash", "completion_hash"], how="left", maintain_order="left")
    share, own_share = (
        pl.col("num_votes") / pl.col("num_teachers"),
        pl.col("num_own").fill_null(0) / pl.col("num_teachers"),
    )
    return add_keys(
        joined.select(
            "tid",
            "task",
            "step",
            "prompt_hash",
            group=pl.struct("tid", "step", "prompt_hash").rle_id(),
            chosen_hash="teacher_hash",
            rejected_hash="completion_hash",
            chosen_uid="teacher_uid",
            rejected_uid="uid",
            chosen_row="teacher_row",
            rejected_row="row",
            chosen_at="teacher_at",
            rejected_at="at",
            info=pl.concat_str(pl.lit('{"decision":'), "decision", pl.lit("}")),
            chosen_reward=share,
            rejected_reward=own_share,
            gap=(pl.col("num_votes") - pl.col("num_own").fill_null(0)) / pl.col("num_teachers"),
            num_chosen_characters="num_teacher_characters",
            num_rejected_characters="num_characters",
        )
    ).with_columns(num_votes=joined["num_votes"], num_teachers=joined["num_teachers"])


def _split_decisions(rows: pl.DataFrame, tables: Sequence[Table], *, first: int = 0) -> pl.DataFrame:
    """Split narrow rows into one row per decision, a message that the model generated; `first` numbers the first table.

    Adds `at`, the position of the message in the conversation; `decision`, its position in the completion; and
    `is_empty`. A completion of one message is one decision with null positions. A completion of several messages, none
    of them generated by the model, gives no row.
    """
    several = _rows_of_several(tables, first)
    # These rows need their text; every other row is a single decision.
    is_several = pl.Series(np.isin(rows["row"].to_numpy(), several, assume_unique=True))
    single = rows.filter(~is_several).with_columns(
        pl.lit(None, pl.Int64).alias("at"), pl.lit(None, pl.Int64).alias("decision"), pl.lit(False).alias("is_empty")
    )
    runs = rows.filter(is_several)
    if not runs.height:
        return single
    wanted = np.sort(runs["row"].to_numpy())
    decisions = pl.concat([pl.DataFrame(schema=_SCHEMA), *_read_decisions(tables, wanted, first)])
    split = runs.drop(*_PER_DECISION).join(decisions, on="row", how="inner", maintain_order="left_right")
    return pl.concat([single, split.select(single.columns)])


def _rows_of_several(tables: Sequence[Table], first: int) -> Indices:
    """Return the numbers of rows whose completion has more than one message, ascending."""
    rows = [np.zeros(0, np.int64)]
    for number, table in enumerate(tables, first):
        counts = table.lazy().select("num_completion_messages").collect().to_series().fill_null(0).to_numpy()
        rows.append(np.flatnonzero(counts > 1) + (number << PLACE_BITS))
    return np.concatenate(rows)


def _read_decisions(tables: Sequence[Table], wanted: Indices, first: int) -> Iterator[pl.DataFrame]:
    """Yield the decisions of the wanted rows, batch by batch."""
    for number, table in enumerate(tables, first):
        start = number << PLACE_BITS
        for batch in table.scan(columns=_CONTENT):
            # `wanted` is ascending: take the slice within this batch.
            own = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, start + batch.num_rows)]
            if len(own):
                texts = batch.take(pa.array(own - start))
                decisions = [
                    row
                    for place, text in zip(own.tolist(), texts.to_pylist(), strict=True)
                    for row in _decisions(place, text)
                ]
                yield pl.DataFrame(decisions, schema=_SCHEMA, orient="row")
            start += batch.num_rows


def _decisions(row: int, text: dict[str, Any]) -> Iterator[tuple[int, int, int, bool, str, str, int]]:
    prompt, completion = prompt_messages(text["prompt"], text["prompt_text"]), decode_messages(text["completion"])
    tools = list(msgspec.json.decode(text["tools"])) if text["tools"] else []
    # Calls are numbered from the start, so the forms of a state are a prefix of those of the conversation.
    forms = canonical_messages([*prompt, *completion])
    for decision, message in enumerate(completion):
        if message.is_generated:
            at = len(prompt) + decision
            state, action = content_hash(forms[:at], tools), content_hash(canonical_messages([message]))
            is_empty = not (message.tool_calls or message.text or message.reasoning)
            yield row, at, decision, is_empty, state, action, num_characters([message])
