"""The manifest of encoded sequences: every count of the items of one source, from the cache."""

from typing import Any

import msgspec
import polars as pl

from pairwright.places import Place
from pairwright.tokens.cache import scan_cache

_LOSSES = {
    "with_dropped_content": "lack text or calls that the model generated: the chat template does not render them",
    "with_dropped_prompt_content": "lack text, calls or tool schemas of the prompt: the chat template does not render "
    "them",
    "with_images_left_out": "are trained without their images, audio, video or files",
}


def count_items(output: Place, keys: list[str], num_cached: int) -> dict[str, Any]:
    """Exact and refused items, why, lengths, what the template dropped, the share of trained tokens.

    `exact` are the items of which everything that the model generated is in the sequences; `encoded` also those with
    dropped content, where that is allowed.
    """
    names = ["key", "side", "number", "num_tokens", "num_trained", "report", "refusal"]
    wanted = pl.DataFrame({"key": keys}, schema={"key": pl.String}).unique()
    rows = scan_cache(output).select(names).join(wanted.lazy(), on="key", how="semi").collect()
    rows = rows.unique(["key", "side", "number"], keep="first", maintain_order=True)  # two runs at once: rows twice
    good = rows.filter(pl.col("refusal").is_null())
    lengths = good["num_tokens"]
    reports = [msgspec.json.decode(text) for text in good["report"].to_list()]
    per_item = good.group_by("key", "side").len()["len"]
    num_encoded = wanted.height - int(rows.height - good.height)
    incomplete = {key for key, report in zip(good["key"].to_list(), reports, strict=True) if report.get("dropped")}
    tokens, trained = int(lengths.sum()), int(good["num_trained"].sum())
    return {
        "items": wanted.height,
        "from_cache": num_cached,
        "encoded": num_encoded,
        "exact": num_encoded - len(incomplete),
        "refused": dict(sorted(rows.filter(pl.col("refusal").is_not_null())["refusal"].value_counts().iter_rows())),
        "sequences": good.height,
        "template_rewrites_history": int((per_item > 1).sum()),
        "recorded": sum(report.get("source") == "recorded" for report in reports),
        "recorded_text_differs": sum(bool(report.get("text_differs")) for report in reports),
        "unstopped": sum(bool(report.get("unstopped")) for report in reports),
        "truncated": sum(report.get("truncated", 0) > 0 for report in reports),
        "with_dropped_content": sum(bool(report.get("dropped")) for report in reports),
        "with_dropped_prompt_content": sum(bool(report.get("prompt_dropped")) for report in reports),
        "with_images_left_out": sum(report.get("images", 0) > 0 for report in reports),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": trained / tokens if tokens else 0.0,
        "length": {
            "min": lengths.min(), "median": lengths.median(), "p95": lengths.quantile(0.95), "max": lengths.max(),
        },
    }  # fmt: skip


def describe_losses(manifest: dict[str, Any]) -> list[str]:
    """One line for each kind of loss: refused items by reason, content that the template does not render, images."""
    lines = []
    if refused := manifest.get("refused"):
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in refused.items())
        lines.append(f"{sum(refused.values()):,} of {manifest['items']:,} items are refused: {reasons}")
    for name, text in _LOSSES.items():
        if count := manifest.get(name, 0):
            lines.append(f"{count:,} of {manifest['sequences']:,} sequences {text}")
    return lines
