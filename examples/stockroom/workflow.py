"""The workflows: the actions of the agent, and their records.

practice, exam              the tools answer immediately, and correctly
late_practice, late_exam    verdicts come after the last line; in practice, a fifth of them are wrong

A run is one experience. Its reward is the share of lines that were actually sent. `info.verdicts` has the verdict of
the tools on each generated turn that acted on a line (1 accepted, 0 refused), which turn credit uses.
"""

import random
from typing import Any

from world import ACCEPTED, MAX_TURNS, TOOLS, Order, prompt_of

WRONG = 0.2  # share of wrong verdicts in late_practice


async def practice(task: Any, policy: Any, recorder: Any) -> None:
    await _play(task, policy, recorder, Order(task.data))


async def exam(task: Any, policy: Any, recorder: Any) -> None:
    await _play(task, policy, recorder, Order(task.data))


async def late_practice(task: Any, policy: Any, recorder: Any) -> None:
    order = Order(task.data, late=True, wrong=WRONG, draw=random.Random(f"{task.seed} verdicts"))
    await _play(task, policy, recorder, order)


async def late_exam(task: Any, policy: Any, recorder: Any) -> None:
    await _play(task, policy, recorder, Order(task.data, late=True))


async def _play(task: Any, policy: Any, recorder: Any, order: Order) -> None:
    prompt = [{"role": "user", "content": prompt_of(task["order"])}]
    messages: list[Any] = []
    report, turn = "", 0
    for turn in range(MAX_TURNS):
        (answer,) = await policy.complete([*prompt, *messages], n=1, tools=TOOLS)
        messages.append(answer.message)
        if not answer.message.tool_calls:
            report = answer.message.text
            break
        for call in answer.message.tool_calls:
            result = order.answer(call.name, call.arguments, turn)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    verdicts: list[int | None] = [None] * (turn + 1)
    for line, number in order.calls.items():
        is_accepted = int(order.verdicts[line] == ACCEPTED)
        verdicts[number] = min(is_accepted, verdicts[number] if verdicts[number] is not None else 1)
    scores = order.score(report)
    recorder.trajectory(prompt, messages, reward=scores["lines"], components=scores, info={"verdicts": verdicts})
