"""`pairwright doctor --device NAME`: compares the results of a device with those of the CPU, on synthetic batches.

A small Llama with fixed random weights is trained on the CPU in fp32 and on the device: losses and gradients of every
layout in fp32 and bf16, gradients of every LoRA matrix, gradient checkpointing, a resumed run, greedy generation. Takes
seconds on a CPU and, with the compilation of attention, a few minutes on a GPU.
"""

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from pairwright.config.train_config import TrainConfig
from pairwright.generate import Engine, Request, Sampling
from pairwright.generate.devices import choose_device
from pairwright.losses.logps import sum_by_sequence
from pairwright.tokens.batch.collate import Tree, tree_of
from pairwright.training.checkpoint import State, load_optimizer, load_weights, save_checkpoint
from pairwright.training.model.load_model import attach_adapter, trainable
from pairwright.training.model.policy_model import Policy
from pairwright.training.optimizer import make_optimizer

_VOCABULARY = 384
_RATE = 1e-3
# Maximum relative difference from the CPU in fp32: of the loss, and of the gradient as one vector.
_LIMITS = {"fp32": (1e-4, 1e-3), "bf16": (0.02, 0.1)}
_LAYOUTS = ("padded", "shared prefixes", "trees")


@dataclass(frozen=True)
class DeviceRow:
    """Result of one check: the finding, and whether it is within the limit."""

    name: str
    passed: bool
    found: str


def check_device(name: str) -> list[DeviceRow]:
    """Run all checks of a device (cuda, mps or cpu); an error in a check becomes its finding."""
    device = torch.device(choose_device(name))
    rows: list[DeviceRow] = []
    checks: list[tuple[str, Callable[[Any], Iterator[DeviceRow]]]] = [
        ("losses and gradients", _check_layouts),
        ("LoRA gradients", _check_adapter),
        ("gradient checkpointing", _check_checkpointing),
        ("resume", _check_resume),
        ("greedy generation", _check_generation),
    ]
    for title, check in checks:
        try:
            rows += check(device)
        except Exception as error:  # any error of the device is part of the report
            rows.append(DeviceRow(title, False, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"))
    return rows


def describe_machine(name: str) -> str:
    """Return one line for a report: device, torch, operating system."""
    device = torch.device(choose_device(name))
    model = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return (
        f"{device.type} ({model}), torch {torch.__version__}, Python {platform.python_version()}, {platform.platform()}"
    )


def _check_layouts(device: Any) -> Iterator[DeviceRow]:
    for layout in _LAYOUTS:
        expected = _loss_and_gradient(_model(), layout, "fp32")
        for precision, limits in _LIMITS.items():
            policy_found = _loss_and_gradient(_model().to(device), layout, precision)
            yield _compare(f"{layout}, {precision}", policy_found, expected, limits)


def _check_adapter(device: Any) -> Iterator[DeviceRow]:
    """Check that every matrix of an adapter gets a gradient, and that it equals that of the CPU."""
    expected = _adapter_gradients(_with_adapter().cpu())
    found = _adapter_gradients(_with_adapter().to(device))
    without = [name for name, grad in found.items() if grad is None or not float(grad.abs().max()) > 0]
    text = f"{len(found) - len(without)} of {len(found)} matrices have a gradient"
    yield DeviceRow("LoRA coverage", not without, text + (f", not {without[0]}" if without else ""))
    if not without:
        error = max(_share(found[name] - expected[name], expected[name]) for name in found)
        limit = _LIMITS["fp32"][1]
        yield DeviceRow("LoRA gradients", error <= limit, f"largest difference {error:.1e} (limit {limit:g})")


def _check_checkpointing(device: Any) -> Iterator[DeviceRow]:
    plain = _loss_and_gradient(_model().to(device), "trees", "fp32")
    model = _model().to(device).train()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    yield _compare("gradient checkpointing", _loss_and_gradient(model, "trees", "fp32"), plain, _LIMITS["fp32"])


def _check_resume(device: Any) -> Iterator[DeviceRow]:
    """Compare four updates with two updates, a checkpoint, and two updates of a new model."""
    settings = TrainConfig()
    whole, _ = _update(_model().to(device), settings, 4)
    model, optimizer = _update(_model().to(device), settings, 2)
    with TemporaryDirectory(prefix="pairwright-doctor-") as folder:
        place = save_checkpoint(Path(folder), State(step=2), trainable(model), optimizer)
        again = _model().to(device)
        load_weights(place, trainable(again))
        resumed = make_optimizer(trainable(again), settings, _RATE)
        load_optimizer(place, resumed)
    again, _ = _update(again, settings, 2, optimizer=resumed)
    pairs = zip(whole.parameters(), again.parameters(), strict=True)
    error = max(float((one.detach().cpu() - other.detach().cpu()).abs().max()) for one, other in pairs)
    limit = 0.0 if device.type == "cpu" else 1e-5  # the order of sums on a GPU may vary
    yield DeviceRow("resume", error <= limit, f"weights differ by {error:.1e} (limit {limit:g})")


def _check_generation(device: Any) -> Iterator[DeviceRow]:
    prompts = [np.array(_ids(20 + 7 * number, seed=number), np.int32) for number in range(4)]
    answers = []
    for where in ("cpu", device):
        engine = Engine(_model().to(where), _tokenizer())
        requests = [Request(ids, Sampling(temperature=0.0, max_tokens=16)) for ids in prompts]
        answers.append([result.choices[0].tokens.tolist() for result in engine.generate(requests)])
    num_equal = sum(one == other for one, other in zip(*answers, strict=True))
    text = f"{num_equal} of {len(prompts)} answers of 16 tokens are those of the CPU"
    yield DeviceRow("greedy generation", num_equal == len(prompts), text)


def _model() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    state = torch.get_rng_state()
    torch.manual_seed(0)
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=_VOCABULARY, num_key_value_heads=2, initializer_range=0.1, **sizes)
    model = LlamaForCausalLM(config).eval()
    torch.set_rng_state(state)
    model.config.use_cache = False
    return model


def _with_adapter() -> Any:
    model = attach_adapter(_model(), TrainConfig(finetuning_type="lora"))
    with torch.no_grad():
        for number, (name, parameter) in enumerate(model.named_parameters()):
            if ".lora_" in name:  # peft initializes B with zero, so that A has no gradient
                values = np.random.default_rng(number).normal(0, 0.02, tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(values.astype(np.float32)))
    return model


def _batch(layout: str) -> list[Tree]:
    """Return pairs with a common prompt, or for trees, runs with several divergence points."""
    if layout != "trees":
        sides = [(_ids(30, seed=number), _ids(17, seed=number + 50)) for number in range(4)]
        return [
            Tree(_ids(40 + 9 * number, seed=number + 9), pair, tuple(np.ones(len(side), bool) for side in pair))
            for number, pair in enumerate(sides)
        ]
    run = _ids(90, seed=1)
    forks = [np.concatenate([run[:at], _ids(40, seed=at)]) for at in (30, 45, 60, 60)]
    return [tree_of(ids, np.arange(len(ids)) > 20) for ids in (run, *forks)]


def _ids(number: int, *, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, _VOCABULARY, number)


def _loss(policy: Policy, layout: str) -> Any:
    """Return a preference-like loss: log-likelihoods of branches are alternately raised and lowered."""
    scored = policy.score(_batch(layout))
    sums_S, counts_S = sum_by_sequence(scored.logps_N, scored.branch_N, scored.num_branches)
    signs_S = torch.ones_like(sums_S)
    signs_S[1::2] = -1
    return -torch.nn.functional.logsigmoid(signs_S * sums_S / counts_S).mean()


def _loss_and_gradient(model: Any, layout: str, precision: str) -> tuple[float, Any]:
    policy = Policy(model, prefix_sharing=layout != "padded", precision=precision)
    if layout != "padded" and not policy.can_share:
        raise RuntimeError(f"{layout}: {policy.why_not}")
    loss = _loss(policy, layout)
    loss.backward()
    return float(loss.detach()), torch.cat([weight.grad.flatten().cpu() for weight in trainable(model).values()])


def _adapter_gradients(model: Any) -> dict[str, Any]:
    _loss(Policy(model), "trees").backward()
    matrices = {name: weight for name, weight in model.named_parameters() if ".lora_" in name}
    return {name: None if weight.grad is None else weight.grad.cpu() for name, weight in matrices.items()}


def _update(model: Any, settings: TrainConfig, steps: int, *, optimizer: Any = None) -> tuple[Any, Any]:
    policy = Policy(model)
    optimizer = optimizer or make_optimizer(trainable(model), settings, _RATE)
    for _ in range(steps):
        optimizer.zero_grad()
        _loss(policy, "shared prefixes").backward()
        optimizer.step()
    return model, optimizer


def _compare(
    name: str, found: tuple[float, Any], expected: tuple[float, Any], limits: tuple[float, float]
) -> DeviceRow:
    loss = abs(found[0] - expected[0]) / abs(expected[0])
    gradient = _share(found[1] - expected[1], expected[1])
    text = f"loss {loss:.1e} (limit {limits[0]:g}), gradient {gradient:.1e} (limit {limits[1]:g})"
    return DeviceRow(name, loss <= limits[0] and gradient <= limits[1], text)


def _share(difference: Any, whole: Any) -> float:
    return float(difference.norm() / whole.norm())


def _tokenizer() -> Any:
    """Return a tokenizer with one token per embedding and no end token."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.WordLevel({f"t{number}": number for number in range(_VOCABULARY)}, unk_token="t0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="t0", pad_token="t0")
