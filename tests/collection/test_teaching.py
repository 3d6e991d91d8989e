"""Teacher replay: one action of each teacher at every state at which the student decided, from real local endpoints."""

import json
import sys

import pytest

from collection.failing_endpoint import FailingEndpoint
from generate.tiny_models import save_model
from pairwright import Table
from pairwright.cli import main
from pairwright.collection import CollectError
from pairwright.collection.teaching import read_states, teach
from pairwright.config import Config, PolicyConfig
from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience, Side
from pairwright.records.messages import Message, ToolCall, prompt_hash
from serve.served_models import served, tiny_engine

TOOLS = ({"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},)


def called(number):
    return Message("assistant", None, tool_calls=(ToolCall("clock", "{}", f"c{number}"),))


def run(task, number, *, turns=2):
    """A run of a student: it calls the clock `turns` times, then answers."""
    completion = []
    for turn in range(turns):
        completion += [called(turn), Message("tool", f"{task} {number} {turn}", tool_call_id=f"c{turn}")]
    return Experience(
        eid=EID("monday", task, number, 3), kind="multi_turn", prompt=(Message("user", f"time in {task}?"),), tools=TOOLS,
        completion=(*completion, Message("assistant", f"noon {number}")), reward=float(number),
    )  # fmt: skip


def decisions_of(experience):
    return [
        (prompt_hash(experience.prompt + experience.completion[:number], experience.tools), experience.eid.uid, number)
        for number, message in enumerate(experience.completion)
        if message.is_generated
    ]


@pytest.fixture
def student(tmp_path):
    table = Table(tmp_path / "student")
    table.append([run(task, number) for task in ("rome", "oslo") for number in range(2)])
    table.close()
    return tmp_path / "student"


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["pairwright", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return (ended.value.code, *capsys.readouterr())

    return call


def test_every_decision_is_asked_and_equal_states_once(student, tmp_path, command):
    with FailingEndpoint(fault_rate=0.3, delay=0.001) as first, FailingEndpoint(fault_rate=0.0, delay=0.001) as second:
        words = [
            "teach",
            student,
            "--teacher",
            f"big={first.url}#large",
            "--teacher",
            f"wise={second.url}",
            "-o",
            "taught",
        ]
        code, out, told = command(*words, "--json")
        assert code == 0, told
        figures = json.loads(out)
        assert (figures["experiences"], figures["decisions"], figures["states"]) == (4, 12, 10)
        assert {name: row["answers"] for name, row in figures["teachers"].items()} == {"big": 10, "wise": 10}
        num_asked = len(first.bodies), len(second.bodies)
        code, out, told = command(*words, "--json")
        assert code == 0, told
        assert json.loads(out)["teachers"]["big"]["done_before"] == 10
        assert (len(first.bodies), len(second.bodies)) == num_asked
        assert {body["model"] for body in first.bodies} == {"large"}
        assert {body["model"] for body in second.bodies} == {"wise"}
        assert all(body["tools"] == list(TOOLS) and body["n"] == 1 for body in second.bodies)
    assert "--strategy teachers --teachers taught/big/experience --teachers taught/wise/experience" in told
    expected = {}
    for experience in Table(student, create=False).records():
        for key, uid, number in decisions_of(experience):
            expected.setdefault(key, set()).add((uid, number))
    for name in ("big", "wise"):
        answers = list(Table(tmp_path / "taught" / name / "experience", create=False).records())
        assert {prompt_hash(answer.prompt, answer.tools) for answer in answers} == set(expected)
        for answer in answers:
            assert (answer.kind.value, len(answer.completion), answer.model_version) == ("single_turn", 1, name)
            source = EID.parse(answer.info["student"])
            assert (source.uid, answer.info["decision"]) in expected[prompt_hash(answer.prompt, answer.tools)]
            assert (answer.eid.task, answer.eid.run, answer.eid.step) == (source.task, source.run, 3)
    code, _, told = command(
        "pairs", student, "--strategy", "teachers", "--teachers", "taught/big/experience", "--teachers",
        "taught/wise/experience", "--min-teachers", "1", "-o", "pairs", "--json",
    )  # fmt: skip
    assert code == 0, told


def test_what_failed_and_what_is_new_is_asked_by_the_same_command(student, command):
    with FailingEndpoint(fault_rate=0.0, forever=True, delay=0.001) as endpoint:
        table = Table(student)
        table.append([run("hopeless", 0, turns=0)])
        table.close()
        options = {"base_url": endpoint.url, "model": "m", "max_retries": 0}
        config = student.parent / "config.yaml"
        config.write_text(json.dumps({"teach": {"teachers": {"big": options}}}))
        code, out, told = command("teach", student, "--config", "config.yaml", "-o", "taught", "--json")
        assert code == 0, told
        assert json.loads(out)["teachers"]["big"] | {"seconds": 0} == {
            "answers": 10, "done_before": 0, "failed": 1, "tokens": 30, "seconds": 0, "without_token_ids": {"no_ids": 10},
        }  # fmt: skip
        assert "big failed: task" in told
        endpoint._forever = False
        code, out, told = command("teach", student, "--config", "config.yaml", "-o", "taught", "--json")
        assert code == 0, told
        figures = json.loads(out)["teachers"]["big"]
        assert (figures["answers"], figures["done_before"], figures["failed"]) == (11, 10, 0)
        assert endpoint.answered["time in hopeless?"] == 1


def test_a_served_model_and_a_folder_are_teachers_and_ids_are_recorded(student, tmp_path, command):
    save_model(tmp_path / "model", context=1024)
    with served(tiny_engine(context=1024)) as server:
        code, _, told = command(
            "teach", student, "--teacher", f"served={server.url}/v1#tiny", "--teacher", "local=model", "--max-tokens", 4,
            "--token-ids", "--concurrency", 3, "-o", "taught",
        )  # fmt: skip
    assert code == 0, told
    answers = {
        name: {
            prompt_hash(answer.prompt, answer.tools): answer
            for answer in Table(tmp_path / "taught" / name / "experience", create=False).records()
        }
        for name in ("served", "local")
    }
    assert len(answers["served"]) == len(answers["local"]) == 10
    for key, answer in answers["served"].items():  # the same weights, greedily: the same ids
        assert answer.tokens.tolist() == answers["local"][key].tokens.tolist()
        assert len(answer.logprobs) == len(answer.tokens) - answer.prompt_length


def test_a_teacher_that_never_answers_ends_with_exit_code_1(student, command):
    code, _, told = command("teach", student, "--teacher", "gone=nowhere", "-o", "taught")
    assert (code, "nowhere: no such folder" in told) == (1, True)
    config = student.parent / "config.yaml"
    options = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_retries": 0}
    config.write_text(json.dumps({"teach": {"teachers": {"deaf": options}}}))
    code, _, told = command("teach", student, "--config", "config.yaml", "-o", "taught")
    assert code == 1
    assert told.splitlines()[-1] == "pairwright: no answer of deaf: see above; the same command asks again"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "expected at least one teacher"),
        (["--teacher", "big"], "expected NAME=URL#MODEL"),
        (["--teacher", "a/b=http://127.0.0.1:9/v1"], "it names a folder"),
        (["--teacher", "a=x", "--teacher", "a=y"], "there is a teacher 'a' already"),
    ],
)
def test_invalid_teachers_are_bad_usage(student, command, words, text):
    code, _, told = command("teach", student, *words, "-o", "taught")
    assert (code, text in told) == (3, True), told


def test_experiences_without_a_decision_are_counted_and_none_at_all_is_an_error(tmp_path):
    table = Table(tmp_path / "student")
    side = Side(messages=(Message("assistant", "a"),))
    prompt = (Message("user", "q"),)
    table.append(
        [
            Experience(kind="preference", prompt=prompt, chosen=side, rejected=side),
            Experience(kind="single_turn", prompt=prompt, completion=(Message("assistant", "a", generated=False),)),
            Experience(kind="single_turn", completion=(Message("assistant", "a"),)),
        ]
    )
    table.close()
    states = read_states(Table(tmp_path / "student", create=False))
    assert states.skipped == {"preference": 1, "nothing_generated": 1, "no_prompt": 1}
    with pytest.raises(CollectError, match="no decision to ask teachers at in 3 experiences"):
        teach(states, {"a": PolicyConfig(model="x")}, output=tmp_path / "taught")
    with pytest.raises(ConfigError, match="at least one teacher"):
        teach(states, Config().teach.teachers, output=tmp_path / "taught")
