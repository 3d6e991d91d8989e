"""Every reader against records that are broken at random: types swapped, keys removed, nesting changed.

The records are the hand-written fixtures and, where they are there, real traces. Each broken record goes to every
reader, its own and all the others. Only BadRecord and RecordError may come out, and `matches` always answers.
"""

import json
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from pairwright.errors import RecordError
from pairwright.sources import READERS
from pairwright.sources.fields import BadRecord
from pairwright.sources.files import expand_paths
from pairwright.sources.format import Options, Origin, Rejected
from pairwright.sources.reading import Layout, detect, file_units
from pairwright.store.importing import import_files
from pairwright.store.table import Table

FIXTURES = Path(__file__).parent / "fixtures"
READERS_FLAT = [reader for variants in READERS.values() for reader in variants]
SWAPS: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 1.5, float("nan"), float("-inf"), "", "text", "\ud800", "0.5", "[]", '{"a": 1}', [], {}, [[]],
    [None], {"": None}, [{"role": "user"}], {"type": "message"}, [["a", 1], {"b": []}],
)  # fmt: skip


def places(value: Any, path: tuple = ()) -> list[tuple]:
    """The paths of all values inside a value, up to a few hundred."""
    found: list[tuple] = [path]
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in children:
        if len(found) > 400:
            break
        found += places(item, (*path, key))
    return found


def broken(value: Any, draw: random.Random) -> Any:
    """A copy with one to three random damages."""
    value = deepcopy(value)
    for _ in range(draw.randint(1, 3)):
        path = draw.choice(places(value))
        if not path:
            return draw.choice(SWAPS)
        parent = value
        for key in path[:-1]:
            parent = parent[key]
        damage = draw.randrange(4)
        if damage == 0:
            parent[path[-1]] = draw.choice(SWAPS)
        elif damage == 1:
            del parent[path[-1]]
        elif damage == 2:
            parent[path[-1]] = [parent[path[-1]]]
        else:
            parent[path[-1]] = {"nested": parent[path[-1]]}
    return value


def units_of(path: Path, most: int) -> list[Any]:
    layout = detect(path)
    if not isinstance(layout, Layout) or layout.shape == "binary":
        return []
    return [unit[1] for unit in list(file_units(path, layout))[:most] if not isinstance(unit, Rejected)]


def feed(value: Any) -> None:
    for reader in READERS_FLAT:
        assert reader.matches(value) in (True, False)
        try:
            for found in reader.read(value, Origin("broken.jsonl", 1, 0), Options()):
                assert found is not None
        except (BadRecord, RecordError):
            pass


@pytest.mark.parametrize("path", expand_paths([str(FIXTURES)]), ids=lambda path: path.name)
def test_no_exception_escapes_on_broken_fixtures(path):
    draw = random.Random(path.name)
    for value in units_of(path, 3):
        for _ in range(60):
            feed(broken(value, draw))


def test_no_exception_escapes_on_broken_real_records(traces):
    draw, num_fed = random.Random(0), 0
    for path in expand_paths([str(traces)]):
        if path.stat().st_size > 2_000_000:
            continue
        for value in units_of(path, 2):
            for _ in range(6):
                feed(broken(value, draw))
                num_fed += 1
    assert num_fed > 400


def damaged_text(value: Any, draw: random.Random) -> bytes:
    """A record as JSON text with one to three random damages of its structure, and sometimes of its bytes."""
    try:
        line = json.dumps(broken(value, draw)).encode()
    except (ValueError, RecursionError):
        line = b"{}"
    damage = draw.randrange(8)
    if damage == 0:
        at = draw.randrange(len(line))
        line = line[:at] + bytes([draw.randrange(256)]) + line[at + draw.randrange(3) :]
    elif damage == 1:
        line = line[: draw.randrange(len(line))]
    elif damage == 2:
        depth = draw.choice([190, 210, 500, 1200])
        line = line.replace(b"null", b"[" * depth + b"]" * depth, 1)
    return line.replace(b"\n", b" ")


def import_mutants(folder: Path, num_records: int) -> int:
    """Import mutants of every fixture, as files of their format, with every option on or off; returns how many."""
    draw, count = random.Random(1), 0
    paths = [path for path in expand_paths([str(FIXTURES)]) if units_of(path, 1)]
    share = num_records // len(paths) + 1
    for path in paths:
        layout = detect(path)
        assert isinstance(layout, Layout)
        units, lines = units_of(path, 3), []
        # A format of one unit per file gets many files; records become the lines of one file.
        files = []
        for number in range(share):
            text = damaged_text(draw.choice(units), draw)
            if layout.reader.unit == "record":
                lines.append(text)
            elif number < share // 20 + 1:
                try:
                    session = json.loads(text)
                    mutants = [json.dumps(item).encode() for item in session] if isinstance(session, list) else [text]
                except (ValueError, RecursionError):
                    mutants = [text]
                files.append(b"\n".join(mutants))
                count += len(mutants)
        files += [b"\n".join(lines)] if lines else []
        count += len(lines)
        for number, data in enumerate(files):
            (folder / f"{path.name}-{number}.jsonl").write_bytes(data)
        for format_name, redact in (("auto", False), (layout.format, True)):
            table = Table(folder / f"{path.name}-{redact}")
            names = [str(folder / f"{path.name}-{number}.jsonl") for number in range(len(files))]
            import_files(names, table, format_name=format_name, redact=redact, num_workers=1)
    return count


def test_thousands_of_mutants_are_imported_or_refused_without_an_exception(tmp_path):
    assert import_mutants(tmp_path, 4_000) > 2_000


@pytest.mark.slow
def test_thirty_thousand_mutants_are_imported_or_refused_without_an_exception(tmp_path):
    assert import_mutants(tmp_path, 50_000) > 30_000


@pytest.mark.parametrize("path", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_every_line_of_a_damaged_file_gives_a_record_or_a_reason(path, tmp_path):
    layout, units = detect(path), units_of(path, 20)
    if not units or layout.shape == "table":
        pytest.skip("not JSON")
    draw = random.Random(7)
    texts = [json.dumps(units[0]).encode(), *(damaged_text(draw.choice(units), draw) for _ in range(30))]
    is_record = layout.reader.unit == "record"
    files = [b"\n".join(texts)] if is_record else texts[:5]
    for number, data in enumerate(files):
        file = tmp_path / f"{number}.{'jsonl' if is_record else 'json'}"
        file.write_bytes(data)
        table = Table(tmp_path / f"table{number}")
        summary = import_files([str(file)], table, format_name=layout.format, num_workers=1)
        quarantine = Path(table.folder) / "quarantine.jsonl"
        refused = [json.loads(line) for line in quarantine.read_bytes().splitlines()] if quarantine.exists() else []
        assert len(refused) == summary.total("quarantined")
        assert table.count() + len(refused) + summary.total("part_of_another_file") > 0, data[:2000]
        told = {exp.source and exp.source.line for exp in table.records()} | {one.get("line") for one in refused}
        if is_record and None not in told:  # if a whole file is refused, there is no line number
            blank = {line for line, text in enumerate(data.split(b"\n"), 1) if not text.strip()}
            missing = set(range(1, len(texts) + 1)) - blank - told
            assert len(missing) <= summary.total("already_there")  # lines that say what another line says


def test_values_of_every_type_go_to_every_reader():
    for value in SWAPS:
        feed(value)


@pytest.mark.parametrize("num_others", [0, 200])
def test_a_list_whose_first_items_tell_nothing_is_read_to_its_end(num_others, tmp_path):
    fixture = FIXTURES / "claude_code.jsonl"
    lines = [json.loads(line) for line in fixture.read_text().splitlines()]
    path = tmp_path / "session.json"
    path.write_text(json.dumps([{"type": "file-history-snapshot"}] * num_others + lines))
    assert detect(path) == Layout("claude-code", 0, "document")
