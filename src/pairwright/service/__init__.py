"""Self-hosted fine-tuning service: jobs over HTTP, durable across restarts, compatible with existing clients.

    api/app.py           application, limits, error handlers     service_server.py    the server process
    rows/database.py     SQLite or PostgreSQL, its tables      rows/repositories.py blob store and commits
    run/queue.py         job queue, at most N at a time          run/deployments.py   model server processes
    run/worker.py        one job: import, pair, train            rows/api_tokens.py   tokens and scopes
    hub/                 Hugging Face Hub endpoint               openai_api/          OpenAI's files and fine-tuning

Invariants: acknowledged writes survive kill -9; a job is in exactly one state; the loss of a worker is detected.
"""

from pairwright.service.settings import Settings

__all__ = ["Settings"]
