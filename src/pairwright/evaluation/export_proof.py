"""`model export --prove`: compare an exported file in llama.cpp with its original model.

Stop tokens are compared by the file's metadata and the server's properties: llama.cpp also finds stops by their text,
so answers would not reveal a wrong id. Tokenizer and template are compared by ids on built-in texts and chats, weights
by log-probabilities at positions in them. A quantised file need not give equal answers; its drift has a limit that
weights with a wrong order of rows exceed by far.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.evaluation.held_out_runs import evaluate_models
from pairwright.generate.llama_server import LlamaServer
from pairwright.generate.model_folder import base_of_adapter, load_model
from pairwright.models.convert_gguf import open_gguf
from pairwright.models.export_gguf import write_gguf
from pairwright.models.folder_weights import Adapter, find_trained, tokenizer_folder
from pairwright.models.gguf_tokenizer import PROBE_TEXTS, stop_ids
from pairwright.records.messages import Json
from pairwright.tokens.tokenizer import ChatTokenizer

_TOOLS: list[Json] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
_CHATS: dict[str, list[Json]] = {
    "question": [{"role": "user", "content": "What is the capital of France?"}],
    "system": [{"role": "system", "content": "Answer in one word."}, {"role": "user", "content": "Is 7 × 8 = 56?"}],
    "turns": [
        {"role": "user", "content": "Write f(x) = x² in Python."},
        {"role": "assistant", "content": "def f(x):\n    return x**2"},
        {"role": "user", "content": "  And its tests?\n"},
    ],
}
# Largest mean divergence (nats) of llama.cpp's distribution from the model's, by the type of the file's matrices.
# docs/how-to/export-models.md has values of other types and of a wrong order of rows.
_DRIFT_LIMITS = {"F32": 0.005, "F16": 0.005, "BF16": 0.01, "Q8_0": 0.05}
_OTHER_LIMIT = 1.0  # for all other types, such as those of four bits
_EFFECT_LIMIT = 0.1  # largest relative error of an adapter's effect
_MIN_EFFECT = 0.3  # nats: an adapter's effect is scaled up to this before it is compared
_NUM_POSITIONS = 24
_NUM_TOKENS = 64  # likeliest tokens to compare at a position


@dataclass(frozen=True)
class ProofRow:
    """One check; `passed` is None if it is reported but not judged."""

    name: str
    passed: bool | None
    found: str


def prove_export(
    run: Path,
    file: Path,
    *,
    config: Config | None = None,
    base: Path | None = None,
    threads: int | None = None,
) -> list[ProofRow]:
    """Compare a GGUF file of a model or an adapter with the run it came from. With a configuration (`base` is its
    folder), a model also plays the held-out tasks in both forms; `threads` are those of llama.cpp."""
    trained = find_trained(run)
    folder = base_of_adapter(trained) or trained
    tokenizer = ChatTokenizer.from_folder(tokenizer_folder(trained, folder)).at(datetime.now(UTC))
    fields, tensors = open_gguf(file)
    if fields.get("general.type") == "adapter":
        return _prove_adapter(Adapter(trained), folder, file, tokenizer, threads=threads)
    with LlamaServer(file, slots=1, context=4096, threads=threads) as server:
        rows = [_check_stops(server, fields, tokenizer), _check_tokenizer(server, tokenizer)]
        rows.append(_check_template(server, tokenizer))
        types = {tensor.tensor_type.name for tensor in tensors.values() if len(tensor.shape) > 1}
        rows += _check_logits(server, trained, tokenizer, types)
    rows.append(_check_tasks(trained, file, config, base))
    return rows


def _check_stops(server: LlamaServer, fields: Json, tokenizer: ChatTokenizer) -> ProofRow:
    expected = {tokenizer.backend.token_to_id(token) for token in tokenizer.eos}
    found, properties = stop_ids(fields), server.ask("/props")
    first = tokenizer.backend.id_to_token(found[0]) if found else None
    text = f"{_tokens(tokenizer, found)} in the file, {properties['eos_token']!r} at the server"
    passed = set(found) == expected and properties["eos_token"] == first
    return ProofRow("stop tokens", passed, text if passed else f"{text}; expected {_tokens(tokenizer, expected)}")


def _check_tokenizer(server: LlamaServer, tokenizer: ChatTokenizer) -> ProofRow:
    special = "".join(f" a{token}b " for token in sorted(tokenizer.special)[:200])
    for text in (*PROBE_TEXTS, special):
        expected = tokenizer.backend.encode(text).ids
        found = _encode(server, text)
        if found != expected:
            where = next((n for n, pair in enumerate(zip(found, expected, strict=False)) if len({*pair}) > 1), -1)
            return ProofRow("tokenizer", False, f"{text[:40]!r}: other ids from token {where}, {len(found)} in all")
    return ProofRow("tokenizer", True, f"the ids of {len(PROBE_TEXTS) + 1} texts are equal")


def _check_template(server: LlamaServer, tokenizer: ChatTokenizer) -> ProofRow:
    if not tokenizer.has_template:
        return ProofRow("template", None, "the model has no chat template")
    chats = _chats(tokenizer)
    for name, (chat, tools, text) in chats.items():
        body: Json = {"messages": chat} | ({"tools": tools} if tools else {})
        try:
            found = server.ask("/apply-template", body)["prompt"]
        except PairwrightError as error:
            return ProofRow("template", False, f"chat {name!r}: {error}")
        if _encode(server, found) != tokenizer.backend.encode(text, add_special_tokens=False).ids:
            at = next((n for n, pair in enumerate(zip(found, text, strict=False)) if len({*pair}) > 1), len(found))
            around = slice(max(0, at - 10), at + 20)
            return ProofRow("template", False, f"chat {name!r}: {found[around]!r}, expected {text[around]!r}")
    return ProofRow("template", True, f"the ids of the chats {', '.join(chats)} are equal")


def _check_logits(server: LlamaServer, trained: Path, tokenizer: ChatTokenizer, types: set[str]) -> list[ProofRow]:
    """Measure drift at positions of the built-in texts, and compare greedy answers."""
    model = load_model(trained, device="cpu", dtype="float32")
    prefixes = _prefixes(tokenizer)
    expected = _model_logps(model, prefixes)
    divergence, is_equal, worst = [], [], 0.0
    for ids, logps_V in zip(prefixes, expected, strict=True):
        tokens, found = _server_logps(server, ids)
        ours = logps_V[tokens]
        # the tail beyond the compared tokens counts as one token
        tails = [max(1e-9, 1 - float(np.exp(values).sum())) for values in (found, ours)]
        inside = float((np.exp(found) * (found - ours)).sum())
        divergence.append(inside + tails[0] * np.log(tails[0] / tails[1]))
        is_equal.append(tokens[0] == int(logps_V.argmax()))
        worst = max(worst, float(np.abs(found[:5] - ours[:5]).max()))
    limit = max(_DRIFT_LIMITS.get(name, _OTHER_LIMIT) for name in types)
    mean = float(np.mean(divergence))
    text = (
        f"mean divergence {mean:.2g} nats at {len(prefixes)} positions (limit {limit:g}), largest difference of a "
        f"log-probability {worst:.2g}, the same token first at {sum(is_equal)}"
    )
    rows = [ProofRow("logits", mean <= limit, text)]
    if tokenizer.has_template:
        prompts = _chat_ids(tokenizer)
        num_equal = sum(_answer(server, ids) == _model_answer(model, ids, tokenizer) for ids in prompts)
        rows.append(ProofRow("answers", None, f"{num_equal} of {len(prompts)} greedy answers are equal in 16 tokens"))
    return rows


def _prove_adapter(
    adapter: Adapter, folder: Path, file: Path, tokenizer: ChatTokenizer, *, threads: int | None
) -> list[ProofRow]:
    """Compare the adapter's effect on log-probabilities in llama.cpp (16-bit base model) with its effect in the model.

    Queries and keys of attention are also compared separately: the effect of a wrong order of their rows would be small
    compared with that of the other matrices.
    """
    rows = []
    prefixes = _prefixes(tokenizer)
    with TemporaryDirectory(prefix="pairwright-prove-") as temporary:
        whole = Path(temporary) / "base.gguf"
        write_gguf(folder, whole, to="f16")
        model = load_model(folder, device="cpu", dtype="float32")
        without = _model_logps(model, prefixes)
        rotary = Path(temporary) / "rotary.gguf"
        parts: list[tuple[str, Path, Callable[[str], bool]]] = [("adapter", file, lambda name: True)]
        if _copy_rotary(file, rotary):
            parts.append(("adapter, queries and keys", rotary, lambda name: ".q_proj." in name or ".k_proj." in name))
        for name, path, is_part in parts:
            with LlamaServer(whole, adapter=path, slots=1, context=4096, threads=threads, exact=True) as server:
                rows.append(_compare_effect(name, server, model, adapter, is_part, prefixes, without))
    return rows


def _compare_effect(
    name: str,
    server: LlamaServer,
    model: Any,
    adapter: Adapter,
    is_part: Callable[[str], bool],
    prefixes: Sequence[list[int]],
    without: list[NDArray[np.float32]],
) -> ProofRow:
    scale, magnitude = 1.0, 0.0
    while scale <= 4096:
        with _changed(model, adapter, is_part, scale):
            changed = _model_logps(model, prefixes)
        top = [np.argsort(-logps)[:_NUM_TOKENS] for logps in without]
        magnitude = _root_mean(np.concatenate([b[t] - a[t] for a, b, t in zip(without, changed, top, strict=True)]))
        if magnitude >= _MIN_EFFECT:
            break
        scale *= 4
    if magnitude < _MIN_EFFECT:
        text = (
            f"changes log-probabilities by {magnitude:.2g} nats at {scale / 4:g} times its scale: too little to compare"
        )
        return ProofRow(name, None, text)
    ours, theirs = [], []
    for ids, before, after in zip(prefixes, without, changed, strict=True):
        plain = dict(zip(*_server_logps(server, ids, lora=0.0), strict=True))
        adapted = dict(zip(*_server_logps(server, ids, lora=scale), strict=True))
        tokens = [token for token in plain if token in adapted]
        theirs += [adapted[token] - plain[token] for token in tokens]
        ours += [after[token] - before[token] for token in tokens]
    error = _root_mean(np.array(theirs) - np.array(ours)) / max(_root_mean(np.array(ours)), 1e-9)
    text = (
        f"its effect ({_root_mean(np.array(ours)):.2g} nats at {scale:g} times its scale) differs by {error:.1%} "
        f"(limit {_EFFECT_LIMIT:.0%}) on {len(ours):,} log-probabilities"
    )
    return ProofRow(name, error <= _EFFECT_LIMIT, text)


def _copy_rotary(file: Path, target: Path) -> bool:
    """Write an adapter's query and key matrices to a separate file; False if there are none, or no others."""
    import gguf

    fields, tensors = open_gguf(file)
    chosen = {name: tensor for name, tensor in tensors.items() if ".attn_q." in name or ".attn_k." in name}
    if not chosen or len(chosen) == len(tensors):
        return False
    writer = gguf.GGUFWriter(target, fields["general.architecture"])
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", fields["adapter.lora.alpha"])
    for name, tensor in chosen.items():
        writer.add_tensor(name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return True


@contextmanager
def _changed(model: Any, adapter: Adapter, is_part: Callable[[str], bool], scale: float) -> Iterator[None]:
    """Temporarily add a part of the adapter's change, multiplied by `scale`, to the model's weights."""
    import torch

    kept = {}
    for name, (a, b) in adapter.pairs.items():
        if is_part(name):
            parameter = model.get_parameter(name)
            kept[name] = parameter.data
            parameter.data = parameter.data + torch.from_numpy(scale * adapter.scale(len(a)) * (b @ a))
    try:
        yield
    finally:
        for name, values in kept.items():
            model.get_parameter(name).data = values


def _check_tasks(trained: Path, file: Path, config: Config | None, base: Path | None) -> ProofRow:
    name = "task success"
    if config is None:
        return ProofRow(name, None, "not measured: name a configuration with held-out tasks (--config)")
    with TemporaryDirectory(prefix="pairwright-prove-") as temporary:
        evaluation, _ = evaluate_models(config, before=str(trained), after=str(file), output=Path(temporary), base=base)
    first = evaluation.comparisons[0]
    if first.difference.low is None:
        raise ConfigError("--prove: a single held-out task gives no interval: use more (evaluate.num_tasks)")
    difference = f"{first.difference.mean:+.3f} ({first.difference.low:+.3f} to {first.difference.high:+.3f})"
    means = f"{first.metric.name} {first.before.mean:.3f} → {first.after.mean:.3f}"
    text = f"{means}, {difference}, {first.num_tasks} tasks"
    verdict = evaluation.verdict
    if verdict is None:
        return ProofRow(name, None, text)
    return ProofRow(name, verdict.passed, f"{text}; {verdict.reason}")


def _chats(tokenizer: ChatTokenizer) -> dict[str, tuple[list[Json], list[Json] | None, str]]:
    """Return the built-in chats that the template accepts, with tools if it reads them, and their renders."""
    chats = {}
    reads_tools = any("tools" in source for source in tokenizer.templates.values())
    asked: dict[str, tuple[list[Json], list[Json] | None]] = {name: (chat, None) for name, chat in _CHATS.items()}
    if reads_tools:
        asked["tools"] = (_CHATS["question"], _TOOLS)
    for name, (chat, tools) in asked.items():
        try:
            chats[name] = (chat, tools, tokenizer.renderer(tools).text(chat, tools, prompt=True))
        except PairwrightError:  # a template without a system role, for one
            continue
    return chats


def _chat_ids(tokenizer: ChatTokenizer) -> list[list[int]]:
    return [tokenizer.backend.encode(text, add_special_tokens=False).ids for *_, text in _chats(tokenizer).values()]


def _prefixes(tokenizer: ChatTokenizer) -> list[list[int]]:
    """Return prefixes of the built-in texts and chats, evenly spread over each, the shortest first."""
    texts = [tokenizer.backend.encode(text).ids for text in PROBE_TEXTS]
    if tokenizer.has_template:
        texts += _chat_ids(tokenizer)
    share = max(1, _NUM_POSITIONS // len(texts))
    return [ids[: (len(ids) * (number + 1)) // share] for ids in texts for number in range(share)]


def _model_logps(model: Any, prefixes: Sequence[list[int]]) -> list[NDArray[np.float32]]:
    import torch

    with torch.no_grad():
        logits = [model(input_ids=torch.tensor([ids]), logits_to_keep=1).logits[0, -1].float() for ids in prefixes]
        return [torch.log_softmax(logits_V, -1).numpy() for logits_V in logits]


def _server_logps(
    server: LlamaServer, ids: list[int], *, lora: float | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    body: Json = {"prompt": ids, "n_predict": 1, "temperature": 0, "n_probs": _NUM_TOKENS}
    # Log-probabilities are from before sampling, and only reported if the drawn token is complete text: force "a".
    letter = server.ask("/tokenize", {"content": "a", "add_special": False})["tokens"][0]
    body["logit_bias"] = [[letter, 1000.0]]
    if lora is not None:
        body |= {"lora": [{"id": 0, "scale": lora}], "cache_prompt": False}
    top = server.ask("/completion", body)["completion_probabilities"][0]["top_logprobs"]
    return np.array([item["id"] for item in top]), np.array([item["logprob"] for item in top])


def _answer(server: LlamaServer, ids: list[int]) -> list[int]:
    body: Json = {"prompt": ids, "n_predict": 16, "temperature": 0, "return_tokens": True}
    return [int(token) for token in server.ask("/completion", body)["tokens"]]


def _model_answer(model: Any, ids: list[int], tokenizer: ChatTokenizer) -> list[int]:
    import torch

    stops = [tokenizer.backend.token_to_id(token) for token in tokenizer.eos]
    output = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False, eos_token_id=stops, pad_token_id=0)
    return [int(token) for token in output[0, len(ids) :]]


def _encode(server: LlamaServer, text: str) -> list[int]:
    body: Json = {"content": text, "add_special": True, "parse_special": True}
    return [int(token) for token in server.ask("/tokenize", body)["tokens"]]


def _tokens(tokenizer: ChatTokenizer, ids: Any) -> str:
    return ", ".join(f"{number} ({tokenizer.backend.id_to_token(number)})" for number in sorted(ids)) or "none"


def _root_mean(values: NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values)))) if len(values) else 0.0
