"""Run by test_runner in a separate process, which is killed: collects with a slow policy that logs its requests."""

import asyncio
import os
import random
import sys
from pathlib import Path

from pairwright.collection import Completion, collect
from pairwright.config import Config
from pairwright.records.messages import Message


class SlowPolicy:
    name = "slow"

    def __init__(self, log: Path, delay: float) -> None:
        self._delay = delay
        self._log = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)

    async def complete(self, ask):
        os.write(self._log, f"{ask.messages[-1].text}\n".encode())
        await asyncio.sleep(self._delay * random.random())
        return [Completion(message=Message("assistant", f"{(ask.seed >> 3) % 10}"), num_tokens=1) for _ in range(ask.n)]

    async def close(self):
        pass


async def play(task, policy, recorder):
    history = ""
    for turn in range(4):
        async with recorder.step(f"task {task.id} run {task.run} turn {turn}{history}") as s:
            answers = await policy.complete(s.prompt, n=3)
            for number, answer in enumerate(answers):
                s.candidate(answer, score=int(answer.text) + number)
        history = f" after {answers[0].text}"
    # a question outside of any step, and a trajectory whose reward is set at the end
    (summary,) = await policy.complete(f"task {task.id} run {task.run} summary{history}")
    recorder.trajectory(f"task {task.id}", summary)
    recorder.reward(float(summary.text))


if __name__ == "__main__":
    output, log, delay = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    config = Config.model_validate({"seed": 5, "collect": {"num_tasks": 30, "num_runs": 2, "max_concurrency": 8}})
    resume = (output / "collection").exists()
    collect(config, output=output, workflow=play, policy=SlowPolicy(log, delay), resume=resume)
