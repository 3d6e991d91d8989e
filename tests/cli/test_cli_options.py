"""Options that are derived from the configuration: name, type, default and help are those of the key."""

import subprocess
import sys

import pytest
import typer
from typer.main import get_command

from pairwright import ConfigError, load_config
from pairwright.cli.key_options import with_options
from pairwright.cli.main import app
from pairwright.cli.overrides import set_flags
from pairwright.config.config_tree import field_of


def options_of(*path):
    command = get_command(app)
    for name in path:
        command = command.commands[name]
    return {param.config_key: param for param in command.params if hasattr(param, "config_key")}


@pytest.mark.parametrize(
    "path",
    [
        ("import",),
        ("teach",),
        ("pairs", "build"),
        ("tokens", "build"),
        ("train",),
        ("jobs", "submit"),
        ("evaluate", "compare"),
    ],
)
def test_an_option_has_the_help_of_its_key(path):
    options = options_of(*path)
    assert options
    for key, param in options.items():
        assert param.help.startswith(" ".join(field_of(key).description.split())), key


def test_every_key_of_a_section_is_an_option_of_its_command_but_for_those_that_belong_into_a_file():
    from pairwright.config import PairsConfig, TokensConfig
    from pairwright.config.config_tree import section_of

    engine = {"engine.name", "engine.address"}
    pairs = {f"pairs.{name}" for name in PairsConfig.model_fields}
    # sections inside a section (tokens.credit) are set by KEY=VALUE
    tokens = {f"tokens.{name}" for name, field in TokensConfig.model_fields.items() if not section_of(field.annotation)}
    assert set(options_of("pairs", "build")) == pairs | {"seed"} | engine
    in_files = {"tokens.tokenizer", "tokens.keep_first", "tokens.clock", "tokens.boundaries"}
    assert set(options_of("tokens", "build")) == (tokens - in_files) | engine


def flags_of(words, *keys):
    """What a command with these keys finds on its command line."""
    collected = []
    small = typer.Typer(add_completion=False)

    @small.command(cls=with_options(*keys))
    def run(ctx: typer.Context, output: str = "out") -> None:
        collected.append(set_flags(ctx))

    small(words, standalone_mode=False)
    return collected[0]


def test_only_what_is_on_the_command_line_is_set():
    keys = ("pairs.min_gap", "pairs.dedupe", "pairs.teachers", "train.report_to", "evaluate.missing")
    assert flags_of([], *keys) == {}
    words = ["--min-gap", "0", "--no-dedupe", "--teachers", "a", "--teachers", "b", "--report-to", "wandb,mlflow"]
    assert flags_of([*words, "--missing", "0.5"], *keys) == {
        "pairs.min_gap": ("--min-gap", 0.0),
        "pairs.dedupe": ("--dedupe", False),
        "pairs.teachers": ("--teachers", ("a", "b")),
        "train.report_to": ("--report-to", ("wandb", "mlflow")),
        "evaluate.missing": ("--missing", "0.5"),
    }


def test_the_classes_of_the_configuration_are_not_loaded_before_a_command_needs_them():
    code = "import sys; from typer.main import get_command; from pairwright.cli import app; get_command(app); print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_engine_options_replace_the_short_form_and_the_address_of_another_engine(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text("engine: ray")
    engine = load_config(file, flags={"engine.workers": ("--workers", 2)}).engine
    assert (engine.name, engine.workers) == ("ray", 2)
    file.write_text("engine: {name: ray, address: auto}")
    assert load_config(file, flags={"engine.name": ("--engine", "ray")}).engine.address == "auto"
    assert load_config(file, flags={"engine.name": ("--engine", "embedded")}).engine.address is None
    with pytest.raises(ConfigError, match=r"^--address: only the engine ray has one$"):
        load_config(flags={"engine.address": ("--address", "auto")})


def test_options_of_functions_are_those_of_the_configuration():
    """Losses and comparison inherit their options: there is no second declaration to compare."""
    from pairwright.config.sections import CompareTerms, EvaluateConfig
    from pairwright.evaluation import CompareOptions

    assert issubclass(CompareOptions, CompareTerms)
    assert issubclass(EvaluateConfig, CompareTerms)
    with pytest.raises(ConfigError, match=r"^confidence: got 2, expected below 1$"):
        CompareOptions(confidence=2)
