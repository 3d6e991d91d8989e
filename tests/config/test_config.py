"""Configuration: file, environment and overrides; unknown keys suggest; secrets are never echoed."""

import pytest

from pairwright import ConfigError, load_config
from pairwright.config import Config, config_schema, plain_yaml, printable_config


def written(tmp_path, text):
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_file_then_environment_then_overrides(tmp_path):
    path = written(tmp_path, "name: a\nseed: 1\nsources: {format: nat, paths: [x]}\n")
    config = load_config(
        path, overrides=[("seed", "3")], environment={"PAIRWRIGHT_SEED": "2", "PAIRWRIGHT_SOURCES__FORMAT": "atif"}
    )
    assert (config.name, config.seed, config.sources.format, config.sources.paths) == ("a", 3, "atif", ("x",))


def test_variables_of_the_service_are_not_keys():
    environment = {"PAIRWRIGHT_DATABASE": "postgresql://rows", "PAIRWRIGHT_MODEL_SECRET": "hunter2"}
    assert load_config(environment=environment) == load_config(environment={})


@pytest.mark.parametrize("time", ["2025-07-01T12:00:00", "2025-07-01"])
def test_a_time_needs_no_quotes(tmp_path, time):
    assert load_config(written(tmp_path, f"tokens: {{clock: {time}}}\n"), environment={}).tokens.clock == time
    assert load_config(None, overrides=[("tokens.clock", time)], environment={}).tokens.clock == time


def test_references_are_filled_from_the_environment(tmp_path):
    path = written(tmp_path, 'seed: ${SEED}\nsources: {paths: ["${DIR}/a", b]}\n')
    config = load_config(path, environment={"SEED": "7", "DIR": "/d"})
    assert (config.seed, config.sources.paths) == (7, ("/d/a", "b"))
    with pytest.raises(ConfigError, match="the environment has no SEED"):
        load_config(path, environment={})


def test_what_came_from_the_environment_is_never_shown(tmp_path):
    path = written(tmp_path, 'name: ${TOKEN}\nseed: x${TOKEN}\nsources: {paths: ["${TOKEN}"]}\n')
    with pytest.raises(ConfigError) as caught:
        load_config(path, environment={"TOKEN": "hunter2 secret"})
    assert "hunter2" not in str(caught.value)
    assert "name" in str(caught.value)
    shown = printable_config(written(tmp_path, 'sources: {paths: ["${TOKEN}/x"]}'), environment={"TOKEN": "hunter2"})
    assert shown["sources"]["paths"] == ["${TOKEN}/x"]
    assert printable_config(environment={"PAIRWRIGHT_NAME": "hunter2"})["name"] == "${PAIRWRIGHT_NAME}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([("sede", "1")], "unknown key 'sede'; did you mean 'seed'?"),
        ([("sources.formt", "1")], "unknown key 'sources.formt'; did you mean 'sources.format'?"),
        ([("zzz", "1")], "unknown key 'zzz'; known keys: name, seed"),
        ([("seed", "-1")], "seed: Input should be greater than or equal to 0"),
        ([("seed", "1"), ("seed.x", "1")], "'seed' is a value, not a section"),
        ([("seed", "[1")], "not valid YAML"),
        ([("name", "a/b")], "name: String should match pattern"),
    ],
)
def test_mistakes_are_named_with_the_way_out(overrides, message):
    with pytest.raises(ConfigError) as caught:
        load_config(overrides=overrides, environment={})
    assert message in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "config.yaml:1: not valid YAML"), ("- 1", "expected keys and values"), ("a: !!python/name:os.system x", "not valid YAML")]
)  # fmt: skip
def test_files_other_than_configurations_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(written(tmp_path, text), environment={})


BOMB = "a: &a [x, x]\n" + "".join(
    f"{name}: &{name} [*{before}, *{before}, *{before}]\n" for before, name in zip("abcdefghijklmnop", "bcdefghijklmnopq", strict=True)
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [(BOMB, "aliases expand"), ("a: &a [*a]", "aliases expand"), ("a: " + "x" * (plain_yaml.MAX_BYTES + 1), "larger")],
    ids=["bomb", "loop", "large"],
)
def test_files_that_expand_without_bound_are_refused(tmp_path, text, message):
    with pytest.raises(ConfigError, match=message):
        load_config(written(tmp_path, text), environment={})


def test_a_missing_file_and_an_empty_one(tmp_path):
    with pytest.raises(ConfigError, match="no such file"):
        load_config(tmp_path / "nope.yaml")
    assert load_config(written(tmp_path, ""), environment={}) == Config()


def test_the_schema_describes_every_key():
    schema = config_schema()
    assert schema["additionalProperties"] is False
    for section in (schema, *schema["$defs"].values()):
        for name, field in section["properties"].items():
            assert "description" in field or "$ref" in field, name
