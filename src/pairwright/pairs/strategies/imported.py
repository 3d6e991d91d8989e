"""Strategy `imported`: pass imported preferences through with their own sides.

Rewards are those of the sides if both have one, else 1 and 0. A preference whose rewards are tied or contradict its
order is dropped. With `verbatim`, all other preferences are kept in table order, including empty sides, duplicates and
contradictions.
"""

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import polars as pl

from pairwright.pairs.candidates.candidates import decimal_gap
from pairwright.pairs.funnel import Reason
from pairwright.pairs.partition_state import PartitionState
from pairwright.pairs.strategies.pairing import add_keys, no_drafts
from pairwright.records.json_text import from_json
from pairwright.records.messages import Message, canonical_messages, completion_of_text, content_hash, count_ids
from pairwright.store.block import SideMeta
from pairwright.store.columns import num_characters

_side = msgspec.json.Decoder(SideMeta).decode


def plan_imported(state: PartitionState) -> pl.DataFrame:
    """Return the drafts of all imported preferences."""
    rows = state.rows.filter(pl.col("reason").is_null()).sort("row" if state.options.verbatim else "uid")
    state.funnel.stage("pairs", rows.height)
    sides: dict[str, dict[str, Any]] = {}
    keep_empty = state.options.verbatim
    for table in state.tables:
        columns = ["uid", "chosen", "rejected", "num_prompt_messages"]
        for batch in table.scan(where=pl.col("kind") == "preference", columns=columns):
            for uid, *texts, num_messages in pl.DataFrame(batch).iter_rows():
                # If an id is recorded more than once, the first record is used.
                sides.setdefault(uid, _sides(uid, texts, prompt_is_text=num_messages == 0, keep_empty=keep_empty))
    if not rows.height:
        return no_drafts()
    # One dict per draft: gap, and hash, uid, reward and characters of both sides.
    facts = pl.DataFrame([sides[uid] for uid in rows["uid"]], infer_schema_length=None)
    drafts = add_keys(
        rows.select(
            "tid",
            "task",
            "step",
            "prompt_hash",
            group=pl.int_range(pl.len()),
            row_uid="uid",
            chosen_row="row",
            rejected_row="row",
        ).hstack(facts)
    )
    tied, *bounds = state.gap_checks()
    checks = [
        (Reason.EMPTY, (pl.col("num_chosen_characters") < 0) | (pl.col("num_rejected_characters") < 0)),
        (Reason.IDENTICAL, pl.col("chosen_hash") == pl.col("rejected_hash")),
        tied,
        (Reason.OPPOSITE, pl.col("gap") < 0),
        *bounds,
    ]
    return state.drop_where(drafts, checks)


def side_messages(text: str, *, prompt_is_text: bool) -> tuple[Message, ...]:
    """Decode the messages of a stored side; plain text becomes one message."""
    meta = _side(text)
    return meta.messages or completion_of_text(meta.text, prompt_is_text=prompt_is_text)


def _sides(uid: str, texts: Sequence[str], *, prompt_is_text: bool, keep_empty: bool) -> dict[str, Any]:
    """Return the draft columns of a preference: gap, and hash, uid, reward and characters of both sides."""
    metas = [_side(text) for text in texts]
    rewards = [from_json(meta.reward) for meta in metas]
    # Rewards are comparable only if both sides have a finite one.
    if not all(reward is not None and math.isfinite(reward) for reward in rewards):
        rewards = [1.0, 0.0]
    facts: dict[str, Any] = {"gap": decimal_gap(*rewards)}
    for name, text, meta, reward in zip(("chosen", "rejected"), texts, metas, rewards, strict=True):
        messages = side_messages(text, prompt_is_text=prompt_is_text)
        facts[f"{name}_hash"] = content_hash(canonical_messages(messages))
        facts[f"{name}_uid"] = meta.eid.uid if meta.eid is not None else uid
        facts[f"{name}_reward"] = float(reward)
        is_empty = not any(message.text.strip() or message.tool_calls or count_ids(message) for message in messages)
        # -1 marks an empty side, which `plan_imported` drops; with `verbatim` it stays.
        facts[f"num_{name}_characters"] = -1 if is_empty and not keep_empty else num_characters(messages)
    return facts
