"""Token ids and log-probabilities recorded by a rollout, per turn.

They form one token sequence only if they have the prefix property: each turn's prompt extends the tokens before it.
Otherwise the conversation was re-rendered between turns. Includes the token fields of NeMo Gym items.
"""

from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np

from pairwright.records.messages import Json

_IDS = list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]  # stored as int32
_GENERATED = ("reasoning", "function_call", "custom_tool_call", "local_shell_call")


class TurnTokens(msgspec.Struct, frozen=True):
    """Tokens recorded for one model request: the full prompt, the generated ids, and their log-probabilities."""

    prompt: list[int]
    generated: list[int]
    logprobs: list[float] | None = None


def turn_tokens(prompt: Any, generated: Any, logprobs: Any) -> TurnTokens | None:
    """Return the recorded tokens of a turn, or None without valid ids; invalid log-probabilities are dropped."""
    if not are_ids(prompt) or not are_ids(generated) or not prompt or not generated:
        return None
    if (
        not isinstance(logprobs, list)
        or len(logprobs) != len(generated)
        or not all(issubclass(kind, int | float) and kind is not bool for kind in set(map(type, logprobs)))
    ):
        logprobs = None
    return TurnTokens(prompt=prompt, generated=generated, logprobs=logprobs)


def tokens_of_turns(turns: list[TurnTokens | None]) -> Json | None:
    """Return the token fields of an experience, or None without the prefix property.

    The prompt is that of the first turn. After it, generated ids have mask 1, tokens added by the environment mask 0.

    >>> turns = [TurnTokens([1, 2], [3], [-0.5]), TurnTokens([1, 2, 3, 9], [4], [-0.25])]
    >>> {name: np.asarray(value).tolist() for name, value in (tokens_of_turns(turns) or {}).items()}
    {'tokens': [1, 2, 3, 9, 4], 'prompt_length': 2, 'action_mask': [True, False, True], 'logprobs': [-0.5, 0.0, -0.25]}
    """
    known = [turn for turn in turns if turn is not None]
    if not turns or len(known) < len(turns):
        return None
    # `ids` are all tokens so far, prompt included; `mask` and `logprobs` cover those after the first prompt.
    ids = list(known[0].prompt)
    mask: list[bool] = []
    logprobs: list[float] | None = [] if all(turn.logprobs is not None for turn in known) else None
    for turn in known:
        # Prefix property: the prompt must repeat all previous ids, which a template may have rendered differently.
        if turn.prompt[: len(ids)] != ids:
            return None
        added = turn.prompt[len(ids) :]
        ids += added + turn.generated
        mask += [False] * len(added) + [True] * len(turn.generated)
        if logprobs is not None and turn.logprobs is not None:
            # Tokens of the environment were not sampled: their log-probability is 0.0.
            logprobs += [0.0] * len(added) + turn.logprobs
    arrays: Json = {
        "tokens": np.array(ids, dtype=np.int32),
        "prompt_length": len(known[0].prompt),
        "action_mask": np.array(mask, dtype=bool),
    }
    if logprobs is not None:
        arrays["logprobs"] = np.array(logprobs, dtype=np.float32)
    return arrays


def are_ids(value: Any) -> bool:
    """Whether the value is a list of token ids; checked in C, since the lists are long."""
    if not isinstance(value, list):
        return False
    try:
        msgspec.convert(value, _IDS)
        return True
    except msgspec.ValidationError:
        return False


def recorded_tokens(output: list[Any], info: Json) -> Json | None:
    """Return the token fields of an experience, or None; if they are dropped, the reason is stored in `info`."""
    # Fast exit for rollouts without token ids. Nested lists are searched below.
    if not any(isinstance(item, list) or "generation_token_ids" in item for item in output):
        return None
    turns, reason = _turns(output)
    arrays = None
    if turns and reason is None:
        try:
            arrays = tokens_of_turns(list(turns))
        except OverflowError:
            reason = "a log-probability that is not a number of 64 bits"
        if arrays is None:
            reason = reason or "a turn's prompt does not continue the tokens before it"
    if reason is not None:
        info["tokens_dropped"] = reason
    return arrays


def _turns(output: list[Any]) -> tuple[list[TurnTokens], str | None]:
    """Return the recorded tokens per turn, and the reason if they are unusable."""
    turns: list[TurnTokens] = []
    is_open = is_missing = False  # has the model written items since the last recorded ids?
    # Nested lists of items are allowed; `messages_from_items` has validated them.
    for item in chain.from_iterable(item if isinstance(item, list) else [item] for item in output):
        if item.get("role") != "assistant" and item.get("type") not in _GENERATED:
            is_missing, is_open = is_missing or is_open, False
            continue
        is_open = True
        if item.get("generation_token_ids"):
            turn = turn_tokens(
                item.get("prompt_token_ids"), item["generation_token_ids"], item.get("generation_log_probs")
            )
            if turn is None:
                return [], "token fields that are not lists of token ids"
            turns.append(turn)
            is_open = False
    if turns and (is_missing or is_open):
        return [], "some turns have no token ids"
    return turns, None
