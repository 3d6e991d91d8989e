"""Memory of keys and values: the tree of prompts that rows share, and slots for tokens of a single row.

Rows of similar length are in one tensor, so that attention reads them without copies: a size class has slots of 32, 64,
128 ... tokens, and its rows always fill the slots from 0 on. A row that outgrows its slot moves to the next class.

Shapes: L layers, S slots, K key-value heads, T tokens of a slot, D head size.
"""

import weakref
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#


MIN_SHARED = 32
_SMALLEST = 32  # tokens of the smallest size class
_COPIED_ROWS = 128
Numbers = NDArray[np.int64]
Wait = Literal["memory", "shared"]  # why a prompt cannot start now


class Budget:
    """The maximum and current number of tokens of keys and values in memory."""

    def __init__(self, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.used = 0

    def add(self, num_tokens: int) -> None:
        self.used += num_tokens


class Block:
    """Keys and values of consecutive tokens, each (layers, KV heads, tokens, head size); counted until it is freed."""

    def __init__(self, keys: Any, values: Any, budget: Budget) -> None:
        self.keys, self.values = keys, values
        num_tokens = keys.shape[2]
        budget.add(num_tokens)
        weakref.finalize(self, budget.add, -num_tokens).atexit = False


class Node:
    """A range of a block: the tokens after those of its parent, from position `start` on; `offset` in its block."""

    __slots__ = ("block", "children", "keys", "last_used", "offset", "parent", "start", "tokens", "values")

    def __init__(self, tokens: Numbers, *, start: int, block: Block | None, offset: int = 0) -> None:
        self.tokens, self.start, self.block, self.offset = tokens, start, block, offset
        self.children: dict[bytes, Node] = {}  # keyed by their first MIN_SHARED tokens
        self.parent: Node | None = None
        self.last_used = 0
        if block is not None:
            self.keys = block.keys[:, :, offset : offset + len(tokens)]
            self.values = block.values[:, :, offset : offset + len(tokens)]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PrefixTree:
    """The prefix cache: keys and values of prompts that were computed before, in a tree of token sequences.

    A prompt that shares a prefix with an earlier one reuses the nodes of the prefix; if the divergence point is inside
    a node, the node is split without copying. Prefixes shorter than MIN_SHARED tokens are recomputed: that is cheaper
    than managing them. The least recently used leaves are dropped when memory is short.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._root = Node(np.zeros(0, np.int64), start=0, block=None)
        self._clock = 0

    def match(self, tokens: Numbers, limit: int) -> tuple[Node, ...]:
        """Return the nodes that match a prefix of the first `limit` tokens; split a node that matches only in part."""
        self._clock += 1
        node, path = self._root, []
        while limit - node.end >= MIN_SHARED:
            child = node.children.get(key_of(tokens, node.end))
            if child is None:
                break
            size = common_length(child.tokens, tokens[child.start : limit])
            if size < MIN_SHARED:
                break
            if size < len(child.tokens):
                child = self._split(child, size)
            child.last_used = self._clock
            path.append(child)
            node = child
        return tuple(path)

    def insert(self, path: tuple[Node, ...], tokens: Numbers, block: Block) -> Node:
        """Add a leaf below a path. Other prompts do not find the leaf if the path has been removed from the tree."""
        parent = path[-1] if path else self._root
        node = Node(tokens, start=parent.end, block=block)
        node.last_used = self._clock
        if len(tokens) >= MIN_SHARED and (parent is self._root or parent.parent is not None):
            key = key_of(tokens, 0)
            # if an equal or longer node exists by now, this one is used only by its row
            if key not in parent.children:
                parent.children[key] = node
                node.parent = parent
        return node

    def make_room(self, num_tokens: int, in_use: Collection[Node]) -> bool:
        """Drop unused leaves, least recently used first, until `num_tokens` more fit; return whether they fit."""
        while self._budget.used + num_tokens > self._budget.max_tokens:
            leaves = [node for node in self._nodes() if not node.children and node not in in_use]
            if not leaves:
                return False
            for node in sorted(leaves, key=lambda leaf: leaf.last_used)[: 1 + len(leaves) // 4]:
                if node.parent is not None:
                    del node.parent.children[key_of(node.tokens, 0)]
                    node.parent = None
                if self._budget.used + num_tokens <= self._budget.max_tokens:
                    break
        return True

    def _split(self, node: Node, size: int) -> Node:
        parent = node.parent
        assert parent is not None
        assert node.block is not None
        head = Node(node.tokens[:size], start=node.start, block=node.block, offset=node.offset)
        head.parent = parent
        parent.children[key_of(head.tokens, 0)] = head
        # rows that use the old node keep it; in the tree, two halves replace it
        node.parent = None
        tail = Node(node.tokens[size:], start=head.end, block=node.block, offset=node.offset + size)
        tail.last_used = node.last_used
        if len(tail.tokens) >= MIN_SHARED:
            head.children[key_of(tail.tokens, 0)] = tail
            tail.parent = head
            tail.children = node.children
            for child in tail.children.values():
                child.parent = tail
        else:
            _detach(node)
        node.children = {}
        return head

    def _nodes(self) -> list[Node]:
        nodes, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack.extend(node.children.values())
        return nodes


def _detach(node: Node) -> None:
    """Detach all nodes of a subtree, so that its blocks are freed with the last row that uses them."""
    for child in node.children.values():
        child.parent = None
        _detach(child)
    node.children = {}


def key_of(tokens: Numbers, start: int) -> bytes:
    return tokens[start : start + MIN_SHARED].tobytes()


def common_length(first: Numbers, second: Numbers) -> int:
    """Return the length of the common prefix.

    >>> common_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    size = min(len(first), len(second))
    differs = first[:size] != second[:size]
    place = int(differs.argmax()) if size else 0
    return place if size and differs[place] else size


@dataclass(frozen=True)
class Shape:
    """The shape and type of a model's keys and values."""

    layers: int
    heads: int  # key-value heads
    head_size: int
    dtype: Any
    device: str

    @property
    def bytes_per_token(self) -> int:
        return int(2 * self.layers * self.heads * self.head_size * self.dtype.itemsize)

    def allocate(self, *, slots: int | None, tokens: int) -> tuple[Any, Any]:
        """Allocate zeroed keys and values: (L, S, K, T, D), or (L, K, T, D) without slots."""
        import torch

        middle = (self.heads, tokens) if slots is None else (slots, self.heads, tokens)
        shape = self.layers, *middle, self.head_size
        keys, values = (torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2))
        return keys, values


class SlotClass:
    """Slots of one size; `count` of them are in use, from 0 on."""

    def __init__(self, shape: Shape, capacity: int, budget: Budget) -> None:
        self.shape, self.capacity, self.budget = shape, capacity, budget
        self.count = self.num_slots = 0
        self.keys: Any = None
        self.values: Any = None

    def take(self, number: int) -> Numbers:
        self.reserve(number)
        slots = np.arange(self.count, self.count + number)
        self.count += number
        return slots

    def reserve(self, number: int) -> None:
        if self.count + number > self.num_slots:
            self._resize(max(self.count + number, self.num_slots + self.num_slots // 2))

    def copy(self, source: Numbers, target: Numbers, length: int) -> None:
        import torch

        pairs = (torch.from_numpy(source).split(_COPIED_ROWS), torch.from_numpy(target).split(_COPIED_ROWS))
        for tensor in (self.keys, self.values) if len(source) else ():
            for layer in tensor[:, :, :, :length]:
                # a few rows at a time: the intermediate copy stays in the CPU's cache
                for rows, places in zip(*pairs, strict=True):
                    layer[places] = layer.index_select(0, rows)

    def release_empty(self) -> None:
        if self.count < self.num_slots:
            self._resize(self.count)

    def _resize(self, num_slots: int) -> None:
        old = (self.keys, self.values)
        self.budget.add((num_slots - self.num_slots) * self.capacity)
        if num_slots == 0:
            self.keys = self.values = None
        else:
            self.keys, self.values = self.shape.allocate(slots=num_slots, tokens=self.capacity)
            both = min(num_slots, self.num_slots)
            if both:
                for new, tensor in zip((self.keys, self.values), old, strict=True):
                    new[:, :both] = tensor[:, :both]
        self.num_slots = num_slots


class Rows:
    """The rows that are decoded, as arrays with one entry per row."""

    def __init__(self, shape: Shape, budget: Budget) -> None:
        self._shape, self._budget = shape, budget
        self.classes: list[SlotClass] = []
        self.size_class = np.zeros(0, np.int64)
        self.slot = np.zeros(0, np.int64)
        self.length = np.zeros(0, np.int64)  # tokens in the slot
        self.start = np.zeros(0, np.int64)  # position of the slot's first token
        self.chain = np.zeros(0, np.int64)  # number of the row's chain of shared nodes
        self._chains: dict[tuple[Node, ...], int] = {(): 0}
        self.chain_nodes: dict[int, tuple[Node, ...]] = {0: ()}
        self._next_chain = 1

    def __len__(self) -> int:
        return len(self.slot)

    def nodes_in_use(self) -> set[Node]:
        return {node for chain in self.chain_nodes.values() for node in chain}

    def class_for(self, num_tokens: int) -> int:
        """Return the number of the smallest class whose slots hold `num_tokens`."""
        number = max(0, (max(num_tokens, 1) - 1).bit_length() - _SMALLEST.bit_length() + 1)
        while len(self.classes) <= number:
            self.classes.append(SlotClass(self._shape, _SMALLEST << len(self.classes), self._budget))
        return number

    def grown_tokens(self, parent: Numbers) -> int:
        """Return the additional tokens of memory for the next step: slots of forks and of rows that move up."""
        capacity = _SMALLEST << self.size_class[parent]
        moves = self.length[parent] >= capacity
        is_fork = np.ones(len(parent), bool)
        is_fork[np.unique(parent, return_index=True)[1]] = False
        return int(2 * capacity[moves].sum() + capacity[is_fork & ~moves].sum())

    def select(self, parent: Numbers) -> None:
        """Continue the rows `parent`: others are released, repeated ones are copied."""
        is_fork = np.ones(len(parent), bool)
        is_fork[np.unique(parent, return_index=True)[1]] = False
        self.size_class, self.slot, self.length, self.start, self.chain = (
            values[parent] for values in (self.size_class, self.slot, self.length, self.start, self.chain)
        )
        if is_fork.any():
            for number in np.unique(self.size_class[is_fork]).tolist():
                (rows,) = np.nonzero(is_fork & (self.size_class == number))
                target = self.classes[number].take(len(rows))
                self.classes[number].copy(self.slot[rows], target, int(self.length[rows].max()))
                self.slot[rows] = target
        self._move_up()
        self._compact()
        live = set(np.unique(self.chain).tolist())
        for number in [number for number in self.chain_nodes if number not in live]:
            del self._chains[self.chain_nodes.pop(number)]

    def _move_up(self) -> None:
        is_full = self.length >= _SMALLEST << self.size_class
        for number in np.unique(self.size_class[is_full]).tolist():
            (rows,) = np.nonzero(is_full & (self.size_class == number))
            source = self.classes[number]
            target_class = self.class_for(source.capacity + 1)
            target = self.classes[target_class]
            slots = target.take(len(rows))
            target.keys[:, slots, :, : source.capacity] = source.keys[:, self.slot[rows]]
            target.values[:, slots, :, : source.capacity] = source.values[:, self.slot[rows]]
            self.size_class[rows], self.slot[rows] = target_class, slots

    def _compact(self) -> None:
        """Move the last rows of each class into its holes."""
        for number, slots in enumerate(self.classes):
            (rows,) = np.nonzero(self.size_class == number)
            if len(rows) == slots.count:
                continue
            late = rows[self.slot[rows] >= len(rows)]
            holes = np.setdiff1d(np.arange(len(rows)), self.slot[rows], assume_unique=True)
            slots.copy(self.slot[late], holes, int(self.length[late].max()) if len(late) else 0)
            self.slot[late] = holes
            slots.count = len(rows)  # the memory of the others is kept for new rows until it is needed

    def add(self, *, size_class: Numbers, slot: Numbers, length: Numbers, start: Numbers, chain: Numbers) -> None:
        """Append rows whose slots were taken and written."""
        self.size_class = np.concatenate([self.size_class, size_class])
        self.slot = np.concatenate([self.slot, slot])
        self.length = np.concatenate([self.length, length])
        self.start = np.concatenate([self.start, start])
        self.chain = np.concatenate([self.chain, chain])

    def number_chain(self, nodes: tuple[Node, ...]) -> int:
        number = self._chains.get(nodes)
        if number is None:
            number = self._chains[nodes] = self._next_chain
            self.chain_nodes[number] = nodes
            self._next_chain += 1
        return number
