"""Token weighting: what the loss of each trained token counts, by the value of its turn and by how likely it was."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import polars as pl

from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.stage.cache import ITEMS, scan_cache


@dataclass(frozen=True)
class TokenWeighting:
    """`uses_credit`: the value of the turn (train.credit). `min_probability`: tokens of imitated sequences that were
    sampled with a lower probability have the weight 0 (train.min_probability). `contrasts_reports`: the last turn of a
    rejected side always counts (train.dpo.contrast: all). `needs_probabilities`: refuse data without probabilities."""

    uses_credit: bool = False
    min_probability: float = 0.0
    contrasts_reports: bool = True
    needs_probabilities: bool = True

    def weigh(self, sequence: Sequence) -> Sequence:
        """Return a run or a chosen side with its weights."""
        sequence = weigh_by_credit(sequence) if self.uses_credit else sequence
        return leave_out_unlikely(sequence, self.min_probability) if self.min_probability else sequence

    def weigh_rejected(self, pair: EncodedPair) -> Sequence:
        """Return the rejected side with its weights."""
        sequence = weigh_by_credit(pair.rejected) if self.uses_credit else pair.rejected
        start = None if self.contrasts_reports else find_report(pair)
        if start is None:
            return sequence
        weights = _weights_of(sequence).copy()
        weights[start:] = 0
        return msgspec.structs.replace(sequence, weights=weights)


UNWEIGHTED = TokenWeighting()


def weigh_by_credit(sequence: Sequence) -> Sequence:
    """Multiply the weights of trained tokens by the value of their turn, clipped at 0; without a value, by 1.

    >>> from pairwright.pairs.turn_credit import TurnCredit
    >>> from pairwright.tokens.sequence import Report
    >>> known = Report(credit=(TurnCredit(1, "failed", -1.0), TurnCredit(2, "ok", 2.0)))
    >>> turns = {"mask": [0, 1, 1, 1], "message_index": [0, 1, 2, 3]}
    >>> sequence = Sequence(ids=[1, 2, 3, 4], paint=[0] * 4, report=known, **turns)
    >>> weigh_by_credit(sequence).weights
    array([0., 0., 2., 1.], dtype=float32)
    """
    values = {credit.turn: max(0.0, credit.value) for credit in sequence.report.credit if credit.value is not None}
    if not values:
        return sequence
    factors = np.ones(len(sequence), np.float32)
    for turn, value in values.items():
        factors[sequence.message_index == turn] = value
    return msgspec.structs.replace(sequence, weights=_weights_of(sequence) * factors)


def leave_out_unlikely(sequence: Sequence, min_probability: float) -> Sequence:
    """Give trained tokens that were sampled with a lower probability the weight 0; unchanged if it is not recorded.

    >>> turn = {"mask": [0, 1, 1], "message_index": [0, 1, 1], "logprobs": [0, -0.1, -7]}
    >>> leave_out_unlikely(Sequence(ids=[1, 2, 3], paint=[0] * 3, **turn), 0.02).weights
    array([0., 1., 0.], dtype=float32)
    """
    if sequence.logprobs is None:
        return sequence
    is_unlikely = sequence.mask & (sequence.logprobs < math.log(min_probability))
    if not is_unlikely.any():
        return sequence
    return msgspec.structs.replace(sequence, weights=np.where(is_unlikely, np.float32(0), _weights_of(sequence)))


def find_report(pair: EncodedPair) -> int | None:
    """Return the number of the first token of the rejected side's last turn if an earlier turn of the sides differs.

    >>> turns = {"mask": [0, 1, 0, 1], "message_index": [0, 1, 2, 3], "paint": [0] * 4}
    >>> chosen, other_call, other_report = (
    ...     Sequence(ids=ids, **turns) for ids in ([1, 2, 3, 4], [1, 9, 3, 8], [1, 2, 3, 8])
    ... )
    >>> find_report(EncodedPair(chosen=chosen, rejected=other_call, prompt_length=1))
    3
    >>> find_report(EncodedPair(chosen=chosen, rejected=other_report, prompt_length=1)) is None
    True
    """
    rejected = pair.rejected
    trained = np.flatnonzero(rejected.mask)
    turns = rejected.message_index[trained]
    if not len(turns) or turns[0] == turns[-1]:
        return None  # a single turn, or the turns are unknown
    start = int(trained[np.flatnonzero(turns == turns[-1])[0]])
    return None if np.array_equal(rejected.ids[:start], pair.chosen.ids[:start]) else start


def _weights_of(sequence: Sequence) -> Any:
    return sequence.mask.astype(np.float32) if sequence.weights is None else sequence.weights


def count_unlikely(tokens: Path, min_probability: float) -> tuple[int, int]:
    """Count the generated tokens of runs and chosen sides with a recorded probability, and the unlikely ones."""
    wanted = pl.scan_parquet(tokens / ITEMS).select("key").unique()
    own = pl.col("refusal").is_null() & (pl.col("side") != "rejected") & pl.col("logprobs").is_not_null()
    rows = scan_cache(tokens).filter(own).join(wanted, on="key", how="semi")
    values = rows.unique(["key", "side", "number"]).select("mask", "logprobs").explode("mask", "logprobs")
    is_unlikely = pl.col("logprobs") < math.log(min_probability)
    counted = values.filter("mask").select(known=pl.len(), unlikely=is_unlikely.sum()).collect(engine="streaming")
    return counted["known"][0], counted["unlikely"][0]
