"""Column names in user data, and their meaning.

Names are compared by their words in lower case: `modelResponse`, `model-response` and `Model response` are equal. The
`rows` format knows the names of these tables; `--map` handles all others.
"""

import re
from functools import lru_cache
from typing import Any

from pairwright.records.messages import Json, Message
from pairwright.sources.fields import BadRecord, has, kind_of
from pairwright.sources.score_values import without_accents


def _names(text: str) -> frozenset[str]:
    return frozenset(without_accents(text).split())


def _pairs(text: str) -> list[tuple[str, str]]:
    return [(one, other) for one, _, other in (pair.partition("/") for pair in text.split())]


# The prompt. If a row has several of these, one must contain the others, or the row is refused.
PROMPTS = _names(
    """prompt input question instruction query problem user user_input user_prompt user_message user_query input_text
    prompt_text question_text problem_statement human request post title_and_post source_text raw_prompt full_prompt
    prompt_messages input_messages raw_input inputs_pretokenized final_prompt user_question usr task_prompt
    customer_message customer_question customer_query customer_input client_message client_question
    inputs prompt_json input_json
    frage anfrage eingabe kundenfrage kundenanfrage aufgabe pregunta consulta entrada requete demande domanda richiesta
    pergunta vraag pytanie fraga вопрос запрос 質問 問題 問い合わせ 入力 プロンプト 问题 提问 输入 질문 입력"""
)
# A prompt if none of the above is present.
WEAK_PROMPTS = _names(
    "description ticket_description customer inquiry enquiry incoming_message goal objective task_description ask"
)
# Turns before the prompt, or the prompt itself if there is no other.
CONTEXTS = _names("context history chat_history conversation_history dialog_history previous_messages")
CONVERSATIONS = _names(
    """messages conversations conversation dialog dialogue chat turns contents chat_messages message_list trajectory
    transcript message_history full_conversation"""
)
STEPS = _names("steps actions agent_steps intermediate_steps scratchpad trace")  # actions of an agent and their results
# The model's answer.
COMPLETIONS = _names(
    """completion response output generation generated generated_text generated_answer generated_response
    generated_output model_output model_response model_answer model_completion model_generation prediction predicted
    predicted_answer predicted_output pred assistant assistant_response assistant_message bot bot_response reply
    output_text response_text completion_text answer_text llm_output llm_response llm_answer ai_response ai_answer
    actual_output actual_answer raw_response raw_output full_response final_response agent_response agent_output
    rollout candidate sample gpt result_text chatbot_response model_prediction final_answer hypothesis
    bot_reply bot_answer bot_message agent_reply agent_answer agent_message assistant_reply assistant_answer ai_reply
    chatbot_reply chatbot_answer model_reply support_reply reply_text suggested_reply outputs output_json
    response_json completion_json
    antwort ausgabe respuesta salida reponse risposta resposta antwoord odpowiedz svar ответ 回答 応答 返信 出力 答え
    回复 答案 输出 답변 응답 출력"""
)
# An answer if none of the above is present, else the reference.
WEAK_COMPLETIONS = frozenset({"answer", "solution", "summary", "continuation"})
# Words for the author of a question, and below, of an answer: "Pregunta del usuario", "KI-Antwort", "AIの回答".
ASKERS = _names(
    """user users customer client requester end usuario usuaria cliente utilisateur utente nutzer benutzer kunde kunden
    gebruiker klant klienta student students learner pupil schuler schulers eleve alumno
    ユーザー お客様 顧客 用户 客户 고객 사용자"""
)
_AUTHORS = _names(
    """model bot chatbot assistant agent ai ki ia llm gpt system generated predicted actual modell modele modelo modello
    assistent asistente assistente agente tatsachliche generierte generee generada モデル 模型 모델"""
)
_STAGES = _names("raw full final rendered original input text")
_LINKS = _names("the of by from to s d l del dell de du des der die das la le el il do da van för av")
_MESSAGES = frozenset({"message", "msg", "nachricht", "mensaje"})  # a question or an answer, depending on its author
# Names of lists of answers, besides the plurals of the names above.
LISTS = frozenset({"candidates", "completions_list", "all_responses"})
SYSTEMS = (
    *("system", "system_prompt", "system_message", "instructions", "systemPrompt", "sys_prompt"),
    *("system_instruction", "systemInstruction", "custom_system_prompt"),
)
TOOLS = ("tool_definitions", "available_tools", "tool_schemas")  # besides `tools` and `functions`
_SYSTEMS = frozenset(SYSTEMS)
# Objects of a row that may hold its system prompt.
_SETTINGS = _names("metadata meta config settings parameters params generation_config model_config")
MODELS = ("model", "model_name", "generator", "model_id", "policy", "engine")
# (better, worse) answer; each name may be combined with one of _ANSWER_WORDS: chosen_response.
SIDES = _pairs(
    """chosen/rejected preferred/rejected accepted/rejected preferred/dispreferred preferred/non_preferred winner/loser
    winning/losing win/lose better/worse best/worst good/bad positive/negative pos/neg y_w/y_l yw/yl accept/reject
    correct/incorrect j/k"""
)
_ANSWER_WORDS = _names(
    """response answer completion output text message messages conversation conversations reply generation solution
    trajectory summary candidate sample responses turn assistant"""
)
# Names of numbered answers besides the above: human_ref_A, conversation_a.
_STEMS = _names("human_ref conversation messages dialogue dialog chat response_model answer_model output_model")
PREFERENCES = _names(
    """preference preferred winner overall_preference better better_response better_response_id choice human_preference
    human_choice vote judgement judgment verdict best best_response preferred_response label labels preference_strength
    gpt_preference human_label preferred_output preferred_answer preferred_model annotator_preference selected
    chosen better_answer better_output human_vote selection preferred_index winner_index best_index
    besser bevorzugt bevorzugte_antwort gewinner mejor preferida ganador meilleur meilleure preferee gagnant
    preferita preferito vincitore 勝者 優れた 偏好 胜者"""
)
_ABOUT_PREFERENCE = _names("which what who is was are one side user human annotator rater reviewer final")
# Signed preferences (HelpSteer): below zero the first answer is better, above zero the second.
SIGNED = frozenset({"overall_preference", "preference_strength"})
TIES = _names(
    """tie draw equal same both neither none bothbad similar unclear unentschieden gleich empate egalite egal
    pareggio 同じ 引き分け 平局"""
)
# A corrected answer is better than the one that it corrects: "corrected answer" beside "model answer".
CORRECTED = _names("corrected edited revised improved rewritten korrigierte corrigee corregida corretta 修正後 修正")
SCORE_WORDS = _names(
    """reward rewards score scores rating ratings grade grades correct correctness pass passed success label labels
    accuracy acc resolved verdict solved match likert helpfulness stars csat nps helpful satisfaction thumbs thumb
    bewertung punkte punktzahl puntuacion calificacion punteggio valutazione evaluation_note avaliacao pontuacao
    feedback beoordeling voto ocena betyg hilfreich zufriedenheit zufrieden satisfait satisfaite utile util satisfecho
    soddisfatto nutzlich оценка 評価 評点 点数 スコア 评分 得分 分数 打分 평가 점수 평점"""
)
# Larger numbers are or may be worse: used as a reward only if the user says so.
LOWER_IS_BETTER = _names(
    """loss error errors mistakes penalty distance perplexity ppl wer cer toxicity harm harmfulness risk hallucination
    hallucinations bias defects bugs violations complaints latency cost deviation mae mse rmse schulnote note"""
)
# `max_score` is not a score of the row, and `correct_answer` is an answer.
_NO_SCORES = _names(
    "max maximum min minimum possible threshold baseline expected reference gold target id std variance"
)
_NO_SCORES_LAST = _names(
    "answer answers option options choice key response output index count name text reason enabled disabled"
)
RANKS = _names("rank ranking rang platz place")  # 1 is the best
# The expected answer, never an answer of the model.
REFERENCE_WORDS = _names(
    """gold golden target targets expected reference references ref label labels ideal truth groundtruth answerkey
    canonical baseline rubric solution_key doc oracle musterloesung musterlosung musterantwort erwartet erwartete
    erwarteter soll referenz attendu attendue esperado esperada atteso attesa verwacht 期待 期待値 模範 参考 标准"""
)
_CORRECT = _names("correct right true richtige korrekte correcta correcte corretta juste")
# Marks of a prompt that was already rendered by a chat template: raw text, not to be rendered again.
RENDERED = ("<|im_start|>", "<|start_header_id|>", "<start_of_turn>", "[INST]", "<|user|>", "<|User|>", "<｜User｜>")

# Speaker names, as `plain_name` returns them -> role
SPEAKERS: dict[str, str] = {
    **dict.fromkeys(
        _names(
            """user human customer client caller visitor guest buyer patient student member end_user requester consumer
            prompter question q me usuario utilisateur nutzer benutzer kunde kundin cliente utente klant klient kund
            inbound incoming клиент пользователь 顧客 お客様 ユーザー 客户 用户 고객 사용자"""
        ),
        "user",
    ),
    **dict.fromkeys(
        _names(
            """assistant ai bot gpt chatgpt model agent chatbot support operator advisor adviser representative rep
            helpdesk service assistente asistente assistent agente berater beraterin mitarbeiter soporte answer a claude
            gemini llama copilot outbound outgoing ki ia llm
            оператор бот ассистент 担当者 アシスタント ボット 客服 助手 机器人 상담원 봇"""
        ),
        "assistant",
    ),
    "system": "system",
    "developer": "developer",
    **dict.fromkeys(("tool", "function", "observation", "tool_result"), "tool"),
}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+")
_LINKED = re.compile(
    "(ユーザー|お客様|顧客|モデル|用户|客户|模型|人工|参考|标准|고객|사용자|모델|(?=[の的]))[の的]?(?=.)"
)
_TITLE = re.compile(r"[(（\[]([^()（）\[\]]+)[)）\]]\s*$")  # "Maria (Agent)"
_INDEXES = tuple("abcdefgh")
_MAX_INDEX = 64


@lru_cache(maxsize=4096)
def words_of(name: str) -> tuple[str, ...]:
    """Return the words of a name in lower case; names in scripts without spaces are split after a known first word.

    >>> words_of("modelResponse"), words_of("output_1"), words_of("AIの回答")
    (('model', 'response'), ('output', '1'), ('ai', '回答'))
    """
    name = _LINKED.sub(r"\1 ", without_accents(name))
    return tuple(word.lower() for word in _WORD.findall(name.lower() if name.isupper() else name))


def singular(name: str) -> str:
    return name[:-1] if name.endswith("s") and not name.endswith("ss") else name


@lru_cache(maxsize=4096)
def plain_name(name: Any) -> str:
    """Return a name in the form of the tables above; `inputs.question` of an evaluation is `question`."""
    words = words_of(name) if isinstance(name, str) else ()
    if len(words) > 1 and words[0] in ("inputs", "outputs"):
        words = words[1:]
    elif len(words) > 1 and "." in name:  # a column of a joined table: `questions.text` is a `question_text`
        words = (singular(words[0]), *words[1:])
    return "_".join(words)


@lru_cache(maxsize=4096)
def is_score_name(name: Any) -> bool:
    """Whether a name contains a word for scores, and no word that means lower is better."""
    words = words_of(name) if isinstance(name, str) else ()
    if words[:1] in (("is",), ("was",)) and words[1:] in (("good",), ("ok",), ("acceptable",), ("valid",), ("useful",)):
        return True
    if SCORE_WORDS.isdisjoint(words) or not LOWER_IS_BETTER.isdisjoint(words) or not _NO_SCORES.isdisjoint(words):
        return False
    return words[-1] not in _NO_SCORES_LAST


@lru_cache(maxsize=4096)
def is_reference_name(path: str) -> bool:
    """Whether a path names a reference: `gold`, `expected_output`, `doc.answer`, `label`, `correct_answer`.

    >>> is_reference_name("doc.answer"), is_reference_name("goldAnswer"), is_reference_name("answer")
    (True, True, False)
    """
    steps = [words_of(step) for step in path.split(".")]
    is_correct = not _CORRECT.isdisjoint(steps[-1]) and any(map(is_completion_name, steps[-1]))
    return is_correct or any(not REFERENCE_WORDS.isdisjoint(words) for words in steps)


def speaker_role(name: Any) -> str | None:
    """Return the role of a speaker with a usual name, or None.

    >>> speaker_role("Customer"), speaker_role("Maria (Agent)"), speaker_role("U024")
    ('user', 'assistant', None)
    """
    if not isinstance(name, str) or len(name) > 40:
        return None
    title = _TITLE.search(name)
    return _role_of(words_of(name)) or (_role_of(words_of(title[1])) if title else None)


@lru_cache(maxsize=4096)
def _role_of(words: tuple[str, ...]) -> str | None:
    role = SPEAKERS.get("_".join(words))
    if role is None and len(words) > 1:
        # "Support Agent", "bot v2", "Customer 17": all known words have the same role.
        known = {SPEAKERS[word] for word in words if word in SPEAKERS and len(word) > 1}
        others = [word for word in words if word not in SPEAKERS and not word.isdigit() and len(word) > 2]
        role = next(iter(known)) if len(known) == 1 and not others else None
    return role


def is_completion_name(name: str) -> bool:
    return name in COMPLETIONS or name in WEAK_COMPLETIONS


@lru_cache(maxsize=4096)
def is_preference_name(name: str) -> bool:
    """Whether a plain name means a preference: `winner`, `which_is_better`."""
    return name in PREFERENCES or _without(name, _ABOUT_PREFERENCE) in PREFERENCES


def _without(name: str, words: frozenset[str]) -> str:
    return "_".join(word for word in name.split("_") if word not in words and word not in _LINKS)


def is_asker_name(name: str) -> bool:
    """Whether a plain name has a word for the user: `user_answer` is not an answer of the model."""
    return not ASKERS.isdisjoint(name.split("_"))


@lru_cache(maxsize=4096)
def prompt_rank(name: str) -> int | None:
    """Return how likely a plain name is the prompt: 0 if in PROMPTS, 1 with a word for the user, 2 weak, else None.

    >>> prompt_rank("question"), prompt_rank("pregunta_del_usuario"), prompt_rank("goal"), prompt_rank("answer")
    (0, 1, 2, None)
    """
    if name in PROMPTS:
        return 0
    if (rest := _without(name, ASKERS | _STAGES)) in PROMPTS or (rest in _MESSAGES and is_asker_name(name)):
        return 1
    return 2 if name in WEAK_PROMPTS else None


@lru_cache(maxsize=4096)
def answer_rank(name: str) -> int | None:
    """Return how likely a plain name is an answer: 0 if in COMPLETIONS, 1 with a word for the model, 2 weak, else None.

    >>> answer_rank("respuesta_del_asistente"), answer_rank("answer"), answer_rank("expected_answer")
    (1, 2, None)
    """
    if name in COMPLETIONS:
        return 0
    rest = _without(name, _AUTHORS | _STAGES)
    if rest != name and (is_completion_name(rest) or rest in _MESSAGES):
        return 1
    return 2 if name in WEAK_COMPLETIONS else None


@lru_cache(maxsize=4096)
def index_of(name: str) -> tuple[str, int] | None:
    """Return the stem and the index of a numbered name, or None.

    >>> index_of("response_b"), index_of("output_1"), index_of("model_a_response"), index_of("prompt")
    (('response', 1), ('output', 1), ('model_response', 0), None)
    """
    words = words_of(name)
    for position in range(len(words) - 1, -1, -1):
        word = words[position]
        if word in _INDEXES or (word.isdigit() and len(word) < 3 and int(word) < _MAX_INDEX):
            stem = "_".join(words[:position] + words[position + 1 :])
            return (stem, _INDEXES.index(word) if word in _INDEXES else int(word)) if stem else None
    return None


def is_lettered(name: str) -> bool:
    return any(word in _INDEXES for word in words_of(name))


def is_answer_stem(stem: str) -> bool:
    return is_completion_name(stem) or stem in _STEMS


@lru_cache(maxsize=65536)
def side_of(name: str, side: str) -> str | None:
    """Return a name without the words of a side, or None if it does not contain them.

    >>> side_of("chosen_response", "chosen"), side_of("score_chosen", "chosen"), side_of("prompt", "chosen")
    ('response', 'score', None)
    """
    padded, inner = f"_{plain_name(name)}_", f"_{side}_"
    if inner not in padded:
        return None
    return padded.replace(inner, "_", 1).strip("_")


def is_answer_word(rest: str) -> bool:
    return not rest or all(word in _ANSWER_WORDS for word in rest.split("_"))


def system_of(row: Json, messages: list[Message]) -> list[Message]:
    """Return the separate system prompt of a row; [] if the messages already contain it."""
    if _SYSTEMS.isdisjoint(row):
        if _SETTINGS.isdisjoint(row):
            return []
        nested = [part for name, part in row.items() if name in _SETTINGS and isinstance(part, dict)]
        named = [{key: inner[key] for key in SYSTEMS if key in inner and key != "instructions"} for inner in nested]
        return next((found for inner in named if (found := system_of(inner, messages))), [])
    key = next((key for key in SYSTEMS if row.get(key) not in (None, "", [])), None)
    if key is None:
        return []
    value = row[key]
    if isinstance(value, dict):  # a content of Google's API, {role, parts[{text}]}, or one block
        value = value.get("parts", value.get("content", [value]))
    if isinstance(value, list) and all(has(part, text=str) for part in value):
        value = "\n\n".join(part["text"] for part in value)
    if not isinstance(value, str):
        raise BadRecord(f"{key}: expected text, got {kind_of(value)}")
    is_repeated = any(message.role in ("system", "developer") and value in message.text for message in messages)
    return [] if is_repeated else [Message("system", value)]
