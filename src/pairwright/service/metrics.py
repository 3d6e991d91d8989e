"""What a monitor wants to know, in Prometheus' text form: `GET /metrics`."""

import shutil
from collections.abc import Mapping

import sqlalchemy as sa

from pairwright.backends.job import JobState
from pairwright.service.context import Context
from pairwright.service.deployments import DeploymentState
from pairwright.service.schema import deployments, jobs


def metrics_text(context: Context, requests: Mapping[tuple[str, int], int], *, failed_passes: int) -> str:
    """Counts of jobs and deployments by state, requests by method and status, free disk."""
    by_job = _counts(context, jobs.c.state)
    by_deployment = _counts(context, deployments.c.state)
    disk = shutil.disk_usage(context.settings.data)
    lines = [*_head("pairwright_jobs", "gauge", "Jobs by state.")]
    lines += [f'pairwright_jobs{{state="{state}"}} {by_job.get(state, 0)}' for state in JobState]
    lines += _head("pairwright_deployments", "gauge", "Deployments by state.")
    lines += [f'pairwright_deployments{{state="{state}"}} {by_deployment.get(state, 0)}' for state in DeploymentState]
    lines += _head("pairwright_workers_limit", "gauge", "Jobs that may run at a time.")
    lines.append(f"pairwright_workers_limit {context.settings.max_running}")
    lines += _head("pairwright_disk_free_bytes", "gauge", "Free space where the service keeps its files.")
    lines.append(f"pairwright_disk_free_bytes {disk.free}")
    lines += _head("pairwright_supervisor_failures_total", "counter", "Passes over jobs and deployments that failed.")
    lines.append(f"pairwright_supervisor_failures_total {failed_passes}")
    lines += _head("pairwright_http_requests_total", "counter", "Requests by method and status.")
    for (method, status), count in sorted(requests.items()):
        lines.append(f'pairwright_http_requests_total{{method="{method}",status="{status}"}} {count}')
    return "\n".join(lines) + "\n"


def _head(name: str, kind: str, description: str) -> list[str]:
    return [f"# HELP {name} {description}", f"# TYPE {name} {kind}"]


def _counts(context: Context, column: sa.Column[str]) -> dict[str, int]:
    with context.database.reading() as connection:
        found = connection.execute(sa.select(column, sa.func.count()).group_by(column)).all()
    return {row[0]: row[1] for row in found}
