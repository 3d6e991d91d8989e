"""`KEY=VALUE` words and `--set` on every command that takes a configuration; `-o` is the output on all of them."""

import json
import sys

import pytest
from typer.main import get_command

from pairwright import EID, Experience, Message, Table
from pairwright.cli import app, main
from pairwright.config import load_config
from pairwright.config.config_tree import iterate_keys


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["pairwright", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        output = capsys.readouterr()
        return ended.value.code, output.out, output.err

    return run


@pytest.fixture
def table(tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([
            Experience(
                eid=EID("b", task, number, 0, "s"), kind="single_turn", prompt=[Message("user", f"q{task}")],
                completion=[Message("assistant", f"answer {reward} {task}")], reward=reward,
            )
            for task in range(2) for number, reward in enumerate((0.9, 0.7, 0.5))
        ])  # fmt: skip
    return table.path


def commands_of(command, name="pairwright"):
    if not hasattr(command, "commands"):
        yield name, command
        return
    for word, child in command.commands.items():
        yield from commands_of(child, f"{name} {word}")


TAKES_CONFIG = [
    "import", "collect", "teach", "explain", "pairs build", "tokens build", "tokens show", "tokens check", "train",
    "evaluate compare",
    "evaluate run", "jobs submit", "jobs show", "jobs attach", "jobs logs", "jobs cancel", "jobs deploy", "run", "demo",
    "doctor", "config validate", "config show", "score", "compare", "model export",
]  # fmt: skip


def test_every_command_that_takes_a_configuration_takes_overrides():
    takes_file, takes_set = set(), set()
    for name, command in commands_of(get_command(app)):
        params = {param.name: param for param in command.params}
        if "config" in params or name in ("pairwright doctor", "pairwright config validate", "pairwright config show"):
            takes_file.add(name.removeprefix("pairwright "))
        if any("--set" in param.opts for param in command.params):
            takes_set.add(name.removeprefix("pairwright "))
    assert takes_set == {*takes_file, "demo"} == set(TAKES_CONFIG)


def test_o_is_the_output_on_every_command_that_has_one():
    num_outputs = 0
    for name, command in commands_of(get_command(app)):
        for param in command.params:
            assert ("-o" in param.opts) == ("--output" in param.opts), name
            assert "--override" not in param.opts, name
            num_outputs += "-o" in param.opts
    assert num_outputs >= 15


@pytest.mark.parametrize("words", [("seed=3", "--set", "train.epochs=2"), ("--set", "seed=3", "train.epochs=2")])
def test_words_and_set_are_the_same(run, words):
    code, out, _ = run("config", "show", *words, "--json")
    tree = json.loads(out)
    assert (code, tree["seed"], tree["train"]["epochs"]) == (0, 3, 2)


def test_the_last_override_of_a_key_counts(run):
    for words in (("seed=1", "--set", "seed=2"), ("--set", "seed=1", "seed=2")):
        assert json.loads(run("config", "show", *words, "--json")[1])["seed"] == 2


def test_an_override_is_yaml_and_may_hold_spaces_and_equals_signs(run):
    tree = json.loads(run("config", "show", "train.where=gap = 0.2", "sources.paths=[a, b]", "--json")[1])
    assert (tree["train"]["where"], tree["sources"]["paths"]) == ("gap = 0.2", ["a", "b"])


@pytest.mark.parametrize("name", TAKES_CONFIG)
def test_a_key_without_its_section_is_refused_with_the_absolute_key_on_every_command(run, tmp_path, name):
    (tmp_path / "config.yaml").write_text("seed: 1\n")
    required = {
        "run": ["config.yaml"], "collect": ["config.yaml"], "teach": ["x", "-o", "y"],
        "evaluate compare": ["a", "b"], "evaluate run": ["config.yaml", "--before", "a", "--after", "b"],
        "explain": ["x"], "compare": ["config.yaml", "--recipes", "r"], "model export": ["m", "--to", "merged", "-o", "x"],
        "jobs submit": ["-o", "x", "--model", "m"], "tokens show": ["x", "--tokenizer", "t"],
    }  # fmt: skip
    words = required.get(name, ["x"] if name.startswith("jobs") else [])
    code, out, err = run(*name.split(), *words, "dpo.loss=ipo")
    assert (code, out, len(err.splitlines())) == (3, "", 1)
    assert "did you mean 'train.dpo.loss'?" in err


def test_train_takes_absolute_keys_and_names_them(run):
    code, _, err = run("train", "--set", "dpo.loss=ipo", "--model", "m", "-o", "run")
    assert (code, "unknown key 'dpo.loss'; did you mean 'train.dpo.loss'?" in err) == (3, True)
    code, _, err = run("train", "train.dpo.loss=ipo", "--model", "m", "-o", "run")
    assert "unknown key" not in err


def test_overrides_reach_pairs_with_and_without_a_configuration(run, table):
    code, out, _ = run("pairs", table, "-o", "a", "pairs.strategy=best-worst", "--json")
    assert (code, json.loads(out)["pairs"]) == (0, 2)
    (table.parent / "config.yaml").write_text("pairs: {min_gap: 0.3}\n")
    code, out, _ = run("pairs", table, "-o", "b", "--config", "config.yaml", "pairs.min_gap=0.1", "--json")
    assert (code, json.loads(out)["pairs"]) == (0, 6)
    code, out, _ = run("pairs", table, "-o", "c", "pairs.min_gap=0.1", "--min-gap", "0.3", "--json")
    assert (code, json.loads(out)["pairs"]) == (0, 2)  # an explicit option takes precedence


def test_overrides_reach_import(run, tmp_path):
    (tmp_path / "chat.jsonl").write_text(
        '{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "sk-abcdefghijklmnopqrstuvwx"}]}\n'
    )
    code, _, err = run("import", "chat.jsonl", "-o", "table", "sources.format=nemo-gym", "--json")
    assert (code, "does not look like nemo-gym" in err) == (1, True)
    assert run("import", "sources.paths=[chat.jsonl]", "-o", "table")[0] == 0


@pytest.mark.parametrize(
    "words",
    [
        "import chat.jsonl -o table",
        "explain chat.jsonl",
        "pairs experience -o a",
        "tokens experience --tokenizer none -o a",
        "score experience --with no_loop",
        "train --pairs a --model none -o b",
        "teach experience --teacher a=none -o b",
        "jobs submit --pairs a --model none -o b",
    ],
)
def test_the_environment_sets_keys_of_every_command_without_a_file(run, table, tmp_path, monkeypatch, words):
    (tmp_path / "chat.jsonl").write_text("{}")
    monkeypatch.setenv("PAIRWRIGHT_SEED", "-1")
    code, _, err = run(*words.split())
    assert (code, "config: seed: Input should be greater than or equal to 0" in err) == (3, True), err


def test_the_environment_gives_way_to_words_and_options(run, table, monkeypatch):
    monkeypatch.setenv("PAIRWRIGHT_PAIRS__MIN_GAP", "0.3")
    num_pairs = [
        json.loads(run("pairs", table, "-o", "a", *words, "--json")[1])["pairs"]
        for words in ([], ["pairs.min_gap=0.1"], ["--min-gap", "0.1"])
    ]
    assert num_pairs == [2, 6, 6]


def test_the_value_of_an_option_is_not_an_override(run, table):
    code, _, err = run("pairs", table, "-o", "a", "--where", "seed=1")
    assert (code, "no column 'seed'" in err) == (3, True)


def test_a_path_with_an_equals_sign_stays_a_path(run, table, tmp_path):
    table.rename(tmp_path / "date=1")
    assert run("pairs", "date=1", "-o", "a")[0] == 0
    (tmp_path / "date=1").rename(tmp_path / "seed=1")
    code, _, err = run("pairs", "seed=1", "-o", "b")
    assert (code, "write ./seed=1 for the path, or --set seed=1" in err) == (3, True)
    assert run("pairs", "./seed=1", "-o", "b")[0] == 0
    assert run("pairs", "-o", "c", "--", "seed=1")[0] == 0


def test_overrides_that_nothing_would_read_are_refused(run):
    code, _, err = run("tokens", "show", "x", "--tokenizer", "t", "train.sdpo.beta=1")
    assert (code, "only --hints reads keys" in err) == (3, True)


def test_a_folder_may_be_called_like_a_section(run, table, tmp_path):
    assert run("pairs", table, "-o", "pairs")[0] == 0
    assert run("pairs", "-o", "train", table)[0] == 0
    # a following option is not a value, even if the option does not exist
    code, _, err = run("pairs", table, "-o", "train", "--max-steps", "1")
    assert (code, "No such option: --max-steps" in err) == (3, True), err
    (tmp_path / "c.yaml").write_text("sources: {paths: [none.jsonl]}\n")
    code, _, err = run("run", "c.yaml", "-o", "model", "model=m", "--dry-run", "--json")
    assert (code, "model: m is not the folder of a model" in err) == (3, True), err


def test_every_key_that_completion_offers_is_one_that_the_configuration_takes():
    for key in iterate_keys():
        try:
            load_config(overrides=[(key, "{}")], environment={})
        except Exception as error:
            assert "unknown key" not in str(error), key  # noqa: PT017
