"""Where Arrow takes its memory from while pairs are built and written."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def plain_memory() -> Iterator[None]:
    """Arrow's memory from the C library meanwhile: its own allocators clear huge pages again and again, for batches
    that are small and short-lived, and keep more than they give back."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
