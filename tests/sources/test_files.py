"""Files: any compression, any damage; what cannot be decoded is rejected with line and reason, the rest is read."""

import gzip
from pathlib import Path

import pytest
import zstandard

from pairwright.errors import SourceError
from pairwright.sources import files
from pairwright.sources.files import document, expand_paths, first_items, is_json_lines, line_units, ranges
from pairwright.sources.format import Rejected


def written(tmp_path: Path, data: bytes, name: str = "a.jsonl") -> Path:
    path = tmp_path / name
    path.write_bytes(data)
    return path


def read(path: Path):
    """Values with their line numbers, rejections with theirs and the reason's first words."""
    return [
        (unit.line, unit.reason) if isinstance(unit, Rejected) else (unit[0].line, unit[1]) for unit in line_units(path)
    ]


def test_lines_come_with_their_numbers_and_bad_ones_do_not_stop_the_rest(tmp_path):
    path = written(tmp_path, b'{"a":1}\n\n{"a":\n{"a":"\xff"}\r\n   \n[1]\n{"a":3}')
    assert [line for line, _ in read(path)] == [1, 3, 4, 6, 7]
    found = dict(read(path))
    assert (found[1], found[6], found[7]) == ({"a": 1}, [1], {"a": 3})
    assert found[3].startswith("not valid JSON")
    assert found[4].startswith("invalid UTF-8")


def test_a_torn_last_line_is_rejected(tmp_path):
    assert read(written(tmp_path, b'{"a":1}\n{"a":2,"b"'))[1] == (2, "not valid JSON: Input data was truncated")


def test_a_number_beyond_floats_is_rejected(tmp_path):
    path = written(tmp_path, b'{"a":1e400}\n{"a":1}\n')
    (line, reason), second = read(path)
    assert (line, second) == (1, (2, {"a": 1}))
    assert reason.startswith("not valid JSON: Number out of range")


def test_a_list_nested_ten_thousand_deep_is_rejected(tmp_path):
    path = written(tmp_path, b"[" * 10_000 + b"]" * 10_000 + b'\n{"a":1}\n')
    assert read(path) == [(1, "nested too deep"), (2, {"a": 1})]


def test_python_json_with_nan_is_read(tmp_path):
    (_, value), _ = read(written(tmp_path, b'{"a":NaN,"b":-Infinity}\n{"a":1}\n'))
    assert value["a"] != value["a"]
    assert value["b"] == float("-inf")


def test_an_overlong_line_is_rejected_without_being_held(tmp_path, monkeypatch, peak_memory):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 2**20)
    monkeypatch.setattr(files, "_CHUNK", 2**18)
    path = written(tmp_path, b'{"a":1}\n' + b"x" * 40_000_000 + b'\n{"a":2}\n')
    with peak_memory(limit=8 * 2**20):
        found = read(path)
    assert [line for line, _ in found] == [1, 2, 3]
    assert found[1][1] == "a line of 40,000,000 bytes; the limit is 1,048,576"
    assert found[2][1] == {"a": 2}


def test_a_line_of_just_the_limit_is_read_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 50)
    for chunk in (7, 50, 51, 52, 1000):
        monkeypatch.setattr(files, "_CHUNK", chunk)
        longest, longer = b'"%s"' % (b"x" * 48), b'"%s"' % (b"x" * 49)
        for ending in (b"", b"\n", b"\n\n1"):
            found = read(written(tmp_path, longest + b"\n" + longer + ending))
            assert found[:2] == [(1, "x" * 48), (2, "a line of 51 bytes; the limit is 50")], (chunk, ending)
            assert found[2:] == ([(4, 1)] if ending.endswith(b"1") else [])


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_gzip_and_zstd_are_told_by_content_not_by_name(tmp_path, ending):
    data = b'{"a":1}\n{"a":2}' + ending
    for compressed in (gzip.compress(data), zstandard.ZstdCompressor().compress(data), data):
        assert read(written(tmp_path, compressed, "file.txt")) == [(1, {"a": 1}), (2, {"a": 2})]


def test_a_large_document_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_DOCUMENT_BYTES", 100)
    assert "more than 100 bytes" in document(written(tmp_path, b"[" + b"1," * 100 + b"1]")).reason


def test_ranges_cover_every_line_once(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "_BUFFER", 64)
    monkeypatch.setattr(files, "_CHUNK", 16)
    lines = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * (n * 7 % 50)) for n in range(200)]
    path = written(tmp_path, b"\n".join(lines) + b"\n\n")
    pieces = ranges(path, 500)
    assert len(pieces) > 5
    units = [unit for start, stop, line in pieces for unit in line_units(path, start=start, stop=stop, line=line)]
    assert [(origin.line, value["n"]) for origin, value in units] == [(n + 1, n) for n in range(200)]


def test_json_lines_are_told_from_documents(tmp_path):
    cases = {
        b'{"a":1}\n{"a":2}\n': True,
        b'{\n "a": 1\n}\n': False,
        b'[{"a":1}]': False,
        b'[\n{"a":1}\n]': False,
        b'{"a":1}\n{"a":': True,
        b'{"a":\n{"a":1}\n{"a":2}\n': True,
    }
    for number, (data, expected) in enumerate(cases.items()):
        assert is_json_lines(written(tmp_path, data, f"{number}.json")) is expected, data
    assert is_json_lines(written(tmp_path, b'{"a":1}\n', "one.jsonl"))


def test_paths_folders_and_globs_each_file_once(tmp_path):
    for name in ("a.jsonl", "b.json", ".hidden", "sub/c.jsonl", "quarantine.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    names = [path.name for path in expand_paths([str(tmp_path), str(tmp_path / "*.jsonl"), str(tmp_path / "a.jsonl")])]
    assert names == ["a.jsonl", "b.json", "c.jsonl", "quarantine.jsonl"]
    with pytest.raises(SourceError, match="no file there"):
        expand_paths([str(tmp_path / "nope*")])


@pytest.mark.parametrize(
    "text, found",
    [
        (b'[1, {"a": [2]} , "x,y"]', [1, {"a": [2]}]),
        (b" \n[1,2,3", [1, 2]),  # what follows is for the import to refuse
        (b"[1]", None),
        (b"[1,", None),
        (b"[]", None),
        (b"[1 2]", None),
        (b'{"a": 1}', None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_the_first_items_of_a_list(text, found, tmp_path):
    assert first_items(written(tmp_path, text), 2) == found
