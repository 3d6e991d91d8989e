"""`pairwright collect CONFIG -o RUN` runs a workflow; `pairwright record --upstream URL -o DIR` records an endpoint."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pairwright.cli.arguments import AsJson, RunOutput
from pairwright.cli.output import print_json, print_result, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import CollectView, duration
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.collection import Collected

_MOST_ERRORS = 5


def collect_runs(
    ctx: typer.Context,
    config: Annotated[Path, typer.Argument(help="A configuration with a `collect` and a `policy` section.")],
    output: RunOutput = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue: keep finished runs, retry failed ones.")] = False,
    override: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Run a workflow over tasks, and record every candidate with its score."""
    from pairwright.config import base_folder

    settings = load_settings(config, override, set_flags(ctx))
    output = output or Path("runs") / settings.name
    say(f"collecting into {output}")  # before the imports below, which take seconds
    from pairwright.collection import collect

    with CollectView() as view:
        collection = collect(
            settings, output=output, resume=resume, watch=view.show, base=base_folder(settings, config)
        )
    _report(collection, output, config, as_json=as_json)


def _report(collection: "Collected", output: Path, config: Path, *, as_json: bool) -> None:
    status = collection.status
    figures = {
        "tasks": status.num_tasks,
        "runs": status.num_runs,
        "done": status.num_done,
        "done_before": status.num_before,
        "failed": status.num_failed,
        "candidates": status.num_candidates,
        "unscored": status.num_candidates - status.num_scored,
        "silent_runs": status.num_silent,
        "pairs": status.num_pairs,
        "mean_reward": status.mean_reward,
        "tokens": status.num_tokens,
        "seconds": round(collection.seconds, 3),
        "without_token_ids": dict(status.without_ids),
        "failures": dict(status.failures),
        "retries": dict(status.retries),
    }
    # counts by kind are dicts, which do not fit into a cell
    rows = [(key, value) for key, value in figures.items() if not isinstance(value, dict)]
    print_result(figures, "collected", ("figure", "value"), rows, as_json=as_json)
    say_failures(collection)
    # after the failures, which say why nothing was recorded
    if (reason := collection.why_empty()) is not None:
        raise PairwrightError(reason)
    for line in status.lines_without_ids():
        say(line)
    if status.ignored:
        names = ", ".join(sorted(status.ignored))
        say(f"the agent's requests had parameters that a local model does not know: {names}; they had no effect")
    if status.num_silent:
        say(f"{status.num_silent:,} of {status.num_done:,} runs that are done recorded nothing")
    again = f"; to retry them: pairwright collect {config} -o {output} --resume" if collection.errors else ""
    say(
        f"{status.num_done:,} of {status.num_runs:,} runs done, {status.num_failed:,} failed{again}. "
        f"{status.num_candidates:,} candidates in {collection.experience} after {duration(collection.seconds)}. "
        f"Next: pairwright pairs {collection.experience} -o {output}/pairs"
    )


def say_failures(collection: "Collected", of: str = "") -> None:
    """Print the first failed runs of a collection, and the file that lists all; `of` is a prefix of each line."""
    for entry in collection.errors[:_MOST_ERRORS]:
        say(f"{of}failed: task {entry.task!r}, run {entry.run} ({entry.kind}): {entry.message}")
    if len(collection.errors) > _MOST_ERRORS:
        ledger = collection.experience.parent / "collection" / "ledger.jsonl"
        say(f"... and {len(collection.errors) - _MOST_ERRORS:,} more in {ledger}")


def record(
    upstream: Annotated[str, typer.Option(help="The endpoint that answers, e.g. https://api.openai.com/v1.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the experience table.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8002,
    batch: Annotated[str, typer.Option(help="Name of this recording in the ids of its experiences.")] = "record",
    timeout: Annotated[
        float, typer.Option(help="Seconds without data after which a request to the upstream fails.")
    ] = 600.0,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Allow an address that other machines can reach, without keys.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Forward requests of the OpenAI API to an endpoint, and record them as experiences."""
    from pairwright.engines.listening import LOOPBACK, listen, serve_app, url_of

    if host not in LOOPBACK and not allow_remote:
        raise ConfigError(f"--host {host}: anybody who reaches it could use it; add --allow-remote if that is meant")
    try:
        from pairwright.collection.proxy.proxy import Proxy
    except ImportError as error:
        raise ConfigError(
            f"recording needs starlette, httpx and uvicorn ({error}): pip install 'pairwright[collect]'"
        ) from None
    proxy = Proxy(upstream, output, batch=batch, timeout_seconds=timeout, is_local=host in LOOPBACK)
    listener = listen(host, port)
    say(f"recording {url_of(listener)}/v1 -> {proxy.upstream} into {output}; point base_url there, end with Ctrl-C")
    with contextlib.suppress(KeyboardInterrupt):  # the normal way to stop: the server has shut down cleanly by then
        serve_app(proxy.app(), listener, lifespan="on", date_header=False)
    counts = proxy.counts
    if as_json:
        print_json(vars(counts))
    for reason, count in counts.not_recorded.most_common(10):
        say(f"not recorded: {count:,} × {reason}")
    say(
        f"{counts.experiences:,} experiences of {counts.requests:,} requests in {output}, {counts.feedback:,} rewards, "
        f"{counts.upstream_errors.total():,} upstream errors. Next: pairwright experience stats {output}"
    )
