"""Statistics and lint checks of a pairs table, read one row group at a time."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from pairwright.pairs.candidates.candidates import TIE_TOLERANCE, is_tied
from pairwright.pairs.funnel import FILE_NAME as FUNNEL_NAME
from pairwright.pairs.funnel import read_funnel
from pairwright.pairs.near_duplicates import Signature, near_duplicates, signature
from pairwright.pairs.pair_table import NARROW_PAIR_TYPES, pair_batches
from pairwright.pairs.selection import length_effect, one_sided
from pairwright.paths import Place
from pairwright.records.messages import Message, canonical_messages, content_hash, decode_messages

NEAR = 0.8  # estimated Jaccard similarity from which two pairs count as near-duplicates
MAX_SIGNED = 20_000  # signatures are slow: they are computed only for the first pairs
# Finding -> the statistic that counts it, and what it counts.
_COUNTED = {
    "not-rising": ("not_rising", "pairs whose chosen reward is not the higher one"),
    "tied": ("tied", "pairs whose rewards differ only by float noise"),
    "empty": ("empty_sides", "sides are empty"),
    "duplicates": ("duplicates", "pairs occur more than once"),
    "contradictions": ("contradictions", "pairs contradict another one"),
    "white-space": ("differ_in_white_space_only", "pairs whose sides differ in white space only"),
    "across-groups": ("across_groups", "pairs compare different prompts"),
    "split-prompts": ("prompts_in_both_splits", "prompts in both splits"),
    "split-tasks": ("tasks_in_both_splits", "tasks in both splits"),
}
# What sides must not differ in -> the option that forbids such pairs; groups have equal system prompts.
_WITHIN = {
    "files with disjoint rewards": "their scorers may differ; build with --within source",
    "models": "build with --within model if the model is not what is compared",
    "system prompts": "build with a strategy that compares equal prompts",
}


@dataclass(frozen=True)
class Finding:
    """A problem of a pairs table to fix before training."""

    name: str
    message: str


def pair_statistics(folder: Place) -> dict[str, Any]:
    """Return counts, gaps, lengths, duplicates and splits of a pairs table."""
    frame = _narrow(folder)
    num_pairs = frame.height
    differences, weights = _differences(frame), frame["weight"].to_numpy()
    per_task = frame.group_by("tid").len()["len"]
    rewards = [frame[f"{side}_reward"].to_numpy() for side in ("chosen", "rejected")]
    sides = [frame.filter(pl.col("split") == split) for split in ("train", "validation")]
    statistics: dict[str, Any] = {
        "pairs": num_pairs,
        "tasks": frame["tid"].n_unique() if num_pairs else 0,
        "prompts": frame["prompt_hash"].n_unique() if num_pairs else 0,
        "train": sides[0].height,
        "validation": sides[1].height,
        "gap_min": frame["gap"].min(),
        "gap_median": frame["gap"].median(),
        "gap_max": frame["gap"].max(),
        "pairs_per_task_min": per_task.min(),
        "pairs_per_task_median": per_task.median(),
        "pairs_per_task_max": per_task.max(),
        "chosen_characters_mean": frame["num_chosen_characters"].mean(),
        "rejected_characters_mean": frame["num_rejected_characters"].mean(),
        # Weighted as in training, since the weights may balance the lengths.
        "length_effect": length_effect(differences, weights),
        "without_weight": int((weights == 0).sum()),
        "across_groups": int(frame["across_groups"].sum()),
        "not_rising": int((frame["chosen_reward"] <= frame["rejected_reward"]).sum()),
        "tied": int(is_tied(rewards[0], rewards[1], tie_tolerance(folder)).sum()),
        "duplicates": num_pairs - frame["id"].n_unique() if num_pairs else 0,
        **_content_statistics(folder),
        "prompts_in_both_splits": len(set(sides[0]["prompt_hash"]) & set(sides[1]["prompt_hash"])),
        "tasks_in_both_splits": len(set(sides[0]["tid"]) & set(sides[1]["tid"])),
    }
    statistics["strategy"] = dict(frame.group_by("strategy").len().sort("strategy").iter_rows())
    statistics["gap_histogram"] = _histogram(frame["gap"].to_numpy())
    if (folder / FUNNEL_NAME).exists():
        funnel = read_funnel(folder)
        statistics["reward_scale"] = funnel.get("reward_scale", {})
        statistics["crossing"] = funnel.get("crossing", {})
    return statistics


def lint_pairs(folder: Place, *, max_length_effect: float = 0.5, max_near: float = 0.2) -> list[Finding]:
    """Return the problems of a pairs table, given the largest length effect and share of near-duplicates."""
    stats = pair_statistics(folder)
    num = max(1, stats["pairs"])
    # Weights bring the effect to the bound itself, up to rounding.
    has_length_effect = stats["pairs"] > 1 and abs(stats["length_effect"]) > max_length_effect * (1 + 1e-9)
    balance = _suggest_balance(folder, max_length_effect) if has_length_effect else ""
    counted = [(name, stats[key], f"{stats[key]:,} {text}") for name, (key, text) in _COUNTED.items()]
    # (name, condition, message); a count above 0 is truthy.
    checks = [
        ("no-pairs", stats["pairs"] == 0, "there are no pairs"),
        *counted,
        (
            "length",
            has_length_effect,
            f"length effect size {stats['length_effect']:.2f}, bound {max_length_effect:g}: {balance}",
        ),
        (
            "no-weight",
            stats["pairs"] and stats["without_weight"] == stats["pairs"],
            "all pairs have weight 0: nothing would be trained",
        ),
        (
            "near-duplicates",
            stats["near_duplicates"] / num > max_near,
            f"{stats['near_duplicates']:,} pairs are near-duplicates: build with --near-duplicates {NEAR:g}",
        ),
        (
            "one-task",
            stats["tasks"] > 1 and stats["pairs"] >= 20 and stats["pairs_per_task_max"] * 2 > stats["pairs"],
            f"one task has {stats['pairs_per_task_max']} of {stats['pairs']} pairs: build with --max-pairs-per-task",
        ),
        *(
            (f"crossing-{name.split()[0]}", count, f"{count:,} pairs compare different {name}: {_WITHIN[name]}")
            for name, count in stats.get("crossing", {}).items()
        ),
        ("scales", _scales_differ(stats.get("reward_scale", {})), "sources have rewards on different scales"),
    ]
    return [Finding(name, message) for name, holds, message in checks if holds]


def _differences(frame: pl.DataFrame) -> Any:
    """Return characters of the chosen minus the rejected side, shape (N,)."""
    return (frame["num_chosen_characters"] - frame["num_rejected_characters"]).cast(pl.Float64).to_numpy()


def _suggest_balance(folder: Place, bound: float) -> str:
    """Return advice to bring the length effect within the bound: drop pairs, else use other pairs."""
    differences = _differences(_narrow(folder))
    num_left = len(differences) - int(one_sided(differences, bound).sum())
    if num_left:
        return f"build with --length-balance {bound:g}, which keeps {num_left:,} of {len(differences):,} pairs"
    longer = "shorter" if differences.mean() > 0 else "longer"
    return f"too few chosen sides are {longer}: dropping pairs would leave none, other pairs would balance that"


def tie_tolerance(folder: Place) -> float:
    """Return the tie tolerance of the build from funnel.json, or the default if it has none."""
    options = read_funnel(folder).get("options") if (folder / FUNNEL_NAME).exists() else None
    tolerance = options.get("tie_tolerance") if isinstance(options, dict) else None
    return TIE_TOLERANCE if tolerance is None else float(tolerance)


def _scales_differ(scales: dict[str, dict[str, float]]) -> bool:
    spans = [scale["max"] - scale["min"] for scale in scales.values() if scale["max"] > scale["min"]]
    return len(spans) > 1 and max(spans) > 10 * min(spans)


def _narrow(folder: Place) -> pl.DataFrame:
    # The empty table provides the columns if the file has no row groups.
    empty = pa.schema(list(NARROW_PAIR_TYPES.items())).empty_table()
    return pl.concat([pl.DataFrame(rows) for rows in (empty, *pair_batches(folder, list(NARROW_PAIR_TYPES)))])


def _content_statistics(folder: Place) -> dict[str, int]:
    """Count the pairs that only their texts show to be bad."""
    signatures: list[Signature | None] = []
    # How often each (prompt hash, chosen hash, rejected hash) occurs.
    preferences: Counter[tuple[str, str, str]] = Counter()
    num_blank = num_empty = 0
    for batch in pair_batches(folder, ["prompt_hash", "chosen", "rejected"]):
        for prompt_hash, chosen_text, rejected_text in pl.DataFrame(batch).iter_rows():
            chosen, rejected = decode_messages(chosen_text or "[]"), decode_messages(rejected_text or "[]")
            forms = canonical_messages(chosen), canonical_messages(rejected)
            preferences[prompt_hash, content_hash(forms[0]), content_hash(forms[1])] += 1
            words = side_words(chosen), side_words(rejected)
            # The same characters without white space, but different messages.
            num_blank += "".join(words[0]) == "".join(words[1]) and forms[0] != forms[1]
            num_empty += (not words[0]) + (not words[1])
            if len(signatures) < MAX_SIGNED:
                signatures.append(signature(" ".join([prompt_hash, *words[0], *words[1]])))
    return {
        "near_duplicates": int(near_duplicates(signatures, NEAR).sum()),
        # A preference is contradicted if the same two sides also occur in the opposite order.
        "contradictions": sum(
            count for (prompt, one, other), count in preferences.items() if (prompt, other, one) in preferences
        ),
        "differ_in_white_space_only": num_blank,
        "empty_sides": num_empty,
    }


def side_words(messages: tuple[Message, ...]) -> list[str]:
    words: list[str] = []
    for message in messages:
        words += [*(message.reasoning or "").split(), *message.text.split()]
        for call in message.tool_calls:
            words += [call.name, *call.arguments.split()]
    return words


def _histogram(gaps: Any) -> dict[str, int]:
    """Count gaps in ten equal bins from 0 to the largest gap."""
    if not len(gaps):
        return {}
    counts, edges = np.histogram(gaps, bins=10, range=(0.0, float(gaps.max())))
    return {f"{low:.4g}–{high:.4g}": int(count) for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)}
