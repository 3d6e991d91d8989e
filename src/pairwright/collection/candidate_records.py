"""Candidates of a step as experiences."""

from pairwright.collection.policies import Completion
from pairwright.collection.sampled_tokens import Sampled
from pairwright.collection.tasks import Task
from pairwright.generate.template_variables import KEY
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json, Message, canonical_messages, content_hash
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind


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
    sampled: Sampled,
    score: float | None,
    components: Json,
    info: Json,
    metrics: Json,
    model_version: str | int | None,
) -> Experience:
    # the id depends on content only: a repeated run gets the same ids, which the runner recognises
    suffix = content_hash(prompt_hash, number, canonical_messages(messages))[:24]
    facts: Json = {"candidate": number, **({} if step_name is None else {"step_name": step_name})}
    info = {**facts, **facts_of_turns(sampled), **info}
    if not info.get(KEY):
        info.pop(KEY, None)
    is_cut = any(completion is not None and completion.finish_reason == "length" for completion in sampled.completions)
    return Experience(
        eid=EID(task.batch, task.id, task.run, step, suffix),
        kind=Kind.SINGLE_TURN if len(messages) == 1 else Kind.MULTI_TURN,
        prompt=prompt,
        tools=tools,
        completion=messages,
        reward=score,
        reward_components=components,
        truncate_status="response_truncated" if is_cut else None,
        model_version=model_version,
        errors=tuple(error_sites([*prompt, *messages], list(tools), result_error_kind)),
        info=info,
        metrics=metrics,
        **sampled.arrays,
    )


def facts_of_turns(sampled: Sampled) -> Json:
    """Fields of `info` from the answers of a candidate; lists have one item per generated message."""
    turns = [{} if completion is None else facts_of(completion) for completion in sampled.completions]
    facts: Json = {}
    if len(turns) == 1:
        facts = turns[0]
    else:
        names = {"finish_reason": "finish_reasons", "response_id": "response_ids", "logprobs": "logprobs"}
        for name, plural in names.items():
            values = [turn.get(name) for turn in turns]
            if any(value is not None for value in values):
                facts[plural] = values
    if sampled.without_ids is not None:
        facts["without_ids"] = sampled.without_ids
    if sampled.has_other_tools:
        facts["has_other_tools"] = True
    if sampled.variables:
        facts[KEY] = sampled.variables
    return facts


def facts_of(completion: Completion) -> Json:
    """Fields of `info` from one answer; log-probabilities only if there are no token ids to store them with."""
    facts: Json = {"finish_reason": completion.finish_reason, "response_id": completion.response_id}
    if completion.logprobs is not None and completion.token_texts is not None:
        facts["logprobs"] = {"tokens": completion.token_texts, "logprobs": completion.logprobs}
    return {key: value for key, value in facts.items() if value is not None}
