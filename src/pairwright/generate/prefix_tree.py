"""The prefix cache: keys and values of prompts that were computed before, in a tree of token sequences.

A node has the tokens that follow its parent's, and their keys and values. A prompt that begins like an earlier one
takes the nodes on its way; where it leaves in the middle of a node, the node is split, which copies nothing. Beginnings
shorter than MIN_SHARED tokens are computed again: that is cheaper than to look after them.
"""

import weakref
from collections.abc import Collection
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

MIN_SHARED = 32
Tokens = NDArray[np.int64]
Wait = Literal["memory", "shared"]  # why a prompt cannot start now


class Budget:
    """How many tokens of keys and values may be in memory, and how many are."""

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
    """A range of a block: `tokens` at the positions from `start` on, `offset` in its block."""

    __slots__ = ("block", "children", "keys", "last_used", "offset", "parent", "start", "tokens", "values")

    def __init__(self, tokens: Tokens, *, start: int, block: Block | None, offset: int = 0) -> None:
        self.tokens, self.start, self.block, self.offset = tokens, start, block, offset
        self.children: dict[bytes, Node] = {}  # by their first MIN_SHARED tokens
        self.parent: Node | None = None
        self.last_used = 0
        if block is not None:
            self.keys = block.keys[:, :, offset : offset + len(tokens)]
            self.values = block.values[:, :, offset : offset + len(tokens)]

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


class PrefixTree:
    """The nodes by their tokens; the least recently used leaves are dropped when memory is short."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._root = Node(np.zeros(0, np.int64), start=0, block=None)
        self._clock = 0

    def match(self, tokens: Tokens, limit: int) -> tuple[Node, ...]:
        """The nodes on the way of the first `limit` tokens; a node that is left in its middle is split."""
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

    def insert(self, path: tuple[Node, ...], tokens: Tokens, block: Block) -> Node:
        """Add a leaf below a path. The node is not found by others if the path has left the tree meanwhile."""
        parent = path[-1] if path else self._root
        node = Node(tokens, start=parent.end, block=block)
        node.last_used = self._clock
        if len(tokens) >= MIN_SHARED and (parent is self._root or parent.parent is not None):
            key = key_of(tokens, 0)
            # an equal or longer node may be there by now: then this one serves its own row only
            if key not in parent.children:
                parent.children[key] = node
                node.parent = parent
        return node

    def make_room(self, num_tokens: int, in_use: Collection[Node]) -> bool:
        """Drop unused leaves, least recently used first, until `num_tokens` more fit; whether they fit."""
        while self._budget.used + num_tokens > self._budget.max_tokens:
            leaves = [node for node in self._nodes() if not node.children and node not in in_use]
            if not leaves:
                return False
            for node in sorted(leaves, key=lambda leaf: leaf.last_used)[: 1 + len(leaves) // 4]:
                self._drop(node)
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
        # rows that use the old node go on with it; in the tree its two halves stand in its place
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

    def _drop(self, node: Node) -> None:
        if node.parent is not None:
            del node.parent.children[key_of(node.tokens, 0)]
            node.parent = None

    def _nodes(self) -> list[Node]:
        nodes, stack = [], list(self._root.children.values())
        while stack:
            node = stack.pop()
            nodes.append(node)
            stack.extend(node.children.values())
        return nodes


def _detach(node: Node) -> None:
    """Take a subtree apart, so that its blocks are freed with the last row that uses them."""
    for child in node.children.values():
        child.parent = None
        _detach(child)
    node.children = {}


def key_of(tokens: Tokens, start: int) -> bytes:
    return tokens[start : start + MIN_SHARED].tobytes()


def common_length(first: Tokens, second: Tokens) -> int:
    """Length of the common beginning.

    >>> common_length(np.array([1, 2, 3]), np.array([1, 2, 4, 5]))
    2
    """
    size = min(len(first), len(second))
    differs = first[:size] != second[:size]
    place = int(differs.argmax()) if size else 0
    return place if size and differs[place] else size
