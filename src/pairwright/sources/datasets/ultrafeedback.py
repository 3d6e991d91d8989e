"""UltraFeedback: several answers to one instruction, each with ratings.

    {instruction, completions: [{model, response, overall_score, annotations}]}   the original
    {instruction | prompt, generations | responses, ratings}                      parallel lists
    {problem, generations, correctness_math_verify | correctness_llama}           OpenR1 and Trinity tasks
    {raw_text, completions: [text], models, aspect, text}                         requests to a judge

Each answer is an experience of one task. The reward is `overall_score`, else `fine-grained_score`, else `score` or
`rating`; `--reward` selects another score or the rating of an aspect ("helpfulness"). Aspect ratings are the
reward components. Answers in a request to a judge are unscored. A system prompt, of the row or of one answer
(`custom_system_prompt`, which UltraFeedback varied between answers), is the first message of the prompt: answers to
different system prompts are of different tasks.
"""

from collections.abc import Iterator
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets.preference_rows import answer_from, prompt_from
from pairwright.sources.datasets.row_names import SYSTEMS, system_of
from pairwright.sources.fields import BadRecord, identifier, items, mapping, score, small_fields, text
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.row_fields import task_of

NAME = "ultrafeedback"
# Common names of each field; the first one present is used.
_PROMPTS = ("instruction", "raw_text", "prompt", "question", "problem")
_ANSWERS = ("completions", "generations", "responses")
_RATINGS = ("ratings", "rating", "scores", "correctness_math_verify", "correctness_llama", "correctness")
_MODELS = ("models", "generation_models", "model_names")
_SCORES = ("overall_score", "fine-grained_score", "score", "rating")
_READ = frozenset({*_PROMPTS, *_ANSWERS, *_RATINGS, *_MODELS, *SYSTEMS})
_READ_OF_ANSWER = frozenset({"response", "completion", "text", "model", "annotations", *_SCORES, *SYSTEMS})


def matches(value: Any) -> bool:
    """Whether a row has a prompt and a list of answers in one of the layouts above."""
    if not isinstance(value, dict) or not any(isinstance(value.get(key), str | list) for key in _PROMPTS):
        return False
    # Keys of other formats: TRL's stepwise rows, NeMo RL, preferences.
    if any(key in value for key in ("labels", "context", "chosen")):
        return False
    answers = next((value[key] for key in _ANSWERS if isinstance(value.get(key), list)), None)
    if not answers:
        return False
    if all(isinstance(answer, dict) for answer in answers):
        return all(isinstance(answer.get("response", answer.get("completion")), str | list) for answer in answers)
    # A list of texts alone could be anything: ratings or models must stand beside it.
    return all(isinstance(answer, str) for answer in answers) and any(key in value for key in (*_RATINGS, *_MODELS))


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    """Yield one experience per answer."""
    row = mapping(value, "row")
    key = next((key for key in _PROMPTS if row.get(key) is not None), None)
    if key is None:
        raise BadRecord(f"no prompt: expected one of {', '.join(_PROMPTS)}")
    prompt = prompt_from(row[key], key)
    field = next((key for key in _ANSWERS if key in row), "completions")
    answers = items(row.get(field), field)
    if not answers:
        raise BadRecord(f"{field}: none")
    task = identifier(row.get("prompt_hash"))
    shared = small_fields(row, _READ)
    for number, answer in enumerate(answers):
        where = f"{field}[{number}]"
        completion = answer if isinstance(answer, dict) else _beside(row, number, text(answer, where))
        yield _experience(
            completion,
            where,
            origin,
            options,
            prompt=[*(system_of(completion, prompt) or system_of(row, prompt)), *prompt],
            run=number,
            info=shared,
            task=task or task_of(row),
        )


def _experience(
    answer: Json,
    where: str,
    origin: Origin,
    options: Options,
    *,
    prompt: list[Message],
    run: int,
    info: Json,
    task: int | str | None,
) -> Parts:
    """Build the experience of one answer."""
    components = _components(answer)
    model = answer.get("model")
    response = next((answer[key] for key in ("response", "completion", "text") if answer.get(key) is not None), None)
    return Parts(
        NAME,
        origin,
        task=task,
        run=run,
        prompt=prompt,
        completion=answer_from(response, where),
        reward=next((score for key in _SCORES if (score := components.get(key)) is not None), None),
        reward_components=components,
        info={**info, **small_fields(answer, _READ_OF_ANSWER)},
        model_version=model if isinstance(model, str) else None,
    )


def _components(answer: Json) -> Json:
    """Return all numeric scores of an answer by name, and the rating of each aspect."""
    components: Json = {key: score(answer.get(key)) for key in _SCORES if score(answer.get(key)) is not None}
    annotations = answer.get("annotations")
    for aspect, annotation in annotations.items() if isinstance(annotations, dict) else ():
        # Several judgements of one aspect: the first is the one that counts.
        if isinstance(annotation, list):
            annotation = annotation[0] if annotation else None
        rating = score(annotation.get("Rating", annotation.get("rating"))) if isinstance(annotation, dict) else None
        if rating is not None:
            components[aspect] = rating
    return components


def _beside(row: Json, number: int, answer: str) -> Json:
    """Return a text answer as an object, with its score and model from the parallel lists."""
    fields_of_answer: Json = {"response": answer}
    # Ratings and models are lists of their own, in the order of the answers.
    for name, keys in (("score", _RATINGS), ("model", _MODELS)):
        values: list[Any] = next((row[key] for key in keys if isinstance(row.get(key), list)), [])
        if number < len(values) and values[number] is not None:
            fields_of_answer[name] = values[number]
    return fields_of_answer


FORMAT = Format(NAME, "record", matches, read, "UltraFeedback answers with ratings")
