"""Teacher replay: asks teachers for one action at every decision in a student's table.

    OUTPUT/NAME/experience/    one single-turn experience per state: its prompt is the state, its completion the action
    OUTPUT/NAME/collection/    the ledger: repeating the call asks only for missing answers

A decision is a generated message of an experience; its state is everything before it, with the experience's tools. A
teacher is asked once per state, even if many runs of the student reached it, since it has one vote there (strategy
`teachers`). An answer has the task, run and step of the first decision at its state, and refers to it in `info`.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pairwright.collection.collecting import collect
from pairwright.collection.run_failures import CollectError
from pairwright.collection.runner import Collected, Watch
from pairwright.collection.tasks import Task
from pairwright.config import Config, PolicyConfig
from pairwright.errors import ConfigError
from pairwright.generate.template_variables import KEY
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import Json, Message, prompt_hash
from pairwright.store.table import Table

# Names of teachers are names of folders: no separators, no leading dot
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, eq=False)
class Decision:
    """A generated message of a student's experience: its position in the completion, and the state before it."""

    student: EID
    position: int
    state: tuple[Message, ...]
    tools: tuple[Json, ...]
    variables: Json = field(default_factory=dict)  # of the student's chat template


@dataclass
class States:
    """The distinct states at which a student decided, in the order of the table.

    `skipped` counts the experiences without a decision, by reason.
    """

    decisions: dict[str, Decision] = field(default_factory=dict)  # by prompt hash of the state
    num_experiences: int = 0
    num_decisions: int = 0
    skipped: Counter[str] = field(default_factory=Counter)


def read_states(table: Table) -> States:
    """Read the states of all decisions in a table."""
    states = States()
    for experience in table.records():
        states.num_experiences += 1
        positions = [number for number, message in enumerate(experience.completion) if message.is_generated]
        reason = _skip_reason(experience, positions)
        if reason is not None:
            states.skipped[reason] += 1
            continue
        for position in positions:
            states.num_decisions += 1

            state = experience.prompt + experience.completion[:position]
            key = prompt_hash(state, experience.tools)
            if key not in states.decisions:
                variables = experience.info.get(KEY) or {}
                states.decisions[key] = Decision(experience.eid, position, state, experience.tools, variables)
    return states


def teach(
    states: States,
    teachers: Mapping[str, PolicyConfig],
    *,
    output: Path,
    seed: int = 0,
    max_concurrency: int = 64,
    base: Path | None = None,
    watch: Callable[[str], Watch] | None = None,
) -> dict[str, Collected]:
    """Ask the teachers sequentially, each at every state; existing answers in `output` are not repeated.

    `teachers` maps names to policies: endpoints, or folders of local models, resolved from the working directory, then
    from `base`. `watch(name)` returns the function that is called with the status of that teacher's collection.
    """
    if not teachers:
        raise ConfigError("teach: expected at least one teacher, e.g. --teacher big=http://127.0.0.1:8001/v1#model")
    for name in teachers:
        if not _NAME.fullmatch(name):
            raise ConfigError(f"teach: got the name {name!r}, expected letters, digits, . _ -: it names a folder")
    if not states.decisions:
        raise CollectError(
            f"no decision to ask teachers at in {states.num_experiences:,} experiences ({dict(states.skipped)}): "
            "expected prompts and completions with messages that the model generated"
        )
    tasks: list[dict[str, Any]] = [{"id": key, "decision": decision} for key, decision in states.decisions.items()]
    collected = {}
    for name, policy in teachers.items():
        # each teacher is a separate collection, with one task per state and the teacher's name as batch and version
        config = Config.model_validate(
            {"seed": seed, "collect": {"batch": name, "max_concurrency": max_concurrency}}
        ).model_copy(update={"policy": policy.model_copy(update={"model_version": name, "num_candidates": 1})})
        collected[name] = collect(
            config,
            output=output / name,
            resume=True,
            workflow=ask_teacher,
            tasks=tasks,
            base=base,
            watch=None if watch is None else watch(name),
        )
    return collected


async def ask_teacher(task: Task, policy: Any, recorder: Any) -> None:
    """The workflow: one action at one state, recorded with the task, run and step of the student's decision."""
    decision: Decision = task["decision"]
    student = decision.student
    recorder.place(task=student.task, run=student.run)
    async with recorder.step(decision.state, tools=decision.tools, index=student.step) as step:
        (answer,) = await policy.complete(decision.state, n=1, tools=decision.tools)
        # the student is trained on the answer, so its template variables are recorded, not the teacher's
        info = {"student": student.uid, "decision": decision.position, KEY: decision.variables}
        step.candidate(answer, info=info)


def _skip_reason(experience: Experience, positions: list[int]) -> str | None:
    """Return why an experience has no decision to ask about, or None."""
    if experience.kind is Kind.PREFERENCE:
        return "preference"
    if not positions:
        return "nothing_generated"
    # without a prompt, the first turn has an empty state
    return None if experience.prompt or positions[0] else "no_prompt"
