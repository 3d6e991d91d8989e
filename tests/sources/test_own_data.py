"""People's own data: shapes that are read with no option, after the printed hint, or refused; none silently wrong."""

import csv
import io
import json
import re
import shlex
import sqlite3
from pathlib import Path

import pytest
from openpyxl import Workbook

from pairwright.records.experience import Experience
from pairwright.sources.explain import explain_file
from pairwright.sources.field_map import parse_map
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.sources.rewards import chosen_reward, score_names

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "repro3"
ASKED = {
    "How do I reset it?": ("Press the red button.", "I do not know."),
    "Where is my invoice?": ("It is under Billing.", "Please call us."),
    "Can I change my address?": ("Yes, until it is packed.", "That is impossible."),
}
ROWS = [(q, a, good) for q, (right, wrong) in ASKED.items() for a, good in ((right, True), (wrong, False))]


def lines(rows):
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def table(names, rows, separator=","):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerows([names, *rows])
    return text.getvalue()


def scored(question, answer, score, good, bad, **more):
    return lines({question: q, answer: a, score: good if is_good else bad, **more} for q, a, is_good in ROWS)


def two_tables(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE questions(id INTEGER PRIMARY KEY, text TEXT)")
        database.execute("CREATE TABLE answers(id INTEGER PRIMARY KEY, question_id INT, reply TEXT, stars INT)")
        database.executemany("INSERT INTO questions VALUES (?, ?)", enumerate(ASKED))
        rows = [(list(ASKED).index(q), a, 5 if good else 1) for q, a, good in ROWS]
        database.executemany("INSERT INTO answers(question_id, reply, stars) VALUES (?, ?, ?)", rows)
    database.close()


def chats_and_ratings(path):
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE sessions(id INTEGER PRIMARY KEY, rating INT)")
        database.execute("CREATE TABLE messages(id INTEGER PRIMARY KEY, session_id INT, sender TEXT, body TEXT)")
        for number, (q, a, good) in enumerate(ROWS):
            database.execute("INSERT INTO sessions VALUES (?, ?)", (number, 5 if good else 2))
            for who, said in (("visitor", q), ("bot", a)):
                database.execute("INSERT INTO messages(session_id, sender, body) VALUES (?, ?, ?)", (number, who, said))
    database.close()


def prompts_as_json(path):
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE calls(id INTEGER PRIMARY KEY, prompt_json TEXT, completion_text TEXT, user_feedback INT)"
        )
        asked = [(json.dumps([{"role": "user", "content": q}]), a, 1 if good else -1) for q, a, good in ROWS]
        database.executemany("INSERT INTO calls(prompt_json, completion_text, user_feedback) VALUES (?, ?, ?)", asked)
    database.close()


def sheet_with_title(path):
    book = Workbook()
    rows = [["LLM evaluation"], [], ["#", "Prompt", "Model answer", "Score (0-10)"]]
    for row in [*rows, *([n, q, a, 8 if g else 3] for n, (q, a, g) in enumerate(ROWS))]:
        book.active.append(row)
    book.save(path)


def messages_of(names, user, bot, turns):
    """A table with one message a row; `turns` writes the rows of a question and its answer."""
    return table(names, [row for n, (q, a, g) in enumerate(ROWS) for row in turns(f"c{n}", n, user, q, bot, a, g)])


TALK = [{"who": "kd", "said": q, "next": a, "good": g} for q, a, g in ROWS]
# name: (file, content or a function that writes it)
SHAPES = {
    "up and down": ("a.jsonl", scored("question", "reply", "vote", "up", "down")),
    "yes and no in French": ("b.csv", table(["Demande", "Réponse", "resolved"], [(q, a, "oui" if g else "non") for q, a, g in ROWS])),
    "fractions": ("c.jsonl", scored("prompt", "completion", "score", "4/5", "1/5")),
    "UTF-16": ("d.csv", table(["prompt", "response", "score"], [(q, a, 5 if g else 2) for q, a, g in ROWS]).encode("utf-16")),
    "tabs": ("e.csv", table(["prompt", "response", "rating"], [(q, a, 5 if g else 2) for q, a, g in ROWS], "\t")),
    "two joined tables": ("f.db", two_tables),
    "chats and ratings in two tables": ("g.db", chats_and_ratings),
    "nested judge": ("h.jsonl", lines({"input": q, "output": a, "evaluation": {"judge": {"model": "m", "score": 9 if g else 3, "reason": "so"}}} for q, a, g in ROWS)),
    "Japanese columns": ("i.csv", table(["質問", "回答", "評価"], [(q, a, "良い" if g else "悪い") for q, a, g in ROWS])),
    "-1 is not rated": ("j.jsonl", scored("prompt", "response", "rating", 5, 2) + lines([{"prompt": "How do I reset it?", "response": "Eh.", "rating": -1}])),
    "less is better": ("k.jsonl", scored("prompt", "response", "error_rate", 0.1, 0.7)),
    "own words": ("l.jsonl", scored("prompt", "response", "quality", "excellent", "poor")),
    "words beside verdicts": ("m.jsonl", scored("prompt", "response", "rating", "good", "meh")),
    "stars": ("n.csv", table(["customer_message", "bot_reply", "stars"], [(q, a, "★★★★★" if g else "★☆☆☆☆") for q, a, g in ROWS])),
    "a reference beside the answer": ("o.jsonl", lines({"question": q, "gold_answer": ASKED[q][0], "model_answer": a, "helpful": "Yes" if g else "No"} for q, a, g in ROWS)),
    "a correct answer that is a number": ("p.jsonl", lines({"question": q, "correct_answer": 42, "response": a, "is_correct": g} for q, a, g in ROWS)),
    "scores of two models": ("q.jsonl", lines({"query": q, "claude_response": right, "llama_response": wrong, "claude_rating": 9, "llama_rating": 4} for q, (right, wrong) in ASKED.items())),
    "objects in a list": ("r.json", json.dumps([{"prompt": q, "responses": {"m1": right, "m2": wrong}, "ratings": {"m1": 5, "m2": 2}} for q, (right, wrong) in ASKED.items()])),
    "transcript with known speakers": ("s.csv", table(["chat", "csat"], [(f"Client: {q}\nSupport Agent: {a}", 5 if g else 2) for q, a, g in ROWS])),
    "transcript with own speakers": ("t.csv", table(["transcript", "csat"], [(f"Ann: {q}\nBob: {a}", 5 if g else 2) for q, a, g in ROWS])),
    "messages with own keys": ("u.jsonl", lines({"nr": n, "log": [{"wer": "kd", "was": q}, {"wer": "ber", "was": a}], "score": int(g)} for n, (q, a, g) in enumerate(ROWS))),
    "one message a row with own keys": ("v.csv", table(["fall", "wer", "gesagt", "punkte"], [row for n, (q, a, g) in enumerate(ROWS) for row in ((f"f{n}", "kd", q, ""), (f"f{n}", "ber", a, 5 if g else 2))])),
    "ReAct steps": ("w.jsonl", lines({"goal": q, "steps": [{"thought": "look", "tool": "search", "tool_input": {"q": q}, "observation": "x"}, {"thought": "done", "tool": "final_answer", "tool_input": a}], "success": g} for q, a, g in ROWS)),
    "nested fields": ("x.jsonl", lines({"id": n, "case": {"user": {"text": q}}, "out": {"reply": a, "ms": 3}, "eval": {"grade": int(g)}} for n, (q, a, g) in enumerate(ROWS))),
    "records in a document": ("y.json", json.dumps({"version": 1, "items": [{"q": {"question": q}, "a": {"reply": a}, "pass": g} for q, a, g in ROWS]})),
    "semicolons and decimal commas": ("z.csv", table(["Frage", "Antwort", "Bewertung"], [(q, a, "4,250" if g else "1,5") for q, a, g in ROWS], ";")),
    "out of": ("aa.jsonl", scored("instruction", "generation", "grade", "9 out of 10", "2 out of 10")),
    "Spanish": ("ab.csv", table(["pregunta", "respuesta", "calificación"], [(q, a, "sí" if g else "no") for q, a, g in ROWS], ";").encode("latin-1")),
    # Exports of tools
    "Zendesk tickets": ("ac.json", json.dumps({"tickets": [{"id": n, "description": q, "comments": [{"author_id": 7, "body": q}, {"author_id": 99, "body": a}], "satisfaction_rating": {"score": "good" if g else "bad"}} for n, (q, a, g) in enumerate(ROWS)]})),
    "Zendesk as a table": ("ad.csv", table(["Ticket ID", "Description", "Agent reply", "Satisfaction"], [(n, q, a, "Good" if g else "Bad") for n, (q, a, g) in enumerate(ROWS)], ";")),
    "numbered answers with a preference": ("ae.csv", table(["id", "prompt", "answer1", "answer2", "preference"], [(n, q, right, wrong, "answer1") for n, (q, (right, wrong)) in enumerate(ASKED.items())])),
    "Label Studio dialogues": ("af.json", json.dumps([{"id": n, "data": {"dialogue": [{"author": "user", "text": q}, {"author": "assistant", "text": a}]}, "annotations": [{"result": [{"from_name": "quality", "type": "rating", "value": {"rating": 5 if g else 1}}]}]} for n, (q, a, g) in enumerate(ROWS)])),
    "items and samples of an eval": ("ag.jsonl", lines({"item": {"question": q, "ideal": ASKED[q][0]}, "sample": {"output_text": a, "model": "gpt"}, "grades": {"match": {"passed": g}}} for q, a, g in ROWS)),
    "LangSmith as a table": ("ah.csv", table(["id", "inputs", "outputs", "reference_outputs", "feedback.correctness"], [(n, json.dumps({"question": q}), json.dumps({"output": a}), json.dumps({"answer": ASKED[q][0]}), float(g)) for n, (q, a, g) in enumerate(ROWS)])),
    "LangSmith messages as a table": ("ai.csv", table(["run_id", "inputs", "outputs", "feedback_user_score"], [(n, json.dumps({"messages": [{"role": "user", "content": q}]}), json.dumps({"messages": [{"role": "assistant", "content": a}]}), int(g)) for n, (q, a, g) in enumerate(ROWS)])),
    "Langfuse items as a table": ("aj.csv", table(["id", "input", "output", "expected_output", "scores"], [(n, json.dumps({"question": q}), json.dumps({"answer": a}), json.dumps({"answer": ASKED[q][0]}), json.dumps([{"name": "quality", "value": float(g)}])) for n, (q, a, g) in enumerate(ROWS)])),
    "dataset viewer": ("ak.json", json.dumps({"features": [{"name": "prompt"}], "rows": [{"row_idx": n, "row": {"prompt": q, "response": a, "score": 5 if g else 1}, "truncated_cells": []} for n, (q, a, g) in enumerate(ROWS)]})),
    "transcript in one line": ("al.csv", table(["call_id", "transcript", "outcome"], [(n, f"CUSTOMER: {q} AGENT: {a}", "resolved" if g else "unresolved") for n, (q, a, g) in enumerate(ROWS)])),
    "transcript under another name": ("am.csv", table(["id", "log", "nps"], [(n, f"Q: {q}\nA: {a}", 9 if g else 2) for n, (q, a, g) in enumerate(ROWS)], "|")),
    "transcript with times": ("an.csv", table(["chat", "text", "rating"], [(n, f"[10:01] Client: {q}\n[10:02] Bot: {a}", 5 if g else 1) for n, (q, a, g) in enumerate(ROWS)])),
    "columns": ("ao.json", json.dumps({"prompt": [q for q, _, _ in ROWS], "response": [a for _, a, _ in ROWS], "score": [int(g) for _, _, g in ROWS]})),
    "rows by id": ("ap.json", json.dumps({str(n): {"question": q, "answer": a, "score": int(g)} for n, (q, a, g) in enumerate(ROWS)})),
    "requests of a user": ("aq.jsonl", lines({"user": {"id": "u1"}, "request": {"model": "m", "text": q}, "response": {"text": a, "tokens": 3}, "feedback": {"thumb": "up" if g else "down"}} for q, a, g in ROWS)),
    "lettered columns in German": ("ar.tsv", table(["Frage", "Antwort A", "Antwort B", "Besser"], [(q, right, wrong, "A") for q, (right, wrong) in ASKED.items()], "\t")),
    "Discord channel": ("as.json", json.dumps({"channel": {"name": "help"}, "messages": [message for n, (q, a, g) in enumerate(ROWS) for message in ({"timestamp": f"2026-01-01T00:{n:02d}:00", "content": q, "author": {"name": "ann", "isBot": False}, "reactions": []}, {"timestamp": f"2026-01-01T00:{n:02d}:30", "content": a, "author": {"name": "helper", "isBot": True}, "reactions": [{"emoji": {"name": "👍" if g else "👎"}, "count": 2}]})]})),
    "scores with their meaning": ("at.csv", table(["prompt", "completion", "rating"], [(q, a, "5 - Excellent" if g else "1 - Poor") for q, a, g in ROWS])),
    "prompts as JSON in a database": ("au.db", prompts_as_json),
    # Names that say whose question or answer it is
    "German sheet": ("ba.csv", table(["Nr", "Kundenfrage", "KI-Antwort", "Bewertung (1-5)"], [(n, q, a, "4,5" if g else "1,5") for n, (q, a, g) in enumerate(ROWS)], ";").encode("cp1252")),
    "French sheet": ("bb.csv", table(["Question du client", "Réponse du bot", "Satisfait ?"], [(q, a, "oui" if g else "non") for q, a, g in ROWS], ";")),
    "Spanish sheet": ("bc.csv", table(["Pregunta del usuario", "Respuesta del asistente", "¿Útil?"], [(q, a, "Sí" if g else "No") for q, a, g in ROWS], ";").encode("cp1252")),
    "Italian sheet with a reference": ("bd.csv", table(["Domanda dell'utente", "Risposta attesa", "Risposta del modello", "Voto"], [(q, ASKED[q][0], a, 8 if g else 2) for q, a, g in ROWS], ";")),
    "Dutch sheet": ("be.csv", table(["Vraag van klant", "Antwoord van bot", "Beoordeling"], [(q, a, "4,5" if g else "1,0") for q, a, g in ROWS], ";")),
    "Japanese sheet": ("bf.csv", "\ufeff" + table(["ユーザーの質問", "AIの回答", "評価（5段階）"], [(q, a, 5 if g else 1) for q, a, g in ROWS])),
    "Chinese sheet": ("bg.csv", table(["用户问题", "模型回答", "人工评分", "参考答案"], [(q, a, 5 if g else 1, ASKED[q][0]) for q, a, g in ROWS])),
    "Shift-JIS": ("bh.csv", table(["質問", "回答", "点数", "備考"], [(q, a, 90 if g else 20, "確認済みの回答です、はい。" * 9) for q, a, g in ROWS]).encode("cp932")),
    "Korean": ("bi.csv", table(["질문", "AI 답변", "평가", "메모"], [(q, a, "좋음" if g else "나쁨", "설정에서 바꿀 수 있습니다 " * 9) for q, a, g in ROWS]).encode("cp949")),
    "tests with their expected answer": ("bj.csv", table(["Testfall", "Eingabe", "Erwartete Antwort", "Tatsächliche Antwort", "Ergebnis"], [(f"T{n}", q, ASKED[q][0], a, "bestanden" if g else "nicht bestanden") for n, (q, a, g) in enumerate(ROWS)], ";")),
    "requester and agent": ("bk.csv", table(["ticket_id", "subject", "requester_message", "agent_reply", "csat_score"], [(n, "Help", q, a, 5 if g else 1) for n, (q, a, g) in enumerate(ROWS)])),
    "Dialogflow": ("bl.jsonl", lines({"session": n, "queryText": q, "fulfillmentText": a, "is_good": g} for n, (q, a, g) in enumerate(ROWS))),
    "a rendered prompt beside its template": ("bm.jsonl", lines({"prompt_template": "{{question}}", "variables": {"question": q}, "rendered_prompt": q, "llm_output": a, "human_score": "4 out of 5" if g else "1 out of 5"} for q, a, g in ROWS)),
    # Preferences as people write them
    "columns named after models": ("bn.csv", table(["prompt", "gpt-4o", "claude-3-5-sonnet", "winner"], [(q, right, wrong, "gpt-4o") if n else (q, wrong, right, "claude-3-5-sonnet") for n, (q, (right, wrong)) in enumerate(ASKED.items())])),
    "a preference in words": ("bo.csv", table(["instruction", "output_a", "output_b", "which_is_better"], [(q, wrong, right, "B is much better") for q, (right, wrong) in ASKED.items()])),
    "a ranking in words": ("bp.jsonl", lines({"prompt": q, "answer_a": "Eh?", "answer_b": right, "answer_c": wrong, "ranking": "B > C > A"} for q, (right, wrong) in ASKED.items())),
    "corrections": ("bq.csv", table(["user question", "model answer", "corrected answer"], [(q, wrong, right) for q, (right, wrong) in ASKED.items()])),
    # Turns
    "turns out of order": ("br.csv", messages_of(["session", "turn_no", "speaker", "utterance", "rating"], "customer", "bot", lambda c, n, user, q, bot, a, g: [(c, 2, bot, a, ""), (c, 1, user, q, 5 if g else 1)])),
    "days before months": ("bs.csv", messages_of(["chat_id", "absender", "nachricht", "zeit", "rating"], "Kunde", "Bot", lambda c, n, user, q, bot, a, g: [(c, bot, a, "11.02.2025 10:05", ""), (c, user, q, "09.02.2025 12:01", 5 if g else 1)])),
    "months before days": ("bt.csv", messages_of(["conversation_id", "sender", "text", "time", "rating"], "user", "bot", lambda c, n, user, q, bot, a, g: [(c, bot, a, "02/14/2025 10:05 AM", ""), (c, user, q, "02/14/2025 9:01 AM", 5 if g else 1)])),
    "in and out": ("bu.csv", messages_of(["conversation", "from", "to", "direction", "text", "score"], "+4917", "bot", lambda c, n, user, q, bot, a, g: [(c, user, bot, "inbound", q, ""), (c, bot, user, "outbound", a, int(g))])),
    "a flag for the bot": ("bv.csv", messages_of(["conversation_id", "message", "is_bot", "created_at", "stars"], "", "", lambda c, n, user, q, bot, a, g: [(c, q, "false", f"2026-01-0{n + 1}T00:00", ""), (c, a, "true", f"2026-01-0{n + 1}T00:01", 5 if g else 1)])),
    "a column a turn": ("bw.csv", table(["user_1", "bot_1", "user_2", "bot_2", "score"], [(q, "Let me see.", "And?", a, int(g)) for q, a, g in ROWS])),
    "questions and answers in a list": ("bx.json", json.dumps([{"turns": [{"q": q, "a": a}], "rating": 4 if g else 1} for q, a, g in ROWS])),
    # Where the fields are
    "JSON text in a column": ("by.jsonl", lines({"event": "llm", "payload": json.dumps({"input": {"messages": [{"role": "user", "content": q}]}, "output": {"text": a}}), "user_rating": 5 if g else 1} for q, a, g in ROWS)),
    "a title above the table": ("bz.xlsx", sheet_with_title),
    "the id of a user": ("cc.jsonl", lines({"user": f"u{n}", "question": q, "response": a, "rating": 5 if g else 1} for n, (q, a, g) in enumerate(ROWS))),
    "a history in a cell": ("ca.csv", table(["chat_history", "question", "answer", "score"], [("User: Hi\nBot: Hello", q, a, int(g)) for q, a, g in ROWS])),
}  # fmt: skip
# The values that a user puts into the hint for NUMBER, or for "user or assistant".
FILLED = {
    "own words": {"excellent: NUMBER": "excellent: 1", "poor: NUMBER": "poor: 0"},
    "words beside verdicts": {"good: NUMBER": "good: 1", "meh: NUMBER": "meh: 0"},
    "transcript with own speakers": {"Ann: user or assistant": "Ann: user", "Bob: user or assistant": "Bob: assistant", "FIELD": "transcript"},
}  # fmt: skip


def write(path: Path, content) -> Path:
    if callable(content):
        content(path)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def read(path: Path, options: Options = Options()):  # noqa: B008
    layout = detect(path, options=options)
    if isinstance(layout, Rejected):
        return [layout]
    return list(read_file(path, layout, options))


def judged(records, reward=None) -> str:
    """Whether records are right, refused, unscored or wrong: every question with its good above its bad answer."""
    if not records or any(isinstance(record, Rejected) for record in records):
        return "refused"
    found: dict[str, dict[str, float | None]] = {}
    for exp in records:
        prompt = exp.prompt[-1].text
        if exp.chosen is not None:
            found[prompt] = {exp.chosen.messages[-1].text: 1.0, exp.rejected.messages[-1].text: 0.0}
        else:
            number = exp.reward if reward is None else chosen_reward(exp, reward)
            found.setdefault(prompt, {})[exp.completion[-1].text] = number
    scores = [(found.get(q, {}).get(good), found.get(q, {}).get(bad)) for q, (good, bad) in ASKED.items()]
    if any(good not in found.get(q, {}) or bad not in found.get(q, {}) for q, (good, bad) in ASKED.items()):
        return "wrong"
    if all(good is None and bad is None for good, bad in scores):
        return "unscored"
    if any("Eh." in answers and answers["Eh."] is not None for answers in found.values()):
        return "wrong"
    return "right" if all(good is not None and bad is not None and good > bad for good, bad in scores) else "wrong"


def hint_of(path: Path, records) -> tuple[str | None, str | None]:
    """Return the `--map` and the `--reward` that the program prints for a file that is not read, or unscored."""
    if isinstance(records[0], Rejected) and "no known format" not in records[0].reason:
        match = re.search(r"--map (?:'([^']+)'|(\S+))", records[0].reason)
        return (match[1] or match[2], None) if match else (None, None)
    if isinstance(records[0], Rejected):
        command = explain_file(path, "auto", Options()).command
        words = shlex.split(command) if command else []
        return (words[words.index("--map") + 1] if "--map" in words else None), None
    names = list(dict.fromkeys(name for exp in records for name in score_names(exp.reward_components, exp.info)))
    words = [name.split(": ") for name in names if ": " in name]
    if words:  # as cli/commands/import_files.py prints it
        table = ", ".join(f"{word}: NUMBER" for field, word in words if field == words[0][0])
        return f"reward={words[0][0]},scores={{{table}}}", None
    return None, names[0] if names else None


def outcome(name: str, path: Path) -> str:
    """Follow what the program says: right, hint (right after it), refused, unscored or wrong."""
    records = read(path)
    first = judged(records)
    if first in ("right", "wrong"):
        return first
    fields, reward = hint_of(path, records)
    for old, new in FILLED.get(name, {}).items():
        fields = fields.replace(old, new) if fields else fields
    if fields is None and reward is None:
        return first
    after = judged(read(path, Options(map=parse_map(fields))), reward)
    return {"right": "hint", "wrong": "wrong"}.get(after, first)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return {name: outcome(name, write(folder / file, content)) for name, (file, content) in SHAPES.items()}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_read_with_no_option_or_after_the_printed_hint(name, outcomes):
    assert outcomes[name] in ("right", "hint")


def test_most_shapes_need_no_option_and_none_is_silently_wrong(outcomes):
    results = list(outcomes.values())
    assert len(results) >= 18
    assert results.count("wrong") == 0
    assert results.count("right") >= 0.6 * len(results)
    assert results.count("right") + results.count("hint") >= 0.9 * len(results)


# Files of the shared folder: number of experiences or preferences, and the rewards that occur.
OWN = {
    "01_tickets_thumbs.jsonl": (6, {0.0, 1.0}),
    "03_deutsch.csv": (6, {1.0, 5.0}),
    "05_two_models.jsonl": (3, {None}),
    "06_chat_rows.csv": (6, {2.0, 5.0}),
    "07_excel_export.csv": (6, {1.25, 4.5}),
    "07b_latin1.csv": (6, {1.0, 4.0}),
    "11_app.db": (6, {1.0, 5.0}),
    "15_passfail.jsonl": (6, {0.0, 1.0}),
    "17b_rank.jsonl": (6, {-2.0, -1.0}),
    "18_slack.json": (2, {0.0, 1.0}),
    "19_transcript.csv": (6, {0.0, 1.0}),
    "20_own_agent.jsonl": (6, {0.0, 1.0}),
    "22_dict_answers.json": (6, {0.2, 0.9}),
    "24_percent.csv": (6, {0.2, 0.95}),
}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared folder is not here")
@pytest.mark.parametrize("name", OWN)
def test_a_shared_file_of_own_data_is_read_with_no_option(name):
    records = read(SHARED / "own" / name)
    assert all(isinstance(record, Experience) for record in records), records
    assert (len(records), {record.reward for record in records}) == OWN[name]
    good = [record for record in records if record.reward == max(OWN[name][1], key=lambda number: number or 0)]
    assert "No idea" not in " ".join(message.text for record in good for message in record.completion)


SETS = {
    "webgpt_comparisons.jsonl": 6,
    "summarize_from_feedback.jsonl": 3,
    "stack_exchange_paired.jsonl": 3,
    "lm_eval_samples.jsonl": 3,
    "capybara_sft.jsonl": 3,
    "distilabel_orca_dpo.jsonl": 3,
}


@pytest.mark.skipif(not SHARED.exists(), reason="the shared folder is not here")
@pytest.mark.parametrize("name", SETS)
def test_a_public_set_is_read_with_no_option(name):
    records = read(SHARED / "sets" / name)
    assert all(isinstance(record, Experience) for record in records), records
    assert len(records) == SETS[name]
    for exp in records:
        assert exp.prompt[-1].text in (
            "What is the capital of France?",
            "How do I boil an egg?",
            "Write a haiku about rain.",
        )
        if exp.chosen is not None:
            assert (exp.chosen.messages[0].text[:4], exp.rejected.messages[0].text[:3]) == ("GOOD", "BAD")
        elif exp.reward is not None and name.startswith("webgpt"):
            assert exp.completion[0].text.startswith("GOOD" if exp.reward > 0 else "BAD")
    if name.startswith("distil"):
        assert [message.role for message in records[0].prompt] == ["system", "user"]
    if name.startswith("capy"):
        assert {exp.reward for exp in records} == {None}


def test_a_database_is_read_whatever_its_path_has_in_it(tmp_path):
    folder = tmp_path / "run #1, 50%? done"
    folder.mkdir()
    two_tables(folder / "own #2.db")
    path = folder / "own #2.db"
    assert sum(isinstance(one, Experience) for one in read_file(path, detect(path), Options())) == len(ROWS)


def hint(path: Path) -> str:
    command = shlex.split(explain_file(path, "auto", Options()).command or "")
    return command[command.index("--map") + 1] if "--map" in command else ""


@pytest.mark.parametrize(
    ("row", "map"),
    [
        # Both texts are the prompt
        ({"context": "It is red.", "question": "What is it?", "reply": "An apple."}, "prompt=context+question,completion=reply"),
        # All candidates, not the first alone
        ({"Question": "What is it?", "ChatGPT answer": "An apple.", "Gemini answer": "A pear."}, "prompt=Question,completion=ChatGPT answer|Gemini answer"),
        ({"question": "What is it?", "left": {"text": "An apple."}, "right": {"text": "A pear."}}, "prompt=question,completion=left.text|right.text"),
        # Neither a person's answer nor a reference is the model's
        ({"question": "What is it?", "user_answer": "An apple.", "correct_answer": "A pear.", "is_correct": False}, ""),
        ({"Frage": "Was ist es?", "Erwartete Antwort": "Ein Apfel.", "Musterantwort": "Eine Birne."}, ""),
        ({"question": "What is it?", "Antwort des Schülers": "An apple."}, ""),
        # An id is not an answer
        ({"request": {"prompt": "What is it?"}, "response": {"id": "resp_1.", "body": {"said": {"content": "An apple."}}}}, "prompt=request.prompt,completion=response.body.said.content"),
    ],
)  # fmt: skip
def test_a_hint_keeps_every_part_of_a_row(row, map, tmp_path):
    rows = [{**row, "nr": number} for number in range(3)]
    assert hint(write(tmp_path / "rows.jsonl", lines(rows))) == map


def test_a_flag_that_names_no_conversation_is_no_session(tmp_path):
    rows = [
        {"chat": f"c{n}", "said": said, "bot": bot}
        for n in range(4)
        for said, bot in (("Why is it?", 0), ("So it is.", 1))
    ]
    assert "session=bot" not in hint(write(tmp_path / "flags.jsonl", lines(rows)))  # fmt: skip


def test_a_transcript_whose_other_speaker_is_unknown_is_not_read_as_the_models_alone(tmp_path):
    text = "[00:01] Maria (Agent): How can I help?\n[00:05] John Doe: Where is it?\n[00:09] Maria (Agent): Here."
    path = write(tmp_path / "calls.csv", table(["call", "call_text", "qa_score"], [(n, text, "90%") for n in range(3)]))
    fields = hint(path)
    assert fields == "messages=call_text,roles={Maria (Agent): assistant, John Doe: user},reward=qa_score"
    exp = read(path, Options(map=parse_map(fields)))[0]
    assert [message.role for message in exp.completion] == ["assistant", "user", "assistant"]


def test_days_and_months_that_cannot_be_told_apart_are_refused_if_the_order_depends_on_them(tmp_path):
    rows = [("c1", "user", "Why?", "12/03/2025 10:00"), ("c1", "bot", "So.", "01/04/2025 10:00")]
    path = write(tmp_path / "days.csv", table(["conversation_id", "sender", "text", "time"], rows))
    assert "may have the day or the month first" in read(path)[0].reason


def test_a_system_prompt_among_the_settings_of_a_row_is_kept(tmp_path):
    row = {"metadata": {"system_prompt": "Be brief."}, "input": "Why?", "output": "So.", "score": 1}
    (exp,) = read(write(tmp_path / "settings.jsonl", lines([row])))
    assert [message.text for message in exp.prompt] == ["Be brief.", "Why?"]


def test_instructions_among_the_settings_of_a_row_may_be_for_a_judge(tmp_path):
    row = {"config": {"judge": "m", "instructions": "Rate it."}, "input": "Why?", "output": "So.", "score": 1}
    (exp,) = read(write(tmp_path / "settings.jsonl", lines([row])))
    assert [message.text for message in exp.prompt] == ["Why?"]


def test_a_question_that_looks_like_an_id_stays_the_question(tmp_path):
    rows = [{"question": "2+2", "user": "u17", "answer": "4", "score": 1}]
    (exp,) = read(write(tmp_path / "sums.jsonl", lines(rows)))
    assert exp.prompt[-1].text == "2+2"


def test_a_preference_decides_between_an_answer_and_its_rewrite(tmp_path):
    row = {"query": "Why?", "original_response": "So.", "rewritten_response": "Well.", "better": "original_response"}
    (exp,) = read(write(tmp_path / "rewritten.jsonl", lines([row])))
    assert (exp.chosen.messages[0].text, exp.rejected.messages[0].text) == ("So.", "Well.")


def test_a_correction_beside_a_score_leaves_the_scored_answer_alone(tmp_path):
    row = {"question": "Why?", "answer": "So.", "corrected_answer": "Because.", "score": 2}
    (exp,) = read(write(tmp_path / "corrected.jsonl", lines([row])))
    assert (exp.completion[0].text, exp.reward) == ("So.", 2.0)


def test_a_span_of_a_trace_is_no_row(tmp_path):
    path = write(
        tmp_path / "spans.jsonl",
        lines([{"trace_id": "t", "parent_id": "p", "inputs": {"question": "Why?"}, "output": "So."}]),
    )
    assert isinstance(detect(path), Rejected)


def test_an_answer_that_is_json_stays_as_the_model_wrote_it(tmp_path):
    path = write(
        tmp_path / "json.jsonl", lines([{"prompt": "Answer as JSON.", "response": '{"answer": "42"}', "score": 1}])
    )
    (exp,) = read(path)
    assert exp.completion[0].text == '{"answer": "42"}'


def test_a_row_with_a_list_of_rows_in_it_is_one_row(tmp_path):
    earlier = [{"question": "Who?", "answer": "Me."}, {"question": "When?", "answer": "Now."}]
    path = write(
        tmp_path / "one.json", json.dumps({"prompt": "Why?", "response": "So.", "score": 1, "examples": earlier})
    )
    (exp,) = read(path)
    assert (exp.prompt[-1].text, exp.completion[0].text, exp.reward) == ("Why?", "So.", 1.0)


def test_lists_of_turns_for_two_sides_are_one_preference(tmp_path):
    row = {"prompt": ["One?", "Two?"], "chosen": ["1", "2"], "rejected": ["1", "3"]}
    (exp,) = read(write(tmp_path / "turns.json", json.dumps(row)))
    assert [message.text for message in exp.chosen.messages] == ["2"]


def test_a_row_of_a_document_that_cannot_be_read_is_refused_alone(tmp_path):
    rows = [{"question": "Why?", "answer": "So.", "score": 1}, {"question": "How?", "answer": None, "score": 1}]
    good, bad = read(write(tmp_path / "rows.json", json.dumps({"version": 1, "items": rows})))
    assert good.completion[0].text == "So."
    assert bad.reason.startswith("record 1: ")


def test_chats_under_their_ids_are_all_read_and_candidates_stay_one_row(tmp_path):
    turns = [[{"role": "user", "content": q}, {"role": "assistant", "content": a}] for q, a, _ in ROWS[:2]]
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps({"1737804332": turns[0], "1737804399": turns[1]}))
    found = read(path)
    assert [[message.text for message in one.messages] for one in found] == [list(row[:2]) for row in ROWS[:2]]
    assert [one.info["id"] for one in found] == ["1737804332", "1737804399"]
    path.write_text(json.dumps({"prompt": "Q?", "response_1": turns[0], "response_2": turns[1]}))
    assert len({one.eid.task for one in read(path)}) == 1


def test_an_empty_chat_among_chats_by_id_is_refused_alone(tmp_path):
    turns = [{"role": "user", "content": "Q?"}, {"role": "assistant", "content": "A."}]
    path = tmp_path / "conversations.json"
    path.write_text(
        json.dumps({"00993e62": {"title": "Q", "messages": turns}, "870fe0c8": {"title": "", "messages": []}})
    )
    first, second = read(path)
    assert [message.text for message in first.messages] == ["Q?", "A."]
    assert isinstance(second, Rejected)
