"""Terminal-Bench trials: `results.json` of a trial, and the turns logged by its agent in the same folder.

    results.json                       {task_id, trial_name, instruction, is_resolved, parser_results, failure_mode}
    agent-logs/episode-N/prompt.txt    the agent's prompt in that turn
    agent-logs/episode-N/response.txt  the model's answer (response.json likewise)

Each prompt is one user turn; the agent (Terminus) resends the previous turns. task = task_id, run = a hash of the
trial's name, reward = is_resolved; each test is a component (1 passed, 0 failed). Agents without these logs leave only
a terminal recording: such a trial is rejected. Its successor Harbor writes ATIF (agents/atif.py).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.fields import BadRecord, has, identifier, mapping, object_or_empty, score, texts_of
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.shapes.tool_errors import failure_kind
from pairwright.sources.shapes.traces import run_of

NAME = "terminal-bench"
MAX_EPISODES = 10_000
MAX_FILE_BYTES = 64 * 2**20


def matches(value: Any) -> bool:
    return has(value, "is_resolved", "trial_name", "task_id")


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Rejected]:
    result = mapping(value, "results")
    messages = _turns(origin.path.parent / "agent-logs")
    prompt, completion = split_at_first_answer(messages)
    if not completion:
        raise BadRecord("a trial whose agent logged no turns (agent-logs/episode-0): nothing but its result is known")
    tests = object_or_empty(result.get("parser_results"))
    resolved = score(result.get("is_resolved"))
    components: Json = {} if resolved is None else {"is_resolved": result["is_resolved"]}
    components |= {name: 1.0 if outcome == "passed" else 0.0 for name, outcome in tests.items()}
    failure, errors = result.get("failure_mode"), []
    if isinstance(failure, str) and failure not in ("unset", "none"):
        errors.append(ErrorSite(len(messages) - 1, failure_kind(failure, "exception"), failure))
    yield Parts(
        NAME,
        origin,
        task=identifier(result.get("task_id")),
        run=run_of(identifier(result.get("trial_name")), origin.ordinal),
        prompt=prompt,
        completion=completion,
        reward=resolved,
        reward_components=components,
        errors=errors,
        info=texts_of(result, "trial_name", "failure_mode", "id"),
        metrics={key: result[key] for key in result if key.startswith("total_") and score(result[key]) is not None},
    )


def _turns(folder: Path) -> list[Message]:
    """Read the episodes of a trial in order, up to the first one without an answer."""
    messages: list[Message] = []
    for number in range(MAX_EPISODES):
        episode = folder / f"episode-{number}"
        prompt = _text(episode / "prompt.txt")
        if prompt is None:
            break
        messages.append(Message("user", prompt))
        answer = _text(episode / "response.txt")
        answer = _text(episode / "response.json") if answer is None else answer
        if answer is None:
            break
        messages.append(Message("assistant", answer))
    return messages


def _text(path: Path) -> str | None:
    """Read a file of the trial, or return None if it is missing. No symbolic links, since the folder is untrusted."""
    try:
        if path.is_symlink() or not path.is_file():
            return None
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadRecord(f"{path.name}: more than {MAX_FILE_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRecord(f"{path.name}: cannot be read: {error}") from None


FORMAT = Format(NAME, "record", matches, read, "Terminal-Bench trials")
