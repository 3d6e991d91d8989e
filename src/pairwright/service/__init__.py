"""Self-hosted fine-tuning service: jobs over HTTP, durable across restarts, compatible with existing clients.

Invariants: acknowledged writes survive kill -9; a job is in exactly one state; the loss of a worker is detected.
"""

from pairwright.service.settings import Settings

__all__ = ["Settings"]
