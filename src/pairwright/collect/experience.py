"""One candidate of a step as an experience, with token ids and log-probabilities where they are exact.

The id is the candidate's place (batch, task, run, step, position) and a hash of prompt and completion: the same
candidate recorded again has the same id, another one never has.
"""

from typing import Any

import numpy as np

from pairwright.canonical import canonical_messages, content_hash
from pairwright.collect.completion import Completion
from pairwright.collect.tasks import Task
from pairwright.messages import Json, Message
from pairwright.records import EID, Experience, Kind


def experience_of(
    task: Task,
    *,
    prompt: tuple[Message, ...],
    tools: tuple[Json, ...],
    prompt_hash: str,
    step: int,
    step_name: str | None,
    number: int,
    messages: tuple[Message, ...],
    completion: Completion | None,
    score: float | None,
    components: Json,
    info: Json,
    metrics: Json,
    model_version: str | int | None,
) -> Experience:
    suffix = content_hash(prompt_hash, number, canonical_messages(messages))[:24]
    facts: Json = {"candidate": number, **({} if step_name is None else {"step_name": step_name})}
    arrays: dict[str, Any] = {}
    if completion is not None:
        facts |= facts_of(completion)
        arrays = arrays_of(completion)
    return Experience(
        eid=EID(task.batch, task.id, task.run, step, suffix),
        kind=Kind.SINGLE_TURN if len(messages) == 1 else Kind.MULTI_TURN,
        prompt=prompt,
        tools=tools,
        completion=messages,
        reward=score,
        reward_components=components,
        truncate_status="response_truncated" if completion and completion.finish_reason == "length" else None,
        model_version=model_version,
        info={**facts, **info},
        metrics=metrics,
        **arrays,
    )


def facts_of(completion: Completion) -> Json:
    """What is worth keeping of an answer beside its message; log-probabilities only where no token ids hold them."""
    facts: Json = {"finish_reason": completion.finish_reason, "response_id": completion.response_id}
    if completion.logprobs is not None and completion.token_texts is not None:
        facts["logprobs"] = {"tokens": completion.token_texts, "logprobs": completion.logprobs}
    return {key: value for key, value in facts.items() if value is not None}


def arrays_of(completion: Completion) -> dict[str, Any]:
    """Prompt and answer as one sequence of ids, if both are known; all of the answer was generated."""
    prompt, answer = completion.prompt_ids, completion.token_ids
    if not prompt or not answer:
        return {}
    arrays: dict[str, Any] = {
        "tokens": np.array(prompt + answer, dtype=np.int32),
        "prompt_length": len(prompt),
    }
    if completion.logprobs is not None and len(completion.logprobs) == len(answer):
        arrays["logprobs"] = np.array(completion.logprobs, dtype=np.float32)
    return arrays
