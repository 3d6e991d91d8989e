"""Decoding of one batch: a prefill, then one sampled token for every open choice per step; incremental text.

A row of the cache is a distinct prefix, not a choice: equal prompts share a row, the n choices of a request are sampled
from the same logits, and choices with the same tokens so far share a row until they differ. So eight candidates for one
prompt cost one prefill and one step for each distinct first token.

Shapes: R rows, C choices of the batch, A choices that are still open, T tokens, V vocabulary.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pairwright.generate.requests import Choice, Finish, Piece, Request

# Incremental text of a growing list of tokens: text that may still change is held back

_REPLACEMENT = "�"  # decoders write it for an incomplete UTF-8 sequence


class TextStream:
    """`add` a token and get the text that is now final; `stop_text` is the stop text once it has occurred."""

    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode, self._stop = decode, stop
        self._ids: list[int] = []
        # Tokens [start:end] are decoded again as left context, because a token's text may depend on the one before it
        # (leading spaces, multi-byte characters). The text of all tokens before `end` has been returned.
        self._start = self._end = 0
        self._pending = ""
        self.stop_text: str | None = None

    def add(self, token: int) -> str:
        self._ids.append(token)
        before = self._decode(self._ids[self._start : self._end])
        text = self._decode(self._ids[self._start :])
        if text.endswith(_REPLACEMENT) or len(text) <= len(before):
            return ""
        self._start, self._end = self._end, len(self._ids)
        return self._give(text[len(before) :])

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        if self.stop_text is not None:
            return ""
        before = self._decode(self._ids[self._start : self._end])
        rest = self._give(self._decode(self._ids[self._start :])[len(before) :])
        if self.stop_text is not None:
            return rest
        rest, self._pending = rest + self._pending, ""
        return rest

    def _give(self, more: str) -> str:
        text = self._pending + more
        matches = [(text.index(stop), stop) for stop in self._stop if stop in text]
        if matches:
            at, self.stop_text = min(matches)
            self._pending = ""
            return text[:at]
        # hold back the longest end of the text that may be the beginning of a stop text
        keep = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._pending = text[len(text) - keep :]
        return text[: len(text) - keep]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text that is a proper prefix of the stop text."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)


# Sampling, where each token depends on its own seed only

_CHUNK = 2**24  # maximal number of values (choices x vocabulary) in memory at once
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # 2**64 / golden ratio, the increment of splitmix64


class Drawers(NamedTuple):
    """Arrays with one entry per choice: its row of the logits, its uniform number and its settings."""

    row: NDArray[np.int64]
    uniform: NDArray[np.float64]
    temperature: NDArray[np.float64]
    top_p: NDArray[np.float64]
    top_k: NDArray[np.int64]


def uniforms(seed: NDArray[np.uint64], choice: NDArray[np.int64], position: int) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), one per choice: a hash of (seed, choice, position).

    >>> [float(u) for u in uniforms(np.array([7, 7, 8], np.uint64), np.array([0, 1, 0]), 0).round(3)]
    [0.747, 0.453, 0.891]
    """
    with np.errstate(over="ignore"):  # arithmetic modulo 2**64 is intended
        mixed = _mix(seed + _GOLDEN)
        mixed = _mix(mixed ^ (choice.astype(np.uint64) + np.uint64(1)) * _GOLDEN)
        mixed = _mix(mixed + np.uint64(position + 1) * _GOLDEN)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53  # the upper 53 bits, exact in float64


def draw(logits_RV: Any, drawers: Drawers) -> NDArray[np.int64]:
    """Sample a token for each choice."""
    import torch

    greedy = drawers.temperature == 0
    tokens = np.empty(len(drawers.row), np.int64)
    if greedy.any():
        tokens[greedy] = torch.argmax(logits_RV, dim=-1).cpu().numpy()[drawers.row[greedy]]
    (sampled,) = np.nonzero(~greedy)
    if not len(sampled):
        return tokens
    # Choices of one row with the same settings share their distribution: it is computed once per group. `order` sorts
    # the sampled choices by settings, `changes` marks where a new group begins in that order, `which` numbers the
    # groups, and `first` has the position of each group's first member.
    settings = [values[sampled] for values in (drawers.row, drawers.temperature, drawers.top_p, drawers.top_k)]
    order = np.lexsort(settings[::-1])
    changes = np.zeros(len(sampled), bool)
    for values in settings:
        changes[1:] |= values[order][1:] != values[order][:-1]
    which = np.cumsum(changes)
    first = np.nonzero(np.concatenate([[True], changes[1:]]))[0]
    step = max(1, _CHUNK // logits_RV.shape[-1])
    for start in range(0, len(first), step):  # `step` groups at a time, to bound memory
        groups = first[start : start + step]
        members = order[(which >= start) & (which < start + len(groups))]
        group_of = which[(which >= start) & (which < start + len(groups))] - start
        row, temperature, top_p, top_k = (torch.from_numpy(values[order[groups]]) for values in settings)
        cdf_GV = _cumulative(logits_RV[row.to(logits_RV.device)], temperature, top_p, top_k)
        tokens[sampled[members]] = _pick(cdf_GV, group_of, drawers.uniform[sampled[members]], step)
    return tokens


def _cumulative(logits_GV: Any, temperature: Any, top_p: Any, top_k: Any) -> Any:
    """Cumulative probabilities in float64, after temperature, top_k and top_p; excluded tokens add nothing."""
    import torch

    device = logits_GV.device
    scaled = logits_GV.double() / temperature.to(device)[:, None]
    if bool((top_k > 0).any()) or bool((top_p < 1).any()):
        values, token_ids = scaled.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(scaled.shape[-1], device=device)[None, :]
        limit = torch.where(top_k > 0, top_k, scaled.shape[-1]).to(device)[:, None]
        values = values.masked_fill(rank >= limit, -torch.inf)
        probs = values.softmax(dim=-1)
        # top_p keeps tokens whose more likely ones sum to less than top_p, and always the most likely one
        before = probs.cumsum(dim=-1) - probs
        values = values.masked_fill((before >= top_p.to(device)[:, None]) & (rank > 0), -torch.inf)
        # back from the order of probability to the order of the vocabulary
        scaled = torch.full_like(scaled, -torch.inf).scatter(-1, token_ids, values)
    return scaled.softmax(dim=-1).cumsum(dim=-1)


def _pick(cdf_GV: Any, group_of: NDArray[np.int64], uniform: NDArray[np.float64], step: int) -> NDArray[np.int64]:
    import torch

    device, picked = cdf_GV.device, []
    for start in range(0, len(group_of), step):
        cdf_CV = cdf_GV[torch.from_numpy(group_of[start : start + step]).to(device)]
        # strictly below the rounded total, so that the search always ends at a token with non-zero probability
        target = torch.from_numpy(uniform[start : start + step]).to(device)[:, None] * cdf_CV[:, -1:]
        target = torch.minimum(target, torch.nextafter(cdf_CV[:, -1:], torch.zeros_like(target)))
        picked.append(torch.searchsorted(cdf_CV, target, right=True)[:, 0].cpu().numpy())
    tokens: NDArray[np.int64] = np.concatenate(picked)
    return tokens


def _mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64: every input bit affects every output bit."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = value ^ (value >> np.uint64(31))
    return mixed


# The batch

OnPiece = Callable[[Piece], None]
IsCancelled = Callable[[int], bool]
_ENDS: tuple[Finish | None, ...] = (None, "stop", "length", "cancelled")  # by the codes in Batch._end


@dataclass(frozen=True)
class Settings:
    """Settings of the engine that a batch needs."""

    model: Any
    device: str
    pad: int
    stop_ids: frozenset[int]
    context: int
    max_cache_tokens: int
    decode: Callable[[Sequence[int], bool], str]
    options: frozenset[str]  # parameters of the model's forward


class Batch:
    """The choices of some requests, and their sampled tokens so far."""

    def __init__(
        self,
        settings: Settings,
        requests: Sequence[tuple[int, Request]],
        on_piece: OnPiece | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> None:
        self._settings, self._requests = settings, requests
        self._on_piece, self._is_cancelled = on_piece, is_cancelled
        rows: dict[bytes, int] = {}  # row of each distinct prompt
        self._prompts: list[NDArray[np.int64]] = []
        row_of = []
        for _, request in requests:
            ids = np.asarray(request.prompt, dtype=np.int64)
            row_of.append(rows.setdefault(ids.tobytes(), len(rows)))
            if len(rows) > len(self._prompts):
                self._prompts.append(ids)
        counts = [request.sampling.n for _, request in requests]
        samplings = [request.sampling for _, request in requests]
        # arrays (C,) with one entry per choice; `_owner` is the position of its request in the batch
        self._owner = np.repeat(np.arange(len(requests)), counts)
        self._index = np.concatenate([np.arange(count) for count in counts])
        self._row = np.repeat(np.array(row_of), counts)
        self._seed = np.repeat(np.array([item.seed for item in samplings], np.uint64), counts)
        self._temperature = np.repeat(np.array([item.temperature for item in samplings], np.float64), counts)
        self._top_p = np.repeat(np.array([item.top_p for item in samplings], np.float64), counts)
        self._top_k = np.repeat(np.array([item.top_k for item in samplings], np.int64), counts)
        self._limit = np.repeat([self._room(request) for _, request in requests], counts)
        num_choices = len(self._owner)
        self._tokens_CT = np.zeros((num_choices, 8), np.int32)  # T grows by doubling
        self._logprobs_CT = np.zeros((num_choices, 8), np.float32)
        self._length = np.zeros(num_choices, np.int64)
        self._end = np.zeros(num_choices, np.int8)  # index into _ENDS; 0: still open
        self._num_top = max(item.top_logprobs for item in samplings)
        self._top: list[list[tuple[tuple[int, float], ...]]] = [[] for _ in range(num_choices if self._num_top else 0)]
        self._streams: dict[int, TextStream] = {}
        self._texts: dict[int, str] = {}

    def run(self) -> list[tuple[Choice, ...]]:
        """Generate, and return the choices of each request, in order."""
        import torch

        with torch.inference_mode():
            logits_RV, cache, mask_RT = self._prefill()
            self._continue(np.arange(len(self._owner)), self._row, logits_RV, cache, mask_RT, 0)
        return self._results()

    def _prefill(self) -> tuple[Any, Any, Any]:
        import torch

        settings = self._settings
        width = max(map(len, self._prompts))
        ids_RT = np.full((len(self._prompts), width), settings.pad, np.int64)
        mask_RT = np.zeros((len(self._prompts), width), np.int64)
        for row, prompt in enumerate(self._prompts):  # padded on the left: all rows continue in the same column
            ids_RT[row, width - len(prompt) :] = prompt
            mask_RT[row, width - len(prompt) :] = 1
        mask = torch.from_numpy(mask_RT).to(settings.device)
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits_RV, cache = self._forward(torch.from_numpy(ids_RT), mask, positions, None)
        return logits_RV, cache, mask

    def _forward(self, ids: Any, mask: Any, positions: Any, cache: Any) -> tuple[Any, Any]:
        """Logits of the last position, and the cache."""
        settings = self._settings
        options: dict[str, Any] = {}
        if "logits_to_keep" in settings.options:
            options["logits_to_keep"] = 1
        if "position_ids" in settings.options:
            options["position_ids"] = positions
        output = settings.model(
            input_ids=ids.to(settings.device), attention_mask=mask, past_key_values=cache, use_cache=True, **options
        )
        return output.logits[:, -1, :].float(), output.past_key_values

    def _continue(
        self, active_A: NDArray[np.int64], row_A: NDArray[np.int64], logits_RV: Any, cache: Any, mask_RT: Any, step: int
    ) -> None:
        """Sample, drop ended choices, and continue with one row per distinct prefix until no choice is open."""
        import torch

        while True:
            tokens_A = self._draw(active_A, row_A, logits_RV, step)
            open_A = self._end[active_A] == 0
            active_A, row_A, tokens_A = active_A[open_A], row_A[open_A], tokens_A[open_A]
            if not len(active_A):
                return
            # choices with the same row and the same new token share the next row: (row, token) as one number
            key_A = row_A * logits_RV.shape[-1] + tokens_A
            keys, row_A = np.unique(key_A, return_inverse=True)
            parent, last = np.divmod(keys, logits_RV.shape[-1])
            step += 1
            if len(keys) > 1 and len(keys) * (mask_RT.shape[1] + 1) > self._settings.max_cache_tokens:
                self._continue_in_halves(active_A, row_A, parent, last, cache, mask_RT, step)
                return
            if len(parent) != mask_RT.shape[0] or (parent != np.arange(len(parent))).any():
                mask_RT = _select(cache, mask_RT, parent)
            logits_RV, mask_RT = self._step(torch.from_numpy(last), cache, mask_RT)

    def _continue_in_halves(
        self,
        active_A: NDArray[np.int64],
        row_A: NDArray[np.int64],
        parent: NDArray[np.int64],
        last: NDArray[np.int64],
        cache: Any,
        mask_RT: Any,
        step: int,
    ) -> None:
        """Too many rows for the cache: run the first half to its end, then the second."""
        import torch

        middle = len(parent) // 2
        for start, stop in ((0, middle), (middle, len(parent))):
            mine = (row_A >= start) & (row_A < stop)
            half = copy.deepcopy(cache) if start == 0 else cache  # reordering a cache changes it in place
            mask = _select(half, mask_RT, parent[start:stop])
            logits_RV, mask = self._step(torch.from_numpy(last[start:stop]), half, mask)
            self._continue(active_A[mine], row_A[mine] - start, logits_RV, half, mask, step)

    def _step(self, last_R: Any, cache: Any, mask_RT: Any) -> tuple[Any, Any]:
        import torch

        mask_RT = torch.cat([mask_RT, mask_RT.new_ones(len(last_R), 1)], dim=1)
        positions = mask_RT.sum(-1, keepdim=True) - 1
        logits_RV, _ = self._forward(last_R[:, None], mask_RT, positions, cache)
        return logits_RV, mask_RT

    def _draw(
        self, active_A: NDArray[np.int64], row_A: NDArray[np.int64], logits_RV: Any, step: int
    ) -> NDArray[np.int64]:
        """Sample and store one token for every open choice; marks the choices that end with it."""
        import torch

        uniform = uniforms(self._seed[active_A], self._index[active_A], step)
        drawers = Drawers(row_A, uniform, self._temperature[active_A], self._top_p[active_A], self._top_k[active_A])
        tokens_A = draw(logits_RV, drawers)
        logprobs_RV = logits_RV.log_softmax(-1)
        rows, tokens = (torch.from_numpy(values).to(logits_RV.device) for values in (row_A, tokens_A))
        logprobs_A = logprobs_RV[rows, tokens].cpu().numpy()
        if step >= self._tokens_CT.shape[1]:
            self._tokens_CT = np.pad(self._tokens_CT, ((0, 0), (0, step)))
            self._logprobs_CT = np.pad(self._logprobs_CT, ((0, 0), (0, step)))
        self._tokens_CT[active_A, step] = tokens_A
        self._logprobs_CT[active_A, step] = logprobs_A
        self._length[active_A] = step + 1
        ends = np.isin(tokens_A, list(self._settings.stop_ids))
        self._end[active_A] = np.where(ends, 1, np.where(step + 1 >= self._limit[active_A], 2, 0))
        if self._num_top:
            self._record_top(active_A, row_A, logprobs_RV)
        self._update_texts(active_A, ends, step)
        if self._is_cancelled is not None:
            cancelled = [self._is_cancelled(self._requests[owner][0]) for owner in range(len(self._requests))]
            self._end[active_A[np.array(cancelled)[self._owner[active_A]] & (self._end[active_A] == 0)]] = 3
        return tokens_A

    def _record_top(self, active_A: NDArray[np.int64], row_A: NDArray[np.int64], logprobs_RV: Any) -> None:
        values, token_ids = (
            tensor.cpu().tolist() for tensor in logprobs_RV.topk(min(self._num_top, logprobs_RV.shape[-1]))
        )
        for choice, row in zip(active_A.tolist(), row_A.tolist(), strict=True):
            count = self._requests[self._owner[choice]][1].sampling.top_logprobs
            self._top[choice].append(tuple(zip(token_ids[row][:count], values[row][:count], strict=True)))

    def _update_texts(self, active_A: NDArray[np.int64], ends: NDArray[np.bool_], step: int) -> None:
        """Update the texts of choices with stop texts or a listener; the others are decoded once, at the end."""
        for position, choice in enumerate(active_A.tolist()):
            number, request = self._requests[self._owner[choice]]
            if self._on_piece is None and not request.sampling.stop:
                continue
            stream = self._streams.get(choice)
            if stream is None:
                stream = self._streams[choice] = TextStream(self._decoder(request), request.sampling.stop)
            token = int(self._tokens_CT[choice, step])
            text = "" if ends[position] else stream.add(token)
            if stream.stop_text is None and self._end[choice]:
                text += stream.finish()
            if stream.stop_text is not None:
                self._end[choice] = 1
            self._texts[choice] = self._texts.get(choice, "") + text
            if self._on_piece is not None:
                self._on_piece(
                    Piece(
                        request=number,
                        choice=int(self._index[choice]),
                        token=token,
                        logprob=float(self._logprobs_CT[choice, step]),
                        text=text,
                        finish_reason=_ENDS[self._end[choice]],
                        top_logprobs=self._top[choice][-1] if self._num_top else (),
                    )
                )

    def _decoder(self, request: Request) -> Callable[[Sequence[int]], str]:
        return lambda ids: self._settings.decode(ids, request.sampling.skip_special_tokens)

    def _room(self, request: Request) -> int:
        room = self._settings.context - len(request.prompt)
        return room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)

    def _results(self) -> list[tuple[Choice, ...]]:
        results: list[list[Choice]] = [[] for _ in self._requests]
        for choice, owner in enumerate(self._owner.tolist()):
            length = int(self._length[choice])
            tokens = self._tokens_CT[choice, :length].copy()
            finish = _ENDS[self._end[choice]]
            assert finish is not None
            by_token = finish == "stop" and int(tokens[-1]) in self._settings.stop_ids
            stream = self._streams.get(choice)
            text = self._texts.get(choice)
            if text is None:
                visible = tokens[:-1] if by_token else tokens
                text = self._settings.decode(visible.tolist(), self._requests[owner][1].sampling.skip_special_tokens)
            results[owner].append(
                Choice(
                    index=int(self._index[choice]),
                    tokens=tokens,
                    logprobs=self._logprobs_CT[choice, :length].copy(),
                    text=text,
                    finish_reason=finish,
                    stop=int(tokens[-1]) if by_token else stream.stop_text if stream is not None else None,
                    top_logprobs=tuple(self._top[choice]) if self._num_top else (),
                )
            )
        return [tuple(choices) for choices in results]


def _select(cache: Any, mask_RT: Any, parent: NDArray[np.int64]) -> Any:
    """Select rows of the cache by their parents, some repeated, some dropped; returns their mask."""
    import torch

    rows = torch.from_numpy(parent).to(mask_RT.device)
    cache.reorder_cache(rows)
    return mask_RT[rows]
