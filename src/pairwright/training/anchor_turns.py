"""Anchor turns: generated turns in the prompts of pairs, which preference losses do not train.

Pairs of steps and of divergence points compare one decision; the turns before it are context, so their likelihood may
drift. `dpo.anchor_weight` trains them by likelihood in a separate channel, each prompt once.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from pairwright.config.sections import CreditConfig, TokensConfig
from pairwright.pairs.pair_table import pair_batches
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.json_text import from_json
from pairwright.records.messages import Json, Message, content_hash
from pairwright.store.table import Table
from pairwright.training.data import PolicyData, Show, load_policy_data

_messages_of = msgspec.json.Decoder(tuple[Message, ...]).decode
_tools_of = msgspec.json.Decoder(tuple[Json, ...]).decode


def load_anchor(pairs: Path, folder: Path, options: TokensConfig, show: Show, *, is_ready: bool) -> PolicyData | None:
    """Load the anchor turns of pairs as sequences; None if no prompt has a generated turn. `is_ready`: another process
    has written them."""
    runs = list(_find_runs(pairs))
    if not runs:
        return None
    # A table of exactly these runs: a resumed training finds it, other pairs get another table.
    place = folder / content_hash([run.eid.uid for run in runs])
    if not is_ready and not (place / "experience" / "table.json").exists():
        with Table(place / "experience") as table:
            table.append(runs)
    everything = {"train_turns": "all", "credit": CreditConfig(), "recorded": "ignore"}
    return load_policy_data(
        place / "experience", place / "tokens", options.model_copy(update=everything), show, scored=False
    )


def _find_runs(pairs: Path) -> Iterator[Experience]:
    """Yield distinct prompts of training pairs with generated turns, cut after the last generated turn."""
    seen: set[str] = set()
    for batch in pair_batches(pairs, ["split", "prompt", "tools", "info"]):
        for row in batch.to_pylist():
            key = content_hash(row["prompt"], row["tools"])
            if row["split"] == "validation" or key in seen:
                continue
            seen.add(key)
            messages = _messages_of(row["prompt"] or "[]")
            turns = [number for number, message in enumerate(messages) if message.is_generated]
            if not turns:
                continue
            info = from_json(row["info"]) if row["info"] else {}
            yield Experience(
                eid=EID(task=key, suffix=key),
                kind=Kind.MULTI_TURN,
                prompt=messages[: turns[0]],
                completion=messages[turns[0] : turns[-1] + 1],
                tools=_tools_of(row["tools"] or "[]"),
                info=info,
            )
