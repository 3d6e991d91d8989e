"""Trees of tokens laid out as one row, so that a prompt is computed once for all that continue it.

    T  tokens of the row      N  trained tokens      S  branches (sequences), over all trees

A tree is a prompt with one or more branches: the two sides of a pair, the runs of one task, or a sequence alone. The
row holds each tree as `prompt, branch, branch, ...`, end to end, with no padding. Positions of every branch go on where
the prompt ends, and a branch sees the prompt and itself, nothing else (attention.py). The first token of a branch is
predicted by the last token of the prompt.

    >>> tree = Tree(prompt=[5, 6], branches=([7, 8], [9]), masks=([True, True], [True]))
    >>> row = lay_out([tree])
    >>> row.input_ids_T.tolist(), row.position_ids_T.tolist()
    ([5, 6, 7, 8, 9], [0, 1, 2, 3, 2])
    >>> row.source_N.tolist(), row.target_N.tolist(), row.branch_N.tolist()  # who predicts what, for which branch
    ([1, 2, 1], [7, 8, 9], [0, 0, 1])

`pad` lays the same trees out as padded rows, the prompt repeated for each branch: for models that cannot share.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from pairwright.arrays import Array
from pairwright.tokens.batches import attention, padded


class Tree(msgspec.Struct, frozen=True, eq=False):
    """A prompt (never empty, never trained) and what continues it, with the mask of what is trained."""

    prompt: Array
    branches: tuple[Array, ...]
    masks: tuple[Array, ...]

    def __post_init__(self) -> None:
        force_setattr(self, "prompt", np.asarray(self.prompt, dtype=np.int64))
        force_setattr(self, "branches", tuple(np.asarray(branch, dtype=np.int64) for branch in self.branches))
        force_setattr(self, "masks", tuple(np.asarray(mask, dtype=bool) for mask in self.masks))
        assert len(self.prompt), "a tree has a prompt, if only its first token"

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + sum(len(branch) for branch in self.branches)


@dataclass(frozen=True)
class Segment:
    """Where a tree stands in the row: its prompt, then its branches, as (start, end)."""

    prompt: tuple[int, int]
    branches: tuple[tuple[int, int], ...]

    @property
    def start(self) -> int:
        return self.prompt[0]

    @property
    def end(self) -> int:
        return self.branches[-1][1] if self.branches else self.prompt[1]


@dataclass(frozen=True)
class Row:
    """Trees as one row: `source_N` are positions in it whose hidden state predicts `target_N` of branch `branch_N`."""

    input_ids_T: Array
    position_ids_T: Array
    segments: tuple[Segment, ...]
    source_N: Array
    target_N: Array
    branch_N: Array
    num_branches: int


@dataclass(frozen=True)
class Padded:
    """The same as padded rows (S, W); `source_N` are positions in the flattened (S·W)."""

    input_ids_SW: Array
    attention_mask_SW: Array
    source_N: Array
    target_N: Array
    branch_N: Array
    num_branches: int


def tree_of(ids: Array, mask: Array, prompt_length: int | None = None) -> Tree:
    """One sequence as a tree; its prompt is what comes before the first trained token, unless given.

    The first token of all is never trained: nothing predicts it.
    """
    trained = np.flatnonzero(mask)
    start = int(trained[0]) if prompt_length is None and len(trained) else prompt_length
    start = len(ids) if start is None else max(1, start)
    return Tree(ids[:start], (ids[start:],), (mask[start:],))


def lay_out(trees: Sequence[Tree]) -> Row:
    """The trees end to end."""
    ids: list[Array] = []
    positions: list[Array] = []
    segments: list[Segment] = []
    sources: list[Array] = []
    targets: list[Array] = []
    owners: list[Array] = []
    at = num_branches = 0
    for tree in trees:
        prompt = (at, at + len(tree.prompt))
        ids.append(tree.prompt)
        positions.append(np.arange(len(tree.prompt)))
        at = prompt[1]
        spans = []
        for branch, mask in zip(tree.branches, tree.masks, strict=True):
            ids.append(branch)
            positions.append(np.arange(len(tree.prompt), len(tree.prompt) + len(branch)))
            trained = np.flatnonzero(mask)
            sources.append(np.where(trained == 0, prompt[1] - 1, at + trained - 1))
            targets.append(branch[trained])
            owners.append(np.full(len(trained), num_branches))
            spans.append((at, at + len(branch)))
            at += len(branch)
            num_branches += 1
        segments.append(Segment(prompt, tuple(spans)))
    return Row(
        _joined(ids), _joined(positions), tuple(segments), _joined(sources), _joined(targets), _joined(owners),
        num_branches,
    )  # fmt: skip


def pad(trees: Sequence[Tree], *, pad_id: int = 0) -> Padded:
    """Each branch as a row of its own, with its prompt before it."""
    rows = [np.concatenate([tree.prompt, branch]) for tree in trees for branch in tree.branches]
    starts = [len(tree.prompt) for tree in trees for _ in tree.branches]
    masks = [mask for tree in trees for mask in tree.masks]
    ids = padded(rows, pad_id, dtype="int64") if rows else np.zeros((0, 0), np.int64)
    width = ids.shape[1]
    trained = [np.flatnonzero(mask) + start for mask, start in zip(masks, starts, strict=True)]
    return Padded(
        ids,
        attention([len(row) for row in rows], width),
        _joined([number * width + places - 1 for number, places in enumerate(trained)]),
        _joined([row[places] for row, places in zip(rows, trained, strict=True)]),
        _joined([np.full(len(places), number) for number, places in enumerate(trained)]),
        len(rows),
    )


def _joined(parts: list[Array]) -> Array:
    return np.concatenate([np.zeros(0, np.int64), *parts]).astype(np.int64)
