"""Signals of single tokens: recorded advantages, and rewards of tokens or steps. Values are in a mapped file: those of
a large table would not fit into memory."""

import mmap
import tempfile
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
import xxhash

from pairwright.losses.advantages import token_advantages
from pairwright.records.arrays import Array
from pairwright.records.messages import content_hash
from pairwright.store.table import Table
from pairwright.tokens.stage.cache import CachedSequences


class MappedArrays(Mapping[Any, Array]):
    """Float32 arrays by key, in an unnamed temporary file in `folder` that vanishes with its last reader.

    >>> arrays = MappedArrays(None)
    >>> arrays["a"] = np.array([1, 2], np.float32)
    >>> arrays["b"] = np.array([3], np.float32)
    >>> arrays["a"].tolist(), arrays["b"].tolist(), len(arrays)
    ([1.0, 2.0], [3.0], 2)
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._file: Any = None  # opened for the first array: most tables have none
        self._values: Array | None = None  # the mapped file as one array
        self._places: dict[Any, slice] = {}
        self._size = 0  # values in the file

    def __setitem__(self, key: Any, values: Array) -> None:
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        self._file.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._places[key] = slice(self._size, self._size + len(values))
        self._size += len(values)
        self._values = None

    def __getitem__(self, key: Any) -> Array:
        place = self._places[key]
        if self._values is None:
            self._values = np.zeros(0, np.float32)
            if self._size:  # an empty file cannot be mapped
                self._file.flush()
                mapped = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
                self._values = np.frombuffer(mapped, np.float32)
        return self._values[place]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[Any]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


class TokenSignals:
    """Values for each token of a run's sequence, by run id. `folder` holds the files of values."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.counts: dict[str, int] = {}
        self.advantages, self.rewards = MappedArrays(folder), MappedArrays(folder)

    def has(self, uid: str) -> bool:
        return uid in self.advantages or uid in self.rewards

    @property
    def fingerprint(self) -> str:
        signals = (self.advantages, self.rewards)
        return content_hash(
            [[uid, xxhash.xxh3_128_hexdigest(arrays[uid].tobytes())] for arrays in signals for uid in sorted(arrays)]
        )

    def by_token(self, ids: list[str], groups: Array, *, kind: str) -> dict[int, Array]:
        """Return token advantages of runs that have token signals, by position in `ids`.

        Recorded advantages are used unchanged. Token rewards are used only if every run of the group has them:
        otherwise the runs of the group are not comparable.
        """
        by_place = {place: self.advantages[uid] for place, uid in enumerate(ids) if uid in self.advantages}
        # Groups in which some run has no token rewards, or has recorded advantages instead.
        without = {int(groups[place]) for place, uid in enumerate(ids) if uid not in self.rewards or place in by_place}
        members: dict[int, list[int]] = defaultdict(list)
        for place, group in enumerate(groups.tolist()):
            if group not in without:
                members[group].append(place)
        computed = MappedArrays(self.folder)
        for places in members.values():  # one group in memory at a time
            rewards = [torch.tensor(self.rewards[ids[place]]) for place in places]
            advantages = token_advantages(rewards, torch.zeros(len(places), dtype=torch.int64), kind=kind)
            for place, values in zip(places, advantages, strict=True):
                computed[place] = values.numpy()
        return by_place | {place: computed[place] for place in computed}


def read_token_signals(table: Table, sequences: CachedSequences, places: dict[str, int], folder: Path) -> TokenSignals:
    """Read the token signals of a table's runs; `places` maps run ids to positions in `sequences`.

    Recorded but unused values are counted. The values are in a file in `folder`.
    """
    signals = TokenSignals(folder)
    counts: Counter[str] = Counter()
    for run in table.records(where=pl.col("num_tokens").is_not_null()) if places else ():
        place = places.get(run.eid.uid)
        if place is None or run.tokens is None:
            continue
        sequence = sequences[place]
        counts["teacher_logprobs_unused"] += run.teacher_logprobs is not None
        counts["returns_unused"] += run.returns is not None
        counts["custom_fields_unused"] += bool(run.custom_fields)
        recorded = run.token_level_reward if run.advantages is None else run.advantages
        if recorded is None:
            continue
        # Truncated, or encoded from the messages: the recorded values do not fit these tokens.
        if not np.array_equal(sequence.ids, run.tokens):
            counts["token_rewards_unused"] += 1
            continue
        # Signals cover the response: extend them to the sequence, with 0 in the prompt.
        values = np.zeros(len(sequence), np.float32)
        values[run.prompt_length :] = recorded
        is_finite = np.isfinite(values)
        if not is_finite[sequence.mask].all():
            counts["token_rewards_not_finite"] += 1
            continue
        target = signals.rewards if run.advantages is None else signals.advantages
        target[run.eid.uid] = np.where(is_finite, values, np.float32(0))  # not finite: untrained tokens
    signals.counts.update(+counts)
    return signals
