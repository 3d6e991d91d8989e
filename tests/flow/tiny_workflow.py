"""A workflow for the tests of the flow: a model says four tokens, the reward counts how few different ones."""


async def play(task, policy, recorder):
    async with recorder.step(f"task {task.id}: say something") as step:
        for answer in await policy.complete(step.prompt, n=4, max_tokens=4):
            step.candidate(answer, score=reward(answer))


async def exam(task, policy, recorder):
    prompt = f"exam {task.id}: say something"
    (answer,) = await policy.complete(prompt, n=1, max_tokens=4)
    recorder.trajectory(prompt, answer, reward=reward(answer))


def reward(answer):
    return 1.0 / len(set(answer.text)) if answer.text else 0.0
