"""The readers of traces match the files of their own tools only."""

import json
from pathlib import Path
from typing import Any

from pairwright.sources import READERS

OWN = {
    "otel": {"otel_genai", "otlp_openinference", "openinference_phoenix"},
    "langfuse": {"langfuse"},
    "langsmith": {"langsmith"},
    "atif": {"atif"},
    "nat": {"nat_intermediate_steps"},
}


def values_of(path: Path) -> list[Any]:
    """Return the values that `matches` may receive for a file: the whole value, and its first record."""
    text = path.read_text()
    try:
        value = json.loads(text)
    except ValueError:
        value = [json.loads(line) for line in text.splitlines() if line.strip()]
    return [value, value[0]] if isinstance(value, list) and value else [value]


def test_no_real_file_of_another_format_is_claimed(traces: Path) -> None:
    files = [path for path in traces.rglob("*") if path.suffix in (".json", ".jsonl", ".traj")]
    assert len(files) > 40
    for path in files:
        folder = path.relative_to(traces).parts[0]
        values = values_of(path)
        for name, own in OWN.items():
            expected = folder in own and ".chatml." not in path.name
            assert any(map(READERS[name][0].matches, values)) == expected, (path.name, name)
