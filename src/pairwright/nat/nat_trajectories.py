"""NAT's candidates and pairs, and conversion between its trajectories and our records.

A DPOItem has only texts. For a pair with tool calls, reasoning, tools or parts, the metadata of its trajectory has the
messages under `pairwright`, so that the conversion is lossless; items of other builders have only their texts.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nat.data_models.finetuning import DPOItem, OpenAIMessage, Trajectory, TrajectoryCollection

from pairwright.config import Config
from pairwright.config.config_file import adjust_config
from pairwright.errors import PairwrightError
from pairwright.pairs.build import build_pairs
from pairwright.pairs.container import Pairs
from pairwright.pairs.options import pair_options
from pairwright.records.experience import EID, Experience, Kind, Pair, Side
from pairwright.records.messages import Json, Message, canonical_messages, content_hash, prompt_hash, to_chat_message
from pairwright.sources.shapes.chat_messages import message_from_chat
from pairwright.store.table import Table

Prompt = list[OpenAIMessage] | str
# Metadata key of a trajectory for content that a DPOItem cannot represent.
WHOLE = "pairwright"
_INFO = ("example_id", "turn_id", "chosen_index", "rejected_index", "pair_id")  # metadata that a preference keeps


@dataclass
class CandidateStep:
    """A candidate of a turn, with NAT's fields; `experience` is the imported record."""

    example_id: str
    turn_id: str
    candidate_index: int
    prompt: Prompt
    response: str
    score: float
    raw_metadata: dict[str, Any] = field(default_factory=dict)
    experience: Experience | None = None


@dataclass
class PreferencePair:
    """A pair of candidates, with NAT's fields; `pair` is set if our funnel built the pair."""

    example_id: str
    turn_id: str
    prompt: Prompt
    chosen_response: str
    rejected_response: str
    chosen_score: float
    rejected_score: float
    score_diff: float
    chosen_index: int
    rejected_index: int
    metadata: dict[str, Any] = field(default_factory=dict)
    pair: Pair | None = None


def to_prompt(messages: Iterable[Message]) -> Prompt:
    """Return a prompt in NAT's form: the text of a single user message, else messages with their texts."""
    listed = list(messages)
    if not listed:
        return ""
    if len(listed) == 1 and listed[0].role == "user":
        return _text(listed[0])
    return [OpenAIMessage(role=message.role, content=_text(message)) for message in listed]


def to_response(messages: Iterable[Message]) -> str:
    """Return an answer in NAT's form: its text, or its messages as JSON if it has more than text."""
    listed = list(messages)
    if len(listed) == 1 and _is_plain(listed[0]):
        return _text(listed[0])
    return json.dumps([to_chat_message(message) for message in listed], ensure_ascii=False)


def from_prompt(prompt: Any) -> tuple[Message, ...]:
    """Invert `to_prompt`."""
    if isinstance(prompt, str):
        return (Message("user", prompt),)
    return tuple(Message(message.role, message.content) for message in prompt)


def _text(message: Message) -> str:
    if _is_plain(message):
        return message.text
    # Must be deterministic: `_messages` compares these texts to detect changed items.
    return json.dumps(to_chat_message(message), ensure_ascii=False)


def _is_plain(message: Message) -> bool:
    has_parts = isinstance(message.content, list)
    return not (message.tool_calls or message.reasoning or message.tool_call_id or message.name or has_parts)


def build_trajectory(pair: PreferencePair, *, reward_from_score_diff: bool) -> Trajectory:
    """Return the trajectory of a pair, with the metadata that NAT's builder writes and the ids of our pair."""
    names = ("chosen_score", "rejected_score", "chosen_index", "rejected_index")
    metadata = {
        "dpo_type": "preference_pair",
        **{name: getattr(pair, name) for name in ("score_diff", "example_id", "turn_id", *names)},
        **pair.metadata,
    }
    if pair.pair is not None:
        metadata["pair_id"] = pair.pair.id
        metadata["chosen_uid"], metadata["rejected_uid"] = pair.pair.chosen_eid.uid, pair.pair.rejected_eid.uid
        # For one answer of text on both sides, without tools, the item is complete.
        messages = (*pair.pair.prompt, *pair.pair.chosen, *pair.pair.rejected)
        has_one_answer = len(pair.pair.chosen) == len(pair.pair.rejected) == 1
        if not has_one_answer or pair.pair.tools or not all(map(_is_plain, messages)):
            metadata[WHOLE] = {
                "prompt": [to_chat_message(message) for message in pair.pair.prompt],
                "chosen": [to_chat_message(message) for message in pair.pair.chosen],
                "rejected": [to_chat_message(message) for message in pair.pair.rejected],
                "tools": list(pair.pair.tools),
            }
    item = DPOItem(prompt=pair.prompt, chosen_response=pair.chosen_response, rejected_response=pair.rejected_response)
    reward = pair.score_diff if reward_from_score_diff else pair.chosen_score
    return Trajectory(episode=[item], reward=reward, shaped_rewards=None, metadata=metadata)


@dataclass(frozen=True)
class Preferences:
    """The DPO items of a collection as preferences, with the position of each: group, trajectory, item."""

    experiences: list[Experience]
    places: dict[str, tuple[int, int, int]]  # uid -> indices of group, trajectory and item
    num_other: int
    """Episode items that are not DPOItem."""
    num_cut: int
    """Prompts reduced to their last message."""


def read_preferences(
    collection: TrajectoryCollection, *, whole_prompt: bool = True, by_prompt: bool = False
) -> Preferences:
    """Convert a collection, of any builder, to preferences in the same order.

    whole_prompt: False leaves only the last message of each prompt.
    by_prompt: The task is the prompt; by default it is NAT's example, if there is one.
    """
    experiences: list[Experience] = []
    places: dict[str, tuple[int, int, int]] = {}
    num_other = num_cut = 0
    for number, group in enumerate(collection.trajectories):
        for position, trajectory in enumerate(group):
            for place, item in enumerate(trajectory.episode):
                if not isinstance(item, DPOItem):
                    num_other += 1
                    continue
                prompt, tools, chosen, rejected = _messages(item, trajectory)
                if not whole_prompt and len(prompt) > 1:
                    prompt, num_cut = prompt[-1:], num_cut + 1
                metadata = trajectory.metadata or {}
                example = None if by_prompt else metadata.get("example_id")
                # Without an example, pairs of one prompt are one task, so that a split keeps them together.
                task = prompt_hash(prompt, tools) if example is None else str(example)
                # The position makes ids unique: an example may have many pairs, even equal ones.
                eid = EID(task=task, suffix=f"{len(experiences):08d}")
                preference = Experience(
                    kind=Kind.PREFERENCE,
                    eid=eid,
                    prompt=prompt,
                    tools=tools,
                    chosen=Side(messages=chosen, reward=_score(metadata, "chosen")),
                    rejected=Side(messages=rejected, reward=_score(metadata, "rejected")),
                    info={name: metadata[name] for name in _INFO if name in metadata},
                )
                places[preference.eid.uid] = (number, position, place)
                experiences.append(preference)
    return Preferences(experiences, places, num_other, num_cut)


def _messages(
    item: DPOItem, trajectory: Trajectory
) -> tuple[tuple[Message, ...], tuple[Json, ...], tuple[Message, ...], tuple[Message, ...]]:
    """Return prompt, tools and both answers of an item: from its metadata, unless the texts were changed since."""
    whole = (trajectory.metadata or {}).get(WHOLE)
    if isinstance(whole, dict):
        parts = [tuple(message_from_chat(chat) for chat in whole[name]) for name in ("prompt", "chosen", "rejected")]
        prompt, chosen, rejected = parts
        texts = (to_prompt(prompt), to_response(chosen), to_response(rejected))
        # Texts that were changed later take precedence over the metadata.
        if texts == (item.prompt, item.chosen_response, item.rejected_response):
            return prompt, tuple(whole["tools"]), chosen, rejected
    answers = [(Message("assistant", text),) for text in (item.chosen_response, item.rejected_response)]
    return from_prompt(item.prompt), (), answers[0], answers[1]


def _score(metadata: Json, side: str) -> float | None:
    score = metadata.get(f"{side}_score")
    return float(score) if isinstance(score, int | float) else None


def store_preferences(preferences: Preferences, folder: Path) -> Table:
    if not preferences.experiences:
        raise PairwrightError(f"no DPO items in the trajectories ({preferences.num_other} items of another kind)")
    table = Table(folder)
    table.append(preferences.experiences)
    return table


def select_trajectories(
    collection: TrajectoryCollection, folder: Path, *, seed: int = 0, **options: Any
) -> tuple[TrajectoryCollection, Json]:
    """Filter a collection with our funnel and options of `pairs`; returns the remaining trajectories in their groups,
    and the funnel. `folder` gets the table of preferences, and the pairs with funnel.json."""
    preferences = read_preferences(collection)
    table = store_preferences(preferences, folder / "preferences")
    config: Config = adjust_config(Config(), seed=seed, pairs={"strategy": "imported", **options})
    summary = build_pairs([table], folder / "pairs", pair_options(config))
    # Of equal pairs the funnel keeps the one with the largest gap; here the first one is kept, as in NAT.
    firsts: dict[str, str] = {}
    for record in preferences.experiences:
        assert record.chosen is not None
        assert record.rejected is not None
        key = _content_key(record.prompt, record.tools, record.chosen.messages, record.rejected.messages)
        firsts.setdefault(key, record.eid.uid)
    places = set()
    for pair in Pairs(folder / "pairs"):
        # With the strategy `imported`, the id of the chosen side is that of the preference.
        first = firsts[_content_key(pair.prompt, pair.tools, pair.chosen, pair.rejected)]
        places.add(preferences.places[first if config.pairs.dedupe else pair.chosen_eid.uid])
    groups: list[list[Trajectory]] = []
    for number, group in enumerate(collection.trajectories):
        groups.append([])
        for position, trajectory in enumerate(group):
            items = enumerate(trajectory.episode)
            if episode := [item for place, item in items if (number, position, place) in places]:
                groups[-1].append(trajectory.model_copy(update={"episode": episode}))
    return TrajectoryCollection(trajectories=[group for group in groups if group], run_id=collection.run_id), summary


def drops_of(funnel: Json) -> Counter[str]:
    drops: Counter[str] = Counter()
    for stage in funnel["stages"]:
        drops.update({drop["reason"]: drop["count"] for drop in stage["drops"]})
    return drops


def _content_key(
    prompt: Sequence[Message], tools: Sequence[Json], chosen: Sequence[Message], rejected: Sequence[Message]
) -> str:
    return content_hash(prompt_hash(prompt, tools), canonical_messages(chosen), canonical_messages(rejected))
