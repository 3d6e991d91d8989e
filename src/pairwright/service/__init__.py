"""Our own fine-tuning service: jobs over HTTP, durable across restarts, speaking the protocol of existing clients.

    app.py           the application: routes, refusals, limits       running.py     the process that serves it
    database.py      rows of SQLite or PostgreSQL (schema.py)        blobs.py       files by their content
    queue.py         at most N jobs at a time, each a local job      deployments.py model servers, each in a process
    worker.py        one job: import, pair, train                    tokens.py      who may do what

Invariants: what was acknowledged survives kill -9; a job is in exactly one state; a worker that is gone is noticed.
"""

from pairwright.service.settings import Settings

__all__ = ["Settings"]
