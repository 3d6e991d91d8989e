"""`pairwright pairs` as a user meets it: the funnel on stdout, the way on on stderr, verdicts as exit codes."""

import json
import sys

import pytest
import typer
from typer.exceptions import TyperException

from pairwright import EID, Experience, Message, Table
from pairwright.cli.commands import pairs as pairs_command
from pairwright.errors import PairwrightError
from pairwright.pairs import STRATEGIES
from pairwright.pairs.options import STRATEGY_NAMES, PairOptions
from pairwright.pairs.outcomes import explain as explain_id


def run(capsys, *words):
    """Exit code, stdout and stderr of the group `pairs`; errors come out as they reach the command line's main."""
    try:
        code = pairs_command.app([str(word) for word in words], standalone_mode=False)
    except PairwrightError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    except TyperException as error:
        print(error.format_message(), file=sys.stderr)
        code = 3
    found = capsys.readouterr()
    return code or 0, found.out, found.err


@pytest.fixture
def folder(tmp_path):
    rows = []
    for task in range(4):
        for number, reward in enumerate((0.9, 0.7, 0.5, None)):
            rows.append(Experience(
                eid=EID("b", task, number, 0, "s"), kind="single_turn", prompt=[Message("user", f"q{task}")],
                completion=[Message("assistant", f"answer {reward} {task}")], reward=reward,
            ))  # fmt: skip
    with Table(tmp_path / "experience") as table:
        table.append(rows)
    return tmp_path


def test_build_says_what_became_of_everything(folder, capsys):
    code, out, err = run(capsys, "build", folder / "experience", "-o", folder / "pairs")
    assert code == 0
    assert out.splitlines()[:3] == [
        "stage\twhat\tcount",
        "experiences\tin\t16",
        "experiences\tunscored: no reward, NaN or infinite\t-4",
    ]
    assert out.splitlines()[-1] == "pairs\tout\t12"
    assert f"12 pairs written to {folder / 'pairs'}. Next: pairwright pairs lint" in err


def test_build_is_what_is_meant_when_no_command_is_named(folder, capsys):
    assert run(capsys, folder / "experience", "-o", folder / "pairs", "--strategy", "best-worst")[0] == 0
    assert json.loads((folder / "pairs" / "funnel.json").read_bytes())["pairs"] == 4


def test_every_option_reaches_the_build(folder, capsys):
    words = [
        "--strategy", "stratified", "--high", "q0.9", "--low", "0.5", "--min-gap", "0.1", "--max-gap", "2", "--tie-tolerance", "0.001",
        "--max-pairs-per-group", "2", "--max-pairs-per-task", "3", "--max-pairs", "9", "--weight", "gap", "--across-groups",
        "--max-per-chosen", "2", "--min-teachers", "2", "--no-dedupe",
        "--near-duplicates", "0.9", "--contradictions", "majority", "--drop-truncated", "--keep-masked", "--length-balance", "5",
        "--validation", "0.5", "--curriculum", "hard-first", "--curriculum-share", "0.9", "--seed", "4",
        "--memory", "64MB", "--teachers", folder / "experience", "--where", "run < 9",
    ]  # fmt: skip
    code, out, _ = run(capsys, "build", folder / "experience", "-o", folder / "pairs", "--json", *words)
    assert code == 0
    assert json.loads(out)["options"] == {
        "strategy": "stratified", "min_gap": 0.1, "max_gap": 2.0, "tie_tolerance": 0.001, "within_run": False, "max_pairs_per_group": 2,
        "max_pairs_per_task": 3, "max_pairs": 9, "weight": "gap", "high": "q0.9", "low": "0.5", "across_groups": True,
        "max_per_chosen": 2, "dedupe": False, "near_duplicates": 0.9, "contradictions": "majority", "verbatim": False, "drop_truncated": True,
        "keep_masked": True, "length_balance": 5.0, "validation": 0.5, "curriculum": "hard-first",
        "curriculum_share": 0.9, "teachers": ["experience"], "min_teachers": 2,
        "votes": None, "where": "run < 9", "seed": 4, "memory_megabytes": 64,
    }  # fmt: skip


def test_the_defaults_of_the_command_are_those_of_pair_building(folder, capsys):
    code, out, _ = run(capsys, "build", folder / "experience", "-o", folder / "pairs", "--json")
    assert (code, json.loads(out)["options"]) == (0, PairOptions().as_json())
    params = typer.main.get_command(pairs_command.app).commands["build"].params
    shown = {param.name.removeprefix("pairs_"): param.default for param in params}
    for name, value in PairOptions().as_json().items():
        if name != "memory_megabytes":
            assert str(shown[name] or None) == str(value or None), name


def test_a_configuration_has_options_and_folders_and_the_command_line_overrides_them(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "run.yaml").write_text(
        "name: first\nseed: 5\npairs: {exhaustive_pairs: false, min_score_diff: 0.1, validation: 0.5}\n"
    )
    (folder / "runs" / "first").mkdir(parents=True)
    (folder / "experience").rename(folder / "runs" / "first" / "experience")
    code, out, err = run(capsys, "--config", "run.yaml", "--json")
    options = json.loads(out)["options"]
    assert (code, options["strategy"], options["min_gap"], options["seed"]) == (0, "best-worst", 0.1, 5)
    assert "4 pairs written to runs/first/pairs" in err
    code, out, _ = run(capsys, "--config", "run.yaml", "--strategy", "all", "--min-gap", "0.0", "-o", "other", "--json")
    options = json.loads(out)["options"]
    assert (options["strategy"], options["min_gap"], options["validation"]) == ("all", 0.0, 0.5)
    assert (folder / "other" / "pairs.parquet").exists()


def test_tables_and_a_folder_are_asked_for(capsys):
    code, _, err = run(capsys, "build", "--min-gap", "0.1")
    assert (code, "pairwright pairs runs/first/experience -o pairs" in err) == (3, True)


def test_no_pairs_is_said_with_the_value_that_would_help(folder, capsys):
    code, _, err = run(capsys, "build", folder / "experience", "-o", folder / "pairs", "--min-gap", "0.5")
    assert (code, "--min-gap 0.4 would let some through, now 0.5" in err) == (2, True)


def test_what_where_leaves_out_is_counted_and_stands_in_the_funnel(folder, capsys):
    words = ["build", folder / "experience", "-o", folder / "pairs", "--where", "task != '0' AND reward > 0.6"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.splitlines()[1:4] == [
        "experiences\tin\t16", "experiences\tfiltered by --where\t-10", "experiences\tout\t6",
    ]  # fmt: skip
    funnel = json.loads((folder / "pairs" / "funnel.json").read_bytes())
    assert (funnel["pairs"], funnel["options"]["where"]) == (3, "task != '0' AND reward > 0.6")
    assert explain_id(folder / "pairs", EID("b", 0, 0, 0, "s").uid)["reason"] == "filtered by --where"
    code, _, err = run(capsys, "build", folder / "experience", "-o", folder / "pairs", "--where", "nope = 1")
    assert (code, "no column 'nope'" in err) == (3, True)


def test_stats_and_lint(folder, capsys):
    run(capsys, "build", folder / "experience", "-o", folder / "pairs")
    code, out, _ = run(capsys, "stats", folder / "pairs", "--json")
    assert (code, json.loads(out)["pairs"]) == (0, 12)
    assert "pairs\t12" in run(capsys, "stats", folder / "pairs")[1]
    code, _, err = run(capsys, "lint", folder / "pairs", "--max-near-duplicates", "1")
    assert (code, "nothing found" in err) == (0, True)


def test_lint_of_a_bad_table_exits_with_two_and_the_reasons(folder, capsys):
    run(
        capsys,
        "build",
        folder / "experience",
        "-o",
        folder / "pairs",
        "--strategy",
        "stratified",
        "--high",
        "0.9",
        "--low",
        "0.5",
        "--across-groups",
    )
    code, out, err = run(capsys, "lint", folder / "pairs")
    assert (code, "across-groups" in out, "compare different prompts" in err) == (2, True, True)
    run(capsys, "build", folder / "experience", "-o", folder / "pairs", "--min-gap", "9")
    code, out, _ = run(capsys, "lint", folder / "pairs", "--json")
    assert (code, [finding["name"] for finding in json.loads(out)]) == (2, ["no-pairs"])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--min-gap", "-1"), 3, "--min-gap: got -1.0, expected at least 0"),
        (("--min-gap", "much"), 3, "--min-gap"),
        (("--strategy", "best"), 3, "--strategy: got 'best', expected one of all, best-worst"),
        (("--min-gap", "0.2", "--max-gap", "0.1"), 3, "--max-gap: got 0.1, expected at least min_gap, 0.2"),
        (("pairs.min_gap=-1",), 3, "config: pairs.min_gap: Input should be greater than or equal to 0"),
        (("--votes", "s3://bucket/votes.csv"), 3, "--votes: an address, but votes are read on this machine only"),
        (("--high", "much"), 3, "--high: got 'much'"),
        (("--memory", "lots"), 3, "--memory: got 'lots'"),
        (("--strategy", "teachers"), 3, "--teachers DIR"),
        (("--votes", "nowhere.csv"), 1, "no such file"),
    ],
)
def test_errors_have_the_right_exit_code(folder, capsys, words, code, message):
    found = run(capsys, "build", folder / "experience", "-o", folder / "pairs", *words)
    assert (found[0], message in found[2]) == (code, True)


def test_a_folder_without_pairs_says_how_to_make_them(folder, capsys):
    code, _, err = run(capsys, "stats", folder / "nowhere")
    assert (code, "pairwright pairs" in err) == (1, True)


def test_the_strategies_that_can_be_named_are_those_that_exist():
    assert list(STRATEGY_NAMES) == list(STRATEGIES)


def test_the_old_name_of_imported_is_accepted(folder, capsys):
    code, out, _ = run(capsys, folder / "experience", "-o", folder / "pairs", "--strategy", "given", "--json")
    assert (code, json.loads(out)["options"]["strategy"]) == (2, "imported")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--high", "0.9"], "high has no effect: only the strategy 'stratified' reads it"),
        (["--min-teachers", "2"], "min_teachers has no effect: only the strategy 'teachers' reads it"),
    ],
)
def test_an_option_without_effect_is_named(folder, tmp_path, capsys, options, line):
    code, _, err = run(capsys, folder / "experience", "-o", tmp_path / "out", *options)
    assert (code, f"note: {line}" in err) == (0, True)
    code, _, err = run(capsys, folder / "experience", "-o", tmp_path / "plain")
    assert (code, "no effect" in err) == (0, False)
