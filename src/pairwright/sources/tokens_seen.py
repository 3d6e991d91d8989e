"""Token ids and log-probabilities that a rollout recorded, turn by turn.

They are the sequence only if each turn's prompt continues what came before it; else the turns were re-rendered on the
way and no single sequence exists.
"""

from typing import Any

import msgspec
import numpy as np

from pairwright.messages import Json


class TurnTokens(msgspec.Struct, frozen=True):
    """What one request to the model recorded: its whole prompt, what it generated, and the log-probabilities."""

    prompt: list[int]
    generated: list[int]
    logprobs: list[float] | None = None


def turn_tokens(prompt: Any, generated: Any, logprobs: Any) -> TurnTokens | None:
    """The recorded fields of a turn if they are of use: non-empty lists of ids, log-probs one for each id."""
    if not _are_ids(prompt) or not _are_ids(generated) or not prompt or not generated:
        return None
    if (
        not isinstance(logprobs, list)
        or len(logprobs) != len(generated)
        or not all(issubclass(kind, int | float) and kind is not bool for kind in set(map(type, logprobs)))
    ):
        logprobs = None
    return TurnTokens(prompt=prompt, generated=generated, logprobs=logprobs)


def tokens_of_turns(turns: list[TurnTokens | None]) -> Json | None:
    """The token fields of an experience, or None where the turns do not continue one another.

    The prompt is the first turn's; after it, generated ids have mask 1 and what the environment added has mask 0.
    """
    if not turns or any(turn is None for turn in turns):
        return None
    known = [turn for turn in turns if turn is not None]
    ids = list(known[0].prompt)
    mask: list[bool] = []
    logprobs: list[float] | None = [] if all(turn.logprobs is not None for turn in known) else None
    for turn in known:
        if turn.prompt[: len(ids)] != ids:
            return None
        added = turn.prompt[len(ids) :]
        ids += added + turn.generated
        mask += [False] * len(added) + [True] * len(turn.generated)
        if logprobs is not None and turn.logprobs is not None:
            logprobs += [0.0] * len(added) + turn.logprobs
    arrays: Json = {
        "tokens": np.array(ids, dtype=np.int32),
        "prompt_length": len(known[0].prompt),
        "action_mask": np.array(mask, dtype=bool),
    }
    if logprobs is not None:
        arrays["logprobs"] = np.array(logprobs, dtype=np.float32)
    return arrays


def _are_ids(value: Any) -> bool:
    """Whether this is a list of token ids; by whole-list operations, since a rollout repeats thousands of them."""
    if not isinstance(value, list) or not value:
        return isinstance(value, list)
    return set(map(type, value)) == {int} and min(value) >= 0 and max(value) < 2**31
