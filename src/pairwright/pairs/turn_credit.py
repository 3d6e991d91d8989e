"""Turn credit: a verdict and a value for each generated turn of a run, with their source.

    votes      votes of people on turns: turn_votes.csv in the folder of the experience table
    function   `credit(run, turn)` of the user; `turn` is a position in `run.messages`
    rewards    recorded step rewards: `turn_reward` of the message, else token_level_reward summed over the turn's
               tokens, else the reward of a run with one generated turn; that reward gives a value, and a verdict only
               for formats of rated steps
    errors     error sites of the kinds in `tokens.credit.kinds`: the turn whose call failed

Verdict and value come from the first source in `tokens.credit.sources` that has one. Credit is derived from recorded
data, is not stored in the experience table, and does not select anything.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

import msgspec
import polars as pl

from pairwright.collection.run_failures import one_line
from pairwright.config.sections import CreditConfig
from pairwright.config.user_code import load_function
from pairwright.errors import ConfigError
from pairwright.pairs.decisions.turn_votes import Verdict, read_turn_votes
from pairwright.pairs.lineage import source_tables
from pairwright.pairs.pair_table import pair_batches
from pairwright.paths import Place
from pairwright.records.experience import Experience, Kind
from pairwright.records.grouping import conversation_of, split_preference
from pairwright.records.messages import ErrorSite, Message, turn_reward_of
from pairwright.store.table import Table

VERDICTS = get_args(Verdict)
SIDES = ("chosen", "rejected")
STEP_FORMATS = ("nat", "prm800k")  # formats in which a record is one rated step
Function = Callable[[Experience, int], Any]


class TurnCredit(msgspec.Struct, frozen=True, array_like=True):
    """Credit of one generated turn; `source` names the origin of the verdict, or else of the value."""

    turn: int
    verdict: Verdict = "unknown"
    value: float | None = None
    source: str = ""


Credits = dict[int, TurnCredit]  # position of the turn in its run -> credit; turns without credit are missing


def generated_turns(run: Experience) -> list[int]:
    """Return the positions of the turns that the model generated in the completion of a run."""
    prompt, completion = conversation_of(run)
    return [len(prompt) + number for number, message in enumerate(completion) if message.is_generated]


def find_credit(run: Experience, options: CreditConfig, votes: Mapping[int, Verdict] | None = None) -> Credits:
    """Return the credit of the generated turns of a run; a preference must be split first.

    >>> run = Experience(kind="multi_turn", errors=[ErrorSite(1, "tool_error", call_id="a")], completion=[
    ...     {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
    ...     {"role": "tool", "content": "Error: no", "tool_call_id": "a"}, {"role": "assistant", "content": "sorry"}])
    >>> find_credit(run, CreditConfig())
    {0: TurnCredit(turn=0, verdict='failed', value=None, source='errors: tool_error')}
    """
    turns = generated_turns(run)
    readers: dict[str, Callable[[], Credits]] = {
        "votes": lambda: {turn: TurnCredit(turn, verdict, None, "votes") for turn, verdict in (votes or {}).items()},
        "function": lambda: _ask_function(run, turns, options),
        "rewards": lambda: _read_rewards(run, turns, options.threshold),
        "errors": lambda: _read_errors(run, turns, options.kinds),
    }
    found: Credits = {}
    for source in options.sources:
        for turn, credit in readers[source]().items():
            if turn in turns:
                first = found.get(turn, credit)  # of an earlier source; this source fills what it lacks
                judge = credit if first.verdict == "unknown" else first
                value = credit.value if first.value is None else first.value
                found[turn] = TurnCredit(turn, judge.verdict, value, judge.source or first.source)
    return dict(sorted(found.items()))


def _read_errors(run: Experience, turns: Sequence[int], kinds: Sequence[str]) -> Credits:
    prompt, completion = conversation_of(run)
    messages = [*prompt, *completion]
    failed: dict[int, str] = {}
    suspected = set()  # turns whose failures are only of kinds that are not in `kinds`
    for site in run.errors:
        turn = find_failed_turn(messages, site)
        if turn is not None and site.kind in kinds:
            failed.setdefault(turn, site.kind)
        elif turn is not None:
            suspected.add(turn)
    credits = {turn: TurnCredit(turn, "failed", None, f"errors: {kind}") for turn, kind in failed.items()}
    for turn in turns:
        if turn not in failed and turn not in suspected and _is_answered(messages, turn):
            credits[turn] = TurnCredit(turn, "ok", None, "errors: none")
    return credits


def find_failed_turn(messages: Sequence[Message], site: ErrorSite) -> int | None:
    """Return the generated turn that a failure belongs to: the one with the call, else the last one before it."""
    if messages[site.index].is_generated:
        return site.index
    before = [index for index in range(site.index) if messages[index].is_generated]
    if site.call_id is not None:
        # Ids may repeat in a run: use the last call before the result.
        for index in reversed(before):
            if any(call.id == site.call_id for call in messages[index].tool_calls):
                return index
    return before[-1] if before else None


def _is_answered(messages: Sequence[Message], turn: int) -> bool:
    """Return whether the turn has calls and each of them has a result."""
    calls = messages[turn].tool_calls
    results = 0
    for message in messages[turn + 1 :]:
        if message.role != "tool":
            break
        results += 1
    return bool(calls) and results >= len(calls)


def _read_rewards(run: Experience, turns: Sequence[int], threshold: float) -> Credits:
    prompt, completion = conversation_of(run)
    messages = [*prompt, *completion]
    values = {turn: value for turn in turns if (value := turn_reward_of(messages[turn])) is not None}
    if not values and run.token_level_reward is not None and run.action_mask is not None:
        values = _sum_token_rewards(run, turns)
    if not values and len(turns) == 1 and run.is_scored and run.reward is not None:
        # A run's reward is a value, not a verdict on a turn; only formats of rated steps give a verdict.
        if run.source is None or run.source.format not in STEP_FORMATS:
            return {turns[0]: TurnCredit(turns[0], "unknown", run.reward, "rewards")}
        values = {turns[0]: run.reward}
    return {turn: _of_value(turn, value, threshold, "rewards") for turn, value in values.items()}


def _sum_token_rewards(run: Experience, turns: Sequence[int]) -> dict[int, float]:
    """Sum token rewards by turn; empty unless there is exactly one span of sampled tokens per turn."""
    assert run.token_level_reward is not None
    assert run.action_mask is not None
    mask = run.action_mask.astype(bool)
    starts = [place for place in range(len(mask)) if mask[place] and (place == 0 or not mask[place - 1])]
    if len(starts) != len(turns):
        return {}
    # Rewards on environment tokens between two turns belong to the earlier turn.
    ends = [*starts[1:], len(mask)]
    sums = [float(run.token_level_reward[start:end].sum()) for start, end in zip(starts, ends, strict=True)]
    return {turn: value for turn, value in zip(turns, sums, strict=True) if math.isfinite(value)}


def _of_value(turn: int, value: float, threshold: float, source: str) -> TurnCredit:
    """Return a turn's credit by value: ok above the threshold, failed below it, unknown at it."""
    verdict: Verdict = "ok" if value > threshold else "failed" if value < threshold else "unknown"
    return TurnCredit(turn, verdict, value, source)


def _ask_function(run: Experience, turns: Sequence[int], options: CreditConfig) -> Credits:
    if options.function is None:
        return {}
    function: Function = load_function(options.function, group="pairwright.credit")
    credits = {}
    for turn in turns:
        try:
            answer = function(run, turn)
        except Exception as error:  # a user's function may raise anything
            raise ConfigError(f"tokens.credit.function: {options.function} failed: {one_line(error)}") from error
        if answer is not None:
            credits[turn] = _read_answer(turn, answer, options)
    return credits


def _read_answer(turn: int, answer: Any, options: CreditConfig) -> TurnCredit:
    """Parse an answer: True or "ok", False or "failed", "unknown", a number, or (verdict, number)."""
    verdict, value = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    if isinstance(verdict, bool):
        verdict = "ok" if verdict else "failed"
    elif isinstance(verdict, int | float) and value is None and math.isfinite(verdict):
        return _of_value(turn, float(verdict), options.threshold, "function")
    is_number = value is None or (isinstance(value, int | float) and math.isfinite(value))
    if verdict not in VERDICTS or not is_number:
        raise ConfigError(
            f"tokens.credit.function: {options.function} returned {answer!r} for turn {turn}, expected None, True, "
            "False, a verdict (ok, failed, unknown), a finite number, or (verdict, number)"
        )
    return TurnCredit(turn, verdict, None if value is None else float(value), "function")


def count_credit(table: Table, options: CreditConfig, where: pl.Expr | None = None) -> dict[str, Any]:
    """Count the generated turns of a table: ok, failed (by source), unknown, and those with a value."""
    votes, counts = read_turn_votes(table.path), _Counts()
    for run in table.records(where=where):
        for single in split_preference(run) if run.kind is Kind.PREFERENCE else (run,):
            counts.add(single, find_credit(single, options, votes.get(single.eid.uid)))
    return counts.as_json()


def count_side_credit(pairs: Place, options: CreditConfig) -> dict[str, dict[str, Any]]:
    """Return `count_credit` of the chosen and the rejected sides, each run once; empty if the tables are gone."""
    tables = source_tables(pairs)
    frames = [pl.DataFrame(batch) for batch in pair_batches(pairs, ["chosen_uid", "rejected_uid"])]
    if not tables or not frames:
        return {}
    uids = [set(pl.concat(frames)[f"{side}_uid"]) for side in SIDES]
    counts = [_Counts() for _ in SIDES]
    for table in tables:
        votes = read_turn_votes(table.path)
        is_preference = pl.col("kind") == Kind.PREFERENCE.value
        wanted = pl.col("uid").is_in(sorted(uids[0] | uids[1])) | is_preference
        for run in table.records(where=wanted):
            singles = split_preference(run) if run.kind is Kind.PREFERENCE else (run, run)
            for single, own, counted in zip(singles, uids, counts, strict=True):
                if run.eid.uid in own or single.eid.uid in own:
                    counted.add(single, find_credit(single, options, votes.get(single.eid.uid)))
    return {side: counted.as_json() for side, counted in zip(SIDES, counts, strict=True)}


class _Counts:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failed_by: Counter[str] = Counter()

    def add(self, run: Experience, credits: Credits) -> None:
        self._counts["turns"] += len(generated_turns(run))
        self._counts.update(credit.verdict for credit in credits.values() if credit.verdict != "unknown")
        self._counts["with_value"] += sum(credit.value is not None for credit in credits.values())
        self._failed_by.update(credit.source for credit in credits.values() if credit.verdict == "failed")

    def as_json(self) -> dict[str, Any]:
        counts = self._counts
        unknown = counts["turns"] - counts["ok"] - counts["failed"]
        known = {name: counts[name] for name in ("turns", "ok", "failed")}
        return {**known, "unknown": unknown, "with_value": counts["with_value"], "failed_by": dict(self._failed_by)}
