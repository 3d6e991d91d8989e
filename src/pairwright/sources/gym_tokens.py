"""Token ids on the items of NeMo Gym rollouts.

The last item of what the model answered to one request carries `prompt_token_ids`, `generation_token_ids` and
`generation_log_probs`. They are used if every answer has them and each prompt continues the tokens before it; else they
are dropped, and `info["tokens_dropped"]` says why. Fields that are there but empty record nothing, so drop nothing.
"""

from typing import Any

from pairwright.messages import Json
from pairwright.sources.tokens_seen import TurnTokens, tokens_of_turns, turn_tokens

_GENERATED = ("reasoning", "function_call", "custom_tool_call", "local_shell_call")


def recorded_tokens(output: list[Any], info: Json) -> Json | None:
    """The token fields of an experience, or None; the reason for dropping them goes to `info`."""
    for item in output:
        if isinstance(item, list) or "generation_token_ids" in item:
            break
    else:
        return None
    turns, reason = _turns(output)
    arrays = None
    if turns and reason is None:
        try:
            arrays = tokens_of_turns(list(turns))
        except OverflowError:
            reason = "a log-probability that is no number of 64 bits"
        if arrays is None:
            reason = reason or "a turn's prompt does not continue the tokens before it"
    if reason is not None:
        info["tokens_dropped"] = reason
    return arrays


def _turns(output: list[Any]) -> tuple[list[TurnTokens], str | None]:
    """What the answers recorded, and the reason why it cannot be used."""
    turns: list[TurnTokens] = []
    is_open = is_missing = False  # has the model written items since the last recorded ids?
    for item in _flat(output):
        if not _is_generated(item):
            is_missing, is_open = is_missing or is_open, False
            continue
        is_open = True
        if item.get("generation_token_ids"):
            turn = turn_tokens(
                item.get("prompt_token_ids"), item["generation_token_ids"], item.get("generation_log_probs")
            )
            if turn is None:
                return [], "token fields that are no lists of token ids"
            turns.append(turn)
            is_open = False
    if turns and (is_missing or is_open):
        return [], "some turns have no token ids"
    return turns, None


def _flat(output: list[Any]) -> list[Json]:
    """The items, with those of nested lists in their place; messages_from_items has checked that this is all."""
    flat: list[Json] = []
    for item in output:
        flat += item if isinstance(item, list) else [item]
    return flat


def _is_generated(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in _GENERATED
