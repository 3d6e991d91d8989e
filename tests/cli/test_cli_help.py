"""Help in the order of the flow, in groups, with plain types; what the shell completes."""

import re
import sys

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from pairwright.cli import app, main
from pairwright.cli.help_style import ESSENTIAL
from pairwright.config.train_config import PREFERENCE_LOSS_NAMES
from pairwright.export import EXPORTERS
from pairwright.pairs.options import STRATEGY_NAMES
from pairwright.sources import READERS


@pytest.fixture
def run(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERMINAL_WIDTH", "160")

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pairwright", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return run


def paths_of(command, path=()):
    yield path
    for word, child in getattr(command, "commands", {}).items():
        yield from paths_of(child, (*path, word))


def complete(*words):
    """What bash is offered for the last word."""
    environment = {
        "_PAIRWRIGHT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["pairwright", *words]),
        "COMP_CWORD": str(len(words)),
    }
    return CliRunner().invoke(app, [], env=environment, prog_name="pairwright").stdout.split()


def test_alone_it_shows_help_and_that_is_fine(run):
    code, out, err = run()
    assert (code, out, err) == (0, run("--help")[1], "")
    assert "Usage: pairwright" in out


def test_a_group_alone_shows_help_and_asks_for_a_command(run):
    code, out, err = run("jobs")
    assert (code, "submit" in out, len(err.splitlines())) == (3, True, 1)
    assert "expected the name of a command" in err


def test_commands_are_in_the_order_of_the_flow_and_in_groups(run):
    _, out, _ = run("--help")
    listed = re.findall(r"^(?:╭─ |│ )([A-Z][\w ]+?|[a-z]+) (?= |─)", out, re.M)
    assert listed == [
        "Options",
        "Data", "import", "collect", "record", "teach", "score", "experience", "advise", "pairs", "export", "push", "pull",
        "Training", "tokens", "train", "jobs",
        "Proof and deployment", "evaluate", "compare", "explain", "report", "view", "serve",
        "Project", "init", "run", "demo", "model", "doctor", "config",
    ]  # fmt: skip


def test_no_help_names_a_type_of_python(run):
    paths = list(paths_of(get_command(app)))
    assert len(paths) > 40
    for path in paths:
        code, out, _ = run(*path, "--help")
        assert code == 0
        assert not re.search(r"<bool>|<str>|range>|<list", out), path


@pytest.mark.parametrize(
    ("group", "options"),
    [("pairs", ["--strategy", "--min-gap", "--output"]), ("tokens", ["--tokenizer", "--max-length", "--output"]), ("evaluate", ["--min-improvement", "--metric"])],
)  # fmt: skip
def test_the_help_of_a_group_has_the_options_of_its_default_command_and_its_commands(run, group, options):
    _, out, _ = run(group, "--help")
    for option in options:
        assert re.search(rf"^│ {option} ", out, re.M), option
    for name in get_command(app).commands[group].commands:
        assert re.search(rf"^│ {name} ", out, re.M), name
    assert f"Usage: pairwright {group} [OPTIONS]" in out


@pytest.mark.parametrize("name", sorted(ESSENTIAL))
def test_help_shows_the_usual_options_and_help_all_every_one(run, name):
    short, whole = run(name, "--help")[1], run(name, "--help-all")[1]
    listed = [set(re.findall(r"^│ (?:\*  )?--([a-z-]+)", text, re.M)) for text in (short, whole)]
    assert listed[0] - {"help", "help-all"} == set(ESSENTIAL[name])
    assert len(listed[1]) > len(listed[0])
    assert f"{len(listed[1]) - len(listed[0])} more options: pairwright {name} --help-all" in short


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (("export", "pairs", "--to", ""), [*EXPORTERS, "jsonl", "bytes", "tokens"]),
        (("export", "--to", "trl"), ["trl", "trl-implicit", "trl-unpaired"]),
        (("export", "--split", "v"), ["validation"]),
        (("import", "--format", ""), ["auto", *READERS]),
        (("import", "--format", "nemo-"), ["nemo-gym", "nemo-rl-preference"]),
        (("pairs", "--strategy", ""), list(STRATEGY_NAMES)),
        (("pairs", "build", "--strategy", "best"), ["best-worst"]),
        (("pairs", "table", "--weight", "g"), ["gap"]),
        (("train", "--loss", ""), list(PREFERENCE_LOSS_NAMES)),
        (("train", "--loss", "apo"), ["apo_zero", "apo_down"]),
        (("train", "--report-to", "wandb,m"), ["wandb,mlflow"]),
        (("jobs", "submit", "--backend", "nemo"), ["nemo-customizer", "nemo-platform", "nemo-rl"]),
        (("export", "--to", "p"), ["parquet"]),
        (("serve", "model", "--dtype", "b"), ["bfloat16"]),
        (("evaluate", "--missing", ""), ["refuse", "leave_out"]),
        (("run", "c.yaml", "--set", "train.dpo.l"), ["train.dpo.loss=", "train.dpo.loss_type=", "train.dpo.label_smoothing="]),
        (("run", "c.yaml", "--set", "pairs.strategy=be"), ["pairs.strategy=best-worst"]),
        (("run", "c.yaml", "seed=3", "--set", "pairs.dedupe="), ["pairs.dedupe=true", "pairs.dedupe=false"]),
        (("pairs", "--strat"), ["--strategy"]),
        (("tokens", "--max-"), ["--max-length", "--max-pair-length"]),
        (("pai",), ["pairs"]),
    ],
)  # fmt: skip
def test_the_shell_completes_values(words, values):
    assert complete(*words) == values


def test_completion_names_the_losses_that_there_are():
    losses = pytest.importorskip("pairwright.losses")
    assert tuple(losses.PREFERENCE_LOSSES) == PREFERENCE_LOSS_NAMES
