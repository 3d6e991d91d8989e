"""Training from Python: pairs, a table or encoded sequences in, a model's folder out."""

import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pairwright.config import Config
from pairwright.config.config_file import adjust_config
from pairwright.errors import ConfigError
from pairwright.pairs.container import Pairs
from pairwright.pairs.pair_table import FILE_NAME
from pairwright.paths import find_model, local_folder, place
from pairwright.store.table import Table
from pairwright.tokens.stage.cache import ITEMS
from pairwright.tokens.stage.stage import Encoded
from pairwright.training import loop
from pairwright.training.loop import TrainResult
from pairwright.training.metrics import Event, Progress

PathLike = str | os.PathLike[str]
Data = Config | Pairs | Table | Encoded | PathLike
_SECONDS = 2.0  # between two lines of progress


def train(
    data: Data | None = None,
    *,
    model: PathLike,
    output: PathLike,
    config: Config | PathLike | None = None,
    pairs: Pairs | PathLike | None = None,
    experience: Table | PathLike | None = None,
    validation: Table | PathLike | None = None,
    tokens: Encoded | PathLike | None = None,
    reference_cache: PathLike | None = None,
    loss: str | None = None,
    seed: int | None = None,
    resume: bool = False,
    progress: bool | Progress = False,
    **options: Any,
) -> TrainResult:
    """Train a causal language model. The result's `model` is the folder of a plain Hugging Face model.

    Args:
        data: What to train on: pairs, an experience table, encoded sequences, or the folder of one of them. A
            configuration here is the same as `config`.
        model: The model to train: a folder, or a Hub id.
        output: Folder of the run: model, checkpoints, metrics.
        config: A configuration or its YAML file; `options` come on top of it.
        pairs: Pairs (channels dpo and sft), if they are not `data`.
        experience: An experience table (channels grpo, kto, sdpo and sft), if it is not `data`.
        validation: An experience table to validate sft on; pairs have their own split.
        tokens: Encoded sequences, if they are not `data`; they are trained unchanged.
        reference_cache: Folder of the reference's log-probabilities, by default one in `output`. Runs with the same
            model, sequences and precision reuse them.
        loss: Preference loss, by its name in docs/reference/losses.md.
        seed: Seed of the order and of dropout.
        resume: Continue from the newest checkpoint.
        progress: True prints progress to stderr; a function is called with the events of the loop.
        **options: Every other option of the `train` section: `epochs`, `learning_rate`, `batch_size`, `channels`, ...

    Returns:
        The folder of the model, the number of updates, and the last metrics.

    >>> import pairwright as pw
    >>> result = pw.train(pw.Pairs("runs/first/pairs"), model="models/tiny", output="runs/first/train", epochs=2)
    >>> result.num_steps, result.model.name
    (2, 'model')
    """
    sources: dict[str, Any] = {"pairs": pairs, "experience": experience, "tokens": tokens}
    if isinstance(data, Config):
        config = data
    elif data is not None:
        kind = _kind(data)
        if sources[kind] is not None:
            raise ConfigError(f"{kind}: given twice, as the first argument and by its name: leave one out")
        sources[kind] = data
    # A filtered table is trained with its filter, unless `where` is given.
    if isinstance(sources["experience"], Table) and sources["experience"].where is not None:
        options.setdefault("where", sources["experience"].where)
    if loss is not None:
        options["dpo"] = {**options.get("dpo", {}), "loss": loss}
    settings = adjust_config(config, train=options, **({} if seed is None else {"seed": seed}))
    sources["validation"] = validation
    with ExitStack() as stack:  # copies of remote folders live as long as the training
        folders = {name: _local(source, stack) for name, source in sources.items()}
        return loop.train(
            settings,
            model=find_model(os.fspath(model)),
            output=Path(output),
            reference_cache=None if reference_cache is None else Path(reference_cache),
            resume=resume,
            progress=_watcher(progress),
            **folders,
        )


def _kind(data: Any) -> str:
    """Return the name of the loop's argument that takes this data."""
    known = {Pairs: "pairs", Table: "experience", Encoded: "tokens"}
    if type(data) in known:
        return known[type(data)]
    if not isinstance(data, str | os.PathLike):
        raise ConfigError(f"data: got {type(data).__name__}, expected Pairs, a Table, Encoded, or the folder of one")
    folder = place(data)
    for name, kind in (("table.json", "experience"), (ITEMS, "tokens"), (FILE_NAME, "pairs")):
        if (folder / name).exists():
            return kind
    raise ConfigError(f"{folder}: no pairs, experience table or encoded sequences here: see pairwright.make_pairs")


def _local(source: Any, stack: ExitStack) -> Path | None:
    if source is None:
        return None
    folder = source.on_disk() if isinstance(source, Pairs) else getattr(source, "path", source)
    return stack.enter_context(local_folder(place(folder)))


def _watcher(progress: bool | Progress) -> Progress:
    if callable(progress):
        return progress
    next_line = time.monotonic() + _SECONDS

    def show(event: Event) -> None:
        nonlocal next_line
        if progress and "step" in event and time.monotonic() >= next_line:
            print(f"step {event['step']}: loss {event.get('loss', float('nan')):.4g}", file=sys.stderr)
            next_line = time.monotonic() + _SECONDS

    return show
