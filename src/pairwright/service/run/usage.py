"""Disk usage and quota of a namespace, and removal of unused files."""

import os
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows import repositories
from pairwright.service.rows.schema import jobs as job_table


def check_quota(context: Context, namespace: str, num_new: int) -> None:
    """Raise a 413 refusal if `num_new` more bytes of files and job folders would exceed the quota of a namespace."""
    quota = context.settings.quota_bytes
    if quota is None:
        return
    with context.database.reading() as connection:
        used = sum(repositories.blobs_of(connection, namespace).values())
        identities = connection.scalars(sa.select(job_table.c.id).where(job_table.c.namespace == namespace)).all()
    used += sum(_folder_bytes(context.settings.job_folder(identity)) for identity in identities)
    if used + num_new > quota:
        raise Refusal(
            413,
            "quota_exceeded",
            f"namespace {namespace!r} keeps {used:,} of {quota:,} bytes, and this needs {num_new:,} more: delete jobs, "
            "models or repositories",
        )


def free_blobs(context: Context, candidates: Iterable[str]) -> None:
    """Remove the unreferenced blobs among `candidates`."""
    with context.database.reading() as connection:
        unused = set(candidates) - used_blobs(context, connection)
    context.blobs.remove(unused)


def used_blobs(context: Context, connection: sa.Connection) -> set[str]:
    """Return the blobs of all commits and files, and of unfinished or resumable jobs, whose repository may be gone."""
    used = set(repositories.blobs_of(connection, None))
    for row in jobs.in_states(connection, (*jobs.WAITING, *jobs.WITH_WORKER, *jobs.REOPENED)):
        used |= {file["sha256"] for file in row["document"]["work"]["files"]}
    return used


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue  # removed meanwhile
    return total
