"""A small NAT workflow for tests: it names a colour, with three candidates a turn that are pushed as TTC steps.

Its answers are made from the question, without a model, so that a run takes no time. The second turn has a list of
messages as input. A question with "tie" gives equal scores, one with "nan" a non-numeric score, and one with
"fail" raises.
"""

import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

from nat.builder.builder import Builder
from nat.builder.context import Context
from nat.builder.function_info import FunctionInfo
from nat.cli.register_workflow import register_function
from nat.data_models.function import FunctionBaseConfig
from nat.data_models.intermediate_step import IntermediateStepPayload, IntermediateStepType, TTCEventData

ANSWERS = ("it is red", "it is blue", "I do not know")


class ColourConfig(FunctionBaseConfig, name="pairwright_test_colours"):
    """No options."""


def push_candidate(turn: int, index: int, prompt: Any, answer: str, score: float) -> None:
    """Push a candidate as NAT's guide does: a TTC_START and a TTC_END of one id."""
    steps = Context.get().intermediate_step_manager
    step_id, name = uuid.uuid4().hex, "dpo_candidate_move"
    data = TTCEventData(turn_id=f"turn-{turn}", turn_index=turn, candidate_index=index, input=prompt)
    steps.push_intermediate_step(
        IntermediateStepPayload(event_type=IntermediateStepType.TTC_START, UUID=step_id, name=name, data=data)
    )
    steps.push_intermediate_step(
        IntermediateStepPayload(
            event_type=IntermediateStepType.TTC_END,
            UUID=step_id,
            name=name,
            data=data.model_copy(update={"output": answer, "score": score}),
            metadata={"is_selected": index == 0},
        )
    )


@register_function(config_type=ColourConfig)
async def colours(config: ColourConfig, builder: Builder) -> AsyncIterator[FunctionInfo]:
    async def answer(question: str) -> str:
        if "fail" in question or os.environ.get("COLOURS_FAIL"):
            raise RuntimeError(f"cannot play {question!r}")
        messages = [{"role": "system", "content": "Name a colour."}, {"role": "user", "content": f"Again: {question}"}]
        for turn, prompt in enumerate((question, messages)):
            scores = [0.9, 0.9, 0.9] if "tie" in question else [0.9, 0.5, float("nan") if "nan" in question else 0.1]
            for index, (text, score) in enumerate(zip(ANSWERS, scores, strict=True)):
                push_candidate(turn, index, prompt, f"{text}, {question}", score)
        return ANSWERS[0]

    yield FunctionInfo.from_fn(answer, description="Names a colour.")
