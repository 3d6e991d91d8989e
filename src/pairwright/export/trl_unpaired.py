"""Scored runs of an experience table as the unpaired rows of TRL, for KTO: no pairs are needed."""

from collections.abc import Iterator

import numpy as np

from pairwright.errors import PairwrightError
from pairwright.export.chat_lines import TEXT_IS_NO_CHAT, Unfit, chat_message
from pairwright.export.exporter import ExportOptions, ExportSummary, refuse_empty
from pairwright.pairs.desirability import choose_threshold
from pairwright.paths import Place, write_atomic
from pairwright.records.experience import Experience
from pairwright.records.json_text import encode
from pairwright.records.messages import TEXT
from pairwright.records.tool_texts import to_chat_tool
from pairwright.store.table import Table


def export_runs(table: Place, output: Place, options: ExportOptions, *, threshold: float | None) -> ExportSummary:
    """Write the runs of an experience table as labelled rows; `summary.pairs` counts runs."""
    runs = Table(table, create=False)
    rewards = [row for batch in runs.scan(columns=["reward"]) for row in batch.column(0).to_pylist()]
    scored = np.array([reward for reward in rewards if reward is not None and np.isfinite(reward)])
    limit = choose_threshold(scored, threshold, option="--threshold")
    summary = ExportSummary(target="trl-unpaired")
    with write_atomic(output, error=PairwrightError) as temporary, open(temporary, "wb", buffering=2**16) as file:
        # If any run has tools, all rows need the column, since loaders infer the columns from the first rows.
        has_tools = any(text for batch in runs.scan(columns=["tools"]) for text in batch.column(0).to_pylist())
        file.writelines(_lines(runs, options, summary, limit=limit, has_tools=has_tools))
        refuse_empty(summary, table, options)
    return summary


def _lines(
    runs: Table, options: ExportOptions, summary: ExportSummary, *, limit: float, has_tools: bool
) -> Iterator[bytes]:
    for run in runs.records():
        summary.pairs += 1
        try:
            row = _row(run, options, limit)
        except Unfit as unfit:
            summary.refuse(run.eid.uid, unfit.reason)
            continue
        if len(run.completion) > 1:
            summary.note(run.eid.uid, "several_messages_a_side")
        if options.arguments == "text" and any(message.tool_calls for message in run.messages):
            summary.note(run.eid.uid, "arguments_as_text")
        if any(message.extra for message in run.messages):
            summary.note(run.eid.uid, "extra_left_out")
        if has_tools:
            row["tools"] = encode([to_chat_tool(tool) for tool in run.tools]).decode()
        summary.written += 1
        summary.rows += 1
        yield encode(row) + b"\n"


def _row(run: Experience, options: ExportOptions, limit: float) -> dict[str, object]:
    if run.kind == "preference":
        raise Unfit("preference")
    if run.reward is None or not np.isfinite(run.reward):
        raise Unfit("unscored")
    if not run.prompt:
        raise Unfit("no_prompt")
    if any(message.role == TEXT for message in run.messages):
        raise Unfit(TEXT_IS_NO_CHAT)
    if run.prompt[-1].role in ("system", "developer"):
        raise Unfit("prompt_ends_with_system_message")
    if not any(message.role == "assistant" for message in run.completion):
        raise Unfit("a_side_has_no_assistant_message")
    prompt, completion = (
        [chat_message(message, arguments=options.arguments) for message in messages]
        for messages in (run.prompt, run.completion)
    )
    return {"prompt": prompt, "completion": completion, "label": run.reward >= limit}
