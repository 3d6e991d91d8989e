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
from pairwright.config.config_file import adjust_config, read_tree
from pairwright.config.problems import describe_problems
from pairwright.config.sections import Section
from pairwright.errors import ConfigError

BASE = "base"  # the table row of the untrained model
EPOCHS = 1_000_000
Name = Annotated[str, Field(pattern=r"^[\w.+-]{1,60}$")]  # also the name of a folder
Tree = dict[str, Any]


class Budget(Section):
    """The budget of every recipe."""

    updates: Annotated[int, Field(ge=1)]
    """Number of weight updates."""
    sequences: Annotated[int, Field(ge=2)]
    """Sequences per update; a pair has two."""


class Recipe(Section):
    """One way of training."""

    what: str
    """Description in the table, one line."""
    data: Literal["pairs", "runs"] = "pairs"
    """Data of the sft channel: the chosen sides of pairs, or the runs. dpo reads pairs, grpo and kto read runs."""
    experience: str | None = None
    """A function (experience, folder, config) as file.py:FUNCTION that writes a new table into `folder`; the recipe
    uses it instead of the collected table."""
    train: str | None = None
    """A function (data, model, folder, config) as file.py:FUNCTION that replaces our training and returns the folder of
    its model; `data` has the folders `pairs` and `experience`."""
    config: Tree = Field(default={})
    """Changes to the configuration, as nested keys."""


class Recipes(Section):
    """A recipe file."""

    budget: Budget | None = None
    """Equal budget of all recipes; null: every recipe trains as its own configuration says."""
    baseline: Name
    """The recipe that the others are compared with."""
    prepare: str | None = None
    """A script that makes the model and the tasks of a seed, run as `python SCRIPT FOLDER --seed N`; without it every
    seed uses those of the configuration."""
    places: dict[str, str] = Field(default={})
    """Configuration keys whose files the script makes: the key, and the file's name in FOLDER."""
    config: Tree = Field(default={})
    """Changes to the configuration for all recipes and for the collection."""
    exams: dict[Name, Tree] = Field(default={"exam": {}})
    """Exams by name: changes to the section `evaluate`. The first metric of the first exam decides."""
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
    try:
        return Recipes.model_validate(read_tree(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {'; '.join(describe_problems(error, Recipes))}") from None


def recipe_config(path: Path, recipes: Recipes, recipe: Recipe, overrides: list[tuple[str, str]]) -> Config:
    """Load the configuration file with the recipe's changes, overridden by the budget."""
    config = load_config(path, overrides=[*overrides, *flatten(recipe.config)])
    if recipes.budget is None:
        return config
    size = recipes.budget.sequences // (2 if config.train.channels.dpo else 1)
    updates = recipes.budget.updates
    # unlimited epochs, and one checkpoint at the end
    budget = {"max_steps": updates, "batch_size": size, "epochs": EPOCHS, "save_every": updates}
    # a pair of the budget is two sequences, so dpo compares whole runs, too
    contrast = config.train.dpo.contrast.replace("single", "all")
    return adjust_config(config, train={**budget, "dpo": {"contrast": contrast}})


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
