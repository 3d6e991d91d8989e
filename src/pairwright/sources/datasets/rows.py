"""Rows of user data: a prompt and an answer under any of their usual names, with a score.

    {prompt | input | question | instruction ..., completion | response | output ..., reward | score | correct ...}
    {question, responses: [text], scores: [number]}, {prompt, answers: [{answer, rank}]}      several candidates
    {prompt, response_a, response_b, winner}, {context, response1, response2, overall_preference}     preferences
    {conversations | conversation | dialog | messages | contents: [turn, ...], reward}        turns of any shape

row_layout.py or the user's `--map` identifies the fields. Text becomes a chat turn of the user or the assistant; a
prompt already rendered by a chat template is raw text (role `text`), like TRL's standard rows. A transcript
("\\n\\nHuman: ...") is split into turns. This format is the most general one and is tried last.
"""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from pairwright.errors import RecordError
from pairwright.records.messages import TEXT, Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.datasets.openai_chat import read_messages
from pairwright.sources.datasets.own_turns import exchange_in, is_from_model, is_step, step_turns, turns_in
from pairwright.sources.datasets.preference_rows import conversations_from, transcript_messages
from pairwright.sources.datasets.row_layout import MAX_ANSWERS, PROMPT_BODIES, Answer, Layout, arrange, find_sides
from pairwright.sources.datasets.row_map import apply_map
from pairwright.sources.datasets.row_names import (
    MODELS,
    RANKS,
    RENDERED,
    SPEAKERS,
    SYSTEMS,
    TOOLS,
    is_completion_name,
    is_score_name,
    plain_name,
    system_of,
)
from pairwright.sources.datasets.sharegpt import turns_of_values
from pairwright.sources.field_map import NO_MAP
from pairwright.sources.fields import BadRecord, has, kind_of, mapping, object_or_empty, objects_in, score, small_fields
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.roles import SYNONYMS
from pairwright.sources.score_values import nested_scores, read_score
from pairwright.sources.shapes.any_messages import answers as response_answers
from pairwright.sources.shapes.any_messages import conversation, decode_json_text
from pairwright.sources.shapes.row_fields import (
    REWARD_KEYS,
    SCORE_KEYS,
    TASK_KEYS,
    reward_in,
    reward_of,
    run_of,
    task_of,
    tools_of,
)
from pairwright.sources.shapes.traces import pick_reward

NAME = "rows"
_BODIES = ("text", "content", "message", "messages", "value")  # keys of a candidate object
_READ = frozenset({"tools", "functions", "reward_components", *SYSTEMS})
_DECIDES = "choose with"  # occurs in refusals that a map resolves
# Among ratings from 1 to 5, these values usually mean "not rated".
_NOT_RATED = (-1.0, 99.0, 999.0, -99.0, -999.0)
_NO_VALUE = frozenset(
    ("", "-", "--", "—", "?", "n/a", "na", "none", "null", "nan", "unrated", "not rated", "skip", "skipped")
)
_MAX_WORDS = 8  # distinct verdicts in a column; more are free text


def matches(value: Any) -> bool:
    """Whether a row has a prompt and an answer, or a conversation with an answer in it."""
    # Traces and spans also have an input and an output; read as a row, they would lose the calls inside.
    if not isinstance(value, dict) or any(map(_is_spans, value.items())):
        return False
    if "trace_id" in value and any(key in value for key in ("parent_id", "parent_run_id", "parent_span_id")):
        return False
    try:
        layout = arrange(apply_map(value, NO_MAP)[0])
        return layout.conversation is None or any(map(is_from_model, turns_in(layout.conversation) or ()))
    except BadRecord as error:
        return _DECIDES in str(error)  # a row, but the user must say how to read it
    except RecursionError:
        return False


def _is_spans(field: tuple[Any, Any]) -> bool:
    key, value = field
    is_named_so = isinstance(key, str) and key.lower().endswith("spans")
    return is_named_so and isinstance(value, list) and any(isinstance(item, dict) for item in value)


def refuse(rows: list[Any], options: Options) -> str | None:
    """Return why a file cannot be read as rows: a preference or score is ambiguous."""
    for row in rows:
        try:
            if isinstance(row, dict):
                arrange(apply_map(row, options.map)[0])
        except BadRecord as error:
            if _DECIDES in str(error):
                return str(error)
        except RecursionError:
            continue
    return doubtful_scores(rows) if options.reward is None and "reward" not in options.map else None


def doubtful_scores(rows: list[Json]) -> str | None:
    """Return why the user must confirm the scores of a file: some are not understood, or may mean "not rated"."""
    for key in dict.fromkeys(key for row in rows for key in row):
        if not is_score_name(key) and key not in REWARD_KEYS:
            continue
        values = [row[key] for row in rows if row.get(key) is not None]
        words = {value.strip() for value in values if isinstance(value, str)}
        unread = [word for word in words if read_score(word) is None and word.lower() not in _NO_VALUE]
        read = [number for value in values if (number := read_score(value)) is not None]
        if unread and read and len(words) <= _MAX_WORDS and all(len(word) <= 40 for word in unread):
            table = ", ".join(f"{word}: NUMBER" for word in sorted(words))
            return f"{key} has {unread[0]!r} beside scores; {_DECIDES} --map 'reward={key},scores={{{table}}}'"
        marks = [mark for mark in _NOT_RATED if mark in read]
        rest = {number for number in read if number not in _NOT_RATED}
        is_rating = bool(rest) and all(number.is_integer() and 0 <= number <= 10 for number in rest) and max(rest) > 1
        if marks and is_rating and plain_name(key) not in ("reward", "rewards"):
            mark = f"{marks[0]:g}"
            return (
                f"{key} has {mark} beside {min(rest):g} to {max(rest):g}, which may mean "
                f"that nobody rated it; {_DECIDES} --map "
                f"'reward={key},scores={{{mark}: null}}' or --map reward={key}"
            )
    return None


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield the preference of a row, or one experience for each of its answers."""
    row, rest = apply_map(mapping(value, "row"), options.map)
    layout, task = arrange(row), task_of(row)
    tools_key = next((key for key in TOOLS if row.get(key)), "tools")
    tools = tools_of({**row, "tools": row[tools_key]} if tools_key in row else row)
    if layout.conversation is not None:
        turns = read_turns(layout.conversation, layout.conversation_key)
        if layout.prompt is not None:
            turns = [*_read_prompt(layout.prompt, layout.prompt_key), *turns]
        prompt, completion = split_at_first_answer([*system_of(row, turns), *turns])
        if not completion:
            raise BadRecord(f"{layout.conversation_key}: no turn of the assistant, so there is no completion")
        sides = [completion]
    else:
        prompt, sides = _prompt_and_sides(row, layout)
    answers = layout.answers or (Answer(None, layout.conversation_key),)
    scores = [_score(row, answer, options, is_alone=len(sides) == 1) for answer in answers]
    if len(answers) == 1 and len(sides) > 1:  # the choices of one response
        answers, scores = answers * len(sides), scores * len(sides)
    # A mapped value under a usual name is not the row's own field of that name.
    used = (layout.used | _READ | {tools_key} | {key for _, _, keys in scores for key in keys}) - (
        row.keys() - rest.keys()
    )
    used |= {key for key in TASK_KEYS if task is not None and row.get(key) is not None and row[key] == task}
    info = small_fields(rest, frozenset(key for key in used if row.get(key) is rest.get(key)))
    shared: Json = {"task": task, "prompt": prompt, "tools": tools}
    if layout.best is not None and len(sides) == 2:
        best, other = layout.best, 1 - layout.best
        rewards: Json = {"chosen_reward": scores[best][0], "rejected_reward": scores[other][0]}
        yield Parts(NAME, origin, **shared, **rewards, chosen=sides[best], rejected=sides[other], info=info)
        return
    for number, (answer, completion, (reward, components, _)) in enumerate(zip(answers, sides, scores, strict=True)):
        if options.reward is None and (layout.best is not None or layout.is_tie):
            reward = 0.5 if layout.is_tie else float(number == layout.best)
        yield Parts(
            NAME,
            origin,
            **shared,
            # Each candidate is a separate run; this many run numbers are reserved per line.
            run=origin.ordinal * MAX_ANSWERS + number if len(sides) > 1 else run_of(row),
            completion=completion,
            reward=reward,
            reward_components=components,
            info={**info, **_info_of(answer)},
            model_version=_model(row, answer),
        )


def read_turns(value: Any, where: str) -> list[Message]:
    """Convert turns of any shape to messages; BadRecord for an invalid turn."""
    listed = turns_in(value)
    if listed is None:
        raise BadRecord(f"{where}: expected messages, got {kind_of(value)}")
    pairs = [pair for item in listed if (pair := exchange_in(item)) is not None]
    if len(pairs) == len(listed):
        return [Message(role, text) for pair in pairs for role, text in zip(("user", "assistant"), pair, strict=True)]
    if all(map(is_step, listed)):
        return read_messages(step_turns(listed), where)
    if all("from" in turn and "value" in turn for turn in listed):
        return turns_of_values(listed, where)
    if all("role" not in turn and "type" not in turn for turn in listed):
        return [Message(SPEAKERS[plain_name(key)], text) for turn in listed for key, text in turn.items()]
    turns = [_with_usual_role(turn) for turn in listed]
    if all(isinstance(turn.get("role"), str) and "parts" not in turn for turn in turns):
        return read_messages(turns, where)
    return conversation(turns, where, role="user")


def _with_usual_role(turn: Json) -> Json:
    """Return a turn with the usual name of its role, and with calls and results taken from its content parts."""
    role, content = turn.get("role"), turn.get("content")
    if not isinstance(role, str):
        return turn
    usual = SYNONYMS.get(role.lower(), role.lower())
    turn = turn if usual == role else {**turn, "role": usual}
    parts = content if isinstance(content, list) and all(map(has, content)) else []
    is_own = any(part.get("type") in ("tool_call", "tool_result") for part in parts)
    if not is_own or any("tool_use_id" in part for part in parts):  # Anthropic's blocks, read by `read_messages`
        return turn
    # Agent evaluators write {type: tool_call, tool_call_id, name, arguments}, {type: tool_result, ...}.
    calls = [
        {"id": part.get("tool_call_id", part.get("id")), **mapping(part.get("tool_call", part), "tool_call")}
        for part in parts
        if part.get("type") == "tool_call"
    ]
    results = [_result_in(part) for part in parts if part.get("type") == "tool_result"]
    rest = [part for part in parts if part.get("type") not in ("tool_call", "tool_result")]
    return {
        **turn,
        "content": results[0] if results and len(results) == 1 and not rest else [*results, *rest] or None,
        **({"tool_calls": calls} if calls else {}),
    }


def _result_in(part: Json) -> Any:
    """Return the result that a part of type `tool_result` holds, under any of its names."""
    for key in ("tool_result", "content", "output", "result", "text"):
        if key in part:
            return part[key]
    raise BadRecord(f"a tool_result with the fields {', '.join(sorted(part))}: none of them is known to be the result")


def _prompt_and_sides(row: Json, layout: Layout) -> tuple[list[Message], list[list[Message]]]:
    values = [answer.value for answer in layout.answers]
    exchanges = _exchanges(layout.prompt, [decode_json_text(value) for value in values])
    if exchanges is not None:
        return _split_conversations(row, [], exchanges)
    prompt_value = _only_text(layout.prompt)
    if prompt_value is not layout.prompt:  # inputs and outputs of a program, in tables of tracing tools
        layout, values = replace(layout, prompt=prompt_value), [_only_text(value) for value in values]
    if isinstance(layout.prompt, str) and any(mark in layout.prompt for mark in RENDERED):
        if not all(isinstance(value, str) for value in values):
            raise BadRecord(f"{layout.prompt_key}: a rendered prompt, but the answer is not text")
        return [Message(TEXT, layout.prompt)], [[Message(TEXT, value, generated=True)] for value in values]
    prompt = [] if layout.prompt is None else _read_prompt(layout.prompt, layout.prompt_key)
    if layout.context is not None:
        context = read_turns(layout.context, "context")
        prompt = prompt if context[-1:] == prompt else [*context, *prompt]
    sides = [
        side for answer, value in zip(layout.answers, values, strict=True) for side in _read_answer(value, answer.where)
    ]
    if not sides or not all(sides):
        raise BadRecord(f"{layout.answers[0].where}: no messages, so there is no answer")
    if all(side[0].is_generated for side in sides) and prompt:
        return [*system_of(row, prompt), *prompt], sides
    return _split_conversations(row, prompt, sides)


def _only_text(value: Any) -> Any:
    """Return the only text of an object that is JSON text, {"question": "..."}; any other value unchanged."""
    inside = decode_json_text(value) if isinstance(value, str) else None
    parts = [part for part in inside.values() if part not in (None, "")] if isinstance(inside, dict) else []
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else value


def _split_conversations(
    row: Json, prompt: list[Message], sides: list[list[Message]]
) -> tuple[list[Message], list[list[Message]]]:
    """Return the shared prompt of whole conversations, and the rest of each."""
    if len(sides) == 2:
        prompt, chosen, rejected = conversations_from(prompt, *sides)
        return [*system_of(row, prompt), *prompt], [chosen, rejected]
    if len(sides) == 1:
        shared, completion = split_at_first_answer(sides[0])
        if not completion:
            raise BadRecord("completion: no turn of the assistant")
        prompt = shared if shared[: len(prompt)] == prompt else [*prompt, *shared]
        return [*system_of(row, prompt), *prompt], [completion]
    splits = [split_at_first_answer(side) for side in sides]
    if any(shared != splits[0][0] or not completion for shared, completion in splits):
        raise BadRecord("completion: the candidates are conversations with different prompts")
    return [*system_of(row, splits[0][0]), *splits[0][0]], [completion for _, completion in splits]


def _exchanges(prompt: Any, values: list[Any]) -> list[list[Message]] | None:
    """Read a conversation stored as lists of texts: the user's turns, and the answers of each side."""
    asked = decode_json_text(prompt)
    if not isinstance(asked, list) or not asked or not all(isinstance(text, str) for text in asked):
        return None
    if len(values) < 2 or not all(isinstance(value, list) and len(value) == len(asked) for value in values):
        return None
    if not all(isinstance(text, str | None) for value in values for text in value):
        return None
    pairs = [zip(asked, value, strict=True) for value in values]
    return [
        [message for ask, say in side for message in (Message("user", ask), Message("assistant", say))]
        for side in pairs
    ]


def _read_prompt(value: Any, where: str) -> list[Message]:
    if turns_in(value) is not None:
        return read_turns(value, where)
    if isinstance(value, str):
        turns = transcript_messages(value) or [Message("user", value)]
        # The last turn of a transcript may be empty, for the model to write.
        return turns[:-1] if turns[-1].role == "assistant" and not turns[-1].text else turns
    if isinstance(value, dict):
        messages = conversation(value, where, role="user") if _is_envelope(value) else []
        if messages:
            return messages
        texts = [text for key, text in value.items() if plain_name(key) in PROMPT_BODIES and isinstance(text, str)]
        if len(texts) == 1:
            return [Message("user", texts[0])]
    raise BadRecord(f"{where}: expected text or messages, got {kind_of(value)}")


def _read_answer(value: Any, where: str) -> list[list[Message]]:
    """Return the messages of an answer; a response with several choices has several."""
    if turns_in(value) is not None:
        return [read_turns(value, where)]
    if isinstance(value, str | int | float):
        return [[Message("assistant", str(value))]]
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        return [[*read_messages([{"role": "assistant", "content": value}], where)]]
    if isinstance(value, dict):
        if isinstance(value.get("role"), str):
            return [read_turns([value], where)]
        if _is_envelope(value):
            return response_answers(value, where)
        key = next((key for key in value if is_completion_name(plain_name(key)) or key in _BODIES), None)
        if key is not None and value[key] is not None:
            return _read_answer(value[key], f"{where}.{key}")
    raise BadRecord(f"{where}: expected text or messages, got {kind_of(value)}")


def _is_envelope(value: Json) -> bool:
    return any(isinstance(value.get(key), list) for key in ("choices", "messages", "contents", "candidates", "output"))


def _score(
    row: Json, answer: Answer, options: Options, *, is_alone: bool
) -> tuple[float | None, Json | None, set[str]]:
    """Return the reward of an answer, its components, and the keys of the row that they came from."""
    item = object_or_empty(answer.value)
    numbers = {key: value for key, value in answer.scores.items() if not isinstance(value, str)}
    reward, components, keys = score_in({**item, **numbers}, options)
    if keys:
        return reward, components, set()
    return score_in(row, options) if is_alone else (None, None, set())


def score_in(row: Json, options: Options) -> tuple[float | None, Json | None, set[str]]:
    """Return reward, components and used keys of a row: from usual or other score names, or a judge's object."""
    reward, components = reward_of(row, options)
    if reward is not None or components:
        usual = reward_in(row)
        objects = {key for key in SCORE_KEYS if isinstance(row.get(key), dict)}
        return reward, components, objects | ({usual[0]} if usual is not None else set())
    named = {
        key: number for key, value in row.items() if is_score_name(key) and (number := read_score(value)) is not None
    }
    if not named:
        named = nested_scores({key: decode_json_text(value) for key, value in row.items()})
    if named:
        keys = {name.partition(".")[0] for name in named} & row.keys()
        return pick_reward(named, options.reward), (named if len(named) > 1 else None), keys
    for key, value in row.items():
        rank = score(value) if plain_name(key) in RANKS and options.reward is None else None
        if rank is not None:  # 0.0 - rank, since -rank would be -0.0 for rank 0
            return 0.0 - rank, None, {key}
    # SWE trajectories: whether the issue was resolved; anything else under this name is a reference.
    return (float(row["target"]), None, {"target"}) if isinstance(row.get("target"), bool) else (None, None, set())


def _model(row: Json, answer: Answer) -> str | None:
    named = [value for key, value in answer.scores.items() if "model" in key]
    item = object_or_empty(answer.value)
    values = [*named, answer.name, *map(item.get, MODELS), *map(row.get, MODELS)]
    return next((value for value in values if isinstance(value, str)), None)


def _info_of(answer: Answer) -> Json:
    item = object_or_empty(answer.value)
    if "role" in item:
        return {}
    known = {key for key in item if is_completion_name(plain_name(key)) or key in _BODIES or is_score_name(key)}
    return small_fields(item, frozenset(known | set(MODELS)))


def records_in(document: Any) -> list[Any]:
    """Return the rows of a document that stores them in a list, by id, or by column; else [].

    {tickets: [row, ...]}, {rows: [{row_idx, row: {}}]} of the dataset viewer, {id: row}, {id: [message, ...]},
    {prompt: [...], answer: [...]}
    """
    if not isinstance(document, dict) or any(map(_is_spans, document.items())):
        return []
    parts = list(document.values())
    # Two lists of texts for chosen and rejected are the turns of one conversation each.
    if len(parts) > 1 and all(isinstance(part, list) and len(part) > 1 for part in parts) and not find_sides(document):
        is_table = len(set(map(len, parts))) == 1 and not any(
            isinstance(x, dict | list) for part in parts for x in part
        )
        if is_table:
            return [dict(zip(document, cells, strict=True)) for cells in zip(*parts, strict=True)]
        # Ids have digits. Numbered candidates of one row have them, too: such a document matches as a row.
        chats = [{"id": key, "messages": part} for key, part in document.items() if any(map(str.isdigit, key))]
        return chats if len(chats) == len(parts) and all(map(matches, chats)) and not matches(document) else []
    if matches(document):  # a single row, even if it has lists
        return []
    if len(parts) > 1 and all(isinstance(part, dict) for part in parts):
        # A row among them that cannot be read, such as an empty chat, is refused alone.
        return parts if all(part.keys() == parts[0].keys() for part in parts) and any(map(matches, parts)) else []
    lists = [part for part in parts if isinstance(part, list) and part and isinstance(part[0], dict)]
    found = [[item["row"] if has(item, "row_idx", "row") else item for item in part] for part in lists]
    found = [rows for rows in found if matches(rows[0])]
    return found[0] if len(found) == 1 else []


def _read_document(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    for number, row in enumerate(records_in(value)):
        place = origin.at(None, number)
        try:
            yield from read(row, place, options)
        except (BadRecord, RecordError) as error:
            yield Rejected(origin.file, None, f"record {number}: {error}", NAME)


# A JSON document that contains rows; tried before `FORMAT`, since columns of texts look like one row.
DOCUMENT_FORMAT = Format(
    NAME,
    "file",
    lambda value: any(map(matches, records_in(value)[:8])),
    _read_document,
    "Rows of your own data: prompt, answer, score",
    refuse=lambda found, options: refuse(objects_in([row for one in found for row in records_in(one)]), options),
    is_general=True,
)
FORMAT = Format(
    NAME,
    "record",
    matches,
    read,
    "Rows of your own data: prompt, answer, score",
    refuse=refuse,
    matches_named=lambda value: isinstance(value, dict),
    is_general=True,
)
