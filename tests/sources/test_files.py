"""Files: any compression, any damage; what cannot be decoded is rejected with line and reason, the rest is read."""

import gzip
import json
import os
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import zstandard

import pairwright as pw
from pairwright.errors import SourceError
from pairwright.sources import files
from pairwright.sources.files import (
    document,
    expand_paths,
    first_items,
    is_json_lines,
    line_batches,
    line_units,
    ranges,
    read_line_blocks,
    relative_names,
    value_units,
)
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
    path = written(tmp_path, b'{"a":1}\n\n{"a":\n{"a":"\xc3\xa9\xff"}\r\n   \n[1]\n{"a":3}')
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
    path = written(tmp_path, b'{"a":1}\n' + b"x" * 40_000_000 + b'\n{"a":2}\n')
    with peak_memory(limit=8 * 2**20):
        found = read(path)
    assert [line for line, _ in found] == [1, 2, 3]
    assert found[1][1] == "a line of 40,000,000 bytes; the limit is 1,048,576"
    assert found[2][1] == {"a": 2}


def test_a_line_of_just_the_limit_is_read_and_one_byte_more_is_not(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 50)
    for block in (3, 7, 25, 49, 50):  # the limit is never below the size of a block
        monkeypatch.setattr(files, "_BLOCK", block)
        longest, longer = b'"%s"' % (b"x" * 48), b'"%s"' % (b"x" * 49)
        for ending in (b"", b"\n", b"\n\n1"):
            found = read(written(tmp_path, longest + b"\n" + longer + ending))
            assert found[:2] == [(1, "x" * 48), (2, "a line of 51 bytes; the limit is 50")], (block, ending)
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
    monkeypatch.setattr(files, "_BLOCK", 16)
    lines = [b'{"n":%d,"pad":"%s"}' % (n, b"x" * (n * 7 % 50)) for n in range(200)]
    path = written(tmp_path, b"\n".join(lines) + b"\n\n")
    pieces = ranges(path, 500)
    assert len(pieces) > 5
    batches = [batch for start, stop, line in pieces for batch in line_batches(path, start=start, stop=stop, line=line)]
    units = list(chain.from_iterable(batches))
    assert [(origin.line, value["n"]) for origin, value in units] == [(n + 1, n) for n in range(200)]


@pytest.mark.parametrize("end", [b"", b"\n", b"\n\n", b"\r\n "])
def test_blocks_have_the_lines_that_start_in_a_range(tmp_path, monkeypatch, end):
    lines = [b"1\n", b"\n", b"22222\r\n", b"\n", b"333\n", b" \n", b"4" * 9 + end]
    path = written(tmp_path, b"".join(lines))
    size = path.stat().st_size
    lines = path.read_bytes().splitlines(keepends=True)
    starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
    for block in (1, 2, 3, 5, 8, 100):
        monkeypatch.setattr(files, "_BLOCK", block)
        for begin in starts:
            for stop in (None, *range(begin + 1, size + 2)):
                first = starts.index(begin)
                blocks = list(read_line_blocks(path, start=begin, stop=stop, line=first + 1))
                wanted = [(n + 1, lines[n]) for n in range(first, len(lines)) if stop is None or starts[n] < stop]
                read_lines = [pair for number, block_lines in blocks for pair in enumerate(block_lines, number)]
                assert read_lines == wanted, (block, begin, stop)


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


ROWS = [{"a": "é"}, {"a": "ü", "b": [1]}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_a_byte_order_mark_names_the_encoding(tmp_path, encoding, pack):
    path = written(tmp_path, pack(LINES.encode(encoding)))
    assert is_json_lines(path)
    assert [value for _, value in read(path)] == ROWS
    assert document(written(tmp_path, pack(json.dumps(ROWS).encode(encoding)), "a.json")) == ROWS


def test_big_endian_utf_16_that_is_longer_than_a_chunk_is_read(tmp_path):
    rows = [{"a": "ü" * 1000, "n": number} for number in range(200)]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = written(tmp_path, b"\xfe\xff" + text.encode("utf-16-be"))
    assert [value for _, value in read(path)] == rows


def test_latin_1_is_read_and_counted_but_damaged_utf_8_is_refused(tmp_path):
    repairs = Counter()
    path = written(tmp_path, '{"a":"caf\xe9"}\n'.encode("latin-1") + '{"a":"é'.encode() + b'\xff"}\n')
    first, second = line_units(path, repairs=repairs)
    assert first[1] == {"a": "café"}
    assert second.reason.startswith("invalid UTF-8")
    assert repairs == {"lines read as Latin-1 (Windows-1252)": 1}


@pytest.mark.parametrize(
    ("text", "value", "num_lone"),
    [
        (r'{"a":"x\ud800y"}', "x\ufffdy", 1),
        (r'{"a":"\ud83d\ude00 \udc00"}', "\U0001f600 \ufffd", 1),
        (r'{"a":"\\ud800"}', r"\ud800", 0),
        (r'{"a":"\\\ud800\ud800\udfff"}', "\\\ufffd\U000103ff", 1),
        (r'{"a":"\u0041\udc00"}', "A\ufffd", 1),
        (r'{"a":"\udc00\udc00"}', "\ufffd\ufffd", 2),
    ],
)
def test_lone_surrogates_are_replaced_and_counted(tmp_path, text, value, num_lone):
    repairs = Counter()
    ((_, row),) = line_units(written(tmp_path, text.encode()), repairs=repairs)
    assert row == {"a": value}
    assert repairs == ({"lone surrogates replaced": num_lone} if num_lone else {})


def test_nul_bytes_around_a_line_are_dropped_and_a_line_of_them_is_refused(tmp_path):
    repairs = Counter()
    path = written(tmp_path, b'\0\0{"a":1}\n{"a":2}\0\n\0\0\0\n')
    first, second, third = line_units(path, repairs=repairs)
    assert (first[1], second[1], third.reason) == ({"a": 1}, {"a": 2}, "nothing but NUL bytes")
    assert repairs == {"NUL bytes dropped": 2}


@pytest.mark.parametrize("indent", [None, 2])
def test_several_values_in_a_row_are_units_with_their_lines(tmp_path, indent):
    text = ("" if indent is None else "\n").join(json.dumps(row, indent=indent) for row in ROWS)
    path = written(tmp_path, text.encode(), "a.json")
    assert isinstance(document(path), Rejected)
    units = list(value_units(path))
    assert [value for _, value in units] == ROWS
    assert [(origin.ordinal, origin.line) for origin, _ in units] == [(0, 1), (1, 1 if indent is None else 4)]


def test_a_broken_value_in_a_row_loses_only_itself(tmp_path):
    path = written(tmp_path, b'{\n "a": 1\n}\n{\n "a": \n}\nnoise\n{\n "a": 3\n}\n7\n', "a.json")
    units = list(value_units(path))
    assert [unit[1] for unit in units if not isinstance(unit, Rejected)] == [{"a": 1}, {"a": 3}]
    assert [(unit.line, unit.reason.partition(":")[0]) for unit in units if isinstance(unit, Rejected)] == [
        (4, "not valid JSON"),
        (11, "not valid JSON"),
    ]


def test_what_is_no_regular_file_is_left_out_and_named(tmp_path):
    written(tmp_path, b'{"a":1}\n')
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    refused: list[Rejected] = []
    assert list(relative_names([str(tmp_path)], refused).values()) == ["a.jsonl"]
    assert {Path(one.file).name: one.reason for one in refused} == {
        "link": "a link to nothing",
        "pipe": "not a regular file (a FIFO, socket or device)",
    }
    refused.clear()
    assert relative_names([str(tmp_path / "pipe")], refused) == {}
    assert len(refused) == 1


def test_a_loop_of_links_and_a_name_that_is_not_utf_8_do_not_stop_the_rest(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    written(folder, b'{"prompt":"q","completion":"a","reward":1}\n{"prompt":"q","completion":"b","reward":0}\n')
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    Path(os.fsdecode(bytes(folder) + b"/bad\xff.jsonl")).write_bytes(b'{"prompt":"q","completion":"c","reward":1}\n')
    table = pw.import_traces(str(folder), tmp_path / "table")
    assert len(table) == 2
    refused = [json.loads(line) for line in (tmp_path / "table" / "quarantine.jsonl").read_text().splitlines()]
    assert {row["file"].rpartition("/")[2]: row["reason"] for row in refused} == {
        "loop.jsonl": "a link to nothing",
        "bad\\xff.jsonl": "a file name that is not UTF-8; rename it",
    }


def test_an_overlong_first_line_of_compressed_json_lines_is_not_held(tmp_path, monkeypatch, peak_memory):
    monkeypatch.setattr(files, "MAX_LINE_BYTES", 8 * 2**20)
    data = b'{"a":"%s"}\n{"a":2}\n' % (b"x" * 60_000_000)
    path = written(tmp_path, gzip.compress(data, 1), "a.jsonl.gz")
    del data
    with peak_memory(limit=40 * 2**20):
        assert is_json_lines(path)
        assert [line for line, _ in read(path)] == [1, 2]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    written(tmp_path, b'{"a":1}\n')
    (tmp_path / "closed").mkdir()
    scandir = os.scandir

    def refuse(path):
        if Path(path).name == "closed":
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    # Folders are open to root whatever their mode, so that the mode alone would not test this everywhere.
    monkeypatch.setattr(os, "scandir", refuse)
    refused: list[Rejected] = []
    assert len(relative_names([str(tmp_path)], refused)) == 1
    assert [(Path(one.file).name, one.reason) for one in refused] == [
        ("closed", "a folder that cannot be listed: Permission denied")
    ]


def test_keys_that_repeat_lone_surrogates_and_rewards_that_are_no_numbers(tmp_path):
    lines = [
        '{"prompt":"q","completion":"a","reward":1,"reward":0}',  # the last value of a repeated key counts
        '{"prompt":"q","completion":"b\\ud800","reward":1}',
        *(f'{{"prompt":"q","completion":"{text}","reward":{text}}}' for text in ("NaN", "Infinity", "-Infinity")),
        '{"prompt":"q","completion":"c","reward":1e400}',
    ]
    path = written(tmp_path, "\n".join(lines).encode())
    table = pw.import_traces(str(path), tmp_path / "table")
    assert [row.reward for row in table.records()][:2] == [0.0, 1.0]
    assert len(table) == 5
    assert "Number out of range" in (tmp_path / "table" / "quarantine.jsonl").read_text()
    pairs = table.pairs(strategy="all", output=tmp_path / "pairs")
    assert [(pair.chosen_reward, pair.rejected_reward) for pair in pairs] == [(1.0, 0.0)]
