"""Detection: every sample of every format is claimed by exactly one reader.

Each file goes to the `matches` of every reader. If more than one reader matches, the first in READERS reads it.
Only a general format (`Format.is_general`), which comes after all others, may also match files of another format. Any
other pair must be listed in `ALSO_MATCHES`: a new format that claims the files of another one fails here.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pairwright.sources import READERS
from pairwright.sources.files import expand_paths
from pairwright.sources.format import Rejected
from pairwright.sources.reading import Layout, detect, file_units

FIXTURES = Path(__file__).parent / "fixtures"
SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "data"
# (the format that reads a file, a later format in READERS that also matches): the reason why both match.
ALSO_MATCHES = {
    # Rows of LLaMA-Factory with images, videos or audio: the same conversations with additional files.
    ("llamafactory-media", "sharegpt"),
    # Spans of Braintrust have ids and attributes, as those of OpenTelemetry have.
    ("braintrust", "otel"),
}
GENERAL = {name for name, variants in READERS.items() if all(reader.is_general for reader in variants)}
# A fixture's file is named after the format that reads it.
FORMAT_OF_FIXTURE = {
    "customizer_sft": "rows",  # demonstrations only where the user says so
    "gateway_logs": "api-log",
    "inspect_log": "inspect",
    "mini_swe_agent": "swe-agent",
    "openhands_events": "openhands",
    "openhands_rows": "openhands",
    "otel_genai": "otel",
    "phoenix": "otel",
}


def claims(path: Path) -> tuple[str | None, set[str]]:
    """The format that `auto` chooses, and all formats whose `matches` accepts the file as it is split for them."""
    layout = detect(path)
    if not isinstance(layout, Layout) or layout.shape == "binary":
        return None, set()
    matching = set()
    for name, variants in READERS.items():
        for variant, reader in enumerate(variants):
            as_read = Layout(name, variant, layout.shape)
            values = [unit[1] for unit in file_units(path, as_read) if not isinstance(unit, Rejected)][:64]
            if any(reader.matches(value) for value in values):
                matching.add(name)
    return layout.format, matching


def refuse_other_claims(path: Path) -> str | None:
    chosen, matching = claims(path)
    others = {other for other in matching - {chosen} - GENERAL if (chosen, other) not in ALSO_MATCHES}
    assert not others, f"{path.name} is {chosen}, and {sorted(others)} claim it, too"
    return chosen


@pytest.mark.parametrize("path", expand_paths([str(FIXTURES)]), ids=lambda path: path.name)
def test_a_fixture_is_claimed_by_its_own_format_alone(path):
    stem = path.name.partition(".")[0]
    expected = FORMAT_OF_FIXTURE.get(stem, stem.replace("_", "-"))
    chosen = refuse_other_claims(path)
    assert chosen == expected or expected not in READERS


@pytest.mark.parametrize("name", ["traces", "traces_new"])
def test_a_real_file_is_claimed_by_one_format_alone(name):
    if not (SHARED / name).is_dir():
        pytest.skip(f"no real traces beside the project (data/{name})")
    num_claimed = 0
    for path in expand_paths([str(SHARED / name)]):
        if path.stat().st_size < 2_000_000:
            num_claimed += refuse_other_claims(path) is not None
    assert num_claimed > 50


def test_general_formats_are_asked_after_all_others():
    assert sorted(GENERAL) == ["message-rows", "openai-chat", "rows"]
    assert set(list(READERS)[-len(GENERAL) :]) == GENERAL


def test_a_format_that_claims_the_rows_of_another_one_is_noticed(tmp_path, monkeypatch):
    greedy = replace(READERS["openai-chat"][0], is_general=False)
    monkeypatch.setitem(READERS, "greedy", (greedy,))
    (tmp_path / "a.json").write_text(
        json.dumps([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    )
    with pytest.raises(AssertionError, match="greedy"):
        refuse_other_claims(tmp_path / "a.json")
