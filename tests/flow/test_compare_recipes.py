"""`pairwright compare`: the same experience, equal budgets, one exam, a table with paired intervals."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flow.test_flow import written
from pairwright import Table
from pairwright.cli.main import app
from pairwright.config import load_config
from pairwright.errors import ConfigError
from pairwright.evaluation.paired_statistics import seed_interval
from pairwright.flow.recipes import read_recipes, recipe_config
from training.made_runs import make_model

EXAMPLES = Path(__file__).parents[2] / "examples"
HOOK = """
import pairwright as pw

def best_half(experience, folder, config):
    rows = list(pw.Table(experience).records())
    with pw.Table(folder) as table:
        table.append([row for row in rows if row.eid.task != 0])

def broken(experience, folder, config):
    raise RuntimeError("no such luck")
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def write_recipes(folder: Path, **recipes) -> Path:
    path = folder / "recipes.yaml"
    tree = {
        "budget": {"updates": 2, "sequences": 4},
        "baseline": "sft",
        "exams": {"greedy": {"temperature": 0.0}, "sampled": {"temperature": 1.0}},
        "recipes": {
            "sft": {"what": "best answers", "config": {"train": {"channels": {"dpo": 0.0, "sft": 1.0}}}},
            "pairs": {"what": "best against worst"},
            **recipes,
        },
    }
    path.write_text(json.dumps(tree))
    return path


def compare(config: Path, recipes: Path, folder: Path, *words: str):
    return CliRunner().invoke(
        app, ["compare", str(config), "--recipes", str(recipes), "-o", str(folder), "--json", *words]
    )


def test_recipes_share_the_experience_and_are_not_trained_twice(model, tmp_path):
    config, folder = written(tmp_path, model), tmp_path / "out"
    done = compare(config, write_recipes(tmp_path), folder, "--seeds", "2")
    assert done.exit_code == 0, done.output
    table = json.loads(done.stdout)
    assert [row["recipe"] for row in table["recipes"]] == ["base", "sft", "pairs"]
    assert table["seeds"] == [0, 1]
    for row in table["recipes"]:
        assert row["cpu_minutes"] > 0
        assert row["peak_memory_bytes"] > 2**20
        for result in row["results"]:
            assert len(result["by_seed"]) == 2
            assert result["mean"] == pytest.approx(sum(result["by_seed"]) / 2)
    pairs, sft = table["recipes"][2]["results"], table["recipes"][1]["results"]
    assert [(result["exam"], result["metric"]) for result in pairs] == [("greedy", "reward"), ("sampled", "reward")]
    expected = [new - old for new, old in zip(pairs[0]["by_seed"], sft[0]["by_seed"], strict=True)]
    assert pairs[0]["difference"]["by_seed"] == pytest.approx(expected)
    assert pairs[0]["difference"]["low"] == pytest.approx(seed_interval(expected, confidence=0.95).low)
    assert sft[0]["difference"] is None
    for name in ("sft", "pairs"):  # equal budgets: two updates of four sequences
        status = json.loads((folder / "seed-0/recipes" / name / "train/train.json").read_text())
        assert status["step"] == 2
    page = (folder / "report.html").read_text()
    assert 'id="recipes"' in page
    assert "best against worst" in page
    assert "2 updates of 4 sequences" in page

    written_at = (folder / "seed-1/recipes/pairs/train/train.json").stat().st_mtime_ns
    again = compare(config, write_recipes(tmp_path), folder, "--seeds", "2")
    assert json.loads(again.stdout) == table
    assert again.stderr.count("unchanged") == 6
    assert (folder / "seed-1/recipes/pairs/train/train.json").stat().st_mtime_ns == written_at


def test_what_changed_is_trained_again_and_other_experience_is_refused(model, tmp_path):
    folder = tmp_path / "out"
    compare(written(tmp_path, model), write_recipes(tmp_path), folder)
    changed = {"what": "best against worst", "config": {"train": {"learning_rate": 1e-4}}}
    again = compare(written(tmp_path, model), write_recipes(tmp_path, pairs=changed), folder)
    assert [line for line in again.stderr.splitlines() if line.endswith(("unchanged", "started"))] == [
        "seed 0, base: unchanged", "seed 0, sft: unchanged", "seed 0, pairs: started",
    ]  # fmt: skip
    other = compare(written(tmp_path, model, collect__num_tasks=9), write_recipes(tmp_path), folder)
    assert isinstance(other.exception, ConfigError)
    assert "made with another configuration" in str(other.exception)


def test_a_recipe_may_rewrite_the_runs_and_one_that_fails_stops_no_other(model, tmp_path):
    (tmp_path / "hooks.py").write_text(HOOK)
    runs = {"train": {"channels": {"dpo": 0.0, "sft": 1.0}}}
    recipes = write_recipes(
        tmp_path,
        broken={"what": "fails", "experience": "hooks.py:broken"},
        half={"what": "fewer runs", "data": "runs", "experience": "hooks.py:best_half", "config": runs},
    )
    done = compare(written(tmp_path, model), recipes, tmp_path / "out", "--only", "broken", "--only", "half")
    assert "broken (seed 0): hooks.py:broken failed: RuntimeError: no such luck" in str(done.exception)
    rows = {row["recipe"]: row for row in json.loads((tmp_path / "out/comparison.json").read_text())["recipes"]}
    assert set(rows) == {"base", "broken", "half"}
    assert rows["broken"]["results"] == []
    assert rows["half"]["seeds"] == [0]
    assert rows["half"]["results"][0]["difference"] is None  # the baseline was not run
    own, all_of_them = (
        Table(tmp_path / "out/seed-0" / name).count() for name in ("recipes/half/experience", "experience")
    )
    assert 0 < own < all_of_them


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"baseline": "best"}, "baseline: got 'best', expected base or one of sft, pairs"),
        ({"budget": {"updates": 0, "sequences": 4}}, "budget.updates"),
        ({"exam": {}}, "exam"),
    ],
)
def test_a_recipe_file_that_is_wrong_is_refused(changes, problem, tmp_path):
    path = write_recipes(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ConfigError, match=problem):
        read_recipes(path)


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.glob("*/recipes*.yaml")), ids=lambda path: f"{path.parent.name}/{path.name}"
)
def test_every_recipe_of_an_example_loads_with_the_same_budget(path):
    recipes = read_recipes(path)
    assert len(recipes.recipes) > 1
    for recipe in recipes.recipes.values():
        config = recipe_config(path.parent / "config.yaml", recipes, recipe, [])
        assert config.train.dpo.contrast != "single", "a pair is two sequences of the budget"
        num_sequences = config.train.batch_size * (2 if config.train.channels.dpo else 1)
        if recipes.budget is not None:
            assert (config.train.max_steps, num_sequences) == (recipes.budget.updates, recipes.budget.sequences)


def test_without_a_budget_a_recipe_trains_as_its_template_does():
    path = EXAMPLES / "stockroom" / "recipes-templates.yaml"
    recipes = read_recipes(path)
    for name, template in (("tools", "tools"), ("tools", "openai-sdk"), ("chat", "chat")):
        config = recipe_config(path.parent / "bare.yaml", recipes, recipes.recipes[name], [("train.threads", "null")])
        own = load_config(EXAMPLES / "templates" / template / "config.yaml")
        assert (config.pairs, config.train) == (own.pairs, own.train)
        assert (config.tokens.train_turns, config.tokens.credit) == (own.tokens.train_turns, own.tokens.credit)
