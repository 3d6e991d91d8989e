"""Shared state of the routes: settings, database, blob store, and the event that wakes the supervisor."""

import threading
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Request

from pairwright.service.rows.blob_store import Blobs
from pairwright.service.rows.database import Database
from pairwright.service.settings import Settings

Document = dict[str, Any]  # JSON object of the API


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    blobs: Blobs
    needs_token: bool = False
    wake: threading.Event = field(default_factory=threading.Event)
    # Monotonic time of the last request to a deployment, by id.
    asked: dict[str, float] = field(default_factory=dict)
    # (namespace, repository, sha256) of files that were sent before their commit; a dict keeps the order.
    sent_files: dict[tuple[str, str, str], None] = field(default_factory=dict)


async def context_of(request: Request) -> Context:  # async: a plain function would use a thread per request
    context = request.app.state.context
    assert isinstance(context, Context)
    return context


ContextIs = Annotated[Context, Depends(context_of)]
