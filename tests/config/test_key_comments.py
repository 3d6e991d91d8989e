"""The keys with their comments: `pairwright config show --comments` is a configuration, and says what each key means."""

import io
import json

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from pairwright.cli import app
from pairwright.config import Config, load_config, printable_config
from pairwright.config.key_comments import list_keys, to_commented_yaml

YAML_TEXTS = [(), (("train.epochs", "7"), ("collect.workflow", "a.py:b"), ("pairs.where", "'gap > 0.2 # or so'"))]


@pytest.mark.parametrize("overrides", YAML_TEXTS)
def test_the_commented_configuration_loads_to_the_same_configuration(tmp_path, overrides):
    text = to_commented_yaml(printable_config(overrides=overrides, environment={}), Config)
    (tmp_path / "config.yaml").write_text(text)
    assert load_config(tmp_path / "config.yaml", environment={}) == load_config(overrides=overrides, environment={})


def test_every_key_has_a_comment():
    def check(section, path):
        for key in list_keys(section):
            assert key.comment, f"{path}{key.name} has no comment: give the field a docstring"
            if key.section is not None:
                check(key.section, f"{path}{key.name}.")

    check(Config, "")


def test_every_line_of_a_section_that_may_be_absent_becomes_valid_when_it_is_uncommented():
    text = to_commented_yaml(printable_config(environment={}), Config)
    block = text[text.index("# keys of evaluate.gate:") :].split("\n\n")[0]
    lines = [line.strip()[2:] for line in block.splitlines()[1:]]
    gate = YAML(typ="safe").load(io.StringIO("\n".join(lines)))
    assert gate == {"min_improvement": 0.0, "margin": None, "confidence": 0.95, "min_tasks": 10}


def test_the_command_prints_it_and_names_the_choices():
    done = CliRunner().invoke(app, ["config", "show", "train.epochs=7", "--comments"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    line = lines.index("  truncation: keep_end")
    assert lines[line - 1].endswith("One of: keep_start, keep_end, drop.")
    assert "  epochs: 7" in lines
    assert max(map(len, lines)) <= 125


def test_the_schema_is_indented():
    done = CliRunner().invoke(app, ["config", "schema"])
    assert json.loads(done.stdout)["title"] == "Config"
    assert len(done.stdout.splitlines()) > 1000
