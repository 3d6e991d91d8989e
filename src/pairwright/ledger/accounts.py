"""Accounts: one fate for every generated turn of a channel, and sums that must agree."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from pairwright.ledger.generated_turns import Answer, Key
from pairwright.ledger.trained import HELD_OUT, MASKED, NOT_SELECTED, TRAINED

CUT = "cut: longer than tokens.max_length"
_UNTRAINED = (NOT_SELECTED, MASKED)  # turns that are context in a sequence
# A turn in several pairs gets the fate with the lowest rank. All other fates have rank 2.
_RANK = {TRAINED: 0, HELD_OUT: 1, MASKED: 3, NOT_SELECTED: 4}


class Fate(msgspec.Struct):
    """The fate of turns, and the known tokens of these turns."""

    name: str
    turns: int = 0
    tokens: int = 0
    num_uncounted: int = 0  # turns that have neither recorded ids nor an encoding


class Account(msgspec.Struct, kw_only=True):
    """What happened to the generated turns of a channel."""

    channel: str
    experiences: int
    turns: int
    tokens: int
    fates: list[Fate]
    drawn_tokens: int = 0  # tokens of drawn turns
    loss_tokens: int = 0  # tokens in losses, counted by the training loop
    num_recorded: int = 0  # trained turns with recorded ids
    num_as_sampled: int = 0  # those that were trained with exactly these ids
    added_tokens: int = 0  # added tokens of trained sequences
    num_with_added: int = 0  # trained sequences that have some

    @property
    def problems(self) -> list[str]:
        """The sums that do not agree; empty if all agree."""
        problems = []
        if sum(fate.turns for fate in self.fates) != self.turns:
            problems.append(f"{self.turns:,} turns, but {sum(fate.turns for fate in self.fates):,} have a fate")
        if sum(fate.tokens for fate in self.fates) != self.tokens:
            problems.append(f"{self.tokens:,} tokens, but {sum(fate.tokens for fate in self.fates):,} have a fate")
        if self.drawn_tokens != self.loss_tokens:
            problems.append(f"{self.drawn_tokens:,} tokens were drawn, the losses saw {self.loss_tokens:,}")
        if self.num_as_sampled != self.num_recorded:
            problems.append(f"{self.num_recorded - self.num_as_sampled:,} recorded turns were trained with other ids")
        return problems


class TurnRow(NamedTuple):
    """A row of trained.parquet, assigned to an answer; `turn` is None if the item could not be encoded."""

    key: Key
    turn: int | None
    tokens: int
    times: int
    fate: str
    digest: int | None
    added: int = 0


def account(
    channel: str,
    answers: dict[Key, Answer],
    rows: Iterable[TurnRow],
    name_fate: Callable[[Key, Answer, str | None], str],
) -> Account:
    """Assign a fate to every turn. `name_fate(key, answer, refusal)` names the fate of turns without a row;
    `refusal` is the reason why an item of the answer could not be encoded."""
    best: dict[tuple[Key, int], TurnRow] = {}  # the row that decides the fate of a turn, among those of all its pairs
    refused: dict[Key, str] = {}
    drawn = num_recorded = num_as_sampled = added = num_with_added = 0
    for row in rows:
        # Every draw computes a loss on all trained tokens of the turn.
        drawn += row.tokens * row.times
        if row.fate == TRAINED and row.added:
            added += row.added
            num_with_added += 1
        if row.turn is None:
            refused.setdefault(row.key, row.fate)
            continue
        place = (row.key, row.turn)
        if place not in best or _RANK.get(row.fate, 2) < _RANK.get(best[place].fate, 2):
            best[place] = row
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
        added_tokens=added,
        num_with_added=num_with_added,
    )

    def enter(name: str, tokens: int | None, *, turns: int = 1) -> None:
        fate = fates.setdefault(name, Fate(name))
        fate.turns += turns
        fate.tokens += tokens or 0
        fate.num_uncounted += tokens is None

    for key, answer in answers.items():
        for turn, known in answer.turns.items():
            held = best.get((key, turn))
            is_held = held is not None and held.fate not in _UNTRAINED
            # Recorded ids give the exact count; without them, use the channel's.
            tokens = held.tokens if held is not None and is_held and not answer.is_recorded else known
            total.turns += 1
            total.tokens += tokens or 0
            if held is None or not is_held:
                enter(held.fate if held is not None else name_fate(key, answer, refused.get(key)), tokens)
                continue
            enter(held.fate, held.tokens)
            if tokens is not None and tokens > held.tokens:
                enter("first token of a sequence: nothing predicts it", tokens - held.tokens, turns=0)
    total.fates = sorted(fates.values(), key=lambda fate: (fate.name != TRAINED, -fate.tokens, fate.name))
    return total
