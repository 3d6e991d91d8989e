"""Collate sequences into batches. Each channel has a collator with padded rows: preference (DPO), policy (GRPO) and
distill (SDPO). `collate_trees` builds the trainer's batches for any channel: shared prompts, packed or padded.

Shapes: B rows, T tokens, K index pairs, N trained tokens. Arrays are numpy; `as_torch(batch)` converts to tensors.
Masks are not shifted: position t is True if ids[t] was generated.
"""

from collections.abc import Sequence as Items
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from pairwright.errors import ConfigError, RecordError
from pairwright.records.arrays import Array, to_torch
from pairwright.tokens.batch.bins import packing
from pairwright.tokens.batch.token_tree import DistinctTokens, Segment, build_token_tree, list_segments, sequence_key
from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.sequence import Origin, Sequence
from pairwright.tokens.teacher_sequences import Distillation

IGNORE_INDEX = -100  # the label that torch's cross_entropy ignores


def pad_rows(rows: Items[Array], fill: float, *, dtype: str, multiple_of: int = 1, length: int | None = None) -> Array:
    """Pad rows of different length on the right, into one (B, T) array.

    >>> pad_rows([np.array([1, 2, 3]), np.array([4])], 0, dtype="int64")
    array([[1, 2, 3],
           [4, 0, 0]])
    """
    longest = max([len(row) for row in rows] + [length or 0])
    width = -(-longest // multiple_of) * multiple_of  # rounded up
    result = np.full((len(rows), width), fill, dtype=dtype)
    for number, row in enumerate(rows):
        result[number, : len(row)] = row
    return result


def make_attention_mask(lengths: Items[int], width: int) -> Array:
    """Return (B, T): 1 for tokens, 0 for padding.

    >>> make_attention_mask([3, 1], 3)
    array([[1, 1, 1],
           [1, 0, 0]])
    """
    # (1, T) against (B, 1): the positions of each row against its own length.
    return (np.arange(width)[None, :] < np.asarray(lengths)[:, None]).astype(np.int64)


def as_torch(batch: Any) -> dict[str, Any]:
    """Convert the arrays of a batch to torch tensors, by name. Leaves out None, and keeps `rows` (origins)."""
    result: dict[str, Any] = {}
    for name in batch.__struct_fields__:
        value = getattr(batch, name)
        if isinstance(value, np.ndarray):
            result[name] = to_torch(value)
        elif name.endswith("rows"):
            result[name] = value
    return result


Layout = Literal["shared", "packed", "padded"]


class Tree(msgspec.Struct, frozen=True, eq=False):
    """A prompt (never empty, never trained), the branches that continue it and their training masks: the two sides of
    a pair, or a single sequence. `rows` is the origin (experience and turns) of each branch, if known."""

    prompt: Array
    branches: tuple[Array, ...]
    masks: tuple[Array, ...]
    rows: tuple[Origin, ...] = ()

    def __post_init__(self) -> None:
        force_setattr(self, "prompt", np.asarray(self.prompt, dtype=np.int64))
        force_setattr(self, "branches", tuple(np.asarray(branch, dtype=np.int64) for branch in self.branches))
        force_setattr(self, "masks", tuple(np.asarray(mask, dtype=bool) for mask in self.masks))
        if not len(self.prompt):
            raise RecordError("tree.prompt", self.prompt.tolist(), "at least the first token")

    @property
    def num_tokens(self) -> int:
        return len(self.prompt) + sum(len(branch) for branch in self.branches)

    @property
    def sequences(self) -> list[Array]:
        """Prompt + branch, for each branch; only the prompt if there are no branches."""
        return [np.concatenate([self.prompt, branch]) for branch in self.branches] or [self.prompt]


class TreeBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Trees in rows, and which position predicts which trained token.

    input_ids, attention_mask, position_ids  (B, T); positions of a branch continue those of its prompt
    sequence_ids  (B, T) tree index of each token (if several trees share it, one of them), -1 for padding: for
                  block-diagonal attention in rows without shared trees
    subtree_ends  (B, T) end of each token's subtree in the flattened rows: `q` attends to `k` if
                  k <= q < subtree_ends[k]
    segments      the unbranched runs of tokens, the units of attention
    source        (N,) position, in the flattened (B·T) rows, of the hidden state that predicts the trained token
    target        (N,) id of the trained token
    node          (N,) flattened position of the trained token; repeated if several branches train the same token
    branch        (N,) branch that trains the token; indices are global across trees
    rows          origin (experience and turns) of each branch; "" and () if unknown
    """

    input_ids: Array
    attention_mask: Array
    position_ids: Array
    sequence_ids: Array
    subtree_ends: Array
    segments: tuple[Segment, ...]
    source: Array
    target: Array
    node: Array
    branch: Array
    num_branches: int
    rows: tuple[Origin, ...] = ()


def tree_of(ids: Array, mask: Array, rows: tuple[Origin, ...] = ()) -> Tree:
    """Convert one sequence to a tree; the prompt ends at the first trained token, but is never empty."""
    trained = np.flatnonzero(mask)
    start = max(1, int(trained[0])) if len(trained) else len(ids)
    return Tree(ids[:start], (ids[start:],), (mask[start:],), rows)


def as_tree(item: Tree | EncodedPair | Sequence) -> Tree:
    """Convert a pair (branches: chosen, rejected) or a sequence (one branch) to a tree."""
    if isinstance(item, Tree):
        return item
    if isinstance(item, Sequence):
        return tree_of(item.ids, item.mask, (item.origin,))
    start, sides = item.prompt_length, (item.chosen, item.rejected)
    branches, masks = tuple(side.ids[start:] for side in sides), tuple(side.mask[start:] for side in sides)
    # Both sides have the same ids before `start`.
    return Tree(item.chosen.ids[:start], branches, masks, tuple(side.origin for side in sides))


def count_distinct(trees: Items[Tree]) -> int:
    """Count the tokens of the prefix tree of all branches: the size of the "shared" layout."""
    tokens = DistinctTokens()
    for tree in trees:
        for ids in tree.sequences:
            tokens.add(sequence_key(ids))
    return tokens.count


def collate_trees(
    items: Items[Tree | EncodedPair | Sequence],
    layout: Layout = "shared",
    *,
    pad_id: int = 0,
    multiple_of: int = 1,
    row_length: int | None = None,
) -> TreeBatch:
    """Collate pairs, sequences or trees into one batch, as the trainer does.

    layout       "shared": one row, the prefix tree of all branches, without duplicate tokens; "packed": trees end to
                 end in rows of `row_length`, sharing tokens only between branches of the same tree;
                 "padded": one row for each branch, after its prompt; works with any model
    multiple_of  rows are padded to a multiple of this length

    >>> tree = Tree(prompt=[5, 6], branches=([7, 8], [9]), masks=([True, True], [True]))
    >>> batch = collate_trees([tree])
    >>> batch.input_ids.tolist(), batch.position_ids.tolist()
    ([[5, 6, 7, 8, 9]], [[0, 1, 2, 3, 2]])
    >>> batch.source.tolist(), batch.target.tolist(), batch.branch.tolist()  # predicting position, id, branch
    ([1, 2, 1], [7, 8, 9], [0, 0, 1])
    >>> collate_trees([tree], "padded").input_ids.tolist()
    [[5, 6, 7, 8], [5, 6, 9, 0]]
    """
    trees = [as_tree(item) for item in items]
    numbers = range(len(trees))
    # rows[row][prefix tree]: the numbers of the trees that are merged into this prefix tree.
    rows = [[list(numbers)]]
    if layout == "padded":
        trees = [
            Tree(tree.prompt, (branch,), (mask,), (row,))
            for tree in trees
            for branch, mask, row in zip(tree.branches, tree.masks, _rows_of(tree), strict=True)
        ]
        rows = [[[number]] for number in range(len(trees))]
    elif layout == "packed":
        if row_length is None:
            raise ConfigError("row_length: expected the length of a row, which packed rows need")
        rows = [[[number] for number in row] for row in packing([tree.num_tokens for tree in trees], row_length)]
    return _fill(trees, rows, pad_id=pad_id, multiple_of=multiple_of, row_length=row_length or 0)


def _rows_of(tree: Tree) -> tuple[Origin, ...]:
    return tree.rows or (Origin("", ()),) * len(tree.branches)


def _fill(
    trees: list[Tree], rows: list[list[list[int]]], *, pad_id: int, multiple_of: int, row_length: int
) -> TreeBatch:
    """Build the prefix trees of each row, place them end to end, and pad the rows."""
    grown = [
        [build_token_tree([ids for number in group for ids in trees[number].sequences]) for group in row]
        for row in rows
    ]
    longest = max([sum(len(tree.ids) for tree in row) for row in grown] + [row_length])
    width = -(-longest // multiple_of) * multiple_of
    # All rows end to end, (B·T,): a position in them is an index into the flattened hidden states.
    input_ids = np.full(len(rows) * width, pad_id, np.int64)
    position_ids, sequence_ids = np.zeros_like(input_ids), np.full_like(input_ids, -1)
    subtree_ends = np.arange(1, len(input_ids) + 1)  # default for padding: an empty subtree
    segments: list[Segment] = []
    paths: dict[int, list[Array]] = {}  # number of a tree -> positions of each branch, prompt included
    for row_number, (row, trees_of_row) in enumerate(zip(rows, grown, strict=True)):
        at = row_number * width
        for group, tree in zip(row, trees_of_row, strict=True):
            stop = at + len(tree.ids)
            owner = np.repeat(group, [len(trees[number].branches) or 1 for number in group])
            input_ids[at:stop], position_ids[at:stop] = tree.ids, tree.positions
            sequence_ids[at:stop], subtree_ends[at:stop] = owner[tree.owners], tree.ends + at
            segments += [
                Segment(*(place + at for place in segment)) for segment in list_segments(tree.positions, tree.ends)
            ]
            branches = iter(tree.paths)
            for number in group:
                paths[number] = [next(branches) + at for _ in trees[number].sequences]
            at = stop
    nothing = np.zeros(0, np.int64)  # `np.concatenate` needs at least one array, also without trained tokens
    source, target, node, branch, num_branches = [nothing], [nothing], [nothing], [nothing], 0
    for number, item in enumerate(trees):
        for ids, mask, path in zip(item.branches, item.masks, paths[number], strict=False):
            trained = np.flatnonzero(mask)
            # A token is predicted by the one before it in its sequence, wherever that is in the row.
            source.append(path[len(item.prompt) + trained - 1])
            node.append(path[len(item.prompt) + trained])
            target.append(ids[trained])
            branch.append(np.full(len(trained), num_branches))
            num_branches += 1
    shape = len(rows), width
    return TreeBatch(
        input_ids=input_ids.reshape(shape),
        attention_mask=(sequence_ids >= 0).astype(np.int64).reshape(shape),
        position_ids=position_ids.reshape(shape),
        sequence_ids=sequence_ids.reshape(shape),
        subtree_ends=subtree_ends.reshape(shape),
        segments=tuple(segments),
        source=np.concatenate(source),
        target=np.concatenate(target),
        node=np.concatenate(node),
        branch=np.concatenate(branch),
        num_branches=num_branches,
        rows=tuple(row for tree in trees for row in _rows_of(tree)),
    )


class PreferenceBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    chosen_ids: Array
    chosen_attention_mask: Array
    chosen_mask: Array
    rejected_ids: Array
    rejected_attention_mask: Array
    rejected_mask: Array
    prompt_lengths: Array
    chosen_weights: Array | None = None
    rejected_weights: Array | None = None
    chosen_rows: tuple[Origin, ...] = ()
    rejected_rows: tuple[Origin, ...] = ()


class PolicyBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    input_ids: Array
    attention_mask: Array
    response_mask: Array
    labels: Array
    lengths: Array
    rewards: Array
    advantages: Array
    logprobs: Array | None = None
    weights: Array | None = None
    rows: tuple[Origin, ...] = ()


class DistillBatch(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    student_ids: Array
    student_attention_mask: Array
    sdpo_mask: Array
    teacher_ids: Array
    teacher_attention_mask: Array
    student_index: Array
    teacher_index: Array
    index_valid: Array
    rows: tuple[Origin, ...] = ()


def collate_preference(pairs: Items[EncodedPair], *, pad_id: int, multiple_of: int = 1) -> PreferenceBatch:
    """Collate chosen and rejected sides, each with its own mask; both sides of a row have the same prompt ids.

    >>> def side(ids, mask):
    ...     return Sequence(ids=ids, mask=mask, message_index=[0] * len(ids), paint=[0] * len(ids))
    >>> chosen, rejected = side([1, 2, 7, 8], [0, 0, 1, 1]), side([1, 2, 9], [0, 0, 1])
    >>> pair = EncodedPair(chosen=chosen, rejected=rejected, prompt_length=2)
    >>> batch = collate_preference([pair], pad_id=0)
    >>> batch.chosen_ids, batch.chosen_mask
    (array([[1, 2, 7, 8]]), array([[False, False,  True,  True]]))
    >>> batch.rejected_ids, batch.rejected_mask, batch.rejected_attention_mask
    (array([[1, 2, 9]]), array([[False, False,  True]]), array([[1, 1, 1]]))
    """
    sides: dict[str, Any] = {}
    for name in ("chosen", "rejected"):
        sequences = [getattr(pair, name) for pair in pairs]
        arrays = _pad_sequences(sequences, pad_id, multiple_of)
        sides |= zip((f"{name}_ids", f"{name}_attention_mask", f"{name}_mask"), arrays, strict=True)
        sides[f"{name}_weights"] = _pad_weights(sequences, arrays[0].shape[1])
        sides[f"{name}_rows"] = tuple(sequence.origin for sequence in sequences)
    return PreferenceBatch(**sides, prompt_lengths=np.array([pair.prompt_length for pair in pairs], dtype=np.int64))


def _pad_weights(sequences: Items[Sequence], length: int) -> Array | None:
    """Return the loss weight of each token (B, T); None if all trained tokens have equal weight."""
    if all(sequence.weights is None for sequence in sequences):
        return None
    rows = [sequence.mask if sequence.weights is None else sequence.weights for sequence in sequences]
    return pad_rows([np.asarray(row, np.float32) for row in rows], 0, dtype="float32", length=length)


def collate_policy(
    sequences: Items[Sequence],
    rewards: Items[float],
    *,
    pad_id: int,
    advantages: Items[float] | None = None,
    multiple_of: int = 1,
    ignore_index: int = IGNORE_INDEX,
) -> PolicyBatch:
    """Collate sequences with one reward each; every generated token gets the advantage (by default the reward).

    >>> one = Sequence(ids=[1, 0, 7], mask=[0, 0, 1], message_index=[0] * 3, paint=[0] * 3)
    >>> two = Sequence(ids=[1, 8], mask=[0, 1], message_index=[0] * 2, paint=[0] * 2)
    >>> batch = collate_policy([one, two], [1.0, 0.5], pad_id=0)
    >>> batch.input_ids, batch.attention_mask  # id 0 in the first row is a token, not padding
    (array([[1, 0, 7],
           [1, 8, 0]]), array([[1, 1, 1],
           [1, 1, 0]]))
    >>> batch.labels
    array([[-100, -100,    7],
           [-100,    8, -100]])
    >>> batch.rewards, batch.advantages
    (array([1. , 0.5], dtype=float32), array([[0. , 0. , 1. ],
           [0. , 0.5, 0. ]], dtype=float32))
    """
    values = rewards if advantages is None else advantages
    if not len(sequences) == len(rewards) == len(values):
        raise RecordError("rewards", len(rewards), f"one for each of {len(sequences)} sequences")
    ids, attention_mask, mask = _pad_sequences(sequences, pad_id, multiple_of)
    # Log-probabilities are kept only if every sequence has them.
    known = [row.logprobs for row in sequences if row.logprobs is not None]
    logprobs = pad_rows(known, 0, dtype="float32", length=ids.shape[1]) if len(known) == len(sequences) else None
    return PolicyBatch(
        input_ids=ids,
        attention_mask=attention_mask,
        response_mask=mask,
        labels=np.where(mask, ids, ignore_index),
        lengths=attention_mask.sum(axis=1),
        rewards=np.array(rewards, dtype=np.float32),
        # (B, T) = (B, T) mask times (B, 1) advantage of the row
        advantages=mask * np.array(values, dtype=np.float32)[:, None],
        logprobs=logprobs,
        weights=_pad_weights(sequences, ids.shape[1]),
        rows=tuple(sequence.origin for sequence in sequences),
    )


def collate_distill(items: Items[Distillation], *, pad_id: int, multiple_of: int = 1) -> DistillBatch:
    """Collate student and hinted teacher; where valid, student_index[b, k] and teacher_index[b, k] are the same token.

    >>> student = Sequence(ids=[1, 7, 8], mask=[0, 1, 1], message_index=[0, 1, 1], paint=[0] * 3)
    >>> teacher = Sequence(ids=[1, 5, 7, 8], mask=[0, 0, 1, 1], message_index=[0, 0, 1, 1], paint=[0] * 4)
    >>> same = {"student_index": np.array([1, 2]), "teacher_index": np.array([2, 3])}
    >>> item = Distillation(student=student, teacher=teacher, **same)
    >>> batch = collate_distill([item], pad_id=0)
    >>> batch.student_ids, batch.sdpo_mask
    (array([[1, 7, 8]]), array([[False,  True,  True]]))
    >>> batch.teacher_ids, batch.student_index, batch.teacher_index, batch.index_valid
    (array([[1, 5, 7, 8]]), array([[1, 2]]), array([[2, 3]]), array([[ True,  True]]))
    """
    student, student_attention, _ = _pad_sequences([item.student for item in items], pad_id, multiple_of)
    teacher, teacher_attention, _ = _pad_sequences([item.teacher for item in items], pad_id, multiple_of)
    counts = [len(item.student_index) for item in items]
    return DistillBatch(
        student_ids=student,
        student_attention_mask=student_attention,
        sdpo_mask=pad_rows([item.student_mask for item in items], 0, dtype="bool", length=student.shape[1]),
        teacher_ids=teacher,
        teacher_attention_mask=teacher_attention,
        student_index=pad_rows([item.student_index for item in items], 0, dtype="int64"),
        teacher_index=pad_rows([item.teacher_index for item in items], 0, dtype="int64"),
        index_valid=make_attention_mask(counts, max(counts)).astype(bool),
        # Only turns with a hint are distilled.
        rows=tuple(Origin(item.student.report.uid, tuple(item.targets)) for item in items),
    )


def _pad_sequences(sequences: Items[Sequence], pad_id: int, multiple_of: int) -> tuple[Array, Array, Array]:
    """Return (ids, attention mask, mask of generated tokens), each (B, T)."""
    ids = pad_rows([row.ids for row in sequences], pad_id, dtype="int64", multiple_of=multiple_of)
    mask = pad_rows([row.mask for row in sequences], 0, dtype="bool", length=ids.shape[1])
    return ids, make_attention_mask([len(row) for row in sequences], ids.shape[1]), mask
