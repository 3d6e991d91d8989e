"""Suggest a map for a file that no format reads: proposed from names and values, then tried on the file.

Fields named like references (gold, target, expected, label, `doc.*`) are never proposed as answers, nor ids as
prompts. A map that reads nothing is not shown.
"""

import operator
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec

from pairwright.errors import PairwrightError
from pairwright.paths import Place
from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.sources.datasets.message_rows import CONVERSATION_IDS
from pairwright.sources.datasets.own_turns import is_turns, labels_of
from pairwright.sources.datasets.row_layout import ANSWER_WORDS
from pairwright.sources.datasets.row_names import (
    CONTEXTS,
    MODELS,
    SYSTEMS,
    answer_rank,
    is_asker_name,
    is_preference_name,
    is_reference_name,
    is_score_name,
    plain_name,
    prompt_rank,
    singular,
    speaker_role,
    words_of,
)
from pairwright.sources.field_map import parse_map, table_text
from pairwright.sources.fields import BadRecord, has, object_or_empty, objects_in, words
from pairwright.sources.files import document, is_json_lines, line_units, open_bytes
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.sources.score_values import read_score, verdict
from pairwright.sources.shapes.any_messages import decode_json_text
from pairwright.sources.shapes.row_fields import TASK_KEYS
from pairwright.sources.tables import is_table, table_rows

_NUM_ROWS = 64  # examined for a proposal
_NUM_TRIED = 1000  # records that a map is tried on
_ENDS = (".", "?", "!")
_MORE_ANSWERS = words("result reply text content")
# Last words of field names that never hold an answer: `response.id`.
_NO_TEXTS = words("id ids uuid url status type role object reason date time name format")
_JUDGES = words("judge grader evaluator")  # authors of texts that are not the model's answers
_MAX_SPEAKERS = 40


class Trial(msgspec.Struct, frozen=True):
    """A map and its result: the number of experiences, and the first prompt and answer with its reward."""

    map: str
    num_experiences: int
    num_refused: int
    prompt: str
    answer: str
    reward: float | None
    is_partial: bool = False


def suggest(path: Place, options: Options) -> Trial | None:
    """Return the first proposed map that reads the file, or None."""
    rows, records = sample_rows(path, options)
    start = options.map.fields if records is None else {**options.map.fields, "records": records}
    trials = (try_map(path, {**start, **fields}, options) for fields in (_proposals(rows) if rows else ()))
    return next((trial for trial in trials if trial is not None), None)


def try_map(path: Place, fields: dict[str, str], options: Options) -> Trial | None:
    """Read the beginning of a file with a map; None if it reads nothing, or refuses more than it reads."""
    try:
        mapped = msgspec.structs.replace(options, map=parse_map(fields))
        layout = detect(path, "auto", mapped)
        if isinstance(layout, Rejected):
            return None
        found = list(islice(read_file(path, layout, mapped), _NUM_TRIED))
    except PairwrightError:
        return None
    read = [one for one in found if isinstance(one, Experience)]
    refused = len(found) - len(read)
    if not read or refused > len(read):
        return None
    first = read[0]
    said = first.completion if first.chosen is None else first.chosen.messages
    # If the model began the conversation, its first question is in the completion.
    asked = [message.text for message in said if message.role == "user"]
    prompt = first.prompt[-1].text if first.prompt else asked[0] if asked else ""
    answer = next((message.text for message in said if message.text), "")
    if not prompt.strip() or not answer.strip() or prompt == answer:
        return None
    return Trial(mapped.map.text, len(read), refused, prompt, answer, first.reward, len(found) == _NUM_TRIED)


def sample_rows(path: Place, options: Options) -> tuple[list[Json], str | None]:
    """Return the first records of a file, and the path of the list that contains them, if any."""
    with open_bytes(path) as file:
        magic = file.read(8)
    try:
        if is_table(path, magic):
            return objects_in(list(islice(table_rows(path, options.map), _NUM_ROWS))), None
        if is_json_lines(path):
            units = islice(line_units(path), _NUM_ROWS)
            return objects_in([unit[1] for unit in units if not isinstance(unit, Rejected)]), None
        value = document(path)
    except BadRecord:
        return [], None
    if not isinstance(value, dict):
        return objects_in(value)[:_NUM_ROWS], None
    # A list of turns is a conversation, not a list of records.
    lists = {key: objects_in(item)[:_NUM_ROWS] for key, item in value.items() if not is_turns(item)}
    lists = {key: found for key, found in lists.items() if found}
    return (next(iter(lists.values())), next(iter(lists))) if len(lists) == 1 else ([value], None)


def _proposals(rows: list[Json]) -> Iterator[dict[str, str]]:
    columns = _columns(rows)
    reward = _reward_path(columns)
    scored = {} if reward is None else {"reward": reward}
    tasks = {path.rpartition(".")[2]: path for path in columns if "." in path}
    rest = {**scored, **next(({"task": tasks[key]} for key in TASK_KEYS if key in tasks), {})}
    whole = [path for path, values in columns.items() if any(map(_ends_with_answer, values))]
    if len(whole) == 1:  # one of several conversations would silently drop the others
        yield {"messages": whole[0], **rest}
    prompts, answers = [path for path in _prompts_in(columns) if path not in whole], _answers_in(columns)
    if not answers:  # the only remaining text, whatever its name
        texts = [path for path in columns if path not in prompts and not _is_no_answer(path)]
        texts = [path for path in texts if _is_prose(columns[path]) and isinstance(columns[path][0], str)]
        answers = texts if len(texts) == 1 else []
    system = next((path for path in columns if plain_name(path.rpartition(".")[2]) in SYSTEMS), None)
    beside = {} if system is None else {"system": system}
    best, named = _preference(columns)
    texts = [path for path in prompts if plain_name(path) in CONTEXTS and isinstance(columns[path][0], str)]
    questions = [path for path in prompts if path not in texts]
    pairs = [f"{text}+{questions[0]}" for text in texts if questions]
    for prompt in [*pairs[:1], *questions[:3], *texts]:
        if best is not None and len(named) > 1:
            yield {"prompt": prompt, "completion": "|".join(named), "best": best, **beside}
        # Several answers in one object are candidates.
        for group in _candidates([path for path in answers if path != prompt]):
            start = {"prompt": prompt, "completion": "|".join(group), **beside}
            if best is not None and len(group) > 1:
                yield {**start, "best": best}
            yield {**start, **(_scores_of(group, columns) or rest)}
    yield from _message_maps(columns, rows, rest)
    yield from _transcript_maps(columns, rest)


def _columns(rows: list[Json]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for path, value in islice(leaves_of(row, ""), 400):
            if value not in (None, ""):
                columns.setdefault(path, []).append(value)
    return columns


def leaves_of(value: Any, prefix: str, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield (`--map` path, value) for the values inside a record, also inside JSON text."""
    for key, part in value.items():
        path, part = f"{prefix}.{key}" if prefix else str(key), decode_json_text(part)
        if isinstance(part, dict) and part and depth < 5:
            yield from leaves_of(part, path, depth + 1)
        elif isinstance(part, list) and part and isinstance(part[0], dict) and not is_turns(part) and depth < 5:
            yield from leaves_of(part[0], f"{path}[]", depth + 1)
        else:
            yield path, part


def _is_prose(values: list[Any]) -> bool:
    """Whether values are sentences, or messages: several words, a full stop, or a script without spaces."""
    texts = [value for value in values if isinstance(value, str)]
    if not texts:
        return any(is_turns(value) for value in values)
    return any(
        len(text.split()) > 1 or text.endswith(_ENDS) or (len(text) > 3 and not text.isascii()) for text in texts
    )


def _distance(path: str, is_named: Callable[[str], bool]) -> int | None:
    """Return how many steps follow the last named step of a path: 0 in `request.prompt`, 1 in `question.text`."""
    words = [plain_name(step.partition("[")[0]) for step in reversed(path.split("."))]
    return next((number for number, word in enumerate(words) if is_named(word) or is_named(singular(word))), None)


def _prompts_in(columns: dict[str, list[Any]]) -> list[str]:
    """Return the paths of possible prompts, the likeliest first."""
    found = {
        path: _distance(path, lambda name: prompt_rank(name) is not None or name in CONTEXTS)
        for path, values in columns.items()
        if not is_reference_name(path) and _is_prose(values)
    }
    return _nearest(found)


def _answers_in(columns: dict[str, list[Any]]) -> list[str]:
    """Return the paths of possible answers, the likeliest first."""

    def is_answer(name: str) -> bool:
        return answer_rank(name) is not None or name in _MORE_ANSWERS

    found: dict[str, int | None] = {}
    for path, values in columns.items():
        last = path.rpartition(".")[2]
        is_text = all(isinstance(value, str) or is_turns(value) for value in values)
        if (
            is_text
            and not _is_no_answer(path)
            and last not in MODELS
            and any(read_score(one) is None for one in values)
        ):
            is_named = any(map(is_answer, words_of(last)))  # `gpt4_answer`
            found[path] = 0 if is_named else _distance(path, is_answer)
    return _nearest(found)


def _nearest(distances: dict[str, int | None]) -> list[str]:
    found = {path: distance for path, distance in distances.items() if distance is not None}
    return sorted(found, key=lambda path: found[path])


def _is_no_answer(path: str) -> bool:
    """Whether a path names a reference, a text of the user or of a judge, or no text."""
    last = path.rpartition(".")[2]
    is_asked = is_asker_name(plain_name(last)) or not _NO_TEXTS.isdisjoint(words_of(last)[-1:])
    return is_asked or not _JUDGES.isdisjoint(words_of(path)) or is_reference_name(path)


def _ends_with_answer(value: Any) -> bool:
    """Whether a value is a whole conversation: turns of which the last is the model's."""
    last = object_or_empty(value[-1]) if is_turns(value) else {}
    return speaker_role(last.get("role", last.get("from"))) == "assistant"


def _candidates(answers: list[str]) -> Iterator[list[str]]:
    """Yield answers that belong together, then each alone."""
    parents: dict[Any, list[str]] = {}
    for path in answers:
        parent, _, name = path.rpartition(".")
        parents.setdefault(parent, []).append(path)
        # `left.text` and `right.text`; `ChatGPT answer` and `Gemini answer`
        same = name if parent else next((word for word in words_of(name) if word in ANSWER_WORDS), name)
        parents.setdefault((parent.rpartition(".")[0], same), []).append(path)
    together = [paths for parent, paths in parents.items() if parent and len(paths) > 1]
    yield from together
    # Choosing one of several answers of an object would silently drop the others.
    yield from ([path] for path in answers if not any(path in paths for paths in together))


def _preference(columns: dict[str, list[Any]]) -> tuple[str | None, list[str]]:
    """Return the path of the preference, and the paths of the answers that its values name: {gpt: ..., winner: gpt}."""
    best = next((path for path in columns if is_preference_name(plain_name(path.rpartition(".")[2]))), None)
    chosen = {plain_name(value) for value in columns.get(best or "", ()) if isinstance(value, str)}
    return best, [path for path in columns if plain_name(path) in chosen and _is_prose(columns[path])]


def _scores_of(group: list[str], columns: dict[str, list[Any]]) -> dict[str, str]:
    """Return the scores of candidates: fields with the same names in another object."""
    names = [path.rpartition(".")[2] for path in group]
    parents = {path.rpartition(".")[0] for path in columns if is_score_name(path.split(".")[0])}
    for parent in sorted(parents):
        paths = [f"{parent}.{name}" for name in names]
        if len(group) > 1 and all(path in columns for path in paths):
            return {"reward": "|".join(paths)}
    return {}


def _reward_path(columns: dict[str, list[Any]]) -> str | None:
    """Return the path of the score. Numbers of which less is better (cost, latency) are left to the user."""
    numbers = [path for path, values in columns.items() if all(read_score(value) is not None for value in values)]
    return next((path for path in numbers if any(is_score_name(step) for step in path.split("."))), None)


def _message_maps(columns: dict[str, list[Any]], rows: list[Json], rest: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield maps for rows of one message, and for messages in a list: speaker, text, conversation."""
    found = _speaker_and_text(columns, len(rows))
    if found is not None:
        speaker, text = found
        sessions = [
            path
            for path, values in columns.items()
            if path not in found
            and len(values) == len(rows)
            and 1 < len(set(map(str, values))) <= len(rows) / 2
            and any(verdict(value) is None for value in values)
        ]
        for session in sorted(sessions, key=lambda path: "id" not in words_of(path))[:3]:
            yield {"session": session, "role": speaker, "content": text, "roles": _roles(columns[speaker]), **rest}
    for key in [key for key, value in rows[0].items() if isinstance(value, list) and any(map(has, value[:1]))]:
        turns = [item for row in rows for item in row.get(key) or () if isinstance(item, dict)]
        inner = _columns(turns)
        found = _speaker_and_text(inner, len(turns))
        if found is not None:
            scored = {name: path for name, path in rest.items() if not path.startswith(f"{key}[")}
            yield {"messages": key, "role": found[0], "content": found[1], "roles": _roles(inner[found[0]]), **scored}


def _transcript_maps(columns: dict[str, list[Any]], rest: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield maps for transcripts whose speakers have unusual names."""
    for path, values in columns.items():
        labels = [labels_of(value)[1] if isinstance(value, str) else [] for value in values]
        names = list(dict.fromkeys(name for some in labels for name in some))
        # A second unknown label in a transcript may be a word of its text, such as "Note:".
        num_unknown = max(len({name for name in some if speaker_role(name) is None}) for some in labels)
        is_told = len(names) == 2 or (num_unknown == 1 and len(names) <= _MAX_SPEAKERS)
        if is_told and all(len(some) > 1 for some in labels):
            yield {"messages": path, "roles": _roles(names), **rest}


def _speaker_and_text(columns: dict[str, list[Any]], num_rows: int) -> tuple[str, str] | None:
    """Return the field with two or three short, repeated values (the speaker), and the field with the longest text."""
    speakers = [
        path
        for path, values in columns.items()
        if plain_name(path) not in CONVERSATION_IDS
        and len(values) == num_rows > 1
        and all(isinstance(value, str | int) and len(str(value)) <= 40 for value in values)
        and 2 <= len(set(values)) <= 4
        and len(set(values)) < num_rows
        and (not _is_prose(values) or all(map(speaker_role, values)))
        and ("id" in words_of(path) or not all(read_score(value) is not None for value in values))
    ]
    texts = {
        path: sum(len(value) for value in values if isinstance(value, str))
        for path, values in columns.items()
        if path not in speakers and _is_prose(values) and isinstance(values[0], str)
    }
    if not speakers or not texts:
        return None
    known = [path for path in speakers if any(speaker_role(value) for value in columns[path])]
    # Speakers alternate, ids of conversations repeat on consecutive rows.
    speaker = max(known or speakers, key=lambda path: sum(map(operator.ne, columns[path], columns[path][1:])))
    return speaker, max(texts, key=lambda path: texts[path])


def _roles(speakers: list[Any]) -> str:
    """Return a table of roles: by their names, else the first speaker is the user and the second the assistant."""
    names = list(dict.fromkeys(speakers))
    known = {name: speaker_role(name) for name in names}
    free = [role for role in ("user", "assistant") if role not in known.values()]
    return table_text({name: role or (free.pop(0) if free else "user") for name, role in known.items()})
