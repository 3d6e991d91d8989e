"""`pairwright init DIR`: a new project; `pairwright run CONFIG.yaml`: the whole flow; `pairwright demo`: an example."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from pairwright.cli.arguments import AsJson, RunOutput
from pairwright.cli.output import flat_rows, print_json, print_result, say, say_in_colour
from pairwright.cli.overrides import Overrides, parse_overrides
from pairwright.cli.progress_view import CollectView, Progress, TrainingView, duration


def init_project(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty folder.", show_default=False)],
    template: Annotated[
        Literal["chat", "tools", "openai-sdk", "traces", "nat"],
        typer.Option(
            help="chat: one question, several answers. tools: an agent with tools. openai-sdk: your existing agent. "
            "traces: your existing data. nat: from NeMo Agent Toolkit."
        ),
    ] = "chat",
    as_json: AsJson = False,
) -> None:
    """Create a small project that is ready to run: configuration, workflow, scorer, tasks, README."""
    from pairwright.flow.example import create_project, read_commands

    names = create_project(folder, template)
    commands = read_commands((folder / "README.md").read_text(encoding="utf-8"))
    if as_json:
        print_json({"folder": str(folder), "template": template, "files": names, "commands": commands})
    say(f"{folder}: {', '.join(names)}")
    say("Next:")
    for command in (f"cd {folder}", *commands):
        say(f"  {command}")


def run_flow(
    config: Annotated[Path, typer.Argument(help="A configuration.", show_default=False)],
    override: Overrides = None,
    output: RunOutput = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="A trial in runs/<name>-trial: collect and evaluate only the first N tasks, without a gate; "
            "estimates the time of the whole run.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume (this is also the default).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Collect, pair, train and prove, from one configuration; a stage that is done and unchanged is skipped."""
    from pairwright.config import base_folder, load_config, printable_config
    from pairwright.errors import ConfigError

    overrides = parse_overrides(override)
    if limit is not None:
        num_tasks = [(f"{section}.num_tasks", str(limit)) for section in ("collect", "evaluate")]
        overrides = [*num_tasks, *overrides, ("evaluate.gate", "null")]
    settings = load_config(config, overrides=overrides)
    folder = output or Path("runs") / (settings.name if limit is None else f"{settings.name}-trial")
    base = base_folder(settings, config)
    say(f"{'planning' if dry_run else 'running'} {config} in {folder}")  # before the imports below, which take seconds
    from pairwright.flow import Flow

    if resume and not (folder / "manifest.json").exists():
        raise ConfigError(f"--resume: {folder} has no run to continue with")
    if dry_run:
        from pairwright.flow.dry_run import plan_rows

        flow = Flow(settings, folder, base=base)
        plan = flow.plan()
        rows = plan_rows(flow, plan)
        columns = ("stage", "state", "expected")
        print_result([dict(zip(columns, row, strict=True)) for row in rows], "plan", columns, rows, as_json=as_json)
        say(f"{len(rows)} stages in {flow.folder}; nothing was done")
        if plan.refusal is not None:  # the run would end with it, so the dry run does
            raise plan.refusal
        return
    # references to the environment stay references in the file
    resolved = printable_config(config, overrides=overrides)
    with LiveView() as view:
        flow = Flow(settings, folder, base=base, view=view)
        result = flow.run(resolved=resolved)
    if limit is not None:
        from pairwright.flow.dry_run import estimate_whole

        whole = estimate_whole(flow, load_config(config, overrides=parse_overrides(override)))
        stages = ", ".join(f"{name} {duration(seconds)}" for name, seconds in whole.items())
        result["estimated_seconds"] = round(sum(whole.values()), 1)
        say(
            f"trial: the whole run would take about {duration(sum(whole.values()))} ({stages}): pairwright run {config}"
        )
    print_result(result, str(folder), ("what", "value"), flat_rows(result), as_json=as_json)
    say(f"done: open {folder / 'report.html'}. {_where_model(result, folder, settings.loop.rounds)}")


def _where_model(result: dict[str, Any], folder: Path, num_rounds: int) -> str:
    """Say where the trained model is, in a folder or on the service that trained it, and the next command."""
    if result.get("model"):
        return f"Next: pairwright serve model {result['model']}"
    if result.get("state", "completed") != "completed":
        train = folder / f"round-{num_rounds}" / "train"
        return f"Job {result.get('job')} is {result['state']}; wait for it with: pairwright jobs attach {train}"
    if result.get("output_model"):
        return f"The model is {result['output_model']} at {result['service']}"
    return f"Job {result.get('job')} left no model here; its backend has it"


class LiveView:
    """Shows the progress of a run: one live table at a time, lines for everything else."""

    def __enter__(self) -> Any:
        from pairwright.flow import View

        # holds the open live table, if there is one
        self._stack = ExitStack()
        self._open: Any = None
        self._kind = self._stage = self._place = ""
        return View(
            say=self._say,
            collecting=lambda status: self._switch_to("collect").show(status),
            training=lambda event: self._switch_to("train").show(event),
            counting=lambda done, total: self._switch_to("count").show(done, total),
            begin=self._begin,
        )

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _say(self, line: str) -> None:
        # a line would be overwritten by a live table: close it first
        self._stack.close()
        self._kind = ""
        if line.startswith(f"{self._stage}: ") and self._place:
            # in columns: the number of the stage, its name and what it does
            name, _, rest = line.partition(": ")
            is_over = rest.startswith(("done", "unchanged"))
            say_in_colour(f"{self._place}  {name:<17} {rest}", "green" if is_over else "cyan")
        else:
            say_in_colour(line, "yellow" if line.startswith("warning") else "")

    def _begin(self, name: str, number: int, total: int) -> None:
        self._stage, self._place = name, f"stage {number:>{len(str(total))}} of {total}"

    def _switch_to(self, kind: Literal["collect", "train", "count"]) -> Any:
        if self._kind != kind:
            self._stack.close()
            if kind == "collect":
                view: Any = CollectView("examining" if self._stage.endswith("/evaluate") else "collecting")
            else:
                view = TrainingView() if kind == "train" else Progress(self._stage or "preparing", "items")
            self._open, self._kind = self._stack.enter_context(view), kind
        return self._open


def run_demo(
    name: Annotated[
        Literal["tic-tac-toe", "tools"],  # of flow/example.py, repeated so that help does not load it
        typer.Argument(help="tic-tac-toe: up to 7 CPU minutes; tools: SmolLM2-135M learns exact tool calls, up to 15."),
    ] = "tic-tac-toe",
    override: Overrides = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="Folder of the run; by default runs/<example>.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks, the sampling and the training.")] = 0,
    resume: Annotated[bool, typer.Option("--resume", help="Resume (this is also the default).")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a small model on this machine on its own runs, and prove that it got better."""
    from pairwright.errors import ConfigError
    from pairwright.flow.example import EXAMPLES, run_example

    example = EXAMPLES[name]
    folder = output or Path("runs") / example.folder
    if resume and not folder.exists():
        raise ConfigError(f"--resume: {folder} has no demo to continue with")
    with LiveView() as view:
        result, evaluation = run_example(example, folder, seed=seed, view=view, overrides=parse_overrides(override))
    columns = ("metric", "before", "after", "difference", "low", "high")
    rows = [
        (
            metric["name"],
            metric["before"]["mean"],
            metric["after"]["mean"],
            *(metric["difference"][key] for key in ("mean", "low", "high")),
        )
        for metric in evaluation["metrics"]
    ]
    print_result(evaluation, example.title, columns, rows, as_json=as_json)
    say(f"open {folder / 'report.html'}. Next: pairwright serve model {result['model']}")
