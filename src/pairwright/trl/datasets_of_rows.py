"""Rows of encoded sequences as a `datasets.Dataset`: a memory-mapped Arrow file beside the sequences."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from pairwright.errors import ConfigError
from pairwright.paths import find_model, write_atomic
from pairwright.training.token_rows import TokenRows

if TYPE_CHECKING:
    from datasets import Dataset


def make_dataset(
    tokens: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    kind: str,
    *,
    split: str = "train",
    reference: str | os.PathLike[str] | None = None,
    **options: Any,
) -> "Dataset":
    """Return rows for a trainer of `pairwright.trl`; see `Encoded.to_trl` for the arguments."""
    try:
        from datasets import Dataset
    except ImportError:
        raise ConfigError("to_trl needs datasets and trl: pip install 'pairwright[trl]'") from None
    folder, known = Path(tokens), None if reference is None else find_model(os.fspath(reference))
    rows = TokenRows(folder, find_model(os.fspath(tokenizer)), kind, reference=known, **options)
    if not rows.count(split):
        raise ConfigError(f"{folder}: no rows for {kind} in the split {split!r}")
    path = folder / f"rows-{kind}-{split}-{rows.fingerprint}.arrow"
    if not path.is_file():
        with (
            write_atomic(path, durable=False) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_stream(file, rows.schema) as writer,
        ):
            for batch in rows.batches(split):
                writer.write_batch(batch)
    return Dataset.from_file(str(path))
