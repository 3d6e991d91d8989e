"""Groups of experiences (by task, run or step), and preferences split into their sides."""

from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np
from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.experience import ARRAYS, EID, Experience, Kind, Side, SideOf
from pairwright.records.messages import Message, completion_of_text, text_prompt

_KEYS = {"task": "tid", "run": "rid", "step": "sid"}


def group_by(experiences: Iterable[Experience], by: Literal["task", "run", "step"]) -> dict[str, list[Experience]]:
    """Group experiences by `tid`, `rid` or `sid`, in input order.

    Args:
        experiences: A table, or any experiences.
        by: "task", "run", or "step" (all runs of a task at that step).

    >>> import pairwright as pw
    >>> runs = [pw.Experience(eid=pw.EID(task=task, run=run), kind="single_turn") for task in "ab" for run in (0, 1)]
    >>> {key: len(group) for key, group in pw.group_by(runs, "task").items()}
    {'["","a"]': 2, '["","b"]': 2}
    """
    if by not in _KEYS:
        raise RecordError("by", by, "'task', 'run' or 'step'")
    groups: dict[str, list[Experience]] = {}
    for exp in experiences:
        groups.setdefault(getattr(exp.eid, _KEYS[by]), []).append(exp)
    return groups


def split_preference(exp: Experience) -> tuple[Experience, Experience]:
    """Return the two sides of a preference as separate experiences, each with the shared prompt.

    Args:
        exp: A preference.

    >>> import pairwright as pw
    >>> good, bad = ({"role": "assistant", "content": text} for text in ("4", "5"))
    >>> preference = pw.Experience(kind="preference", prompt=[{"role": "user", "content": "2+2?"}],
    ...                            chosen=pw.Side(messages=[good]), rejected=pw.Side(messages=[bad]))
    >>> chosen, rejected = pw.split_preference(preference)
    >>> chosen.messages[-1].text, rejected.side_of.side
    ('4', 'rejected')
    """
    if exp.chosen is None or exp.rejected is None:
        raise RecordError("kind", exp.kind.value, "'preference': only a preference has sides to split")
    return _single(exp, exp.chosen, "chosen"), _single(exp, exp.rejected, "rejected")


class Conversation(NamedTuple):
    """Prompt and completion of an experience, or of one side of a preference."""

    prompt: tuple[Message, ...]
    completion: tuple[Message, ...]


def conversation_of(experience: Experience, side: Side | None = None) -> Conversation:
    """Return the messages of an experience or a side; a part recorded only as text becomes one message."""
    prompt = experience.prompt or text_prompt(experience.prompt_text)
    if side is None:
        completion, text = experience.completion, experience.response_text
    else:
        completion, text = side.messages, side.text
    return Conversation(prompt, completion or completion_of_text(text, prompt_is_text=not experience.prompt))


def _single(exp: Experience, side: Side, name: Literal["chosen", "rejected"]) -> Experience:
    fields: dict[str, Any] = dict.fromkeys((*ARRAYS, "prompt_length", "chosen", "rejected"))
    if exp.tokens is not None and side.tokens is not None:
        fields |= {
            "tokens": np.concatenate([exp.tokens, side.tokens]),
            "prompt_length": len(exp.tokens),
            "logprobs": side.logprobs,
            # without a mask, all tokens of the side are generated
            "action_mask": np.ones(len(side.tokens), bool) if side.action_mask is None else side.action_mask,
        }
    eid = exp.eid
    return replace(
        exp,
        eid=side.eid or EID(eid.batch, eid.task, eid.run, eid.step, f"{eid.suffix}.{name}"),
        kind=Kind.SINGLE_TURN if len(side.messages) <= 1 else Kind.MULTI_TURN,
        completion=side.messages,
        response_text=side.text,
        reward=side.reward,
        reward_components={},
        truncate_status=side.truncate_status,
        errors=side.errors,
        side_of=SideOf(preference=exp.eid, side=name),
        **fields,
    )
