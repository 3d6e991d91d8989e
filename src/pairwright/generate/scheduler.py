"""Continuous batching: requests join and leave between tokens, and each result is returned when it is complete.

A row is a distinct prefix, not a choice: equal prompts share a row, the n choices of a request are sampled from the
same logits, and choices share a row up to their divergence point. If memory is short, or another group has no row, the
youngest rows return to the queue with their tokens so far.

Requests belong to groups (one per client, for example). Groups take turns when requests are admitted.
"""

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pairwright.generate.draw_tokens import Drawers, draw, uniforms
from pairwright.generate.kv_slots import Numbers
from pairwright.generate.requests import Choice, Finish, Piece, Request, Result
from pairwright.generate.text_stream import TextStream

OnPiece = Callable[[Piece], None]


class Runner(Protocol):
    """Interface of PackedRunner and PaddedRunner. A prompt that was started has its `tokens`."""

    def start(self, tokens: Numbers, *, users: int, room: int, is_forced: bool = False) -> Any: ...
    def drop(self, prompt: Any) -> None: ...
    def fits(self, parent: Numbers) -> bool: ...
    def advance(self, parent: Numbers, last: Numbers) -> tuple[Any, list[Any]]: ...


@dataclass(eq=False)
class Ticket:
    """A request in progress. Any thread may set `is_cancelled`; it is checked between tokens."""

    request: Request
    group: Hashable = None
    on_piece: OnPiece | None = None
    number: int = 0  # in its pieces
    is_cancelled: bool = False
    is_started: bool = False
    """Whether the model has started to read its prompt."""
    choices: list["OpenChoice"] = field(default_factory=list)
    num_open: int = 0
    result: Result | None = None


class OpenChoice:
    """One choice of a request, while it is generated."""

    __slots__ = ("finish", "index", "limit", "logprobs", "stop", "stream", "text", "ticket", "tokens", "top")

    def __init__(self, ticket: Ticket, index: int, limit: int) -> None:
        self.ticket, self.index, self.limit = ticket, index, limit
        # arrays instead of lists: not tracked by the garbage collector; there may be thousands
        self.tokens: array[int] = array("q")
        self.logprobs: array[float] = array("f")
        self.top: list[tuple[tuple[int, float], ...]] | None = None  # created on demand
        self.finish: Finish | None = None
        self.stop: int | str | None = None
        self.stream: TextStream | None = None
        self.text: list[str] | None = None


@dataclass(eq=False)
class _Entry:
    """Choices that wait for the same prompt: a new request, or a row that returned to the queue."""

    tokens: Numbers
    choices: list[OpenChoice]
    group: Hashable


class Scheduler:
    """Requests that are waiting or in progress. Not thread-safe: one thread calls `add` and `step`."""

    def __init__(
        self,
        runner: Runner,
        *,
        stop_ids: frozenset[int],
        context: int,
        decode: Callable[[Sequence[int], bool], str],
        max_choices: int,
    ) -> None:
        self._runner, self._context, self._decode = runner, context, decode
        self._stop_ids = np.array(sorted(stop_ids), np.int64)
        self._max_choices = max_choices
        self._queues: OrderedDict[Hashable, deque[_Entry]] = OrderedDict()
        self._fills: dict[bytes, tuple[Any, list[_Entry]]] = {}  # prompts in progress, by their tokens
        self._complete: list[Ticket] = []
        self._open: list[OpenChoice] = []
        self._row = np.zeros(0, np.int64)
        self._last = np.zeros(0, np.int64)  # the token that was drawn last
        self._settings = _settings_of([])
        self._logits: Any = None

    @property
    def is_idle(self) -> bool:
        return not self._open and not self._queues and not self._fills

    def add(self, ticket: Ticket) -> None:
        request = ticket.request
        room = self._context - len(request.prompt)
        limit = room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)
        ticket.choices = [OpenChoice(ticket, index, limit) for index in range(request.sampling.n)]
        ticket.num_open = len(ticket.choices)
        self._enqueue(_Entry(np.asarray(request.prompt, dtype=np.int64), ticket.choices, ticket.group))

    def step(self) -> list[Ticket]:
        """Generate one token for every open choice; return the requests that are now complete."""
        self._drop_cancelled()
        self._admit()
        parent, last = self._next_rows()
        self._logits, prompts = self._runner.advance(parent, last)
        if prompts:
            self._open_rows(prompts)
        if self._open:
            self._draw()
        complete, self._complete = self._complete, []
        return complete

    def close(self) -> None:
        """End all remaining requests, and release their rows."""
        for choice in [*self._open, *(choice for entry in self._pending() for choice in entry.choices)]:
            choice.ticket.is_cancelled = True
        self._drop_cancelled()
        none = np.zeros(0, np.int64)
        self._runner.advance(none, none)

    def _pending(self) -> list[_Entry]:
        in_work = [entry for _, entries in self._fills.values() for entry in entries]
        return in_work + [entry for queue in self._queues.values() for entry in queue]

    def _enqueue(self, entry: _Entry, *, is_first: bool = False) -> None:
        queue = self._queues.setdefault(entry.group, deque())
        queue.appendleft(entry) if is_first else queue.append(entry)

    def _admit(self) -> None:
        """Start prompts of the groups in turn; a group without rows displaces rows of the largest group."""
        deferred: set[Hashable] = set()
        in_work = len(self._open) + sum(len(entry.choices) for _, entries in self._fills.values() for entry in entries)
        while len(deferred) < len(self._queues):
            group = next(group for group in self._queues if group not in deferred)
            queue = self._queues[group]
            is_first = in_work == 0
            if not is_first and in_work + len(queue[0].choices) > self._max_choices and not self._yield_rows(group):
                deferred.add(group)
                continue
            started = self._start_one(queue, is_forced=is_first)
            if started is None:
                deferred.add(group)
                continue
            in_work += started
            # move to the end: groups take turns
            self._queues.move_to_end(group)
            if not queue:
                del self._queues[group]

    def _start_one(self, queue: deque[_Entry], *, is_forced: bool) -> int | None:
        """Start the first entry of a queue that can start now; return its number of choices, None if none can."""
        for place in range(min(len(queue), 512)):
            entry = queue[place]
            key = entry.tokens.tobytes()
            if key in self._fills:
                self._fills[key][1].append(entry)
            else:
                room = max(choice.limit - len(choice.tokens) for choice in entry.choices)
                users = 1 if entry.choices[0].ticket.request.sampling.temperature == 0 else len(entry.choices)
                prompt = self._runner.start(entry.tokens, users=users, room=room, is_forced=is_forced)
                if prompt == "memory":
                    return None
                if prompt == "shared":  # waits for another prompt, but does not block later entries
                    continue
                self._fills[key] = (prompt, [entry])
            del queue[place]
            for choice in entry.choices:
                choice.ticket.is_started = True
            return len(entry.choices)
        return None

    def _yield_rows(self, group: Hashable) -> bool:
        """Return rows of the largest group to the queue for a group without rows; return whether there is room now."""
        counts: dict[Hashable, int] = {}
        for choice in self._open:
            counts[choice.ticket.group] = counts.get(choice.ticket.group, 0) + 1
        for _, entries in self._fills.values():
            for entry in entries:
                counts[entry.group] = counts.get(entry.group, 0) + len(entry.choices)
        largest = max(counts, key=lambda key: counts[key])
        if group in counts or counts[largest] <= 1:
            return False
        mine = [place for place, choice in enumerate(self._open) if choice.ticket.group == largest]
        if not mine:
            return False
        self._put_back(self._row == self._row[mine[-1]])
        return True

    def _put_back(self, is_back: NDArray[np.bool_]) -> None:
        """Return open choices to the queue; each continues from its tokens when it is admitted again."""
        groups: dict[tuple[int, int], list[int]] = {}
        for place in np.nonzero(is_back)[0].tolist():
            # choices of one row may differ in the token that was drawn last
            groups.setdefault((int(self._row[place]), self._open[place].tokens[-1]), []).append(place)
        for places in groups.values():
            first = self._open[places[0]]
            prompt = np.asarray(first.ticket.request.prompt, dtype=np.int64)
            tokens = np.concatenate([prompt, np.array(first.tokens, np.int64)])
            entry = _Entry(tokens, [self._open[place] for place in places], first.ticket.group)
            self._enqueue(entry, is_first=True)
        self._keep(~is_back)

    def _next_rows(self) -> tuple[Numbers, Numbers]:
        """Return the rows to continue and their tokens: one for each distinct (row, last token) of the open choices."""
        while True:
            if not self._open:
                return np.zeros(0, np.int64), np.zeros(0, np.int64)
            size = self._logits.shape[-1]
            # (row, token) as one number
            keys, row = np.unique(self._row * size + self._last, return_inverse=True)
            parent, token = np.divmod(keys, size)
            if len(keys) == 1 or self._runner.fits(parent):
                self._row = row
                return parent, token
            # memory is short: return the youngest half of the rows to the queue
            self._put_back(row >= len(keys) // 2)

    def _open_rows(self, prompts: list[Any]) -> None:
        entries, rows = [], []
        first = int(self._row.max()) + 1 if len(self._row) else 0
        for row, prompt in enumerate(prompts, first):
            _, of_prompt = self._fills.pop(prompt.tokens.tobytes())
            entries += of_prompt
            rows += [row] * len(of_prompt)
        counts = [len(entry.choices) for entry in entries]
        choices = [choice for entry in entries for choice in entry.choices]
        self._open += choices
        self._row = np.concatenate([self._row, np.repeat(np.array(rows, np.int64), counts)])
        # placeholders: each choice draws a token before its entry is read
        self._last = np.concatenate([self._last, np.zeros(len(choices), np.int64)])
        self._settings = np.concatenate([self._settings, _settings_of(choices)])

    def _keep(self, is_open: NDArray[np.bool_]) -> None:
        self._open = [self._open[place] for place in np.nonzero(is_open)[0].tolist()]
        self._row, self._last = self._row[is_open], self._last[is_open]
        self._settings = self._settings[is_open]

    def _draw(self) -> None:
        import torch

        settings, logits = self._settings, self._logits
        uniform = uniforms(settings["seed"], settings["index"], settings["position"])
        limits = (settings[name] for name in ("temperature", "top_p", "top_k"))
        tokens = draw(logits, Drawers(self._row, uniform, *limits))
        settings["position"] += 1
        self._last = tokens
        rows, ids = (torch.from_numpy(values).to(logits.device) for values in (self._row, tokens))
        logprobs = (logits[rows, ids] - logits.logsumexp(-1)[rows]).tolist()
        for choice, token, logprob in zip(self._open, tokens.tolist(), logprobs, strict=True):
            choice.tokens.append(token)
            choice.logprobs.append(logprob)
        if settings["num_top"].any():
            for choice, top in zip(self._open, self._top_logprobs(), strict=True):
                choice.top = choice.top or []
                choice.top.append(top)
        is_stop = np.isin(tokens, self._stop_ids)
        is_open = ~is_stop & (settings["position"] < settings["limit"])
        # choices that end, and those whose text may end them
        for place in np.nonzero(~is_open | settings["has_text"])[0].tolist():
            choice = self._open[place]
            if is_stop[place]:
                choice.finish, choice.stop = "stop", choice.tokens[-1]
            elif not is_open[place]:
                choice.finish = "length"
            if settings["has_text"][place]:
                self._add_text(choice, choice.tokens[-1], logprobs[place])
            if choice.finish is not None:
                is_open[place] = False
                self._end(choice)
        if not is_open.all():
            self._keep(is_open)

    def _add_text(self, choice: OpenChoice, token: int, logprob: float) -> None:
        """Extend the text of a choice with stop texts or a listener; the others are decoded once, at the end."""
        sampling = choice.ticket.request.sampling
        if choice.stream is None:
            choice.stream = TextStream(lambda ids: self._decode(ids, sampling.skip_special_tokens), sampling.stop)
        stream = choice.stream
        text = "" if choice.finish == "stop" else stream.add(token)
        if stream.stop_text is None and choice.finish is not None:
            text += stream.finish()
        if stream.stop_text is not None:
            choice.finish, choice.stop = "stop", stream.stop_text
        choice.text = choice.text or []
        choice.text.append(text)
        if choice.ticket.on_piece is not None:
            choice.ticket.on_piece(
                Piece(
                    request=choice.ticket.number,
                    choice=choice.index,
                    token=token,
                    logprob=logprob,
                    text=text,
                    finish_reason=choice.finish,
                    top_logprobs=choice.top[-1] if choice.top else (),
                )
            )

    def _top_logprobs(self) -> list[tuple[tuple[int, float], ...]]:
        num_top = self._settings["num_top"]
        size = min(int(num_top.max()), self._logits.shape[-1])
        rows = np.unique(self._row[num_top > 0])
        values, ids = (tensor.tolist() for tensor in self._logits[rows].log_softmax(-1).topk(size))
        place_of = {row: place for place, row in enumerate(rows.tolist())}
        tops: list[tuple[tuple[int, float], ...]] = []
        for row, count in zip(self._row.tolist(), num_top.tolist(), strict=True):
            place = place_of.get(row, 0)
            tops.append(tuple(zip(ids[place][:count], values[place][:count], strict=True)) if count else ())
        return tops

    def _end(self, choice: OpenChoice) -> None:
        ticket = choice.ticket
        ticket.num_open -= 1
        if ticket.num_open == 0:
            choices = tuple(self._result(item) for item in ticket.choices)
            ticket.result = Result(len(ticket.request.prompt), choices)
            self._complete.append(ticket)

    def _result(self, choice: OpenChoice) -> Choice:
        assert choice.finish is not None
        if choice.stream is not None:
            text = "".join(choice.text or ())
        else:
            visible = choice.tokens[:-1] if choice.finish == "stop" else choice.tokens
            text = self._decode(visible, choice.ticket.request.sampling.skip_special_tokens)
        return Choice(
            index=choice.index,
            tokens=np.frombuffer(choice.tokens, np.int64).astype(np.int32),
            logprobs=np.frombuffer(choice.logprobs, np.float32).copy(),
            text=text,
            finish_reason=choice.finish,
            stop=choice.stop,
            top_logprobs=tuple(choice.top or ()),
        )

    def _drop_cancelled(self) -> None:
        places = [place for place, choice in enumerate(self._open) if choice.ticket.is_cancelled]
        if places:
            is_open = np.ones(len(self._open), bool)
            is_open[places] = False
            for place in places:
                self._cancel(self._open[place])
            self._keep(is_open)
        for key, (prompt, entries) in list(self._fills.items()):
            rest = [entry for entry in entries if not self._drop_entry(entry)]
            self._fills[key] = (prompt, rest)
            if not rest:
                self._runner.drop(prompt)
                del self._fills[key]
        for group, queue in list(self._queues.items()):
            if any(choice.ticket.is_cancelled for entry in queue for choice in entry.choices):
                self._queues[group] = deque(entry for entry in queue if not self._drop_entry(entry))
                if not self._queues[group]:
                    del self._queues[group]

    def _drop_entry(self, entry: _Entry) -> bool:
        """End the cancelled choices of an entry; return whether none is left."""
        for choice in [choice for choice in entry.choices if choice.ticket.is_cancelled]:
            self._cancel(choice)
        entry.choices = [choice for choice in entry.choices if choice.finish is None]
        return not entry.choices

    def _cancel(self, choice: OpenChoice) -> None:
        choice.finish = "cancelled"
        self._end(choice)


_SETTINGS = np.dtype(
    [
        ("seed", np.uint64),
        ("index", np.int64),
        ("temperature", np.float64),
        ("top_p", np.float64),
        ("top_k", np.int64),
        ("num_top", np.int64),
        ("position", np.int64),  # of the next token
        ("limit", np.int64),
        ("has_text", bool),  # its text is streamed, or it has stop texts
    ],
    align=True,
)


def _settings_of(choices: Sequence[OpenChoice]) -> NDArray[np.void]:
    """Return the settings of choices as a structured array, one entry each."""
    rows = []
    for choice in choices:
        sampling = choice.ticket.request.sampling
        has_text = bool(choice.ticket.on_piece or sampling.stop)
        limits = (sampling.temperature, sampling.top_p, sampling.top_k, sampling.top_logprobs)
        rows.append((sampling.seed, choice.index, *limits, len(choice.tokens), choice.limit, has_text))
    return np.array(rows, _SETTINGS)
