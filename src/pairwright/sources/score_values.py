"""Scores as people write them: numbers, "4,5", "95%", "4/5", stars, thumbs, PASS and FAIL, yes and no.

`read_score` reads the value of a field that is known to be a score. `verdict` reads only values that mean good or bad,
for fields such as `feedback` or `result`, which may also hold free text or a count.
"""

import re
import unicodedata
from typing import Any

from pairwright.records.messages import Json
from pairwright.sources.fields import objects_in, score, words

# Verdicts in lower case, without accents, in several languages; matched against the whole cell.
_GOOD = words(
    """good up upvote upvoted like liked thumbsup thumbs_up pass passed true yes y correct right chosen accept
    accepted approved success succeeded successful resolved solved desirable positive helpful useful satisfied ok
    👍 ✅ ✓ ✔ 🙂 😀 😃 😊 😍 ❤ 💚 🟢 :+1: :thumbsup: :white_check_mark: ja richtig gut positiv bestanden
    erledigt hilfreich oui vrai bon bonne correcte reussi utile si verdadero bueno buena correcto exito util
    sim verdadeiro bom boa certo sucesso vero buono giusto da pravda хорошо да верно правильно はい 良い 正解 合格 是
    对 好 正确 通过 有用 예 네 좋음 정답 통과 tak dobrze evet dogru hyva kylla goed juist bra ratt"""
)
_BAD = words(
    """bad down downvote downvoted dislike disliked thumbsdown thumbs_down fail failed false no n incorrect wrong
    rejected reject declined failure unsuccessful unresolved unsolved undesirable negative unhelpful not_helpful
    useless unsatisfied dissatisfied 👎 ❌ ✗ ✘ 🙁 😞 😠 😡 💔 🔴 :-1: :thumbsdown: :x: nein falsch schlecht negativ
    durchgefallen nicht_hilfreich non faux mauvais mauvaise incorrecte echoue inutile falso malo mala incorrecto
    fracaso inutil nao ruim errado falha sbagliato cattivo net nepravda плохо нет неверно неправильно いいえ 悪い 不正解
    不合格 否 错 坏 错误 不通过 没用 아니오 아니요 나쁨 오답 불통과 nie zle hayir yanlis huono ei nee nej fout fel"""
)
_NEGATIONS = words("not nicht non no nao pas niet nie inte ikke не")
# Variation selectors and skin tones, which change an emoji's look but not its meaning.
_LOOKS = re.compile("[\ufe0e\ufe0f\u200d\U0001f3fb-\U0001f3ff]")
_ACCENTS = re.compile("[\u0300-\u036f]")
_PERCENT = re.compile(r"([-+]?\d+(?:[.,]\d+)?)\s*[%％]")
_FRACTION = re.compile(
    r"([-+]?\d+(?:[.,]\d+)?)\s*(?:/|out of|of|von|sur|de)\s*(\d+(?:[.,]\d+)?)(?:\s*(?:stars?|points?|pts?))?"
)
_COUNTED = re.compile(r"([-+]?\d+(?:[.,]\d+)?)\s*(?:stars?|points?|pts?|sterne?|punkte?|★|⭐)")
# "1,234" may be a thousands separator: three digits after the comma are decimals only after a zero.
_DECIMAL_COMMA = re.compile(r"([-+]?(?:0,\d+|\d+,(?!\d{3}$)\d+))")
_LABELLED = re.compile(r"(\d+(?:[.,]\d+)?)\s*[-–—:=]\s*[^\W\d_][^\d]*")  # "5 - excellent"
_STARS = re.compile(r"([★⭐🌟]+)[☆✩]*")
_LONGEST = 40  # characters of a score; longer text is an opinion
# Names of objects that hold a judge's scores, and of leaves in them that are not scores.
_JUDGES = words(
    """judge judges judgement judgment evaluation evaluations eval evals evaluator review reviews feedback assessment
    grading grade grader metrics scores ratings score rating annotation annotations verdict quality critic rubric"""
)
_NO_SCORES = words(
    """id ids version confidence weight weights max min maximum minimum threshold count num number index tokens cost
    latency duration seconds time timestamp created updated seed temperature"""
)
_OVERALL = words("""overall total final aggregate overall_score total_score final_score""")
_NAMES, _VALUES = ("name", "metric", "key", "criterion", "dimension"), ("score", "value", "rating", "grade", "result")
_MAX_LEVELS = 3


def without_accents(text: str) -> str:
    """Return text without the accents of European letters, for comparing names and words.

    >>> without_accents("réponse"), without_accents("評価")
    ('reponse', '評価')
    """
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", _ACCENTS.sub("", decomposed)).replace("ı", "i")


def verdict(value: Any) -> float | None:
    """Return the number of a verdict: 1.0 for good, 0.0 for bad, -1, 0 and 1 unchanged, else None.

    >>> verdict("thumbs_up"), verdict("👎🏽"), verdict(False), verdict(-1), verdict("sports"), verdict(3)
    (1.0, 0.0, 0.0, -1.0, None, None)
    """
    if isinstance(value, str):
        if len(value) > _LONGEST:
            return None
        word = without_accents(_LOOKS.sub("", value)).lower().strip().rstrip(".!")
        word = re.sub(r"[\s-]+", "_", word) if not word.startswith(":") else word
        if word in _GOOD or word in _BAD:
            return float(word in _GOOD)
        negation, _, rest = word.partition("_")
        if negation in _NEGATIONS and rest in _GOOD:
            return 0.0
        if len(word) > 1 and len(set(word)) == 1 and not word.isalnum():
            return verdict(word[0])
    number = score(value)
    return number if number in (-1.0, 0.0, 1.0) else None


def read_score(value: Any) -> float | None:
    """Return the number of a score, or None if the value is not a score.

    Percentages and fractions become shares of 1, so that "95%", "4/5" and 0.9 in one file are comparable; stars are
    counted.

    >>> read_score("4,5"), read_score("95%"), read_score("4/5"), read_score("★★★☆☆"), read_score("PASS")
    (4.5, 0.95, 0.8, 3.0, 1.0)
    >>> read_score("5 - excellent"), read_score("5 - 3")
    (5.0, None)
    >>> read_score("well done, all in all"), read_score("2026-01-05")
    (None, None)
    """
    number = score(value)
    if number is not None or not isinstance(value, str) or len(value) > _LONGEST:
        return number
    text = unicodedata.normalize("NFKC", value).strip().lower()
    if match := _FRACTION.fullmatch(text):
        whole = _number(match[2])
        return _number(match[1]) / whole if whole else None
    for pattern, divisor in ((_DECIMAL_COMMA, 1), (_PERCENT, 100), (_COUNTED, 1), (_LABELLED, 1)):
        if match := pattern.fullmatch(text):
            return _number(match[1]) / divisor
    if match := _STARS.fullmatch(_LOOKS.sub("", text)):
        return float(len(match[1]))
    return verdict(value)


def _number(text: str) -> float:
    return float(text.replace(",", "."))


def nested_scores(row: Json) -> dict[str, float]:
    """Return the scores inside the objects of a judge by their paths; only the overall score if there is one.

    >>> nested_scores({"judge": {"model": "m", "score": 4, "reason": "fine"}})
    {'judge.score': 4.0}
    >>> nested_scores({"evals": [{"name": "style", "value": "3/5"}, {"name": "facts", "value": 1}]})
    {'evals.style': 0.6, 'evals.facts': 1.0}
    """
    found: dict[str, float] = {}
    for key, value in row.items():
        if not _JUDGES.isdisjoint(re.findall(r"[a-z]+", str(key).lower())) and isinstance(value, dict | list):
            found |= _scores_below(value, str(key), 0)
    overall = {path: number for path, number in found.items() if path.rpartition(".")[2].lower() in _OVERALL}
    return overall if len(overall) == 1 else found


def _scores_below(value: Any, path: str, level: int) -> dict[str, float]:
    if isinstance(value, list):
        found: dict[str, float] = {}
        for item in objects_in(value) if level < _MAX_LEVELS else ():
            name = next((item[key] for key in _NAMES if isinstance(item.get(key), str)), None)
            number = read_score(next((item[key] for key in _VALUES if key in item), None))
            if name is not None and number is not None:
                found[f"{path}.{name}"] = number
        return found
    if not isinstance(value, dict) or level > _MAX_LEVELS:
        return {}
    leaves: dict[str, float] = {}
    for key, part in value.items():
        if isinstance(part, dict | list):
            leaves |= _scores_below(part, f"{path}.{key}", level + 1)
        elif str(key).lower() not in _NO_SCORES and (number := read_score(part)) is not None:
            leaves[f"{path}.{key}"] = number
    return leaves
