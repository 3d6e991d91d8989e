"""A support desk: which team should answer a message? One question, several candidates, one score each."""

PROMPT = "{text}"  # for a pretrained model, describe the task here, and show two or three examples


async def play(task, policy, recorder):
    """Training: `policy.num_candidates` answers to each message, which are compared with each other."""
    async with recorder.step(PROMPT.format(text=task["text"])) as step:
        for answer in await policy.complete(step.prompt):
            step.candidate(answer)  # scored by `score` below


async def exam(task, policy, recorder):
    """Evaluation: one answer to each held-out message."""
    async with recorder.step(PROMPT.format(text=task["text"])) as step:
        for answer in await policy.complete(step.prompt, n=1):
            step.candidate(answer)


def score(task, candidate):
    """Return 1 for the right team. Partial credit helps if few answers are right."""
    return float(candidate.text.strip() == task["label"])
