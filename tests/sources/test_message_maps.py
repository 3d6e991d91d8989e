"""Maps of messages, scores and files: fields inside a list, roles, words, candidates, tables, and YAML files."""

import json
import sqlite3

import pytest

from pairwright.errors import ConfigError
from pairwright.records.experience import Experience
from pairwright.sources.field_map import parse_map
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, file_units, read_file


def read(path, fields=None):
    options = Options(map=parse_map(fields))
    layout = detect(path, options=options)
    return [layout] if isinstance(layout, Rejected) else list(read_file(path, layout, options))


def write(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


LOG = [
    {"who": "kd", "said": "Where is it?"},
    {"who": "ber", "said": "", "tool": "look", "args": {"id": 4}, "out": "shelf 2"},
    {"who": "ber", "said": "On shelf 2."},
]
FIELDS = "messages=log,role=who,content=said,calls=tool,arguments=args,results=out,roles={kd: user, ber: assistant}"


def test_fields_of_messages_calls_and_results_are_named(tmp_path):
    (exp,) = read(write(tmp_path / "a.jsonl", {"log": LOG, "score": 1}), FIELDS)
    assert [message.role for message in (*exp.prompt, *exp.completion)] == ["user", "assistant", "tool", "assistant"]
    (call,) = exp.completion[0].tool_calls
    assert (call.name, json.loads(call.arguments)) == ("look", {"id": 4})
    assert exp.completion[1].text == "shelf 2"
    assert exp.completion[1].tool_call_id == call.id
    assert (exp.completion[-1].text, exp.reward) == ("On shelf 2.", 1.0)


def test_a_role_that_the_map_lacks_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", {"log": [{"who": "zz", "said": "a"}, {"who": "ber", "said": "b"}]})
    (rejected,) = read(path, FIELDS)
    assert "'zz' has no known role" in rejected.reason


def test_a_map_is_read_from_a_yaml_file(tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text("prompt: q\ncompletion: a\nreward: ok\nscores: {yes: 2, no: -1, later: null}\n")
    rows = [{"q": "Q?", "a": f"a{n}", "ok": word} for n, word in enumerate(("yes", "no", "later"))]
    assert [exp.reward for exp in read(write(tmp_path / "a.jsonl", *rows), str(own))] == [2.0, -1.0, None]
    with pytest.raises(ConfigError, match="no such file"):
        parse_map(str(tmp_path / "nowhere.yaml"))


def test_a_word_that_the_table_of_scores_lacks_is_refused(tmp_path):
    path = write(tmp_path / "a.jsonl", {"q": "Q?", "a": "x", "ok": "good"}, {"q": "Q?", "a": "y", "ok": "meh"})
    read_, rejected = read(path, "prompt=q,completion=a,reward=ok,scores={good: 1}")
    assert (read_.reward, "'meh' is not among good" in rejected.reason) == (1.0, True)


def test_best_names_one_of_the_candidates(tmp_path):
    row = {"q": "Q?", "x_text": "left", "y_text": "right", "pick": "y"}
    (exp,) = read(write(tmp_path / "a.jsonl", row), "prompt=q,completion=x_text|y_text,best=pick")
    assert (exp.chosen.messages[0].text, exp.rejected.messages[0].text) == ("right", "left")


def test_two_tables_are_joined_by_the_map(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE fragen(nr INTEGER, satz TEXT)")
        database.execute("CREATE TABLE antw(fnr INTEGER, satz TEXT, p REAL)")
        database.execute("INSERT INTO fragen VALUES (1, 'Port?')")
        database.executemany("INSERT INTO antw VALUES (1, ?, ?)", [("left", 1.0), ("red", 0.0)])
    database.close()
    fields = "records=antw,join=fragen.nr=fnr,prompt=fragen.satz,completion=satz,reward=p"
    found = [(exp.prompt[0].text, exp.completion[0].text, exp.reward) for exp in read(path, fields)]
    assert found == [("Port?", "left", 1.0), ("Port?", "red", 0.0)]
    assert "has no column x" in read(path, fields.replace("fragen.nr", "fragen.x"))[0].reason


def test_generated_columns_of_joined_tables_are_read(tmp_path):
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE q(id INTEGER, s TEXT, loud TEXT AS (upper(s)))")
        database.execute("CREATE TABLE a(qid INTEGER, s TEXT, p REAL AS (length(s)))")
        database.execute("INSERT INTO q(id, s) VALUES (1, 'port?')")
        database.execute("INSERT INTO a(qid, s) VALUES (1, 'left')")
    database.close()
    (exp,) = read(path, "records=a,join=q.id=qid,prompt=q.loud,completion=s,reward=p")
    assert (exp.prompt[0].text, exp.completion[0].text, exp.reward) == ("PORT?", "left", 4.0)


def test_how_a_csv_file_is_written_is_reported_and_overridden(tmp_path):
    from collections import Counter

    path = tmp_path / "a.csv"
    path.write_bytes("prompt;response;score\nGröße?;klein;4,5\n".encode("latin-1"))
    (exp,) = read(path)
    assert (exp.prompt[0].text, exp.reward) == ("Größe?", 4.5)
    notes: Counter[str] = Counter()
    list(file_units(path, detect(path), repairs=notes))
    assert [name.split(" (")[0] for name in notes] == [
        "files read as Latin-1", "files with cells separated by semicolon", "columns with decimal commas: score"
    ]  # fmt: skip
    (exp,) = read(path, "encoding=cp1250,decimal=point,delimiter=semicolon")
    assert exp.prompt[0].text == "Größe?"
    assert isinstance(read(path, "delimiter=comma")[0], Rejected)


def test_text_in_an_unknown_encoding_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("質問,回答,score\n結び目はどれですか,もやい結びです,5\n".encode("cp932"))
    assert "choose with --map encoding=NAME" in read(path)[0].reason
    (exp,) = read(path, "encoding=cp932")
    assert exp.prompt[0].text == "結び目はどれですか"


def test_a_sheet_of_excel_is_read(tmp_path):
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [("Prompt", "Response", "Stars"), ("Port?", "Left", 5), ("Port?", "Red", 1)]:
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    records = read(tmp_path / "a.xlsx")
    assert [(exp.completion[0].text, exp.reward) for exp in records if isinstance(exp, Experience)] == [
        ("Left", 5.0), ("Red", 1.0)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("role=who", "name the list with messages=FIELD"),
        ("messages=a,roles={x: boss}", "expected one of system, user"),
        ("prompt=a,completion=b,scores={x: much}", "expected a number"),
        ("prompt=a,best=b", "name them with completion"),
        ("messages=a,arguments=b", "name it with calls"),
    ],
)
def test_a_map_of_messages_is_checked_when_it_is_parsed(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_map(text)
