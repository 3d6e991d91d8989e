"""Feedback: rewards by response id or by session, which may arrive before or after the response is recorded.

    feedback.jsonl    in the table's folder: one line per feedback, durable before it is acknowledged

A response that is recorded later gets its reward immediately. For existing rows, `apply` appends the row with its
reward and then deletes the old one, so that a crash in between loses nothing and the next `apply` completes it. The
last feedback on a response or session counts.
"""

import threading
from collections.abc import Iterable

import msgspec
import polars as pl

from pairwright.errors import ConfigError
from pairwright.paths import append_synced, whole_lines, write_bytes
from pairwright.records.experience import Experience
from pairwright.records.messages import Json
from pairwright.store.table import Table

FILE = "feedback.jsonl"
_ROWS = 1000  # maximum rows per replacement in the table


class Feedback(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A reward for a response (all its choices, or one), or for the rows of a session that have no reward yet."""

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
        response_id, _, choice = experience.eid.suffix.rpartition("#")  # "<response id>#<choice>": see Exchanges
        if self.response_id is not None:
            return response_id == self.response_id and (self.choice is None or choice == str(self.choice))
        return experience.info.get("session") == self.session and experience.reward is None


class FeedbackLog:
    """The feedback of a table that is being recorded."""

    def __init__(self, table: Table) -> None:
        self._table, self._path = table, table.folder / FILE
        self._lock = threading.Lock()
        self._lines = [msgspec.json.decode(line, type=Feedback) for line in whole_lines(self._path)]
        self._by_response: dict[str, list[Feedback]] = {}
        self._index(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, items: Iterable[Feedback]) -> None:
        """Store feedback durably."""
        listed = list(items)
        with self._lock:
            append_synced(self._path, b"".join(msgspec.json.encode(item) + b"\n" for item in listed))
            self._lines += listed
            self._index(listed)

    def add_reward(self, experience: Experience) -> Experience:
        """Return the experience with the reward of earlier feedback, if there is any."""
        response_id = experience.eid.suffix.rpartition("#")[0]

        for item in reversed(self._by_response.get(response_id, ())):
            if item.covers(experience):
                return _with(experience, item)
        return experience

    def apply(self) -> int:
        """Write rewards to the table; returns the number of changed rows. No other writer may append meanwhile."""
        with self._lock:
            lines = list(self._lines)
        if not lines:
            return 0
        wanted, unknown = self._match_rows(lines)
        uids = list(wanted)
        changed = sum(
            self._replace({uid: wanted[uid] for uid in uids[start : start + _ROWS]})
            for start in range(0, len(uids), _ROWS)
        )
        with self._lock:
            # kept: feedback on responses that are not recorded yet, and what arrived meanwhile
            self._lines = unknown + self._lines[len(lines) :]
            write_bytes(self._path, b"".join(msgspec.json.encode(item) + b"\n" for item in self._lines))
            self._by_response = {}
            self._index(self._lines)
        return changed

    def _match_rows(self, lines: list[Feedback]) -> tuple[dict[str, Feedback], list[Feedback]]:
        """Return the feedback for each row by uid, and feedback on responses that the table does not have."""
        given = pl.LazyFrame(
            [(number, item.response_id, item.choice, item.session) for number, item in enumerate(lines)],
            schema={"number": pl.Int64, "response": pl.String, "choice": pl.Int64, "session": pl.String},
            orient="row",
        )
        # a uid is the JSON array [batch, task, run, step, suffix]; the suffix is "<response id>#<choice>"
        suffix = pl.col("uid").str.json_path_match("$[4]")
        rows = self._table.lazy().select(
            "uid",
            "reward",
            response=suffix.str.replace(r"#\d+$", ""),
            own_choice=suffix.str.extract(r"#(\d+)$").cast(pl.Int64),
            session=pl.col("info").str.json_path_match("$.session"),
        )
        is_choice = pl.col("choice").is_null() | (pl.col("choice") == pl.col("own_choice"))
        matches = (
            rows.filter(pl.col("reward").is_null()).join(given, on="session"),
            rows.join(given, on="response").filter(is_choice),
        )
        # feedback by response id overrides feedback by session, and later feedback overrides earlier
        wanted = {
            uid: lines[number]
            for part in matches
            for uid, number in part.select("uid", "number").sort("number").collect().iter_rows()
        }
        unknown = given.drop_nulls("response").join(rows, on="response", how="anti").sort("number").collect()
        return wanted, [lines[number] for number in unknown["number"]]

    def _replace(self, wanted: dict[str, Feedback]) -> int:
        rewards = {uid: item.reward for uid, item in wanted.items()}
        is_selected = pl.col("uid").is_in(list(rewards))
        new_reward = pl.col("uid").replace_strict(rewards, default=None, return_dtype=pl.Float64)
        # after a crash before the delete below, a row exists with both the old and the new reward
        rows = (
            self._table.lazy()
            .filter(is_selected)
            .select("uid", done=(pl.col("reward") == new_reward).fill_null(False))
            .collect()
        )
        done = set(rows.filter("done")["uid"])
        missing = [uid for uid in rows["uid"].unique(maintain_order=True) if uid not in done]
        if missing:
            old_rows: dict[str, Experience] = {}
            for old in self._table.records(where=pl.col("uid").is_in(missing)):
                old_rows.setdefault(old.eid.uid, old)
            self._table.append([_with(old, wanted[uid]) for uid, old in old_rows.items()])
        if missing or len(rows) > len(done):
            self._table.delete(is_selected & (pl.col("reward").is_null() | (pl.col("reward") != new_reward)))
        return len(missing)

    def _index(self, items: list[Feedback]) -> None:
        for item in items:
            if item.response_id is not None:
                self._by_response.setdefault(item.response_id, []).append(item)


def parse_feedback(data: bytes) -> list[Feedback]:
    """Parse one feedback or a list of them; `score` is an alias of `reward`."""
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
