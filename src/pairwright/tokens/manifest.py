"""The manifest of encoded sequences: every count of the items of one source, from the cache."""

from typing import Any

import msgspec
import polars as pl

from pairwright.places import Place
from pairwright.tokens.cache import scan_cache


def count_items(output: Place, keys: list[str], num_cached: int) -> dict[str, Any]:
    """Exact and refused items, why, lengths, what the template dropped, the share of trained tokens."""
    names = ["key", "side", "number", "num_tokens", "num_trained", "report", "refusal"]
    wanted = pl.DataFrame({"key": keys}, schema={"key": pl.String}).unique()
    rows = scan_cache(output).select(names).join(wanted.lazy(), on="key", how="semi").collect()
    rows = rows.unique(["key", "side", "number"], keep="first", maintain_order=True)  # two runs at once: rows twice
    good = rows.filter(pl.col("refusal").is_null())
    lengths = good["num_tokens"]
    reports = [msgspec.json.decode(text) for text in good["report"].to_list()]
    per_item = good.group_by("key", "side").len()["len"]
    tokens, trained = int(lengths.sum()), int(good["num_trained"].sum())
    return {
        "items": wanted.height,
        "from_cache": num_cached,
        "exact": wanted.height - int(rows.height - good.height),
        "refused": dict(sorted(rows.filter(pl.col("refusal").is_not_null())["refusal"].value_counts().iter_rows())),
        "sequences": good.height,
        "template_rewrites_history": int((per_item > 1).sum()),
        "recorded": sum(report.get("source") == "recorded" for report in reports),
        "recorded_text_differs": sum(bool(report.get("text_differs")) for report in reports),
        "unstopped": sum(bool(report.get("unstopped")) for report in reports),
        "truncated": sum(report.get("truncated", 0) > 0 for report in reports),
        "with_dropped_content": sum(bool(report.get("dropped")) for report in reports),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": trained / tokens if tokens else 0.0,
        "length": {
            "min": lengths.min(), "median": lengths.median(), "p95": lengths.quantile(0.95), "max": lengths.max(),
        },
    }  # fmt: skip
