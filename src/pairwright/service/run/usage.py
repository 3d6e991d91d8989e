"""Disk usage and quota of a namespace, and removal of unused files."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import sqlalchemy as sa

from pairwright.service.api_errors import Refusal
from pairwright.service.context import Context
from pairwright.service.rows import job_rows as jobs
from pairwright.service.rows import repositories
from pairwright.service.rows.database import jobs as job_table


def namespace_bytes(context: Context, namespace: str) -> int:
    """Return the bytes of a namespace: its uploaded files, each counted once, and the folders of its jobs."""
    with context.database.reading() as connection:
        blobs = repositories.blobs_of(connection, namespace)
        identities = connection.scalars(sa.select(job_table.c.id).where(job_table.c.namespace == namespace)).all()
    return sum(blobs.values()) + sum(_folder_bytes(context.settings.job_folder(identity)) for identity in identities)


def check_quota(context: Context, namespace: str, num_new: int) -> None:
    """Raise a 413 refusal if `num_new` more bytes would exceed the quota of a namespace."""
    quota = context.settings.quota_bytes
    if quota is None:
        return
    used = namespace_bytes(context, namespace)
    if used + num_new > quota:
        raise Refusal(
            413,
            "quota_exceeded",
            f"namespace {namespace!r} keeps {used:,} of {quota:,} bytes, and this needs {num_new:,} more: delete jobs, "
            "models or repositories",
        )


def free_blobs(context: Context, candidates: Iterable[str]) -> int:
    """Remove the unreferenced blobs among `candidates`. Returns how many were removed."""
    with context.database.reading() as connection:
        unused = set(candidates) - used_blobs(context, connection)
    return context.blobs.remove(unused)


def used_blobs(context: Context, connection: sa.Connection) -> set[str]:
    """Return the blobs of all commits and files, and of unfinished or resumable jobs, whose repository may be gone."""
    used = set(repositories.blobs_of(connection, None))
    for row in jobs.in_states(connection, (*jobs.WAITING, *jobs.WITH_WORKER, *jobs.REOPENED)):
        used |= {file["sha256"] for file in jobs.work_of(row)["files"]}
    return used


def remove_job_folders(context: Context) -> None:
    """Remove the folders of jobs that were deleted while the service was being stopped."""
    with context.database.reading() as connection:
        known = set(connection.scalars(sa.select(job_table.c.id)).all())
    for folder in context.settings.jobs.glob("*"):
        if folder.name not in known:
            shutil.rmtree(folder, ignore_errors=True)


def _folder_bytes(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue  # removed meanwhile
    return total
