"""A run for the tests of the page: the run of the report's tests, with tool calls, errors and recorded evaluations."""

from pathlib import Path

from pairwright import EID, ErrorSite, Experience, Message, Table, ToolCall
from pairwright.view.answers import Answers
from pairwright.view.library import Library
from report.made_run import make_run

HOSTILE = "\"'><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"></script>"


def make_viewed_run(folder: Path, *, odd: str = "") -> Path:
    """A run with every stage; `odd` is put into every field that takes text."""
    make_run(folder, odd=odd)
    with Table(folder / "experience") as table:
        table.append([agent_record(odd)])
    for side, text in (("before", "It is late."), ("after", "It is delivered.")):
        with Table(folder / "evaluation" / side / "experience") as table:
            table.append(
                Experience(
                    eid=EID("evaluation", f"held out {task}{odd}", 0, 0, "s"),
                    kind="single_turn",
                    prompt=[Message("user", f"Where is order {task}?{odd}")],
                    completion=[Message("assistant", f"{text} {task}{odd}")],
                    reward=0.5,
                )
                for task in range(60)
            )
    return folder


def agent_record(odd: str = "") -> Experience:
    """A run of an agent: tool calls, a failed one, reward components, metrics."""
    return Experience(
        eid=EID("b", f"repair{odd}", 0, 0, f"tool{odd}"),
        kind="multi_turn",
        prompt=[Message("system", f"You repair programs.{odd}"), Message("user", f"The build fails.{odd}")],
        tools=[{"type": "function", "function": {"name": f"shell{odd}", "parameters": {"type": "object"}}}],
        completion=[
            Message(
                "assistant",
                f"I look.{odd}",
                reasoning=f"First the log.{odd}",
                tool_calls=[ToolCall(f"shell{odd}", f'{{"command": "make"}}{odd}', id=f"c1{odd}")],
            ),
            Message("tool", f"make: *** no rule{odd}" + " again" * 60, tool_call_id=f"c1{odd}", name=f"shell{odd}"),
            Message("assistant", f"The Makefile is missing.{odd}"),
        ],
        reward=0.25,
        reward_components={f"tests{odd}": 0.25, "unknown": float("nan")},
        metrics={f"turns{odd}": 3},
        info={f"note{odd}": odd or "none", "large": 2**60},
        model_version=f"model{odd}",
        errors=[ErrorSite(index=3, kind=f"nonzero_exit{odd}", text=f"exit 2{odd}", tool=f"shell{odd}")],
    )


def ask_all(folder: Path) -> Answers:
    return Answers(Library([folder]))


def ask(answers: Answers, question: str, **asked: str | int | list[str]):
    """Ask as a URL would: every value is a list of texts."""
    return answers.answer(
        question, {name: value if isinstance(value, list) else [str(value)] for name, value in asked.items()}
    )
