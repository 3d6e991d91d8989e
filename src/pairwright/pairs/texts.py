"""The text of pairs, fetched once and copied: drafts in order become rows of the pairs table.

Prompts, tools and completions are JSON text in the experience table and stay that; only a trajectory that is cut, the
sides of a given preference, and plain text are written anew. The id of a pair is the hash of its content, of which each
part is brought into canonical form once, however many pairs it is in.
"""

from collections.abc import Iterator, Sequence

import msgspec
import polars as pl
import pyarrow as pa
import xxhash

from pairwright.canonical import canonical_messages, prompt_hash
from pairwright.jsontext import encode
from pairwright.messages import Message
from pairwright.pairs.chains import messages_of
from pairwright.pairs.given import side_messages
from pairwright.pairs.table import PAIR_SCHEMA
from pairwright.store.table import Table

_CONTENT = ("uid", "prompt", "tools", "completion", "chosen", "rejected", "prompt_text", "response_text")
_MADE = ("id", "prompt_hash", "prompt", "tools", "chosen", "rejected")
_PLAIN = (("prompt", "prompt_text", "user"), ("completion", "response_text", "assistant"))
_ROWS = 4096
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_digest = xxhash.xxh3_128_hexdigest


def pair_rows(tables: Sequence[Table], drafts: pl.DataFrame, *, memory_megabytes: int) -> Iterator[pa.RecordBatch]:
    """The drafts as batches of the pairs table, in their order. Texts of about `memory_megabytes` are held at once."""
    num_slices = max(1, -(-_megabytes(tables) // memory_megabytes)) if drafts.height else 1
    size = max(1, -(-drafts.height // num_slices))
    for start in range(0, drafts.height, size):
        some = drafts.slice(start, size)
        uids = pl.concat([some["chosen_uid"], some["rejected_uid"], some["row_uid"].drop_nulls()]).unique()
        texts = _Texts(_fetched(tables, uids))
        for first in range(0, some.height, _ROWS):
            yield texts.batch(some.slice(first, _ROWS))


def _megabytes(tables: Sequence[Table]) -> int:
    """The size of the tables' parts on disk, six times: about what their text takes when it is held."""
    return sum(part.stat().st_size for table in tables for part in table.path.glob("*.parquet")) * 6 // 2**20


def _fetched(tables: Sequence[Table], uids: pl.Series) -> pl.DataFrame:
    """The content of the experiences with these ids; plain text as one message."""
    wanted = uids.implode()
    found = [
        pl.DataFrame(batch).filter(pl.col("uid").is_in(wanted))
        for table in tables
        for batch in table.scan(columns=_CONTENT)
    ]
    rows = pl.concat([frame for frame in found if frame.height]).unique("uid", keep="first", maintain_order=True)
    for name, text, role in _PLAIN:
        if (rows[name].is_null() & rows[text].is_not_null()).any():
            values = [
                encode([Message(role, plain)]).decode() if value is None and plain else value
                for value, plain in rows.select(name, text).iter_rows()
            ]
            rows = rows.with_columns(pl.Series(name, values, pl.String))
    return rows.drop("prompt_text", "response_text")


class _Texts:
    """Fetched rows, with the canonical form of what was looked at."""

    def __init__(self, rows: pl.DataFrame) -> None:
        self._rows = rows.with_row_index("place")
        self._places = self._rows.select("uid", "place")
        self._sides: dict[int, bytes] = {}
        self._prompts: dict[str, tuple[bytes, str]] = {}

    def batch(self, drafts: pl.DataFrame) -> pa.RecordBatch:
        copies = drafts["cut"].null_count() == drafts["row_uid"].null_count() == drafts.height
        made = self._copied(drafts) if copies else self._written(drafts)
        rows = drafts.with_columns(made).select(PAIR_SCHEMA.names).to_arrow().cast(PAIR_SCHEMA)
        return rows.combine_chunks().to_batches()[0]

    def _place(self, uids: pl.Series) -> pl.Series:
        return uids.to_frame("uid").join(self._places, on="uid", how="left", maintain_order="left")["place"]

    def _copied(self, drafts: pl.DataFrame) -> list[pl.Series]:
        """Pairs of whole completions: text is gathered, only ids are made row by row."""
        chosen, rejected = self._place(drafts["chosen_uid"]), self._place(drafts["rejected_uid"])
        self._read_sides(pl.concat([chosen, rejected]).unique())
        prompts = self._rows["prompt"].gather(chosen)
        tools = self._rows["tools"].gather(chosen)
        names = drafts["prompt_hash"]
        firsts = names.to_frame().with_row_index().unique("prompt_hash", keep="first")["index"]
        for name, prompt, schemas in zip(
            names.gather(firsts), prompts.gather(firsts), tools.gather(firsts), strict=True
        ):
            if name not in self._prompts:
                self._prompts[name] = _prompt_form(messages_of(prompt), schemas)
        ids, hashes = [], []
        for name, one, other in zip(names.to_list(), chosen.to_list(), rejected.to_list(), strict=True):
            form, digest = self._prompts[name]
            ids.append(_identity(form, self._sides[one], self._sides[other]))
            hashes.append(digest)
        completions = self._rows["completion"]
        values = (
            pl.Series(ids),
            pl.Series(hashes),
            prompts,
            tools,
            completions.gather(chosen),
            completions.gather(rejected),
        )
        return [series.alias(name) for name, series in zip(_MADE, values, strict=True)]

    def _read_sides(self, places: pl.Series) -> None:
        new = [place for place in places.to_list() if place not in self._sides]
        for place, completion in zip(new, self._rows["completion"].gather(new), strict=True):
            self._sides[place] = _form(messages_of(completion))

    def _written(self, drafts: pl.DataFrame) -> list[pl.Series]:
        """Trajectories that are cut, and given preferences: messages are read and written again."""
        origin = self._place(pl.select(pl.coalesce(drafts["row_uid"], drafts["chosen_uid"])).to_series())
        other = self._place(pl.select(pl.coalesce(drafts["row_uid"], drafts["rejected_uid"])).to_series())
        columns: list[list[str | None]] = [[] for _ in _MADE]
        for cut, one, two in zip(drafts["cut"], origin, other, strict=True):
            row = self._rows.row(one, named=True)
            prompt = messages_of(row["prompt"])
            if cut is None:
                chosen, rejected = side_messages(row["chosen"]), side_messages(row["rejected"])
            else:
                opposite = self._rows.row(two, named=True)
                whole = prompt + messages_of(row["completion"])
                prompt, chosen = whole[:cut], whole[cut:]
                rejected = (messages_of(opposite["prompt"]) + messages_of(opposite["completion"]))[cut:]
            form, digest = _prompt_form(prompt, row["tools"])
            identity = _identity(form, _form(chosen), _form(rejected))
            texts = [encode(messages).decode() for messages in (prompt, chosen, rejected)]
            for column, value in zip(columns, (identity, digest, texts[0], row["tools"], *texts[1:]), strict=True):
                column.append(value)
        return [pl.Series(name, values, pl.String) for name, values in zip(_MADE, columns, strict=True)]


def _prompt_form(messages: Sequence[Message], tools: str | None) -> tuple[bytes, str]:
    """The canonical form of a prompt and its tools as it stands in a pair's id, and the prompt hash."""
    schemas = msgspec.json.decode(tools) if tools else []
    return _form(messages) + b"," + _encode_sorted(schemas), prompt_hash(messages, schemas)


def _identity(prompt: bytes, chosen: bytes, rejected: bytes) -> str:
    """What `pair_id` gives, from forms that were made before."""
    return _digest(b"[%b,%b,%b]" % (prompt, chosen, rejected))


def _form(messages: Sequence[Message]) -> bytes:
    return _encode_sorted(canonical_messages(messages))
