"""Checkpoints: everything that a run needs to resume exactly.

    checkpoints/step-00000040/   weights.safetensors     the trained weights
                                 optimizer.safetensors   the optimizer's tensors, and the random state
                                 state.json              step, counts, best metric, fingerprint, checksums

Invariant: a folder with this name is complete. It is written under a hidden name, synced, and renamed; if that fails,
earlier checkpoints are intact. No pickle: tensors are safetensors, the rest is JSON. A run can
resume with another number of processes.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import torch
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pairwright.config.train_config import TrainConfig
from pairwright.errors import PairwrightError
from pairwright.paths import write_atomic


class CheckpointError(PairwrightError):
    """A checkpoint that cannot be written, or does not fit the run."""


class State(msgspec.Struct, kw_only=True):
    """The progress of a run; updated by the loop, saved with each checkpoint."""

    step: int = 0
    num_tokens: int = 0
    trained_tokens: dict[str, int] = {}
    best_metric: float | None = None
    best_step: int | None = None
    num_bad_validations: int = 0
    metrics: dict[int, float] = {}  # step -> value of the validation metric
    fingerprint: str = ""
    checksums: dict[str, str] = {}


def judge(state: State, values: dict[str, float], settings: TrainConfig) -> bool:
    """Record a validation; return whether it is the best so far. For a loss, smaller is better."""
    if settings.metric not in values:
        raise PairwrightError(f"metric: no {settings.metric!r} among {', '.join(sorted(values))}")
    value = values[settings.metric]
    state.metrics = {**state.metrics, state.step: value}
    sign = -1 if settings.metric.endswith("loss") else 1  # so that larger is better
    if state.best_metric is None or sign * value > sign * state.best_metric:
        state.best_metric, state.best_step, state.num_bad_validations = value, state.step, 0
        return True
    state.num_bad_validations += 1
    return False


def best_steps(state: State, settings: TrainConfig) -> set[int]:
    """Return the steps whose checkpoints are kept: the best `keep_top_k` by validation metric."""
    sign = -1 if settings.metric.endswith("loss") else 1
    ranked = sorted(state.metrics, key=lambda step: (-sign * state.metrics[step], step))
    return set(ranked[: settings.keep_top_k]) | ({state.best_step} if state.best_step is not None else set())


def save_checkpoint(folder: Path, state: State, weights: dict[str, Any], optimizer: Any) -> Path:
    place = folder / f"step-{state.step:08}"
    try:
        with write_atomic(place) as temporary:
            temporary.mkdir()
            weights = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
            save_file(weights, temporary / "weights.safetensors")
            tensors, others = _flat(optimizer.state_dict())
            tensors["random.cpu"] = torch.get_rng_state()
            gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
            tensors |= {f"random.cuda.{number}": value for number, value in enumerate(gpus)}
            # safetensors holds only tensors: other optimizer state is JSON in the file's metadata.
            metadata = {"others": msgspec.json.encode(others).decode()}
            save_file(tensors, temporary / "optimizer.safetensors", metadata=metadata)
            # state.json is written last, with the checksums of all other files.
            sums = {path.name: _checksum(path) for path in sorted(temporary.iterdir())}
            saved = msgspec.structs.replace(state, checksums=sums)
            (temporary / "state.json").write_bytes(msgspec.json.format(msgspec.json.encode(saved)))
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"{place}: {reason}: the checkpoint was not saved; those before it are intact. "
            "Make room, then continue with --resume"
        ) from error
    return place


def checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    # Step numbers are zero-padded, so names sort by step.
    return sorted(path for path in folder.glob("step-*") if (path / "state.json").is_file())


def read_state(place: Path) -> State:
    """Read the state of a checkpoint, and verify the checksums of its files."""
    try:
        state = msgspec.json.decode((place / "state.json").read_bytes(), type=State)
        bad = [name for name, checksum in state.checksums.items() if _checksum(place / name) != checksum]
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{place}: cannot be read: {error}. {_way_out(place)}") from error
    if bad:
        raise CheckpointError(f"{place / bad[0]}: damaged: its checksum differs. {_way_out(place)}")
    return state


def load_weights(place: Path, weights: dict[str, Any]) -> None:
    """Copy a checkpoint's weights into the tensors of the same names."""
    with safe_open(place / "weights.safetensors", framework="pt") as file:
        names = set(file.keys())
        if names != weights.keys():
            raise CheckpointError(f"{place}: its {len(names)} weights are not those of this model")
        for name, tensor in weights.items():
            with torch.no_grad():
                tensor.copy_(file.get_tensor(name))


def load_optimizer(place: Path, optimizer: Any) -> None:
    """Restore the optimizer and the random state."""
    with safe_open(place / "optimizer.safetensors", framework="pt") as file:
        others = msgspec.json.decode(file.metadata()["others"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    # Random state of the CPU and of each GPU, so that dropout continues as well.
    torch.set_rng_state(tensors.pop("random.cpu"))
    for name in [name for name in tensors if name.startswith("random.cuda.")]:
        torch.cuda.set_rng_state(tensors.pop(name), int(name.rsplit(".", 1)[1]))
    # Names are "<number of the parameter>.<name of the state>", in the order of the optimizer's groups.
    state: dict[int, dict[str, Any]] = {}
    for name, value in [*tensors.items(), *others["state"].items()]:
        number, key = name.split(".", 1)
        state.setdefault(int(number), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": others["param_groups"]})


def remove_old(folder: Path, *, keep: set[int]) -> None:
    """Remove checkpoints, except the newest and those of these steps."""
    # The newest always stays, since a run resumes from it.
    for place in checkpoints(folder)[:-1]:
        if int(place.name.split("-")[1]) not in keep:
            shutil.rmtree(place, ignore_errors=True)


def _flat(state: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    tensors: dict[str, Any] = {}
    others: dict[str, Any] = {}
    for number, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{number}.{name}"] = value.cpu().contiguous()
            else:
                others[f"{number}.{name}"] = value
    return tensors, {"state": others, "param_groups": state["param_groups"]}


def _checksum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


def _way_out(place: Path) -> str:
    return f"Remove {place.name} and resume from the one before it, or start again with another -o"
