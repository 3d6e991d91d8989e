"""Trinity's SQLite buffer: a table of experiences, and their bytes in a second table (in older versions, the same).

    <name>         id, task_id, run_id, msg_id, model_version, reward, consumed; for SFT and DPO message lists
    <name>_blob    id, experience_bytes: a payload of `Experience.serialize`

The file is opened read-only, views are not read, and no code of a payload is executed. As in Trinity, the table's
columns override the payload: task, run, suffix of the id, reward and model version.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import CodecError, RecordError
from pairwright.records.experience import EID, Experience, Source
from pairwright.records.messages import Json
from pairwright.sources.fields import BadRecord, index, text_at
from pairwright.sources.format import Rejected
from pairwright.sources.rollouts.trinity import NAME, read_payload
from pairwright.sources.tables import open_database, quoted

MAGIC = b"SQLite f"
_BYTES = "experience_bytes"
_BLOB = "_blob"
_MAX_BYTES = 2**30
MAX_PAYLOAD_BYTES = 2 * 2**30
# Columns that override the payload of an experience.
_COLUMNS = ("task_id", "run_id", "msg_id", "model_version", "reward")


def is_trinity_buffer(path: Path) -> bool:
    try:
        with closing(open_database(path)) as database:
            return any(_BYTES in columns for columns in _tables(database).values())
    except sqlite3.Error:
        return False


def read_buffer(path: Path) -> Iterator[Experience | Rejected]:
    """Yield the experiences of all tables in the order of their ids; unreadable rows are Rejected."""
    try:
        with closing(open_database(path)) as database:
            tables = _tables(database)
            for name, columns in tables.items():
                if _BYTES in columns:
                    yield from _read_table(database, name, tables, path)
    except sqlite3.Error as error:
        raise BadRecord(f"the SQLite file cannot be read: {error}") from None


def _tables(database: sqlite3.Connection) -> dict[str, set[str]]:
    """Return the columns of each table; views and virtual tables are left out."""
    listed = database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    names = [row["name"] for row in listed if (row["sql"] or "").upper().startswith("CREATE TABLE")]
    return {name: {row["name"] for row in database.execute(f"PRAGMA table_info({quoted(name)})")} for name in names}


def _read_table(
    database: sqlite3.Connection, name: str, tables: dict[str, set[str]], path: Path
) -> Iterator[Experience | Rejected]:
    """Yield the experiences of a table of payloads, with the columns of its table of experiences, if any."""
    meta = name.removesuffix(_BLOB)
    columns = [column for column in _COLUMNS if column in tables.get(meta, ())]
    chosen = "".join(f", m.{column}" for column in columns)
    join = f"LEFT JOIN {quoted(meta)} AS m ON m.id = b.id" if columns else ""
    query = f"SELECT b.id AS id, b.{_BYTES} AS payload{chosen} FROM {quoted(name)} AS b {join}"
    for row in database.execute(f"{query} WHERE length(b.{_BYTES}) <= {_MAX_BYTES} ORDER BY b.id"):
        try:
            yield _experience(row["payload"], {column: row[column] for column in columns}, str(path))
        except (BadRecord, CodecError, RecordError) as error:
            yield Rejected(str(path), None, f"{name}, row {row['id']}: {error}", NAME)
    query = f"SELECT id FROM {quoted(name)} WHERE {_BYTES} IS NULL OR length({_BYTES}) > {_MAX_BYTES}"
    for row in database.execute(query):
        yield Rejected(str(path), None, f"{name}, row {row['id']}: no payload of at most {_MAX_BYTES:,} bytes", NAME)
    if meta != name and meta in tables:
        query = f"SELECT id FROM {quoted(meta)} WHERE id NOT IN (SELECT id FROM {quoted(name)})"
        for row in database.execute(query):
            yield Rejected(str(path), None, f"{meta}, row {row['id']}: its payload is missing", NAME)


def _experience(payload: Any, fields: Json, file: str) -> Experience:
    if not isinstance(payload, bytes):
        raise BadRecord(f"{_BYTES}: expected bytes, got {type(payload).__name__}")
    records = list(read_payload(payload))
    if len(records) != 1:
        raise BadRecord(f"{_BYTES}: {len(records)} experiences where one was expected")
    record = records[0]
    if not isinstance(record, Experience):
        raise BadRecord(record.reason)
    eid, run = record.eid, index(fields.get("run_id"))
    task, suffix = text_at(fields, "task_id") or eid.task, text_at(fields, "msg_id") or eid.suffix
    eid = EID(eid.batch, task, eid.run if run is None else run, eid.step, suffix)
    changes: Json = {"source": Source(file, None, NAME), "eid": eid}
    if "reward" in fields:
        changes["reward"] = fields["reward"]
    if isinstance(fields.get("model_version"), int):
        changes["model_version"] = fields["model_version"]
    return msgspec.structs.replace(record, **changes)


def read_trinity(path: Path) -> Iterator[Experience | Rejected]:
    """Yield the experiences of a Trinity payload or of an SQLite buffer; each unreadable record is Rejected."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) == MAGIC:
            yield from read_buffer(path)
            return
    if path.stat().st_size > MAX_PAYLOAD_BYTES:
        raise BadRecord(f"a Trinity payload of more than {MAX_PAYLOAD_BYTES:,} bytes")
    for item in read_payload(path.read_bytes()):
        yield item if isinstance(item, Experience) else Rejected(str(path), None, item.reason, NAME)
