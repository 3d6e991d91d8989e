"""A run: rounds of collect, pairs, tokens and train; then evaluation, gate, report and deployment.

    RUN/config.yaml  manifest.json  evaluation.json  report.html
    RUN/round-1/     experience/  collection/  pairs/  tokens/  train/
    RUN/round-2/     ...

A stage is done once: its key is a hash of its part of the configuration and of the keys of its inputs. Repeating the
command resumes where it stopped, and repeats only stages whose key has changed.
"""

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from pairwright.config import Config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.flow import stages
from pairwright.flow.manifest import Manifest, Meter, StageRecord
from pairwright.flow.stages import View
from pairwright.paths import (
    ModelFolderError,
    claim_folder,
    find_model,
    is_address,
    is_hub_id,
    lock_folder,
    place,
    stamp_of,
)
from pairwright.records.messages import Json, content_hash


class GateClosed(PairwrightError):
    """The evaluation did not show that the new model is better; nothing is deployed."""

    exit_code = 2


@dataclass(frozen=True)
class PlannedStage:
    """A stage to run. `folders` are its outputs, which are removed when it has to be repeated with another key."""

    name: str
    key: str
    folders: tuple[Path, ...]
    do: Callable[[], Json]
    is_precious: bool = False
    check: Callable[[], None] = lambda: None
    """Raises the errors that `do` would raise at its start, without side effects."""
    inputs: dict[str, str] = field(default_factory=dict)
    """User files (by hash) and settings that are not part of the key; `do` warns if one of them has changed."""


@dataclass
class Plan:
    """The plan of a run: stages in order, each with its state, and the first refusal.

    A state is done, new, again (an input or setting has changed, or its folder is missing), resume (it was
    interrupted), retry (it failed), refused, or not reached.
    """

    steps: list[tuple[str, str]] = field(default_factory=list)
    refusal: PairwrightError | None = None


class Flow:
    def __init__(self, config: Config, folder: Path, *, base: Path | None = None, view: View | None = None) -> None:
        self.config, self.folder, self.base = config, folder, base
        self.view = View() if view is None else view
        self.manifest = Manifest(folder / "manifest.json", seed=config.seed)
        self.initial = self._initial_model()
        self._train_key = ""  # key of the last training stage so far
        self._num_begun = 0  # stages that were begun or skipped

    def run(self, *, resolved: Json | None = None) -> Json:
        """Run every stage that is not done yet. Returns the last results; raises GateClosed if the gate fails.
        `resolved` is the configuration in the form for a file, which is written to the folder."""
        with claim_folder(self.folder, None, work="run"):
            # another run may have changed it since this object was created
            self.manifest = Manifest(self.folder / "manifest.json", seed=self.config.seed)
            if resolved is not None:
                write_config(self.folder, resolved)
            return self._run()

    def _run(self) -> Json:
        from pairwright.report import write_report

        if self.config.backend.name == "local" and is_hub_id(self.initial):
            self.initial = find_model(self.initial)
        result = self._walk(self.do)
        if "evaluation" in result:
            last = self.folder / f"round-{self.config.loop.rounds}"
            for name in ("evaluation.json", "evaluation.tasks.csv"):
                if (last / name).exists():
                    shutil.copyfile(last / name, self.folder / name)
        write_report(self.folder, self.folder / "report.html")
        self.view.say(f"report: {self.folder / 'report.html'}")
        self._check_gate(result)
        if self._deploys:
            result["deployment"] = self.do(self.deployment())
        return result

    def plan(self) -> Plan:
        """Return what `run` would do with each stage, by the same keys. Has no side effects."""
        plan = Plan()
        if self.config.backend.name == "local" and is_hub_id(self.initial):
            find_model(self.initial, download=False)  # raises: it is not in the cache
        try:
            result = self._walk(lambda stage: self._predict(stage, plan))
            if plan.refusal is None:
                self._check_gate(result)
        except PairwrightError as error:  # an error that `run` would raise between two stages
            plan.refusal = plan.refusal or error
            if not plan.steps:
                raise
        if self._deploys:
            self._predict(self.deployment(), plan)
        return plan

    def _walk(self, do: Callable[[PlannedStage], Json]) -> Json:
        """Pass the stages of all rounds to `do`, in order; its results decide how the run continues."""
        config = self.config
        # `upstream` is the key of the current model: the initial one, then that of the last training
        model, upstream = self.initial, _model_key(self.initial)
        # `first` is the key of the initial model; `experiences` has the table of each round so far, with its key
        first, experiences = upstream, []
        result: Json = {}
        for number in range(1, config.loop.rounds + 1):
            place = self.folder / f"round-{number}"
            gathering = self.gather(number, place, model, upstream)
            do(gathering)
            key = gathering.key
            if config.score.scorers:
                scoring = self.scoring(number, place, key)
                do(scoring)
                key = scoring.key
            experiences.append((place / "experience", key))
            for stage in self.derive_stages(number, place, model, experiences, upstream):
                result = do(stage)
                upstream = self._train_key = stage.key  # of the last one, which is training
            is_last = number == config.loop.rounds
            if not result.get("model"):
                if not is_last:
                    raise PairwrightError(f"round {number}: the backend left no model on this machine: rounds need one")
                break
            model = Path(result["model"])
            if config.loop.evaluate == "each" or (is_last and config.loop.evaluate == "last"):
                result = {**result, "evaluation": do(self.proof(number, place, model, first))}
        return result

    def _predict(self, stage: PlannedStage, plan: Plan) -> Json:
        """Add the state of a stage to the plan. Returns its result if it is known, else the part that is certain."""
        known = self.manifest.stages.get(stage.name)
        leaves_model = stage.name.endswith("/train") and self.config.backend.is_followed
        # the path of the model that training will write: keys of later stages need it
        expected: Json = {"model": str(stage.folders[0] / "model")} if leaves_model else {}
        state = "done" if self._is_done(stage) else "new"
        if state != "done" and known is not None:
            # done in the manifest but not by `_is_done`: its key has changed, or an output folder is missing
            is_other = known.key != stage.key or known.state == "done"
            state = "again" if is_other else "retry" if known.state == "failed" else "resume"
        if plan.refusal is not None:
            state = "not reached"
        elif state != "done":
            try:
                self._check_precious(stage)
                stage.check()
            except PairwrightError as error:
                plan.refusal, state = error, "refused"
        plan.steps.append((stage.name, state))
        return known.result if state == "done" and known is not None else expected

    def do(self, stage: PlannedStage) -> Json:
        """Run a stage unless it is done, and record it in the manifest."""
        self._num_begun += 1
        self.view.begin(stage.name, self._num_begun, self._num_stages)
        if self._is_done(stage):
            known = self.manifest.stages[stage.name]
            self.view.say(f"{stage.name}: unchanged")
            if changed := [name for name, key in stage.inputs.items() if known.inputs.get(name, key) != key]:
                self.view.say(
                    f"warning: {', '.join(changed)} changed since {stage.name}; its runs are kept. For new runs "
                    f"choose another folder (-o), or remove {self.folder}"
                )
            return known.result
        if self.manifest.has_other(stage.name, stage.key):
            self._check_precious(stage)
            for path in stage.folders:  # outputs with other settings
                if path.is_dir():
                    with lock_folder(path, work=stage.name):  # another command may be using it
                        shutil.rmtree(path)
                else:
                    path.unlink(missing_ok=True)
        record = StageRecord(key=stage.key, inputs=stage.inputs)
        # written as running first: after a crash the stage is known to be unfinished and is resumed
        self.manifest.write(stage.name, record)
        self.view.say(f"{stage.name}: started")
        meter = Meter()
        try:
            record.result = stage.do()
        except PairwrightError as error:
            record.state, record.error = "failed", str(error)
            self.manifest.write(stage.name, record)
            raise
        record = msgspec.structs.replace(record, state="done", **meter.read())
        self.manifest.write(stage.name, record)
        counts = ", ".join(f"{name} {_format_value(value)}" for name, value in list(record.result.items())[:5])
        self.view.say(f"{stage.name}: done in {record.seconds:.0f} s ({counts})")
        return record.result

    def gather(self, number: int, place: Path, model: Path, upstream: str) -> PlannedStage:
        """Return the stage that provides the experience of a round: collected by a workflow, or imported from files."""
        if self._gathering == "import":
            key = content_hash("import", self.config.sources.model_dump(mode="json"), self._files())
            config, gather, inputs = self.config, stages.import_stage, dict[str, str]()
        else:
            config, gather = self.policy_config(model, number), stages.collect_stage
            # limits of concurrency and time do not affect sampling, so they are not part of the key
            settings = config.collect.model_dump(mode="json", exclude={"max_concurrency", "task_timeout_seconds"})
            # the form in which earlier versions hashed the judge: existing collections keep their keys
            judge = config.collect.scorer.judge.as_policy().model_dump(mode="json")
            settings["scorer"]["judge"] = {**judge, "retry_seconds": 0.5, "max_retry_seconds": 60.0}
            policy = config.policy.model_dump(
                mode="json", include={"temperature", "top_p", "max_tokens", "num_candidates", "stop"}
            )
            key = content_hash("collect", settings, policy, config.seed, upstream)
            inputs = self._user_files(config.collect.workflow, config.collect.dataset)
            inputs["policy.tools_as_text"] = config.policy.tools_as_text
        return PlannedStage(
            f"round-{number}/{self._gathering}",
            key,
            (place / "experience",),
            lambda: gather(config, place, self.base, self.view),
            is_precious=True,
            check=lambda: stages.check_collection(config, place) if gather is stages.collect_stage else None,
            inputs=inputs,
        )

    def scoring(self, number: int, place: Path, upstream: str) -> PlannedStage:
        # no folders: answers of judges are always kept
        config, folder = self.config, place / "experience"
        settings = config.score.model_dump(mode="json", include={"scorers", "judge"})
        names = [scorer.partition("=")[2] or scorer for scorer in config.score.scorers]
        code = [key for name in names for key in self._user_files(name).values()]
        return PlannedStage(
            f"round-{number}/score",
            content_hash("score", settings, code, upstream),
            (),
            lambda: stages.score_stage(config, folder, self.base, self.view),
        )

    def derive_stages(
        self, number: int, place: Path, model: Path, experiences: list[tuple[Path, str]], upstream: str
    ) -> list[PlannedStage]:
        config, name = self._round_config(), f"round-{number}"
        tables, table_keys = [path for path, _ in experiences], [key for _, key in experiences]
        # keys form a chain: experience -> pairs -> tokens -> train, so a change repeats everything after it
        decisions = _decisions_key(tables, config.pairs.votes, config.pairs.score)
        pairs_key = content_hash("pairs", config.pairs.content(), config.seed, table_keys, *decisions)
        settings = config.train.model_dump(mode="json", exclude=None if config.train.score else {"score"})
        encoding = [config.tokens.content(), config.tokens.tokenizer, config.tokens.experience]
        if config.tokens.chat_template is not None:
            from pairwright.tokens.tokenizer import choose_template

            folder = config.tokens.tokenizer or self.initial
            encoding.append(choose_template(str(folder), config.tokens.chat_template))
        # the initial model identifies the tokenizer, which training does not change
        tokens_key = content_hash("tokens", pairs_key, encoding, _model_key(self.initial))
        # scores that training reads may change without changes of pairs and tokens
        scores = _decisions_key(tables, None, config.train.score) if config.train.score else []
        train_key = content_hash(
            "train", tokens_key, settings, config.backend.model_dump(mode="json"), upstream, *scores
        )
        inputs = {
            "pairs": place / "pairs",
            "experience": tables[-1],
            "tokens": place / "tokens",
            # outside of the stage's folder, so that trainings with other settings can reuse it
            "reference": place / "reference",
        }
        return [
            PlannedStage(
                f"{name}/pairs",
                pairs_key,
                (place / "pairs",),
                lambda: stages.pairs_stage(config, tables, place / "pairs", self.view),
            ),
            PlannedStage(
                f"{name}/tokens",
                tokens_key,
                (place / "tokens",),
                lambda: stages.tokens_stage(config, place / "pairs", model, place / "tokens", self.view),
            ),
            PlannedStage(
                f"{name}/train",
                train_key,
                (place / "train",),
                lambda: stages.train_stage(config, model, place / "train", inputs, self.view),
            ),
        ]

    def proof(self, number: int, place: Path, model: Path, first: str) -> PlannedStage:
        config = self.config
        settings = config.evaluate.model_dump(mode="json")
        key = content_hash("evaluate", settings, config.seed, first, self._train_key)
        folders = (place / "evaluation", place / "evaluation.json")
        return PlannedStage(
            f"round-{number}/evaluate",
            key,
            folders,
            lambda: stages.evaluate_stage(config, place, self.initial, model, self.base, self.view),
            inputs=self._user_files(
                config.evaluate.workflow or config.collect.workflow, config.evaluate.dataset or config.collect.dataset
            ),
        )

    def deployment(self) -> PlannedStage:
        config, folder = self.config, self.folder / f"round-{self.config.loop.rounds}" / "train"
        return PlannedStage("deploy", self._train_key, (), lambda: stages.deploy_stage(config, folder, self.view))

    def policy_config(self, model: Path, number: int) -> Config:
        """Return the configuration with the previous round's model as policy; the first round keeps an endpoint."""
        policy = self.config.policy
        if number > 1 or policy.base_url is None:
            policy = policy.model_copy(update={"model": str(model), "base_url": None})
        # the round is the batch of its experience, so that ids of different rounds differ
        collect = self.config.collect.model_copy(update={"batch": number})
        return self.config.model_copy(update={"policy": policy, "collect": collect})

    @property
    def _deploys(self) -> bool:
        backend = self.config.backend
        is_requested = backend.name == "nemo-customizer" and backend.nemo_customizer.deploy_on_completion
        return self.config.loop.deploy or is_requested

    @property
    def _num_stages(self) -> int:
        loop = self.config.loop
        num_exams = {"never": 0, "last": 1, "each": loop.rounds}[loop.evaluate]
        return (4 + bool(self.config.score.scorers)) * loop.rounds + num_exams + self._deploys

    @property
    def _gathering(self) -> str:
        return "import" if self.config.collect.workflow is None else "collect"

    def _initial_model(self) -> Path:
        config = self.config
        name = stages.initial_model(config)
        if is_address(name):
            raise ConfigError(f"model: {place(name)} is an address: copy the folder of the model here, and name that")
        path = stages.find_beside(self.base, name)
        path = path if path.exists() else Path(name)
        if config.backend.name == "local" and is_hub_id(path):  # other backends resolve Hub ids themselves
            with contextlib.suppress(ModelFolderError):  # downloaded only when the run begins
                path = find_model(name, download=False)
        return path

    def _round_config(self) -> Config:
        """Return the configuration of a round. The reference model is the round's start, or the initial model if
        configured; a tokenizer path is resolved from the configuration's folder, like the model."""
        config = self.config
        name = config.tokens.tokenizer
        if name is not None and (path := stages.find_beside(self.base, name)).exists():
            tokens = config.tokens.model_copy(update={"tokenizer": str(path)})
            config = config.model_copy(update={"tokens": tokens})
        if config.loop.reference == "initial" and config.train.reference == "initial" and config.loop.rounds > 1:
            train = config.train.model_copy(update={"reference": str(self.initial)})
            return config.model_copy(update={"train": train})
        return config

    def _is_done(self, stage: PlannedStage) -> bool:
        return self.manifest.is_done(stage.name, stage.key) and all(path.exists() for path in stage.folders)

    def _check_gate(self, result: Json) -> None:
        verdict = result.get("evaluation", {})
        if not verdict.get("passed", True):
            raise GateClosed(
                f"the gate stays closed: {verdict['verdict']}; nothing is deployed. See {self.folder}/report.html"
            )

    def _check_precious(self, stage: PlannedStage) -> None:
        """Raise if a stage would replace a collection made with other settings, which is never removed."""
        has_other = self.manifest.has_other(stage.name, stage.key)
        if has_other and stage.is_precious and any(path.exists() for path in stage.folders):
            raise ConfigError(
                f"{stage.name}: {stage.folders[0]} was made with another configuration and is kept: restore the "
                "configuration, choose another name, or remove the folder yourself"
            )

    def _files(self) -> list[Any]:
        """Return names, sizes and modification times of the imported files, and the text of the compaction prompt."""
        from pairwright.sources.files import expand_paths
        from pairwright.sources.format import read_compaction_prompt

        # The text, since a touched file with the same content must not cause another import.
        prompt = read_compaction_prompt(self.config.sources.compaction_prompt, self.base)
        return [[str(path), *stamp_of(path)] for path in expand_paths(stages.source_paths(self.config, self.base))] + (
            [prompt] if prompt else []
        )

    def _user_files(self, *names: str | None) -> dict[str, str]:
        """Return the files that workflows (file.py:name), rubrics and datasets refer to, with their hashes."""
        found = {}
        for name in filter(None, names):
            for part in (name, name.rpartition(":")[0]):
                if part and (path := stages.find_beside(self.base, part)).is_file():
                    found[part] = content_hash(path.read_bytes().hex())
        return found


def write_config(folder: Path, config: Json) -> None:
    """Write the configuration to the run folder; values from the environment stay references."""
    from ruamel.yaml import YAML

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "config.yaml", "w", encoding="utf-8") as file:
        YAML().dump(config, file)


def _model_key(model: Path) -> str:
    from pairwright.training.model.load_model import model_hash

    if not (model / "config.json").exists():
        raise ConfigError(f"model: {model} is not the folder of a model (no config.json)")
    return model_hash(model)


def _decisions_key(tables: list[Path], votes: str | Path | None, score: str | None = None) -> list[str]:
    """Return the hashes of the files with decisions and scores of these tables; empty if there are none."""
    from pairwright.pairs.decisions.exclusions import FILE_NAME

    files = [table / FILE_NAME for table in tables] + ([] if votes is None else [Path(votes)])
    if score is not None:
        name = score.partition(".")[0]
        files += [table / "scores" / f"{name}{end}" for table in tables for end in (".jsonl", ".calibration.json")]
    return [content_hash(file.read_bytes().hex()) for file in files if file.is_file()]


def _format_value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
