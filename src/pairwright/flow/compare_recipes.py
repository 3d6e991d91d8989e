"""`pairwright compare`: trains several recipes on the same experience with equal budgets, and runs the same exams.

    DIR/seed-N/start/                output of `prepare`: model and tasks of this seed
    DIR/seed-N/experience/           the runs that every recipe trains on
    DIR/seed-N/recipes/NAME/         train/, one folder for each exam, done.json with the costs
    DIR/comparison.json              the table, for the report

A recipe that is done and unchanged is not repeated. A recipe that fails does not stop the others: the table has its
error.
"""

import gc
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from pairwright.collection.run_failures import one_line
from pairwright.config import Config, load_config
from pairwright.config.config_file import adjust_config
from pairwright.config.user_code import load_function
from pairwright.errors import ConfigError, PairwrightError
from pairwright.evaluation.comparison import Metric, compare
from pairwright.evaluation.evaluation import evaluate_settings
from pairwright.evaluation.held_out_runs import holdout_scores, play_holdout
from pairwright.evaluation.paired_statistics import seed_interval
from pairwright.evaluation.scores import Scores
from pairwright.flow.example import run_preparation
from pairwright.flow.manifest import Meter
from pairwright.flow.recipes import BASE, Recipe, Recipes, flatten, recipe_config
from pairwright.flow.stages import View, collect_stage, import_stage, initial_model, pairs_stage, train_stage
from pairwright.pairs.pair_table import FILE_NAME as PAIRS
from pairwright.paths import claim_folder, find_model, write_atomic, write_json
from pairwright.records.messages import Json, content_hash

FILE_NAME = "comparison.json"
Overrides = list[tuple[str, str]]


class Comparer:
    def __init__(
        self, path: Path, recipes: Recipes, folder: Path, *, base: Path, overrides: Overrides, view: View
    ) -> None:
        self.path, self.recipes, self.folder, self.base, self.view = path, recipes, folder, base, view
        self._overrides = [*flatten(recipes.config), *overrides]

    def run(self, seeds: Sequence[int], names: Sequence[str]) -> Json:
        """Run the named recipes with every seed; writes and returns the table of all finished recipes."""
        with claim_folder(self.folder, None, work="compare"):
            for seed in seeds:
                self._run_seed(seed, names)
            table = self.table(seeds)
            write_json(self.folder / FILE_NAME, table)
        return table

    def _run_seed(self, seed: int, names: Sequence[str]) -> None:
        place = self.folder / f"seed-{seed}"
        words = self._prepare(seed, place)
        config = load_config(self.path, overrides=words)
        model = find_model(initial_model(config))
        experience = self._collect(config, place)
        for name in (BASE, *names):
            recipe = self.recipes.recipes.get(name)
            settings = config if recipe is None else recipe_config(self.path, self.recipes, recipe, words)
            folder, key = place / "recipes" / name, self._key(settings, recipe)
            known = _read_done(folder)
            if known.get("key") == key and "error" not in known:
                self.view.say(f"seed {seed}, {name}: unchanged")
                continue
            if known.get("key") not in (None, key):
                shutil.rmtree(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_json(folder / "done.json", {"key": key, "error": "interrupted"})
            self.view.say(f"seed {seed}, {name}: started")
            done = self._try(recipe, settings, model, experience, folder)
            write_json(folder / "done.json", {"key": key, **done})

    def _prepare(self, seed: int, place: Path) -> Overrides:
        """Create the model and tasks of a seed, if the file has a script for it; returns the overrides of the seed."""
        start = place / "start"
        if self.recipes.prepare is not None and not start.exists():
            self.view.say(f"seed {seed}: {self.recipes.prepare}")
            run_preparation(self.base / self.recipes.prepare, start, seed=seed, view=self.view)
        places = [(key, str((start / name).resolve())) for key, name in self.recipes.places.items()]
        return [("seed", str(seed)), *places, *self._overrides]

    def _collect(self, config: Config, place: Path) -> Path:
        """Return the experience of a seed, collected or imported once; raises ConfigError if it has other settings."""
        sections = config.model_dump(mode="json", include={"collect", "policy", "sources", "seed"})
        key, path = content_hash("experience", sections), place / "experience.json"
        known = msgspec.json.decode(path.read_bytes()) if path.exists() else {}
        if known.get("key") not in (None, key):
            raise ConfigError(
                f"{place}: its experience was made with another configuration; restore it, or give another -o"
            )
        if "seconds" not in known:
            write_json(path, {"key": key})
            meter, gather = Meter(), import_stage if config.collect.workflow is None else collect_stage
            gather(config, place, self.base, self.view)
            write_json(path, {"key": key, **meter.read()})
        return place / "experience"

    def _key(self, config: Config, recipe: Recipe | None) -> str:
        """Return the hash of everything that the result of a recipe depends on, except code."""
        exams = [self.recipes.exams, config.evaluate.model_dump(mode="json")]
        if recipe is None:
            return content_hash("base", exams, config.seed)
        settings = config.model_dump(mode="json", exclude={"name", "evaluate"})
        return content_hash("recipe", settings, recipe.data, recipe.experience, recipe.train, exams)

    def _try(self, recipe: Recipe | None, config: Config, model: Path, experience: Path, folder: Path) -> Json:
        gc.collect()  # memory of the previous recipe must not count for this one
        meter = Meter()
        try:
            result = {} if recipe is None else self._train(recipe, config, model, experience, folder)
            trained = str(result.get("model") or model)
            spent = meter.read()
            for exam, changes in self.recipes.exams.items():
                settings = adjust_config(config, evaluate=changes)
                play_holdout(settings, trained, folder / exam, resume=True, base=self.base, watch=self.view.collecting)
            return {"result": result, "training": spent, **meter.read()}
        except PairwrightError as error:
            self.view.say(f"warning: {folder.name} failed: {error}")
            return {"error": str(error)}

    def _train(self, recipe: Recipe, config: Config, model: Path, experience: Path, folder: Path) -> Json:
        if recipe.experience is not None:
            source, experience = experience, folder / "experience"
            if not experience.exists():
                with write_atomic(experience) as temporary:
                    self._call(recipe.experience, source, temporary, config)
        channels = config.train.channels
        pairs = None
        if channels.dpo or (channels.sft and recipe.data == "pairs"):
            pairs = folder / "pairs"
            if not (pairs / PAIRS).exists():
                pairs_stage(config, [experience], pairs, self.view)
        inputs = {"pairs": pairs, "experience": experience, "tokens": None, "reference": folder / "reference"}
        if recipe.train is not None:
            return {"model": str(self._call(recipe.train, inputs, model, folder / "train", config))}
        return train_stage(config, model, folder / "train", inputs, self.view)

    def _call(self, name: str, *arguments: Any) -> Any:
        function = load_function(name, group="pairwright.recipes", base=self.base)
        try:
            return function(*arguments)
        except PairwrightError:
            raise
        except Exception as error:  # it may raise anything
            raise PairwrightError(f"{name} failed: {one_line(error)}") from error

    def table(self, seeds: Sequence[int]) -> Json:
        """Return every metric of every exam by recipe and seed, with the difference to the baseline, and the costs."""
        config = load_config(self.path, overrides=self._overrides)
        metrics = [Metric(metric.name, metric.better) for metric in config.evaluate.metrics] or [Metric("reward")]
        rows = [self._row(name, seeds, metrics, config) for name in (BASE, *self.recipes.recipes)]
        return {
            "seeds": list(seeds),
            "baseline": self.recipes.baseline,
            "budget": self.recipes.budget and self.recipes.budget.model_dump(mode="json"),
            "exams": list(self.recipes.exams),
            "metrics": [metric.name for metric in metrics],
            "confidence": config.evaluate.confidence,
            "recipes": [row for row in rows if row["seeds"] or row["errors"]],
        }

    def _row(self, name: str, seeds: Sequence[int], metrics: Sequence[Metric], config: Config) -> Json:
        done = {seed: _read_done(self.folder / f"seed-{seed}" / "recipes" / name) for seed in seeds}
        ready = [seed for seed in seeds if done[seed] and "error" not in done[seed]]
        recipe = self.recipes.recipes.get(name)
        return {
            "recipe": name,
            "what": "the model before training" if recipe is None else recipe.what,
            "seeds": ready,
            "errors": {str(seed): done[seed]["error"] for seed in seeds if "error" in done[seed]},
            "cpu_minutes": _mean([done[seed]["cpu_seconds"] / 60 for seed in ready]),
            "training_cpu_minutes": _mean([done[seed]["training"]["cpu_seconds"] / 60 for seed in ready]),
            "peak_memory_bytes": max((done[seed]["peak_memory_bytes"] for seed in ready), default=None),
            "results": [
                self._result(name, exam, metric, ready, config)
                for exam in self.recipes.exams
                for metric in metrics
                if ready
            ],
        }

    def _result(self, name: str, exam: str, metric: Metric, seeds: Sequence[int], config: Config) -> Json:
        """Return one metric of one exam: by seed, its mean, and its difference to the baseline if that is done."""
        values = []
        for seed in seeds:
            scores = self._scores(name, exam, seed, config)
            values.append(_mean(scores.column(metric.name).values()))
            if values[-1] is None:
                have = ", ".join(scores.metrics)
                raise PairwrightError(f"{scores.source}: no run has {metric.name}; they have {have}")
        baseline = self.recipes.baseline
        both = [
            seed for seed in seeds if "cpu_seconds" in _read_done(self.folder / f"seed-{seed}" / "recipes" / baseline)
        ]
        difference = None
        if name != baseline and both:
            comparisons = [
                compare(
                    self._scores(baseline, exam, seed, config),
                    self._scores(name, exam, seed, config),
                    metric,
                    evaluate_settings(config.evaluate, seed=config.seed)["options"],
                ).difference
                for seed in both
            ]
            # interval over seeds, which are independent; for one seed, over its tasks
            means = [comparison.mean for comparison in comparisons]
            over_seeds = seed_interval(means, confidence=config.evaluate.confidence)
            difference = asdict(over_seeds if len(both) > 1 else comparisons[0]) | {"by_seed": means}
        return {
            "exam": exam,
            "metric": metric.name,
            "mean": _mean(values),
            "by_seed": values,
            "difference": difference,
        }

    def _scores(self, name: str, exam: str, seed: int, config: Config) -> Scores:
        return holdout_scores(config, self.folder / f"seed-{seed}" / "recipes" / name / exam)


def _read_done(folder: Path) -> Json:
    path = folder / "done.json"
    done: Json = msgspec.json.decode(path.read_bytes()) if path.is_file() else {}
    return done


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
