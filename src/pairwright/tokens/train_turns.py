"""Select the generated turns to train: `tokens.train_turns`. The others stay in the context.

    all           every generated turn
    accepted      turns that did not fail (pairs/turn_credit.py); on rejected sides all turns, or only failed ones
                  (`tokens.credit.rejected`), on chosen sides all turns with `tokens.credit.chosen: all`
    last          the last turn of the record, or of each side of a pair
    after-error   the next generated turn after each error site
    calls, text   turns with tool calls, turns without
    a function    `f(messages, index) -> bool` for each generated turn, as module:function or path/file.py:function

Selection only removes turns. A record (or a side of a pair) without a selected turn is refused as `not_selected`.
"""

import inspect
from collections.abc import Callable
from collections.abc import Sequence as Items
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from pairwright.collection.run_failures import one_line
from pairwright.config.sections import CreditConfig
from pairwright.config.user_code import load_function
from pairwright.errors import ConfigError
from pairwright.pairs.turn_credit import Credits, find_credit
from pairwright.records.experience import Experience
from pairwright.records.messages import ErrorSite, Message, content_hash
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Sequence

Predicate = Callable[[Items[Message], int], bool]
TrainTurns = str | Predicate  # the name of a rule, or a function


class TurnFacts(msgspec.Struct, frozen=True):
    """What rules know about a run besides its messages: error sites and credit, by index of the encoded message."""

    errors: tuple[ErrorSite, ...] = ()
    credit: Credits = {}


NO_FACTS = TurnFacts()


def facts_of(run: Experience, rule: TrainTurns, credit: CreditConfig) -> TurnFacts:
    """Return the facts about a single run, without votes, which are stored beside its table."""
    return TurnFacts(run.errors, find_credit(run, credit) if rule == "accepted" or credit.store else {})


def select_turns(
    messages: Items[Message],
    turns: Items[int],
    rule: TrainTurns,
    facts: TurnFacts = NO_FACTS,
    keep: Literal["accepted", "failed", "all"] = "accepted",
) -> list[int]:
    """Return the generated `turns` (message indices) that the rule selects; `keep` is for "accepted".

    >>> chat = [Message("user", "hi"), Message("assistant", "a"), Message("user", "and?"), Message("assistant", "b")]
    >>> select_turns(chat, [1, 3], "last"), select_turns(chat, [1, 3], lambda messages, index: index == 1)
    ([3], [1])
    """
    if rule == "all":
        return list(turns)
    if rule == "last":
        return list(turns[-1:])
    if rule == "after-error":
        # The first generated turn after each failure; None for a failure after the last turn.
        after = {next((turn for turn in turns if turn > site.index), None) for site in facts.errors}
        return [turn for turn in turns if turn in after]
    if rule == "accepted":
        failed = {turn for turn, credit in facts.credit.items() if credit.verdict == "failed"}
        return [turn for turn in turns if keep == "all" or (turn in failed) == (keep == "failed")]
    if rule in ("calls", "text"):
        return [turn for turn in turns if bool(messages[turn].tool_calls) == (rule == "calls")]
    predicate = load_function(rule, group="pairwright.train_turns") if isinstance(rule, str) else rule
    try:
        return [turn for turn in turns if predicate(messages, turn)]
    except Exception as error:  # a user's function may raise anything: stop, instead of refusing the record
        raise ConfigError(f"tokens.train_turns: {rule} failed: {one_line(error)}") from error


def refuse_empty(selected: Items[int], turns: Items[int], rule: TrainTurns, where: str = "") -> None:
    """Refuse a record if none of its generated turns is selected."""
    if turns and not selected:
        by = f" ({rule})" if isinstance(rule, str) else ""
        raise Refusal("not_selected", f"{where}none of {len(turns)} generated turns is selected by train_turns{by}")


def fingerprint_function(name: str | None, group: str) -> list[str]:
    """Return the hash of a function's source file, for cache keys; an empty list for the name of a rule."""
    if name is None or ":" not in name:
        return []
    path = inspect.getsourcefile(inspect.unwrap(load_function(name, group=group)))
    if path is None:
        raise ConfigError(f"{name}: its source file was not found, so the cache could not detect changes")
    return [content_hash(Path(path).read_text(encoding="utf-8"))]


def as_context(messages: Items[Message], left_out: Items[int]) -> list[Message]:
    return [
        msgspec.structs.replace(message, generated=False) if index in left_out else message
        for index, message in enumerate(messages)
    ]


def keep_turns(sequence: Sequence, selected: Items[int]) -> Sequence:
    if bool((sequence.message_index[sequence.mask] < 0).any()):
        detail = "not exactly one sampled span for each turn, so train_turns cannot select turns"
        raise Refusal("recorded_ids", detail)
    mask = sequence.mask & np.isin(sequence.message_index, list(selected))
    paint = np.where(sequence.mask & ~mask, Paint.ASSISTANT, sequence.paint).astype(np.int8)
    return msgspec.structs.replace(sequence, mask=mask, paint=paint)


def report_turns(sequences: list[Sequence], left_out: Items[int], rule: TrainTurns, facts: TurnFacts) -> list[Sequence]:
    """Add unselected turns to the report of a record's first sequence, and the credit of its turns to each report."""
    results = []
    for number, sequence in enumerate(sequences):
        masked = tuple(left_out) if number == 0 else ()
        own = {*masked, *sequence.message_index[sequence.mask].tolist()}
        credit = tuple(facts.credit[turn] for turn in sorted(own.intersection(facts.credit)))
        changes: dict[str, Any] = {"credit": credit} if credit else {}
        if masked:
            changes["masked_by_credit" if rule == "accepted" else "not_selected"] = masked
        if changes:
            sequence = sequence.with_report(**changes)
        results.append(sequence)
    return results


def select_in_sides(
    prompt: Items[Message],
    completions: tuple[Items[Message], Items[Message]],
    sides: tuple[Sequence, Sequence],
    rule: TrainTurns,
    facts: tuple[TurnFacts, TurnFacts],
    credit: CreditConfig,
) -> tuple[Sequence, Sequence]:
    """Train only the selected turns of both sides of a pair; the others are context."""
    results = []
    names, keeps = ("chosen", "rejected"), (credit.chosen, credit.rejected)
    for name, completion, sequence, known, keep in zip(names, completions, sides, facts, keeps, strict=True):
        # Only turns that truncation has kept.
        turns = sorted(set(sequence.message_index[sequence.mask].tolist()))
        selected = select_turns([*prompt, *completion], turns, rule, known, keep)
        refuse_empty(selected, turns, rule, f"{name}: ")
        left_out = [turn for turn in turns if turn not in selected]
        results += report_turns([keep_turns(sequence, selected) if left_out else sequence], left_out, rule, known)
    return results[0], results[1]
