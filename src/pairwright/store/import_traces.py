"""Importing from Python: traces in, a table out."""

import os
from collections.abc import Sequence
from pathlib import Path

from pairwright.engines.progress_lines import Progress, progress_of
from pairwright.sources.format import Options
from pairwright.store.importing import import_files, refuse_empty
from pairwright.store.table import Table

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def import_traces(
    paths: Paths,
    output: str | os.PathLike[str],
    *,
    format: str = "auto",
    reward: str | None = None,
    scores: str | os.PathLike[str] | None = None,
    step_name: str | None = None,
    redact: bool = False,
    update: bool = False,
    workers: int | None = None,
    progress: bool | Progress = False,
) -> Table:
    """Read agent traces into an experience table. Importing a file again adds nothing.

    Records that cannot be read are in `quarantine.jsonl` beside the table, each with its reason.

    Args:
        paths: A file, folder, glob or address, or a list of them.
        output: Folder of the table; it is made, or added to.
        format: Name of a format of docs/sources.md; "auto" tells by content.
        reward: Name of the reward, a path such as "metadata.reward", or an expression: "0.7*correct + 0.3*style".
        scores: CSV or JSON Lines file of rewards, by id or by task and run.
        step_name: NAT only: name of the TTC step whose candidates to read.
        redact: Replace API keys, tokens and private keys.
        update: Replace what these files gave before.
        workers: Processes; by default one a core where it pays.
        progress: True prints progress to stderr; a function is called with bytes done and in all.

    Returns:
        The table, with everything that is in it.

    Raises:
        SourceError: No file is there, or no record in them could be read.

    >>> import pairwright as pw
    >>> table = pw.import_traces("traces/*.jsonl", "runs/first/experience")
    >>> len(table), table[-1].reward
    (8, 1.0)
    """
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    table = Table(output)
    summary = import_files(
        [os.fspath(path) for path in listed],
        table,
        format_name=format,
        options=Options(reward=reward, step_name=step_name),
        redact=redact,
        scores=None if scores is None else Path(scores),
        update=update,
        num_workers=workers,
        progress=progress_of(progress, "read bytes:"),
    )
    refuse_empty(summary)
    return table
