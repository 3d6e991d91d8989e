"""Trajectories as chains of message hashes: two runs diverge at the first message where their chains differ.

A chain has one hash for each message of prompt and completion, in canonical form with calls numbered from the start of
the conversation. Runs with different tools share no prefix.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec
import polars as pl
import xxhash

from pairwright.records.messages import (
    Message,
    canonical_messages,
    completion_of_text,
    content_hash,
    decode_messages,
    text_prompt,
)
from pairwright.store.columns import num_characters
from pairwright.store.table import Table

_CONTENT = ("uid", "prompt", "tools", "completion", "prompt_text", "response_text")


@dataclass(frozen=True, slots=True)
class Chain:
    """The messages of a run as hashes; `is_generated` marks those that the model generated in this run."""

    hashes: tuple[bytes, ...]
    is_generated: tuple[bool, ...]
    characters: tuple[int, ...]

    def common(self, other: "Chain") -> int:
        """Return the length of the longest common prefix, in messages."""
        for place, (own, theirs) in enumerate(zip(self.hashes, other.hashes, strict=False)):
            if own != theirs:
                return place
        return min(len(self.hashes), len(other.hashes))

    def prefix_hash(self, cut: int) -> str:
        return xxhash.xxh3_128_hexdigest(b"".join(self.hashes[:cut]))

    def rest_hash(self, cut: int) -> str:
        return xxhash.xxh3_128_hexdigest(b"".join(self.hashes[cut:]))


def read_chains(tables: Iterable[Table], uids: pl.Series) -> dict[str, Chain]:
    """Read the chains of the experiences with these ids; returns them by id."""
    chains: dict[str, Chain] = {}
    tools_seen: dict[str | None, str] = {}
    for uid, prompt, tools, completion in conversations(tables, uids):
        if tools not in tools_seen:
            tools_seen[tools] = content_hash(msgspec.json.decode(tools) if tools else [])
        root = tools_seen[tools].encode()
        messages = [*prompt, *completion]
        digest, encode = xxhash.xxh3_128_digest, msgspec.json.Encoder(order="sorted").encode
        chains[uid] = Chain(
            # The hash of the tools is part of every message hash, so runs with different tools share no prefix.
            hashes=tuple(digest(root + encode(form)) for form in canonical_messages(messages)),
            is_generated=tuple(place >= len(prompt) and message.is_generated for place, message in enumerate(messages)),
            characters=tuple(num_characters([message]) for message in messages),
        )
    return chains


def conversations(
    tables: Iterable[Table], uids: pl.Series
) -> Iterator[tuple[str, tuple[Message, ...], str | None, tuple[Message, ...]]]:
    """Yield id, prompt, tools (JSON text) and completion of the experiences with these ids, each id once."""
    left = set(uids)
    for table in tables:
        for batch in table.scan(columns=_CONTENT):
            wanted = pl.DataFrame(batch).filter(pl.col("uid").is_in(uids.implode()))
            for uid, prompt, tools, completion, prompt_text, response_text in wanted.iter_rows():
                # An id may be recorded more than once; the first record is used.
                if uid in left:
                    left.discard(uid)
                    said = decode_messages(completion) if completion else ()
                    answer = said or completion_of_text(response_text, prompt_is_text=not prompt)
                    yield uid, prompt_messages(prompt, prompt_text), tools, answer


def prompt_messages(prompt: str | None, prompt_text: str | None) -> tuple[Message, ...]:
    """Decode the messages of a prompt; plain text becomes one message with the role `text`."""
    return decode_messages(prompt) if prompt else text_prompt(prompt_text)
