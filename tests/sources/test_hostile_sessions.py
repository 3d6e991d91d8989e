"""No value anywhere in a session or log makes its reader raise anything but BadRecord or RecordError."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pairwright.errors import RecordError
from pairwright.records.experience import Experience
from pairwright.sources import claude_code, codex, inspect_log, openhands, openhands_rows, swe_agent
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Format, Options, Origin, Rejected

FIXTURES = Path(__file__).parent / "fixtures"
SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
FORMATS = [module.FORMAT for module in (claude_code, codex, inspect_log, openhands, openhands_rows, swe_agent)]


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


ODD = [
    None, True, 0, -1, 10**40, math.nan, math.inf, "", "x", "\ud800", [], {}, [None], [[]], [{}], {"": None},
    {"type": []}, [{"type": "tool_result", "content": 3}], nested(950),
]  # fmt: skip
FIXTURE_OF = {
    "claude_code.jsonl": claude_code.FORMAT,
    "codex.jsonl": codex.FORMAT,
    "inspect_log.json": inspect_log.FORMAT,
    "mini_swe_agent.traj.json": swe_agent.FORMAT,
    "openhands_events.jsonl": openhands.FORMAT,
    "openhands_rows.json": openhands_rows.FORMAT,
    "swe_agent.traj": swe_agent.FORMAT,
}


def loaded(path: Path) -> Any:
    text = path.read_text()
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else json.loads(text)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in a value."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def damaged(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced by each odd value, or left out. One object, changed and changed back."""
    yield from ODD
    for container, key in list(places(value)):
        kept = container[key]
        for odd in ODD:
            container[key] = odd
            yield value
        container[key] = kept
        if isinstance(container, dict):
            del container[key]
            yield value
            container[key] = kept


@pytest.mark.parametrize("name", FIXTURE_OF)
def test_no_damaged_value_escapes_as_another_exception(name: str) -> None:
    form = FIXTURE_OF[name]
    num_read = 0
    for number, value in enumerate(damaged(loaded(FIXTURES / name))):
        for other in FORMATS if number % 20 < 2 else [form]:
            other.matches(value)
        try:
            for result in form.read(value, Origin("x.json", 1), Options(reward=None if number % 2 else "type")):
                assert isinstance(result, Experience | Rejected)
                num_read += isinstance(result, Experience)
        except (BadRecord, RecordError):
            pass
    assert num_read > 100


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_every_reader_refuses_the_files_of_the_others(form: Format) -> None:
    for name, own in FIXTURE_OF.items():
        is_own = form is own or (name == "openhands_rows.json" and form is openhands.FORMAT)
        assert form.matches(loaded(FIXTURES / name)) == is_own, name


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_no_reader_claims_the_samples_of_other_formats(form: Format) -> None:
    folders = {
        "claude-code": {"claude_code"}, "codex": {"codex_cli"}, "inspect": {"inspect_log"}, "openhands": {"openhands"},
        "openhands-rows": {"openhands"}, "swe-agent": {"swe_agent_traj", "mini_swe_agent"},
    }[form.name]  # fmt: skip
    claimed = set()
    for path in sorted(SAMPLES.rglob("*")):
        if path.suffix not in (".json", ".jsonl", ".traj") or path.stat().st_size > 3_000_000:
            continue
        value = loaded(path)
        units = value if form.unit == "record" and isinstance(value, list) else [value]
        if any(form.matches(unit) for unit in units):
            claimed.add(path.parent.name)
    assert claimed == folders
