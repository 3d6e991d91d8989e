"""Signals of single tokens, read from a table."""

from collections import Counter
from collections.abc import Sequence as Items
from pathlib import Path

import numpy as np
import polars as pl
import torch

from pairwright.config.train_config import PolicyConfig
from pairwright.errors import PairwrightError
from pairwright.losses.advantages import teacher_advantages
from pairwright.records.arrays import Array
from pairwright.records.experience import Experience
from pairwright.store.table import Table
from pairwright.tokens.sequence import Sequence
from pairwright.training.token_signals import TokenSignals


class DataError(PairwrightError):
    """There is nothing to train on, or it does not fit the model."""


def read_token_signals(
    table: Table, sequences: Items[Sequence], places: dict[str, int], options: PolicyConfig, folder: Path
) -> TokenSignals:
    """The signals of the runs of a table, for the sequences that are trained of them: `places` has where they are.

    With `teacher_weight`, what a recorded teacher says of each token comes first. What was recorded and is not used is
    counted. The values are in a file below `folder`.
    """
    signals = TokenSignals(folder)
    counts: Counter[str] = Counter()
    for run in table.records(where=pl.col("num_tokens").is_not_null()) if places else ():
        place = places.get(run.eid.uid)
        if place is None or run.tokens is None:
            continue
        sequence, taught = sequences[place], _teacher_advantages(run, options)
        unused = {"teacher_logprobs": run.teacher_logprobs if taught is None else None, "returns": run.returns}
        counts.update(f"{name}_unused" for name, array in unused.items() if array is not None)
        counts["custom_fields_unused"] += bool(run.custom_fields)
        advantages = run.advantages if taught is None else taught
        recorded = run.token_level_reward if advantages is None else advantages
        if recorded is None:
            continue
        # Cut, or encoded anew from the messages: the recorded values do not fit these tokens.
        if not np.array_equal(sequence.ids, run.tokens):
            counts["token_rewards_unused"] += 1
            continue
        # Signals are of the response: spread over the sequence, 0 in the prompt.
        values = np.zeros(len(sequence), np.float32)
        values[run.prompt_length :] = recorded
        is_finite = np.isfinite(values)
        if not is_finite[sequence.mask].all():
            counts["token_rewards_not_finite"] += 1
            continue
        target = signals.rewards if advantages is None else signals.advantages
        target[run.eid.uid] = np.where(is_finite, values, np.float32(0))  # others fill up where nothing was generated
    if options.teacher_weight and places and not signals.advantages:
        raise DataError(
            f"{table.path}: train.grpo.teacher_weight is {options.teacher_weight:g}, and no run has teacher_logprobs "
            f"and logprobs, one value a token of its recorded ids: record them, or set it to 0"
        )
    signals.counts.update(+counts)
    return signals


def _teacher_advantages(run: Experience, options: PolicyConfig) -> Array | None:
    """How much likelier the teacher found each token than the policy that sampled it; None where that is not known."""
    teacher, sampled = run.teacher_logprobs, run.logprobs
    if not options.teacher_weight or teacher is None or sampled is None or teacher.ndim != 1:
        return None
    # Copies: arrays of a record may be read-only.
    both = (torch.tensor(values.astype(np.float32)) for values in (teacher, sampled))
    advantages: Array = options.teacher_weight * teacher_advantages(*both).numpy()
    return advantages
