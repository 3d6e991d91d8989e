"""Rewards that come by response id or by session, before or after what they are about is recorded.

    feedback.jsonl    in the table's folder: one line a feedback, durable before it is acknowledged

A response that is recorded later takes its reward from here at once. For what is in the table already, `apply` puts
the row with its reward beside the old one and then removes the old one, so that a crash in between loses nothing and
the next `apply` finishes the work. Of several feedbacks about one thing the last one counts.
"""

import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
import polars as pl

from pairwright.errors import ConfigError
from pairwright.paths import append_synced, write_bytes
from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.store.table import Table

FILE = "feedback.jsonl"
_ROWS = 1000


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A reward for a response (all its choices, or one), or for what a session has so far without a reward."""

    reward: float
    response_id: str | None = None
    choice: int | None = None
    session: str | None = None
    components: Json = {}

    def __post_init__(self) -> None:
        if (self.response_id is None) == (self.session is None):
            raise ValueError("expected either response_id or session")
        if self.choice is not None and self.response_id is None:
            raise ValueError("choice needs a response_id")

    def covers(self, experience: Experience) -> bool:
        response_id, _, choice = experience.eid.suffix.rpartition("#")
        if self.response_id is not None:
            return response_id == self.response_id and (self.choice is None or choice == str(self.choice))
        return experience.info.get("session") == self.session and experience.reward is None


class FeedbackLog:
    """The feedback of a table that is being recorded."""

    def __init__(self, table: Table) -> None:
        self._table, self._path = table, table.folder / FILE
        self._lock = threading.Lock()
        self._lines = _read(self._path)
        self._by_response: dict[str, list[Feedback]] = {}
        for item in self._lines:
            self._index(item)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, items: Iterable[Feedback]) -> None:
        """Keep feedback; on return it survives the death of the process."""
        listed = list(items)
        with self._lock:
            append_synced(self._path, b"".join(msgspec.json.encode(item) + b"\n" for item in listed))
            self._lines += listed
            for item in listed:
                self._index(item)

    def rewarded(self, experience: Experience) -> Experience:
        """The experience with the reward that was given before it came, if there is one."""
        response_id = experience.eid.suffix.rpartition("#")[0]
        for item in reversed(self._by_response.get(response_id, ())):
            if item.covers(experience):
                return _with(experience, item)
        return experience

    def apply(self) -> int:
        """Put rewards into the table; returns how many rows got one. Nothing may append to the table meanwhile."""
        with self._lock:
            lines = list(self._lines)
        if not lines:
            return 0
        wanted = self._wanted(lines)
        changed = 0
        uids = list(wanted)
        for start in range(0, len(uids), _ROWS):
            changed += self._replace({uid: wanted[uid] for uid in uids[start : start + _ROWS]})
        with self._lock:
            self._forget(lines)
        return changed

    def _wanted(self, lines: list[Feedback]) -> dict[str, Feedback]:
        """The feedback that counts for each row; rewards by response id count more than those by session."""
        frame = self._table.lazy().select(
            "uid", "reward", "task", pl.col("uid").str.json_path_match("$[4]").alias("suffix")
        )
        responses = {item.response_id for item in lines if item.response_id is not None}
        named = frame.with_columns(response=pl.col("suffix").str.replace(r"#\d+$", ""))
        found = named.filter(pl.col("response").is_in(list(responses))).collect()
        wanted: dict[str, Feedback] = {}
        for item in lines:
            if item.response_id is None:
                continue
            rows = found.filter(pl.col("response") == item.response_id)
            for uid, suffix in zip(rows["uid"], rows["suffix"], strict=True):
                if item.choice is None or suffix.endswith(f"#{item.choice}"):
                    wanted[uid] = item
        sessions = {item.session: item for item in lines if item.session is not None}
        if sessions:
            for batch in self._table.scan(where=pl.col("reward").is_null(), columns=["uid", "info"]):
                for uid, info in zip(batch["uid"].to_pylist(), batch["info"].to_pylist(), strict=True):
                    session = msgspec.json.decode(info or b"{}", type=dict[str, object]).get("session")
                    if isinstance(session, str) and session in sessions and uid not in wanted:
                        wanted[uid] = sessions[session]
        return wanted

    def _replace(self, wanted: dict[str, Feedback]) -> int:
        rewards = {uid: item.reward for uid, item in wanted.items()}
        here = pl.col("uid").is_in(list(rewards))
        there = pl.col("uid").replace_strict(rewards, default=None, return_dtype=pl.Float64)
        rows = (
            self._table.lazy().filter(here).select("uid", done=(pl.col("reward") == there).fill_null(False)).collect()
        )
        done = set(rows.filter("done")["uid"])
        missing = [uid for uid in rows["uid"].unique(maintain_order=True) if uid not in done]
        if missing:
            seen: dict[str, Experience] = {}
            for old in self._table.records(where=pl.col("uid").is_in(missing)):
                seen.setdefault(old.eid.uid, old)
            self._table.append([_with(old, wanted[uid]) for uid, old in seen.items()])
        if missing or len(rows) > len(done):
            self._table.delete(here & (pl.col("reward").is_null() | (pl.col("reward") != there)))
        return len(missing)

    def _forget(self, applied: list[Feedback]) -> None:
        """Drop what the table has now; feedback about what has not come yet stays."""
        present = self._table.lazy().select(
            response=pl.col("uid").str.json_path_match("$[4]").str.replace(r"#\d+$", "")
        )
        known = set(present.collect()["response"])
        kept = [item for item in applied if item.response_id is not None and item.response_id not in known]
        kept += self._lines[len(applied) :]
        write_bytes(self._path, b"".join(msgspec.json.encode(item) + b"\n" for item in kept))
        self._lines, self._by_response = kept, {}
        for item in kept:
            self._index(item)

    def _index(self, item: Feedback) -> None:
        if item.response_id is not None:
            self._by_response.setdefault(item.response_id, []).append(item)


def parse_feedback(data: bytes) -> list[Feedback]:
    """One feedback or a list of them; `score` is another name for `reward`."""
    try:
        value = msgspec.json.decode(data)
        listed = value if isinstance(value, list) else [value]
        for item in listed:
            if isinstance(item, dict) and "score" in item and "reward" not in item:
                item["reward"] = item.pop("score")
        return msgspec.convert(listed, list[Feedback])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ConfigError(f"feedback: {error}") from None


def _with(experience: Experience, item: Feedback) -> Experience:
    components = {**experience.reward_components, **item.components}
    return msgspec.structs.replace(experience, reward=item.reward, reward_components=components)


def _read(path: Path) -> list[Feedback]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1]
    if len(whole) < len(data):
        path.write_bytes(whole)
    return [msgspec.json.decode(line, type=Feedback) for line in whole.splitlines()]
