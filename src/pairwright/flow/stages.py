"""The stages of a run as functions of the configuration and folders. Each returns its counts for the manifest.

Every stage calls the same function as its command; this module only decides the locations of inputs and outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairwright.config import Config
from pairwright.engines import open_engine
from pairwright.errors import ConfigError, PairwrightError
from pairwright.records.messages import Json

# Counts of the tokens manifest that are copied to the run's manifest
_TOKEN_COUNTS = (
    "items", "exact", "sequences", "tokens", "trained_tokens", "recorded", "truncated", "refused",
    "with_dropped_content", "with_dropped_prompt_content", "with_images_left_out", "added_tokens", "with_added_tokens",
    "with_declared_turns", "turns_by_rule", "modes",
)  # fmt: skip


@dataclass(frozen=True)
class View:
    """Callbacks for the progress of a run; the command line displays it."""

    say: Callable[[str], None] = lambda line: None
    collecting: Callable[[Any], None] = lambda status: None
    training: Callable[[Json], None] = lambda event: None
    counting: Callable[[int, int], None] = lambda done, total: None
    begin: Callable[[str, int, int], None] = lambda name, number, total: None
    """Called before a stage with its name, its number and the number of all stages."""


def collect_stage(config: Config, folder: Path, base: Path | None, view: View) -> Json:
    """Run the workflow over the tasks; resumes an interrupted collection."""
    from pairwright.collection import collect

    collected = collect(config, output=folder, resume=True, watch=view.collecting, base=base)
    status = collected.status
    if (reason := collected.why_empty()) is not None:
        raise PairwrightError(reason)
    for line in status.lines_without_ids():
        view.say(line)
    if status.ignored:
        view.say(f"ignored parameters of the agent's requests: {', '.join(sorted(status.ignored))}")
    _say_advice(folder / "experience", config, view)
    return {
        "runs": status.num_done,
        "failed": status.num_failed,
        "candidates": status.num_candidates,
        "without_token_ids": status.without_ids.total(),
        "silent_runs": status.num_silent,
        "tokens": status.num_tokens,
        "mean_reward": status.mean_reward,
    }


def _say_advice(experience: Path, config: Config, view: View) -> None:
    """Print the advice of advice.py on the runs, except what the configuration does already."""
    from pairwright.flow.advice import advise, is_followed, measure, recommended
    from pairwright.store.table import Table

    advice = advise(measure(Table(experience, create=False)))
    for item in advice:
        if is_followed(item, config):
            continue
        mark = " (recommended)" if item is recommended(advice) else ""
        view.say(f"advice: {item.rule}{mark}: {item.advice}")
    if advice:
        view.say(f"advice: recipes and evidence: pairwright advise {experience}")


def check_collection(config: Config, folder: Path) -> None:
    """Raise if the folder has a collection with another workflow, model or seed, as `collect_stage` would."""
    from pairwright.collection.collection_identity import check_resumable

    check_resumable(folder / "collection", config, workflow=str(config.collect.workflow))


def find_beside(base: Path | None, name: str | Path) -> Path:
    """Return a path as it is if it exists, else in the folder of the configuration."""
    return Path(name) if base is None or Path(name).exists() else base / name


def initial_model(config: Config) -> str:
    if config.trained_model is None:
        raise ConfigError("model: expected the folder of the model that is trained")
    return config.trained_model


def source_paths(config: Config, base: Path | None) -> list[str]:
    """Return the paths of `sources`, resolved against the folder of the configuration; addresses are unchanged."""
    from pairwright.paths import is_address

    return [path if base is None or is_address(path) else str(base / path) for path in config.sources.paths]


def import_stage(config: Config, folder: Path, base: Path | None, view: View) -> Json:
    from pairwright.sources.format import options_of
    from pairwright.store.importing import import_files, refuse_empty
    from pairwright.store.table import Table

    sources = config.sources
    with open_engine(config.engine) as engine:
        summary = import_files(
            source_paths(config, base),
            Table(folder / "experience"),
            format_name=sources.format,
            options=options_of(sources, base),
            redact=sources.redact,
            engine=engine,
            progress=view.counting,
        )
    refuse_empty(summary)
    return {"experiences": summary.total("experiences"), "quarantined": summary.total("quarantined")}


def score_stage(config: Config, table: Path, base: Path | None, view: View) -> Json:
    from pairwright.scores.score_tables import score

    section, counts = config.score, {}
    for scorer in section.scorers:
        summary = score(
            table,
            scorer,
            judge=section.judge,
            max_requests=section.max_requests,
            max_concurrency=section.max_concurrency,
            base=base,
            progress=view.counting,
        )
        for cause, count in summary.failures.most_common(3):
            view.say(f"score: {summary.scorer}: {count:,} runs failed: {cause}")
        if not summary.scored and not summary.kept:
            raise PairwrightError(f"score: {summary.scorer} scored none of {summary.runs:,} runs")
        counts[summary.scorer] = summary.means.get("score")
    return counts


def pairs_stage(config: Config, tables: list[Path], folder: Path, view: View) -> Json:
    """Build pairs from the tables of this round, or of all rounds so far."""
    from pairwright.pairs.build import build_pairs
    from pairwright.pairs.options import pair_options
    from pairwright.store.table import Table

    with open_engine(config.engine) as engine:
        summary = build_pairs(
            [Table(path, create=False) for path in tables], folder, pair_options(config), engine=engine
        )
    for line in config.pairs.list_unused():
        view.say(f"pairs: {line}")
    if not summary["pairs"]:
        raise PairwrightError(
            f"{summary['hint'] or 'no pairs: see ' + str(folder / 'funnel.json')}. What the model wrote: "
            f"pairwright experience head {tables[-1]}"
        )
    return {"pairs": summary["pairs"], "validation": summary["validation"]}


def tokens_stage(config: Config, pairs: Path, model: Path, folder: Path, view: View) -> Json:
    from pairwright.tokens.stage.cache import describe_losses
    from pairwright.tokens.stage.stage import encode_source

    # the default tokenizer is that of the trained model
    options = config.tokens.model_copy(update={"tokenizer": config.tokens.tokenizer or str(model)})
    with open_engine(config.engine) as engine:
        manifest = encode_source(pairs, folder, options, engine=engine, progress=view.counting)
    if not manifest["encoded"]:
        raise PairwrightError(
            f"no pair could be encoded: {manifest['refused']}; pairwright tokens show {folder} --tokenizer "
            f"{options.tokenizer} has the reasons"
        )
    for line in describe_losses(manifest):
        view.say(f"warning: {line}")
    if manifest["refused"]:
        view.say(f"why pairs are refused: pairwright tokens show {folder} --tokenizer {options.tokenizer}")
    return {name: manifest[name] for name in _TOKEN_COUNTS}


def train_stage(config: Config, model: Path, folder: Path, inputs: Mapping[str, Path | None], view: View) -> Json:
    """Train locally, or submit a job to a backend and wait for it. `model` in the result is the trained folder."""
    from pairwright.collection.nat_files import add_training

    train = _train_here if config.backend.name == "local" else _submit_job
    result = train(config, model, folder, inputs, view)
    training = {
        "backend": config.backend.name,
        "job_id": result.get("job_id") or result.get("job"),
        "output_model": result.get("model") or result.get("output_model"),
        "dataset_name": result.get("dataset") or str(inputs["pairs"] or inputs["experience"]),
        "status": result.get("state", "completed"),
    }
    add_training(folder.parent, training)
    return result


def _train_here(config: Config, model: Path, folder: Path, inputs: Mapping[str, Path | None], view: View) -> Json:
    from pairwright.jobs.ray_training import train_on_ray
    from pairwright.training import train

    run = train_on_ray if config.engine.name == "ray" else train
    channels = config.train.channels
    result = run(
        config,
        model=model,
        output=folder,
        # train.json exists once training has begun: continue from its newest checkpoint
        resume=(folder / "train.json").exists(),
        progress=view.training,
        pairs=inputs["pairs"],
        experience=inputs["experience"],
        # only these channels train on the encoded sequences
        tokens=inputs["tokens"] if channels.dpo or channels.sft else None,
        reference_cache=inputs["reference"],
    )
    counts = _account(folder, view)
    return {"model": str(result.model), "steps": result.num_steps, **counts, **result.metrics}


def _account(folder: Path, view: View) -> Json:
    """Build the ledger of a training run (generated and trained tokens by channel); raise if it does not add up."""
    from pairwright.ledger import LedgerError, build_ledger

    # encode=False: only recorded token ids are counted, no conversation is tokenized again
    ledger = build_ledger(folder.parent.name, folder, encode=False)
    for note in ledger.notes:
        view.say(f"ledger: {note}")
    if ledger.problems:
        raise LedgerError("the ledger does not add up: " + "; ".join(ledger.problems))
    counts: Json = {}
    for account in ledger.accounts:
        trained = next((fate.tokens for fate in account.fates if fate.name == "trained"), 0)
        counts[f"{account.channel}_trained_tokens"] = trained
        known = f"{account.tokens:,} known generated tokens"
        view.say(f"ledger: {account.channel}: {trained:,} of {known} trained; the sums agree")
    return counts


def _submit_job(config: Config, model: Path, folder: Path, inputs: Mapping[str, Path | None], view: View) -> Json:
    from pairwright.jobs import JobRequest, find_backend, is_submitted, read_job

    backend = find_backend(config.backend.name)
    if not is_submitted(folder):  # on resume the job may be running already
        request = JobRequest(model=str(model), pairs=inputs["pairs"], experience=inputs["experience"], launch=True)
        job = backend.submit(folder, request, config, view.say)
        view.say(f"job {job.id} was handed to {backend.name}; pairwright jobs attach {folder} finds it again")
    ended, trained = None, folder / "model"
    if config.backend.is_followed:
        ended = backend.wait(folder, config, lambda status: view.say(f"{status.state}: {status.percentage or 0:.0f}%"))
    job = read_job(folder)
    details: Json = {"job": job.id}
    if job.details.get("job_id"):  # on a service
        details |= {
            "job_id": job.details["job_id"],
            "output_model": job.details.get("output_model"),
            "service": job.details.get("entity_host"),
            "dataset": f"{job.details.get('namespace')}/{job.details.get('dataset_name')}",
        }
    # without waiting, the model is not known, so a run with more rounds stops here
    if ended is None:
        return {**details, "state": str(job.state), "model": None}
    return {**details, "state": str(ended.state), "model": str(trained) if trained.exists() else None}


def evaluate_stage(config: Config, folder: Path, before: Path, after: Path, base: Path | None, view: View) -> Json:
    from pairwright.evaluation import write_evaluation
    from pairwright.evaluation.held_out_runs import evaluate_models

    evaluation, runs = evaluate_models(
        config, before=str(before), after=str(after), output=folder, resume=True, base=base, watch=view.collecting
    )
    write_evaluation(folder, evaluation)
    # the first metric is the primary one, which the gate judges
    first = evaluation.comparisons[0]
    return {
        "metric": first.metric.name,
        "before": first.before.mean,
        "after": first.after.mean,
        "difference": first.difference.mean,
        "low": first.difference.low,
        "high": first.difference.high,
        "failed": sum(len(side.errors) for side in runs),
        "passed": evaluation.passed,
        "verdict": "no gate was set" if evaluation.verdict is None else evaluation.verdict.reason,
    }


def deploy_stage(config: Config, folder: Path, view: View) -> Json:
    """Deploy with the backend that trained the model."""
    from pairwright.jobs import find_backend, read_job

    backend = find_backend(config.backend.name)
    if not (folder / "job.json").exists():
        raise ConfigError(
            f"loop.deploy: {folder} has no job: a model trained in this process is served with `pairwright serve model`"
        )
    return dict(backend.deploy(folder, read_job(folder), config, view.say))
