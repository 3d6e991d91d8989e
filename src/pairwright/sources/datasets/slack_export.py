"""Slack and Discord exports: channel messages in which a bot answers people; reactions are the scores.

    {channel, messages: [{ts, user | bot_id, text, thread_ts, reactions: [{name, count}]}]}, or the list alone
    {channel, messages: [{timestamp, author{name, isBot}, content, reactions: [{emoji{name}, count}]}]} (Discord)

Each message of a bot is an experience; its prompt is the messages since the bot's previous message, within the thread
if there is one. More thumbs up than down give reward 1, more down reward 0; without reactions there is no reward.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.row_names import words_of
from pairwright.sources.fields import (
    BadRecord,
    identifier,
    list_or_empty,
    object_or_empty,
    objects_in,
    score,
    small_fields,
    value_at,
    words,
)
from pairwright.sources.format import Format, Options, Origin, Rejected

NAME = "slack"
_GOOD = words("+1 thumbsup white_check_mark heavy_check_mark heart tada 100 pray 👍")
_BAD = words("-1 thumbsdown x no_entry disappointed negative_squared_cross_mark 👎")
_BOTS = words("bot assistant ai chatbot")


def _messages(value: Any) -> list[Json]:
    return list(map(_as_slack, objects_in(value.get("messages") if isinstance(value, dict) else value)))


def _as_slack(item: Json) -> Json:
    """Return a Discord message with Slack's field names."""
    author, sent = object_or_empty(item.get("author")), item.get("timestamp")
    if "isBot" not in author or not isinstance(sent, str):
        return item
    reactions = [
        {"name": value_at(one, "emoji.name"), "count": value_at(one, "count")}
        for one in list_or_empty(item.get("reactions"))
    ]
    named = {"ts": sent, "text": item.get("content"), "user": author.get("name"), "reactions": reactions}
    return {"id": item.get("id"), **named, **({"bot_id": author.get("id", "bot")} if author["isBot"] else {})}


def matches(value: Any) -> bool:
    """Whether these are messages of a channel, with `ts`, a user and a text each."""
    listed = _messages(value)
    return (
        bool(listed)
        and all("ts" in item and "text" in item and "role" not in item for item in listed)
        and any("user" in item or "bot_id" in item for item in listed)
    )


def _is_bot(item: Json) -> bool:
    if item.get("bot_id") or item.get("subtype") == "bot_message":
        return True
    names = [item.get("user"), item.get("username")]
    return any(isinstance(name, str) and not _BOTS.isdisjoint(words_of(name)) for name in names)


def _reward(item: Json) -> float | None:
    balance = 0.0
    for reaction in objects_in(item.get("reactions")):
        name = str(reaction.get("name", "")).partition("::")[0]
        balance += ((name in _GOOD) - (name in _BAD)) * (score(reaction.get("count", 1)) or 0.0)
    return float(balance > 0) if balance else None


def read_unit(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield an experience for each message of a bot that follows another author's message."""
    # Slack's times are seconds, Discord's are ISO 8601 text.
    listed = sorted(_messages(value), key=lambda item: (score(item.get("ts")) or 0.0, str(item.get("ts"))))
    if not any(map(_is_bot, listed)):
        people = list(dict.fromkeys(str(item.get("user")) for item in listed))[:4]
        roles = ", ".join(f"{name}: {'assistant' if name == people[-1] else 'user'}" for name in people)
        raise BadRecord(
            f"no message of a bot; name one with --map 'messages=messages,role=user,content=text,roles={{{roles}}}'"
        )
    channel = value.get("channel", value.get("name")) if isinstance(value, dict) else None
    asked: dict[Any, list[Message]] = {}
    number = 0
    for item in listed:
        said = item.get("text")
        if not isinstance(said, str) or not said.strip():
            continue
        thread = identifier(item.get("thread_ts"))
        # The first message of a thread may lack `thread_ts`, so a thread starts with the last message outside threads.
        waiting = asked.setdefault(thread, [*asked.get(None, [])[-1:]] if thread is not None else [])
        if not _is_bot(item):
            waiting.append(Message("user", said))
            continue
        if waiting:
            info = small_fields(item, frozenset({"text", "reactions"}))
            yield Parts(
                NAME,
                origin.at(origin.line, origin.ordinal + number),
                prompt=tuple(waiting),
                completion=[Message("assistant", said)],
                reward=_reward(item),
                info={**info, **({"channel": channel} if isinstance(channel, str) else {})},
            )
            number += 1
        asked[thread] = []
    if not number:
        raise BadRecord("no message of a bot follows a message of somebody else")


FORMAT = Format(NAME, "file", matches, read_unit, "Slack exports with a bot in the channel")
