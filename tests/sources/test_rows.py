"""The usual shapes of people's own data: each is read with no option, or refused with the `--map` that decides."""

import json
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from pairwright.records.experience import Experience
from pairwright.records.messages import Message
from pairwright.sources.datasets import rows
from pairwright.sources.field_map import parse_map
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import Layout, detect, read_file

SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
Q, GOOD, BAD = "Which knot holds?", "The bowline.", "The granny."
ASKED = {"role": "user", "content": Q}
SAID = {"role": "assistant", "content": GOOD}
ALSO = {"role": "assistant", "content": BAD}
TALK = [ASKED, SAID]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": Q}]}, {"role": "assistant", "content": [
    {"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}, {"role": "user", "content": [
    {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}]}, {"role": "assistant", "content": GOOD}]  # fmt: skip

# One row each, as an experience with the prompt Q, the completion GOOD and this reward.
SCORED = {
    "prompt_completion_reward": ({"prompt": Q, "completion": GOOD, "reward": 1.0}, 1.0),
    "prompt_response_score": ({"prompt": Q, "response": GOOD, "score": 0.5}, 0.5),
    "input_output_rating": ({"input": Q, "output": GOOD, "rating": 4}, 4.0),
    "question_answer_correct": ({"question": Q, "answer": GOOD, "correct": True}, 1.0),
    "query_generation_label": ({"query": Q, "generation": GOOD, "label": "bad"}, 0.0),
    "problem_prediction_success": ({"problem": Q, "prediction": GOOD, "answer": "x", "success": False}, 0.0),
    "alpaca": ({"instruction": Q, "input": "", "output": GOOD, "score": 1}, 1.0),
    "camel_case_judge": ({"userPrompt": Q, "modelResponse": GOOD, "judgeScore": 0.25}, 0.25),
    "verifiers": ({"prompt": [ASKED], "completion": [SAID], "answer": "x", "reward": 1.0}, 1.0),
    "messages_score": ({"messages": TALK, "score": 1.0}, 1.0),
    "messages_label": ({"messages": TALK, "label": False}, 0.0),
    "messages_success": ({"messages": TALK, "success": True}, 1.0),
    "messages_resolved": ({"messages": TALK, "resolved": True, "instance_id": "i"}, 1.0),
    "messages_and_response": ({"messages": [ASKED], "response": GOOD, "score": 1.0}, 1.0),
    "messages_as_text": ({"messages": json.dumps(TALK), "reward": 1.0}, 1.0),
    "conversations_of_roles": ({"conversations": TALK, "reward": 1.0}, 1.0),
    "conversation_of_roles": ({"conversation": TALK, "reward": 0.0}, 0.0),
    "dialog_of_humans": ({"dialog": [{"human": Q, "assistant": GOOD}], "reward": 0.0}, 0.0),
    "conversation_of_messages": ({"conversation": {"messages": TALK}, "reward": 1.0}, 1.0),
    "langchain_types": ({"messages": [{"type": "human", "content": Q}, {"type": "ai", "content": GOOD}], "score": 1}, 1.0),
    "langchain_dump": ({"messages": [
        {"lc": 1, "type": "constructor", "id": ["x", "HumanMessage"], "kwargs": {"content": Q}},
        {"lc": 1, "type": "constructor", "id": ["x", "AIMessage"], "kwargs": {"content": GOOD}}], "score": 1.0}, 1.0),
    "gemini_contents": ({"contents": [{"role": "user", "parts": [{"text": Q}]},
                                      {"role": "model", "parts": [{"text": GOOD}]}], "score": 1.0}, 1.0),
    "history_of_pairs": ({"history": [["Hi", "Ho"]], "query": Q, "response": GOOD, "reward": 1}, 1.0),
    "evaluation_columns": ({"inputs.question": Q, "outputs.answer": GOOD, "outputs.score": 5}, 5.0),
    "prompt_contains_question": ({"prompt": f"Be kind. {Q}", "question": Q, "response": GOOD, "score": 1}, 1.0),
}  # fmt: skip
# One row each: a preference for GOOD over BAD, or two experiences, with the higher reward for GOOD.
PREFERRED = {
    "trl": {"prompt": [ASKED], "chosen": [SAID], "rejected": [ALSO]},
    "customizer": {"prompt": Q, "chosen_response": GOOD, "rejected_response": BAD},
    "winner_loser": {"question": Q, "winner": GOOD, "loser": BAD},
    "preferred_dispreferred": {"input": Q, "preferred_output_text": "x", "preferred": GOOD, "dispreferred": BAD},
    "good_bad_answer": {"question": Q, "good_answer": GOOD, "bad_answer": BAD},
    "ultrafeedback_binarized": {"prompt": Q, "chosen": TALK, "rejected": [ASKED, ALSO], "score_chosen": 5, "score_rejected": 1},
    "argilla": {"prompt": Q, "chosen": TALK, "chosen-rating": 5, "rejected": [ASKED, ALSO], "rejected-rating": 1},
    "alpaca_farm": {"instruction": Q, "input": "", "output_1": BAD, "output_2": GOOD, "preference": 2},
    "helpsteer3": {"context": [ASKED], "response1": GOOD, "response2": BAD, "overall_preference": -2},
    "pku": {"prompt": Q, "response_0": BAD, "response_1": GOOD, "better_response_id": 1, "safer_response_id": 0},
    "shp": {"history": Q, "human_ref_A": GOOD, "human_ref_B": BAD, "labels": 1, "score_A": 9, "score_B": 2},
    "arena": {"conversation_a": [ASKED, ALSO], "conversation_b": TALK, "model_a": "x", "model_b": "y", "winner": "model_b"},
    "arena_kaggle": {"prompt": json.dumps([Q]), "response_a": json.dumps([GOOD]), "response_b": json.dumps([BAD]),
                     "winner_model_a": 1, "winner_model_b": 0, "winner_tie": 0},
    "response_a_b_letter": {"prompt": Q, "response_A": BAD, "response_B": GOOD, "preference": "B"},
    "winner_is_a_model": {"prompt": Q, "response_a": GOOD, "response_b": BAD, "model_a": "m-1", "model_b": "m-2", "winner": "m-1"},
    "numbered_scores": {"prompt": Q, "response_1": GOOD, "response_2": BAD, "score_1": 3, "score_2": 1},
    "responses_and_scores": {"prompt": Q, "responses": [BAD, GOOD], "scores": [0.1, 0.9]},
    "outputs_and_rewards": {"problem": Q, "outputs": [BAD, GOOD], "rewards": [0, 1]},
    "list_of_objects": {"question": Q, "candidates": [{"text": GOOD, "score": 2}, {"text": BAD, "score": 1}]},
    "nectar": {"prompt": f"\n\nHuman: {Q}\n\nAssistant: ", "answers": [{"answer": BAD, "rank": 2.0}, {"answer": GOOD, "rank": 1.0}]},
    "generations": {"problem": Q, "generations": [GOOD, BAD], "correctness_math_verify": [True, False], "messages": TALK},
}  # fmt: skip


def read(rows, path: Path, fields: str | None = None) -> list[Experience | Rejected]:
    path.write_text("".join(json.dumps(row) + "\n" for row in (rows if isinstance(rows, list) else [rows])))
    return read_path(path, fields)


def read_path(path: Path, fields: str | None = None) -> list[Experience | Rejected]:
    options = Options(map=parse_map(fields))
    layout = detect(path, options=options)
    if isinstance(layout, Rejected):
        return [layout]
    return list(read_file(path, layout, options))


@pytest.mark.parametrize("name", SCORED)
def test_a_scored_row_is_read_with_no_option(name, tmp_path):
    row, reward = SCORED[name]
    (exp,) = read(row, tmp_path / "rows.jsonl")
    assert isinstance(exp, Experience), exp.reason
    assert exp.prompt[-1].role == "user"
    assert exp.prompt[-1].text.endswith(Q)
    assert exp.completion == (Message("assistant", GOOD),)
    assert exp.reward == reward


@pytest.mark.parametrize("name", PREFERRED)
def test_two_answers_are_read_with_the_better_one_first(name, tmp_path):
    records = read(PREFERRED[name], tmp_path / "rows.jsonl")
    assert all(isinstance(record, Experience) for record in records), records
    assert [message.text for message in records[0].prompt] == [Q]
    if len(records) == 1:
        chosen, rejected = records[0].chosen.messages, records[0].rejected.messages
    else:
        best, worst = sorted(records, key=lambda exp: -exp.reward)
        assert best.reward > worst.reward
        assert best.eid.task == worst.eid.task
        chosen, rejected = best.completion, worst.completion
    assert (chosen[-1].text, rejected[-1].text) == (GOOD, BAD)


def test_the_usual_shapes_are_at_least_33():
    assert len(SCORED) + len(PREFERRED) >= 33


def test_scores_of_numbered_answers_are_the_rewards_of_the_sides(tmp_path):
    (exp,) = read(PREFERRED["shp"], tmp_path / "rows.jsonl")
    assert (exp.chosen.reward, exp.rejected.reward) == (9.0, 2.0)


def test_a_tie_gives_two_answers_with_equal_rewards(tmp_path):
    row = {"prompt": Q, "response_a": GOOD, "response_b": BAD, "winner": "tie (bothbad)"}
    assert [exp.reward for exp in read(row, tmp_path / "rows.jsonl")] == [0.5, 0.5]


# Refusals: never a guess between two readings.


@pytest.mark.parametrize(
    ("row", "reason", "fields"),
    [
        ({"question": Q, "context": "Ropes.", "answer": GOOD, "score": 1}, "question or context could be the prompt", "prompt=context+question"),
        ({"prompt": "Be kind.", "query": Q, "response": GOOD}, "prompt or query could be the prompt", "prompt=query"),
        ({"prompt": Q, "response": GOOD, "output": BAD}, "response or output could be the completion", "completion=response"),
        ({"conversation": TALK, "response": "More.", "score": 1}, "could be the completion", "messages=conversation"),
        ({"prompt": Q, "response_a": GOOD, "response_b": BAD, "preference": 0}, "could mean any of response_a", "completion=response_a|response_b,reward=1-preference|preference"),
        ({"prompt": Q, "response_1": GOOD, "response_2": BAD, "preference": 0}, "could mean any of response_1", "completion=response_1|response_2,reward=1-preference|preference"),
    ],
)  # fmt: skip
def test_a_row_with_two_readings_is_refused_and_a_map_decides(row, reason, fields, tmp_path):
    (rejected,) = read(row, tmp_path / "rows.jsonl")
    assert isinstance(rejected, Rejected)
    assert reason in rejected.reason
    assert "--map" in rejected.reason
    records = read(row, tmp_path / "rows.jsonl", fields)
    assert all(isinstance(record, Experience) for record in records), records
    assert records[0].completion[0].text == GOOD
    assert records[0].prompt[-1].text.endswith(Q)


def test_numbers_that_could_count_from_zero_refuse_the_whole_file(tmp_path):
    row = {"prompt": Q, "response_1": GOOD, "response_2": BAD}
    (rejected,) = read([row | {"preference": 1}, row | {"preference": 0}], tmp_path / "rows.jsonl")
    assert "could mean any of" in rejected.reason


@pytest.mark.parametrize(
    "row",
    [
        {"question": Q, "answers": ["yes", "no"]},  # references, not candidates
        {"question": Q, "choices": ["a", "b"], "label": 1},
        {"text": "a review", "label": 1},
        {"input_tokens": 3, "output_tokens": 4, "score": 1.0},
        {"name": "x", "config": {"prompt": "y"}},
    ],
)
def test_rows_of_something_else_are_not_claimed(row, tmp_path):
    (rejected,) = read(row, tmp_path / "rows.jsonl")
    assert isinstance(rejected, Rejected)
    assert "no known format" in rejected.reason


def test_an_answer_that_is_json_text_stays_one_answer(tmp_path):
    (exp,) = read({"prompt": Q, "response": "[3, 5]", "score": 1}, tmp_path / "rows.jsonl")
    assert exp.completion[0].text == "[3, 5]"


def test_a_rendered_prompt_is_raw_text(tmp_path):
    row = {"prompt": f"<|im_start|>user\n{Q}<|im_end|>", "response": GOOD, "score": 1}
    (exp,) = read(row, tmp_path / "rows.jsonl")
    assert (exp.prompt[0].role, exp.completion[0].role) == ("text", "text")


# System prompts, and fields that are not read.


@pytest.mark.parametrize("key", ["system", "system_prompt", "instructions"])
@pytest.mark.parametrize(
    "row",
    [
        {"messages": TALK, "score": 1.0},
        {"prompt": Q, "response": GOOD, "score": 1.0},
        {"prompt": [ASKED], "chosen": [SAID], "rejected": [ALSO]},
        {"prompt": Q, "chosen_response": GOOD, "rejected_response": BAD},
        {"conversations": [{"from": "human", "value": Q}, {"from": "gpt", "value": GOOD}]},
        {"context": [ASKED], "completions": [{"rank": 0, "completion": [SAID]}, {"rank": 1, "completion": [ALSO]}]},
        {"prompt": Q, "completion": GOOD},
    ],
)
def test_a_system_prompt_beside_the_messages_is_part_of_the_prompt(row, key, tmp_path):
    (exp,) = read({key: "Be brief.", **row}, tmp_path / "rows.jsonl")
    assert [(message.role, message.text) for message in exp.prompt] == [("system", "Be brief."), ("user", Q)]
    assert key not in exp.info


def test_rows_with_different_system_prompts_are_different_tasks(tmp_path):
    rows = [{"system": text, "messages": TALK, "score": 1.0} for text in ("French.", "English.")]
    first, second = read(rows, tmp_path / "rows.jsonl")
    assert first.eid.task != second.eid.task


def test_a_system_prompt_that_the_messages_have_is_not_repeated(tmp_path):
    messages = [{"role": "system", "content": "Be brief."}, *TALK]
    (exp,) = read({"system": "Be brief.", "messages": messages}, tmp_path / "rows.jsonl")
    assert len(exp.prompt) == 2


def test_messages_that_end_with_the_user_are_the_prompt_of_a_preference(tmp_path):
    (exp,) = read({"messages": [ASKED], "chosen": GOOD, "rejected": BAD}, tmp_path / "rows.jsonl")
    assert exp.prompt == (Message("user", Q),)
    assert exp.chosen.messages == (Message("assistant", GOOD),)


def test_a_score_makes_a_row_no_demonstration(tmp_path):
    (exp,) = read({"prompt": Q, "completion": GOOD, "judge_score": 0.0}, tmp_path / "rows.jsonl")
    assert exp.reward == 0.0


def test_anthropic_blocks_of_a_chat_row_are_calls_and_results(tmp_path):
    (exp,) = read({"system": "Be brief.", "messages": BLOCKS, "score": 1.0}, tmp_path / "rows.jsonl")
    assert [message.role for message in exp.completion] == ["assistant", "tool", "assistant"]
    assert exp.completion[0].tool_calls[0].name == "look"


def test_tool_calls_in_content_parts_are_calls(tmp_path):
    parts = [
        {
            "role": "assistant",
            "content": [{"type": "tool_call", "tool_call_id": "c1", "name": "look", "arguments": {"a": 1}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "tool_result", "tool_result": {"n": 3}}]},
        SAID,
    ]
    tools = [{"name": "look", "parameters": {}}]
    (exp,) = read({"query": [ASKED], "response": parts, "tool_definitions": tools}, tmp_path / "rows.jsonl")
    assert exp.completion[0].tool_calls[0].id == "c1"
    assert exp.completion[1].text == '{"n":3}'
    assert list(exp.tools) == tools


# Tables.

ROWS = [{"prompt": Q, "response": GOOD, "score": 1.0}, {"prompt": Q, "response": BAD, "score": 0.0}]


def write_table(path: Path, rows: list[dict]) -> None:
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".feather":
        feather.write_feather(table, path)
    elif path.suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
            stream.write_table(table)
    elif path.suffix == ".db":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE runs (prompt TEXT, response TEXT, score REAL)")
            database.executemany("INSERT INTO runs VALUES (:prompt, :response, :score)", rows)
            database.execute("CREATE VIEW all_runs AS SELECT * FROM runs")
        database.close()
    else:
        separator = "," if path.suffix == ".csv" else "\t"
        lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "feather", "arrow", "db"])
def test_a_table_is_read_as_rows(suffix, tmp_path):
    path = tmp_path / f"runs.{suffix}"
    write_table(path, ROWS)
    records = read_path(path)
    assert [(exp.completion[0].text, exp.reward) for exp in records] == [(GOOD, 1.0), (BAD, 0.0)]


def test_a_table_of_messages_is_a_table_of_chats(tmp_path):
    path = tmp_path / "chats.parquet"
    call = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}  # fmt: skip
    write_table(
        path, [{"messages": [ASKED, call, {"role": "tool", "content": "1", "tool_call_id": "c"}], "score": 1.0}]
    )
    assert detect(path) == Layout("openai-chat", 0, "table")
    (exp,) = read_path(path)
    assert exp.prompt == (Message("user", Q),)
    assert exp.completion[0].tool_calls[0].name == "f"


def test_a_row_with_too_many_cells_loses_only_itself(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt,response,score\n{Q},{GOOD},1\n{Q},a,b,c\n{Q},{BAD},0\n")
    first, bad, last = read_path(path)
    assert "more cells than columns" in bad.reason
    assert (first.reward, last.reward) == (1.0, 0.0)


def test_of_several_tables_the_map_names_one(tmp_path):
    path = tmp_path / "runs.db"
    write_table(path, ROWS)
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other AS SELECT * FROM runs")
    database.close()
    (rejected,) = read_path(path)
    assert "choose with --map records=runs or --map records=other" in rejected.reason
    assert len(read_path(path, "records=runs")) == 2
    assert "no such table with rows; the file has: runs, other" in read_path(path, "records=nope")[0].reason


@pytest.mark.parametrize(
    "data", [b"SQLite format 3\0" + b"\xff" * 200, b"ARROW1\0\0" + b"\1" * 90], ids=["db", "arrow"]
)
def test_a_damaged_table_is_refused_with_its_reason(data, tmp_path):
    path = tmp_path / "damaged"
    path.write_bytes(data)
    assert "cannot be read" in detect(path).reason


# The shared samples.


def test_the_shared_samples_of_usual_shapes_are_read():
    folder = SHARED / "repro" / "ux"
    if not folder.is_dir():
        pytest.skip(f"no samples beside the project ({folder})")
    refused = {}
    for path in sorted(folder.iterdir()):
        records = read_path(path)
        if not all(isinstance(record, Experience) for record in records):
            refused[path.name] = records[0].reason
        elif records[0].chosen is None and path.name != "openai_batch_output.jsonl":
            assert {exp.reward for exp in records} >= {0.0, 1.0}, path.name
    # Results of a batch have no prompt: they need the requests in the same import.
    assert set(refused) <= {"openai_batch_output.jsonl"}


@pytest.mark.parametrize("preference", [float("nan"), float("inf"), [], {}])
def test_a_preference_that_is_no_number_is_refused(preference):
    row = {"prompt": Q, "response_1": GOOD, "response_2": BAD, "preference": preference}
    with pytest.raises(BadRecord):
        list(rows.read(row, Origin("a.jsonl"), Options()))
    assert rows.matches(row) in (True, False)


@pytest.mark.parametrize("kind", [{}, [], None, 1])
def test_parts_whose_type_is_no_text_do_not_stop_the_reader(kind):
    talk = [ASKED, {"role": "assistant", "content": [{"type": kind, "text": GOOD}]}]
    assert list(rows.read({"conversation": talk, "reward": 1}, Origin("a.jsonl"), Options()))


def test_a_system_prompt_under_its_own_name_is_not_lost(tmp_path):
    turns = [
        {"role": "system", "system_prompt": "Be an engineer.", "text": None, "mask": False},
        {"role": "user", "system_prompt": None, "text": Q, "mask": False},
        {"role": "ai", "system_prompt": None, "text": GOOD, "mask": True},
    ]
    (record,) = rows.FORMAT.read({"instance_id": "x", "trajectory": turns}, Origin("a.jsonl"), Options())
    assert [message.text for message in record.prompt] == ["Be an engineer.", Q]
    odd = [{"role": "user", "prompt": Q}, {"role": "assistant", "content": GOOD}]
    with pytest.raises(BadRecord, match="'prompt' is not read as such"):
        list(rows.FORMAT.read({"messages": odd, "reward": 1.0}, Origin("a.jsonl"), Options()))
