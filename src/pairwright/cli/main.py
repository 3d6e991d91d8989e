"""The `pairwright` command: its groups, and the one place where errors become exit codes.

Exit codes: 0 fine, 1 runtime error, 2 a verdict of "no" (lint, gate), 3 bad configuration or usage.
"""

import atexit
import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException
from typer.main import get_command

from pairwright import __version__
from pairwright.cli import guards
from pairwright.cli.commands import config, evaluate, jobs, model, pairs, serve, tokens
from pairwright.cli.commands import experience_table as experience
from pairwright.cli.commands.choose_recipe import advise_recipe, compare_recipes
from pairwright.cli.commands.collect import collect_runs, record
from pairwright.cli.commands.doctor import doctor
from pairwright.cli.commands.explain_path import EXPLAIN_KEYS, explain
from pairwright.cli.commands.export_table import export_table, pull_table, push_table
from pairwright.cli.commands.import_files import IMPORT_KEYS, import_files
from pairwright.cli.commands.report import report, view
from pairwright.cli.commands.run import init_project, run_demo, run_flow
from pairwright.cli.commands.score import score_runs
from pairwright.cli.commands.teach import ask_teachers
from pairwright.cli.commands.train import TRAIN_KEYS, train_model
from pairwright.cli.help_style import HELP_NAMES, simplify_help
from pairwright.cli.key_options import with_options
from pairwright.cli.overrides import ConfigCommand
from pairwright.cli.renamed import refuse_renamed
from pairwright.errors import PairwrightError
from pairwright.interrupts import handle_interrupts

_DATA, _TRAINING, _PROOF, _PROJECT = "Data", "Training", "Proof and deployment", "Project"


class _Commands(TyperGroup):
    """The commands in the order of the flow; Typer would list groups after all other commands."""

    order = (
        "import", "collect", "record", "teach", "score", "experience", "advise", "pairs", "export", "push", "pull",
        "tokens", "train", "jobs",
        "evaluate", "compare", "explain", "report", "view", "serve",
        "init", "run", "demo", "model", "doctor", "config",
    )  # fmt: skip

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx), key=self.order.index)


app = typer.Typer(
    name="pairwright",
    cls=_Commands,
    help="Turn what an agent did into a better agent.",
    epilog="Start with: pairwright init my-agent. Every command that reads takes --json.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": HELP_NAMES},
)
app.command("import", cls=with_options(*IMPORT_KEYS), rich_help_panel=_DATA)(import_files)
app.command("collect", cls=with_options("collect.num_tasks", after="resume"), rich_help_panel=_DATA)(collect_runs)
app.command("record", rich_help_panel=_DATA)(record)
app.command("teach", cls=with_options("teach.max_concurrency", after="token_ids"), rich_help_panel=_DATA)(ask_teachers)
app.command("score", cls=with_options("score", after="experience"), rich_help_panel=_DATA)(score_runs)
app.add_typer(experience.app, name="experience", rich_help_panel=_DATA)
app.command("advise", rich_help_panel=_DATA)(advise_recipe)
app.add_typer(pairs.app, name="pairs", rich_help_panel=_DATA)
app.command("export", rich_help_panel=_DATA)(export_table)
app.command("push", rich_help_panel=_DATA)(push_table)
app.command("pull", rich_help_panel=_DATA)(pull_table)
app.add_typer(tokens.app, name="tokens", rich_help_panel=_TRAINING)
app.command("train", cls=with_options(*TRAIN_KEYS, after="override"), rich_help_panel=_TRAINING)(train_model)
app.add_typer(jobs.app, name="jobs", rich_help_panel=_TRAINING)
app.add_typer(evaluate.app, name="evaluate", rich_help_panel=_PROOF)
app.command("compare", cls=ConfigCommand, rich_help_panel=_PROOF)(compare_recipes)
app.command("explain", cls=with_options(*EXPLAIN_KEYS, after="words"), rich_help_panel=_PROOF)(explain)
app.command("report", rich_help_panel=_PROOF)(report)
app.command("view", rich_help_panel=_PROOF)(view)
app.add_typer(serve.app, name="serve", rich_help_panel=_PROOF)
app.command("init", rich_help_panel=_PROJECT)(init_project)
app.command("run", cls=ConfigCommand, rich_help_panel=_PROJECT)(run_flow)
app.command("demo", cls=ConfigCommand, rich_help_panel=_PROJECT)(run_demo)
app.add_typer(model.app, name="model", rich_help_panel=_PROJECT)
app.command("doctor", cls=ConfigCommand, rich_help_panel=_PROJECT)(doctor)
app.add_typer(config.app, name="config", rich_help_panel=_PROJECT)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"pairwright {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


def run_program() -> None:
    """The `pairwright` program: run `main`, and exit with its code.

    Python's normal shutdown aborts the process (exit code 134) if a thread is still inside torch or Arrow, since C++
    frames cannot be unwound. Exit handlers run last in, first out, so this one ends the process after all others.
    """
    handle_interrupts()
    code = 1  # of an exception that is not a SystemExit
    atexit.register(lambda: _leave(code))
    try:
        main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        raise


def _leave(code: int) -> None:
    _drop_output()
    sys.stderr.flush()
    os._exit(code)


def main() -> None:
    """Run the command line; print one line on stderr for every error that a user can act on."""
    try:
        refuse_renamed(sys.argv[1:])
        command = get_command(app)
        guards.guard_commands(command)
        simplify_help(command)
        # not standalone: exceptions are raised here instead of being printed
        code = command(prog_name="pairwright", standalone_mode=False)
        if code == guards.Interrupted.exit_code:  # before the command began
            sys.exit(_fail(guards.describe_stop(""), code))
        sys.stdout.flush()
    except PairwrightError as error:
        sys.exit(_fail(guards.with_way_out(error), error.exit_code))
    except ModuleNotFoundError as error:
        extras = guards.extras_with(error.name or "")
        if not extras:
            raise
        # Several extras may list a package: the one of this command, else the first in the order of the flow.
        own = {"jobs": "customizer", "serve": "serve", "view": "view"}.get(next(iter(sys.argv[1:]), ""))
        extra = own if own in extras else extras[0]
        sys.exit(_fail(f"this needs {error.name}, which is not installed: pip install 'pairwright[{extra}]'", 1))
    except TyperException as error:
        message = error.format_message() or "expected the name of a command, see above."
        sys.exit(_fail(f"{message.rstrip('.')}. Try --help.", 3))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(_fail(guards.describe_stop(""), guards.Interrupted.exit_code))
    except BrokenPipeError:  # `pairwright ... | head`
        _drop_output()
        sys.exit(0)
    except OSError as error:
        _drop_output()
        sys.exit(_fail(guards.describe_os_error(error), 1))
    except BaseExceptionGroup as group:
        os_error = guards.first_os_error(group)
        if os_error is None:
            raise
        sys.exit(_fail(guards.describe_os_error(os_error), 1))
    sys.exit(code if isinstance(code, int) else 0)


def _drop_output() -> None:
    """Discard buffered stdout that cannot be written; otherwise Python fails again at shutdown."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, code: int) -> int:
    print(f"pairwright: {message}", file=sys.stderr)
    return code
