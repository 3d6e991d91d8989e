"""Our components of NeMo Agent Toolkit, used from Python; skipped where NAT is not installed.

`test_nat_exam.py` runs this file with an interpreter that has it.
"""

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("nat.data_models.finetuning", reason="NeMo Agent Toolkit is not installed")

from nat.data_models.config import Config as NatConfig
from nat.data_models.evaluator import EvalInput, EvalInputItem
from nat.data_models.finetuning import (
    DPOItem,
    FinetuneConfig,
    FinetuneRunConfig,
    OpenAIMessage,
    TrainingJobRef,
    TrainingJobStatus,
    TrainingStatusEnum,
    Trajectory,
    TrajectoryCollection,
)
from nat.data_models.intermediate_step import (
    IntermediateStep,
    IntermediateStepPayload,
    IntermediateStepType,
    TTCEventData,
)
from nat.data_models.invocation_node import InvocationNode
from pydantic import ValidationError

from pairwright import Pairs, Table
from pairwright.errors import PairwrightError
from pairwright.nat import (
    PairwrightTrainer,
    PairwrightTrainerAdapter,
    PairwrightTrainerAdapterConfig,
    PairwrightTrainerConfig,
    PairwrightTrajectoryBuilder,
    PairwrightTrajectoryBuilderConfig,
)
from pairwright.nat.nat_trajectories import WHOLE, read_preferences, select_trajectories
from pairwright.nat.trainer_adapter import _count_pairs

CALL = {"id": "1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}


def step(turn, index, score, *, output=None, prompt="Which colour?", name="dpo_candidate_move"):
    data = TTCEventData(
        turn_id=turn, turn_index=0, candidate_index=index, score=score, input=prompt, output=output or f"answer {index}"
    )
    payload = IntermediateStepPayload(
        event_type=IntermediateStepType.TTC_END, UUID=f"{turn}-{index}", name=name, data=data, metadata={"seen": index}
    )
    ancestry = InvocationNode(function_id="f", function_name="f")
    return IntermediateStep(parent_id="root", function_ancestry=ancestry, payload=payload)


def evaluation(**trajectories):
    items = [
        EvalInputItem(id=name, input_obj="", expected_output_obj=None, full_dataset_entry={}, trajectory=steps)
        for name, steps in trajectories.items()
    ]
    return SimpleNamespace(eval_input=EvalInput(eval_input_items=items))


def build(tmp_path, result, **options):
    """The collection and the metrics of one run."""
    builder = PairwrightTrajectoryBuilder(PairwrightTrajectoryBuilderConfig(output_dir=tmp_path / "runs", **options))
    builder.run_config = FinetuneConfig(output_dir=tmp_path)

    async def run():
        async def evaluate():
            return result

        builder.run_eval = evaluate
        await builder.start_run("first")
        return await builder.finalize("first")

    return asyncio.run(run()), builder._metrics


def test_ties_nan_and_other_prompts_are_counted_and_never_a_pair(tmp_path):
    result = evaluation(
        a=[step("t", 0, 0.9), step("t", 1, 0.9), step("t", 2, math.nan), step("t", 3, 0.1, prompt="Another?")],
        b=[step("t", 0, 0.9), step("t", 1, 0.2), step("other", 0, 0.5)],
        c=[step("t", 0, 0.5, name="another_step")],
    )
    collection, metrics = build(tmp_path, result)
    (group,) = collection.trajectories
    assert [item.metadata["example_id"] for item in group] == ["b"]
    assert metrics["dropped"] == {
        "tied rewards": 1,
        "no other candidate with an equal prompt": 1,
        "single candidate": 1,
        "unscored: no reward, NaN or infinite": 1,
    }
    assert metrics["examples_without_candidates"] == 1
    assert metrics["skipped_single_candidate"] == 1
    line = json.loads((tmp_path / "dpo_trajectory_builder_first.jsonl").read_text())
    assert line["total_pairs"] == 1
    assert line["dropped"] == metrics["dropped"]


def test_a_trajectory_has_the_metadata_of_nats_and_the_run_folder_is_ours(tmp_path):
    collection, _ = build(tmp_path, evaluation(a=[step("t", 4, 0.9), step("t", 7, 0.25)]), min_score_diff=0.65)
    ((trajectory,),) = collection.trajectories
    metadata = trajectory.metadata
    assert metadata["turn_id"] == "t"
    assert (metadata["chosen_index"], metadata["rejected_index"]) == (4, 7)
    assert (metadata["chosen_raw_metadata"], metadata["rejected_raw_metadata"]) == ({"seen": 4}, {"seen": 7})
    assert trajectory.reward == metadata["score_diff"] == 0.65, "0.9 - 0.25 in decimals"
    assert len(Table(tmp_path / "runs/first/experience")) == 2
    (pair,) = Pairs(tmp_path / "runs/first/pairs")
    assert pair.id == metadata["pair_id"]


def test_options_of_ours_reach_the_funnel(tmp_path):
    steps = [step("t", index, score) for index, score in enumerate((0.9, 0.5, 0.1))]
    collection, _ = build(tmp_path, evaluation(a=steps), pairs={"max_gap": 0.5})
    assert sorted(item.metadata["score_diff"] for item in collection.trajectories[0]) == [0.4, 0.4]
    best, _ = build(tmp_path, evaluation(a=steps), exhaustive_pairs=False, reward_from_score_diff=False)
    ((trajectory,),) = best.trajectories
    assert (trajectory.reward, trajectory.metadata["score_diff"]) == (0.9, 0.8)


def test_a_tool_call_comes_back_whole(tmp_path):
    call = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = evaluation(a=[step("t", 0, 0.9, output=call), step("t", 1, 0.1, output="I do not know")])
    collection, _ = build(tmp_path, result)
    ((trajectory,),) = collection.trajectories
    assert '"clock"' in trajectory.episode[0].chosen_response
    again = TrajectoryCollection.model_validate_json(collection.model_dump_json())
    (preference,) = read_preferences(again).experiences
    assert preference.chosen.messages[0].tool_calls[0].name == "clock"
    # texts that were changed later take precedence over the metadata
    again.trajectories[0][0].episode[0].chosen_response = "noon"
    (changed,) = read_preferences(again).experiences
    assert changed.chosen.messages[0].text == "noon"
    assert WHOLE in again.trajectories[0][0].metadata


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_score_diff": 0.1, "pairs": {"min_gap": 0.2}}, "min_score_diff: give it or pairs.min_gap, not both"),
        ({"exhaustiv_pairs": True}, "exhaustiv_pairs"),
        ({"pairs": {"strategy": "imported"}}, "does not compare the candidates"),
        ({"ttc_step_name": "a", "custom_step_name": "b"}, "custom_step_name"),
    ],
)
def test_options_of_the_builder_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        PairwrightTrajectoryBuilderConfig(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "entity_host, datastore_host, namespace, customization_config: needed by backend: nemo-customizer"),
        ({"backend": "local"}, "model: needed by backend: local"),
        ({"backend": "local", "model": "m", "tokens": {"max_length": 0}}, "max_length"),
        (
            {"entity_host": "x", "datastore_host": "x", "namespace": "a b", "customization_config": "c"},
            "entity_host|namespace",
        ),
    ],
)
def test_options_of_the_adapter_that_do_not_fit_are_refused(options, message):
    with pytest.raises(ValidationError, match=message):
        PairwrightTrainerAdapterConfig(**options)


def test_hyperparameters_and_our_section_train_make_one_configuration():
    config = PairwrightTrainerAdapterConfig(
        backend="local",
        model="m",
        hyperparameters={"epochs": 2, "batch_size": 16, "dpo": {"ref_policy_kl_penalty": 0.3}},
        train={"batch_size": 2, "dpo": {"loss": "ipo"}},
        hf_token="secret",
    )
    train = config.job_config().train
    assert (train.epochs, train.batch_size, train.dpo.beta, train.dpo.loss) == (2, 2, 0.3, "ipo")
    assert "secret" not in repr(config), "NAT prints configurations"


def test_sft_trains_on_the_chosen_sides():
    config = PairwrightTrainerAdapterConfig(backend="local", model="m", hyperparameters={"training_type": "sft"})
    channels = config.job_config().train.channels
    assert (channels.sft, channels.dpo) == (1.0, 0.0)
    service = {"entity_host": "http://h", "datastore_host": "http://h", "namespace": "n", "customization_config": "c"}
    config = PairwrightTrainerAdapterConfig(**service, hyperparameters={"training_type": "sft"})
    asked = config.job_config().backend.nemo_customizer.hyperparameters
    assert asked.training_type == "sft"


@pytest.mark.parametrize(
    ("hyperparameters", "train", "expected"),
    [
        ({}, {}, False),
        ({"preference_average_log_probs": True}, {}, True),
        ({"preference_average_log_probs": True, "sft_average_log_probs": False}, {}, False),
        ({"sft_average_log_probs": True}, {}, True),
        ({}, {"preference_average_log_probs": True}, True),
        ({"preference_average_log_probs": True}, {"sft_average_log_probs": False}, False),
    ],
)
def test_the_sft_term_is_averaged_as_the_preference_term_unless_it_is_set(hyperparameters, train, expected):
    config = PairwrightTrainerAdapterConfig(
        backend="local", model="m", hyperparameters={"dpo": hyperparameters}, train={"dpo": train}
    )
    assert config.job_config().train.dpo.sft_average_log_probs is expected


def collection_of(*items, run_id="run"):
    groups = [
        [Trajectory(episode=[DPOItem(prompt=prompt, chosen_response=chosen, rejected_response=rejected)], reward=1.0)]
        for prompt, chosen, rejected in items
    ]
    return TrajectoryCollection(trajectories=groups, run_id=run_id)


def test_the_selection_drops_duplicates_and_contradictions_of_runs(tmp_path):
    collection = collection_of(("p", "a", "b"), ("p", "a", "b"), ("q", "a", "b"), ("q", "b", "a"), ("r", "a", "b"))
    left, funnel = select_trajectories(collection, tmp_path)
    assert [group[0].episode[0].prompt for group in left.trajectories] == ["p", "r"]
    drops = {drop["reason"]: drop["count"] for drop in funnel["stages"][-1]["drops"]}
    assert drops == {"duplicate pair": 1, "contradiction: the opposite was also seen": 2}


def test_of_equal_pairs_the_first_one_stays(tmp_path):
    scores = {"chosen_score": 0.3, "rejected_score": 0.1}, {"chosen_score": 0.9, "rejected_score": 0.1}
    item = DPOItem(prompt="p", chosen_response="a", rejected_response="b")
    groups = [[Trajectory(episode=[item], reward=1.0, metadata={"example_id": "z", **some})] for some in scores]
    left, _ = select_trajectories(TrajectoryCollection(trajectories=groups, run_id="run"), tmp_path)
    ((trajectory,),) = left.trajectories
    assert trajectory.metadata["chosen_score"] == 0.3


def test_a_trajectory_of_several_items_keeps_those_that_became_pairs(tmp_path):
    items = [DPOItem(prompt="p", chosen_response=chosen, rejected_response="b") for chosen in ("a", "a", "c")]
    collection = TrajectoryCollection(trajectories=[[Trajectory(episode=items, reward=1.0)]], run_id="run")
    left, _ = select_trajectories(collection, tmp_path)
    assert [item.chosen_response for item in left.trajectories[0][0].episode] == ["a", "c"]


def test_prompts_are_cut_only_for_a_service_and_only_as_asked():
    messages = [OpenAIMessage(role="system", content="s"), OpenAIMessage(role="user", content="u")]
    collection = collection_of((messages, "a", "b"))
    assert [len(read_preferences(collection, whole_prompt=whole).experiences[0].prompt) for whole in (True, False)] == [
        2,
        1,
    ]
    assert read_preferences(collection, whole_prompt=False).num_cut == 1


def test_examples_that_share_a_prompt_are_split_by_prompt(tmp_path):
    adapter = PairwrightTrainerAdapter(PairwrightTrainerAdapterConfig(backend="local", model="m"))
    # ten games of three moves, which all begin alike
    groups = [
        [
            Trajectory(
                episode=[DPOItem(prompt=prompt, chosen_response=f"a{game}", rejected_response="b")],
                reward=1.0,
                metadata={"example_id": f"game{game}"},
            )
            for prompt in ("start", f"{game} after one", f"{game} after two")
        ]
        for game in range(10)
    ]
    folder = adapter._store_pairs(TrajectoryCollection(trajectories=groups, run_id="run"), tmp_path)
    pairs = list(Pairs(folder))
    held = {pair.prompt[0].text for pair in pairs if pair.split == "validation"}
    trained = {pair.prompt[0].text for pair in pairs if pair.split == "train"}
    assert held
    assert trained
    assert not held & trained
    assert len([pair for pair in pairs if pair.split == "train"]) >= 15


def test_skipped_turns_and_comparisons_are_counted_as_nat_counts_them(tmp_path):
    scores = (0.9, 0.9, 0.85, 0.5)
    turn = [step("t", index, score) for index, score in enumerate(scores)]
    result = evaluation(a=[*turn, step("alone", 0, 0.5)])
    # NAT: all six comparisons but those below 0.1 (0.9 and 0.9, twice 0.9 and 0.85), whatever is kept of them
    _, metrics = build(tmp_path, result, min_score_diff=0.1, max_pairs_per_turn=1)
    assert (metrics["skipped_score_diff"], metrics["skipped_single_candidate"]) == (3, 1)
    _, metrics = build(tmp_path, result, min_score_diff=0.5, exhaustive_pairs=False, require_multiple_candidates=False)
    assert (metrics["skipped_score_diff"], metrics["skipped_single_candidate"]) == (1, 0)
    # without a minimum difference NAT skips nothing; here ties are not pairs, and are counted
    _, metrics = build(tmp_path, result)
    assert (metrics["skipped_score_diff"], metrics["dropped"]["tied rewards"]) == (0, 1)


def test_a_run_keeps_repeated_and_contradicting_pairs_as_nat_does(tmp_path):
    turns = [
        *[step("one", index, score, output=output) for index, (output, score) in enumerate((("a", 0.9), ("b", 0.1)))],
        *[step("two", index, score, output=output) for index, (output, score) in enumerate((("b", 0.9), ("a", 0.1)))],
        *[step("three", index, score, output=output) for index, (output, score) in enumerate((("a", 0.9), ("b", 0.1)))],
    ]
    collection, _ = build(tmp_path, evaluation(a=turns))
    assert [item.episode[0].chosen_response for item in collection.trajectories[0]] == ["a", "b", "a"]
    collection, metrics = build(tmp_path, evaluation(a=turns), pairs={"contradictions": "drop", "dedupe": True})
    assert collection.trajectories == []
    assert metrics["dropped"]["contradiction: the opposite was also seen"] == 3


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "there is no TTC_END step at all"),
        ([step("t", 0, 0.5, name="other_step")], "TTC_END steps are named other_step"),
    ],
)
def test_without_candidates_the_causes_are_named(tmp_path, steps, words):
    class Empty(Builder):
        async def run_eval(self):
            return evaluation(a=steps)

    _, (status,) = finetune(tmp_path, Empty(), Adapter())
    assert words in status.message
    assert "NAT drops a TTC_END that was pushed without a TTC_START of the same UUID" in status.message
    assert json.loads((tmp_path / "out/final_metrics.json").read_text())["message"] == status.message


class Adapter(PairwrightTrainerAdapter):
    """Records what is submitted, and ends at once."""

    def __init__(self, state=TrainingStatusEnum.COMPLETED):
        super().__init__(PairwrightTrainerAdapterConfig(backend="local", model="m"))
        self.submitted, self.state = [], state

    async def initialize(self, run_config):
        self.run_config = run_config

    async def submit(self, trajectories):
        self.submitted.append(trajectories)
        return TrainingJobRef(run_id=trajectories.run_id, backend="local", metadata={"job_id": "j"})

    async def status(self, ref):
        return TrainingJobStatus(run_id=ref.run_id, backend="local", status=self.state, message="as it is")


class Builder(PairwrightTrajectoryBuilder):
    """Evaluates to one pair a run; the runs in `fail` raise."""

    def __init__(self, fail=()):
        super().__init__(PairwrightTrajectoryBuilderConfig())
        self.fail, self.started = set(fail), []

    async def start_run(self, run_id, meta=None):
        self.started.append(int(run_id.rpartition("_run")[2]))
        await super().start_run(run_id, meta)

    async def run_eval(self):
        number = self.started[-1]
        if number in self.fail:
            raise RuntimeError("the workflow is down")
        return evaluation(a=[step("t", 0, 0.9, output=f"good {number}"), step("t", 1, 0.1, output="bad")])


def finetune(tmp_path, builder, adapter, **options):
    """A trainer and the statuses of its run, as `nat finetune` runs it."""
    trainer = PairwrightTrainer(PairwrightTrainerConfig(num_runs=3, **options))
    run = FinetuneRunConfig(config_file=NatConfig(), dataset="d.json")

    async def go():
        await trainer.bind_components(builder, adapter)
        await trainer.initialize(FinetuneConfig(output_dir=tmp_path / "out", run_configuration=run))
        return await trainer.run(1)

    return trainer, asyncio.run(go())


def test_a_failed_run_is_resumed_where_it_stopped(tmp_path):
    builder, adapter = Builder(fail={1}), Adapter()
    trainer, (status,) = finetune(tmp_path, builder, adapter)
    assert status.status == TrainingStatusEnum.FAILED
    assert "run 1: the workflow is down" in status.message
    with pytest.raises(PairwrightError, match="the workflow is down"):
        asyncio.run(trainer.get_metrics("x"))
    assert json.loads((tmp_path / "out/final_metrics.json").read_text())["status"] == "failed"
    resumed = Builder()
    again, (status,) = finetune(tmp_path, resumed, adapter)
    assert status.status == TrainingStatusEnum.COMPLETED
    assert (builder.started, resumed.started) == ([0, 1], [1, 2])
    assert again._run_id == trainer._run_id
    assert len(adapter.submitted[0].trajectories) == 3
    history = json.loads((tmp_path / "out/collection_history.json").read_text())
    assert [line["run_number"] for line in history] == [0, 1, 2]


class Runs(Builder):
    """Run 0: a over b, twice; run 1: b over a; run 2: a over c."""

    async def run_eval(self):
        good, bad, turns = (("a", "b", "xy"), ("b", "a", "x"), ("a", "c", "x"))[self.started[-1]]
        return evaluation(a=[s for t in turns for s in (step(t, 0, 0.9, output=good), step(t, 1, 0.1, output=bad))])


class Submitting(Adapter):
    """Stores the pairs as ours does, without starting a job."""

    async def submit(self, trajectories):
        ref = await super().submit(trajectories)
        folder = self._store_pairs(trajectories, self._output_dir() / trajectories.run_id)
        counts = _count_pairs(folder, SimpleNamespace(details={}))
        return ref.model_copy(update={"metadata": {**ref.metadata, "pairs": counts}})


@pytest.mark.parametrize(
    ("options", "removed", "trained"),
    [
        ({}, {"duplicate pair": 1}, 3),
        ({"deduplicate_pairs": False}, {}, 4),
        ({"contradictions": "drop"}, {"contradiction: the opposite was also seen": 3}, 1),
        ({"max_pairs": 2}, {"duplicate pair": 1, "not in the sample": 1}, 2),
    ],
)
def test_the_final_metrics_count_pairs_collected_removed_and_trained(tmp_path, options, removed, trained):
    adapter = Submitting()
    finetune(tmp_path, Runs(), adapter, **options)
    metrics = json.loads((tmp_path / "out/final_metrics.json").read_text())
    assert metrics["pairs"] == {"collected": 4, "removed": removed, "trained": trained, "validation": 0}
    assert metrics["collection_summary"]["total_dpo_pairs"] == 4
    assert sum(len(group) for group in adapter.submitted[0].trajectories) == trained


def test_another_configuration_or_a_finished_run_is_not_resumed(tmp_path):
    first, _ = finetune(tmp_path, Builder(), Adapter())
    second, _ = finetune(tmp_path, Builder(fail={1}), Adapter())
    third, _ = finetune(tmp_path, Builder(fail={1}), Adapter(), max_pairs=9)
    assert len({first._run_id, second._run_id, third._run_id}) == 3


def test_a_job_that_has_failed_is_submitted_again_from_the_same_pairs(tmp_path):
    adapter = Adapter(TrainingStatusEnum.FAILED)
    with pytest.raises(RuntimeError, match="as it is"):
        finetune(tmp_path, Builder(), adapter)
    adapter.state = TrainingStatusEnum.FAILED
    resumed = Builder()
    with pytest.raises(RuntimeError, match="as it is"):
        finetune(tmp_path, resumed, adapter)
    assert resumed.started == []
    assert len(adapter.submitted) == 2


def test_the_others_are_collected_when_one_run_may_fail(tmp_path):
    adapter = Adapter()
    _, (status,) = finetune(tmp_path, Builder(fail={0}), adapter, continue_on_collection_error=True)
    assert status.status == TrainingStatusEnum.COMPLETED
    assert len(adapter.submitted[0].trajectories) == 2


def test_a_run_id_cannot_leave_its_folder(tmp_path):
    builder = PairwrightTrajectoryBuilder(PairwrightTrajectoryBuilderConfig(output_dir=tmp_path))
    with pytest.raises(ValueError, match="expected a plain file name"):
        asyncio.run(builder.start_run("../other"))
    assert not list(Path(tmp_path).iterdir())
