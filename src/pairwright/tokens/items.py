"""What the tokens stage encodes: the items of an experience table or of a pairs table, each with its key.

A key is a hash of the item's content and of what the stage was told (`salt`), so that an item that was encoded before
is recognised without reading its text. Pairs get the experiences of their sides where these recorded token ids.
"""

from collections.abc import Iterator

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.canonical import content_hash
from pairwright.errors import TableError
from pairwright.grouping import conversation_of
from pairwright.messages import Json, Message
from pairwright.pairs.table import FILE_NAME, pair_batches
from pairwright.places import Place
from pairwright.records import Experience, Kind
from pairwright.store.arrow import from_arrow, from_batch
from pairwright.store.table import Table

_EXPERIENCE_KEY = ("uid", "prompt_hash", "completion_hash", "num_tokens", "prompt_length")
_PAIR_KEY = ("id", "chosen_uid", "rejected_uid")
_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


class Item(msgspec.Struct, frozen=True):
    """What is encoded as one: an experience, or the two sides of a preference. `key` is its place in the cache."""

    key: str
    id: str
    experience: Experience | None = None
    prompt: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = ()
    chosen: tuple[Message, ...] = ()
    rejected: tuple[Message, ...] = ()
    recorded: tuple[Experience, Experience] | None = None


class Source:
    """An experience table or a folder of pairs. `experience` are tables whose recorded ids the pairs may use."""

    def __init__(self, path: Place, *, salt: str, experience: tuple[str, ...] = ()) -> None:
        self.path = path
        self.is_pairs = (path / FILE_NAME).exists()
        if not self.is_pairs and not (path / "table.json").exists():
            raise TableError(f"{path}: neither an experience table nor pairs")
        self._salt = salt
        self._tables = [Table(folder, create=False) for folder in experience]
        self._recorded = {uid for table in self._tables for uid in _recorded_uids(table)}

    def keys(self) -> Iterator[str]:
        """The keys of all items, in the order of the source."""
        if self.is_pairs:
            for batch in pair_batches(self.path, list(_PAIR_KEY)):
                yield from map(self._pair_key, batch.to_pylist())
        else:
            for batch in Table(self.path, create=False).scan(columns=list(_EXPERIENCE_KEY)):
                yield from map(self._key, batch.to_pylist())

    def items(self, known: set[str]) -> Iterator[Item]:
        """The items that are not known yet, each key once."""
        known = set(known)
        for item in self._pairs(known) if self.is_pairs else self._experiences(known):
            known.add(item.key)
            yield item

    def _key(self, row: Json) -> str:
        return content_hash(self._salt, row)

    def _pair_key(self, row: Json) -> str:
        sides = [row["chosen_uid"], row["rejected_uid"]]
        return content_hash(self._salt, row["id"], sides if self._recorded.issuperset(sides) else None)

    def _experiences(self, known: set[str]) -> Iterator[Item]:
        for batch in Table(self.path, create=False).scan():
            keys = [self._key(row) for row in batch.select(_EXPERIENCE_KEY).to_pylist()]
            fresh = np.array([key not in known for key in keys], bool)
            wanted = [key for key in keys if key not in known]
            for key, experience in zip(wanted, from_batch(batch.filter(pa.array(fresh))), strict=True):
                yield _item_of(key, experience)

    def _pairs(self, known: set[str]) -> Iterator[Item]:
        for batch in pair_batches(self.path, [*_PAIR_KEY, "prompt", "tools", "chosen", "rejected"]):
            fresh: dict[str, Json] = {}
            for row in batch.to_pylist():
                if (key := self._pair_key(row)) not in known:
                    fresh.setdefault(key, row)
            experiences = self._fetched({row[name] for row in fresh.values() for name in _PAIR_KEY[1:]})
            for key, row in fresh.items():
                prompt, chosen, rejected = (
                    _messages_of(row[name] or "[]") for name in ("prompt", "chosen", "rejected")
                )
                left, right = experiences.get(row["chosen_uid"]), experiences.get(row["rejected_uid"])
                recorded = (left, right) if left is not None and right is not None else None
                tools = _tools_of(row["tools"] or "[]")
                yield Item(key, row["id"], None, prompt, tools, chosen, rejected, recorded)

    def _fetched(self, uids: set[str]) -> dict[str, Experience]:
        """The experiences with recorded ids among these."""
        wanted = sorted(uids & self._recorded)
        found: dict[str, Experience] = {}
        for table in self._tables if wanted else ():
            rows = table.lazy().filter(pl.col("uid").is_in(wanted) & pl.col("num_tokens").is_not_null()).collect()
            for experience in from_arrow(rows.to_arrow()):
                found.setdefault(experience.eid.uid, experience)
        return found


def _item_of(key: str, experience: Experience) -> Item:
    if experience.kind is not Kind.PREFERENCE:
        return Item(key, experience.eid.uid, experience)
    assert experience.chosen is not None
    assert experience.rejected is not None
    prompt, chosen = conversation_of(experience, experience.chosen)
    rejected = conversation_of(experience, experience.rejected).completion
    recorded = None if experience.tokens is None else (experience, experience)
    return Item(key, experience.eid.uid, None, prompt, experience.tools, chosen, rejected, recorded)


def _recorded_uids(table: Table) -> Iterator[str]:
    for batch in table.scan(where=pl.col("num_tokens").is_not_null(), columns=["uid"]):
        yield from batch.column("uid").to_pylist()
