"""Trinity's SQLite buffer: the table's columns take precedence over the payload, and nothing is written or executed."""

import sqlite3

import pytest
from test_trinity_bytes import int32, trxp

from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import Layout, detect, read_file
from pairwright.store.importing import import_files
from pairwright.store.table import Table

SCHEMA = """
CREATE TABLE out (id INTEGER PRIMARY KEY, timestamp DATETIME, task_id VARCHAR(64), run_id INTEGER, msg_id VARCHAR(64),
                  model_version INTEGER, reward FLOAT, consumed INTEGER);
CREATE TABLE out_blob (id INTEGER PRIMARY KEY, experience_bytes BLOB NOT NULL);
CREATE TABLE tasks (id INTEGER PRIMARY KEY, raw_task JSON);
"""


def payload(answer):
    messages = [{"role": "user", "content": "Two and two?"}, {"role": "assistant", "content": answer}]
    item = {"eid": {"task": 1, "run": 0, "suffix": "a"}, "messages": messages, "prompt_length": 2, "reward": 9.0}
    return trxp([item], {"0:tokens": int32(1, 2, 3)})


@pytest.fixture
def buffer(tmp_path):
    path = tmp_path / "data" / "buffer.db"
    path.parent.mkdir()
    with sqlite3.connect(path) as database:
        database.executescript(SCHEMA)
        rows = [
            (1, "t1", 0, "a", 4, 1.0),
            (2, "t1", 1, "b", 4, 0.0),
            (3, "t2", 0, "c", 4, 0.5),
            (4, "t2", 1, "d", 4, 0.5),
        ]
        database.executemany(
            "INSERT INTO out (id, task_id, run_id, msg_id, model_version, reward, consumed) VALUES (?,?,?,?,?,?,0)",
            rows,
        )
        blobs = [(1, payload("4")), (2, payload("5")), (3, b"TRXP nonsense")]
        database.executemany("INSERT INTO out_blob VALUES (?, ?)", blobs)
        database.execute("INSERT INTO tasks VALUES (1, '{}')")
    database.close()
    return path


def test_a_buffer_is_read_with_the_columns_of_its_table(buffer):
    before = buffer.read_bytes()
    layout = detect(buffer)
    assert layout == Layout("trinity", shape="binary")
    first, second, *rest = read_file(buffer, layout, Options())
    assert [(run.eid.task, run.eid.run, run.eid.suffix, run.reward) for run in (first, second)] == [
        ("t1", 0, "a", 1.0),
        ("t1", 1, "b", 0.0),
    ]
    assert (first.completion[0].text, first.tokens.tolist(), first.prompt_length) == ("4", [1, 2, 3], 2)
    assert (first.model_version, first.source.file) == (4, str(buffer))
    assert all(isinstance(item, Rejected) for item in rest)
    assert [item.reason.split(":")[0] for item in rest] == ["out_blob, row 3", "out, row 4"]
    assert buffer.read_bytes() == before
    assert [path.name for path in buffer.parent.iterdir()] == ["buffer.db"]


def test_payloads_in_the_table_itself_are_read(tmp_path):
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE old (id INTEGER PRIMARY KEY, reward FLOAT, experience_bytes BLOB)")
        database.execute("INSERT INTO old VALUES (1, 0.25, ?)", (payload("4"),))
    database.close()
    (run,) = read_file(path, detect(path), Options())
    assert (run.reward, run.eid.task) == (0.25, 1)


def test_an_import_counts_what_was_read_and_what_was_not(buffer, tmp_path):
    summary = import_files([str(buffer)], Table(tmp_path / "table"))
    assert (summary.total("experiences"), summary.total("quarantined")) == (2, 2)


def test_other_and_damaged_sqlite_files_are_no_buffer(buffer, tmp_path):
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE boats (id INTEGER)")
        database.execute("CREATE VIEW v AS SELECT id, id AS experience_bytes FROM boats")
    database.close()
    data = bytearray(buffer.read_bytes())
    (tmp_path / "cut.db").write_bytes(data[:3000])
    data[200:4000] = b"x" * 3800
    (tmp_path / "damaged.db").write_bytes(data)
    for name in ("other", "cut", "damaged"):
        assert isinstance(detect(tmp_path / f"{name}.db"), Rejected), name
