"""`pairwright import` as a user meets it."""

import json
import os
import pty
import sys

import pytest
from test_cli import run

from pairwright import Table


def rows(*rewards) -> str:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    return "\n".join(json.dumps({"messages": messages, "reward": reward}) for reward in rewards) + "\n"


@pytest.fixture
def traces_file(tmp_path):
    path = tmp_path / "traces.jsonl"
    path.write_text(rows(0.1, 0.9) + "{torn")
    return path


def test_a_summary_a_closing_line_and_exit_code_0(traces_file, tmp_path):
    done = run("import", traces_file, "-o", tmp_path / "e")
    assert done.returncode == 0
    header, line = done.stdout.splitlines()
    found = dict(zip(header.split("\t"), line.split("\t"), strict=True))
    assert (found["format"], found["experiences"], found["quarantined"]) == ("openai-chat", "2", "1")
    assert "quarantined: 1 × not valid JSON" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("2 experiences added to")
    assert Table(tmp_path / "e").count() == 2


def test_strict_makes_it_1_and_json_has_everything(traces_file, tmp_path):
    done = run("import", traces_file, "-o", tmp_path / "e", "--strict", "--json")
    assert done.returncode == 1
    summary = json.loads(done.stdout)
    assert (summary["added"], summary["formats"]["openai-chat"]["quarantined"]) == (2, 1)
    assert "strict: 1 records were quarantined" in done.stderr


def test_a_configuration_gives_paths_and_options(traces_file, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("name: mine\nsources:\n  paths: ['${HERE}/traces.jsonl']\n  reward: reward * 10\n")
    done = run("import", "--config", config, "-o", tmp_path / "e", HERE=str(tmp_path))
    assert done.returncode == 0
    assert sorted(exp.reward for exp in Table(tmp_path / "e").records()) == [1.0, 9.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "expected files to read and -o DIR"),
        (("FILE",), "expected files to read and -o DIR"),
        (("FILE", "-o", "OUT", "--format", "nope"), "expected one of auto, adk"),
        (("FILE", "-o", "OUT", "--reward", "a ** 2"), "only + - * /"),
    ],
)
def test_usage_errors_are_one_line_and_exit_code_3(traces_file, tmp_path, words, message):
    places = {"FILE": traces_file, "OUT": tmp_path / "e"}
    done = run("import", *(places.get(word, word) for word in words))
    assert (done.returncode, len(done.stderr.splitlines())) == (3, 1)
    assert message in done.stderr


def test_a_path_that_is_not_there_is_exit_code_1(tmp_path):
    done = run("import", tmp_path / "nope", "-o", tmp_path / "e")
    assert (done.returncode, "no file there" in done.stderr) == (1, True)


def test_a_terminal_gets_a_bar_and_a_table(traces_file, tmp_path):
    """Run under a pseudo-terminal, as a person would see it."""
    command = [
        sys.executable,
        "-c",
        "from pairwright.cli import run_program; run_program()",
        "import",
        str(traces_file),
        "-o",
        str(tmp_path / "e"),
    ]
    seen = []

    def collect(fd: int) -> bytes:
        data = os.read(fd, 4096)
        seen.append(data)
        return data

    status = pty.spawn(command, collect, lambda fd: b"")
    assert os.waitstatus_to_exitcode(status) == 0
    text = b"".join(seen).decode()
    assert "reading" in text
    assert "openai-chat" in text
    assert "quarantined" in text
    assert "\t" not in text


def scored_rows() -> str:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    rows = [
        {"id": f"row-{number}", "messages": messages, "score": number, "metadata": {"judge": {"style": number / 10}}}
        for number in range(2)
    ]
    return "\n".join(map(json.dumps, rows))


def last_line(done) -> str:
    return done.stderr.splitlines()[-1]


def test_an_import_that_read_nothing_is_exit_code_1_and_says_why(tmp_path):
    (tmp_path / "x.json").write_text('{"hello": 1}')
    (tmp_path / "empty.jsonl").write_text("")
    done = run("import", tmp_path / "x.json", tmp_path / "empty.jsonl", "-o", tmp_path / "e")
    assert done.returncode == 1
    assert "nothing was imported: no record in 2 files" in last_line(done)
    assert "an empty file" in last_line(done)
    assert json.loads(run("import", tmp_path / "x.json", "-o", tmp_path / "e", "--json").stdout)["added"] == 0


def test_importing_again_is_fine(traces_file, tmp_path):
    run("import", traces_file, "-o", tmp_path / "e")
    done = run("import", traces_file, "-o", tmp_path / "e")
    assert (done.returncode, last_line(done)[:20]) == (0, "0 experiences added ")


def test_a_reward_that_no_record_has_is_exit_code_1_and_the_names_are_listed(tmp_path):
    (tmp_path / "x.jsonl").write_text(scored_rows())
    done = run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--reward", "scroe")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "did you mean 'score'?" in done.stderr
    assert "metadata.judge.style" in done.stderr
    assert Table(tmp_path / "e").count() == 0
    assert [path.name for path in (tmp_path / "e").iterdir() if path.name.startswith(".")] == [".lock"]
    assert run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--reward", "2*scroe").returncode == 1


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("score", [0.0, 1.0]), ("metadata.judge.style", [0.0, 0.1]), ("score - 10*metadata.judge.style", [0.0, 0.0])],
)
def test_a_reward_may_be_a_path(tmp_path, reward, expected):
    (tmp_path / "x.jsonl").write_text(scored_rows())
    assert run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--reward", reward).returncode == 0
    assert [exp.reward for exp in Table(tmp_path / "e").records()] == expected


def test_scores_that_match_nothing_are_exit_code_1_and_show_an_id_of_each(tmp_path):
    (tmp_path / "x.jsonl").write_text(scored_rows())
    (tmp_path / "s.csv").write_text("id,reward\nrow_0,1\n")
    done = run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--scores", tmp_path / "s.csv")
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "the file has id 'row_0'" in done.stderr
    assert "matched by id 'row-0'" in done.stderr
    assert Table(tmp_path / "e").count() == 0
    (tmp_path / "s.csv").write_text("id,reward\nrow-0,1\n")
    done = run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--scores", tmp_path / "s.csv")
    assert (done.returncode, "scores: 1 of 1 were used" in done.stderr) == (0, True)


def test_rewards_of_existing_records_are_not_changed_and_a_note_says_so(tmp_path):
    (tmp_path / "x.jsonl").write_text(scored_rows())
    (tmp_path / "s.csv").write_text("id,reward\nrow-0,1\n")
    run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e")
    done = run("import", tmp_path / "x.jsonl", "-o", tmp_path / "e", "--scores", tmp_path / "s.csv")
    assert (done.returncode, done.stderr.splitlines()[-2]) == (
        0, "records that were imported earlier keep their rewards; import into a new table to change them",
    )  # fmt: skip


def test_an_output_that_is_a_file_or_lies_in_one_is_one_line_and_exit_code_1(traces_file, tmp_path):
    for output in (traces_file, traces_file / "e"):
        done = run("import", traces_file, "-o", output)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr


def own_rows() -> str:
    rows = [
        {"request": {"text": "hi?"}, "result": {"text": text}, "judge": score} for text, score in (("a", 0), ("b", 1))
    ]
    return "".join(json.dumps(row) + "\n" for row in rows)


OWN_MAP = "prompt=request.text,completion=result.text,reward=judge"


def test_a_map_reads_own_data_and_is_remembered(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(own_rows())
    first = run("import", path, "--map", OWN_MAP, "-o", tmp_path / "e")
    assert first.returncode == 0, first.stderr
    assert sorted(exp.reward for exp in Table(tmp_path / "e").records()) == [0.0, 1.0]
    again = run("import", path, "-o", tmp_path / "e")
    assert f"read with the map of an earlier import, --map {OWN_MAP}" in again.stderr
    assert "0 experiences added" in again.stderr


def test_a_map_can_be_part_of_a_configuration(tmp_path):
    (tmp_path / "own.jsonl").write_text(own_rows())
    config = tmp_path / "config.yaml"
    config.write_text(
        "name: own\nsources:\n  paths: ['${HERE}/own.jsonl']\n"
        "  map:\n    prompt: request.text\n    completion: result.text\n    reward: judge\n"
    )
    done = run("import", "--config", config, "-o", tmp_path / "e", HERE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert Table(tmp_path / "e").count() == 2


def test_a_map_that_leads_nowhere_names_the_keys_and_imports_nothing(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(own_rows())
    done = run("import", path, "--map", "prompt=request.txt,completion=result.text", "-o", tmp_path / "e")
    assert done.returncode == 1
    assert "no 'txt' in request, which has text" in done.stderr


def test_explain_writes_nothing_and_prints_json(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text(own_rows())
    done = run("explain", path, "--json")
    assert done.returncode == 0, done.stderr
    (explanation,) = json.loads(done.stdout)
    assert explanation["command"].endswith("--map prompt=request.text,completion=result.text -o DIR")
    assert list(tmp_path.iterdir()) == [path]


def test_fields_that_are_too_large_to_keep_are_named_in_the_summary(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}], "docs": "d" * 3000}
    path.write_text(json.dumps(row) + "\n")
    done = run("import", path, "-o", tmp_path / "e")
    assert "not kept: fields of more than 2,000 bytes, by name and number of records: docs (1)" in done.stderr


def test_the_summaries_of_compactions_are_steps_with_the_request_in_a_file(traces_file, tmp_path):
    def line(kind: str, **payload: str) -> str:
        return json.dumps({"timestamp": "t", "type": kind, "payload": payload}) + "\n"

    session = tmp_path / "rollout.jsonl"
    session.write_text(
        line("response_item", type="message", role="user", content="q")
        + line("response_item", type="message", role="assistant", content="a")
        + line("response_item", type="message", role="assistant", content="They asked q.")
        + line("compacted", message="They asked q.")
    )
    (tmp_path / "request.md").write_text("Sum up.\n")
    done = run("import", session, "-o", tmp_path / "e", "--compaction-prompt", tmp_path / "request.md")
    assert done.returncode == 0
    steps = sorted(Table(tmp_path / "e").records(), key=lambda experience: experience.eid.step)
    assert [[message.text for message in step.messages] for step in steps] == [
        ["q", "a"],
        ["q", "a", "Sum up.\n", "They asked q."],
    ]
    done = run("import", traces_file, "-o", tmp_path / "f", "--compaction-prompt", tmp_path / "request.md")
    assert "--compaction-prompt has no effect: it applies to Codex sessions only" in done.stderr
    done = run("import", session, "-o", tmp_path / "g", "--compaction-prompt", tmp_path / "nope.md")
    assert done.returncode == 1
    assert "nope.md: the file of sources.compaction_prompt cannot be read" in done.stderr


def test_a_step_name_without_nat_files_has_no_effect_and_says_so(traces_file, tmp_path):
    done = run("import", traces_file, "-o", tmp_path / "e", "--step-name", "move")
    assert (done.returncode, "--step-name has no effect: it applies to NAT's" in done.stderr) == (0, True)
