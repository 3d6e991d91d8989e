"""What was recorded for single tokens of runs: advantages, and rewards of tokens or steps.

They are there for runs whose token ids were recorded, one value for each token of the response. Where the sequence that
is trained is another (cut, or made from the messages), no value can be said to belong to a token, and a value of a
generated token that is NaN or infinite says nothing: the run is trained by its own reward, and counted.
"""

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch

from pairwright.arrays import Array
from pairwright.canonical import content_hash
from pairwright.losses.advantages import token_advantages
from pairwright.store.table import Table
from pairwright.tokens.sequence import Sequence


@dataclass(frozen=True)
class TokenSignals:
    """By id of the run: a value for each token of its sequence."""

    advantages: dict[str, Array] = field(default_factory=dict)
    rewards: dict[str, Array] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def has(self, uid: str) -> bool:
        return uid in self.advantages or uid in self.rewards

    @property
    def fingerprint(self) -> str:
        found = (self.advantages, self.rewards)
        return content_hash([[uid, array.tobytes()] for arrays in found for uid, array in sorted(arrays.items())])

    def by_token(self, ids: list[str], groups: Array, *, kind: str) -> dict[int, Array]:
        """The advantages of the tokens of runs that have some of their own, by position among `ids`.

        Recorded advantages are taken as they are. Rewards count where every run of the group has some: the runs of a
        group are compared with one another, and only like with like.
        """
        found = {place: self.advantages[uid] for place, uid in enumerate(ids) if uid in self.advantages}
        without = {int(groups[place]) for place, uid in enumerate(ids) if uid not in self.rewards or place in found}
        places = [place for place in range(len(ids)) if int(groups[place]) not in without]
        if places:
            rewards = [torch.from_numpy(self.rewards[ids[place]]) for place in places]
            made = token_advantages(rewards, torch.from_numpy(groups[places]), kind=kind)
            found |= {place: values.numpy() for place, values in zip(places, made, strict=True)}
        return found


def read_token_signals(table: Table, sequences: dict[str, Sequence]) -> TokenSignals:
    """The signals of the runs of a table, for the sequences that are trained of them."""
    found = TokenSignals()
    counts: Counter[str] = Counter()
    for run in table.records(where=pl.col("num_tokens").is_not_null()) if sequences else ():
        recorded = run.advantages if run.advantages is not None else run.token_level_reward
        sequence = sequences.get(run.eid.uid)
        if recorded is None or sequence is None or run.tokens is None:
            continue
        if not np.array_equal(sequence.ids, run.tokens):
            counts["token_rewards_unused"] += 1
            continue
        values = np.zeros(len(sequence), np.float32)
        values[run.prompt_length :] = recorded
        is_finite = np.isfinite(values)
        if not is_finite[sequence.mask].all():
            counts["token_rewards_not_finite"] += 1
            continue
        kept = found.rewards if run.advantages is None else found.advantages
        kept[run.eid.uid] = np.where(is_finite, values, np.float32(0))  # others fill up where nothing was generated
    found.counts.update(counts)
    return found
