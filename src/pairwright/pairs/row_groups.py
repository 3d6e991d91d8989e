"""Row groups: bounds that depend only on the rows, and dictionary-encoded texts."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ROWS_PER_GROUP = 16_384
# Bytes of text before compression. A group ends at whichever bound is reached first.
BYTES_PER_GROUP = 8 * 2**20
_INDEX = pa.int32()


def with_dictionaries(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema with the named columns as dictionary types; names that it does not have are ignored."""
    fields = [
        pa.field(field.name, pa.dictionary(_INDEX, field.type)) if field.name in names else field for field in schema
    ]
    return pa.schema(fields, metadata=schema.metadata)


class Filling:
    """Number of rows and bytes in the current row group."""

    def __init__(self) -> None:
        self._num_rows = self._num_bytes = 0

    def cut(self, sizes: npt.NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """Add rows, given their bytes of text; yields (start, stop, whether the row group ends at stop).

        A group that is full by bytes, not by rows, ends only when the next row arrives.
        """
        # totals[k] is the number of bytes in rows 0 to k of this batch.
        totals, start = np.cumsum(sizes), 0
        while start < len(sizes):
            before = int(totals[start - 1]) if start else 0
            stop = int(np.searchsorted(totals, before + BYTES_PER_GROUP - self._num_bytes, side="right"))
            stop = max(start, min(stop, start + ROWS_PER_GROUP - self._num_rows))
            if stop == start and not self._num_rows:
                stop = start + 1  # a row larger than the limit forms its own group
            self._num_rows += stop - start
            self._num_bytes += int(totals[stop - 1]) - before if stop > start else 0
            ends = stop < len(sizes) or self._num_rows == ROWS_PER_GROUP
            if ends:
                self._num_rows = self._num_bytes = 0
            yield start, stop, ends
            start = stop


def row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    """Regroup batches into row groups with the columns of `schema`."""
    pending: list[pa.RecordBatch] = []
    filling = Filling()
    for batch in batches:
        columns = []
        for field in schema:
            column = batch.column(field.name)
            if pa.types.is_dictionary(field.type) and not pa.types.is_dictionary(column.type):
                column = column.cast(field.type.value_type).dictionary_encode()
            columns.append(column.cast(field.type))
        rows = pa.RecordBatch.from_arrays(columns, schema=schema)
        for start, stop, ends in filling.cut(_sizes(rows)):
            pending += [rows.slice(start, stop - start)] if stop > start else []
            if ends:
                yield _group(pending, schema)
                pending = []
    if pending:
        yield _group(pending, schema)


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of text in each row, over all dictionary columns."""
    total = np.zeros(rows.num_rows, np.int64)
    for column in rows.columns:
        if pa.types.is_dictionary(column.type) and len(column.dictionary):
            # The 0 at the end is for null: its code, -1, indexes the last entry.
            lengths = np.append(pc.binary_length(column.dictionary).to_numpy(zero_copy_only=False), 0)
            total += lengths[_codes(column)]
    return total


def _group(pieces: list[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    table = pa.Table.from_batches(pieces, schema=schema)
    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            table = table.set_column(number, field, _compact(table.column(number)))
    return table.combine_chunks()


def _compact(column: pa.ChunkedArray) -> pa.Array:
    """Return a dictionary array without unused texts, with the dictionary in order of first use."""
    if column.num_chunks > 1:
        column = column.unify_dictionaries()
    # After unification all chunks share one dictionary.
    chunks = column.chunks
    codes = np.concatenate([_codes(chunk) for chunk in chunks])
    if len(chunks) == 1 and _is_compact(codes, len(chunks[0].dictionary)):
        return chunks[0]
    used, ranks = first_uses(codes, len(chunks[0].dictionary))
    return pa.DictionaryArray.from_arrays(index_array(ranks), chunks[0].dictionary.take(int64_array(used)))


def _is_compact(codes: npt.NDArray[np.int64], num_codes: int) -> bool:
    """Return whether all codes are used and first occur in ascending order."""
    # highest[k] is the largest code among rows 0 to k - 1, and -1 before the first row.
    highest = np.maximum.accumulate(np.append(-1, codes))
    return int(highest[-1]) == num_codes - 1 and bool((codes <= highest[:-1] + 1).all())


def first_uses(codes: npt.NDArray[np.int64], num_codes: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return the used codes in order of first use, and for each row the index of its code among them.

    Code -1 stands for null, and its index is -1.

    >>> first_uses(np.array([7, 2, -1, 7]), 9)
    (array([7, 2]), array([ 0,  1, -1,  0], dtype=int32))
    """
    numbers = np.arange(len(codes))
    first, ranks = np.empty(num_codes + 1, np.int64), np.empty(num_codes + 1, np.int32)  # read only where written
    first[codes[::-1]] = numbers[::-1]  # reversed, so that the first use is written last
    used = codes[(first[codes] == numbers) & (codes >= 0)]
    # Code -1 (null) indexes the last entry, whose rank is -1 as well.
    ranks[used], ranks[-1] = np.arange(len(used), dtype=np.int32), -1
    return used, ranks[codes]


def index_array(places: npt.NDArray[np.int32]) -> pa.Array:
    """Convert integers to the indices of a dictionary array; -1 is null."""
    # Wraps the NumPy buffer without a copy; [None, data] is validity bitmap and values.
    indices = pa.Array.from_buffers(_INDEX, len(places), [None, pa.py_buffer(np.ascontiguousarray(places))])
    if len(places) and places.min() < 0:
        indices = pc.if_else(pc.less(indices, 0), pa.scalar(None, _INDEX), indices)
    return indices


def int64_array(values: npt.NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _codes(column: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Return the dictionary code of each row; -1 is null."""
    return np.asarray(column.indices.fill_null(-1).to_numpy(zero_copy_only=False), np.int64)
