"""Teachers are compared with a student decision by decision: one action against one action, at the state of each."""

import msgspec
import pytest
from made_tables import built, candidate, dropped, made

from pairwright import EID, Experience, Message, Table, ToolCall
from pairwright.pairs import PairOptions, build_pairs
from pairwright.pairs.funnel import Reason
from pairwright.pairs.outcomes import explain
from pairwright.pairs.pair_table import read_pairs
from pairwright.records.messages import prompt_hash

TOOLS = ({"type": "function", "function": {"name": "search", "parameters": {}}},)
PROMPT = (Message("system", "You book."), Message("user", "A flight to Oslo"))


def call(identity, arguments='{"to": "Oslo"}'):
    return Message("assistant", None, tool_calls=(ToolCall("search", arguments, id=identity),))


RUN = (
    call("x1"), Message("tool", "none", tool_call_id="x1"), call("x2", '{"to":  "Oslo", "day": 2}'),
    Message("tool", "3 flights", tool_call_id="x2"), Message("assistant", "Which one?"),
)  # fmt: skip


def student(run=0, completion=RUN, reward=0.5, **fields):
    return Experience(eid=EID("b", "trip", run, 0, "s"), kind="multi_turn", prompt=PROMPT, tools=TOOLS, completion=completion,
                      reward=reward, **fields)  # fmt: skip


def answer(decision, message, *, run=RUN, tools=TOOLS):
    """A teacher's answer at the state of a decision: one message with its own prompt."""
    return Experience(eid=EID("t", "trip", 0, decision, "t"), kind="single_turn", prompt=(*PROMPT, *run[:decision]), tools=tools,
                      completion=(message,))  # fmt: skip


def teach(folder, *answers):
    return made(folder, answers).path


def test_each_decision_is_compared_with_the_answer_at_its_state(tmp_path):
    teacher = teach(
        tmp_path / "t",
        answer(0, call("y1")),
        answer(2, call("y1", '{"to": "Bergen"}')),
        answer(4, Message("assistant", "Take SK1.")),
    )
    pairs, summary = built(tmp_path, [student()], strategy="teachers", teachers=(teacher,))
    pairs = sorted(pairs, key=lambda pair: len(pair.prompt))
    assert [pair.prompt for pair in pairs] == [(*PROMPT, *RUN[:2]), (*PROMPT, *RUN[:4])]
    assert [pair.chosen for pair in pairs] == [(call("y1", '{"to": "Bergen"}'),), (Message("assistant", "Take SK1."),)]
    assert [pair.rejected for pair in pairs] == [(RUN[2],), (RUN[4],)]
    assert [pair.info for pair in pairs] == [{"decision": 2}, {"decision": 4}]
    assert [pair.tools for pair in pairs] == [TOOLS, TOOLS]
    assert {pair.rejected_eid for pair in pairs} == {student().eid}
    assert [pair.chosen_eid.step for pair in pairs] == [2, 4]
    # the first call is the same but for its id: the student agrees
    assert dropped(summary) == {Reason.AGREES: 1}
    assert [(stage["unit"], stage["in"], stage["out"]) for stage in summary["stages"]] == [
        ("experiences", 1, 1), ("decisions", 3, 3), ("pairs", 3, 2),
    ]  # fmt: skip


def test_every_decision_without_a_pair_is_counted(tmp_path):
    teachers = tuple(
        teach(tmp_path / name, answer(0, call("y", '{"to": "Rome"}')), answer(2, Message("assistant", word)))
        for name, word in (("a", "stop"), ("b", "go"))
    )
    silent = (Message("assistant", ""), Message("user", "hello?"), Message("assistant", "hi"))
    rows = [student(), student(1, silent), student(2, (Message("user", "no"), Message("tool", "word")))]
    pairs, summary = built(tmp_path, rows, strategy="teachers", teachers=teachers)
    assert [(stage["unit"], stage["in"], stage["out"]) for stage in summary["stages"]] == [
        ("experiences", 3, 2), ("decisions", 5, 2), ("pairs", 2, 1),
    ]  # fmt: skip
    # the run of `student()` has a third decision, and that of `silent` a second one, at which no teacher was asked
    assert dropped(summary) == {
        Reason.NO_DECISION: 1,
        Reason.EMPTY: 1,
        Reason.NO_TEACHER: 2,
        Reason.TEACHERS_DISAGREE: 1,
    }
    assert pairs[0].info == {"decision": 0}
    assert explain(tmp_path / "pairs", rows[1].eid.uid)["reason"] == Reason.NO_TEACHER
    assert explain(tmp_path / "pairs", rows[2].eid.uid)["reason"] == Reason.NO_DECISION
    assert explain(tmp_path / "pairs", rows[0].eid.uid)["num_rejected"] == 1


def test_a_state_is_a_prompt_with_its_tools(tmp_path):
    teacher = teach(tmp_path / "t", answer(4, Message("assistant", "Take SK1."), tools=()))
    pairs, summary = built(tmp_path, [student()], strategy="teachers", teachers=(teacher,))
    assert (pairs, dropped(summary)) == ([], {Reason.NO_TEACHER: 3})
    assert "what the run said since" in summary["hint"]
    (pair,), _ = built(tmp_path / "equal", [student()], strategy="teachers",
                       teachers=(teach(tmp_path / "u", answer(4, Message("assistant", "Take SK1."))),))  # fmt: skip
    assert prompt_hash(pair.prompt, pair.tools) == prompt_hash((*PROMPT, *RUN[:4]), TOOLS)


def test_teachers_that_are_whole_runs_are_read_decision_by_decision_too(tmp_path):
    other = (call("z"), Message("tool", "none", tool_call_id="z"), Message("assistant", "Nothing there."))
    whole = msgspec.structs.replace(student(completion=other), eid=EID("t", "trip", 0, 0, "t"))
    (pair,), summary = built(tmp_path, [student()], strategy="teachers", teachers=(teach(tmp_path / "t", whole),))
    assert (pair.chosen, pair.rejected, pair.info) == ((other[2],), (RUN[2],), {"decision": 2})
    assert dropped(summary) == {Reason.AGREES: 1, Reason.NO_TEACHER: 1}


def test_single_steps_and_whole_runs_of_a_student_can_be_combined(tmp_path):
    teacher = teach(tmp_path / "t", answer(4, Message("assistant", "Take SK1.")),
                    candidate(None, "yes", task="q", prompt=(Message("user", "q"),)))  # fmt: skip
    step = candidate(None, "no", task="q", prompt=(Message("user", "q"),))
    pairs, _ = built(tmp_path, [student(), step], strategy="teachers", teachers=(teacher,))
    sides = {(pair.chosen[0].text, pair.rejected[0].text, str(pair.info)) for pair in pairs}
    assert sides == {("yes", "no", "{}"), ("Take SK1.", "Which one?", "{'decision': 4}")}


def many_runs(tmp_path):
    """Long runs, some of one message, and a teacher that says something else at each of their decisions."""
    students, answers = [], []
    for run in range(12):
        words = [message for turn in range(run % 4 + 1)
                 for message in (Message("assistant", f"r{run} t{turn} " + "x" * 5000), Message("user", f"go on {turn}"))]  # fmt: skip
        completion = tuple(words[:-1])
        students.append(
            Experience(
                eid=EID("b", f"t{run}", 0, 0, "s"),
                kind="multi_turn",
                prompt=(Message("user", f"p{run}"),),
                completion=completion,
                reward=0.0,
            )
        )
        answers += [
            Experience(eid=EID("t", f"t{run}", 0, at, "t"), kind="single_turn",
                       prompt=(Message("user", f"p{run}"), *completion[:at]), completion=(Message("assistant", f"better {run} {at}"),))
            for at in range(0, len(completion), 2)
        ]  # fmt: skip
    return (
        made(tmp_path / "students", students),
        made(tmp_path / "teachers", answers).path,
        sum(run % 4 + 1 for run in range(12)),
    )


def test_slices_give_the_same_bytes(tmp_path, monkeypatch):
    table, teacher, num_decisions = many_runs(tmp_path)
    options = PairOptions(strategy="teachers", teachers=(teacher,))
    assert build_pairs([table], tmp_path / "one", options)["pairs"] == num_decisions
    monkeypatch.setattr("pairwright.pairs.build.num_slices", lambda *_, **__: 5)
    build_pairs([table], tmp_path / "five", options)
    assert (tmp_path / "one/pairs.parquet").read_bytes() == (tmp_path / "five/pairs.parquet").read_bytes()


def test_decisions_of_one_run_are_not_near_duplicates_of_each_other(tmp_path):
    """Only what was said up to a decision belongs to its pair, not the whole run that all of them share."""
    words = [" ".join(f"{turn}w{number}" for number in range(200)) for turn in range(3)]
    completion = tuple(m for word in words for m in (Message("assistant", word), Message("user", word[::-1])))[:-1]
    run = student(completion=completion)
    answers = [
        answer(at, Message("assistant", f"answer {at} " + words[at // 2][::2]), run=completion) for at in (0, 2, 4)
    ]
    options = {"strategy": "teachers", "teachers": (teach(tmp_path / "t", *answers),)}
    pairs, _ = built(tmp_path, [run], near_duplicates=0.8, **options)
    assert len(pairs) == 3


@pytest.mark.parametrize("name", ["tau_bench", "swe_agent_traj"])
def test_every_decision_of_real_runs_finds_the_answer_at_its_state(traces, tmp_path, name):
    """Real runs, and a teacher that was asked at each of their decisions and said something else."""
    from pairwright.store.importing import import_files

    table = Table(tmp_path / "experience")
    import_files([str(traces / name)], table, num_workers=1)
    states, answers = set(), []
    for experience in table.records():
        for at, message in enumerate(experience.completion):
            if message.is_generated and (message.text or message.tool_calls or message.reasoning):
                state = (*experience.prompt, *experience.completion[:at])
                states.add(prompt_hash(state, experience.tools))
                eid = EID("t", str(experience.eid.task), experience.eid.run, at, experience.eid.suffix)
                answers.append(Experience(eid=eid, kind="single_turn", prompt=state, tools=experience.tools,
                                          completion=(Message("assistant", "something else"),)))  # fmt: skip
    assert len(answers) > 5
    options = PairOptions(strategy="teachers", teachers=(teach(tmp_path / "t", *answers),), dedupe=False)
    summary = build_pairs([table], tmp_path / "pairs", options)
    decisions = summary["stages"][1]
    assert (decisions["unit"], decisions["out"]) == ("decisions", len(answers))
    for pair in read_pairs(tmp_path / "pairs"):
        assert prompt_hash(pair.prompt, pair.tools) in states
        assert len(pair.rejected) == len(pair.chosen) == 1
        assert pair.rejected[0].is_generated
