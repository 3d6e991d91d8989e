"""The items of the tokens stage, from an experience table or a pairs table, each with its key.

A key hashes the item's content and the stage's options (`salt`), so encoded items are recognised without reading their
text. A pair includes the experiences of its sides if they have recorded ids, found by the pair's lineage. Recorded ids
that cannot be found are an error: the pair is never silently encoded from its text.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.config.sections import TokensConfig
from pairwright.errors import TableError
from pairwright.generate.template_variables import KEY
from pairwright.pairs.decisions.turn_votes import TurnVotes, read_turn_votes
from pairwright.pairs.lineage import source_tables
from pairwright.pairs.pair_table import FILE_NAME, pair_batches
from pairwright.pairs.rewritten_texts import REJECTED_KEY
from pairwright.pairs.turn_credit import find_credit
from pairwright.paths import Place
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.grouping import conversation_of, split_preference
from pairwright.records.json_text import from_json
from pairwright.records.messages import Json, Message, canonical_messages, content_hash
from pairwright.records.tool_texts import write_tools_as_text
from pairwright.store.arrow import from_arrow, from_batch
from pairwright.store.table import Table
from pairwright.store.table_marker import read_marker
from pairwright.tokens.clock import parse_time, time_of
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.recorded import is_cut_side
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.tokenizer import ChatTokenizer, record_variables
from pairwright.tokens.train_turns import NO_FACTS, TurnFacts, select_in_sides

# Columns that identify an item: hashes and counts, so that keys are computed without reading any text.
_EXPERIENCE_KEY = ("uid", "prompt_hash", "completion_hash", "num_tokens", "prompt_length", "info")
_PAIR_KEY = (
    "id",
    *(f"{side}_{name}" for side in ("chosen", "rejected") for name in ("uid", "recorded", "cut")),
    "info",
)
_SIDES = ("chosen", "rejected")
_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


class Item(msgspec.Struct, frozen=True):
    """An experience, or the two sides of a preference."""

    key: str  # identifies the item in the cache
    id: str
    experience: Experience | None = None
    prompt: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = ()
    chosen: tuple[Message, ...] = ()
    rejected: tuple[Message, ...] = ()
    sources: tuple[Experience | None, Experience | None] = (None, None)  # those with recorded ids of the sides
    cut: tuple[bool, bool] = (False, False)  # sides that were cut short
    info: Json = {}  # has the template variables of a pair
    uids: tuple[str, str] = ("", "")  # experience ids of the sides
    # Of the experience or of both sides: empty if no rule reads them, None for a side whose run has changed.
    facts: tuple[TurnFacts | None, ...] = ()
    # Prompt and sides as recorded, if tools are written as text in `prompt`, `chosen` and `rejected`.
    recorded: tuple[tuple[Message, ...], tuple[Message, ...], tuple[Message, ...]] | None = None


def pair_variables(item: Item) -> Json:
    """Return the template variables of a pair; refuse sides sampled with different variables, which share no prompt."""
    if REJECTED_KEY in item.info:
        left, right = item.info.get(KEY), item.info[REJECTED_KEY]
        raise Refusal("prompts_differ", f"the sides have different template variables: {left!r}, {right!r}")
    if all(source is not None and source.tokens is not None for source in item.sources):
        return {}
    return record_variables(item.info)


class Source:
    """An experience table or a folder of pairs, read as these options need it: with recorded ids, and with the credit
    or the error sites of runs. Without `salt`, keys are not those of a cache."""

    def __init__(self, path: Place, options: TokensConfig, *, salt: str = "") -> None:
        self.path, self._salt = path, salt
        self._credit = options.credit if options.uses_credit else None
        self._uses_facts = options.uses_credit or options.train_turns == "after-error"
        self._use_variables, self._use_recorded = options.record_kwargs == "use", options.recorded == "use"
        self.is_pairs = (path / FILE_NAME).exists()
        if not self.is_pairs and not (path / "table.json").exists():
            raise TableError(f"{path}: neither an experience table nor pairs")
        self._tables: list[Table] = []
        self._recorded: dict[str, str] = {}  # id of a side -> id of the row that holds its recorded ids
        if self.is_pairs and (self._use_recorded or self._uses_facts):
            self._tables = source_tables(path, options.experience)
        if self.is_pairs and self._use_recorded:
            self._recorded = _find_rows(self._tables, self._sides(only_recorded=True), only_recorded=True)
        self._runs: dict[str, str] = {}  # id of a side -> id of the row of its run, if facts are needed
        if self.is_pairs and self._uses_facts:
            self._runs = _find_rows(self._tables, self._sides(only_recorded=False), only_recorded=False)
        self._votes: TurnVotes = {}
        if self._credit is not None and "votes" in self._credit.sources:
            for folder in [table.path for table in self._tables] if self.is_pairs else [path]:
                self._votes |= read_turn_votes(folder)

    def _sides(self, *, only_recorded: bool) -> pl.Series:
        """Return the experience ids of all sides, or of sides with recorded ids."""
        names = [f"{side}_{column}" for side in _SIDES for column in ("uid", "recorded")]
        frames = [pl.DataFrame(batch) for batch in pair_batches(self.path, names)]
        # Null: the file lacks the column, so the sides may have recorded ids.
        sides = [
            (frame.filter(pl.col(f"{side}_recorded").fill_null(True)) if only_recorded else frame)[f"{side}_uid"]
            for frame in frames
            for side in _SIDES
        ]
        return pl.concat(sides).unique() if sides else pl.Series("uid", [], pl.String)

    def imported_at(self) -> datetime | None:
        """Return the creation time of the experience table, or of the first table that the pairs were built from."""
        folders = [table.path for table in source_tables(self.path, ())] if self.is_pairs else [self.path]
        times = (parse_time(read_marker(folder).get("created")) for folder in folders)
        return next(filter(None, times), None)

    def lacks_recorded(self) -> bool:
        """Return whether a side has recorded ids, but its experience table was not found."""
        names = [f"{side}_{column}" for side in _SIDES for column in ("uid", "recorded")]
        rows = (row for batch in pair_batches(self.path, names) for row in batch.to_pylist())
        return self._use_recorded and any(
            row[f"{side}_recorded"] and row[f"{side}_uid"] not in self._recorded for row in rows for side in _SIDES
        )

    def keys(self) -> Iterator[str]:
        if self.is_pairs:
            batches, make_key = pair_batches(self.path, list(_PAIR_KEY)), self._pair_key
        else:
            batches, make_key = Table(self.path, create=False).scan(columns=list(_EXPERIENCE_KEY)), self._key
        for batch in batches:
            yield from map(make_key, batch.to_pylist())

    def items(self, known: set[str]) -> Iterator[Item]:
        """Yield the items with unknown keys, each key once."""
        # A copy: keys are added below, so that a duplicate item is encoded once.
        known = set(known)
        for item in self._pairs(known) if self.is_pairs else self._experiences(known):
            known.add(item.key)
            yield item

    def _key(self, row: Json) -> str:
        return content_hash(self._salt, *self._variables(row.pop("info")), row, *self._votes_on(row["uid"]))

    def _votes_on(self, *uids: str) -> list[Any]:
        """Return votes on the turns of experiences, for a key: a list of one item, or empty."""
        votes = [sorted(self._votes.get(uid, {}).items()) for uid in uids] if self._votes else []
        return [votes] if any(votes) else []

    def _pair_key(self, row: Json) -> str:
        # Rows with recorded ids are part of the key: the pair is encoded again once they are found.
        sides = [self._recorded.get(row[f"{side}_uid"]) for side in _SIDES]
        cut = [bool(row[f"{side}_cut"]) for side in _SIDES]
        votes = self._votes_on(*(row[f"{side}_uid"] for side in _SIDES))
        return content_hash(self._salt, row["id"], sides, cut, *self._variables(row["info"]), *votes)

    def _variables(self, info: str | None) -> list[Json]:
        """Return the template variables in `info`: a list of one item, or empty. Decodes only text with the key."""
        if not self._use_variables or not info or KEY not in info:
            return []
        decoded = from_json(info)
        return [{key: decoded[key] for key in (KEY, REJECTED_KEY) if key in decoded}]

    def _experiences(self, known: set[str]) -> Iterator[Item]:
        for batch in Table(self.path, create=False).scan():
            keys = [self._key(row) for row in batch.select(_EXPERIENCE_KEY).to_pylist()]
            fresh = np.array([key not in known for key in keys], bool)
            wanted = [key for key in keys if key not in known]
            for key, experience in zip(wanted, from_batch(batch.filter(pa.array(fresh))), strict=True):
                item = _item_of(key, experience)
                if self._uses_facts:
                    singles = split_preference(experience) if item.experience is None else (experience,)
                    item = msgspec.structs.replace(item, facts=tuple(map(self._facts, singles)))
                yield item

    def _facts(self, run: Experience) -> TurnFacts:
        credit = {} if self._credit is None else find_credit(run, self._credit, self._votes.get(run.eid.uid))
        return TurnFacts(run.errors, credit)

    def _pairs(self, known: set[str]) -> Iterator[Item]:
        for batch in pair_batches(self.path, [*_PAIR_KEY, "prompt", "tools", "chosen", "rejected"]):
            fresh: dict[str, Json] = {}
            for row in batch.to_pylist():
                if (key := self._pair_key(row)) not in known:
                    fresh.setdefault(key, row)
            uids = [row[f"{side}_uid"] for row in fresh.values() for side in _SIDES]
            experiences = self._fetch({self._recorded[uid] for uid in uids if uid in self._recorded})
            runs = self._fetch({self._runs[uid] for uid in uids if uid in self._runs}, only_recorded=False)
            for key, row in fresh.items():
                prompt, chosen, rejected = (
                    _messages_of(row[name] or "[]") for name in ("prompt", "chosen", "rejected")
                )
                left, right = (self._source(row, side, experiences) for side in _SIDES)
                tools, cut = _tools_of(row["tools"] or "[]"), (bool(row["chosen_cut"]), bool(row["rejected_cut"]))
                info = from_json(row["info"]) if row["info"] else {}
                sides = row["chosen_uid"] or "", row["rejected_uid"] or ""
                facts: tuple[TurnFacts | None, ...] = ()
                if self._uses_facts:
                    answers = zip(_SIDES, (chosen, rejected), strict=True)
                    facts = tuple(self._side_facts(row, name, runs, prompt, answer) for name, answer in answers)
                sources = left, right
                yield Item(key, row["id"], None, prompt, tools, chosen, rejected, sources, cut, info, sides, facts)

    def _side_facts(
        self, row: Json, side: str, runs: dict[str, Experience], prompt: Sequence[Message], answer: Sequence[Message]
    ) -> TurnFacts | None:
        """Return the facts about the run of a side, by the positions of its turns in the pair."""
        uid = row[f"{side}_uid"]
        if uid not in self._runs:
            raise TableError(
                f"pair {row['id']}: the credit and the error sites of {uid} are in its experience table, which was "
                "not found: name it with --experience DIR (tokens.experience)"
            )
        run = runs[self._runs[uid]]
        if run.kind is Kind.PREFERENCE:
            run = split_preference(run)[_SIDES.index(side)]
        own = conversation_of(run)
        messages = (*own.prompt, *own.completion)
        # A pair across groups has the prompt of its chosen side; any other pair continues the messages of its run.
        for start in (len(prompt), len(own.prompt)):
            if canonical_messages(messages[start : start + len(answer)]) == canonical_messages(answer):
                return _shift_facts(self._facts(run), len(prompt) - start)
        return None

    def _source(self, row: Json, side: str, experiences: dict[str, Experience]) -> Experience | None:
        """Return the experience with the recorded ids of a side."""
        uid = row[f"{side}_uid"]
        if uid in self._recorded:
            return experiences[self._recorded[uid]]
        if row[f"{side}_recorded"] and self._use_recorded:
            raise TableError(
                f"pair {row['id']}: token ids were recorded for {uid}, but its experience table was not found: "
                "name it with --experience DIR (tokens.experience), or encode the text with --recorded ignore"
            )
        return None

    def _fetch(self, uids: set[str], *, only_recorded: bool = True) -> dict[str, Experience]:
        experiences: dict[str, Experience] = {}
        for table in self._tables if uids else ():
            rows = table.lazy().filter(pl.col("uid").is_in(sorted(uids)))
            rows = rows.filter(pl.col("num_tokens").is_not_null()) if only_recorded else rows
            for experience in from_arrow(rows.collect().to_arrow()):
                experiences.setdefault(experience.eid.uid, experience)
        return experiences


def _item_of(key: str, experience: Experience) -> Item:
    if experience.kind is not Kind.PREFERENCE:
        return Item(key, experience.eid.uid, experience)
    assert experience.chosen is not None
    assert experience.rejected is not None
    prompt, chosen = conversation_of(experience, experience.chosen)
    rejected = conversation_of(experience, experience.rejected).completion
    cut = is_cut_side(experience, "chosen"), is_cut_side(experience, "rejected")
    has_more = experience.tokens is not None or bool(experience.multi_modal_inputs)
    sources = (experience, experience) if has_more else (None, None)
    sides, uid = (chosen, rejected), experience.eid.uid
    return Item(key, uid, None, prompt, experience.tools, *sides, sources, cut, experience.info, (uid, uid))


def _shift_facts(facts: TurnFacts, by: int) -> TurnFacts:
    """Shift facts by `by` message positions; those before position 0 are dropped."""
    if not by:
        return facts
    sites = (msgspec.structs.replace(site, index=site.index + by) for site in facts.errors if site.index + by >= 0)
    moved = (msgspec.structs.replace(credit, turn=credit.turn + by) for credit in facts.credit.values())
    return TurnFacts(tuple(sites), {credit.turn: credit for credit in moved if credit.turn >= 0})


def _find_rows(tables: Sequence[Table], uids: pl.Series, *, only_recorded: bool) -> dict[str, str]:
    """Map ids (or those with recorded tokens) to their rows; the sides of a preference share its row."""
    rows: dict[str, str] = {}
    for table in tables:
        frame = table.lazy().filter(pl.col("num_tokens").is_not_null()) if only_recorded else table.lazy()
        # implode: the column as one list value, which `is_in` expects.
        found = frame.select("uid").filter(pl.col("uid").is_in(uids.implode())).collect()["uid"].to_list()
        rows |= {uid: uid for uid in found if uid not in rows}
        preferences = frame.filter(pl.col("kind") == Kind.PREFERENCE.value).select("uid", *_SIDES).collect()
        for uid, *sides in preferences.iter_rows():
            eids = (msgspec.json.decode(side).get("eid") for side in sides)
            rows |= {EID(*eid).uid: uid for eid in eids if eid is not None}
    return rows


Result = EncodedPair | TokensError
Origins = tuple[int, ...]  # index of an encoded message -> its index in the pair


def encode_pair_items(tokenizer: ChatTokenizer, items: list[Item], options: TokensConfig) -> list[Result]:
    """Encode pairs, in item order: a pair or a refusal for each. Those with the same template variables are encoded
    together, which is faster."""
    encoding = EncodeOptions.of(options, max_length=options.pair_length)
    results: dict[int, Result] = {}
    groups: dict[ChatTokenizer, list[int]] = {}
    for number, item in enumerate(items):
        try:
            ready = tokenizer.with_variables(pair_variables(item)) if options.record_kwargs == "use" else tokenizer
            ready = ready.at(time_of(item.info))
            groups.setdefault(ready, []).append(number)
        except TokensError as error:
            results[number] = error
    for ready, numbers in groups.items():
        ready_items, origins = zip(*(_write_tools(items[number], options) for number in numbers), strict=True)
        pairs = (
            PairMessages(
                one.prompt, one.chosen, one.rejected, list(one.tools) or None, one.sources, one.cut, one.recorded
            )
            for one in ready_items
        )
        for number, result, sides in zip(numbers, encode_pairs(ready, pairs, encoding), origins, strict=True):
            results[number] = _finish(result, items[number], sides, options)
    return [results[number] for number in range(len(items))]


def _write_tools(item: Item, options: TokensConfig) -> tuple[Item, tuple[Origins, Origins] | None]:
    """Write the item's tools as text for the sides without recorded ids, and return the origins of its messages."""
    is_recorded = [options.recorded == "use" and s is not None and s.tokens is not None for s in item.sources]
    if options.tools_as_text == "off" or all(is_recorded):
        return item, None
    prompt = write_tools_as_text(item.prompt, item.tools)
    sides = [write_tools_as_text(side) for side in (item.chosen, item.rejected)]
    first, second = (
        # A side with recorded ids keeps the recorded messages.
        tuple(range(len(item.prompt) + len(answer)))
        if keeps_ids
        else (*prompt.origins, *(len(item.prompt) + n for n in side.origins))
        for keeps_ids, answer, side in zip(is_recorded, (item.chosen, item.rejected), sides, strict=True)
    )
    written = msgspec.structs.replace(
        item,
        prompt=prompt.messages,
        tools=(),
        chosen=sides[0].messages,
        rejected=sides[1].messages,
        recorded=(item.prompt, item.chosen, item.rejected),
    )
    return written, (first, second)


def _finish(result: Result, item: Item, origins: tuple[Origins, Origins] | None, options: TokensConfig) -> Result:
    """Restore the pair's message indices, and train only its selected turns."""
    if isinstance(result, Refusal) and origins is not None and result.message is not None:
        return Refusal(result.reason, result.detail, message=origins[0][min(result.message, len(origins[0]) - 1)])
    if isinstance(result, TokensError):
        return result
    chosen, rejected = result.chosen, result.rejected
    if origins is not None:
        chosen, rejected = chosen.renumber(origins[0]), rejected.renumber(origins[1])
    try:
        if options.train_turns != "all" or item.facts:
            first, second = item.facts or (NO_FACTS, NO_FACTS)
            if first is None or second is None:
                raise Refusal("no_run", "the messages of a side are not those of its run: its turns have no credit")
            sides, encoded = (item.chosen, item.rejected), (chosen, rejected)
            chosen, rejected = select_in_sides(
                item.prompt, sides, encoded, options.train_turns, (first, second), options.credit
            )
    except TokensError as error:
        return error
    return msgspec.structs.replace(result, chosen=chosen, rejected=rejected)
