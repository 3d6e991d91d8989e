"""`pairwright jobs submit|list|show|attach|logs|cancel|deploy`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import AsJson
from pairwright.cli.guards import Interrupted
from pairwright.cli.key_options import with_options
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import ConfigCommand, Overrides, load_settings, set_flags
from pairwright.cli.progress_view import LiveTable, duration
from pairwright.errors import PairwrightError, PlaceError

if TYPE_CHECKING:
    from pairwright.config import Config
    from pairwright.jobs import Backend, Job, Status

app = typer.Typer(help="Training jobs: submit, list, follow, cancel, deploy.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="JOB", help="A run's folder, or a job's id.", show_default=False)]
Root = Annotated[Path, typer.Option("--runs", help="Folder to search for runs.")]
File = Annotated[Path | None, typer.Option("--config", help="A YAML file: hosts, tokens, limits.")]


@app.command(cls=with_options("backend.name", after="experience"))
def submit(
    ctx: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", help="The run's folder.", show_default=False)],
    model: Annotated[str, typer.Option(help="A model's folder; for a service, the name of the model to tune.")],
    pairs: Annotated[Path | None, typer.Option(help="A pairs table.")] = None,
    experience: Annotated[Path | None, typer.Option(help="An experience table (grpo, kto, sdpo).")] = None,
    config: File = None,
    override: Overrides = None,
    wait: Annotated[bool | None, typer.Option("--wait/--no-wait", help="Follow the job to its end.")] = None,
    launch: Annotated[
        bool | None, typer.Option("--launch/--no-launch", help="nemo-rl, trl: start the job, or only write its files.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="local: continue from the newest checkpoint.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the job of this folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Start a job on the backend that `backend.name` selects, and follow it."""
    from pairwright.jobs import JobRequest, JobState, find_backend

    settings = load_settings(config, override, set_flags(ctx))
    name = settings.backend.name
    refuse_other_job(output, is_forgotten=overwrite or resume)
    # nemo-rl and trl only write files for another machine, unless --launch is set
    is_launched = launch if launch is not None else name in ("local", "nemo-customizer", "nemo-platform")
    request = JobRequest(model=model, pairs=pairs, experience=experience, launch=is_launched, resume=resume)
    job = find_backend(name).submit(output, request, settings, say)
    if job.state is JobState.PREPARED:
        _report(job, output, as_json=as_json)
        say(f"{job.id} prepared in {output}. Next: {job.details['script']}")
        return
    # services have their own switch in the configuration; other jobs are followed by default
    is_followed = wait if wait is not None else settings.backend.is_followed
    if is_followed:
        follow_job(output, settings, as_json=as_json)
    else:
        _report(job, output, as_json=as_json)
        say(f"{job.id} is {job.state}. Next: pairwright jobs attach {output}")


@app.command("list")
def list_jobs(
    root: Annotated[Path, typer.Argument(help="Folder to search for runs.")] = Path("runs"), as_json: AsJson = False
) -> None:
    """List the jobs of all runs with their last known state."""
    from pairwright.jobs import find_jobs, read_job

    if not root.is_dir():
        raise PlaceError(f"{root}: no such folder; runs are below runs/ unless you chose another place")
    jobs = [(folder, read_job(folder)) for folder in find_jobs(root)]
    values = [_as_json(job, folder) for folder, job in jobs]
    now = time.time()
    rows = [
        (job.id, job.backend, job.state, str(folder), f"{duration(max(0, now - job.updated_at))} ago")
        for folder, job in jobs
    ]
    print_result(values, str(root), ("id", "backend", "state", "folder", "seen"), rows, as_json=as_json)
    say(f"{len(jobs)} jobs below {root}" + (". Next: pairwright jobs show JOB" if jobs else ""))


@app.command(cls=ConfigCommand)
def show(
    name: Name, root: Root = Path("runs"), config: File = None, override: Overrides = None, as_json: AsJson = False
) -> None:
    """Ask the backend for the state of a job."""
    from pairwright.jobs import read_job
    from pairwright.jobs.job import follow_status

    folder, job, settings, backend = _open_job(name, root, config, override)
    status = backend.status(folder, job, settings)
    # read again: the backend may have changed the file while it was asked
    job = follow_status(folder, read_job(folder), status)
    _report(job, folder, as_json=as_json, status=status)


@app.command(cls=ConfigCommand)
def attach(
    name: Name, root: Root = Path("runs"), config: File = None, override: Overrides = None, as_json: AsJson = False
) -> None:
    """Follow a job until it ends; exit code 1 if it fails."""
    folder, _, settings, _ = _open_job(name, root, config, override)
    follow_job(folder, settings, as_json=as_json)


@app.command(cls=ConfigCommand)
def logs(
    name: Name,
    root: Root = Path("runs"),
    config: File = None,
    override: Overrides = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue until the job has ended.")] = False,
) -> None:
    """Print a job's log."""
    folder, job, settings, backend = _open_job(name, root, config, override)
    for line in backend.logs(folder, job, settings, follow):
        # lines that are followed must appear at once, also in a pipe
        print(line, flush=follow)


@app.command(cls=ConfigCommand)
def cancel(
    name: Name, root: Root = Path("runs"), config: File = None, override: Overrides = None, as_json: AsJson = False
) -> None:
    """Cancel a job. A local job first saves a checkpoint, from which --resume continues."""
    from pairwright.jobs import read_job
    from pairwright.jobs.job import FINAL, follow_status

    folder, job, settings, backend = _open_job(name, root, config, override)
    # a job that has ended cannot be cancelled: only report its state
    if job.state not in FINAL:
        job = backend.cancel(folder, job, settings)
        job = follow_status(folder, read_job(folder), backend.status(folder, read_job(folder), settings))
    _report(job, folder, as_json=as_json)
    say(f"{job.id} is {job.state}")


@app.command(cls=ConfigCommand)
def deploy(
    name: Name, root: Root = Path("runs"), config: File = None, override: Overrides = None, as_json: AsJson = False
) -> None:
    """Deploy the model of a completed job to an endpoint, and wait until it answers."""
    folder, job, settings, backend = _open_job(name, root, config, override)
    deployment = backend.deploy(folder, job, settings, say)
    rows = [(key, str(value)) for key, value in deployment.items()]
    print_result(deployment, "deployment", ("what", "value"), rows, as_json=as_json)
    say(f"{deployment.get('model')} is ready at {deployment.get('url')}/v1")


def _open_job(
    name: str, root: Path, config: Path | None, override: list[str] | None
) -> "tuple[Path, Job, Config, Backend]":
    """The folder of a job, its record, the configuration, and the backend that has the job."""
    from pairwright.jobs import backend_of, job_folder, read_job

    folder = job_folder(name, root)
    job, settings = read_job(folder), load_settings(config, override)
    return folder, job, settings, backend_of(job, settings)


def follow_job(folder: Path, config: "Config", *, as_json: bool) -> None:
    from pairwright.jobs import backend_of, read_job

    job = read_job(folder)
    backend = backend_of(job, config)
    try:
        with _JobView() as view:
            status = backend.wait(folder, config, view.show)
    except KeyboardInterrupt as error:
        # Ctrl-C stops following, not the job
        raise Interrupted(f"stopped following {job.id}, which continues: pairwright jobs attach {folder}") from error
    job = read_job(folder)
    is_deployed = job.backend == "nemo-customizer" and config.backend.nemo_customizer.deploy_on_completion
    if is_deployed:
        backend.deploy(folder, job, config, say)
        job = read_job(folder)
    _report(job, folder, as_json=as_json, status=status)
    if is_deployed:
        say(f"{job.id} is completed and deployed at {(job.deployment or {}).get('url')}")
    else:
        say(f"{job.id} is completed. Next: pairwright jobs deploy {folder}")


class _JobView(LiveTable):
    """A job's progress in one line; in a pipe also whenever its state changes."""

    _state: Any = None

    def show(self, status: "Status") -> None:
        if status.state is not self._state:
            self._state, self._next_line = status.state, 0.0
        self.update({"stage": _line(status)})


def _line(status: "Status") -> str:
    parts = [str(status.state)]
    if status.percentage is not None:
        parts.append(f"{status.percentage:.0f}%")
    if status.step is not None:
        parts.append(f"step {status.step}" + (f" of {status.num_steps}" if status.num_steps else ""))
    for name, value in (("loss", status.train_loss), ("validation loss", status.validation_loss)):
        if value is not None:
            parts.append(f"{name} {value:.4g}")
    return ", ".join([*parts, *([status.message] if status.message else [])])


def refuse_other_job(folder: Path, *, is_forgotten: bool) -> None:
    from pairwright.jobs import is_submitted, read_job
    from pairwright.jobs.job import FINAL

    # a job that was interrupted before it was handed over is submitted again
    if is_forgotten or not is_submitted(folder):
        return
    job = read_job(folder)
    ways = (
        "choose another folder, or say --overwrite"
        if job.state in FINAL
        else f"follow it with: pairwright jobs attach {folder}, end it with: pairwright jobs cancel {folder}"
    )
    raise PairwrightError(f"{folder}: has the job {job.id}, which is {job.state}: {ways}")


def _report(job: "Job", folder: Path, *, as_json: bool, status: "Status | None" = None) -> None:
    rows = [("id", job.id), ("backend", job.backend), ("state", str(job.state)), ("folder", str(folder))]
    if status is not None:
        rows += [("progress", _line(status))]
    # each backend sets some of these details
    for key in ("job_id", "output_model", "revision", "pid", "script"):
        if job.details.get(key) is not None:
            rows.append((key, str(job.details[key])))
    if job.deployment:
        rows += [(f"deployment {key}", str(value)) for key, value in job.deployment.items()]
    if job.error:
        rows.append(("error", job.error))
    print_result(_as_json(job, folder, status), job.id, ("what", "value"), rows, as_json=as_json)


def _as_json(job: "Job", folder: Path, status: "Status | None" = None) -> dict[str, Any]:
    import msgspec

    record: dict[str, Any] = {**msgspec.to_builtins(job), "folder": str(folder)}
    return record if status is None else {**record, "status": msgspec.to_builtins(status)}
