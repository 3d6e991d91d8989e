"""Run a model with its own attention and cache, for architectures that packed attention does not support.

Prompts that start together form a cohort, padded on the left to the same length, with one cache. Each step runs the
cohorts one after the other, so that requests can join and leave between tokens; a cohort only shrinks.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np

from pairwright.generate.kv_slots import Numbers, Wait
from pairwright.generate.requests import GenerateError

_MAX_PADDING = 0.25  # share of a cohort


@dataclass(eq=False)
class Prompt:
    tokens: Numbers


@dataclass(eq=False)
class _Cohort:
    """Rows of one cache, and their mask (rows, tokens)."""

    cache: Any
    mask: Any

    @property
    def size(self) -> int:
        return int(self.mask.shape[0])

    @property
    def num_tokens(self) -> int:
        return int(self.mask.numel())

    def select(self, parent: Numbers) -> None:
        """Keep the rows of `parent`, some repeated, some dropped."""
        import torch

        if len(parent) != self.size or (parent != np.arange(self.size)).any():
            rows = torch.from_numpy(parent).to(self.mask.device)
            self.cache.reorder_cache(rows)
            self.mask = self.mask[rows]


class PaddedRunner:
    """Rows of one model, with the interface of PackedRunner."""

    def __init__(self, model: Any, *, pad: int, max_cache_tokens: int | None, max_batch_tokens: int) -> None:
        self._model, self._pad = model, pad
        self._device = next(model.parameters()).device
        self._max_batch_tokens = max_batch_tokens
        self._max_cache_tokens = max_cache_tokens or 8 * max_batch_tokens
        self._options = frozenset(inspect.signature(model.forward).parameters)
        # without position ids, or with a recurrent state, padding on the left would change the result
        self._may_pad = "position_ids" in self._options and not getattr(model, "_is_stateful", False)
        self._cohorts: list[_Cohort] = []
        self._waiting: list[Prompt] = []

    def start(self, tokens: Numbers, *, users: int, room: int, is_forced: bool = False) -> Prompt | Wait:
        used = sum(cohort.num_tokens for cohort in self._cohorts) + sum(len(item.tokens) for item in self._waiting)
        if used + len(tokens) + users * min(room, 32) > self._max_cache_tokens and not is_forced:
            return "memory"
        self._waiting.append(Prompt(tokens))
        return self._waiting[-1]

    def drop(self, prompt: Prompt) -> None:
        self._waiting.remove(prompt)

    def fits(self, parent: Numbers) -> bool:
        total = start = 0
        for cohort in self._cohorts:
            count = int(((parent >= start) & (parent < start + cohort.size)).sum())
            total += count * (cohort.mask.shape[1] + 1)
            start += cohort.size
        return total <= self._max_cache_tokens

    def advance(self, parent: Numbers, last: Numbers) -> tuple[Any, list[Prompt]]:
        """Continue rows, and run waiting prompts; see PackedRunner.advance."""
        import torch

        parts, start = [], 0
        order: list[Numbers] = []  # for each cohort: its entries of `parent`
        with torch.inference_mode():
            for cohort in self._cohorts:
                size = cohort.size
                (mine,) = np.nonzero((parent >= start) & (parent < start + size))
                if len(mine):
                    cohort.select(parent[mine] - start)
                    parts.append(self._step(cohort, torch.from_numpy(last[mine])))
                    order.append(mine)
                else:
                    cohort.mask = cohort.mask[:0]
                start += size
            self._cohorts = [cohort for cohort in self._cohorts if cohort.size]
            complete: list[Prompt] = []
            for prompts in self._group_prompts():
                parts.append(self._prefill(prompts))
                complete += prompts
        self._waiting = []
        if not parts:
            return None, []
        # rows of a cohort are contiguous and parents are in row order, so `order` is already sorted
        assert not order or (np.diff(np.concatenate(order)) > 0).all()
        return torch.cat(parts), complete

    def _group_prompts(self) -> list[list[Prompt]]:
        """Group waiting prompts by similar length, within the token budget; longest first."""
        groups: list[list[Prompt]] = []
        num_tokens = 0
        for prompt in sorted(self._waiting, key=lambda item: -len(item.tokens)):
            size = len(prompt.tokens)
            if groups:
                width = len(groups[-1][0].tokens)
                total = width * (len(groups[-1]) + 1)
                padding = 1 - (num_tokens + size) / total
                if total <= self._max_batch_tokens and padding <= _MAX_PADDING and (self._may_pad or size == width):
                    groups[-1].append(prompt)
                    num_tokens += size
                    continue
            groups.append([prompt])
            num_tokens = size
        return groups

    def _prefill(self, prompts: list[Prompt]) -> Any:
        import torch

        width = max(len(prompt.tokens) for prompt in prompts)
        ids = np.full((len(prompts), width), self._pad, np.int64)
        mask = np.zeros((len(prompts), width), np.int64)
        for row, prompt in enumerate(prompts):  # padded on the left: all rows continue in the same column
            ids[row, width - len(prompt.tokens) :] = prompt.tokens
            mask[row, width - len(prompt.tokens) :] = 1
        cohort = _Cohort(None, torch.from_numpy(mask).to(self._device))
        positions = (cohort.mask.cumsum(-1) - 1).clamp(min=0)
        logits = self._forward(cohort, torch.from_numpy(ids), positions)
        self._cohorts.append(cohort)
        return logits

    def _step(self, cohort: _Cohort, last: Any) -> Any:
        import torch

        cohort.mask = torch.cat([cohort.mask, cohort.mask.new_ones(len(last), 1)], dim=1)
        return self._forward(cohort, last[:, None], cohort.mask.sum(-1, keepdim=True) - 1)

    def _forward(self, cohort: _Cohort, ids: Any, positions: Any) -> Any:
        """Compute the logits of the last position."""
        options: dict[str, Any] = {}
        if "logits_to_keep" in self._options:
            options["logits_to_keep"] = 1
        if "position_ids" in self._options:
            options["position_ids"] = positions
        output = self._model(
            input_ids=ids.to(self._device),
            attention_mask=cohort.mask,
            past_key_values=cohort.cache,
            use_cache=True,
            **options,
        )
        cohort.cache = getattr(output, "past_key_values", None)
        if cohort.cache is None:
            raise GenerateError(f"a {self._model.config.model_type} model keeps no key-value cache: serve it with vLLM")
        return output.logits[:, -1, :].float()
