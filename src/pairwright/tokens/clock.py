"""The time that chat templates print: a record's own, else one that is fixed, never the time of training.

Some templates write the date into the prompt. With the wall clock the same record would have other ids every day.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

# For conversations that come from nowhere with a time: neither a record, a configuration nor an experience table.
FIXED = datetime(2026, 1, 1, 12)
_KEYS = ("time", "created_at", "timestamp", "started_at", "start_time")


def time_of(info: Mapping[str, Any]) -> datetime | None:
    """When a record was sampled, by its `info`; None where that does not say.

    >>> time_of({"created_at": "2025-07-01T10:00:00Z"}), time_of({"time": 0}), time_of({"time": "soon"})
    (datetime.datetime(2025, 7, 1, 10, 0), datetime.datetime(1970, 1, 1, 0, 0), None)
    """
    for key in _KEYS:
        if (moment := parse_time(info.get(key))) is not None:
            return moment
    return None


def parse_time(value: object) -> datetime | None:
    """A time in ISO form or in seconds since 1970, in UTC; None where it is neither."""
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
