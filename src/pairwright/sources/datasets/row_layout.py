"""Identify the fields of a row: the prompt, the answers, their scores, the preference between them.

Fields are identified by their names (row_names.py) and the types of their values. If two fields could be the same part
of the record, BadRecord names both and the `--map` that decides; nothing is guessed.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

import msgspec
from msgspec.structs import replace

from pairwright.records.messages import Json
from pairwright.sources.datasets.own_turns import (
    context_turns,
    exchange_in,
    is_from_model,
    is_step,
    is_steps,
    is_transcript,
    is_turns,
    talk_in,
    turns_in,
)
from pairwright.sources.datasets.row_names import (
    ASKERS,
    CONTEXTS,
    CONVERSATIONS,
    CORRECTED,
    LISTS,
    RANKS,
    SIDES,
    SIGNED,
    SPEAKERS,
    STEPS,
    TIES,
    WEAK_COMPLETIONS,
    answer_rank,
    index_of,
    is_answer_stem,
    is_answer_word,
    is_completion_name,
    is_lettered,
    is_preference_name,
    is_reference_name,
    is_score_name,
    plain_name,
    prompt_rank,
    side_of,
    singular,
    words_of,
)
from pairwright.sources.fields import BadRecord, has, score, words
from pairwright.sources.score_values import read_score
from pairwright.sources.shapes.any_messages import decode_json_text

_ID = re.compile(r"[\w.+-]*[\d@][\w.@+-]*")  # of a person: u17, ann@example.org
MAX_ANSWERS = 128  # of a row
# Words that mark a field as an answer: `gpt4_answer`, `response_llama`.
ANSWER_WORDS = words("answer response output completion reply generation antwort summary")
# Words next to them that are not model names: `model_answer`, `final_response`.
_NO_MODELS = words("model final generated raw full predicted user correct best my new")
PROMPT_BODIES = words("text full_text content body value prompt question instruction query")
_LABELS = ("label", "labels", "verdict", "judgment", "judgement")  # of a preference, or of something else
_CONTENT_PARTS = ("text", "output_text", "image_url", "tool_use", "thinking")


class Answer(msgspec.Struct, frozen=True):
    """One answer of a row: its value, its path in the record, the fields with its score and model, its name."""

    value: Any
    where: str
    scores: Json = {}
    name: str | None = None
    keys: frozenset[str] = frozenset()  # fields of the row that it was read from, unless these are `where` and `scores`

    @property
    def used(self) -> set[str]:
        return set(self.keys or (self.where, *self.scores))


class Layout(msgspec.Struct, frozen=True):
    """The parts of a row. Without answers, the completion is in the conversation; `best` is the preferred answer."""

    prompt: Any = None
    prompt_key: str = ""
    context: Any = None
    conversation: Any = None
    conversation_key: str = ""
    answers: tuple[Answer, ...] = ()
    best: int | None = None
    is_tie: bool = False
    used: frozenset[str] = frozenset()


def arrange(row: Json) -> Layout:
    """Identify the parts of a row; raise BadRecord if a part is missing or ambiguous."""
    sides = find_sides(row) or find_correction(row)
    if sides is not None:
        return replace(_with_prompt(row, sides), best=0)
    columns = find_turn_columns(row)
    if columns:
        turns = [{"role": role, "content": row[key]} for key, role in columns.items()]
        return Layout(conversation=turns, conversation_key=next(iter(columns)), used=frozenset(columns))
    several = find_numbered(row) or find_named(row) or find_keyed(row)
    if several is not None:
        best, is_tie, keys = find_preference(row, several)
        return replace(_with_prompt(row, several, keys), best=best, is_tie=is_tie)
    answers = find_answers(row)
    best, keys = find_choice(row, answers) if len(answers) > 1 else (None, set())
    return replace(_with_prompt(row, answers, keys), best=best)


def _with_prompt(row: Json, answers: tuple[Answer, ...], keys: Iterable[str] = ()) -> Layout:
    """Add the prompt to the answers, which may be conversations that begin with it; `keys` name the preference."""
    used = {*keys, *(key for answer in answers for key in answer.used)}
    key, prompt, context_key = find_prompt(row, used)
    talk_key = find_conversation(row, used)
    # A transcript under any name. A context that does not contain the question holds the turns before the question.
    is_history = key is not None and context_key is not None and _text_of(prompt) not in _text_of(row[context_key])
    if talk_key is None and not answers and not is_history:
        talk_key = next((name for name, value in row.items() if name not in used and is_transcript(value)), None)
    whole = bool(answers) and all(turns_in(answer.value) for answer in answers)
    if talk_key is not None and not answers:
        turns = talk_in(row[talk_key]) or decode_json_text(row[talk_key])
        # An agent's turns do not include its task, so the prompt is needed.
        if key is not None and (is_step(turns[0]) or (exchange_in(turns[0]) is None and is_from_model(turns[0]))):
            both = frozenset({talk_key, key})
            return Layout(prompt=prompt, prompt_key=key, conversation=turns, conversation_key=talk_key, used=both)
        # A separate question repeats a turn of the conversation; it is kept in info.
        return Layout(conversation=turns, conversation_key=talk_key, used=frozenset({talk_key}))
    if not answers:
        raise BadRecord(_no_part("completion", row))
    context = None
    if talk_key is not None and key is None:
        turns = talk_in(row[talk_key]) or []
        if whole:
            talk_key = None  # repeats the conversation of one side
        elif turns and is_from_model(turns[-1]):
            raise BadRecord(
                f"{talk_key} or {answers[0].where} could be the completion; choose with --map messages={talk_key} or "
                f"--map prompt={talk_key},completion={answers[0].where}"
            )
        else:
            key, prompt = talk_key, turns
    if context_key is not None:
        context = context_turns(row[context_key])
        if key is None:
            key, prompt, context = context_key, row[context_key], None
    if key is None and not whole:
        raise BadRecord(_no_part("prompt", row))
    names = {name for name in (key, context_key) if name is not None}
    if key is not None and plain_name(key) == "instruction":
        names |= {name for name in row if plain_name(name) == "input"}
    return Layout(
        prompt=prompt,
        prompt_key=key or "",
        context=context,
        answers=answers,
        used=frozenset(used | names),
    )


def _no_part(part: str, row: Json) -> str:
    keys = ", ".join(list(map(str, row))[:12]) + (", ..." if len(row) > 12 else "")
    return f"no {part} among the fields {keys}; name it with --map {part}=FIELD"


def find_prompt(row: Json, used: set[str]) -> tuple[str | None, Any, str | None]:
    """Return the key and the value of the prompt, and the key of the context before it; None for missing parts."""
    filled = [key for key in row if key not in used and _is_filled(row[key])]
    asked = [key for key in filled if _can_be_prompt(row[key])]
    ranks = {key: rank for key in asked if (rank := prompt_rank(plain_name(key))) is not None}
    keys = [key for key in ranks if ranks[key] == min(ranks.values())]
    if len(keys) > 1:  # `user` beside a question may be an id
        keys = [key for key in keys if plain_name(key) not in ASKERS or not _ID.fullmatch(str(row[key]))]
    context = next((key for key in filled if plain_name(key) in CONTEXTS), None)
    names = {plain_name(key): key for key in keys}
    if names.keys() >= {"instruction", "input"} and all(isinstance(row[key], str) for key in keys):
        joined = f"{row[names['instruction']]}\n{row[names['input']]}"
        rest = [key for key in keys if plain_name(key) not in ("instruction", "input") and row[key] not in joined]
        if not rest:
            return names["instruction"], joined, context
    key = _outermost(row, keys, "prompt") if keys else None
    if key is None or context is None:
        return key, None if key is None else row[key], context
    if context_turns(row[context]) is None:
        if _text_of(row[context]) in _text_of(row[key]):
            context = None
        else:
            raise BadRecord(
                f"{key} or {context} could be the prompt; choose with --map prompt={key}, --map prompt={context} "
                f"or --map prompt={context}+{key}"
            )
    return key, row[key], context


def _outermost(row: Json, keys: list[str], part: str) -> str:
    """Return the key whose text contains the texts of all other keys; raise BadRecord if there is none."""
    for key in sorted(keys, key=lambda key: turns_in(row[key]) is None):
        text = _text_of(row[key])
        if all(_text_of(row[other]) in text for other in keys):
            return key
    choices = " or ".join(f"--map {part}={key}" for key in keys[:3])
    raise BadRecord(f"{' or '.join(keys[:3])} could be the {part}; choose with {choices}")


def find_conversation(row: Json, used: set[str]) -> str | None:
    keys = [key for key in row if plain_name(key) in CONVERSATIONS and key not in used]
    keys = [key for key in keys if talk_in(row[key]) is not None]
    keys = keys or [key for key in row if plain_name(key) in STEPS and is_steps(decode_json_text(row[key]))]
    return _outermost(row, keys, "messages") if len(keys) > 1 else keys[0] if keys else None


@lru_cache(maxsize=4096)
def _has_side(key: str) -> bool:
    return any(side_of(key, side) is not None for pair in SIDES for side in pair)


def find_sides(row: Json) -> tuple[Answer, ...] | None:
    if not any(map(_has_side, row)):
        return None
    for chosen, rejected in SIDES:
        for key in row:
            rest = side_of(key, chosen)
            if rest is None or not is_answer_word(rest) or not _is_answer(row[key]):
                continue
            others = [other for other in row if side_of(other, rejected) == rest and _is_answer(row[other])]
            # "non_preferred" contains "preferred": the same key is not both sides.
            others = [other for other in others if other != key]
            if others:
                return tuple(
                    Answer(row[name], name, _scores_beside(row, partial(side_of, side=side)))
                    for name, side in ((key, chosen), (others[0], rejected))
                )
    return None


def find_correction(row: Json) -> tuple[Answer, ...] | None:
    """Return a corrected answer and the answer that it corrects, or None; a preference or score in the row decides."""
    corrected = [key for key in row if not CORRECTED.isdisjoint(words_of(key)) and isinstance(row[key], str)]
    if not corrected or _preference_key(row) is not None:
        return None
    if any(is_score_name(name) and read_score(value) is not None for name, value in row.items()):
        return None
    for key in corrected:
        noun = "_".join(word for word in words_of(key) if word not in CORRECTED)
        answers = find_answers({name: value for name, value in row.items() if name != key})
        if is_completion_name(noun) and len(answers) == 1 and isinstance(answers[0].value, str):
            texts = [text.strip() for text in (row[key], answers[0].value)]
            if all(texts) and texts[0] != texts[1]:
                return Answer(row[key], key), replace(answers[0], keys=frozenset())  # a list of one stays in info
    return None


def find_turn_columns(row: Json) -> dict[str, str]:
    """Return the roles of columns that hold a turn each, `user_1, bot message 1, user_2`, in order; {} without any."""
    turns: list[tuple[int, str, str]] = []
    for key, value in row.items():
        split = index_of(key)
        if split is not None and isinstance(value, str) and not is_lettered(key):
            roles = {SPEAKERS[word] for word in split[0].split("_") if word in SPEAKERS}
            turns += [(split[1], roles.pop(), key)] if len(roles) == 1 else []
    turns.sort(key=lambda turn: turn[0])
    asked, said = ([number for number, role, _ in turns if role == wanted] for wanted in ("user", "assistant"))
    if len(asked) < 2 or turns[0][1] != "user" or said not in (asked, asked[:-1]) or len(set(asked)) < len(asked):
        return {}
    return {key: role for _, role, key in turns} if len(turns) == len(asked) + len(said) else {}


def find_numbered(row: Json) -> tuple[Answer, ...] | None:
    """Return numbered answers of a row (response_a, response_b), or None."""
    stems: dict[str, dict[int, str]] = {}
    for key in row:
        split = index_of(key)
        if split is not None and is_answer_stem(split[0]) and _is_answer(row[key]):
            stems.setdefault(split[0], {})[split[1]] = key
    stems = {stem: keys for stem, keys in stems.items() if len(keys) > 1}
    if not stems:
        return None
    if len(stems) > 1:
        first, second = list(stems)[:2]
        names = "|".join(stems[first].values())
        raise BadRecord(f"{first} or {second} could be the answers; choose with --map 'completion={names}'")
    (keys,) = stems.values()
    if sorted(keys) not in (list(range(len(keys))), list(range(1, len(keys) + 1))):
        raise BadRecord(f"{', '.join(keys.values())}: numbers are missing between them")

    def rest_of(other: str, number: int) -> str | None:
        split = index_of(other)
        return split[0] if split is not None and split[1] == number and other not in keys.values() else None

    scores = {number: _scores_beside(row, partial(rest_of, number=number)) for number in sorted(keys)}
    for key in [key for key in row if plain_name(key) in RANKS and isinstance(row[key], str)]:
        splits = [index_of(f"answer_{name.strip()}") for name in row[key].split(">")]  # "B > A > C"
        places = {split[1]: rank for rank, split in enumerate(splits, start=1) if split is not None}
        if len(splits) == len(keys) and places.keys() == keys.keys():
            scores = {number: {**found, key: places[number]} for number, found in scores.items()}
            break
    return tuple(Answer(row[keys[number]], keys[number], found) for number, found in scores.items())


def find_named(row: Json) -> tuple[Answer, ...] | None:
    """Return answers whose fields are named after their author: `gpt4_answer`, `llama_answer`; or None.

    They count as answers only if a preference names one of them, or each has a score: `user_answer` and
    `other_answer` may be anything.
    """
    by_word: dict[str, dict[str, str]] = {}
    for key in row:
        words = words_of(key)
        for word in ANSWER_WORDS.intersection(words) if len(words) > 1 and isinstance(row[key], str) else ():
            name = "_".join(other for other in words if other != word)
            if name not in _NO_MODELS and not is_reference_name(name):
                by_word.setdefault(word, {})[name] = key
    for keys in by_word.values():
        answers = tuple(
            Answer(row[key], key, _scores_beside(row, partial(_without_words, name=name)), name)
            for name, key in keys.items()
        )
        has_scores = all(any(read_score(value) is not None for value in answer.scores.values()) for answer in answers)
        if len(answers) > 1 and (has_scores or _preference_key(row) is not None):
            return answers
    return None


def _without_words(key: str, name: str) -> str | None:
    """Return a key without the words of a name, or None if it does not contain them."""
    words, named = words_of(key), name.split("_")
    return "_".join(word for word in words if word not in named) if set(named) < set(words) else None


def find_keyed(row: Json) -> tuple[Answer, ...] | None:
    """Return the answers in an object, {model_x: text, model_y: text}, with scores from parallel objects."""
    for key, value in row.items():
        name = plain_name(key)
        if not isinstance(value, dict) or len(value) < 2 or not _is_list_name(name):
            continue
        if not all(isinstance(text, str) for text in value.values()):
            continue
        beside = {
            other: column
            for other, column in row.items()
            if isinstance(column, dict) and column.keys() == value.keys() and is_score_name(other)
        }
        # Without scores or a preference, "answers" may be the options of a question.
        if singular(name) in WEAK_COMPLETIONS and not beside and _preference_key(row) is None:
            continue
        used = frozenset((key, *beside))
        return tuple(
            Answer(text, f"{key}.{who}", {other: column[who] for other, column in beside.items()}, who, used)
            for who, text in value.items()
        )
    return None


def find_answers(row: Json) -> tuple[Answer, ...]:
    """Return the answers under one name: a value, or a list of candidates."""
    listed = [key for key in row if _is_list_name(plain_name(key)) and _is_candidates(row[key])]
    # "answers" may be references: they are candidates only if each has a score or a rank.
    weak_lists = [key for key in listed if singular(plain_name(key)) in WEAK_COMPLETIONS]
    scored = [key for key in weak_lists if _has_scores(row, key)]
    ranks = {key: rank for key in row if (rank := answer_rank(plain_name(key))) is not None and _is_answer(row[key])}
    strong, qualified, weak = ([key for key in ranks if ranks[key] == rank] for rank in range(3))
    strong = strong or qualified
    weak = [key for key in weak if isinstance(row[key], str) or not _is_candidates(row[key]) or _has_scores(row, key)]
    # Next to several candidates, a single answer is the reference or one of them.
    for keys in ([key for key in listed if key not in weak_lists], strong, scored, weak):
        if not keys:
            continue
        key = keys[0] if len(keys) == 1 else _outermost(row, keys, "completion")
        if keys is strong or keys is weak:
            # Text that happens to be a JSON list is one answer, not several.
            is_list = _is_candidates(row[key]) and not isinstance(row[key], str)
            return _listed_answers(row, key, row[key]) if is_list else (Answer(row[key], key),)
        return _listed_answers(row, key, decode_json_text(row[key]))
    return ()


def _has_scores(row: Json, key: str) -> bool:
    """Whether each item of a list has a score or a rank, in the item or in a parallel list."""
    return all(
        answer.scores or (has(answer.value) and any(is_score_name(name) or name == "rank" for name in answer.value))
        for answer in _listed_answers(row, key, decode_json_text(row[key]))
    )


def _listed_answers(row: Json, key: str, value: list[Any]) -> tuple[Answer, ...]:
    """Return the answers of a list, with their scores from parallel lists."""
    if len(value) > MAX_ANSWERS:
        raise BadRecord(f"{key}: {len(value)} candidates; the limit is {MAX_ANSWERS}")
    beside = {
        other: decode_json_text(column)
        for other, column in row.items()
        if other != key
        and (is_score_name(other) or singular(plain_name(other)) in ("rank", "ranking", "model", "model_name"))
    }
    beside = {
        other: column
        for other, column in beside.items()
        if isinstance(column, list)
        and len(column) == len(value)
        and all(item is None or isinstance(item, str | int | float) for item in column)
    }
    names = {other: "_".join(map(singular, words_of(other))) for other in beside}
    used = frozenset((key, *beside))
    return tuple(
        Answer(item, f"{key}[{n}]", {names[other]: column[n] for other, column in beside.items()}, keys=used)
        for n, item in enumerate(value)
    )


def _scores_beside(row: Json, rest_of: Callable[[str], str | None]) -> Json:
    """Return the scores of one answer: fields named with its side or number and a word for scores."""
    scores: Json = {}
    for key, value in row.items():
        rest = rest_of(key)
        if rest is None:
            continue
        words = [word for word in rest.split("_") if word]
        if is_score_name(rest) and read_score(value) is not None:
            scores[key] = read_score(value)
        elif words in (["model"], ["model", "name"]) and isinstance(value, str):
            scores[key] = value
    return scores


def find_preference(row: Json, answers: tuple[Answer, ...]) -> tuple[int | None, bool, set[str]]:
    """Return the index of the preferred numbered answer, whether there is a tie, and the keys that were used."""
    # winner_model_a, winner_model_b, winner_tie: one of them is 1.
    marks = {key: index_of(key) for key in row if "winner" in words_of(key) and score(row[key]) is not None}
    columns = {split[1]: key for key, split in marks.items() if split is not None}
    if len(columns) == len(answers) == 2:
        wins = [number for number in sorted(columns) if score(row[columns[number]]) == 1]
        if len(wins) > 1:
            raise BadRecord(f"{', '.join(columns.values())}: more than one winner")
        return (wins[0] if wins else None), not wins, set(columns.values())
    key = _preference_key(row)
    if key is None:
        return None, False, set()
    best = read_preference(row[key], key, answers)
    return (best, False, {key}) if best is not None else (None, True, set())


def _preference_key(row: Json) -> str | None:
    keys = [key for key in row if is_preference_name(plain_name(key)) and row[key] is not None]
    # The id of the better response takes precedence over a label.
    return min(keys, key=lambda key: plain_name(key) in _LABELS) if keys else None


def find_choice(row: Json, answers: tuple[Answer, ...]) -> tuple[int | None, set[str]]:
    """Return the index of the preferred answer in a list, and the key that was used; numbers count from 0."""
    key = _preference_key(row)
    if key is None or plain_name(key) in _LABELS or any(answer.scores for answer in answers):
        return None, set()
    value = row[key]
    matches = [number for number, answer in enumerate(answers) if value in (answer.value, _text_of(answer.value))]
    if not matches and isinstance(value, int) and not isinstance(value, bool):
        if plain_name(key) != "choice" and "index" not in words_of(key):
            raise BadRecord(f"{key} {value!r} may count from 0 or from 1; if it counts from 0, add --map 'best={key}'")
        matches = [value] if 0 <= value < len(answers) else []
    if len(matches) != 1:
        raise BadRecord(f"{key} {value!r:.40} does not name the preferred answer; choose with --map reward=FIELD")
    return matches[0], {key}


def read_preference(value: Any, key: str, answers: tuple[Answer, ...]) -> int | None:
    """Return the number of the preferred answer, or None for a tie; raise BadRecord for an ambiguous value."""
    names = [answer.where for answer in answers]
    first = index_of(names[0])
    way_out = f"choose with --map 'completion={'|'.join(names)},reward=...'"
    if isinstance(value, str) and not value.strip().lstrip("-").replace(".", "", 1).isdigit():
        return _named_preference(value, key, answers, way_out)
    number = score(value)
    if number is None or isinstance(value, bool) or not number.is_integer():
        raise BadRecord(f"{key} {value!r} does not name the preferred answer; {way_out}")
    if first is None:
        raise BadRecord(f"{key} {value!r} could mean any of {', '.join(names)}; {way_out}")
    if plain_name(key) in SIGNED:
        return None if number == 0 else int(number > 0)
    # SHP: 1 if comment A is preferred, 0 if B is.
    if first[0] == "human_ref" and plain_name(key) == "labels" and number in (0, 1):
        return 1 - int(number)
    if is_lettered(names[0]) or not first[1] <= number < first[1] + len(answers):
        raise BadRecord(f"{key} {value!r} could mean any of {', '.join(names)}; {way_out}")
    return int(number) - first[1]


def _named_preference(value: str, key: str, answers: tuple[Answer, ...], way_out: str) -> int | None:
    """Read a preference written as a name: "model_a", "A", "tie", the name of a model, or the answer itself."""
    words = words_of(value)
    if not TIES.isdisjoint(words):
        return None
    matches = [
        number
        for number, answer in enumerate(answers)
        if value in (answer.value, answer.where, *(name for name in answer.scores.values() if isinstance(name, str)))
        or (answer.name is not None and plain_name(value) in (plain_name(answer.name), plain_name(answer.where)))
    ]
    if not matches:
        indexes = {index_of(f"answer_{word}") for word in words if len(word) < 3}
        numbers = {split[1] for split in indexes if split is not None}
        first = index_of(answers[0].where)
        offset = 0 if first is None or not any(word.isdigit() for word in words) else first[1]
        ordinal = {"first": 0, "second": 1, "left": 0, "right": 1}
        numbers = {number - offset for number in numbers} | {ordinal[word] for word in words if word in ordinal}
        matches = [number for number in numbers if 0 <= number < len(answers)]
    if len(matches) != 1:
        raise BadRecord(f"{key} {value[:40]!r} does not name the preferred answer; {way_out}")
    return matches[0]


def _is_answer(value: Any) -> bool:
    """Whether a value can be one or several answers: text, a number, messages or candidates."""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return is_plain or (isinstance(value, list | dict) and bool(value))


def _is_candidates(value: Any) -> bool:
    """Whether a value is several answers: a list that is neither a conversation nor the parts of one message."""
    value = decode_json_text(value)
    if not isinstance(value, list) or not value or is_turns(value):
        return False
    return not all(has(item) and item.get("type") in _CONTENT_PARTS for item in value)


def is_answer_name(key: str) -> bool:
    """Whether a field would be read as one or several answers, or as the preference between them."""
    name, split = plain_name(key), index_of(key)
    if is_completion_name(name) or _is_list_name(name) or is_preference_name(name) or "winner" in words_of(key):
        return True
    if split is not None and is_answer_stem(split[0]):
        return True
    return any(is_answer_word(rest) for pair in SIDES for side in pair if (rest := side_of(key, side)) is not None)


def _is_list_name(name: str) -> bool:
    return name in LISTS or (name.endswith("s") and is_completion_name(singular(name)))


def _is_filled(value: Any) -> bool:
    return value not in (None, "", [], {}) and isinstance(value, str | list | dict)


def _can_be_prompt(value: Any) -> bool:
    """Whether a value contains text or a list, as a prompt must: `user: {id}` does not."""
    return not isinstance(value, dict) or any(
        isinstance(part, list) or (isinstance(part, str) and plain_name(key) in PROMPT_BODIES)
        for key, part in value.items()
    )


def _text_of(value: Any) -> str:
    """Return the text of a value, to check whether one field repeats another."""
    value = decode_json_text(value)
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return "\n".join(map(_text_of, value))
    if isinstance(value, dict):
        return "\n".join(_text_of(item) for key, item in value.items() if key not in ("role", "from", "type"))
    return "" if value is None else str(value)
