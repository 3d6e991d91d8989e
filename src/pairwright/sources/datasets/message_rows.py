"""Logs and tables with one message per row: `{conversation_id, role, content, created_at, ...}`.

Rows with the same conversation id form a conversation, anywhere in the file; JSON Lines of messages without any id are
one conversation. The rows of a conversation are sorted by number (`turn`, `position` ...), else by time, else kept in
file order. Fields equal in all rows (task, model, ...) belong to the conversation; others are in
`info["message_fields"]`, one object per message. Conversations whose messages have different scores are refused, since
none is known to be the overall score. If messages name their parent, every path to a last message is an experience.
"""

import math
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from pairwright.errors import RecordError
from pairwright.records.messages import Json
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.datasets.openai_chat import PARENTS
from pairwright.sources.datasets.own_turns import mapped_turn
from pairwright.sources.datasets.row_names import MODELS, is_score_name, plain_name, speaker_role, words_of
from pairwright.sources.datasets.rows import read_turns, score_in
from pairwright.sources.field_map import FieldMap, parse_path, remove_paths, value_at_path
from pairwright.sources.fields import BadRecord, identifier, items, score, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.identity import session_run
from pairwright.sources.score_values import verdict
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.row_fields import TASK_KEYS, task_of, tools_of

NAME = "message-rows"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Names of the conversation id, as `plain_name` returns them; the first name found in any row is used.
CONVERSATION_IDS = _words(
    """conversation_id conversation_uuid session_id session_uuid thread_id chat_id dialog_id dialogue_id trajectory_id
    rollout_id episode_id run_id trace_id interaction_id message_tree_id conversation session thread
    dialog dialogue chat"""
)
_NUMBERS = (
    *("turn", "turn_id"),
    *(f"{item}_{number}" for item in _words("turn message msg utterance sequence seq step position order line")
      for number in _words("index number num no nr idx")),
    *_words("position sequence seq order ordinal idx index step"),
)  # fmt: skip
_TIMES = _words(
    """created_at timestamp time created sent_at date datetime created_time create_time ts zeit zeitstempel datum
    fecha 日時"""
)
# Forms of times besides ISO 8601; all values of a column have the same form.
_DATES = ("%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%m/%d/%y", "%d/%m/%y", "%d.%m.%y")
_CLOCKS = ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p")
_IDS = _words("message_id message_uuid msg_id uuid id")
_ROLES = _words("role message_role sender_role author_role")
_SPEAKERS = _words(
    "sender speaker author from who participant sender_type author_type speaker_type participant_type direction "
    "absender sprecher rolle rol remitente emisor auteur locuteur 送信者 発言者 话者 发送者 角色"
)
_TEXTS = _words(
    """content text message body message_content message_text value utterance nachricht mensaje texte texto
    メッセージ 内容 消息 本文"""
)
_MAX_BRANCHES = 256
# Fields of a message besides role and text; in a table, calls may be JSON text.
_MESSAGE_KEYS = (
    *("tool_calls", "function_call", "tool_call_id", "name", "reasoning_content", "reasoning", "thinking"),
    *("weight", "train", "loss_weight"),
)
_WEIGHTS = frozenset({"weight", "train", "loss_weight"})
_JSON_KEYS = frozenset({"tool_calls", "function_call"})


def matches(value: Any) -> bool:
    """Whether the records of a file are messages with conversation ids, and a model's answer is among them."""
    return matches_transcript(value) and _shared_key(value, CONVERSATION_IDS) is not None


def matches_transcript(value: Any) -> bool:
    """Whether the lines are messages of one conversation without an id (`openai-chat` reads JSON lists of messages)."""
    if not isinstance(value, list) or len(value) < 2 or not all(map(_is_message, value)):
        return False
    return any(_role(row) == "assistant" for row in value)


def read(value: Any, origin: Origin, options: Options, name: str = NAME) -> Iterator[Parts | Rejected]:
    rows = items(value, "rows")
    if "session" in options.map:
        rows = [turn for number, row in enumerate(rows) for turn in _mapped_rows(row, options.map, number)]
    key = _shared_key(rows, CONVERSATION_IDS)
    roots = _roots(rows) if key is None else {}
    conversations: dict[int | str | None, list[tuple[int, Json]]] = {}  # (row number, row)
    for number, row in enumerate(rows):
        conversation = identifier(row.get(key)) if key is not None and isinstance(row, dict) else roots.get(number)
        if not isinstance(row, dict) or (key is not None and conversation is None):
            reason = f"row {number + 1}: no {key}, which other rows have" if isinstance(row, dict) else "no object"
            yield Rejected(origin.file, None if origin.line is None else number + 1, reason, name)
        else:
            conversations.setdefault(conversation, []).append((number, row))
    for position, (conversation, numbered) in enumerate(conversations.items()):
        line = None if origin.line is None else numbered[0][0] + 1
        try:
            for branch, way in enumerate(_ways([row for _, row in numbered])):
                # Each branch is a separate run; 256 run numbers are reserved per conversation.
                place = origin.at(line, position * _MAX_BRANCHES + branch)
                yield _read_conversation(name, conversation, branch, way, place, options)
        except (BadRecord, RecordError) as error:
            where = "" if conversation is None else f"conversation {conversation!r}: "
            yield Rejected(origin.file, line, f"{where}{error}", name)


def _read_conversation(
    name: str, conversation: int | str | None, branch: int, rows: list[Json], origin: Origin, options: Options
) -> Parts:
    if conversation is None and sum(_role(row) == "system" for row in rows) > 1:
        raise BadRecord("several system messages, and no field that names the conversation of a message")
    messages = read_turns([_chat_turn(row, number) for number, row in enumerate(rows)], "rows")
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("no message of the assistant, so there is no completion")
    if not prompt:
        raise BadRecord("begins with a message of the assistant, so there is no prompt")
    rewards = {found[0]: found[1] for row in rows if (found := score_in(row, options))[0] is not None}
    if len(rewards) > 1:
        raise BadRecord(f"its messages have different scores: {', '.join(map(str, rewards))}; set one with --scores")
    reward, components = next(iter(rewards.items()), (None, None))
    shared = {key: value for key, value in rows[0].items() if all(row.get(key) == value for row in rows[1:])}
    tools = next((tools for row in rows if (tools := tools_of(row))), [])
    models = {row[key] for row in rows for key in MODELS if _role(row) == "assistant" and identifier(row.get(key))}
    task = task_of(shared)
    leftovers = []
    for row in rows:
        known = _read_keys(row) | shared.keys()
        leftovers.append({key: value for key, value in row.items() if key not in known and value is not None})
    read_keys = _read_keys(shared) | {key for key in TASK_KEYS if shared.get(key) == task}
    info = {
        "session_id": conversation,
        **{key: value for key, value in shared.items() if key not in read_keys},
        "message_fields": leftovers if any(leftovers) else None,
    }
    return Parts(
        name,
        origin,
        task=task,
        run=session_run(conversation, origin, branch),
        prompt=prompt,
        completion=completion,
        tools=tools,
        reward=reward,
        reward_components=components,
        info=small_fields(info, frozenset()),
        model_version=next(iter(models)) if len(models) == 1 else None,
    )


def _shared_key(rows: list[Any], names: tuple[str, ...]) -> str | None:
    """Return the key of the first of these names that has a value in any row."""
    keys = {
        plain_name(key): key
        for row in rows
        if isinstance(row, dict)
        for key, value in row.items()
        if value is not None and value != ""
    }
    return next((keys[name] for name in names if name in keys), None)


def _roots(rows: list[Any]) -> dict[int, int | str]:
    """Return the id of the first message in each row's tree, by row number; {} if rows do not name their parents."""
    id_key, parent_key = _link_keys(rows)
    if parent_key is None or not all(isinstance(row, dict) for row in rows):
        return {}
    if id_key is None:
        raise BadRecord(f"{parent_key} names messages by an id that no field of theirs has")
    parents = {identifier(row.get(id_key)): identifier(row.get(parent_key)) for row in rows}
    roots: dict[int, int | str] = {}
    for number, row in enumerate(rows):
        name = identifier(row.get(id_key))
        seen: set[int | str | None] = {None}
        while (parent := parents.get(name)) is not None and parent not in seen:
            seen.add(name)
            name = parent
        if name is not None:
            roots[number] = name
    return roots


def _link_keys(rows: list[Any]) -> tuple[str | None, str | None]:
    """Return the keys of a message's id and of its parent's; an id of an unusual name is found by its values."""
    rows = [row for row in rows if isinstance(row, dict)]
    id_key, parent_key = _shared_key(rows, _IDS), _shared_key(rows, PARENTS)
    if id_key is None and parent_key is not None:
        parents = {identifier(row.get(parent_key)) for row in rows} - {None}
        others = (key for key in rows[0] if key != parent_key)
        id_key = next((key for key in others if parents <= {identifier(row.get(key)) for row in rows}), None)
    return id_key, parent_key


def _in_order(rows: list[Json]) -> list[Json]:
    """Sort rows by number, else by time, if all have one; rows with equal times stay in file order."""
    for names, read_values in ((_NUMBERS, _numbers), (_TIMES, _times)):
        key = _shared_key(rows, names)
        orders = [] if key is None else [_sorted(values) for values in read_values([row.get(key) for row in rows])]
        if any(order != orders[0] for order in orders):
            raise BadRecord(f"{key}: {rows[0].get(key or '')!r} may have the day or the month first, and the order of "
                            "the messages depends on it")  # fmt: skip
        if orders:
            return [rows[number] for number in orders[0]]
    return rows


def _sorted(known: list[float]) -> list[int]:
    """Return the positions in ascending order; equal values keep file order, reversed if the newest row is first."""
    is_newest_first = known[0] > known[-1] and known == sorted(known, reverse=True)
    numbers = range(len(known) - 1, -1, -1) if is_newest_first else range(len(known))
    return sorted(numbers, key=known.__getitem__)


def _numbers(values: list[Any]) -> Iterator[list[float]]:
    known = [number for value in values if (number := score(value)) is not None and not math.isnan(number)]
    if len(known) == len(values):
        yield known


def _times(values: list[Any]) -> Iterator[list[float]]:
    """Yield the values as times, in each form that all of them have."""
    known = [number for value in values if (number := _seconds(value)) is not None and not math.isnan(number)]
    if len(known) == len(values):
        yield known
        return
    for form in (f"{date} {clock}" for date in _DATES for clock in _CLOCKS):
        with suppress(ValueError):
            texts = [str(value).replace(",", "").strip() for value in values]
            yield [datetime.strptime(text, form).replace(tzinfo=UTC).timestamp() for text in texts]


def _seconds(value: Any) -> float | None:
    """Return a time (seconds, milliseconds or ISO 8601 text) as a number; units do not mix within a conversation."""
    if isinstance(value, dict):  # {created: 1705313000000}
        value = value.get("created", value.get("start"))
    number = score(value)
    if number is not None or not isinstance(value, str):
        return number
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        return None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _ways(rows: list[Json]) -> list[list[Json]]:
    """Return the paths from a first message to a last one; rows without parents form one path, in order."""
    ordered = _in_order(rows)
    id_key, parent_key = _link_keys(rows)
    if id_key is None or parent_key is None:
        return [ordered]
    by_id = {identifier(row.get(id_key)): row for row in ordered}
    parents = [identifier(row.get(parent_key)) for row in ordered]
    if len(by_id) < len(rows) or None in by_id:
        raise BadRecord(f"{parent_key} names messages by their {id_key}, which is missing or repeats")
    missing = next((parent for parent in parents if parent is not None and parent not in by_id), None)
    if missing is not None:
        raise BadRecord(f"{parent_key}: no message {missing!r}: the conversation is incomplete")
    ways, followed = [], set(parents)
    for last in (row for row in ordered if row[id_key] not in followed):
        way, row = [last], last
        while (parent := identifier(row.get(parent_key))) is not None:
            row = by_id[parent]
            way.append(row)
            if len(way) > len(rows):
                raise BadRecord(f"{parent_key}: the messages form a cycle")
        ways.append(way[::-1])
    if not ways or len(ways) > _MAX_BRANCHES:
        raise BadRecord(f"{parent_key}: the messages have {len(ways)} branches, expected 1 to {_MAX_BRANCHES}")
    return ways


@lru_cache(maxsize=4096)
def _find_key(keys: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return next((key for name in names for key in keys if plain_name(key) == name), None)


def _role(row: Json) -> str | None:
    key = _speaker(row)
    role = speaker_role(row[key]) if key is not None else None
    return role or next((role for name, value in row.items() if (role := _flagged_role(name, value))), None)


def _flagged_role(name: str, value: Any) -> str | None:
    """Return the role that a flag implies: `is_bot: false` is the user."""
    words, flag = words_of(name), verdict(value)
    if len(words) != 2 or words[0] not in ("is", "from") or flag not in (0.0, 1.0):
        return None
    role = speaker_role(words[1])
    return role if flag else {"user": "assistant", "assistant": "user"}.get(role or "")


def _speaker(row: Json) -> str | None:
    """Return the key of the role; without one, of the first speaker whose role is known."""
    keys = _speaker_keys(tuple(row))
    if len(keys) == 1:
        return keys[0]
    return next((key for key in keys if speaker_role(row[key])), keys[0] if keys else None)


@lru_cache(maxsize=4096)
def _speaker_keys(keys: tuple[str, ...]) -> list[str]:
    role = _find_key(keys, _ROLES)
    return [key for name in _SPEAKERS for key in keys if plain_name(key) == name] if role is None else [role]


def _read_keys(row: Json) -> set[str]:
    fields = (_speaker(row), _find_key(tuple(row), _TEXTS), _find_key(tuple(row), CONVERSATION_IDS))
    return {key for key in fields if key is not None} | {"tools", "functions", *_MESSAGE_KEYS}


def _is_message(row: Any) -> bool:
    if not isinstance(row, dict) or _role(row) is None or "messages" in row:
        return False
    key = _find_key(tuple(row), _TEXTS)
    return (key is not None and isinstance(row[key], str | list | None)) or any(row.get(key) for key in _JSON_KEYS)


def _chat_turn(row: Json, number: int) -> Json:
    """Return a row as a chat message, without fields of the conversation or the log."""
    role, key = _role(row), _find_key(tuple(row), _TEXTS)
    if role is None:
        said = row.get(_speaker(row) or "")
        raise BadRecord(
            f"message {number}: {said!r:.40} is not a role; assign one with --map 'session=FIELD,roles={{...}}'"
        )
    turn: Json = {"role": role, "content": None if key is None else row[key]}
    turn |= {name: row[name] for name in _MESSAGE_KEYS if row.get(name) not in (None, "")}
    turn |= {name: decode_json_text(turn[name]) for name in _JSON_KEYS & turn.keys()}
    return turn | {name: _weight(turn[name]) for name in _WEIGHTS & turn.keys()}


def _mapped_rows(row: Any, fields: FieldMap, number: int) -> list[Any]:
    """Return a row with the mapped message under its usual names, followed by the result of its call."""
    if not isinstance(row, dict):
        return [row]
    session = value_at_path(row, parse_path(fields.fields["session"]))
    rest: Json = remove_paths(row, fields.paths())
    for target, name in (("task", "task_id"), ("model", "model"), ("run", "run")):
        if target in fields:
            rest[name] = fields.optional(row, target)
    if "reward" in fields:
        rest = {key: value for key, value in rest.items() if not is_score_name(key)}
        rest["reward"] = fields.candidates(row, "reward")[0]
    turns = mapped_turn(row, fields, f"row {number + 1}", number)
    return [{**(rest if turn is turns[0] else {}), "conversation_id": session, **turn} for turn in turns]


def _weight(value: Any) -> Any:
    """Return a weight as a JSON value; in a CSV cell it is text."""
    if not isinstance(value, str):
        return value
    number = {"true": 1.0, "false": 0.0}.get(value.strip().lower(), score(value))
    if number is None:
        raise BadRecord(f"weight: got {value!r:.40}, expected a number, true or false")
    return number


FORMAT = Format(
    NAME,
    "file",
    matches,
    read,
    "Logs and tables with one message a row",
    matches_named=lambda value: isinstance(value, dict),
    is_general=True,
)
# A variant of `openai-chat`, whose first variant has already claimed JSON lists of messages.
TRANSCRIPT_FORMAT = Format(
    "openai-chat",
    "file",
    matches_transcript,
    lambda value, origin, options: read(value, origin, options, "openai-chat"),
    "messages of one conversation, one a line",
    is_general=True,
)
