"""Records annotated in Argilla or Label Studio: a prompt, its answers, and the annotators' responses.

    Argilla 2       {id, fields: {prompt, response, ...}, responses: {question: [{value, user_id}]}, suggestions}
    Argilla 1       {fields, responses: [{user_id, status, values: {question: {value}}}], suggestions: [...]}
    Argilla, flat   {prompt, response, ..., "question.responses": [value], "question.suggestion": value}
    Label Studio    {id, data: {prompt, answer1, answer2}, annotations: [{result: [{type, value}], was_cancelled}]}

Answers are the fields whose names begin with response, answer, completion, generation, output or text, or are left and
right; several answers are numbered (response-1, answer_b). Annotations become:

    a choice between two, or a pairwise comparison    a preference by majority of the annotators; a draw is quarantined
    a ranking                                         a preference of two, else candidates with reward = -rank
    ratings, yes and no                               rewards, the mean of the annotators, by the name of the question;
                                                      a question named after an answer (rating-2) belongs to it

Discarded and cancelled annotations are ignored. Argilla's suggestions are used only without responses.
"""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.preference_rows import answer_from, conversations_from, prompt_from
from pairwright.sources.datasets.row_names import TIES, speaker_role
from pairwright.sources.fields import (
    BadRecord,
    has,
    list_or_empty,
    mapping,
    object_or_empty,
    optional_items,
    optional_mapping,
    score,
    small_fields,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.traces import pick_reward

ARGILLA, LABEL_STUDIO = "argilla", "label-studio"
_PROMPTS = ("prompt", "instruction", "question", "input", "query", "context", "conversation", "chat", "messages")
_ANSWER = re.compile(r"(response|answer|completion|generation|output|text)s?([-_ ]?([0-9]|[a-h]))?", re.I)
_SIDES = ("left", "right")
# The number or letter that ends a name: response-1, answer_b, answer2. A letter needs a separator.
_INDEX = re.compile(r"(?:(?:^|[-_ ])(?=[0-9a-h]$)|(?<=[a-z])(?=[0-9]$))(.)$", re.I)
_CHOICE_WORDS = ("prefer", "better", "best", "choice", "choose", "chosen", "winner", "pairwise", "comparison")
_YES_NO: Json = {"yes": 1.0, "no": 0.0, "true": 1.0, "false": 0.0}
_RESPONDED = (None, "submitted")  # statuses that count; None for exports without a status

Votes = dict[str, list[Any]]


def matches_argilla(value: Any) -> bool:
    if not has(value):
        return False
    if has(value, fields=dict):
        return has(value, responses=dict | list) or has(value, suggestions=dict | list)
    flat = any(key.endswith((".responses", ".suggestion")) for key in value)
    # Many tables have columns with such names, so an answer is required, too.
    return flat and bool(_answers(value))


def matches_label_studio(value: Any) -> bool:
    return has(value, data=dict, annotations=list)


def read_argilla(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "record")
    flat = "fields" not in row
    fields = row if flat else mapping(row["fields"], "fields")
    votes, is_suggested = _argilla_votes(row)
    info = {} if flat else small_fields(row, frozenset({"fields", "responses", "suggestions", "vectors", "metadata"}))
    info |= small_fields(optional_mapping(row.get("metadata"), "metadata"), frozenset())
    if is_suggested:
        info["judged_by"] = "suggestions"
    yield from _read(ARGILLA, origin, fields, votes, info)


def read_label_studio(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    row = mapping(value, "task")
    votes: Votes = {}
    for annotation in optional_items(row.get("annotations"), "annotations"):
        annotation = mapping(annotation, "annotations[]")
        if annotation.get("was_cancelled") is True:
            continue
        for result in optional_items(annotation.get("result"), "annotations[].result"):
            result = mapping(result, "annotations[].result[]")
            value = optional_mapping(result.get("value"), "annotations[].result[].value")
            kind = result.get("type")
            name = str(result.get("from_name") or kind)
            if kind == "choices":
                choices = optional_items(value.get("choices"), "choices")
                votes.setdefault(name, []).append(choices[0] if len(choices) == 1 else choices)
            elif kind in ("pairwise", "rating", "number"):
                votes.setdefault(name, []).append(value.get("selected" if kind == "pairwise" else kind))
    info = small_fields(row, frozenset({"data", "annotations", "predictions", "drafts"}))
    yield from _read(LABEL_STUDIO, origin, mapping(row.get("data"), "data"), votes, info)


def _argilla_votes(row: Json) -> tuple[Votes, bool]:
    """Return the votes by question, and whether all of them are suggestions."""
    votes: Votes = {}
    responses, suggestions = row.get("responses"), row.get("suggestions")
    if isinstance(responses, dict):
        for name, values in responses.items():
            for response in optional_items(values, f"responses.{name}"):
                response = mapping(response, f"responses.{name}[]")
                if response.get("status") in _RESPONDED:
                    votes.setdefault(name, []).append(response.get("value"))
    for response in list_or_empty(responses):
        response = mapping(response, "responses[]")
        if response.get("status") in _RESPONDED:
            for name, answer in optional_mapping(response.get("values"), "responses[].values").items():
                votes.setdefault(name, []).append(answer.get("value") if isinstance(answer, dict) else answer)
    for key, values in row.items():
        if key.endswith(".responses") and isinstance(values, list):
            statuses = row.get(f"{key}.status")
            # Statuses by position; without a list of the same length every response counts.
            statuses = statuses if isinstance(statuses, list) and len(statuses) == len(values) else [None] * len(values)
            counted = [item for item, status in zip(values, statuses, strict=True) if status in _RESPONDED]
            votes.setdefault(key.removesuffix(".responses"), []).extend(counted)
    if votes:
        return votes, False
    if isinstance(suggestions, dict):
        votes = {name: [item.get("value") if isinstance(item, dict) else item] for name, item in suggestions.items()}
    for item in list_or_empty(suggestions):
        item = mapping(item, "suggestions[]")
        votes.setdefault(str(item.get("question_name")), []).append(item.get("value"))
    votes |= {key.removesuffix(".suggestion"): [item] for key, item in row.items() if key.endswith(".suggestion")}
    return votes, bool(votes)


def _read(name: str, origin: Origin, fields: Json, votes: Votes, info: Json) -> Iterator[Parts | Rejected]:
    keys = _answers(fields)
    prompt_key = next((key for key in _PROMPTS if fields.get(key) and key not in keys), None)
    talk = next((value for value in fields.values() if _dialogue(value)), None) if not keys else None
    if talk is not None:
        ratings = _ratings(0, [""], votes)
        known = frozenset(key for key, value in fields.items() if value is talk)
        info |= {**small_fields(fields, known), "votes": votes}
        yield Parts(name, origin, messages=_dialogue(talk), reward_components=ratings, info=info)
        return
    if not keys or prompt_key is None:
        missing = "prompt" if keys else "answer"
        raise BadRecord(f"no {missing} among the fields {', '.join(sorted(map(str, fields))[:10])}")
    prompt = prompt_from(fields[prompt_key], prompt_key)
    system = fields.get("system", fields.get("system_prompt"))
    if isinstance(system, str) and system:
        prompt.insert(0, Message("system", system))
    answers = [answer_from(fields[key], key) for key in keys]
    info |= small_fields(fields, frozenset({*keys, prompt_key, "system", "system_prompt"}))
    info["votes"] = votes
    ranks = _ranks(keys, votes)
    if ranks is not None and len(keys) == 2:
        if ranks[0] == ranks[1]:
            raise BadRecord("a tie: the annotators prefer neither answer")
        best, worst = (0, 1) if ranks[0] < ranks[1] else (1, 0)
        prompt, chosen, rejected = conversations_from(prompt, answers[best], answers[worst])
        yield Parts(
            name,
            origin,
            prompt=prompt,
            chosen=chosen,
            rejected=rejected,
            chosen_reward=pick_reward(_ratings(best, keys, votes), None),
            rejected_reward=pick_reward(_ratings(worst, keys, votes), None),
            info=info,
        )
        return
    for number, (key, answer) in enumerate(zip(keys, answers, strict=True)):
        ratings = _ratings(number, keys, votes)
        reward = pick_reward(ratings, None)
        yield Parts(
            name,
            origin,
            # Each candidate is a separate run; 16 run numbers are reserved per record.
            run=origin.ordinal * 16 + number if len(keys) > 1 else None,
            prompt=prompt,
            completion=answer,
            # 0.0 - rank, since -rank would be -0.0 for rank 0.
            reward=0.0 - ranks[number] if ranks is not None and reward is None else reward,
            reward_components=ratings,
            info={**info, "answer": key} if len(keys) > 1 else info,
        )


def _dialogue(value: Any) -> list[Message]:
    """Return the turns of a dialogue, [{author, text}], as in both tools; [] for other values."""
    messages = []
    for item in list_or_empty(value):
        turn = object_or_empty(item)
        role, said = speaker_role(turn.get("author", turn.get("role"))), turn.get("text", turn.get("content"))
        if role is None or not isinstance(said, str):
            return []
        messages.append(Message(role, said))
    return messages


def _answers(fields: Json) -> list[str]:
    keys = [key for key in fields if fields[key] and isinstance(fields[key], str | list | dict)]
    sides = [key for key in _SIDES if key in keys]
    if len(sides) == 2:
        return sides
    matched = [key for key in keys if _ANSWER.fullmatch(key) and not key.endswith((".responses", ".suggestion"))]
    numbered = sorted((key for key in matched if _INDEX.search(key)), key=str.lower)
    # At most 16, the number of runs reserved per record (see `_read`).
    return numbered[:16] if len(numbered) > 1 else matched[:1]


def _place(value: Any, keys: list[str]) -> int | None:
    """Return the index of the answer that a value names by field, number, letter or side; -1 for a tie."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    word = str(value).strip().lower()
    if word in TIES:
        return -1
    if word in _SIDES and len(keys) == 2:
        return _SIDES.index(word)
    names = [key.lower() for key in keys]
    if word in names:
        return names.index(word)
    end, *ends = (match and match[1] for match in map(_INDEX.search, (word, *names)))
    return ends.index(end) if end is not None and ends.count(end) == 1 else None


def _ranks(keys: list[str], votes: Votes) -> list[float] | None:
    """Return the rank of each answer, lower is better: from rankings, or from choices by majority; None if unranked."""
    if len(keys) < 2:
        return None
    sums, num_rankings = [0.0] * len(keys), 0
    choices: Counter[int] = Counter()
    for name, values in votes.items():
        if _place(name, keys) is not None:
            continue
        for value in values:
            ranking = _ranking(value, keys)
            if ranking is not None:
                sums, num_rankings = [a + b for a, b in zip(sums, ranking, strict=True)], num_rankings + 1
                continue
            # A number may also be a rating, so the question decides.
            is_number = isinstance(value, int) or (isinstance(value, str) and value.strip().isdigit())
            is_choice = not is_number or any(word in name.lower() for word in _CHOICE_WORDS)
            if is_choice and (place := _place(value, keys)) is not None:
                choices[place] += 1
    if num_rankings:
        return [total / num_rankings for total in sums]
    if not choices:
        return None
    most = max(choices[place] for place in range(len(keys)))
    # A single winner, chosen more often than ties (-1); otherwise all have the same rank.
    best = [place for place in range(len(keys)) if choices[place] == most and most > choices[-1]]
    return [0.0 if [place] == best else 1.0 for place in range(len(keys))]


def _ranking(value: Any, keys: list[str]) -> list[float] | None:
    """Return the ranks in [{value, rank}, ...] or in a list of names from best to worst."""
    if not isinstance(value, list) or len(value) != len(keys):
        return None
    ranks: dict[int, float] = {}
    for number, item in enumerate(value):
        fields = item if isinstance(item, dict) else {"value": item, "rank": number + 1}
        place, rank = _place(fields.get("value"), keys), score(fields.get("rank"))
        if place is None or place < 0 or rank is None:
            return None
        ranks[place] = rank
    return [ranks[place] for place in range(len(keys))] if len(ranks) == len(keys) else None


def _ratings(number: int, keys: list[str], votes: Votes) -> Json:
    """Return the mean rating of an answer, by question."""
    ratings: Json = {}
    for name, values in votes.items():
        # With a single answer, every question is about it.
        place = _place(name, keys) if len(keys) > 1 else number
        # Not `read_score`: "right" is a side here.
        words = [_YES_NO.get(value.lower(), value) if isinstance(value, str) else value for value in values]
        numbers = [rating for rating in map(score, words) if rating is not None]
        if place == number and numbers:
            short = _INDEX.sub("", name) if len(keys) > 1 else name
            ratings[short or name] = sum(numbers) / len(numbers)
    return ratings


FORMAT_ARGILLA = Format(ARGILLA, "record", matches_argilla, read_argilla, "Records exported from Argilla")
FORMAT_LABEL_STUDIO = Format(
    LABEL_STUDIO, "record", matches_label_studio, read_label_studio, "Tasks exported from Label Studio"
)
