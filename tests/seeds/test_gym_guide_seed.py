"""NeMo Gym's guide to DPO: its rollouts, options, defaults and files, and the NeMo RL job that it configures and starts."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import pairwright as pw
from generate.tiny_models import save_model
from pairwright.config import Config, PairsConfig
from pairwright.jobs import BACKENDS, JobRequest, JobState
from pairwright.jobs.job import silent
from pairwright.records.experience import Kind

GUIDE = Path(__file__).resolve().parents[2].parent / "shared" / "seeds" / "002_e94a063a184daa73.txt"


def rollout(question: str, answer: str, reward: float, *, as_text: bool = False) -> dict:
    """A line of rollouts.jsonl; the text of the last message of `output` is the response."""
    content = answer if as_text else [{"type": "output_text", "text": answer}]
    return {
        "responses_create_params": {"input": [{"role": "user", "content": question}]},
        "output": [
            {"type": "reasoning", "id": "r", "summary": []},
            {"type": "message", "role": "assistant", "content": content},
        ],
        "reward": reward,
    }


ROLLOUTS = [
    rollout("sea?", "blue", 1.0),
    rollout("sea?", "green", 0.75),
    rollout("sea?", "red", 0.25, as_text=True),
    rollout("sun?", "round", 0.5),
    rollout("sun?", "flat", 0.375),
    rollout("moon?", "alone", 0.875),
]


def transform(folder: Path, rollouts: list[dict], **options) -> list[dict]:
    """rollouts.jsonl to the lines of dpo_data/train.jsonl."""
    (folder / "rollouts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in rollouts))
    pw.import_traces(folder / "rollouts.jsonl", folder / "experience")
    pw.make_pairs(folder / "experience", folder / "pairs", **options)
    (folder / "dpo_data").mkdir()
    pw.export_pairs(folder / "pairs", "nemo-rl-binary", folder / "dpo_data" / "train.jsonl")
    return [json.loads(line) for line in (folder / "dpo_data" / "train.jsonl").read_text().splitlines()]


def row(prompt: str, chosen: str, rejected: str, chosen_reward: float, rejected_reward: float) -> dict:
    return {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "reward_gap": chosen_reward - rejected_reward,
        "chosen_reward": chosen_reward,
        "rejected_reward": rejected_reward,
    }


def with_text_prompt(line: dict) -> dict:
    """The guide writes the last text of the user; ours writes the prompt with all of its messages."""
    return {**line, "prompt": [message for message in line["prompt"] if message["role"] == "user"][-1]["content"]}


def in_order(lines: list[dict]) -> list[str]:
    return sorted(json.dumps({**line, "reward_gap": round(line["reward_gap"], 9)}, sort_keys=True) for line in lines)


def test_same_prompt_pairs_the_best_with_the_worst_from_the_gap_on(tmp_path):
    lines = transform(tmp_path, ROLLOUTS, strategy="same_prompt", min_gap=0.2)
    assert list(lines[0]) == ["prompt", "chosen", "rejected", "reward_gap", "chosen_reward", "rejected_reward"]
    assert [with_text_prompt(line) for line in lines] == [row("sea?", "blue", "red", 1.0, 0.25)]


def test_stratified_pairs_every_high_with_every_low_response(tmp_path):
    # The guide also compares responses to different prompts, which ours does only with an option.
    options = {"strategy": "stratified", "across_groups": True, "max_per_chosen": 9}
    lines = transform(tmp_path, ROLLOUTS, **options, min_gap=0.2, high_threshold=0.7, low_threshold=0.4)
    lows = [("red", 0.25), ("flat", 0.375)]
    highs = [("sea?", "blue", 1.0), ("sea?", "green", 0.75), ("moon?", "alone", 0.875)]
    wanted = [row(prompt, high, low, best, worst) for prompt, high, best in highs for low, worst in lows]
    assert in_order(map(with_text_prompt, lines)) == in_order(wanted)


def test_the_names_and_defaults_of_the_options():
    preset = PairsConfig.model_validate({"preset": "gym-guide"})
    assert (preset.strategy, preset.min_gap) == ("best-worst", 0.2)
    named = PairsConfig.model_validate({"strategy": "same_prompt", "min_gap": 0.2})
    assert named.content() == preset.content()
    thresholds = PairsConfig.model_validate({"strategy": "stratified", "high_threshold": 0.7, "low_threshold": 0.4})
    assert thresholds == PairsConfig(strategy="stratified"), "0.7 and 0.4 are the defaults"


def test_the_file_that_the_guide_writes_is_read_as_chats_with_their_rewards(tmp_path):
    (tmp_path / "train.jsonl").write_text(json.dumps(row("sea?", "blue", "red", 1.0, 0.25)) + "\n")
    pw.import_traces(tmp_path / "train.jsonl", tmp_path / "experience")
    (pair,) = pw.Table(tmp_path / "experience")
    assert pair.kind is Kind.PREFERENCE
    turns = [*pair.prompt, *pair.chosen.messages, *pair.rejected.messages]
    assert [(turn.role, turn.text) for turn in turns] == [("user", "sea?"), ("assistant", "blue"), ("assistant", "red")]
    assert (pair.chosen.reward, pair.rejected.reward, pair.info["reward_gap"]) == (1.0, 0.25, 0.75)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("strategy", ["same_prompt", "stratified"])
def test_the_script_of_the_guide_writes_the_same_pairs(tmp_path, strategy, seed):
    if not GUIDE.is_file():
        pytest.skip("the guide is not beside the project")
    draw = random.Random(seed)
    rewards = [number / 16 for number in range(17)]
    rollouts = [
        rollout(f"question {task}", f"answer {task}.{run}", reward)
        for task in range(12)
        for run, reward in enumerate(draw.sample(rewards, draw.randint(1, 5)))  # without ties
    ]
    options = {"across_groups": True, "max_per_chosen": len(rollouts)} if strategy == "stratified" else {}
    lines = transform(tmp_path, rollouts, preset="gym-guide", strategy=strategy, **options)
    (script,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.S)
    (tmp_path / "transform_gym_to_dpo.py").write_text(script, encoding="utf-8")
    words = ["--input", "rollouts.jsonl", "--output", "theirs.jsonl", "--min_gap", "0.2", "--strategy", strategy]
    command = [sys.executable, "-X", "utf8", "transform_gym_to_dpo.py", *words]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    theirs = [json.loads(line) for line in (tmp_path / "theirs.jsonl").read_text().splitlines()]
    assert len(theirs) > 5
    assert in_order(map(with_text_prompt, lines)) == in_order(theirs)


# dpo_gym_data.yaml, as far as it is not data, model and place of the checkpoints.
WANTED = {
    "policy": {"max_total_sequence_length": 1024, "train_global_batch_size": 128, "train_micro_batch_size": 2},
    "dpo": {
        "reference_policy_kl_penalty": 0.05,
        "preference_loss_weight": 1.0,
        "sft_loss_weight": 0.0,
        "max_num_epochs": 1,
        "val_period": 25,
    },
    "checkpointing": {"enabled": True, "metric_name": "val:validation-default_loss", "higher_is_better": False},
    "logger": {"wandb_enabled": False, "wandb": {"project": "nemo-gym-dpo", "name": "gym-dpo-run-1"}},
}


@pytest.mark.parametrize(
    ("gpus", "nodes", "start"),
    [
        (1, 1, r"^uv run (python )?examples/run_dpo\.py --config \S*\.yaml cluster\.gpus_per_node=1"),
        (8, 1, r"^uv run (python )?examples/run_dpo\.py --config \S*\.yaml cluster\.gpus_per_node=8"),
        (8, 2, r"^uv run (python )?examples/run_dpo\.py --config \S*\.yaml [^']*cluster\.num_nodes=2$"),
    ],
    ids=["one GPU", "eight GPUs", "two nodes"],
)
def test_the_job_has_the_keys_of_the_guide_and_starts_as_there(tmp_path, gpus, nodes, start):
    rollouts = [rollout(f"q {task}", f"a {run}", float(run)) for task in range(200) for run in range(2)]
    assert transform(tmp_path, rollouts, preset="gym-guide", validation=0.1)
    model = save_model(tmp_path / "model")
    config = Config.model_validate({
        "train": {"epochs": 1, "batch_size": 128, "micro_batch_size": 2, "val_check_interval": 25, "dpo": {"beta": 0.05}},
        "backend": {"nemo_rl": {
            "dataset": "binary", "max_total_sequence_length": 1024, "gpus_per_node": gpus, "num_nodes": nodes,
            "overrides": {"logger.wandb.project": "nemo-gym-dpo", "logger.wandb.name": "gym-dpo-run-1"},
        }},
    })  # fmt: skip
    request = JobRequest(model=str(model), pairs=tmp_path / "pairs", launch=False)
    job = BACKENDS["nemo-rl"].submit(tmp_path / "run", request, config, silent)
    assert job.state is JobState.PREPARED
    tree = YAML(typ="safe").load((tmp_path / "run" / "nemo-rl-dpo.yaml").read_text())
    for section, keys in WANTED.items():
        assert {key: tree[section][key] for key in keys} == keys, section
    for split in ("train", "validation"):
        data = dict(tree["data"][split])
        path = Path(data.pop("data_path"))
        assert data == {
            "dataset_name": "BinaryPreferenceDataset",
            "prompt_key": "prompt",
            "chosen_key": "chosen",
            "rejected_key": "rejected",
        }
        assert json.loads(path.read_text().splitlines()[0]).keys() >= {"prompt", "chosen", "rejected"}
    script = (tmp_path / "run" / "nemo-rl-launch.sh").read_text()
    assert re.search(start, script, re.M), script
