"""BLAS threads: numpy's BLAS starts one per core when it is loaded, and each spins while idle."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "OPENBLAS_NUM_THREADS"


@contextmanager
def without_blas_threads() -> Iterator[None]:
    """Limit BLAS to one thread in processes started here, and in numpy if it is first loaded here. A number that the
    environment sets is respected."""
    original = os.environ.get(_VARIABLE)
    os.environ.setdefault(_VARIABLE, "1")
    try:
        yield
    finally:
        if original is None:
            del os.environ[_VARIABLE]
