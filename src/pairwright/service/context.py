"""What every route needs: the settings, the rows, the files, and whom to wake when there is work."""

import threading
from dataclasses import dataclass, field

from fastapi import Request

from pairwright.service.blobs import Blobs
from pairwright.service.database import Database
from pairwright.service.settings import Settings


@dataclass(frozen=True)
class Context:
    settings: Settings
    database: Database
    blobs: Blobs
    needs_token: bool = False
    wake: threading.Event = field(default_factory=threading.Event)


def context_of(request: Request) -> Context:
    context = request.app.state.context
    assert isinstance(context, Context)
    return context
