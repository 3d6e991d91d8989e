"""What a run shows: numbered stages, one warning without signal, a closing line; and a saved configuration that runs."""

import itertools
import json

import pytest

from pairwright.cli.commands.run import LiveView
from pairwright.cli.progress_view import CollectView, figures
from pairwright.collection import Completion, collect
from pairwright.collection.counters import Status
from pairwright.config import Config, base_folder, load_config, printable_config
from pairwright.evaluation.held_out_runs import holdout_config
from pairwright.flow import Flow
from pairwright.flow.example import EXAMPLES, prepare
from pairwright.flow.stages import View
from pairwright.generate.batcher import Load
from pairwright.records.messages import Message


def test_stages_are_numbered_and_aligned_in_columns(capsys):
    with LiveView() as view:
        view.begin("round-1/pairs", 2, 5)
        view.say("round-1/pairs: started")
        view.say("warning: something else")
        view.begin("round-1/train", 4, 5)
        view.say("round-1/train: done in 3 s (steps 9)")
    assert capsys.readouterr().err.splitlines() == [
        "stage 2 of 5  round-1/pairs     started",
        "warning: something else",
        "stage 4 of 5  round-1/train     done in 3 s (steps 9)",
    ]


def test_the_number_of_stages_is_that_of_the_plan(tmp_path):
    for loop, number in (({"rounds": 1}, 5), ({"rounds": 3}, 13), ({"rounds": 3, "evaluate": "each"}, 15)):
        config = Config.model_validate({"model": str(tmp_path), "loop": loop})
        assert Flow(config, tmp_path / "run")._num_stages == number


class Same:
    name = "same"
    in_work = Load(queued=1)

    async def complete(self, ask):
        return [Completion(message=Message("assistant", str(number)), num_tokens=1) for number in range(ask.n)]

    async def close(self):
        pass


def collect_with(reward, output, watch=None, **policy):
    async def play(task, policy, recorder):
        async with recorder.step(f"task {task.id}") as step:
            for answer in await policy.complete(step.prompt):
                step.candidate(answer, score=reward(answer))

    config = Config.model_validate({"policy": {"num_candidates": 4, **policy}})
    tasks = [{"id": number} for number in range(12)]
    return collect(config, output=output, workflow=play, policy=Same(), tasks=tasks, watch=watch).status


def test_equal_rewards_are_reported_once_with_what_to_try(tmp_path, capsys):
    with CollectView() as view:
        status = collect_with(lambda answer: 0, tmp_path / "none", watch=view.show)
        view.show(status)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert len(lines) == 1
    assert "of 48 candidates none has a reward above 0" in lines[0]
    assert "Lower policy.temperature" in lines[0]
    assert "temperature" not in collect_with(lambda answer: 0, tmp_path / "cool", temperature=0.5).why_no_signal()
    assert "harder tasks" in collect_with(lambda answer: 1, tmp_path / "all").why_no_signal()
    assert collect_with(lambda answer: int(answer.text), tmp_path / "some").why_no_signal() is None
    # an exam, in which runs of the same model are not compared with each other
    assert collect_with(lambda answer: 1, tmp_path / "exam", num_candidates=1).why_no_signal() is None
    assert Status(num_runs=50, num_scored=39, reward_min=0, reward_max=0, is_compared=True).why_no_signal() is None


def test_requests_are_shown_by_state_with_the_tokens_of_those_in_work():
    load = Load(queued=4, prefill=2, decoding=1, num_prompt_tokens=50, num_tokens=300)
    status = Status(num_prompt_tokens=1000, load=load)
    status.started -= 3
    rows = figures(status)
    assert rows["requests"] == "4 queued, 2 prefill, 1 decoding"
    assert rows["tokens"] == "1,050 of prompts read, 300 written"
    assert 90 <= int(rows["tokens/s"]) <= 100
    assert figures(Status(num_asked=2))["requests"] == "2 waiting"


def test_the_time_left_counts_the_tokens_of_prompts_and_of_answers_in_work():
    # one run of four ended with 1,000 tokens; the others have 2,000 of their 3,000 already
    load = Load(decoding=3, num_prompt_tokens=1500, num_tokens=500)
    status = Status(num_runs=4, num_done=1, num_prompt_tokens=800, num_tokens=200, num_ended_tokens=1000, load=load)
    status.started -= 30
    assert 9.9 < status.seconds_left < 10.1
    assert Status(num_runs=4, load=load).seconds_left is None


def test_the_time_left_counts_runs_where_the_first_to_end_were_short():
    load = Load(decoding=3, num_prompt_tokens=1500, num_tokens=5000)
    status = Status(num_runs=4, num_done=1, num_prompt_tokens=800, num_tokens=200, num_ended_tokens=1000, load=load)
    status.started -= 30
    assert 89 < status.seconds_left < 91


def test_a_warning_of_the_policy_is_printed_once(capsys):
    with CollectView() as view:
        view.show(Status(warning="no tools"))
        view.show(Status(warning="no tools"))
    assert capsys.readouterr().err == "warning: no tools\n"


def test_what_is_loaded_is_printed_immediately(capsys):
    with CollectView() as view:
        view.show(Status(phase="loading models/base"))
        view.show(Status(phase="loading models/base"))
    assert capsys.readouterr().err == "loading models/base\n"


def test_answers_have_a_limit_and_the_exam_its_own():
    config = Config.model_validate({"evaluate": {"num_tasks": 3}})
    assert holdout_config(config, "m").policy.max_tokens == config.policy.max_tokens == 512
    config = Config.model_validate({"evaluate": {"num_tasks": 3, "max_tokens": 99}})
    assert holdout_config(config, "m").policy.max_tokens == 99


def test_a_saved_configuration_has_the_folder_of_its_paths(tmp_path, monkeypatch):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "hint.py").write_text("def give(case): ...\n")
    first = tmp_path / "project" / "config.yaml"
    first.write_text('{train: {sdpo: {hint: "hint.py:give"}}}')
    monkeypatch.chdir(tmp_path)
    saved = tmp_path / "runs" / "x" / "config.yaml"
    saved.parent.mkdir(parents=True)
    saved.write_text(json.dumps(printable_config(first, environment={})))
    again = load_config(saved, environment={})
    assert base_folder(again, saved) == tmp_path / "project"
    assert again.train.sdpo.hint == load_config(first, environment={}).train.sdpo.hint
    assert printable_config(saved, environment={})["base"] == str(tmp_path / "project")


def test_the_first_stage_of_the_demo_shows_its_steps(tmp_path, monkeypatch):
    script = tmp_path / "prepare.py"
    script.write_text(
        "import sys, pathlib\n"
        "pathlib.Path(sys.argv[1]).mkdir()\n"
        "print('step 20 of 40'); print('other'); print('step 40 of 40')\n"
    )
    monkeypatch.setattr("pairwright.flow.example.example_folder", lambda *_: tmp_path)
    steps = []
    prepare(
        EXAMPLES["tic-tac-toe"],
        tmp_path / "run",
        seed=0,
        view=View(counting=lambda done, total: steps.append((done, total))),
    )
    assert steps == [(20, 40), (40, 40)]


@pytest.mark.parametrize(("stage", "verb"), [("round-1/collect", "collecting"), ("round-1/evaluate", "examining")])
def test_the_figures_say_what_the_runs_are_for(capsys, monkeypatch, stage, verb):
    seconds = itertools.count(0, 100)
    monkeypatch.setattr("time.monotonic", lambda: float(next(seconds)))
    with LiveView() as view:
        view.begin(stage, 1, 5)
        view.collecting(Status(num_tasks=7))
    assert capsys.readouterr().err.startswith(f"{verb} tasks 7, ")
