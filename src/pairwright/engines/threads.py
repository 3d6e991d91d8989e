"""Threads that nobody needs: numpy's BLAS starts one a core when it is loaded, and each waits by spinning at first.

That takes a tenth of a second of every process, and nothing that reads, pairs or encodes multiplies matrices.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Processes that are started in here, and numpy if it is first loaded in here, start none of them. A number that
    the environment asks for stays."""
    asked = os.environ.get(_VARIABLE)
    os.environ.setdefault(_VARIABLE, "1")
    try:
        yield
    finally:
        if asked is None:
            del os.environ[_VARIABLE]
