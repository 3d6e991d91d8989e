"""The time that chat templates print: the record's, else a fixed one, never the current time.

Some templates write the date into the prompt. With the current time, the ids of a record would change every day.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# Used if neither the record, the configuration nor the experience table has a time.
FIXED = datetime(2026, 1, 1, 12)
_KEYS = ("time", "created_at", "timestamp", "started_at", "start_time")


def time_of(info: Mapping[str, Any]) -> datetime | None:
    """Return when a record was sampled, from its `info`; None if unknown.

    >>> time_of({"created_at": "2025-07-01T10:00:00Z"}), time_of({"time": 0}), time_of({"time": "soon"})
    (datetime.datetime(2025, 7, 1, 10, 0), datetime.datetime(1970, 1, 1, 0, 0), None)
    """
    for key in _KEYS:
        if (moment := parse_time(info.get(key))) is not None:
            return moment
    return None


def parse_time(value: object) -> datetime | None:
    """Parse an ISO time or seconds since 1970 as naive UTC; None for anything else."""
    try:
        if isinstance(value, str):
            moment = datetime.fromisoformat(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            moment = datetime.fromtimestamp(value, UTC)
        else:
            return None
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment.tzinfo is None else moment.astimezone(UTC).replace(tzinfo=None)
