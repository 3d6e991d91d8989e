"""Statistics of a table."""

from typing import Any

import polars as pl

from pairwright.store.table import Table


def table_statistics(table: Table, where: pl.Expr | None = None) -> dict[str, Any]:
    """Return counts of experiences, tasks, runs, rewards, lengths and sources; reads only narrow columns."""
    frame = table.lazy() if where is None else table.lazy().filter(where)
    scored = pl.col("reward").is_not_null()
    numbers = frame.select(
        experiences=pl.len(),
        tasks=pl.col("tid").n_unique(),
        runs=pl.struct("tid", "run").n_unique(),
        prompts=pl.col("prompt_hash").n_unique(),
        scored=scored.sum(),
        unscored=scored.not_().sum(),
        reward_min=pl.col("reward").min(),
        reward_mean=pl.col("reward").mean(),
        reward_median=pl.col("reward").median(),
        reward_max=pl.col("reward").max(),
        messages=(pl.col("num_prompt_messages") + pl.col("num_completion_messages")).sum(),
        tool_calls=pl.col("num_tool_calls").sum(),
        completion_characters=pl.col("num_completion_characters").sum(),
        error_sites=pl.col("num_errors").sum(),
        with_tokens=pl.col("num_tokens").is_not_null().sum(),
        tokens=pl.col("num_tokens").cast(pl.Int64).sum(),
        truncated=pl.col("truncate_status").is_not_null().sum(),
    )
    statistics: dict[str, Any] = numbers.collect().row(0, named=True)
    # Groups of one task, step and prompt with at least two different rewards.
    groups = frame.filter(scored).group_by("tid", "step", "prompt_hash").agg(rewards=pl.col("reward").n_unique())
    statistics["comparable_groups"] = int(groups.filter(pl.col("rewards") > 1).select(pl.len()).collect().item())
    for name in ("kind", "model_version", "source_format"):
        counts = frame.group_by(name).len().sort("len", name, descending=[True, False]).head(20).collect()
        statistics[name] = {str(key): count for key, count in counts.iter_rows()}
    return statistics
