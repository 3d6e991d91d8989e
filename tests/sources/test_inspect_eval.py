"""Inspect `.eval` files: read in place, with every size distrusted."""

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest
import zstandard

from pairwright.errors import SourceError
from pairwright.sources import inspect_log
from pairwright.sources.agents import inspect_log as inspect_eval
from pairwright.sources.agents.inspect_log import read_eval
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Options, Origin

SAMPLES = Path(__file__).parents[2].parent / "shared" / "data" / "traces" / "inspect_log"
HEADER = {"task": "clocks", "model": "lab/tick"}
SAMPLE = {"id": 1, "epoch": 1, "messages": [], "scores": {"s": {"value": "C"}}}


def eval_file(path: Path, members: dict[str, Any], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path / "log.eval", "w", method) as archive:
        for name, value in members.items():
            archive.writestr(name, value if isinstance(value, bytes | str) else json.dumps(value))
    return path / "log.eval"


def test_samples_are_read_one_by_one_with_the_header(tmp_path: Path) -> None:
    members = {
        "_journal/start.json": {"eval": {"task": "older"}},
        "samples/1_epoch_1.json": SAMPLE,
        "samples/2_epoch_1.json": '{"id": 2, "scores": {"s": {"value": NaN}}}',
        "summaries.json": [],
        "../samples/3.json": SAMPLE,
        "header.json": {"version": 2, "eval": HEADER},
    }
    first, second = read_eval(eval_file(tmp_path, members))
    assert first == {"eval": HEADER, "sample": SAMPLE}
    assert second["sample"]["id"] == 2


def test_a_run_that_did_not_finish_has_the_header_of_its_journal(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"_journal/start.json": {"eval": HEADER}, "samples/1.json": SAMPLE})
    assert [value["eval"] for value in read_eval(path)] == [HEADER]


def test_of_two_members_with_one_name_the_last_is_read_once(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": SAMPLE})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("samples/1.json", '{"id": 9}')
    assert [value["sample"] for value in read_eval(path)] == [{"id": 9}]


def test_a_torn_sample_is_a_problem_of_its_own_and_the_rest_is_read(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": '{"id": ', "samples/2.json": SAMPLE})
    torn, good = read_eval(path)
    assert torn["sample"] is None
    assert torn["problem"].startswith("samples/1.json: ")
    assert good["sample"] == SAMPLE
    with pytest.raises(BadRecord, match=r"samples/1\.json"):
        list(inspect_log.FORMAT.read(torn, Origin("log.eval"), Options()))


def test_a_member_that_swells_too_much_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_eval, "FREE_BYTES", 1000)
    bomb = json.dumps({"id": "x" * 3_000_000})
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": bomb, "samples/2.json": SAMPLE})
    first, second = read_eval(path)
    assert "longer than" in first["problem"]
    assert second["sample"] == SAMPLE


def test_a_member_longer_than_the_limit_is_given_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_eval, "MAX_MEMBER_BYTES", 100)
    path = eval_file(
        tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": {"id": "y" * 200}}, zipfile.ZIP_STORED
    )  # fmt: skip
    (first,) = read_eval(path)
    assert "longer than 100 bytes" in first["problem"]


def test_many_members_that_together_swell_too_much_end_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    members = {f"samples/{n}.json": {"id": "z" * 5000} for n in range(20)}
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, **members})
    monkeypatch.setattr(inspect_eval, "MAX_MEMBER_BYTES", 20_000)
    monkeypatch.setattr(inspect_eval, "MAX_RATIO", 1)
    with pytest.raises(SourceError, match="times as long as the file"):
        list(read_eval(path))


def test_a_member_compressed_with_zstd_is_read(tmp_path: Path) -> None:
    data = zstandard.compress(json.dumps(SAMPLE).encode())
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": data}, zipfile.ZIP_STORED)
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        at = archive.getinfo("samples/1.json").header_offset
    struct.pack_into("<H", raw, at + 8, 93)
    struct.pack_into("<H", raw, raw.rindex(b"PK\x01\x02") + 10, 93)
    path.write_bytes(raw)
    assert [value["sample"] for value in read_eval(path)] == [SAMPLE]


def test_other_compression_is_refused(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("samples/1.json", json.dumps(SAMPLE), zipfile.ZIP_BZIP2)
    (value,) = read_eval(path)
    assert "expected deflate or zstd" in value["problem"]


@pytest.mark.parametrize("data", [b"", b"no zip", b"PK\x05\x06" + b"\xff" * 18])
def test_a_file_that_is_no_zip_is_a_source_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.eval"
    path.write_bytes(data)
    with pytest.raises(SourceError, match=r"x\.eval"):
        list(read_eval(path))


def test_no_damage_to_the_bytes_raises_anything_else(tmp_path: Path) -> None:
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER}, "samples/1.json": SAMPLE, "samples/2.json": SAMPLE})
    good = path.read_bytes()
    for position in range(len(good)):
        damaged = bytearray(good)
        damaged[position] ^= 0xFF
        path.write_bytes(damaged)
        try:
            values = list(read_eval(path))
        except SourceError:
            continue
        assert all(value.keys() >= {"eval", "sample"} for value in values)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the shared sample files are not here")
def test_the_real_eval_file_gives_its_sample() -> None:
    (path,) = SAMPLES.glob("*.eval")
    (value,) = read_eval(path)
    (experience,) = inspect_log.FORMAT.read(value, Origin(path.name), Options())
    assert (experience.eid.task, experience.eid.run, experience.reward) == (1, 1, 1.0)
    assert [tool["name"] for tool in experience.tools] == ["web_search"]
    assert [message.role for message in experience.messages] == ["user", "assistant"]


def test_a_header_that_swells_is_refused_before_it_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_eval, "MAX_HEADER_BYTES", 1000)
    path = eval_file(tmp_path, {"header.json": {"eval": HEADER, "pad": "a" * 2000}, "samples/1.json": SAMPLE})
    with pytest.raises(SourceError, match=r"header\.json cannot be read"):
        list(read_eval(path))
