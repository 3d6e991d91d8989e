"""Collections record or report every run; killed ones resume without losing or repeating requests and records."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from collection.killed_script import SlowPolicy, play
from pairwright import Table
from pairwright.collection import CollectError, Completion, collect, current_recorder, step
from pairwright.collection.finished_runs import Ledger
from pairwright.config import Config
from pairwright.errors import ConfigError
from pairwright.paths.writing import FolderInUse
from pairwright.records.messages import Message

pytestmark = pytest.mark.stress

SCRIPT = Path(__file__).with_name("killed_script.py")


class Echo:
    """A policy that says the question back, at once."""

    name = "echo"

    def __init__(self):
        self.asked = []

    async def complete(self, ask):
        self.asked.append(ask)
        await asyncio.sleep(0)
        return [
            Completion(message=Message("assistant", f"{ask.messages[-1].text}!{number}"), num_tokens=2)
            for number in range(ask.n)
        ]

    async def close(self):
        pass


def settings(**options) -> Config:
    return Config.model_validate({"collect": {"num_tasks": 3, **options}})


def rows(folder: Path):
    return {record.eid.uid: record for record in Table(folder / "experience", create=False).records()}


def test_a_killed_collection_resumes(tmp_path):
    straight, killed, log = tmp_path / "straight", tmp_path / "killed", tmp_path / "asked.log"
    config = Config.model_validate({"seed": 5, "collect": {"num_tasks": 30, "num_runs": 2, "max_concurrency": 8}})
    collect(config, output=straight, workflow=play, policy=SlowPolicy(tmp_path / "straight.log", 0.0))
    kills, chance = 0, random.Random(1)
    while True:
        delay = "0.05" if kills < 3 else "0"
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(killed), str(log), delay])
        before = log.read_text().count("\n") if log.exists() else 0
        goal = before + chance.randrange(10, 60)
        while kills < 3 and process.poll() is None and (log.read_text().count("\n") if log.exists() else 0) < goal:
            time.sleep(0.002)
        if kills == 3:
            assert process.wait() == 0
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        ledger = killed / "collection" / "ledger.jsonl"
        acknowledged = {(e["task"], e["run"]) for e in map(json.loads, ledger.read_text().splitlines())}
        recorded = Counter((record.eid.task, record.eid.run) for record in rows(killed).values())
        assert all(recorded[key] == 13 for key in acknowledged)
    assert rows(killed) == rows(straight)
    assert len(rows(killed)) == Table(killed / "experience").count() == 60 * 13
    asked = Counter(log.read_text().splitlines())
    assert len(asked) == 60 * 5
    assert asked.total() - len(asked) <= kills * 8  # asked twice: at most what was in flight when it was killed
    assert not (killed / "collection" / "calls.jsonl").exists()
    told = [json.loads(line) for line in (killed / "data_collection_progress.jsonl").read_text().splitlines()]
    same = ("run_number", "num_trajectories", "num_dpo_pairs", "avg_reward", "min_reward", "max_reward")
    history = json.loads((straight / "collection_history.json").read_text())
    assert [[entry[key] for key in same] for entry in told] == [[entry[key] for key in same] for entry in history]


def test_the_files_of_nat_are_there_with_its_fields(tmp_path):
    async def work(task, policy, recorder):
        if (task.id, task.run) == (2, 1):
            raise ValueError("no")
        async with recorder.step("q") as s:
            for number, answer in enumerate(await policy.complete(s.prompt, n=3)):
                s.candidate(answer, score=[0, 1, 1][number] + task.run)

    collect(settings(num_runs=2), output=tmp_path, workflow=work, policy=Echo())
    history = json.loads((tmp_path / "collection_history.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "data_collection_progress.jsonl").read_text().splitlines()]
    assert history == lines
    first, second = history
    expected = {"run_number": 0, "num_trajectories": 3, "num_dpo_pairs": 6, "avg_reward": 2 / 3, "min_reward": 0.0, "max_reward": 1.0}  # fmt: skip
    assert {key: first[key] for key in expected} == expected
    assert (second["num_trajectories"], second["num_failed"], second["max_reward"]) == (2, 1, 2.0)
    assert set(first) >= {"timestamp", "run_id"}
    final = json.loads((tmp_path / "final_metrics.json").read_text())
    assert final["collection_summary"] == {"total_trajectories": 5, "total_dpo_pairs": 10, "avg_reward": (2 / 3 + 5 / 3) / 2}  # fmt: skip
    assert (final["status"], final["progress"], final["num_collection_runs"]) == ("completed", 100.0, 2)
    assert set(final) == {"run_id", "timestamp", "status", "message", "progress", "num_collection_runs", "total_trajectory_groups", "collection_summary", "job_metadata"}  # fmt: skip


def test_every_kind_of_failure_is_reported_with_its_place(tmp_path):
    async def work(task, policy, recorder):
        if task.id == 0:
            raise KeyError("missing field")
        if task.id == 1:
            await asyncio.sleep(60)
        if task.id == 2:
            recorder.step("q").candidate([])
        if task.id == 3:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(60))
                group.create_task(boom())
        if task.id == 4:
            raise TimeoutError("the workflow's own")

    async def boom():
        raise RuntimeError("deep")

    collected = collect(settings(num_tasks=6, task_timeout_seconds=2), output=tmp_path, workflow=work, policy=Echo())
    assert collected.status.failures == {"workflow": 3, "timeout": 1, "record": 1}
    told = {entry.task: entry.message for entry in collected.errors}
    assert told[0].startswith("KeyError: 'missing field' (test_runner.py:")
    assert told[1] == "took longer than 2 s"
    assert "RuntimeError: deep (test_runner.py:" in told[3]
    assert "TimeoutError: the workflow's own" in told[4]
    assert collected.status.num_done == 1


def test_stopping_at_the_first_failure_raises_and_keeps_what_was_done(tmp_path):
    async def work(task, policy, recorder):
        if task.id == 1:
            raise ValueError("broken")
        recorder.trajectory("q", "a", reward=1)

    options = {"continue_on_collection_error": False, "max_concurrency": 1}
    with pytest.raises(CollectError, match=r"task 1, run 0 failed \(workflow\): ValueError: broken.*--resume"):
        collect(settings(**options), output=tmp_path, workflow=work, policy=Echo())
    assert len(rows(tmp_path)) == 1
    assert json.loads((tmp_path / "final_metrics.json").read_text())["status"] == "failed"


def test_a_collection_is_not_continued_by_accident_or_with_other_settings(tmp_path):
    async def work(task, policy, recorder):
        recorder.trajectory("q", f"a{task.run}", reward=task.run)

    collect(settings(), output=tmp_path, workflow=work, policy=Echo())
    with pytest.raises(CollectError, match="already has a collection: add --resume"):
        collect(settings(), output=tmp_path, workflow=work, policy=Echo())
    other = Config.model_validate({"seed": 1, "policy": {"temperature": 0.5}, "collect": {"num_tasks": 3}})
    with pytest.raises(CollectError, match=r"seed was 0, is 1; policy.temperature was 1.0, is 0.5"):
        collect(other, output=tmp_path, workflow=work, policy=Echo(), resume=True)
    more = collect(settings(num_tasks=4, num_runs=2), output=tmp_path, workflow=work, policy=Echo(), resume=True)
    assert (more.status.num_before, more.status.num_done, more.status.num_pairs) == (3, 8, 4)
    assert len(rows(tmp_path)) == 8


def test_two_processes_never_collect_into_one_folder(tmp_path):
    (tmp_path / "collection").mkdir()
    held = Ledger(tmp_path / "collection" / "ledger.jsonl")

    async def work(task):
        pass

    with pytest.raises(FolderInUse, match="in use by process"):
        collect(settings(), output=tmp_path, workflow=work, policy=Echo())
    held.close()
    assert collect(settings(), output=tmp_path, workflow=work, policy=Echo(), resume=True).status.num_done == 3


def test_a_torn_last_line_of_the_ledger_and_of_the_calls_is_left_out(tmp_path):
    async def work(task, policy, recorder):
        (answer,) = await policy.complete("q")
        if task.id == 2 and len(echo.asked) == 3:
            raise ValueError("first time")
        recorder.trajectory("q", answer, reward=1)

    echo = Echo()
    collect(settings(max_concurrency=1), output=tmp_path, workflow=work, policy=echo)
    for name in ("ledger.jsonl", "calls.jsonl"):
        with open(tmp_path / "collection" / name, "ab") as file:
            file.write(b'{"task": 2, "ru')
    echo.asked.append("so that the second time goes well")
    again = collect(settings(), output=tmp_path, workflow=work, policy=echo, resume=True)
    assert again.status.num_done == 3
    assert len(echo.asked) == 4  # the answer of the run that failed was known


def test_seeds_belong_to_task_run_and_question_not_to_the_order(tmp_path):
    async def work(task, policy, recorder):
        for question in ("a", "b", "a"):
            await policy.complete(question)

    seeds = []
    for concurrency in (1, 7):
        echo = Echo()
        collect(
            settings(num_runs=2, max_concurrency=concurrency), output=tmp_path / str(concurrency), workflow=work,
            policy=echo,
        )  # fmt: skip
        seeds.append(sorted((ask.messages[-1].text, ask.seed) for ask in echo.asked))
    assert seeds[0] == seeds[1]
    assert len({seed for _, seed in seeds[0]}) == 18


def test_deep_code_records_without_a_recorder_and_runs_do_not_mix(tmp_path):
    async def deep(task, turn):
        async with step(f"turn {turn}", name="deep") as s:
            await asyncio.sleep(0)
            s.candidate(f"answer of {task.id}", score=turn)

    async def work(task):
        await asyncio.gather(*(asyncio.create_task(deep(task, turn)) for turn in range(3)))

    collect(settings(num_tasks=20), output=tmp_path, workflow=work, policy=Echo())
    found = rows(tmp_path).values()
    assert len(found) == 60
    assert all(record.completion[0].text == f"answer of {record.eid.task}" for record in found)
    assert {(record.eid.step, record.reward, record.info["step_name"]) for record in found} == {(n, n, "deep") for n in range(3)}  # fmt: skip
    assert current_recorder() is None


def test_outside_of_a_collection_recording_does_nothing():
    async def main():
        async with step("q") as s:
            s.candidate("a", score=1)
        with step("q") as s:
            s.candidate("b")

    asyncio.run(main())


def test_an_invalid_workflow_is_refused(tmp_path):
    def asks_for_more(task, policy, recorder, browser):
        pass

    with pytest.raises(ConfigError, match=r"a function of \(task, policy, recorder\)"):
        collect(settings(), output=tmp_path, workflow=asks_for_more, policy=Echo())
    with pytest.raises(ConfigError, match=r"collect\.workflow"):
        collect(settings(), output=tmp_path, policy=Echo())
    assert not (tmp_path / "collection").exists()
