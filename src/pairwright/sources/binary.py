"""Binary formats: the magic bytes that identify each one, and the function that reads its units."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pairwright.records.experience import Experience
from pairwright.sources.agents.inspect_log import read_eval
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Rejected
from pairwright.sources.rollouts.trinity import read_payload
from pairwright.sources.rollouts.trinity_buffer import MAGIC as SQLITE
from pairwright.sources.rollouts.trinity_buffer import read_buffer

MAX_PAYLOAD_BYTES = 2 * 2**30


def read_trinity(path: Path) -> Iterator[Experience | Rejected]:
    """Yield the experiences of a Trinity payload or of an SQLite buffer; each unreadable record is Rejected."""
    with path.open("rb") as file:
        if file.read(len(SQLITE)) == SQLITE:
            yield from read_buffer(path)
            return
    if path.stat().st_size > MAX_PAYLOAD_BYTES:
        raise BadRecord(f"a Trinity payload of more than {MAX_PAYLOAD_BYTES:,} bytes")
    for item in read_payload(path.read_bytes()):
        yield item if isinstance(item, Experience) else Rejected(str(path), None, item.reason, "trinity")


# Files that store/import_task.py reads: pairwright bytes, and Parquet with the columns of the table.
OWN_PREFIXES = (b"PWXP", b"PAR1")
# By format: the first bytes, and the function that yields experiences or decoded units for the format's reader.
BINARY_READERS: dict[str, tuple[bytes, Callable[[Path], Iterator[Any]]]] = {
    "inspect": (b"PK\x03\x04", read_eval),
    "trinity": (b"TRXP", read_trinity),
}
