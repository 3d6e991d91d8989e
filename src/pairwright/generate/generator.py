"""The engine: a loaded model that answers requests, many at a time.

Sampling does not depend on the rest of the batch, since each request has its own seed (draw_tokens.py). The batch
affects only the last bits of the logits, because the order of sums changes.
"""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pairwright.generate.model_folder import load_model, load_tokenizer
from pairwright.generate.packed_models import open_runner
from pairwright.generate.padded_runner import PaddedRunner
from pairwright.generate.prompt_encoding import ChatEncoder, Render
from pairwright.generate.requests import GenerateError, Ids, Request, Result
from pairwright.generate.scheduler import OnPiece, Runner, Scheduler, Ticket
from pairwright.generate.tool_calls import HERMES, format_of
from pairwright.records.messages import Json, Message

_log = logging.getLogger(__name__)
_UNBOUNDED = 2**31  # context of models without position embeddings


class Engine:
    """A loaded model. Not thread-safe: Batcher runs it in one thread."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "model",
        max_batch_tokens: int = 16_384,
        max_cache_tokens: int | None = None,
        tools_as_text: str = "off",
    ) -> None:
        self.model, self.tokenizer, self.name = model, tokenizer, name
        self.device = str(next(model.parameters()).device)
        self.context = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or _UNBOUNDED)
        self.vocabulary = int(model.get_output_embeddings().weight.shape[0])
        self.stop_ids = _stop_ids(model, tokenizer)
        self._chat = ChatEncoder(tokenizer, tools_as_text=tools_as_text != "off")
        # format of tool calls in answers; None if unknown
        self.call_format = HERMES if tools_as_text != "off" else format_of(tokenizer.chat_template)
        self._max_batch_tokens, self._max_cache_tokens = max_batch_tokens, max_cache_tokens
        # steps of a small model are mostly overhead: process more tokens per step
        is_small = sum(weight.numel() for weight in model.parameters()) < 20_000_000
        self._max_choices = 2048 if is_small else 128
        self._max_step_tokens = max_batch_tokens if is_small else min(512, max_batch_tokens)
        self._runner: Runner | None = None
        self.fallback_reason: str | None = None  # why transformers' own attention is used

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
        tools_as_text: str = "off",
    ) -> "Engine":
        """Load a model folder, or an adapter's folder that names its base. `device` None: the best one on this machine.

        `tools_as_text` "hermes": tools, calls and results are text, for a chat template without a tool role.
        """
        place = Path(folder)
        return cls(
            load_model(place, device=device, dtype=dtype),
            load_tokenizer(place),
            name=name or place.name,
            max_batch_tokens=max_batch_tokens,
            max_cache_tokens=max_cache_tokens,
            tools_as_text=tools_as_text,
        )

    def prompt_ids(
        self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None
    ) -> Ids:
        """Encode a chat with the model's template and the generation prompt."""
        return self._chat.ids(messages, tools, variables=variables)

    def use_renderer(self, render: Render) -> None:
        """Render chats with this function instead of transformers' own: (chat, tools, variables) to text."""
        self._chat.render = render

    def text_ids(self, text: str) -> Ids:
        """Encode plain text, for completions."""
        return self._chat.text_ids(text)

    def text(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))

    def check(self, request: Request) -> None:
        """Raise GenerateError if this request cannot be answered."""
        size = len(request.prompt)
        if not size:
            raise GenerateError("an empty prompt: there is nothing to continue")
        if size >= self.context:
            raise GenerateError(f"the prompt has {size:,} tokens, the context of {self.name} has {self.context:,}")
        if not 0 <= int(min(request.prompt)) <= int(max(request.prompt)) < self.vocabulary:
            raise GenerateError(f"token ids must be from 0 to {self.vocabulary - 1}")

    def open_scheduler(self) -> Scheduler:
        """Open a queue of requests to this model; only one may be in use."""
        return Scheduler(
            self._open_runner(),
            stop_ids=self.stop_ids,
            context=self.context,
            decode=self.text,
            max_choices=self._max_choices,
        )

    def generate(self, requests: Sequence[Request], *, on_piece: OnPiece | None = None) -> list[Result]:
        """Answer all requests, in order. `on_piece` is called for every token."""
        for request in requests:
            self.check(request)
        scheduler = self.open_scheduler()
        tickets = [Ticket(request, on_piece=on_piece, number=number) for number, request in enumerate(requests)]
        for ticket in tickets:
            scheduler.add(ticket)
        try:
            while not scheduler.is_idle:
                scheduler.step()
        finally:
            scheduler.close()
        results = [ticket.result for ticket in tickets if ticket.result is not None]
        assert len(results) == len(requests)
        return results

    def reset(self) -> None:
        """Forget all rows and cached prompts, after a failed step."""
        self._runner = None

    def _open_runner(self) -> Runner:
        if self._runner is None:
            runner = open_runner(
                self.model, max_cache_tokens=self._max_cache_tokens, max_step_tokens=self._max_step_tokens
            )
            if isinstance(runner, str):
                self.fallback_reason = runner
                _log.info("%s: transformers' own attention is used: %s", self.name, runner)
                pad_ids = (self.tokenizer.pad_token_id, self.tokenizer.eos_token_id)
                self._runner = PaddedRunner(
                    self.model,
                    pad=next((number for number in pad_ids if number is not None), 0),
                    max_cache_tokens=self._max_cache_tokens,
                    max_batch_tokens=self._max_batch_tokens,
                )
            else:
                self._runner = runner
        return self._runner


def _stop_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the tokens that end a generation, from the generation config, the tokenizer or the model config."""
    settings = getattr(model, "generation_config", None)
    for ids in (getattr(settings, "eos_token_id", None), tokenizer.eos_token_id, model.config.eos_token_id):
        if ids is not None:
            return frozenset(ids if isinstance(ids, list | tuple) else [ids])
    return frozenset()
