"""A recipe file: the recipes that `pairwright compare` compares, with the same budget and exams.

    baseline: best                        what the others are compared with
    budget: {updates: 80, sequences: 32}
    exams:
      greedy: {temperature: 0}
      sampled: {temperature: 1.0}
    recipes:
      best: {what: SFT on the best run of each task, config: {train: {channels: {dpo: 0, sft: 1}}}}
      pairs: {what: best against worst, config: {pairs: {strategy: best-worst}}}

A recipe changes only the configuration, or names a function that rewrites the collected runs.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from pairwright.config import Config, load_config
from pairwright.config.config_file import read_tree
from pairwright.config.problems import describe_problems
from pairwright.config.sections import Section
from pairwright.errors import ConfigError

BASE = "base"  # the row of the model before training
EPOCHS = 1_000_000
Name = Annotated[str, Field(pattern=r"^[\w.+-]{1,60}$")]  # a folder has this name
Tree = dict[str, Any]


class Budget(Section):
    """What every recipe may spend."""

    updates: Annotated[int, Field(ge=1)]
    """Updates of the weights."""
    sequences: Annotated[int, Field(ge=2)]
    """Sequences of an update; a pair is two."""


class Recipe(Section):
    """One way of training."""

    what: str
    """A line for the table."""
    data: Literal["pairs", "runs"] = "pairs"
    """What the sft channel reads: the chosen sides of the pairs, or the runs. dpo has pairs, grpo and kto have runs."""
    experience: str | None = None
    """A function (experience, folder, config) as file.py:FUNCTION that writes a table of its own into `folder`; the
    recipe then has this table in the place of the collected one."""
    train: str | None = None
    """A function (data, model, folder, config) as file.py:FUNCTION that trains in the place of ours and returns the
    folder of its model; `data` has the folders `pairs` and `experience`."""
    config: Tree = Field(default={})
    """Changes of the configuration, as in its file."""


class Recipes(Section):
    """A recipe file."""

    budget: Budget | None = None
    """null: every recipe trains as long as its own configuration says."""
    baseline: Name
    """The recipe that the others are compared with."""
    prepare: str | None = None
    """A script that makes what a seed starts from, run as `python SCRIPT FOLDER --seed N`; without it every seed has
    the model and the tasks of the configuration."""
    places: dict[str, str] = Field(default={})
    """Keys of the configuration whose files the script makes, and their names in FOLDER."""
    config: Tree = Field(default={})
    """Changes of the configuration for all recipes, and for the collection."""
    exams: dict[Name, Tree] = Field(default={"exam": {}})
    """Exams by name: changes of the section `evaluate`. The first metric of the first exam is the one that counts."""
    recipes: dict[Name, Recipe]

    @model_validator(mode="after")
    def _check_names(self) -> "Recipes":
        if self.baseline not in (*self.recipes, BASE):
            raise ValueError(f"baseline: got {self.baseline!r}, expected {BASE} or one of {', '.join(self.recipes)}")
        if BASE in self.recipes:
            raise ValueError(f"recipes: {BASE} is the model before training, choose another name")
        if not self.exams:
            raise ValueError("exams: expected at least one")
        return self


def read_recipes(path: Path) -> Recipes:
    """Read and check a recipe file."""
    try:
        return Recipes.model_validate(read_tree(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(describe_problems(error, Recipes))}") from None


def recipe_config(path: Path, recipes: Recipes, recipe: Recipe, overrides: list[tuple[str, str]]) -> Config:
    """Load the configuration file with the recipe's changes, overridden by the budget."""
    changed = [*overrides, *flatten(recipe.config)]
    config = load_config(path, overrides=changed)
    if recipes.budget is None:
        return config
    size = recipes.budget.sequences // (2 if config.train.channels.dpo else 1)
    updates = recipes.budget.updates
    # unlimited epochs, and one checkpoint at the end
    budget = {"max_steps": updates, "batch_size": size, "epochs": EPOCHS, "save_every": updates}
    return load_config(path, overrides=[*changed, *flatten({"train": budget})])


def flatten(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield a tree of changes as overrides: dotted keys, and values as YAML text.

    >>> list(flatten({"train": {"epochs": 2}, "name": "a"}))
    [('train.epochs', '2'), ('name', '"a"')]
    """
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", json.dumps(value)
