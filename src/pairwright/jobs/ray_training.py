"""Training on a Ray cluster: Ray Train starts the workers, each of which runs the regular training loop (training/).

The run folder must be on storage shared by all nodes. It holds the whole state of the run: when a worker is lost, all
workers restart and resume from the last checkpoint. Errors raised by pairwright would recur on every restart, so the
first worker to fail writes the error to a file, and the run ends with it.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from pairwright.config import Config
from pairwright.config.sections import EngineConfig
from pairwright.engines.engine import EngineError
from pairwright.engines.ray_engine import connect
from pairwright.errors import ConfigError, PairwrightError
from pairwright.ledger.run_status import read_status
from pairwright.paths import write_bytes

if TYPE_CHECKING:
    from pairwright.training import TrainResult

Progress = Callable[[dict[str, Any]], None]
STORAGE = "ray"  # files of Ray Train, below the run folder
_FAILURE = ".failure.json"
_POLL_SECONDS = 1.0
_MAX_FAILURES = 3  # maximum number of worker failures


class _Failure(msgspec.Struct):
    message: str
    exit_code: int


def train_on_ray(
    config: Config,
    *,
    output: Path,
    pairs: Path | None = None,
    experience: Path | None = None,
    tokens: Path | None = None,
    resume: bool = False,
    progress: Progress = lambda event: None,
    **others: Path | None,
) -> "TrainResult":
    """Train as `train` does, on a Ray cluster. `config.engine` selects the cluster and the number of workers.

    `others` are the model and the other folders that `train` reads.
    """
    from pairwright.training.channels.channels import use_tokens
    from pairwright.training.run_dir import RunFolder

    if tokens is not None:
        config, pairs, experience = use_tokens(config, tokens, pairs, experience)
    RunFolder(output, is_writer=True, resume=resume)  # refuses a folder that has a run already
    (output / _FAILURE).unlink(missing_ok=True)
    paths = {"output": output, "pairs": pairs, "experience": experience, "tokens": tokens, **others}
    # Plain data, which Ray pickles; paths are absolute, since workers have other working directories.
    task = {
        "config": config.model_dump(mode="json"),
        "folder": os.getcwd(),
        "paths": {name: None if path is None else str(path.absolute()) for name, path in paths.items()},
    }
    with connect(config.engine), _watch_metrics(output, progress):
        _fit(task, output, config.engine)
    return _result(output)


def _fit(task: dict[str, Any], output: Path, engine: EngineConfig) -> None:
    """Run Ray Train to the end, and translate its errors."""
    try:
        from ray.train import FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise ConfigError(f"Ray Train is not installed ({error}): pip install 'pairwright[ray]'") from error
    num_workers, use_gpu = _workers(engine)
    trainer = TorchTrainer(
        _work,
        train_loop_config=task,
        scaling_config=ScalingConfig(num_workers=num_workers, use_gpu=use_gpu),
        run_config=RunConfig(
            name="run",
            storage_path=str((output / STORAGE).absolute()),
            failure_config=FailureConfig(max_failures=_MAX_FAILURES),
        ),
    )
    try:
        trainer.fit()
    except Exception as error:  # Ray may wrap it in any type; the file has the original error
        failure = _read_failure(output)
        if failure is not None:
            raise _error(failure) from error
        reason = " ".join(str(error).split())[:300]
        raise EngineError(
            f"training on Ray failed ({type(error).__name__}): {reason}. Saved files are intact: continue with --resume"
        ) from error


def _workers(engine: EngineConfig) -> tuple[int, bool]:
    """Return the number of workers (by default one per GPU; without GPUs, per node), and whether they use GPUs."""
    import ray

    num_gpus = int(ray.cluster_resources().get("GPU", 0))
    num_nodes = sum(bool(node["Alive"] and node["Resources"].get("CPU")) for node in ray.nodes())
    if num_gpus and engine.workers is not None and engine.workers > num_gpus:
        raise ConfigError(f"engine.workers: {engine.workers} workers need as many GPUs, the cluster has {num_gpus}")
    return engine.workers or num_gpus or max(1, num_nodes), num_gpus > 0


def _work(task: dict[str, Any]) -> None:
    """Train in a worker, in the process group set up by Ray Train. Resumes if there is a checkpoint."""
    from pairwright.training import train

    paths: dict[str, Any] = {name: None if path is None else Path(path) for name, path in task["paths"].items()}
    output: Path = paths["output"]
    # Written by another worker or in an earlier attempt: fail immediately instead of retrying.
    known = _read_failure(output)
    if known is not None:
        raise _error(known)
    try:
        with contextlib.chdir(task["folder"] if os.path.isdir(task["folder"]) else "."):
            # Always `resume`: a restarted run continues from its last checkpoint, and a new run has none.
            train(Config.model_validate(task["config"]), resume=True, **paths)
    except PairwrightError as error:
        write_bytes(output / _FAILURE, msgspec.json.encode(_Failure(str(error), error.exit_code)))
        raise _error(_Failure(str(error), error.exit_code)) from None


def _error(failure: _Failure) -> PairwrightError:
    error = PairwrightError(failure.message)
    error.exit_code = failure.exit_code
    return error


def _read_failure(output: Path) -> _Failure | None:
    try:
        return msgspec.json.decode((output / _FAILURE).read_bytes(), type=_Failure)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def _result(output: Path) -> "TrainResult":
    from pairwright.training import TrainResult

    status = read_status(output)
    if status is None or status.state != "completed" or status.model is None:
        raise EngineError(
            f"{output}: the workers ended, but the run is {status and status.state!r}; see its train.json"
        )
    last: dict[str, Any] = {}
    for _, row in _rows(output, 0):
        # The last training row, with the validation row that follows it.
        last = {**last, **row} if "eval_loss" in row else row
    values = {key: float(value) for key, value in last.items() if key not in ("step", "epoch", "time")}
    return TrainResult(model=output / status.model, num_steps=status.step, metrics=values, best_step=status.best_step)


@contextlib.contextmanager
def _watch_metrics(output: Path, progress: Progress) -> Iterator[None]:
    done = threading.Event()
    path = output / "metrics.jsonl"
    start = path.stat().st_size if path.exists() else 0

    def watch(start: int) -> None:
        is_last = False
        while not is_last:
            # True once the training has ended: one more pass reads the last rows.
            is_last = done.wait(_POLL_SECONDS)
            status = read_status(output)
            for end, row in _rows(output, start):
                start = end
                kind = "validation" if "eval_loss" in row else "step"
                progress({"kind": kind, "num_steps": status.num_steps if status else 0, **row})

    watcher = threading.Thread(target=watch, args=(start,), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _rows(output: Path, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (end offset, row) of the complete lines of metrics.jsonl, from byte `start` on."""
    try:
        data = (output / "metrics.jsonl").read_bytes()
    except FileNotFoundError:
        return
    for line in data[start:].splitlines(keepends=True):
        if not line.endswith(b"\n"):
            return
        start += len(line)
        yield start, msgspec.json.decode(line)
