"""Logs and tables with one message a row: which rows are a conversation, in which order, with which reward."""

import csv
import json
import sqlite3
from pathlib import Path

import pytest

from pairwright.records.experience import Experience
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file

FIXTURE = Path(__file__).parent / "fixtures" / "message_rows.jsonl"
ROWS = [json.loads(line) for line in FIXTURE.read_text().splitlines()]


def read_path(path: Path) -> tuple[str, list[Experience], list[str]]:
    """The format of a file, its experiences, and the reasons of what was refused."""
    layout = detect(path)
    assert isinstance(layout, Layout), layout
    records = list(read_file(path, layout, Options()))
    reasons = [record.reason for record in records if isinstance(record, Rejected)]
    return layout.format, [record for record in records if isinstance(record, Experience)], reasons


def write_lines(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def texts(experience: Experience) -> list[str]:
    return [message.text for message in (*experience.prompt, *experience.completion)]


def test_rows_of_one_id_are_a_conversation_wherever_they_stand():
    name, (first, second), reasons = read_path(FIXTURE)
    assert (name, reasons) == ("message-rows", [])
    assert texts(first) == ["Weigh parcels.", "How heavy is parcel 4?", "", "2.4 kg", "2.4 kg."]
    assert texts(second) == ["Weigh parcels.", "How heavy is parcel 4?", "About a kilo."]
    assert [message.role for message in first.completion] == ["assistant", "tool", "assistant"]
    assert first.completion[0].tool_calls[0].arguments == '{"parcel": 4}'
    assert (first.reward, second.reward, first.model_version) == (1.0, 0.0, "m-9")
    # the same prompt, so runs of one task
    assert first.eid.task == second.eid.task
    assert first.eid.run != second.eid.run
    assert (first.info["session_id"], first.info["channel"]) == ("w-1", "web")
    assert first.info["message_fields"][4] == {"created_at": "2026-03-01T09:00:07Z", "model": "m-9", "rating": 1}
    assert [first.source.line, second.source.line] == [1, 2]


@pytest.mark.parametrize("kind", ["csv", "json", "sqlite", "reversed lines"])
def test_any_kind_of_file_gives_the_same_conversations(kind, tmp_path):
    path = tmp_path / {"csv": "log.csv", "json": "log.json", "sqlite": "log.db"}.get(kind, "log.jsonl")
    keys = list(dict.fromkeys(key for row in ROWS for key in row))
    cells = [
        {key: json.dumps(value) if isinstance(value := row.get(key), list) else value for key in keys}
        for row in reversed(ROWS)  # newest first, as many exports are
    ]
    if kind == "csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, keys)
            writer.writeheader()
            writer.writerows(cells)
    elif kind == "json":
        path.write_text(json.dumps(ROWS[::-1]))
    elif kind == "sqlite":
        with sqlite3.connect(path) as database:
            database.execute(f"CREATE TABLE messages ({', '.join(keys)})")
            marks = ", ".join("?" * len(keys))
            database.executemany(f"INSERT INTO messages VALUES ({marks})", [tuple(row.values()) for row in cells])
        database.close()
    else:
        write_lines(path, ROWS[::-1])
    name, experiences, reasons = read_path(path)
    assert (name, reasons) == ("message-rows", [])
    expected = {tuple(texts(exp)): (exp.reward, exp.eid.task, exp.eid.run) for exp in read_path(FIXTURE)[1]}
    assert {tuple(texts(exp)): (exp.reward, exp.eid.task, exp.eid.run) for exp in experiences} == expected


def test_numbers_go_before_times_and_equal_ones_keep_the_order_of_the_file(tmp_path):
    rows = [
        {"session": 7, "sender": "AI", "text": "third", "turn": 2, "ts": 1},
        {"session": 7, "sender": "human", "text": "first", "turn": 1, "ts": 9},
        {"session": 7, "sender": "AI", "text": "second", "turn": 1, "ts": 9},
        {"session": 7, "sender": "human", "text": "fourth", "turn": 3, "ts": 0},
    ]
    _, (experience,), _ = read_path(write_lines(tmp_path / "log.jsonl", rows))
    assert texts(experience) == ["first", "second", "third", "fourth"]


def test_lines_of_messages_without_an_id_are_one_conversation(tmp_path):
    rows = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    name, (experience,), _ = read_path(write_lines(tmp_path / "talk.jsonl", rows))
    assert (name, experience.source.format, texts(experience)) == ("openai-chat", "openai-chat", ["a", "b", "c"])
    several = [{"role": "system", "content": "s"}, *rows] * 2
    _, experiences, reasons = read_path(write_lines(tmp_path / "talks.jsonl", several))
    assert experiences == []
    assert reasons == ["several system messages, and no field that names the conversation of a message"]


def test_what_cannot_be_told_is_refused_and_the_rest_is_read(tmp_path):
    scored = [
        {**ROWS[5], "conversation_id": "s", "role": role, "content": role, "rating": rating}
        for role, rating in (("user", None), ("assistant", 1), ("user", None), ("assistant", 0))
    ]
    no_answer = [{**ROWS[2], "conversation_id": "n"}]
    no_id = [{**ROWS[2], "conversation_id": None}]
    path = write_lines(tmp_path / "log.jsonl", [*ROWS, *scored, *no_answer, *no_id])
    _, experiences, reasons = read_path(path)
    assert [exp.info["session_id"] for exp in experiences] == ["w-1", "w-2"]
    assert reasons == [
        "row 14: no conversation_id, which other rows have",
        "conversation 's': its messages have different scores: 1.0, 0.0; set one with --scores",
        "conversation 'n': no message of the assistant, so there is no completion",
    ]


def test_messages_that_branch_give_an_experience_for_every_way(tmp_path):
    tree = [("q", None, "prompter"), ("a1", "q", "assistant"), ("a2", "q", "assistant"), ("f", "a1", "prompter"),
            ("b", "f", "assistant")]  # fmt: skip
    rows = [
        {"message_tree_id": "t", "message_id": name, "parent_id": parent, "role": role, "text": name}
        for name, parent, role in reversed(tree)
    ]
    _, experiences, reasons = read_path(write_lines(tmp_path / "tree.jsonl", rows))
    assert reasons == []
    assert sorted(map(texts, experiences)) == [["q", "a1", "f", "b"], ["q", "a2"]]
    assert len({exp.eid.run for exp in experiences}) == 2
    torn = [row for row in rows if row["message_id"] != "a1"]
    assert read_path(write_lines(tmp_path / "torn.jsonl", torn))[2] == [
        "conversation 't': parent_id: no message 'a1': the conversation is incomplete"
    ]
    circle = [{**row, "parent_id": "b" if row["message_id"] == "q" else row["parent_id"]} for row in rows[::-1]]
    assert "cycle" in read_path(write_lines(tmp_path / "circle.jsonl", circle))[2][0]


def test_messages_of_many_trees_are_no_single_conversation_whatever_the_name_of_their_id(tmp_path):
    tree = [("a", None, "prompter"), ("b", "a", "assistant"), ("c", None, "prompter"), ("d", "c", "assistant"), ("e", "c", "assistant")]  # fmt: skip
    rows = [
        {"task": f"t{name}", "user_message_id": name, "parent_message_id": parent, "text": f"{name}!", "role": role}
        for name, parent, role in tree
    ]
    path = tmp_path / "seeds.json"
    path.write_text(json.dumps(rows))
    _, found, reasons = read_path(path)
    assert ([texts(one) for one in found], reasons) == ([["a!", "b!"], ["c!", "d!"], ["c!", "e!"]], [])
    path.write_text(json.dumps([{key: row[key] for key in row if key != "user_message_id"} for row in rows]))
    _, found, reasons = read_path(path)
    assert (found, reasons) == ([], ["parent_message_id names messages by an id that no field of theirs has"])


def test_rows_of_one_second_in_a_file_with_the_newest_first_are_turned_round(tmp_path):
    rows = [
        {"session_id": "s", "role": role, "content": role, "created_at": f"2026-03-01T09:00:0{second}Z"}
        for role, second in (("assistant", 2), ("tool", 1), ("assistant", 1), ("user", 1))
    ]
    _, (experience,), _ = read_path(write_lines(tmp_path / "log.jsonl", rows))
    assert texts(experience) == ["user", "assistant", "tool", "assistant"]


def test_a_weight_in_a_cell_of_text_counts(tmp_path):
    (tmp_path / "log.csv").write_text(
        "session_id,role,content,train,task_id,level\n"
        "s,user,q,,4,4\ns,assistant,a,False,4,4\ns,user,r,,4,4\ns,assistant,b,true,4,4\n"
    )
    _, (experience,), _ = read_path(tmp_path / "log.csv")
    messages = (*experience.prompt, *experience.completion)
    assert [message.text for message in messages if message.is_generated] == ["b"]
    # a field that happens to equal the task is kept
    assert (experience.eid.task, experience.info["level"]) == ("4", "4")
    (tmp_path / "odd.csv").write_text("session_id,role,content,train\ns,user,q,\ns,assistant,a,maybe\n")
    assert read_path(tmp_path / "odd.csv")[2] == [
        "conversation 's': weight: got 'maybe', expected a number, true or false"
    ]


@pytest.mark.parametrize("time", ["ts", "timestamp", "createdAt"])
@pytest.mark.parametrize("name", ["session_id", "sessionId", "conversation_id", "thread_id", "trace_id"])
def test_rows_that_name_their_conversation_are_not_taken_for_the_history_of_a_program(name, time, tmp_path):
    rows = [
        {name: conversation, "role": role, "content": role, time: number}
        for conversation in "ab"
        for number, role in enumerate(("user", "assistant"))
    ]
    assert read_path(write_lines(tmp_path / "log.jsonl", rows))[0] == "message-rows"
    (tmp_path / "log.json").write_text(json.dumps(rows))
    assert [texts(experience) for experience in read_path(tmp_path / "log.json")[1]] == [["user", "assistant"]] * 2


def test_results_that_are_blocks_of_a_row_are_tool_messages(tmp_path):
    rows = [
        {"role": "user", "content": "Weigh it."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "scale", "input": {"parcel": 4}}]},
        {"role": "user", "content": [{"tool_use_id": "t1", "type": "tool_result", "content": "2.4 kg"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "2.4 kg."}]},
    ]
    _, (experience,), reasons = read_path(write_lines(tmp_path / "log.jsonl", rows))
    assert reasons == []
    assert [message.role for message in experience.completion] == ["assistant", "tool", "assistant"]
    assert (experience.completion[1].text, experience.completion[1].tool_call_id) == ("2.4 kg", "t1")


@pytest.mark.parametrize("name", ["tool_result", "content", "output", "result", "text"])
def test_the_result_of_a_part_has_many_names(name, tmp_path):
    rows = [
        {"role": "user", "content": "Weigh it."},
        {
            "role": "assistant",
            "content": [{"type": "tool_call", "tool_call_id": "c1", "name": "scale", "arguments": {}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_result", name: "2.4 kg"}]},
    ]
    _, (experience,), _ = read_path(write_lines(tmp_path / "log.jsonl", rows))
    assert experience.completion[1].text == "2.4 kg"


def test_a_result_under_an_unknown_name_is_refused_and_not_lost(tmp_path):
    rows = [
        {"role": "user", "content": "Weigh it."},
        {"role": "assistant", "content": "Wait."},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_result", "outcome": "2.4 kg"}]},
    ]
    _, experiences, (reason,) = read_path(write_lines(tmp_path / "log.jsonl", rows))
    assert experiences == []
    assert "outcome" in reason
