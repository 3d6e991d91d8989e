"""The ledger of a training run: answers, accounts of channels, and the ledger that joins them.

It is built from what each stage wrote: experience tables, outcomes, pairs, trained.parquet. Every generated turn of the
experiences that entered a channel has one fate there: trained, held out, not drawn, cut, refused, not paired, and why.
The tokens that were drawn are compared with what the losses were computed on, and the ids that were trained with the
ids that were sampled.
"""

from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import polars as pl

from pairwright.config.sections import TokensConfig
from pairwright.errors import PairwrightError
from pairwright.ledger.run_status import FILE_NAME as STATUS
from pairwright.ledger.run_status import read_status
from pairwright.ledger.trained import FILE_NAME, HELD_OUT, NOT_SELECTED, TRAINED, digest_of, split_turns
from pairwright.pairs.decisions.exclusions import read_exclusions
from pairwright.pairs.funnel import Reason
from pairwright.pairs.outcomes import FILE_NAME as OUTCOMES
from pairwright.pairs.outcomes import source_tables
from pairwright.pairs.pair_table import pair_batches
from pairwright.records.arrays import Array
from pairwright.records.experience import Experience, Kind
from pairwright.records.grouping import conversation_of
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.tokens.recorded import find_mask_spans, response_mask
from pairwright.tokens.stage.cache import read_sequences
from pairwright.tokens.stage.stage import encode_source

# Answers: what models generated in experience tables, turn by turn, with the number of tokens of each.

Key = tuple[str, str]  # id of the experience (or of the side), and the side; empty for a completion


class Answer(msgspec.Struct):
    """`turns`: message index -> tokens, None while unknown; -1 for an answer whose turns cannot be distinguished.
    `digests`: hashes of the recorded ids, by turn."""

    row: str
    is_scored: bool
    turns: dict[int, int | None]
    digests: dict[int, int] = {}

    @property
    def is_recorded(self) -> bool:
        return bool(self.digests)


def read_answers(tables: Iterable[Table], *, use_recorded: bool = True) -> tuple[dict[Key, Answer], int]:
    """All answers of tables, and how many records stand there more than once. Without `use_recorded`, recorded ids do
    not count, as they do not where `tokens.recorded` is `ignore`."""
    answers: dict[Key, Answer] = {}
    num_repeated = 0
    for table in tables:
        for experience in table.records():
            for key, answer in _answers_of(experience):
                # The first record with a key counts; the others are only reported.
                num_repeated += key in answers
                if not use_recorded:
                    # The same turns, with their tokens unknown.
                    answer.turns, answer.digests = dict.fromkeys(answer.turns), {}
                answers.setdefault(key, answer)
    return answers, num_repeated


def count_tokens(
    answers: dict[Key, Answer],
    tables: Iterable[Table],
    options: TokensConfig,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Fill in the tokens of turns that were not recorded, by encoding all turns of their tables (nothing is cut)."""
    whole = options.model_copy(update={"max_length": None, "max_pair_length": None, "train_turns": "all"})
    for number, table in enumerate(tables):
        cache = folder / f"table-{number}"
        encode_source(table.path, cache, whole, progress=progress)
        for uid, side, sequence in read_sequences(cache):
            answer = answers.get((uid, side))
            if answer is None or answer.is_recorded:
                continue
            for turn in split_turns(sequence.ids, sequence.mask, sequence.message_index):
                if turn.turn in answer.turns:
                    answer.turns[turn.turn] = turn.tokens


def _answers_of(experience: Experience) -> Iterator[tuple[Key, Answer]]:
    uid = experience.eid.uid
    if experience.kind is not Kind.PREFERENCE:
        prompt, messages = conversation_of(experience)
        num_prompt = len(prompt)
        ids, mask = None, None
        if experience.tokens is not None and experience.prompt_length is not None:
            ids = experience.tokens[experience.prompt_length :]
            mask = response_mask(len(ids), experience.action_mask)
        yield (uid, ""), _answer(uid, num_prompt, messages, ids, mask, is_scored=experience.is_scored)
        return
    for name, side in (("chosen", experience.chosen), ("rejected", experience.rejected)):
        assert side is not None
        mask = None if side.tokens is None else response_mask(len(side.tokens), side.action_mask)
        key, (prompt, messages) = uid if side.eid is None else side.eid.uid, conversation_of(experience, side)
        yield (key, name), _answer(uid, len(prompt), messages, side.tokens, mask, is_scored=True)


def _answer(
    row: str, num_prompt: int, messages: tuple[Message, ...], ids: Array | None, mask: Array | None, *, is_scored: bool
) -> Answer:
    # Message indices of what was generated; -1 stands for an answer in which no message is marked.
    turns = [num_prompt + number for number, message in enumerate(messages) if message.is_generated] or [-1]
    if ids is None or mask is None:
        return Answer(row, is_scored, dict.fromkeys(turns))
    spans = find_mask_spans(mask).tolist()
    if len(spans) != len(turns):  # which span is whose is not known: all sampled tokens together
        return Answer(row, is_scored, {-1: int(mask.sum())}, {-1: digest_of(ids[mask])})
    named = list(zip(turns, spans, strict=True))  # (message index, (start, end) in the response)
    return Answer(
        row,
        is_scored,
        {turn: end - start for turn, (start, end) in named},
        {turn: digest_of(ids[start:end]) for turn, (start, end) in named},
    )


# Accounts: every generated turn of a channel under one fate, and the sums that have to agree.

CUT = "cut: longer than tokens.max_length"
_RANK = {TRAINED: 0, HELD_OUT: 1, NOT_SELECTED: 3}  # a turn of several pairs has the first of their fates


class Fate(msgspec.Struct):
    """What became of turns. `tokens` are those that are known; `num_uncounted` turns have neither recorded ids nor an
    encoding."""

    name: str
    turns: int = 0
    tokens: int = 0
    num_uncounted: int = 0


class Account(msgspec.Struct, kw_only=True):
    """`drawn_tokens` is the sum over what was drawn, `loss_tokens` what the losses were computed on, counted by the
    training loop. `num_as_sampled` of the `num_recorded` trained turns with recorded ids were trained as these ids."""

    channel: str
    experiences: int
    turns: int
    tokens: int
    fates: list[Fate]
    drawn_tokens: int = 0
    loss_tokens: int = 0
    num_recorded: int = 0
    num_as_sampled: int = 0

    @property
    def problems(self) -> list[str]:
        """What does not add up; empty where everything does."""
        problems = []
        if sum(fate.turns for fate in self.fates) != self.turns:
            problems.append(f"{self.turns:,} turns, but {sum(fate.turns for fate in self.fates):,} have a fate")
        if sum(fate.tokens for fate in self.fates) != self.tokens:
            problems.append(f"{self.tokens:,} tokens, but {sum(fate.tokens for fate in self.fates):,} have a fate")
        if self.drawn_tokens != self.loss_tokens:
            problems.append(f"{self.drawn_tokens:,} tokens were drawn, the losses saw {self.loss_tokens:,}")
        if self.num_as_sampled != self.num_recorded:
            problems.append(f"{self.num_recorded - self.num_as_sampled:,} recorded turns were trained as other ids")
        return problems


class TurnRow(NamedTuple):
    """A row of trained.parquet, assigned to an answer; `turn` is None where the item could not be encoded."""

    key: Key
    turn: int | None
    tokens: int
    times: int
    fate: str
    digest: int | None


def account(
    channel: str,
    answers: dict[Key, Answer],
    rows: Iterable[TurnRow],
    name_fate: Callable[[Key, Answer, str | None], str],
) -> Account:
    """Give every turn its fate. `name_fate(key, answer, refusal)` names the fate of turns that the channel does not
    hold; `refusal` is why an item of the answer could not be encoded."""
    best: dict[tuple[Key, int], TurnRow] = {}  # the row that decides the fate of a turn, among those of all its pairs
    refused: dict[Key, str] = {}
    drawn = num_recorded = num_as_sampled = 0
    for row in rows:
        # Every draw computes a loss on all trained tokens of the turn.
        drawn += row.tokens * row.times
        if row.turn is None:
            refused.setdefault(row.key, row.fate)
            continue
        place = (row.key, row.turn)
        if place not in best or _RANK.get(row.fate, 2) < _RANK.get(best[place].fate, 2):
            best[place] = row
        # Hash of the ids that were sampled, where they were recorded.
        sampled = answers[row.key].digests.get(row.turn) if row.key in answers else None
        if row.fate == TRAINED and sampled is not None:
            num_recorded += 1
            num_as_sampled += sampled == row.digest
    fates: dict[str, Fate] = {}
    total = Account(
        channel=channel,
        experiences=len({answer.row for answer in answers.values()}),
        turns=0,
        tokens=0,
        fates=[],
        drawn_tokens=drawn,
        num_recorded=num_recorded,
        num_as_sampled=num_as_sampled,
    )

    def enter(name: str, tokens: int | None, *, turns: int = 1) -> None:
        fate = fates.setdefault(name, Fate(name))
        fate.turns += turns
        fate.tokens += tokens or 0
        fate.num_uncounted += tokens is None

    for key, answer in answers.items():
        for turn, known in answer.turns.items():
            held = best.get((key, turn))
            is_held = held is not None and held.fate != NOT_SELECTED
            # Recorded ids are exact; without them the channel's own count stands.
            tokens = held.tokens if held is not None and is_held and not answer.is_recorded else known
            total.turns += 1
            total.tokens += tokens or 0
            if held is None or not is_held:
                enter(NOT_SELECTED if held is not None else name_fate(key, answer, refused.get(key)), tokens)
                continue
            enter(held.fate, held.tokens)
            if tokens is not None and tokens > held.tokens:
                enter("first token of a sequence: nothing predicts it", tokens - held.tokens, turns=0)
    order = {TRAINED: 0}
    total.fates = sorted(fates.values(), key=lambda fate: (order.get(fate.name, 1), -fate.tokens, fate.name))
    return total


# The ledger: the accounts of all channels of a run.

Progress = Callable[[int, int], None]
FILTERED = Reason.FILTERED.value


class LedgerError(PairwrightError):
    """There is no ledger, or it does not add up."""

    exit_code = 2


class Ledger(msgspec.Struct):
    """The accounts of one training run, and what limits them."""

    name: str
    accounts: list[Account]
    notes: list[str] = []

    @property
    def problems(self) -> list[str]:
        return [f"{self.name}, {one.channel}: {problem}" for one in self.accounts for problem in one.problems]


def train_folders(folder: Path) -> list[tuple[str, Path]]:
    """The training runs in the folder of a run, by name: of each round, or the folder itself."""
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
    """The ledger of a training run. With `encode`, turns without recorded ids are encoded to count their tokens."""
    status = read_status(folder)
    if status is None:
        raise PairwrightError(f"{folder}: no training run: expected {STATUS} in it")
    if not (folder / FILE_NAME).is_file():
        raise PairwrightError(
            f"{folder}: no {FILE_NAME}: the training is {status.state}; the ledger is written at its end"
        )
    inputs = {key: (folder / path).resolve() for key, path in status.inputs.items()}
    rows = pl.read_parquet(folder / FILE_NAME)
    ledger = Ledger(name, [])
    for (channel,), own in rows.group_by("channel", maintain_order=True):
        # Rows of pairs have a side; dpo may have refusals alone, which have none.
        is_paired = own.filter(pl.col("side") != "").height > 0 or (channel == "dpo")
        tables = source_tables(inputs["pairs"]) if is_paired else [Table(inputs["experience"], create=False)]
        if not tables:
            ledger.notes.append(f"{channel}: the tables that the pairs were built from are not there: no ledger")
            continue
        answers, num_repeated = read_answers(tables, use_recorded=status.tokens.get("recorded") != "ignore")
        if num_repeated:
            ledger.notes.append(f"{channel}: {num_repeated:,} records stand in the tables more than once")
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
    """A channel that trains pairs: answers are found by the lineage of the sides."""
    sides = _find_sides(pairs, answers)
    on_a_side = {key for keys in sides.values() for key, _ in keys}
    reasons: dict[str, str | None] = {}
    if (pairs / OUTCOMES).is_file():
        reasons = dict(pl.read_parquet(pairs / OUTCOMES, columns=["uid", "reason"]).iter_rows())

    def turn_rows() -> Iterator[TurnRow]:
        for name, side, turn, tokens, times, fate, digest in _iterate_rows(rows):
            both = sides.get(name, ())
            for number, (key, shift) in enumerate(both):
                # A refusal has no side: it holds for both answers of the pair.
                if side == ("chosen", "rejected")[number] or (not side and turn is None):
                    place = turn if turn is None or turn < 0 else turn + shift
                    yield TurnRow(key, place, tokens, times, fate, digest)

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
    """A channel that trains the runs of a table."""
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
    return rows.select("id", "side", "turn", "tokens", "times", "fate", "digest").iter_rows()


def _find_sides(pairs: Path, answers: dict[Key, Answer]) -> dict[str, tuple[tuple[Key, int], tuple[Key, int]]]:
    """For each pair, the answers of its two sides. A pair across groups has the prompt of its chosen side: messages of
    the other side stand at other positions than in its experience, by the shift beside it."""
    columns = ["id", "chosen_uid", "rejected_uid", "across_groups"]
    sides: dict[str, tuple[tuple[Key, int], tuple[Key, int]]] = {}
    for batch in pair_batches(pairs, columns):
        for name, chosen, rejected, is_across in pl.DataFrame(batch).iter_rows():
            keys = [
                (uid, side) if (uid, side) in answers else (uid, "")
                for uid, side in ((chosen, "chosen"), (rejected, "rejected"))
            ]
            shift = 0  # how many messages later the rejected answer begins in its own experience
            if is_across and all(key in answers for key in keys):
                shift = min(answers[keys[1]].turns) - min(answers[keys[0]].turns)
            sides[name] = ((keys[0], 0), (keys[1], shift))
    return sides
