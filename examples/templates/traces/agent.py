"""The exam of this project: one answer to each held-out message. The training data are the traces."""


async def exam(task, policy, recorder):
    async with recorder.step(task["text"]) as step:
        for answer in await policy.complete(step.prompt, n=1):
            step.candidate(answer, score=float(answer.text.strip() == task["label"]))
