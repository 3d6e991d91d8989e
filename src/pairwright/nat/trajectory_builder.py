"""`pairwright_traj_builder`: converts the TTC steps of NAT's evaluation with our importer and funnel.

    evaluation ─► RUN/traces/workflow_output.json ─► RUN/experience ─► RUN/pairs (funnel.json) ─► TrajectoryCollection

RUN is `<output_dir>/<run id>`, a run folder like any other: `pairwright explain`, `report` and `train` read it.
Nothing is dropped silently: unreadable steps are in RUN/experience/quarantine.jsonl, candidates without a pair are
counted by reason, and both are in the metrics and in `dpo_trajectory_builder_<run>.jsonl`.
"""

import asyncio
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import numpy as np
from nat.data_models.config import Config as NatConfig
from nat.data_models.evaluate_runtime import EvaluationRunOutput
from nat.data_models.finetuning import FinetuneConfig, Trajectory, TrajectoryCollection
from nat.data_models.intermediate_step import IntermediateStep, IntermediateStepCategory, IntermediateStepType
from nat.finetuning.interfaces.trajectory_builder import TrajectoryBuilder

from pairwright.collection.nat_files import now
from pairwright.config import PairsConfig
from pairwright.nat.nat_options import PairwrightTrajectoryBuilderConfig
from pairwright.nat.nat_trajectories import (
    CandidateStep,
    PreferencePair,
    build_trajectory,
    drops_of,
    from_prompt,
    to_prompt,
    to_response,
)
from pairwright.pairs.build import build_pairs
from pairwright.pairs.candidates.candidates import reward_gaps
from pairwright.pairs.container import Pairs
from pairwright.pairs.options import pair_options
from pairwright.paths import append_synced, write_bytes
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json, Message
from pairwright.sources.format import Options
from pairwright.store.importing import import_files
from pairwright.store.table import Table

logger = logging.getLogger(__name__)

# NAT's default of finetuning.output_dir, for a builder that was not initialized with one.
DEFAULT_DIR = Path("./.tmp/nat/finetuning")
TRACES = Path("traces") / "workflow_output.json"
# Counts in the metrics, as in NAT's builder
_TOTALS = ("total_examples", "total_turns", "total_candidates", "total_pairs", "total_trajectories")
_SKIPPED = ("skipped_single_candidate", "skipped_score_diff")
Candidates = dict[str, list[CandidateStep]]


def check_name(run_id: str) -> str:
    """Return a run id that is a plain file name; raises ValueError for one that would escape its folder."""
    if not run_id or run_id in (".", "..") or Path(run_id).name != run_id:
        raise ValueError(f"run id {run_id!r}: expected a plain file name")
    return run_id


def output_dir(own: Path | None, run_config: FinetuneConfig | None) -> Path:
    """Return the folder of runs and jobs: that of a component, or `pairwright` in finetuning.output_dir."""
    return own or Path(DEFAULT_DIR if run_config is None else run_config.output_dir) / "pairwright"


class PairwrightTrajectoryBuilder(TrajectoryBuilder):  # type: ignore[misc]
    """Builds DPO trajectories from an evaluation of the workflow."""

    def __init__(self, trajectory_builder_config: PairwrightTrajectoryBuilderConfig) -> None:
        super().__init__(trajectory_builder_config=trajectory_builder_config)
        self.config = trajectory_builder_config
        self.run_config: FinetuneConfig | None = None
        self.evaluation_runs: dict[str, asyncio.Task[EvaluationRunOutput]] = {}
        self._metrics: dict[str, Any] = {}
        self.hint: str | None = None  # why the last run has no pairs
        self._folder: Path | None = None  # of the run that is being finalized

    async def start_run(self, run_id: str, meta: Json | None = None) -> None:
        """Start an evaluation. Raises ValueError if one of this id is in progress."""
        if run_id in self.evaluation_runs:
            raise ValueError(f"Run {run_id} is already in progress.")
        check_name(run_id)
        logger.info("run %s: evaluation started, candidates are the TTC steps %r", run_id, self.config.ttc_step_name)
        task = asyncio.create_task(self.run_eval(), name=f"pairwright-eval-{run_id}")
        task.add_done_callback(lambda done: _log_end(run_id, done))
        self.evaluation_runs[run_id] = task

    async def run_eval(self) -> EvaluationRunOutput:
        """Run NAT's evaluation on the configuration without the sections of finetuning.

        NAT 1.9 prints and dumps the configuration when an evaluation starts. The command line sets
        `finetuning.run_configuration`, which contains the configuration itself, so that dumping it raises a
        RecursionError; the adapter's section also contains tokens.
        """
        whole: FinetuneConfig = self.run_config
        run = whole.run_configuration
        if not isinstance(run.config_file, NatConfig):
            return await super().run_eval()
        bare = {"finetuning": FinetuneConfig(), "trainers": {}, "trainer_adapters": {}, "trajectory_builders": {}}
        config = run.config_file.model_copy(update=bare)
        self.run_config = whole.model_copy(update={"run_configuration": run.model_copy(update={"config_file": config})})
        try:
            return await super().run_eval()
        finally:
            self.run_config = whole

    async def finalize(self, run_id: str, meta: Json | None = None) -> TrajectoryCollection:
        """Wait for an evaluation, and group its trajectories by example. Raises ValueError if none was started."""
        if run_id not in self.evaluation_runs:
            raise ValueError(f"No evaluation run found for run_id: {run_id}")
        try:
            result = await self.evaluation_runs[run_id]
            # import and funnel are CPU-bound: keep them off the event loop
            return await asyncio.to_thread(self._build, run_id, result)
        finally:
            # also after a failure, so that the run can be started again
            self.evaluation_runs.pop(run_id, None)

    def log_progress(self, run_id: str, metrics: Json, output_dir: str | None = None) -> None:
        """Append a line to `dpo_trajectory_builder_<run_id>.jsonl`."""
        default = DEFAULT_DIR / "dpo_trajectory_builder" if self.run_config is None else self.run_config.output_dir
        folder = Path(output_dir or default)
        folder.mkdir(parents=True, exist_ok=True)
        names = ("ttc_step_name", "exhaustive_pairs", "min_score_diff", "max_pairs_per_turn")
        entry = {
            "timestamp": now(),
            "run_id": run_id,
            "config": {name: getattr(self.config, name) for name in names},
            **self._metrics,
            **metrics,
        }
        line = msgspec.json.encode(entry, enc_hook=str) + b"\n"
        append_synced(folder / f"dpo_trajectory_builder_{check_name(run_id)}.jsonl", line)

    def _build(self, run_id: str, result: EvaluationRunOutput) -> TrajectoryCollection:
        self._metrics = {"run_id": run_id, **dict.fromkeys((*_TOTALS, *_SKIPPED), 0)}
        self._folder = output_dir(self.config.output_dir, self.run_config) / check_name(run_id)
        # remove the folder of an interrupted run with this id, whose table would be appended to
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            candidates = self._collect_candidates(result)
            self._metrics["total_turns"] = len(candidates)
            pairs = self._generate_preference_pairs(candidates) if candidates else []
            self._metrics["total_pairs"] = len(pairs)
            trajectories = self._build_trajectories(pairs)
            self._metrics["total_trajectories"] = len(trajectories)
            groups = self._group_by_example(trajectories)
            self._metrics["total_examples"] = len(groups)
        finally:
            folder, self._folder = self._folder, None
        self._metrics["folder"] = str(folder)
        if not groups:
            self.hint = self._metrics.get("hint") or _explain_no_candidates(result, self.config.ttc_step_name)
            self._metrics["hint"] = self.hint
            logger.warning("run %s: no pairs: %s; see %s", run_id, self.hint, folder)
        self.log_progress(run_id, {})
        counts = ", ".join(f"{self._metrics[name]} {name.removeprefix('total_')}" for name in _TOTALS)
        logger.info("run %s: %s; dropped: %s", run_id, counts, self._metrics.get("dropped") or "nothing")
        return TrajectoryCollection(trajectories=groups, run_id=run_id)

    def _is_target_step(self, step: IntermediateStep) -> bool:
        is_end = (step.event_category, step.event_type) == (IntermediateStepCategory.TTC, IntermediateStepType.TTC_END)
        return bool(is_end and step.payload.name == self.config.ttc_step_name)

    def _collect_candidates(self, eval_result: EvaluationRunOutput) -> Candidates:
        items = list(eval_result.eval_input.eval_input_items)
        used = [item for item in items if any(map(self._is_target_step, item.trajectory))]
        self._count("examples_without_candidates", len(items) - len(used))
        if not used:
            return {}
        with self._workspace() as folder:
            traces = folder / TRACES
            content = [
                {
                    "id": item.id if isinstance(item.id, int | str) else str(item.id),
                    "question": item.input_obj,
                    "intermediate_steps": [step.model_dump(mode="json") for step in item.trajectory],
                }
                for item in used
            ]
            # enc_hook: arbitrary objects of a workflow in a step are stored as text
            write_bytes(traces, msgspec.json.encode(content, enc_hook=str))
            table = Table(folder / "experience")
            summary = import_files(
                [str(traces)],
                table,
                format_name="nat",
                options=Options(step_name=self.config.ttc_step_name),
                redact=self.config.redact,
                num_workers=1,
            )
            self._count("quarantined", summary.total("quarantined"))
            for reason, number in summary.reasons.items():
                logger.warning("%d steps cannot be read: %s; see %s", number, reason, folder / "experience")
            turns: Candidates = defaultdict(list)
            for experience in table.records():
                candidate = _candidate(experience)
                if candidate is not None:
                    turns[f"{candidate.example_id}::{candidate.turn_id}"].append(candidate)
                    self._count("total_candidates", 1)
            self._count("skipped_without_turn_or_score", len(table) - sum(map(len, turns.values())))
        return dict(turns)

    def _generate_preference_pairs(self, candidates_by_turn: Candidates) -> list[PreferencePair]:
        """Build pairs with our funnel; pairs of a turn are in NAT's order, largest difference first."""
        listed = [candidate for turn in candidates_by_turn.values() for candidate in turn]
        experiences = [candidate.experience or _experience(candidate, candidates_by_turn) for candidate in listed]
        by_uid = {record.eid.uid: candidate for record, candidate in zip(experiences, listed, strict=True)}
        with self._workspace() as folder:
            table = Table(folder / "experience")
            # The imported table includes unscored candidates, which the funnel counts. If a candidate was left out (it
            # has no turn) or created by a subclass, the compared candidates get a separate table.
            is_whole = len(table.filter("reward IS NOT NULL")) == len(listed)
            if not is_whole or any(candidate.experience is None for candidate in listed):
                table = Table(folder / "candidates")
                table.append(experiences)
            config = self.config.pair_config()
            summary = build_pairs([table], folder / "pairs", pair_options(config))
            self._metrics |= {"dropped": dict(drops_of(summary)), "hint": summary["hint"]}
            self._count_skipped(candidates_by_turn, config.pairs)
            pairs = [_preference(pair, by_uid, candidates_by_turn) for pair in Pairs(folder / "pairs")]
        turns = {key: number for number, key in enumerate(candidates_by_turn)}
        places = {uid: number for number, uid in enumerate(by_uid)}

        def order(one: PreferencePair) -> tuple[float, ...]:
            # Equal differences: better chosen candidate first, then better rejected candidate.
            assert one.pair is not None
            chosen, rejected = -one.chosen_score, -one.rejected_score
            sides = (chosen, places[one.pair.chosen_eid.uid], rejected, places[one.pair.rejected_eid.uid])
            return (turns[f"{one.example_id}::{one.turn_id}"], -one.score_diff, *sides)

        return sorted(pairs, key=order)

    def _build_trajectories(self, pairs: list[PreferencePair]) -> list[Trajectory]:
        by_difference = self.config.reward_from_score_diff
        return [build_trajectory(pair, reward_from_score_diff=by_difference) for pair in pairs]

    def _group_by_example(self, trajectories: list[Trajectory]) -> list[list[Trajectory]]:
        groups: dict[str, list[Trajectory]] = defaultdict(list)
        for trajectory in trajectories:
            groups[(trajectory.metadata or {}).get("example_id", "unknown")].append(trajectory)
        return list(groups.values())

    def _count_skipped(self, turns: Candidates, options: PairsConfig) -> None:
        """Count turns with one candidate, and comparisons below the minimum difference, as NAT does: all comparisons of
        a turn, or only best and worst, before any limit on pairs. Equal scores count if the minimum is above 0."""
        for candidates in turns.values():
            if len(candidates) < 2:
                self._count("skipped_single_candidate", int(self.config.require_multiple_candidates))
                continue
            scores = np.sort(np.array([candidate.score for candidate in candidates]))[::-1]
            if options.strategy == "best-worst":
                scores = scores[[0, -1]]
            for place, score in enumerate(scores[:-1]):
                gaps = reward_gaps(score, scores[place + 1 :], near=(options.min_gap,))
                self._count("skipped_score_diff", int((gaps < options.min_gap).sum()))

    def _count(self, name: str, number: int) -> None:
        self._metrics[name] = self._metrics.get(name, 0) + number

    @contextmanager
    def _workspace(self) -> Iterator[Path]:
        """Yield the folder of the run that is being finalized, or else a temporary folder."""
        if self._folder is not None:
            yield self._folder
            return
        with TemporaryDirectory(prefix="pairwright-nat-") as folder:
            yield Path(folder)


def _explain_no_candidates(result: EvaluationRunOutput, step_name: str) -> str:
    """Explain why an evaluation has no candidates: steps that NAT drops, and the names of existing ones."""
    steps = [step for item in result.eval_input.eval_input_items for step in item.trajectory]
    names = sorted({str(step.payload.name) for step in steps if step.event_type == IntermediateStepType.TTC_END})
    if step_name in names:
        return f"no TTC_END step named {step_name!r} has a turn_id and a score"
    found = f"TTC_END steps are named {', '.join(names)}" if names else "there is no TTC_END step at all"
    return (
        f"no TTC_END step named {step_name!r} ({found}). NAT drops a TTC_END that was pushed without a TTC_START of "
        "the same UUID, with a warning about outstanding start steps: push both"
    )


def _log_end(run_id: str, task: "asyncio.Task[EvaluationRunOutput]") -> None:
    if task.cancelled():
        logger.info("run %s: evaluation cancelled", run_id)
    elif (error := task.exception()) is not None:
        logger.error("run %s: evaluation failed: %s", run_id, error)
    else:
        logger.info("run %s: evaluation completed", run_id)


def _candidate(experience: Experience) -> CandidateStep | None:
    """Convert an imported candidate to NAT's form; None without a turn or a score."""
    turn = experience.info.get("turn_id")
    if turn is None or experience.reward is None:
        return None
    index, metadata = experience.info.get("candidate_index"), experience.info.get("metadata")
    return CandidateStep(
        example_id=str(experience.eid.task),
        turn_id=str(turn),
        candidate_index=index if isinstance(index, int) else 0,
        prompt=to_prompt(experience.prompt),
        response=to_response(experience.completion),
        score=experience.reward,
        raw_metadata=metadata if isinstance(metadata, dict) else {},
        experience=experience,
    )


def _experience(candidate: CandidateStep, turns: Candidates) -> Experience:
    """Convert a candidate of another origin than our importer to an experience; its turn is the step."""
    step = list(turns).index(f"{candidate.example_id}::{candidate.turn_id}")
    return Experience(
        kind=Kind.SINGLE_TURN,
        eid=EID(task=candidate.example_id, step=step),
        prompt=from_prompt(candidate.prompt),
        completion=(Message("assistant", candidate.response),),
        reward=candidate.score,
    )


def _preference(pair: Any, by_uid: dict[str, CandidateStep], turns: Candidates) -> PreferencePair:
    chosen, rejected = by_uid[pair.chosen_eid.uid], by_uid[pair.rejected_eid.uid]
    return PreferencePair(
        example_id=chosen.example_id,
        turn_id=chosen.turn_id,
        prompt=chosen.prompt,
        chosen_response=chosen.response,
        rejected_response=rejected.response,
        chosen_score=chosen.score,
        rejected_score=rejected.score,
        score_diff=pair.gap,
        chosen_index=chosen.candidate_index,
        rejected_index=rejected.candidate_index,
        metadata={
            "chosen_raw_metadata": chosen.raw_metadata,
            "rejected_raw_metadata": rejected.raw_metadata,
            "num_candidates": len(turns[f"{chosen.example_id}::{chosen.turn_id}"]),
        },
        pair=pair,
    )
