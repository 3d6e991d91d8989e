"""The table: nothing lost, nothing doubled, nothing torn; queries; bounded memory."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_codec import golden_experiences

from pairwright import EID, Experience, Message, Table, TableError
from strategies import experiences


def numbered(number: int, writer: str = "w") -> Experience:
    return Experience(
        eid=EID("b", number % 7, number, 0, f"{writer}{number}"),
        kind="single_turn",
        prompt=[Message("user", "x" * 200)],
        reward=number / 10,
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.lists(st.lists(experiences(), max_size=3), max_size=3), st.booleans())
def test_a_table_gives_back_equal_experiences(tmp_path_factory, appends, compacted):
    table = Table(tmp_path_factory.mktemp("t"))
    for exps in appends:
        table.append(exps)
    if compacted:
        table.compact()
    assert list(table.records()) == [exp for exps in appends for exp in exps]


def test_full_journals_are_closed_and_become_parts_at_the_end(tmp_path):
    with Table(tmp_path / "t", journal_bytes=10_000) as table:
        for number in range(300):
            table.append([numbered(number)])
        assert table.count() == 300
        assert len(list((tmp_path / "t").glob("*.journal"))) > 3
    names = {path.suffix for path in (tmp_path / "t").iterdir()}
    assert names == {".parquet", ".json"}
    assert [exp.eid.run for exp in Table(tmp_path / "t").records()] == list(range(300))


APPEND_FOR_EVER = """
import sys
from pairwright import EID, Experience, Message, Table
table = Table(sys.argv[1], journal_bytes=20_000)
number = int(sys.argv[2])
while True:
    exps = [Experience(eid=EID("b", 0, number + n, 0, f"r{number + n}"), kind="single_turn", prompt=[Message("user", "x" * 300)])
            for n in range(5)]
    table.append(exps)
    number += 5
    print(number, flush=True)
    if number % 35 == 0:
        table.compact()
"""


@pytest.mark.stress
def test_kill_9_at_any_moment_loses_nothing_and_doubles_nothing(tmp_path):
    """Twelve times: append and compact until killed, then everything acknowledged is there once, and what is there is whole."""
    folder, draw, acknowledged = tmp_path / "t", random.Random(1), 0
    for _ in range(12):
        child = subprocess.Popen(
            [sys.executable, "-c", APPEND_FOR_EVER, str(folder), str(acknowledged)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(draw.random() * 0.25)
        os.kill(child.pid, signal.SIGKILL)
        lines = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        acknowledged = max([acknowledged, *map(int, lines)])
        runs = [exp.eid.run for exp in Table(folder).records()]
        assert sorted(set(runs)) == sorted(runs), "a record is there twice"
        assert set(range(acknowledged)) <= set(runs), "an acknowledged record is lost"
        assert len(runs) % 5 == 0, "half an append is visible"
        acknowledged = max(runs) + 1  # an append may have been durable without its acknowledgement having been read
    Table(folder).compact()
    assert not list(folder.glob("*.journal"))
    assert sorted(exp.eid.run for exp in Table(folder).records()) == list(range(acknowledged))


def append_numbered(folder: str, writer: str) -> None:
    with Table(folder, journal_bytes=15_000) as table:
        for number in range(60):
            table.append([numbered(number, writer), numbered(number + 1000, writer)])


@pytest.mark.stress
def test_two_processes_append_while_readers_see_whole_appends(tmp_path):
    folder = tmp_path / "t"
    Table(folder)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_numbered, args=(str(folder), name)) for name in ("a", "b")]
    for writer in writers:
        writer.start()
    seen = 0
    while any(writer.is_alive() for writer in writers):
        suffixes = [exp.eid.suffix for exp in Table(folder).records()]
        assert len(set(suffixes)) == len(suffixes)
        assert len(suffixes) % 2 == 0
        assert len(suffixes) >= seen, "a record that was there is gone"
        seen = len(suffixes)
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert Table(folder).count() == 240


def test_a_torn_end_is_left_out_and_damage_before_the_end_is_an_error(tmp_path):
    table = Table(tmp_path / "t")
    for number in range(3):
        table.append([numbered(number)])
    journal = next((tmp_path / "t").glob("*.journal"))
    data = journal.read_bytes()
    for torn in (data[:-1], data[:-300], data + b"PW", data + bytes(100), data[:-10] + bytes(10)):
        journal.write_bytes(torn)
        assert Table(tmp_path / "t").count() == (3 if torn.startswith(data) else 2)
    journal.write_bytes(data[:100] + b"\xff" + data[101:])
    with pytest.raises(TableError, match="damaged at byte 0"):
        Table(tmp_path / "t").count()


def test_a_crash_between_part_and_journal_counts_once(tmp_path):
    table = Table(tmp_path / "t")
    table.append([numbered(1)])
    journal = next((tmp_path / "t").glob("*.journal"))
    data = journal.read_bytes()
    table.close()
    journal.write_bytes(data)  # as if the process had died before it deleted the journal
    assert Table(tmp_path / "t").count() == 1
    Table(tmp_path / "t").compact()
    assert Table(tmp_path / "t").count() == 1
    assert not journal.exists()


def test_a_journal_of_a_living_writer_is_not_touched(tmp_path):
    writer = Table(tmp_path / "t")
    writer.append([numbered(1)])
    assert Table(tmp_path / "t").compact() == 0
    writer.append([numbered(2)])
    assert Table(tmp_path / "t").count() == 2


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # what is tested is what others do
def test_a_forked_child_writes_its_own_journal(tmp_path):
    table = Table(tmp_path / "t")
    table.append([numbered(1)])
    pid = os.fork()
    if pid == 0:
        table.append([numbered(2)])
        os._exit(0)
    os.waitpid(pid, 0)
    table.append([numbered(3)])
    assert sorted(exp.eid.run for exp in table.records()) == [1, 2, 3]
    table.close()
    assert table.count() == 3


def test_a_full_disk_keeps_what_was_acknowledged(tmp_path, monkeypatch):
    table = Table(tmp_path / "t")
    table.append([numbered(1)])

    def writes_little(fd: int, pieces: list) -> int:
        return os.write(fd, bytes(pieces[0])[:10])

    def fails(fd: int, data: memoryview) -> int:
        raise OSError(28, "No space left on device")

    write = os.write
    monkeypatch.setattr(os, "writev", writes_little)
    table.append([numbered(5)])  # a short write is carried on
    monkeypatch.setattr(os, "writev", lambda fd, pieces: write(fd, bytes(pieces[0])[:10]))
    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(TableError, match="No space left on device; nothing of this append was kept"):
        table.append([numbered(2)])
    monkeypatch.undo()
    table.append([numbered(3)])
    assert [exp.eid.run for exp in table.records()] == [1, 5, 3]


@pytest.mark.parametrize("compacted", [False, True])
def test_scan_filters_and_selects(tmp_path, compacted):
    table = Table(tmp_path / "t")
    table.append(numbered(number) for number in range(100))
    if compacted:
        table.compact()
    rows = [row for batch in table.scan(pl.col("reward") > 9, ["uid", "run"]) for row in batch.to_pylist()]
    assert [row["run"] for row in rows] == list(range(91, 100))
    assert set(rows[0]) == {"uid", "run"}
    assert table.count() == 100
    assert table.count(pl.col("task") == "3") == 14
    assert [exp.eid.run for exp in table.head(2, pl.col("reward") > 9)] == [91, 92]
    assert [exp.eid.run for exp in table.records(pl.col("run") == 5)] == [5]
    with pytest.raises(TableError, match="no column 'nope'"):
        next(table.scan(columns=["nope"]))


def test_group_by_gives_a_row_a_group(tmp_path):
    table = Table(tmp_path / "t")
    table.append(numbered(number) for number in range(14))
    groups = table.group_by("task").collect()
    assert groups["num_experiences"].to_list() == [2] * 7
    assert groups.row(0, named=True)["reward"] == [0.0, 0.7]
    assert table.group_by("run").collect().height == 14
    with pytest.raises(TableError, match="'task', 'run' or 'step'"):
        table.group_by("epoch")


def test_delete_removes_exactly_what_was_asked(tmp_path):
    table = Table(tmp_path / "t")
    table.append([*(numbered(number) for number in range(10)), Experience(kind="single_turn", reward=None)])
    assert table.delete(pl.col("reward") < 0.5) == 5
    assert [exp.reward for exp in table.records()] == [0.5, 0.6, 0.7, 0.8, 0.9, None]


def test_an_empty_table_answers_everything(tmp_path):
    table = Table(tmp_path / "t")
    assert (table.count(), table.head(), list(table.records()), table.append([])) == (0, [], [], 0)
    assert table.group_by("task").collect().height == 0


def test_foreign_folders_are_refused_with_the_way_out(tmp_path):
    with pytest.raises(TableError, match="no experience table here"):
        Table(tmp_path, create=False)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(TableError, match="not empty and not an experience table"):
        Table(tmp_path)
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "table.json").write_text('{"version": 9}')
    with pytest.raises(TableError, match="upgrade pairwright"):
        Table(tmp_path / "t")
    (tmp_path / "t" / "table.json").write_text("{")
    with pytest.raises(TableError, match="cannot be read"):
        Table(tmp_path / "t")


def test_a_damaged_part_is_an_error_that_names_it(tmp_path):
    with Table(tmp_path / "t") as table:
        table.append(golden_experiences())
    part = next((tmp_path / "t").glob("*.parquet"))
    part.write_bytes(part.read_bytes()[:-50])
    with pytest.raises(TableError, match=part.name):
        list(Table(tmp_path / "t").records())


SCAN = """
import sys
from pairwright import Table

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

table = Table(sys.argv[1])
base = peak()
rows = sum(1 for _ in table.records())
print(rows, peak() - base)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_the_memory_of_a_scan_does_not_grow_with_the_table(tmp_path):
    peaks = []
    for num_parts in (2, 12):
        table = Table(tmp_path / str(num_parts))
        for part in range(num_parts):
            table.append(numbered(1000 * part + n) for n in range(4000))
            table.compact()
        done = subprocess.run([sys.executable, "-c", SCAN, str(table.path)], capture_output=True, text=True, check=True)
        rows, peak = map(int, done.stdout.split())
        assert rows == 4000 * num_parts
        peaks.append(peak)
    assert peaks[0] > 1000, "the measurement sees the scan"
    assert peaks[1] < peaks[0] * 1.5 + 20_000, f"six times the rows took {peaks} kB"


def test_paths_may_be_text_and_names_sort_by_time(tmp_path: Path):
    table = Table(str(tmp_path / "t"))
    for number in range(3):
        table.append([numbered(number)])
        table.compact()
    assert [exp.eid.run for exp in table.records()] == [0, 1, 2]
