"""The engine: a causal language model from a folder that answers any number of requests in batches.

Requests are sorted by length and cut into batches by a budget of prompt tokens, so that hundreds of short prompts go
through the model at once and little of it is padding. A result never depends on the batch: seeds belong to requests
(draw.py); only the last bits of the logits do, as matrix products are summed in another order.
"""

import inspect
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pairwright.generate.chat import ChatEncoder
from pairwright.generate.decoding import Batch, IsCancelled, OnPiece, Settings
from pairwright.generate.loading import best_device, load_model, load_tokenizer
from pairwright.generate.requests import GenerateError, Ids, Request, Result
from pairwright.messages import Json, Message

_MAX_PADDING = 0.25  # share of a batch
_UNBOUNDED = 2**31


class Engine:
    """A loaded model. Not safe for several threads at once: batching.Batcher gives it one."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        max_batch_tokens: int = 16_384,
        max_cache_tokens: int | None = None,
    ) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.device = str(next(model.parameters()).device)
        self.context = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNBOUNDED)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.stop_ids = _stop_ids(model, tokenizer)
        self._max_batch_tokens = max_batch_tokens
        self._chat = ChatEncoder(tokenizer)
        self._texts: dict[tuple[bool, tuple[int, ...]], str] = {}
        taken = frozenset(inspect.signature(model.forward).parameters)
        self._may_pad = "position_ids" in taken and not getattr(model, "_is_stateful", False)
        self._settings = Settings(
            model=model,
            device=self.device,
            pad=next((number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0),
            stop_ids=self.stop_ids,
            context=self.context,
            max_cache_tokens=max_cache_tokens or 8 * max_batch_tokens,
            decode=self.text,
            options=taken,
        )

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        *,
        device: str | None = None,
        dtype: str = "auto",
        name: str | None = None,
        max_batch_tokens: int = 16_384,
        max_cache_tokens: int | None = None,
    ) -> "Engine":
        """A model folder, or an adapter's folder that names its base. `device` None: a GPU if there is one."""
        place = Path(folder)
        model = load_model(place, device=device or best_device(), dtype=dtype)
        return cls(
            model,
            load_tokenizer(place),
            name=name or place.name,
            max_batch_tokens=max_batch_tokens,
            max_cache_tokens=max_cache_tokens,
        )

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None
    ) -> Ids:
        """The prompt of a chat: the model's template, with the generation prompt at the end."""
        return self._chat.ids(messages, tools, variables=variables)

    def text_ids(self, text: str) -> Ids:
        """The ids of plain text, for completions."""
        return self._chat.text_ids(text)

    def text(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Token ids as text. Short ones are remembered: small models say few different things."""
        if len(ids) > 8:
            return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))
        key = (skip_special_tokens, tuple(ids))
        if key not in self._texts:
            if len(self._texts) > 100_000:
                self._texts.clear()
            self._texts[key] = str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
        return self._texts[key]

    def check(self, request: Request) -> None:
        """Raise GenerateError if this request cannot be answered."""
        size = len(request.prompt)
        if not size:
            raise GenerateError("an empty prompt: there is nothing to continue")
        if size >= self.context:
            raise GenerateError(f"the prompt has {size:,} tokens, the context of {self.name} has {self.context:,}")
        if not 0 <= int(min(request.prompt)) <= int(max(request.prompt)) < self.vocabulary:
            raise GenerateError(f"token ids must be from 0 to {self.vocabulary - 1}")

    def generate(
        self,
        requests: Sequence[Request],
        *,
        on_piece: OnPiece | None = None,
        is_cancelled: IsCancelled | None = None,
    ) -> list[Result]:
        """Answer all requests, in their order.

        `on_piece` hears of every token as it comes. `is_cancelled(position)` is asked at each step; the choices of a
        request that is cancelled end there, with finish_reason "cancelled".
        """
        for request in requests:
            self.check(request)
        results: dict[int, Result] = {}
        for batch in self._batches(requests):
            for (number, request), choices in zip(
                batch, Batch(self._settings, batch, on_piece, is_cancelled).run(), strict=True
            ):
                results[number] = Result(len(request.prompt), choices)
        return [results[number] for number in range(len(requests))]

    def _batches(self, requests: Sequence[Request]) -> Iterator[list[tuple[int, Request]]]:
        """Requests by length, so many at a time that their distinct prompts stay in the budget. Longest first: a
        batch that is too large for the machine fails at once."""
        numbers = sorted(range(len(requests)), key=lambda number: -len(requests[number].prompt))
        batch: list[tuple[int, Request]] = []
        distinct: set[bytes] = set()
        num_tokens = 0
        for number in numbers:
            prompt = requests[number].prompt
            key = _key(prompt)
            if batch and key not in distinct:
                width = len(batch[0][1].prompt)
                total = width * (len(distinct) + 1)
                padding = 1 - (num_tokens + len(prompt)) / total
                if (
                    total > self._max_batch_tokens
                    or padding > _MAX_PADDING
                    or (not self._may_pad and len(prompt) != width)
                ):
                    yield batch
                    batch, distinct, num_tokens = [], set(), 0
            if key not in distinct:
                distinct.add(key)
                num_tokens += len(prompt)
            batch.append((number, requests[number]))
        if batch:
            yield batch


def _key(prompt: Sequence[int] | Ids) -> bytes:
    import numpy as np

    return np.asarray(prompt, dtype=np.int64).tobytes()


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a generation: what the model's generation settings say, else the tokenizer's end."""
    settings = getattr(model, "generation_config", None)
    for found in (getattr(settings, "eos_token_id", None), tokenizer.eos_token_id, model.config.eos_token_id):
        if found is not None:
            return frozenset(found if isinstance(found, list | tuple) else [found])
    return frozenset()
