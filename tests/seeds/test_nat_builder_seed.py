"""NAT's document of its DPO trajectory builder: its steps, options, pairs, metadata and counts.

The first part needs no NAT: its files and option names are read by our own flow. The second part uses the names of the
builder itself; it is skipped where NAT is not installed, and `tests/peers/test_nat_exam.py` runs it with an interpreter
that has NAT.
"""

import asyncio
import json
from types import SimpleNamespace

import pytest

from pairwright.config import Config, PairsConfig
from pairwright.config.config_file import adjust_config
from pairwright.pairs.build import build_pairs
from pairwright.pairs.container import Pairs
from pairwright.pairs.options import pair_options
from pairwright.sources.format import Options
from pairwright.store.importing import import_files
from pairwright.store.table import Table

STEP_NAME = "dpo_candidate_move"
METRICS = (
    "total_examples", "total_turns", "total_candidates", "total_pairs", "total_trajectories",
    "skipped_single_candidate", "skipped_score_diff",
)  # fmt: skip
CONFIG = {
    "ttc_step_name": STEP_NAME, "exhaustive_pairs": True, "min_score_diff": 0.0, "max_pairs_per_turn": None,
    "reward_from_score_diff": True, "require_multiple_candidates": True,
}  # fmt: skip
# candidates of a turn, and of the cases below the pairs by index: (chosen, rejected)
SCORES = (0.5, 0.9, 0.7)
CASES = [
    ({}, [(1, 0), (1, 2), (2, 0)]),
    ({"exhaustive_pairs": False}, [(1, 0)]),
    ({"min_score_diff": 0.3}, [(1, 0)]),
    ({"max_pairs_per_turn": 1}, [(1, 0)]),
    ({"exhaustive_pairs": False, "min_score_diff": 0.5}, []),
]


def data(index, score, turn="turn_0", prompt="Which move?"):
    return {
        "turn_id": turn, "turn_index": 0, "candidate_index": index, "input": prompt, "output": f"move {index}",
        "score": score,
    }  # fmt: skip


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_the_files_of_nat_are_paired_by_its_option_names(tmp_path, options, expected):
    steps = [
        {"payload": {"event_type": "TTC_END", "name": STEP_NAME, "UUID": str(index), "data": data(index, score)}}
        for index, score in enumerate(SCORES)
    ]
    (tmp_path / "workflow_output.json").write_text(json.dumps([{"id": "a", "intermediate_steps": steps}]))
    table = Table(tmp_path / "table")
    options_of_import = Options(step_name=STEP_NAME)
    import_files([str(tmp_path / "workflow_output.json")], table, format_name="nat", options=options_of_import)
    config = adjust_config(Config(), pairs=PairsConfig.model_validate(options).model_dump(exclude_unset=True))
    build_pairs([table], tmp_path / "pairs", pair_options(config))
    found = {tuple(int(side[0].text[-1]) for side in (p.chosen, p.rejected)): p.gap for p in Pairs(tmp_path / "pairs")}
    assert sorted(found) == sorted(expected)
    assert all(gap == pytest.approx(SCORES[one] - SCORES[two]) for (one, two), gap in found.items())


@pytest.fixture(scope="module")
def nat():
    """NAT's own types, and our builder in the place of its."""
    pytest.importorskip("nat.data_models.finetuning", reason="NeMo Agent Toolkit is not installed")
    from nat.data_models import evaluator, finetuning, intermediate_step, invocation_node

    import pairwright.nat as ours

    return SimpleNamespace(
        DPOItem=finetuning.DPOItem,
        FinetuneConfig=finetuning.FinetuneConfig,
        EvalInput=evaluator.EvalInput,
        EvalInputItem=evaluator.EvalInputItem,
        step=intermediate_step,
        node=invocation_node.InvocationNode(function_id="f", function_name="f"),
        CandidateStep=ours.CandidateStep,
        PreferencePair=ours.PreferencePair,
        Config=ours.PairwrightTrajectoryBuilderConfig,
        Builder=ours.PairwrightTrajectoryBuilder,
    )


def make_step(nat, index, score, *, turn="turn_0", name=STEP_NAME, kind="TTC_END", prompt="Which move?"):
    payload = nat.step.IntermediateStepPayload(
        event_type=nat.step.IntermediateStepType[kind],
        UUID=f"{turn}-{index}-{kind}",
        name=name,
        data=nat.step.TTCEventData(**data(index, score, turn, prompt)),
        metadata={"is_selected": index == 1},
    )
    return nat.step.IntermediateStep(parent_id="root", function_ancestry=nat.node, payload=payload)


def run(nat, tmp_path, examples, **options):
    """The collection and the metrics of one run, through start_run, finalize and log_progress."""
    items = [
        nat.EvalInputItem(id=name, input_obj="", expected_output_obj=None, full_dataset_entry={}, trajectory=steps)
        for name, steps in examples.items()
    ]
    builder = nat.Builder(trajectory_builder_config=nat.Config(**options))
    builder.run_config = nat.FinetuneConfig(output_dir=tmp_path)

    async def go():
        async def evaluate():
            return SimpleNamespace(eval_input=nat.EvalInput(eval_input_items=items))

        builder.run_eval = evaluate
        await builder.start_run(run_id="r", meta=None)
        assert list(builder.evaluation_runs) == ["r"]
        with pytest.raises(ValueError, match="already in progress"):
            await builder.start_run("r")
        collection = await builder.finalize("r", meta=None)
        assert builder.evaluation_runs == {}
        with pytest.raises(ValueError, match="No evaluation run found for run_id: r"):
            await builder.finalize("r")
        return collection

    collection = asyncio.run(go())
    builder.log_progress("r", {"more": 1}, output_dir=str(tmp_path / "log"))
    line = json.loads((tmp_path / "log" / "dpo_trajectory_builder_r.jsonl").read_text())
    assert line["config"] == {name: getattr(builder.config, name) for name in list(CONFIG)[:4]}
    assert (line["run_id"], line["more"]) == ("r", 1)
    return collection, {name: line[name] for name in METRICS}


def test_the_options_have_the_documents_defaults(nat):
    config = nat.Config()
    assert {name: getattr(config, name) for name in CONFIG} == CONFIG


def test_candidates_and_pairs_have_the_documents_fields(nat):
    candidate = nat.CandidateStep(example_id="a", turn_id="t", candidate_index=0, prompt="p", response="r", score=0.5)
    assert candidate.raw_metadata == {}
    pair = nat.PreferencePair(
        example_id="a", turn_id="t", prompt="p", chosen_response="c", rejected_response="r", chosen_score=1.0,
        rejected_score=0.0, score_diff=1.0, chosen_index=0, rejected_index=1,
    )  # fmt: skip
    assert pair.metadata == {}


@pytest.mark.parametrize(("options", "expected"), CASES)
def test_pairs_of_a_turn_come_with_the_largest_difference_first(nat, tmp_path, options, expected):
    steps = [make_step(nat, index, score) for index, score in enumerate(SCORES)]
    collection, metrics = run(nat, tmp_path, {"a": steps}, **options)
    found = [trajectory for group in collection.trajectories for trajectory in group]
    indices = [(item.metadata["chosen_index"], item.metadata["rejected_index"]) for item in found]
    assert (indices[:1], sorted(indices)) == (expected[:1], sorted(expected))
    assert metrics["total_pairs"] == metrics["total_trajectories"] == len(expected)


@pytest.mark.parametrize(("from_difference", "reward"), [(True, 0.4), (False, 0.9)])
def test_a_trajectory_has_the_documents_content(nat, tmp_path, from_difference, reward):
    steps = [make_step(nat, index, score) for index, score in ((0, 0.5), (1, 0.9))]
    collection, _ = run(nat, tmp_path, {"a": steps}, reward_from_score_diff=from_difference)
    assert collection.run_id == "r"
    ((trajectory,),) = collection.trajectories
    expected = nat.DPOItem(prompt="Which move?", chosen_response="move 1", rejected_response="move 0")
    assert (trajectory.episode, trajectory.shaped_rewards) == ([expected], None)
    assert trajectory.reward == pytest.approx(reward)
    assert {
        "dpo_type": "preference_pair", "example_id": "a", "turn_id": "turn_0", "chosen_score": 0.9,
        "rejected_score": 0.5, "chosen_index": 1, "rejected_index": 0, "chosen_raw_metadata": {"is_selected": True},
        "rejected_raw_metadata": {"is_selected": False}, "num_candidates": 2,
    }.items() <= trajectory.metadata.items()  # fmt: skip
    assert trajectory.metadata["score_diff"] == pytest.approx(0.4)


def test_only_ttc_end_steps_of_the_name_with_turn_and_score_are_candidates(nat, tmp_path):
    messages = [{"role": "system", "content": "Play."}, {"role": "user", "content": "Which move?"}]
    steps = [
        make_step(nat, 0, 0.9, prompt=messages),
        make_step(nat, 1, 0.1, prompt=messages),
        make_step(nat, 2, 0.5, name="another"),
        make_step(nat, 3, 0.5, kind="TTC_START"),
        make_step(nat, 4, None),
        make_step(nat, 5, 0.5, turn=None),
        make_step(nat, 6, 0.5, turn="turn_1"),
    ]
    collection, metrics = run(nat, tmp_path, {"a": steps, "b": [make_step(nat, 0, 0.5)]})
    ((trajectory,),) = collection.trajectories
    assert [(m.role, m.content) for m in trajectory.episode[0].prompt] == [tuple(m.values()) for m in messages]
    assert metrics == {
        "total_examples": 1, "total_turns": 3, "total_candidates": 4, "total_pairs": 1, "total_trajectories": 1,
        "skipped_single_candidate": 2, "skipped_score_diff": 0,
    }  # fmt: skip


def test_trajectories_are_grouped_by_example_and_counted(nat, tmp_path):
    turns = [
        make_step(nat, index, score, turn=turn) for turn in "xy" for index, score in ((0, 0.9), (1, 0.8), (2, 0.1))
    ]
    examples = {"a": turns, "b": [make_step(nat, 0, 0.5), make_step(nat, 1, 0.3)], "c": []}
    collection, metrics = run(nat, tmp_path, examples, min_score_diff=0.15)
    assert [[item.metadata["example_id"] for item in group] for group in collection.trajectories] == [["a"] * 4, ["b"]]
    assert (metrics["total_turns"], metrics["skipped_score_diff"], metrics["total_examples"]) == (3, 2, 2)


def test_a_run_without_candidates_is_an_empty_collection(nat, tmp_path):
    collection, metrics = run(nat, tmp_path, {"a": []})
    assert (collection.trajectories, collection.run_id) == ([], "r")
    assert set(metrics.values()) == {0}
