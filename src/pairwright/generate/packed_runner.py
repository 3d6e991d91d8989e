"""Run a model on packed tokens: each step takes one token of every row and pieces of waiting prompts.

Shared prefixes of prompts are computed once: while one prompt is in progress, others with the same prefix wait for it.
A row reads the shared nodes of its prompt in place; its other tokens are copied to its slot (kv_slots.py).
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np

from pairwright.generate.kv_slots import (
    MIN_SHARED,
    Block,
    Budget,
    Node,
    Numbers,
    PrefixTree,
    Rows,
    Shape,
    Wait,
    common_length,
)
from pairwright.generate.packed_attention import (
    NAME,
    BlockPart,
    NodeLevel,
    Plan,
    ShortPrompts,
    SlotPart,
    SlotWrite,
    use_plan,
)

_PIECE = 256  # most tokens of a prompt in one step, while other prompts wait


@dataclass(eq=False)
class Fill:
    """A prompt in progress. Of the tokens after its shared nodes, the first `done` are computed."""

    tokens: Numbers
    users: int  # rows that will continue it
    room: int  # tokens that each row may generate
    nodes: tuple[Node, ...]
    block: Block | None  # None for a short prompt, which is written directly to its slot
    done: int = 0

    @property
    def start(self) -> int:
        return self.nodes[-1].end if self.nodes else 0

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.start - self.done


class PackedRunner:
    """Rows of one model. `start` adds a prompt; `advance` runs a step."""

    def __init__(self, model: Any, shape: Shape, *, max_cache_tokens: int, max_step_tokens: int) -> None:
        import inspect

        self._model, self._shape = model, shape
        self._max_step_tokens = max_step_tokens
        self._options = frozenset(inspect.signature(model.forward).parameters)
        self.budget = Budget(max_cache_tokens)
        self._tree = PrefixTree(self.budget)
        self._rows = Rows(shape, self.budget)
        self._fills: dict[Fill, None] = {}  # in the order of their turns

    def start(self, tokens: Numbers, *, users: int, room: int, is_forced: bool = False) -> Fill | Wait:
        """Begin a prompt; or return what it waits for: memory, or another prompt with the same prefix."""
        nodes: tuple[Node, ...] = ()
        if len(tokens) > MIN_SHARED:
            nodes = self._tree.match(tokens, len(tokens) - 1)
            begin = nodes[-1].end if nodes else 0
            for fill in self._fills:
                gain = common_length(fill.tokens, tokens) - begin
                if gain >= MIN_SHARED and fill.remaining <= 4 * gain + _PIECE and fill.block is not None:
                    return "shared"
        fill = Fill(tokens, users, room, nodes, None)
        is_short = fill.remaining < MIN_SHARED and self._count_shared(fill, nodes) == len(nodes)
        # a longer prompt needs a block, and a copy in the row's slot
        needed = 2 * MIN_SHARED if is_short else 2 * len(tokens) + MIN_SHARED
        if not self._make_room(needed, nodes) and not is_forced:
            return "memory"
        if not is_short:
            fill.block = Block(*self._shape.allocate(slots=None, tokens=fill.remaining), self.budget)
        self._fills[fill] = None
        return fill

    def _count_shared(self, fill: Fill, nodes: tuple[Node, ...]) -> int:
        """Count the first nodes of a prompt that several rows read."""
        if fill.users > 1 or not nodes:
            return len(nodes)
        others = self._rows.nodes_in_use().union(*(other.nodes for other in self._fills if other is not fill))
        return next((number for number, node in enumerate(nodes) if node not in others), len(nodes))

    def drop(self, fill: Fill) -> None:
        del self._fills[fill]

    def fits(self, parent: Numbers) -> bool:
        needed = self._rows.grown_tokens(parent)
        return not needed or self._make_room(needed, ())

    def _make_room(self, num_tokens: int, nodes: tuple[Node, ...]) -> bool:
        """Drop cached prompts, except those in use and `nodes`, until `num_tokens` fit; return whether they fit."""
        if self.budget.used + num_tokens <= self.budget.max_tokens:
            return True
        for slots in self._rows.classes:
            slots.release_empty()
        in_use = self._rows.nodes_in_use().union(nodes, *(fill.nodes for fill in self._fills))
        return self._tree.make_room(num_tokens, in_use)

    def advance(self, parent: Numbers, last: Numbers) -> tuple[Any, list[Fill]]:
        """Continue rows `parent`, each with its token in `last`; other rows end. Return logits and completed prompts.

        The logits are those of these rows, then those of the prompts: together the rows of the next call.
        """
        import torch

        self._rows.select(parent)
        rows = self._rows
        pieces = self._choose_pieces()
        if not len(rows) and not pieces:
            return None, []
        order = np.lexsort((rows.slot, rows.size_class))
        row_positions = (rows.start + rows.length)[order]
        piece_positions = [np.arange(fill.start + fill.done, fill.start + fill.done + size) for fill, size in pieces]
        piece_tokens = (fill.tokens[places] for (fill, _), places in zip(pieces, piece_positions, strict=True))
        ids = np.concatenate([last[order], *piece_tokens])
        plan = Plan(np.concatenate([row_positions, *piece_positions]))
        self._plan_rows(plan, order)
        complete, chains = self._plan_pieces(plan, pieces, len(order))
        self._plan_levels(plan, order, pieces)
        # the needed logits: one for each row, and one for each prompt that ends with this step
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        ends = len(order) + np.cumsum([size for _, size in pieces], dtype=np.int64) - 1
        is_last = np.array([fill.remaining == size for fill, size in pieces], bool)
        wanted = np.concatenate([place, ends[is_last]])
        with use_plan(plan):
            logits = self._forward(torch.from_numpy(ids)[None], torch.from_numpy(plan.positions)[None], wanted)
        rows.length += 1
        for fill, size in pieces:
            fill.done += size
        self._add_rows(complete, chains)
        for fill in complete:
            del self._fills[fill]
        return logits, complete

    def _choose_pieces(self) -> list[tuple[Fill, int]]:
        """Choose pieces of prompts for this step. Prompts take turns: a long one does not delay short ones."""
        budget = max(self._max_step_tokens - len(self._rows), self._max_step_tokens // 2, 1)
        most = budget if len(self._fills) == 1 else min(budget, max(_PIECE, budget // max(len(self._fills), 1)))
        pieces: list[tuple[Fill, int]] = []
        for fill in list(self._fills):
            # a short prompt is never split: it is written to its slot in one step
            size = fill.remaining if fill.block is None else min(fill.remaining, most, budget)
            if size > budget and pieces:
                break
            pieces.append((fill, size))
            self._fills[fill] = self._fills.pop(fill)  # move to the end: prompts take turns
            budget -= size
            if budget <= 0:
                break
        # short prompts of equal size are adjacent, to be one product; then the long ones
        pieces.sort(key=lambda piece: (piece[0].block is not None, piece[1]))
        return pieces

    def _plan_rows(self, plan: Plan, order: Numbers) -> None:
        import torch

        rows = self._rows
        for number in np.unique(rows.size_class).tolist():
            start, stop = np.searchsorted(rows.size_class[order], [number, number + 1]).tolist()
            mine = order[start:stop]
            slots = rows.classes[number]
            lengths = rows.length[mine]
            plan.rows.append(SlotPart(slots, start, stop, lengths + 1))
            # rows fill the slots from 0 on; if all have the same length, one strided copy is far cheaper than an index
            slot: Any = slice(0, stop - start)
            place: Any = int(lengths[0])
            if (lengths != place).any():
                slot, place = torch.from_numpy(rows.slot[mine]), torch.from_numpy(lengths)
            plan.writes.append(SlotWrite(slots, slice(start, stop), slot, place))

    def _plan_pieces(
        self, plan: Plan, pieces: list[tuple[Fill, int]], start: int
    ) -> tuple[list[Fill], list[tuple[int, int]]]:
        """Plan where tokens of prompts are written; return the prompts that end, with class and slot of short ones."""
        import torch

        complete, places = [], []
        sizes = [size + min(fill.room, MIN_SHARED) for fill, size in pieces if fill.block is None]
        for number, count in Counter(map(self._rows.class_for, sizes)).items():  # one resize per class
            self._rows.classes[number].reserve(count)
        writes: dict[int, list[tuple[int, int, int]]] = {}  # size class -> first token, slot, size of prompts
        for fill, size in pieces:
            number = slot = 0
            if fill.block is not None:
                plan.blocks.append(BlockPart(fill.block, start, start + size, fill.done))
            else:
                number = self._rows.class_for(size + min(fill.room, MIN_SHARED))
                slot = int(self._rows.classes[number].take(1)[0])
                writes.setdefault(number, []).append((start, slot, size))
                last = plan.short[-1] if plan.short else None
                if last is not None and last.size == size:
                    plan.short[-1] = ShortPrompts(last.start, last.count + 1, size)
                else:
                    plan.short.append(ShortPrompts(start, 1, size))
            if fill.remaining == size:
                complete.append(fill)
                places.append((number, slot))
            start += size
        for number, prompts in writes.items():
            tokens = np.concatenate([np.arange(begin, begin + size) for begin, _, size in prompts])
            slots = np.repeat([slot for _, slot, _ in prompts], [size for *_, size in prompts])
            within = np.concatenate([np.arange(size) for *_, size in prompts])
            arrays = (torch.from_numpy(values) for values in (tokens, slots, within))
            plan.writes.append(SlotWrite(self._rows.classes[number], *arrays))
        return complete, places

    def _plan_levels(self, plan: Plan, order: Numbers, pieces: list[tuple[Fill, int]]) -> None:
        """Plan which tokens read which shared nodes, by the chains of rows and prompts."""
        tokens_of: dict[tuple[Node, ...], list[Numbers]] = {}
        chains = self._rows.chain[order]
        for number in np.unique(chains).tolist():
            tokens_of.setdefault(self._rows.chain_nodes[number], []).append(np.nonzero(chains == number)[0])
        start = len(order)
        for fill, size in pieces:
            tokens_of.setdefault(fill.nodes, []).append(np.arange(start, start + size))
            start += size
        for level in range(max(map(len, tokens_of), default=0)):
            by_node: dict[Node, list[Numbers]] = {}
            for nodes, tokens in tokens_of.items():
                if len(nodes) > level:
                    by_node.setdefault(nodes[level], []).extend(tokens)
            plan.levels.append(
                NodeLevel(list(by_node), [np.sort(np.concatenate(tokens)) for tokens in by_node.values()])
            )

    def _forward(self, ids: Any, positions: Any, wanted: Numbers) -> Any:
        """Compute logits (len(wanted), vocabulary) of these tokens, in float32."""
        import torch

        model, config = self._model, self._model.config
        keep = torch.from_numpy(wanted)
        options: dict[str, Any] = {"logits_to_keep": keep} if "logits_to_keep" in self._options else {}
        before = config._attn_implementation
        config._attn_implementation = NAME
        try:
            with torch.inference_mode():
                # transformers passes a 4-D mask on unchanged instead of building one; packed attention ignores it
                logits = model(
                    input_ids=ids,
                    position_ids=positions,
                    attention_mask=torch.zeros(1, 1, 1, 1),
                    use_cache=False,
                    **options,
                ).logits[0]
        finally:
            config._attn_implementation = before
        return (logits if options else logits[keep]).float()

    def _add_rows(self, complete: list[Fill], places: list[tuple[int, int]]) -> None:
        """Add a row for each complete prompt: shared nodes are used in place, the rest is copied to its slot."""
        entries = []
        for fill, (number, slot) in zip(complete, places, strict=True):
            nodes, size = fill.nodes, len(fill.tokens) - fill.start
            if fill.block is not None:
                # a node may have been split since the prompt was begun: use its halves
                path = self._tree.match(fill.tokens, fill.start)
                nodes = path if path and path[-1].end == fill.start else nodes
                nodes = (*nodes, self._tree.insert(nodes, fill.tokens[fill.start :], fill.block))
                shared = self._count_shared(fill, nodes)
                nodes, own = nodes[:shared], nodes[shared:]
                size = sum(len(node.tokens) for node in own)
                number = self._rows.class_for(size + min(fill.room, MIN_SHARED))
                slots = self._rows.classes[number]
                slot = int(slots.take(1)[0])
                place = 0
                for node in own:
                    end = place + len(node.tokens)
                    slots.keys[:, slot, :, place:end] = node.keys
                    slots.values[:, slot, :, place:end] = node.values
                    place = end
            entries.append((number, slot, size, len(fill.tokens) - size, self._rows.number_chain(nodes)))
        if entries:
            number, slot, size, start, chain = np.array(entries, np.int64).T
            self._rows.add(size_class=number, slot=slot, length=size, start=start, chain=chain)
