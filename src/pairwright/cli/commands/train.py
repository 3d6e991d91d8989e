"""`pairwright train --pairs DIR --model DIR -o RUN`."""

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import TrainingView
from pairwright.errors import ConfigError

Pairs = Annotated[
    str | None, typer.Option(metavar=PLACE, help="A pairs table (dpo, sft); also s3://...", show_default=False)
]
Runs = Annotated[
    str | None,
    typer.Option(metavar=PLACE, help="An experience table (grpo, kto, sdpo, sft); also s3://...", show_default=False),
]
Tokens = Annotated[
    str | None,
    typer.Option(
        metavar=PLACE,
        help="Sequences from `pairwright tokens`, trained without encoding; also s3://...",
        show_default=False,
    ),
]
Held = Annotated[
    str | None,
    typer.Option(metavar=PLACE, help="An experience table to validate sft on; pairs have a split.", show_default=False),
]
TRAIN_KEYS = (
    "train.epochs", "train.learning_rate", "train.batch_size", "train.dpo.loss", "train.where", "train.report_to",
    "train.dump_batches", "seed", "tokens.allow_dropped", "tokens.allow_images", "tokens.chat_template",
    "tokens.chat_template_kwargs", "tokens.train_turns", "tokens.tools_as_text", "engine.name",
    "engine.address", "engine.workers", "train.device", "backend.name",
)  # fmt: skip


def train_model(
    ctx: typer.Context,
    model: Annotated[
        Path | None, typer.Option(help="The model to train: a folder, or a Hub id.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Folder of the run; its model is in model/.", show_default=False),
    ] = None,
    pairs: Pairs = None,
    experience: Runs = None,
    validation: Held = None,
    tokens: Tokens = None,
    config: Annotated[Path | None, typer.Option(help="A configuration whose `train` section to use.")] = None,
    override: Overrides = None,
    lora: Annotated[bool, typer.Option("--lora", help="Train an adapter instead of all weights.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the newest checkpoint.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a causal language model on preference pairs, scored runs or hinted error turns."""
    # --lora is a switch for one value of a key, so it is added to the derived options by hand
    flags = set_flags(ctx) | ({"train.finetuning_type": ("--lora", "lora")} if lora else {})
    settings = load_settings(config, override, flags)
    output = output or (Path("runs") / settings.name / "train" if config is not None else None)
    if model is None or output is None:
        raise ConfigError(
            "expected --model DIR and -o RUN, e.g. pairwright train --pairs runs/x/pairs --model DIR -o runs/x"
        )
    named_tables = {"pairs": pairs, "experience": experience, "validation": validation, "tokens": tokens}
    # temporary copies of tables at an address live until training ends
    with ExitStack() as stack:
        tables = _tables(named_tables, lambda text: _fetch(text, output, settings, stack))
        weights = settings.train.channels
        trains_runs_by_sft = weights.sft and tables["pairs"] is None
        is_read = {
            "pairs": weights.dpo or weights.sft,
            "experience": weights.grpo or weights.kto or weights.sdpo or trains_runs_by_sft,
            "validation": trains_runs_by_sft,
        }
        for name, used in is_read.items():
            if named_tables[name] and not used:
                say(f"note: --{name} has no effect: no channel reads it; see train.channels")
        if settings.backend.name == "local":
            _run(settings, model=model, output=output, resume=resume, as_json=as_json, **tables)
        else:
            _hand_over(settings, model=model, output=output, resume=resume, as_json=as_json, **tables)


def _tables(names: dict[str, str | None], fetch: Callable[[str | None], Path | None]) -> dict[str, Path | None]:
    """Local copies of the tables; a table that is not named is found in the manifest of the tokens."""
    from pairwright.store.table_marker import MARKER

    tables = {name: fetch(text) for name, text in names.items()}
    if tables["pairs"] is not None and (tables["pairs"] / MARKER).exists():
        table = names["pairs"]
        raise ConfigError(f"{table}: an experience table; build pairs from it first: pairwright pairs {table} -o DIR")
    if tables["tokens"] is not None:
        from pairwright.tokens.stage.stage import missing_table

        # has_pairs and has_experience: whether the caller named the table
        known = {f"has_{name}": tables[name] is not None for name in ("pairs", "experience")}
        tables |= {name: fetch(str(path)) for name, path in missing_table(tables["tokens"], **known).items()}
    return tables


def _fetch(text: str | None, output: Path, config: Any, stack: ExitStack) -> Path | None:
    """Return a local copy of a table, since the training loop maps its tokens into memory. For Ray, the copy is in the
    run's folder, which all workers can read."""
    from pairwright.paths import is_address, local_folder, place

    if text is None:
        return None
    source = place(text)
    if is_address(source):
        say(f"fetching {source} to this machine")
    return stack.enter_context(local_folder(source, output if config.engine.name == "ray" else None))


def _hand_over(config: Any, *, as_json: bool, resume: bool, model: Path, output: Path, **sources: Any) -> None:
    """Train with TRL's trainers on our rows, in a separate process."""
    from pairwright.cli.commands.jobs import follow_job, refuse_other_job
    from pairwright.jobs import JobRequest, find_backend

    name = config.backend.name
    if name != "trl":
        raise ConfigError(
            f"--backend {name}: `train` trains here or with TRL: use pairwright jobs submit --backend {name}, or give "
            "--backend local"
        )
    for option, is_given in (("--resume", resume), ("--validation", sources.pop("validation")),
                             ("--engine ray", config.engine.name == "ray")):  # fmt: skip
        if is_given:
            raise ConfigError(f"{option}: the backend trl does not have it: leave it out, or give --backend local")
    refuse_other_job(output, is_forgotten=False)
    request = JobRequest(model=str(model), **sources)
    find_backend(name).submit(output, request, config, say)
    follow_job(output, config, as_json=as_json)


def _run(config: Any, *, as_json: bool, model: Path, output: Path, **sources: Any) -> None:
    try:
        from pairwright.training.loop import train

        if config.engine.name == "ray":
            from pairwright.jobs.ray_training import train_on_ray as train
    except ImportError as error:
        raise ConfigError(
            f"training needs torch and transformers ({error}): pip install 'pairwright[train]'"
        ) from error
    from pairwright.paths import find_model

    model = find_model(model)
    with TrainingView() as view:
        result = train(config, model=model, output=output, progress=view.show, **sources)
    figures = {"model": str(result.model), "steps": result.num_steps, "best_step": result.best_step, **result.metrics}
    print_result(figures, str(output), ("metric", "value"), sorted(result.metrics.items()), as_json=as_json)
    best = f", the best at step {result.best_step}" if result.best_step is not None else ""
    say(
        f"{result.num_steps:,} updates{best}; the model is in {result.model}. "
        f"Next: pairwright serve model {result.model}"
    )
