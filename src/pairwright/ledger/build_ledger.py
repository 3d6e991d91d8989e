"""The ledger of a training run: joins generated turns and the accounts of its channels.

It is built from the files of each stage: experience tables, outcomes, pairs, trained.parquet. Every generated turn of
the experiences of a channel has one fate: trained, held out, not drawn, cut, refused, not paired, with the reason.
Drawn tokens are compared with the tokens in the losses, and trained ids with sampled ids.
"""

from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from pairwright.config.sections import TokensConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.accounts import CUT, Account, TurnRow, account
from pairwright.ledger.generated_turns import Answer, Key, count_tokens, read_answers
from pairwright.ledger.run_status import FILE_NAME as STATUS
from pairwright.ledger.run_status import read_status
from pairwright.ledger.trained import FILE_NAME
from pairwright.pairs.decisions.exclusions import read_exclusions
from pairwright.pairs.funnel import Reason
from pairwright.pairs.lineage import source_tables
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES
from pairwright.pairs.pair_table import pair_batches
from pairwright.store.table import Table

Progress = Callable[[int, int], None]
FILTERED = Reason.FILTERED.value


class LedgerError(PairwrightError):
    """The ledger is missing, or its sums do not agree."""

    exit_code = 2


class Ledger(msgspec.Struct):
    """The accounts of one training run, and notes on their limits."""

    name: str
    accounts: list[Account]
    notes: list[str] = []

    @property
    def problems(self) -> list[str]:
        return [f"{self.name}, {one.channel}: {problem}" for one in self.accounts for problem in one.problems]


def train_folders(folder: Path) -> list[tuple[str, Path]]:
    """Return the training runs in a folder, by name: those of its rounds, its `train` folder, and the folder itself."""
    # By length first, so that round-10 comes after round-9.
    rounds = sorted(folder.glob("round-*"), key=lambda path: (len(path.name), path.name))
    places = [(path.name, path / "train") for path in rounds] + [("train", folder / "train"), (folder.name, folder)]
    training = [(name, path) for name, path in places if (path / STATUS).is_file()]
    if not training:
        raise PairwrightError(f"{folder}: no training run: expected {STATUS} in it, or in its rounds")
    return training


def build_ledger(
    name: str, folder: Path, *, encode: bool = True, progress: Progress = lambda done, total: None
) -> Ledger:
    """Build the ledger of a training run. `encode`: encode turns without recorded ids to count their tokens."""
    status = read_status(folder)
    if status is None:
        raise PairwrightError(f"{folder}: no training run: expected {STATUS} in it")
    if not (folder / FILE_NAME).is_file():
        raise PairwrightError(
            f"{folder}: no {FILE_NAME}: the training is {status.state}; the ledger is written at its end"
        )
    inputs = {key: (folder / path).resolve() for key, path in status.inputs.items()}
    rows = pl.read_parquet(folder / FILE_NAME)
    if "added" not in rows.columns:  # written by an earlier version
        rows = rows.with_columns(added=pl.lit(0))
    ledger = Ledger(name, [])
    for (channel,), own in rows.group_by("channel", maintain_order=True):
        # Rows of pairs have a side; dpo may have only refusals, which have no side.
        is_paired = own.filter(pl.col("side") != "").height > 0 or (channel == "dpo")
        tables = source_tables(inputs["pairs"]) if is_paired else [Table(inputs["experience"], create=False)]
        if not tables:
            ledger.notes.append(f"{channel}: the tables that the pairs were built from were not found: no ledger")
            continue
        answers, num_repeated = read_answers(tables, use_recorded=status.tokens.get("recorded") != "ignore")
        if num_repeated:
            ledger.notes.append(f"{channel}: {num_repeated:,} records are in the tables more than once")
        if encode and any(None in answer.turns.values() for answer in answers.values()):
            options = TokensConfig(**status.tokens, tokenizer=str(inputs["tokenizer"]))
            count_tokens(answers, tables, options, folder / "ledger", progress)
        if is_paired:
            one = _account_for_pairs(str(channel), own, answers, inputs["pairs"])
        else:
            excluded = read_exclusions(inputs["experience"])
            one = _account_for_runs(str(channel), own, answers, excluded)
        one.loss_tokens = status.trained_tokens.get(str(channel), 0)
        ledger.accounts.append(one)
    return ledger


def _account_for_pairs(channel: str, rows: pl.DataFrame, answers: dict[Key, Answer], pairs: Path) -> Account:
    """Account for a channel that trains pairs; answers are found by the lineage of the sides."""
    sides = _find_sides(pairs, answers)
    on_a_side = {key for keys in sides.values() for key, _ in keys}
    reasons: dict[str, str | None] = {}
    if (pairs / OUTCOMES).is_file():
        reasons = dict(pl.read_parquet(pairs / OUTCOMES, columns=["uid", "reason"]).iter_rows())

    def turn_rows() -> Iterator[TurnRow]:
        for name, side, turn, tokens, times, fate, digest, added in _iterate_rows(rows):
            both = sides.get(name, ())
            for number, (key, shift) in enumerate(both):
                # A refusal has no side: it applies to both answers of the pair.
                if side == ("chosen", "rejected")[number] or (not side and turn is None):
                    place = turn if turn is None or turn < 0 else turn + shift
                    yield TurnRow(key, place, tokens, times, fate, digest, added)

    def name_fate(key: Key, answer: Answer, refusal: str | None) -> str:
        if refusal is not None:
            return refusal
        if key in on_a_side:
            return "not compared by its pairs" if channel == "dpo" else "not chosen"
        return f"not paired: {reasons.get(answer.row) or 'the same record again'}"

    return account(channel, answers, turn_rows(), name_fate)


def _account_for_runs(
    channel: str, rows: pl.DataFrame, answers: dict[Key, Answer], excluded: Container[str]
) -> Account:
    """Account for a channel that trains the runs of a table."""
    held = set(rows.filter(pl.col("turn").is_not_null())["id"].to_list())

    def name_fate(key: Key, answer: Answer, refusal: str | None) -> str:
        if refusal is not None:
            return refusal
        if key[0] in excluded and key[0] not in held:
            return Reason.EXCLUDED.value
        if channel == "sdpo":
            return "not taught"
        if key[0] in held:
            return CUT
        return FILTERED if answer.is_scored or channel == "sft" else "unscored"

    turn_rows = (TurnRow((name, ""), *rest) for name, _, *rest in _iterate_rows(rows))
    return account(channel, answers, turn_rows, name_fate)


def _iterate_rows(rows: pl.DataFrame) -> Iterator[Any]:
    columns = ("id", "side", "turn", "tokens", "times", "fate", "digest", "added")
    return rows.select(columns).iter_rows()


def _find_sides(pairs: Path, answers: dict[Key, Answer]) -> dict[str, tuple[tuple[Key, int], tuple[Key, int]]]:
    """Return for each pair its two answers, each with the shift of its messages."""
    columns = ["id", "chosen_uid", "rejected_uid", "across_groups"]
    sides: dict[str, tuple[tuple[Key, int], tuple[Key, int]]] = {}
    for batch in pair_batches(pairs, columns):
        for name, chosen, rejected, is_across in pl.DataFrame(batch).iter_rows():
            keys = [
                (uid, side) if (uid, side) in answers else (uid, "")
                for uid, side in ((chosen, "chosen"), (rejected, "rejected"))
            ]
            shift = 0  # messages by which the rejected answer begins later in its own experience
            if is_across and all(key in answers for key in keys):
                shift = min(answers[keys[1]].turns) - min(answers[keys[0]].turns)
            sides[name] = ((keys[0], 0), (keys[1], shift))
    return sides
