"""Fields of `info` that come from the answers of a candidate."""

from pairwright.collection.policies import Completion
from pairwright.collection.sampled_tokens import Sampled
from pairwright.generate.template_variables import KEY
from pairwright.records.messages import Json


def facts_of_turns(sampled: Sampled) -> Json:
    """Return fields of `info` from the answers of a candidate; lists have one item per generated message."""
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
    """Return fields of `info` from one answer; log-probabilities only if there are no token ids to store them with."""
    facts: Json = {"finish_reason": completion.finish_reason, "response_id": completion.response_id}
    if completion.logprobs is not None and completion.token_texts is not None:
        facts["logprobs"] = {"tokens": completion.token_texts, "logprobs": completion.logprobs}
    return {key: value for key, value in facts.items() if value is not None}
