"""The Arrow memory pool during a build."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def plain_memory() -> Iterator[None]:
    """Context manager: Arrow allocates with the system allocator (malloc).

    Arrow's own allocators repeatedly zero huge pages for small, short-lived batches, and retain freed memory.
    """
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)
