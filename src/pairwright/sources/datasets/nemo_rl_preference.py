"""NeMo RL preference data.

    {context, completions: [{rank, completion}, ...]}    PreferenceDataset: text or messages; a lower rank is better
    {prompt, chosen, rejected}                           BinaryPreferenceDataset; only if the format is given by name,
                                                         since TRL uses the same keys. Text becomes a chat turn
    {prompt, chosen, rejected, reward_gap,               the same, as the script of NeMo Gym's DPO guide writes it
     chosen_reward, rejected_reward}

Two completions with different ranks are a preference. More than two, or two with equal ranks, become one experience
each, of one task with reward = -rank, from which pairs are built as usual. The `reward` of a completion, if present, is
the reward of its side or experience.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    is_preference_row,
    preference_from,
    preference_of_row,
    prompt_from,
)
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import BadRecord, items, mapping, score, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.row_fields import task_of, tools_of

NAME = "nemo-rl-preference"
_GUIDE_REWARDS = frozenset({"reward_gap", "chosen_reward", "rejected_reward"})
_READ = frozenset({"context", "completions", "prompt", "chosen", "rejected", "tools", *SCORES, *SYSTEMS})


def matches(value: Any) -> bool:
    if is_preference_row(value) and value.keys() >= _GUIDE_REWARDS:
        return isinstance(value["prompt"], str)
    if not isinstance(value, dict) or not isinstance(value.get("context"), str | list):
        return False
    completions = value.get("completions")
    return (
        isinstance(completions, list)
        and bool(completions)
        and all(isinstance(item, dict) and "rank" in item and "completion" in item for item in completions)
    )


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield one preference for two completions of different rank, else one experience per completion."""
    row = mapping(value, "row")
    if "completions" not in row:
        yield _binary(row, origin)
        return
    prompt = prompt_from(row.get("context"), "context")
    prompt = [*system_of(row, prompt), *prompt]
    # (rank, reward, answer, fields) of each completion
    ranked: list[tuple[float, float | None, list[Message], Json]] = []
    for number, item in enumerate(items(row["completions"], "completions")):
        where = f"completions[{number}]"
        item = mapping(item, where)
        rank = score(item.get("rank"))
        # NaN, the only number that is not equal to itself, has no place in an order.
        if rank is None or rank != rank:
            raise BadRecord(f"{where}.rank: expected a number, got {item.get('rank')!r}")
        reward = score(item.get("reward"))
        ranked.append((rank, reward, answer_from(item.get("completion"), f"{where}.completion"), item))
    if not ranked:
        raise BadRecord("completions: none")
    # NeMo RL's task_name is the name of the dataset, equal in all its rows: it stays in info.
    task = task_of({key: item for key, item in row.items() if key != "task_name"})
    tools, info = tools_of(row), small_fields(row, _READ)
    # Exactly two answers, one better: a preference. Otherwise each answer is an experience of its own (below).
    if len(ranked) == 2 and ranked[0][0] != ranked[1][0]:
        # Ascending ranks: the best answer first.
        (_, chosen_reward, chosen, _), (_, rejected_reward, rejected, _) = sorted(ranked, key=lambda item: item[0])
        yield preference_from(
            NAME,
            origin,
            task=task,
            prompt=prompt,
            chosen=chosen,
            rejected=rejected,
            tools=tools,
            chosen_reward=chosen_reward,
            rejected_reward=rejected_reward,
            info=info,
        )
        return
    for number, (rank, reward, completion, item) in enumerate(ranked):
        yield Parts(
            NAME,
            origin,
            task=task,
            run=number,
            prompt=prompt,
            completion=completion,
            tools=tools,
            # 0.0 - rank, since -rank would give -0.0 for the best rank 0.
            reward=0.0 - rank if reward is None else reward,
            row=item,
            info={**info, "rank": rank},
        )


def _binary(row: Json, origin: Origin) -> Parts:
    prompt, chosen, rejected = conversations_from(
        prompt_from(row.get("prompt"), "prompt"),
        answer_from(row.get("chosen"), "chosen"),
        answer_from(row.get("rejected"), "rejected"),
    )
    return preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


FORMAT = Format(NAME, "record", matches, read, "NeMo RL preference data", matches_named=is_preference_row)
