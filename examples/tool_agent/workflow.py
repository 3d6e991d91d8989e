"""The workflows: the prompts of the model, and what is recorded.

practice   several scored candidates for one request: a group for pairs
exam       one greedy answer to a held-out request
"""

from typing import Any

from assistant import build_prompt, check, score


async def practice(task: Any, policy: Any, recorder: Any) -> None:
    async with recorder.step(build_prompt(task["request"])) as step:
        for answer in await policy.complete(step.prompt):
            parts = check(task, answer.text)
            step.candidate(answer, score=score(parts), components=parts)


async def exam(task: Any, policy: Any, recorder: Any) -> None:
    prompt = build_prompt(task["request"])
    (answer,) = await policy.complete(prompt, n=1)
    parts = check(task, answer.text)
    recorder.trajectory(prompt, answer, reward=parts["success"], components={**parts, "score": score(parts)})
