"""A conversation as lines that a test can compare: role, `*` for generated, ids, reasoning, text, calls."""

from pathlib import Path

from pairwright import Experience
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file


def read_path(path: Path, options: Options | None = None) -> tuple[str, list[Experience], list[Rejected]]:
    """Read a file; returns its detected format, the experiences and the rejected records."""
    layout = detect(path)
    assert isinstance(layout, Layout), layout.reason
    results = list(read_file(path, layout, options or Options()))
    experiences = [result for result in results if not isinstance(result, Rejected)]
    return layout.format, experiences, [result for result in results if isinstance(result, Rejected)]


def outline(exp: Experience) -> list[str]:
    """Format one line per message; a failed result has a `!`, and `--` precedes the completion."""
    failed = {site.index for site in exp.errors}
    lines = []
    for position, message in enumerate((*exp.prompt, *exp.completion)):
        if position == len(exp.prompt):
            lines.append("--")
        head = message.role + "*" * message.is_generated + "!" * (position in failed)
        calls = [f"{call.name}{call.arguments}#{call.id}" for call in message.tool_calls]
        parts = [
            f"#{message.tool_call_id}" * bool(message.tool_call_id),
            f"<{message.reasoning}>" * bool(message.reasoning),
        ]
        lines.append(" ".join(part for part in [head, *parts, message.text, *calls] if part).replace("\n", "|"))
    return lines


def counts(experiences: list[Experience]) -> tuple[int, int, int, int]:
    """Experiences, generated turns, calls and results; what is context of another experience counts once."""
    messages = [message for exp in experiences for message in exp.completion]
    generated = [message for message in messages if message.is_generated]
    num_calls = sum(len(message.tool_calls) for message in generated)
    return len(experiences), len(generated), num_calls, sum(message.role == "tool" for message in messages)
