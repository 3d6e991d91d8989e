"""Loads a model folder, runs requests in batches (Engine), and joins requests of concurrent asyncio tasks (Batcher).

Requests are sorted by length and split into batches by a budget of prompt tokens, so that hundreds of short prompts
share a forward pass with little padding. Sampling does not depend on the batch, since each request has its own seed
(decoding.py); only the last bits of the logits do, because matrix products are summed in another order.
"""

import asyncio
import inspect
import json
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pairwright.generate.decoding import Batch, IsCancelled, OnPiece, Settings
from pairwright.generate.requests import ChatEncoder, GenerateError, Ids, Piece, Request, Result
from pairwright.generate.tool_calls import HERMES, format_of
from pairwright.records.messages import Json, Message

# Loading models and tokenizers. Code in a model folder is never executed.

_DTYPES = ("auto", "float32", "bfloat16", "float16")


def load_model(folder: Path, *, device: str, dtype: str) -> Any:
    """Load the causal language model of a folder, or an adapter merged into its base model, ready to generate."""
    if dtype not in _DTYPES:
        raise GenerateError(f"dtype: got {dtype!r}, expected one of {', '.join(_DTYPES)}")
    _check_folder(folder)
    _check_installed()
    import torch
    from transformers import AutoModelForCausalLM

    if dtype == "auto":  # half precision is slow on CPUs
        dtype = "float32" if device == "cpu" else "auto"
    torch_dtype = dtype if dtype == "auto" else getattr(torch, dtype)
    base = base_of_adapter(folder)
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            base or folder, dtype=torch_dtype, local_files_only=True, trust_remote_code=False
        )
        if base is not None:
            from peft import PeftModel

            model = PeftModel.from_pretrained(model, str(folder), local_files_only=True).merge_and_unload()
    except (OSError, ValueError, KeyError, ImportError, RuntimeError) as error:
        raise GenerateError(f"{folder}: cannot be loaded as a causal language model: {_first_line(error)}") from error
    return model.to(device).eval()


def load_tokenizer(folder: Path) -> Any:
    """Load the tokenizer of a folder; for an adapter without one, that of its base model."""
    _check_installed()
    from transformers import AutoTokenizer

    base = base_of_adapter(folder)
    place = folder if base is None or (folder / "tokenizer_config.json").exists() else base
    try:
        return AutoTokenizer.from_pretrained(place, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise GenerateError(f"{place}: no tokenizer that can be loaded: {_first_line(error)}") from error


def best_device() -> str:
    _check_installed()
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def base_of_adapter(folder: Path) -> Path | None:
    """The folder of an adapter's base model; None if the folder is not an adapter."""
    config_path = folder / "adapter_config.json"
    if not config_path.is_file():
        return None
    try:
        base_name = json.loads(config_path.read_text(encoding="utf-8")).get("base_model_name_or_path")
    except (ValueError, AttributeError) as error:
        raise GenerateError(f"{config_path}: not a JSON object: {error}") from None
    if not isinstance(base_name, str) or not base_name:
        raise GenerateError(f"{config_path}: names no base model (base_model_name_or_path)")
    for place in (Path(base_name), folder / base_name):  # a relative path may be meant from either folder
        if place.is_dir():
            return place
    raise GenerateError(
        f"{config_path}: the base model {base_name!r} is no folder here; put it there or change the path"
    )


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise GenerateError(f"{folder}: no such folder; expected a model folder with config.json")
    if not (folder / "config.json").is_file() and not (folder / "adapter_config.json").is_file():
        raise GenerateError(f"{folder}: neither config.json nor adapter_config.json: not a model folder")


def _check_installed() -> None:
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise GenerateError(
            f"a local model needs torch and transformers ({error}): pip install 'pairwright[train]'"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


# The engine

_MAX_PADDING = 0.25  # share of a batch
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
        self._max_batch_tokens = max_batch_tokens
        self._chat = ChatEncoder(tokenizer, tools_as_text=tools_as_text != "off")
        # how tool calls stand in its answers; None where that is not known
        self.call_format = HERMES if tools_as_text != "off" else format_of(tokenizer.chat_template)
        self._texts: dict[tuple[bool, tuple[int, ...]], str] = {}
        parameters = frozenset(inspect.signature(model.forward).parameters)
        # without position ids, or with a recurrent state, padding on the left would change the result
        self._may_pad = "position_ids" in parameters and not getattr(model, "_is_stateful", False)
        self._settings = Settings(
            model=model,
            device=self.device,
            pad=next((number for number in (tokenizer.pad_token_id, tokenizer.eos_token_id) if number is not None), 0),
            stop_ids=self.stop_ids,
            context=self.context,
            max_cache_tokens=max_cache_tokens or 8 * max_batch_tokens,
            decode=self.text,
            options=parameters,
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
        tools_as_text: str = "off",
    ) -> "Engine":
        """Load a model folder, or an adapter's folder that names its base. `device` None: a GPU if there is one.

        `tools_as_text` "hermes": tools, calls and results are text, for a chat template without a tool role.
        """
        place = Path(folder)
        model = load_model(place, device=device or best_device(), dtype=dtype)
        return cls(
            model,
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

    def text_ids(self, text: str) -> Ids:
        """Encode plain text, for completions."""
        return self._chat.text_ids(text)

    def text(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Decode token ids. Short sequences are cached: small models produce few distinct ones."""
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
        """Answer all requests, in order.

        `on_piece` is called for every token. `is_cancelled(position)` is called at each step; the choices of a
        cancelled request end with finish_reason "cancelled".
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
        """Split requests, sorted by length, into batches whose distinct prompts fit the budget. Longest first: a batch
        that is too large for the machine fails at once."""
        numbers = sorted(range(len(requests)), key=lambda number: -len(requests[number].prompt))
        batch: list[tuple[int, Request]] = []
        distinct: set[bytes] = set()
        num_tokens = 0
        for number in numbers:
            prompt = requests[number].prompt
            key = _key(prompt)
            if batch and key not in distinct:
                width = len(batch[0][1].prompt)  # the longest prompt comes first; the others are padded to it
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
    """The tokens that end a generation: those of the generation config, else of the tokenizer or the model config."""
    settings = getattr(model, "generation_config", None)
    for ids in (getattr(settings, "eos_token_id", None), tokenizer.eos_token_id, model.config.eos_token_id):
        if ids is not None:
            return frozenset(ids if isinstance(ids, list | tuple) else [ids])
    return frozenset()


# Requests of concurrent tasks, joined: while the engine works, the next batch accumulates


@dataclass(eq=False)
class _Waiting:
    request: Request
    future: asyncio.Future[Result]
    on_piece: Callable[[Piece], None] | None


class Batcher:
    """`await submit(request)` from any number of tasks of one event loop."""

    def __init__(self, engine: Engine, *, wait_seconds: float = 0.002, max_requests: int = 4096) -> None:
        self.engine = engine
        self._wait_seconds, self._max_requests = wait_seconds, max_requests
        self._waiting: list[_Waiting] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="generate")
        self._runner: asyncio.Task[None] | None = None
        self._closed = False

    async def submit(self, request: Request, on_piece: Callable[[Piece], None] | None = None) -> Result:
        """Wait for the result of a request; `on_piece` is called in the event loop, in order, before this returns."""
        if self._closed:
            raise GenerateError("the model was closed")
        self.engine.check(request)
        loop = asyncio.get_running_loop()
        waiting = _Waiting(request, loop.create_future(), on_piece)
        self._waiting.append(waiting)
        if self._runner is None or self._runner.done():
            self._runner = loop.create_task(self._run())
        return await waiting.future

    async def close(self) -> None:
        """Wait for the running batch; queued requests get an error."""
        self._closed = True
        for waiting in self._waiting:
            if not waiting.future.done():
                waiting.future.set_exception(GenerateError("the model was closed"))
        self._waiting.clear()
        if self._runner is not None:
            await self._runner
        self._thread.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            await self._gather()
            batch = [item for item in self._waiting[: self._max_requests] if not item.future.done()]
            del self._waiting[: self._max_requests]
            if not batch:
                continue
            try:
                results = await loop.run_in_executor(self._thread, self._generate, batch, loop)
            except Exception as error:  # passed on from the engine's thread to all waiting tasks
                for item in batch:
                    if not item.future.done():
                        item.future.set_exception(error)
                continue
            for item, result in zip(batch, results, strict=True):
                if not item.future.done():
                    item.future.set_result(result)

    async def _gather(self) -> None:
        """Wait while more requests arrive: tasks that got their answers together make the next requests together."""
        count = 0
        while count < len(self._waiting) < self._max_requests:
            count = len(self._waiting)
            await asyncio.sleep(self._wait_seconds)

    def _generate(self, batch: list[_Waiting], loop: asyncio.AbstractEventLoop) -> list[Result]:
        def notify(piece: Piece) -> None:
            listener = batch[piece.request].on_piece
            if listener is not None:
                loop.call_soon_threadsafe(listener, replace(piece, request=0))

        has_listener = any(item.on_piece is not None for item in batch)
        return self.engine.generate(
            [item.request for item in batch],
            on_piece=notify if has_listener else None,
            is_cancelled=lambda number: batch[number].future.done(),
        )
