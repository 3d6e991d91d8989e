"""The whole flow from one configuration: done once, resumed anywhere, stopped by the gate."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pairwright.cli.main import app
from pairwright.config import load_config
from pairwright.errors import ConfigError, PairwrightError
from pairwright.flow import Flow, GateClosed, View
from pairwright.flow.dry_run import plan_rows
from pairwright.flow.stages import tokens_stage
from pairwright.generate import Engine, Request, Sampling
from pairwright.ledger import build_ledger, train_folders
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, read_pairs, write_pairs
from pairwright.records.experience import EID, Pair
from pairwright.records.messages import Message, ToolCall
from pairwright.store.table import Table
from serve.served_models import served
from training.made_runs import make_model

HERE = Path(__file__).parent
CALL = Message("assistant", "", tool_calls=(ToolCall("look", '{"at": "left"}', "call00000"),))


def pair_of(rejected: list[Message]) -> Pair:
    prompt, chosen = [Message("user", "where")], [Message("assistant", "yes")]
    tools = ({"type": "function", "function": {"name": "look"}},)
    return Pair(
        id=pair_id(prompt, tools, chosen, rejected), prompt=prompt, tools=tools, chosen=chosen, rejected=rejected,
        chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(task=0, suffix="a"), rejected_eid=EID(task=0, suffix="b"),
        gap=1.0, strategy="all",
    )  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def written(folder: Path, model: Path, **changes) -> Path:
    workflow = HERE / "tiny_workflow.py"
    config = {
        "name": "tiny", "model": str(model), "policy": {"model": str(model), "num_threads": 1},
        "collect": {"workflow": f"{workflow}:play", "num_tasks": 8},
        "pairs": {"strategy": "best-worst"},
        "train": {"batch_size": 4, "max_steps": 6, "epochs": 9, "learning_rate": 1e-3, "threads": 1, "save_every": 1},
        "evaluate": {"workflow": f"{workflow}:exam", "num_tasks": 12, "temperature": 0},
    }  # fmt: skip
    for dotted, value in changes.items():
        section, _, key = dotted.partition("__")
        if key:
            config.setdefault(section, {})[key] = value
        else:
            config[section] = value
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))
    return path


def run(config: Path, folder: Path, lines: list[str] | None = None):
    view = View() if lines is None else View(say=lines.append)
    return Flow(load_config(config, environment={}), folder, base=config.parent, view=view).run()


def test_a_run_ends_with_a_model_an_evaluation_and_a_report_and_is_not_done_twice(model, tmp_path):
    config, folder = written(tmp_path, model), tmp_path / "run"
    result = run(config, folder)
    assert (Path(result["model"]) / "model.safetensors").exists()
    assert {"before", "after", "low", "high"} <= result["evaluation"].keys()
    for name in ("manifest.json", "evaluation.json", "report.html", "round-1/pairs/pairs.parquet"):
        assert (folder / name).exists(), name
    stages = json.loads((folder / "manifest.json").read_text())["stages"]
    assert [name for name, stage in stages.items() if stage["state"] == "done"] == [
        f"round-1/{name}" for name in ("collect", "pairs", "tokens", "train", "evaluate")
    ]
    assert all(stage["cpu_seconds"] > 0 and stage["peak_memory_bytes"] > 2**20 for stage in stages.values())
    lines: list[str] = []
    assert run(config, folder, lines) == result
    assert [line for line in lines if line.endswith("unchanged")] == [f"{name}: unchanged" for name in stages]


def test_what_changed_is_done_again_and_what_it_does_not_touch_is_not(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model), folder)
    lines: list[str] = []
    run(written(tmp_path, model, train__learning_rate=5e-4), folder, lines)
    done = [line.split(":")[0] for line in lines if line.endswith("started")]
    assert done == ["round-1/train", "round-1/evaluate"]
    with pytest.raises(ConfigError, match=r"made with another configuration and is kept"):
        run(written(tmp_path, model, collect__num_tasks=9), folder)


def test_an_agent_that_changed_after_its_runs_is_named_and_its_runs_are_kept(model, tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text((HERE / "tiny_workflow.py").read_text())
    config = written(tmp_path, model, collect__workflow=f"{agent}:play", loop__evaluate="never")
    run(config, tmp_path / "run")
    lines: list[str] = []
    run(config, tmp_path / "run", lines)
    assert not [line for line in lines if line.startswith("warning")]
    agent.write_text(agent.read_text() + "\n# better\n")
    run(config, tmp_path / "run", lines)
    (warning,) = [line for line in lines if line.startswith("warning")]
    assert f"{agent} changed since round-1/collect" in warning
    assert f"remove {tmp_path / 'run'}" in warning


def trained_and_sampled(folder: Path) -> tuple[int, int]:
    """How many sides of the dumped batches there are, and how many have exactly the ids that were sampled."""
    known = {exp.eid.uid: exp for exp in Table(folder / "experience").records()}
    pairs = {pair.id: pair for pair in read_pairs(folder / "pairs")}
    num_sides = num_same = 0
    for path in sorted((folder / "train" / "batches").glob("step-*.json")):
        for item in json.loads(path.read_text())["channels"]["dpo"]:
            eids = pairs[item["id"]].chosen_eid, pairs[item["id"]].rejected_eid
            for eid, branch, mask in zip(eids, item["branches"], item["masks"], strict=True):
                source = known[eid.uid]
                trained = [token for token, is_trained in zip(branch, mask, strict=True) if is_trained]
                num_sides += 1
                is_same = trained == source.tokens[source.prompt_length :].tolist()
                num_same += is_same and item["prompt"] + branch == source.tokens.tolist()
    return num_sides, num_same


def test_what_a_local_model_sampled_is_what_is_trained(model, tmp_path):
    run(written(tmp_path, model, train__dump_batches=6, loop__evaluate="never"), tmp_path / "run")
    sides, same = trained_and_sampled(tmp_path / "run" / "round-1")
    assert sides == same == 48
    final = json.loads((tmp_path / "run/round-1/final_metrics.json").read_text())
    assert final["job_metadata"]["output_model"] == str(tmp_path / "run/round-1/train/model")
    assert final["job_metadata"]["status"] == "completed"
    rows = [exp for exp in Table(tmp_path / "run/round-1/experience").records() if exp.truncate_status]
    assert rows, "some answers were cut by max_tokens: they have no stop token"
    result = CliRunner().invoke(app, ["explain", str(tmp_path / "run"), "--json"])
    assert result.exit_code == 0, result.output
    assert "dpo" in result.output


def test_what_an_endpoint_sampled_is_what_is_trained(model, tmp_path):
    with served(Engine.load(model)) as server:
        config = written(
            tmp_path, model, train__dump_batches=6, loop__evaluate="never",
            policy={"base_url": f"{server.url}/v1", "model": "tiny", "return_token_ids": True, "logprobs": True},
        )  # fmt: skip
        run(config, tmp_path / "run")
    sides, same = trained_and_sampled(tmp_path / "run" / "round-1")
    assert sides == same > 0


def write_gym_rollouts(path: Path, model: Path) -> None:
    """Rollouts as NeMo Gym writes them, with the ids that the model sampled; later ones are better."""
    engine = Engine.load(model)
    with open(path, "w") as file:
        for task in range(6):
            question = {"role": "user", "content": f"task {task}: say something"}
            prompt = engine.prompt_ids((Message(**question),), ())
            (result,) = engine.generate([Request(prompt, Sampling(max_tokens=4, n=4, seed=task))])
            for choice in result.choices:
                answer = {
                    "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": choice.text}],
                    "prompt_token_ids": prompt.tolist(), "generation_token_ids": choice.tokens.tolist(),
                    "generation_log_probs": choice.logprobs.tolist(),
                }  # fmt: skip
                row = {
                    "responses_create_params": {"input": [question]}, "response": {"output": [answer]},
                    "reward": choice.index / 4, "_ng_task_index": task,
                    "_ng_rollout_index": choice.index,
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")


def test_what_a_gym_file_recorded_is_what_is_trained_and_its_ledger_adds_up(model, tmp_path):
    write_gym_rollouts(tmp_path / "rollouts.jsonl", model)
    config = written(
        tmp_path, model, sources={"paths": ["rollouts.jsonl"]}, collect={}, loop__evaluate="never",
        train__dump_batches=6,
    )  # fmt: skip
    run(config, tmp_path / "run")
    sides, same = trained_and_sampled(tmp_path / "run" / "round-1")
    assert sides == same > 0
    (ledger,) = [build_ledger(*place) for place in train_folders(tmp_path / "run")]
    assert ledger.problems == []
    assert ledger.accounts[0].turns == 24
    assert ledger.accounts[0].num_recorded > 0


def test_the_tokens_section_counts_in_a_run(model, tmp_path):
    config = written(tmp_path, model, tokens={"max_length": 29, "truncation": "drop"}, loop__evaluate="never")
    folder = tmp_path / "run"
    run(config, folder)
    manifest = json.loads((folder / "round-1/tokens/manifest.json").read_text())
    assert manifest["options"]["max_length"] == 29
    lines: list[str] = []
    run(written(tmp_path, model, tokens={"max_length": 28}, loop__evaluate="never"), folder, lines)
    assert [line.split(":")[0] for line in lines if line.endswith("started")] == ["round-1/tokens", "round-1/train"]


def test_rounds_use_the_model_of_the_round_before_and_all_experience(model, tmp_path):
    folder = tmp_path / "run"
    run(written(tmp_path, model, loop__rounds=2, loop__evaluate="never"), folder)
    collected = json.loads((folder / "round-2/collection/collection.json").read_text())
    assert collected["identity"]["policy.model"] == str(folder / "round-1/train/model")
    stages = json.loads((folder / "manifest.json").read_text())["stages"]
    assert stages["round-2/pairs"]["result"]["pairs"] > stages["round-1/pairs"]["result"]["pairs"]
    state = json.loads((folder / "round-2/train/train.json").read_text())
    assert state["state"] == "completed"


def test_a_gate_that_stays_closed_is_an_error_with_exit_code_2(model, tmp_path):
    config = written(tmp_path, model, evaluate__gate={"min_improvement": 100.0, "min_tasks": 2})
    with pytest.raises(GateClosed, match="gate stays closed") as caught:
        run(config, tmp_path / "run")
    assert caught.value.exit_code == 2
    assert (tmp_path / "run/report.html").exists()


def test_the_plan_says_what_is_done_and_what_to_expect(model, tmp_path):
    config = written(tmp_path, model)
    flow = Flow(load_config(config, environment={}), tmp_path / "run", base=tmp_path)
    rows = plan_rows(flow)
    assert [name for name, _, _ in rows] == [
        f"round-1/{n}" for n in ("collect", "pairs", "tokens", "train", "evaluate")
    ]
    assert rows[0][1:] == ("new", "8 tasks, 8 runs, 8 answers a step, at most 4,096 tokens a step")
    assert not (tmp_path / "run").exists()


def test_no_pairs_end_with_one_line_and_a_failed_stage(model, tmp_path):
    config = written(tmp_path, model, pairs__min_gap=50.0)
    command = [sys.executable, "-m", "pairwright.cli", "run", str(config), "--output", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "no pairs: all " in done.stderr.splitlines()[-1]
    stages = json.loads((tmp_path / "run/manifest.json").read_text())["stages"]
    assert stages["round-1/pairs"]["state"] == "failed"


def imported(folder: Path, model: Path, rows: str, **changes) -> Path:
    """A configuration that imports these rows instead of collecting."""
    (folder / "rows.jsonl").write_text(rows)
    changes = {"sources__paths": ["rows.jsonl"], "loop__evaluate": "never", **changes}
    path = written(folder, model, **changes)
    config = json.loads(path.read_text()) | {"collect": {}, "model": str(model)}
    path.write_text(json.dumps(config))
    return path


def scored(task: int, answer: str, score: float) -> str:
    messages = [{"role": "user", "content": f"question {task}"}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages, "score": score, "task_id": str(task)}) + "\n"


@pytest.mark.parametrize(
    ("rows", "changes", "message"),
    [
        ("{torn", {}, "nothing was imported"),
        (scored(0, "a", 1), {"sources__reward": "scroe"}, "did you mean 'score'"),
    ],
)
def test_an_import_that_did_nothing_is_a_failed_stage(model, tmp_path, rows, changes, message):
    with pytest.raises(PairwrightError, match=message):
        run(imported(tmp_path, model, rows, **changes), tmp_path / "run")
    stages = json.loads((tmp_path / "run/manifest.json").read_text())["stages"]
    assert [(name, stage["state"]) for name, stage in stages.items()] == [("round-1/import", "failed")]


def test_a_run_filters_experiences_and_pairs_by_its_configuration(model, tmp_path):
    rows = "".join(scored(task, text, score) for task in range(4) for text, score in (("a", 1), ("b", 0), ("c", 0.5)))
    config = imported(tmp_path, model, rows, pairs__where="reward != 0.5", train__where="task IN ('0', '2')")
    run(config, tmp_path / "run")
    funnel = json.loads((tmp_path / "run/round-1/pairs/funnel.json").read_text())
    assert funnel["stages"][0]["drops"][0] | {"examples": []} == {
        "reason": "filtered by --where", "count": 4, "examples": [],
    }  # fmt: skip
    state = json.loads((tmp_path / "run/round-1/train/train.json").read_text())
    assert (state["where"], state["counts"]["dpo"]["filtered by --where"]) == ("task IN ('0', '2')", 2)


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["collect", "pairs", "tokens", "train", "evaluate"])
@pytest.mark.parametrize("delay", [0.0, 0.4])
def test_a_run_killed_in_any_stage_resumes_to_the_same_pairs_and_weights(stage, delay, model, tmp_path):
    config = written(tmp_path, model)
    run(config, tmp_path / "whole")
    command = [sys.executable, "-m", "pairwright.cli", "run", str(config), "--output", str(tmp_path / "cut")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
    for line in process.stderr:
        if line.startswith("stage ") and f"round-1/{stage} " in line and line.rstrip().endswith("started"):
            break
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = subprocess.run([*command, "--resume"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("round-1/pairs/pairs.parquet", "round-1/train/model/model.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_the_tokens_stage_tells_what_is_refused_and_stops_where_nothing_is_left(model, tmp_path):
    plain, called = pair_of([Message("assistant", "no")]), pair_of([CALL])
    config = load_config(written(tmp_path, model), environment={})
    write_pairs(tmp_path / "pairs", [pairs_to_batch([plain, called])])
    lines: list[str] = []
    found = tokens_stage(config, tmp_path / "pairs", model, tmp_path / "tokens", View(say=lines.append))
    assert (found["exact"], found["refused"], found["with_dropped_prompt_content"]) == (1, {"dropped": 1}, 2)
    assert "warning: 1 of 2 items are refused: dropped 1" in lines
    assert f"why pairs are refused: pairwright tokens show {tmp_path / 'tokens'} --tokenizer {model}" in lines
    assert any("tool schemas of the prompt" in line for line in lines)
    write_pairs(tmp_path / "calls", [pairs_to_batch([called])])
    with pytest.raises(PairwrightError, match=r"no pair could be encoded: .'dropped': 1.; pairwright tokens show"):
        tokens_stage(config, tmp_path / "calls", model, tmp_path / "none", View())
    allowed = load_config(written(tmp_path, model, tokens__allow_dropped=True), environment={})
    found = tokens_stage(allowed, tmp_path / "calls", model, tmp_path / "allowed", View())
    assert (found["exact"], found["with_dropped_content"]) == (0, 1)
