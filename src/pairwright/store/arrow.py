"""Lossless conversion of experiences to and from Arrow and Hugging Face datasets.

Kinds, dtypes, custom fields and arbitrary `info` survive the round trip. Columns are built directly from Arrow buffers.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa

from pairwright.errors import CorruptBytes, PairwrightError, RecordError, TableError
from pairwright.records.arrays import INTEGERS, Array, dtype_name, dtype_named
from pairwright.records.experience import EID, CustomField, Experience, SideOf, Source
from pairwright.records.json_text import from_json
from pairwright.records.messages import ErrorSite, Json, decode_messages
from pairwright.store.block import SideMeta, array_fields, place_arrays, side_of_meta
from pairwright.store.columns import ARRAY_TYPES, CONTENT, NARROW, SCHEMA
from pairwright.store.packed_arrays import Entry, Field, Packed, pack, unpack

if TYPE_CHECKING:
    import datasets

# Fixed-width Arrow type -> numpy dtype, and text type -> maximum bytes that its offsets can address
_NUMBERS = {pa.int32(): np.int32, pa.int64(): np.int64, pa.float64(): np.float64}
_MOST_BYTES = {pa.string(): 2**31 - 1, pa.large_string(): 2**62}
_BLOB_HEADER = msgspec.json.Decoder(list[Packed])
_DECODERS: dict[str, Any] = {
    "prompt": decode_messages,
    "tools": msgspec.json.Decoder(tuple[Json, ...]).decode,
    "completion": decode_messages,
    "chosen": msgspec.json.Decoder(SideMeta).decode,
    "rejected": msgspec.json.Decoder(SideMeta).decode,
    "errors": msgspec.json.Decoder(tuple[ErrorSite, ...]).decode,
    "side_of": msgspec.json.Decoder(SideOf).decode,
    "custom_fields": msgspec.json.Decoder(tuple[CustomField, ...]).decode,
    "reward_components": from_json,
    "info": from_json,
    "metrics": from_json,
    "model_version": msgspec.json.Decoder(int | str).decode,
    "prompt_text": str,
    "response_text": str,
    "kind": str,
    "reward": float,
    "prompt_length": int,
    "truncate_status": str,
}


def to_batch(experiences: Sequence[Experience]) -> pa.RecordBatch:
    """Convert experiences to one record batch with the schema of the experience table."""
    # Columns are collected in the order of SCHEMA: narrow, content, native lists, `dtypes`, `arrays`.
    arrays = [column_array(column.values(experiences), column.type) for column in (*NARROW, *CONTENT)]
    # `native`: column -> row -> array. `odd`: row -> fields of its blob, whose only record has number 0.
    native: dict[str, dict[int, Array]] = {name: {} for name in ARRAY_TYPES}
    odd: dict[int, list[Field]] = {}
    for path, rows, values in array_fields(experiences):
        for row, array in zip(rows, values, strict=True):
            if len(path) == 1 and _is_native(path[0], array):
                native[path[0]][row] = array
            else:
                odd.setdefault(row, []).append((path, [0], [array]))
    arrays += [list_column(name, rows, len(experiences)) for name, rows in native.items()]
    arrays.append(column_array(_dtypes_column(native, len(experiences)), pa.string()))
    blobs = [_blob(odd[row]) if row in odd else None for row in range(len(experiences))] if odd else None
    arrays.append(pa.array(blobs, pa.large_binary()) if blobs else pa.nulls(len(experiences), pa.large_binary()))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def from_batch(batch: pa.RecordBatch) -> list[Experience]:
    """Convert a record batch to experiences; inverts `to_batch`. Columns can be in any order; others are ignored."""
    names = set(batch.schema.names)
    missing = [name for name in ("uid", "kind") if name not in names]
    if missing:
        raise TableError(f"not experiences: no column {missing[0]!r} among {sorted(names)}")
    fields: list[dict[str, Any]] = [{"eid": EID.parse(uid)} for uid in batch.column("uid").to_pylist()]
    try:
        for name, decode in _DECODERS.items():
            if name in names:
                for values, value in zip(fields, batch.column(name).to_pylist(), strict=True):
                    if value is not None:
                        values[name] = decode(value)
        # A NaN or infinite reward is null in `reward` and stored here as text; see columns.py.
        if "reward_unscored" in names:
            for values, text in zip(fields, batch.column("reward_unscored").to_pylist(), strict=True):
                if text is not None:
                    values["reward"] = float(text)
        _read_sources(batch, names, fields)
        _read_arrays(batch, names, fields)
        return [Experience(**values) for values in fields]
    except (msgspec.MsgspecError, RecordError, CorruptBytes) as error:
        raise TableError(f"a row that is not a valid experience: {error}") from error


def to_arrow(experiences: Sequence[Experience]) -> pa.Table:
    """Convert experiences to an Arrow table with the columns of the experience table.

    Args:
        experiences: A list or tuple of experiences.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", reward=1.0)]
    >>> pw.to_arrow(runs)["reward"].to_pylist()
    [1.0]
    """
    return pa.Table.from_batches([to_batch(experiences)])


def from_arrow(table: pa.Table) -> list[Experience]:
    """Invert `to_arrow`; other columns are ignored.

    Args:
        table: An Arrow table with the columns of the experience table.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", reward=1.0)]
    >>> pw.from_arrow(pw.to_arrow(runs)) == runs
    True
    """
    # Cast to the table's column types: other tools may have changed string to large_string, for example.
    names = [name for name in SCHEMA.names if name in table.schema.names]
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return [exp for batch in table.to_batches() for exp in from_batch(batch.select(names).cast(schema))]


def to_dataset(experiences: Sequence[Experience]) -> "datasets.Dataset":
    """Convert experiences to a Hugging Face dataset with the table's columns.

    Args:
        experiences: A list or tuple of experiences.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", reward=1.0)]
    >>> pw.to_dataset(runs)["reward"][:]
    [1.0]
    """
    return import_datasets().Dataset(to_arrow(experiences))


def from_dataset(dataset: "datasets.Dataset") -> list[Experience]:
    """Invert `to_dataset`.

    Args:
        dataset: A Hugging Face dataset with the columns of the experience table.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", reward=1.0)]
    >>> pw.from_dataset(pw.to_dataset(runs)) == runs
    True
    """
    return from_arrow(dataset.with_format("arrow")[:])


def import_datasets() -> Any:
    try:
        import datasets
    except ImportError:
        raise PairwrightError("HF datasets are not installed: pip install 'pairwright[hf]'") from None
    return datasets


def _is_native(name: str, array: Array) -> bool:
    if name not in ARRAY_TYPES or array.ndim != 1:
        return False
    held, dtype = ARRAY_TYPES[name][0], dtype_name(array)
    # Tokens fit int32 and masks are 0 or 1: both are checked when a record is built.
    return dtype == held or (held in ("int32", "bool") and dtype in INTEGERS)


def column_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Convert values to an Arrow array of text (from str, or UTF-8 bytes) or of numbers; None is null."""
    first = values[0] if values else None
    # One value in all rows, such as a file name: `count` compares identities first, so this is cheap.
    if (first is None or kind not in _NUMBERS) and values.count(first) == len(values):
        return pa.nulls(len(values), kind) if first is None else _repeated(first, len(values), kind)
    try:
        return _without_nulls(values, kind, None)
    except TypeError:  # raised for None: faster than searching for it
        pass
    present = [value is not None for value in values]
    # A placeholder of the right type for each None; its validity bit is 0, so it is never read.
    absent = 0 if kind in _NUMBERS else type(values[present.index(True)])()
    # Arrow's validity bitmap: one bit per row, 1 = valid, least significant bit first.
    validity = pa.py_buffer(np.packbits(present, bitorder="little"))
    return _without_nulls([absent if value is None else value for value in values], kind, validity)


def numbers_of(column: pa.Array) -> Array:
    """Return a column of numbers without nulls as a NumPy array; `to_numpy` would try to import pandas."""
    dtype = np.dtype(_NUMBERS[column.type])
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def _without_nulls(values: Sequence[Any], kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """Build an array from values other than None and a validity bitmap; raises TypeError if a value is None."""
    if kind in _NUMBERS:
        numbers = np.array(values, _NUMBERS[kind])
        if kind == pa.float64() and np.isnan(numbers).any() and None in values:
            raise TypeError("None among floats, which numpy takes for NaN")
        return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(numbers)])
    data, lengths = _join_texts(values)
    offsets = np.zeros(len(values) + 1, np.int64)
    np.cumsum(np.fromiter(lengths, np.int64, len(values)), out=offsets[1:])
    return _text_array(data, offsets, kind, validity)


def _repeated(value: str | bytes, num_rows: int, kind: pa.DataType) -> pa.Array:
    """Build an array with one text in all rows."""
    data = value if isinstance(value, bytes) else value.encode()
    return _text_array(data * num_rows, np.arange(num_rows + 1, dtype=np.int64) * len(data), kind, None)


def _text_array(data: bytes, offsets: Array, kind: pa.DataType, validity: pa.Buffer | None) -> pa.Array:
    """Build an array of texts: value i is data[offsets[i]:offsets[i + 1]]."""
    if len(data) > _MOST_BYTES[kind]:
        raise pa.ArrowCapacityError(f"{len(data):,} bytes in one column of a batch of {kind}")
    offsets = offsets.astype(np.int32 if kind == pa.string() else np.int64, copy=False)
    return pa.Array.from_buffers(kind, len(offsets) - 1, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])


def _join_texts(values: Sequence[Any]) -> tuple[bytes, Iterator[int]]:
    """Return the concatenated bytes of all texts, and the number of bytes of each."""
    if values and isinstance(values[0], bytes):
        return b"".join(values), map(len, values)
    text = "".join(values)
    data = text.encode()
    # Equal lengths mean ASCII only: characters and bytes are equal in number, so texts need not be encoded one by one.
    return data, map(len, values if len(data) == len(text) else [value.encode() for value in values])


def list_column(name: str, rows: dict[int, Array], num_rows: int) -> pa.Array:
    """Build a native list column from the arrays of some rows; other rows are null."""
    dtype, item_type = ARRAY_TYPES[name]
    if not rows:
        return pa.nulls(num_rows, pa.list_(item_type))
    lengths = np.zeros(num_rows, np.int32)
    present = np.zeros(num_rows, bool)
    for row, array in rows.items():
        lengths[row], present[row] = array.size, True
    # `rows` is sorted, so the concatenated values match the offsets. The cast is lossless: `_is_native` accepts only
    # arrays that the column represents exactly.
    values = np.concatenate(list(rows.values()), dtype=dtype_named(dtype), casting="unsafe")
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    # From buffers, since `pa.array` would load pandas. Arrow stores booleans as bits.
    data = np.packbits(values, bitorder="little") if item_type == pa.bool_() else values
    items = pa.Array.from_buffers(item_type, len(values), [None, pa.py_buffer(data)])
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.list_(item_type), num_rows, [validity, pa.py_buffer(offsets)], children=[items])


def _dtypes_column(native: dict[str, dict[int, Array]], num_rows: int) -> list[str | None]:
    """Return the dtypes of each row that differ from the columns' dtypes, as JSON; None if none differs."""
    names: list[dict[str, str]] = [{} for _ in range(num_rows)]
    for name, rows in native.items():
        for row, array in rows.items():
            if (dtype := dtype_name(array)) != ARRAY_TYPES[name][0]:
                names[row][name] = dtype
    return [msgspec.json.encode(row).decode() if row else None for row in names]


def _blob(fields: list[Field]) -> bytes:
    columns, data = pack(fields)
    header = msgspec.json.encode(columns)
    # Blob: length of the header (4 bytes, little-endian), header as JSON, packed columns.
    return b"".join((len(header).to_bytes(4, "little"), header, *data))


def _read_blob(blob: bytes) -> Iterator[Entry]:
    size = int.from_bytes(blob[:4], "little")
    if len(blob) < 4 + size:
        raise CorruptBytes(f"column arrays: a header of {size} bytes in {len(blob)}")
    return unpack(_BLOB_HEADER.decode(blob[4 : 4 + size]), memoryview(blob)[4 + size :])


def _read_sources(batch: pa.RecordBatch, names: set[str], fields: list[dict[str, Any]]) -> None:
    if not {"source", "source_line", "source_format"} <= names:
        return
    columns = (batch.column(name).to_pylist() for name in ("source", "source_line", "source_format"))
    for values, file, line, format_name in zip(fields, *columns, strict=True):
        if file is not None:
            values["source"] = Source(file=file, line=line, format=format_name)


def _read_arrays(batch: pa.RecordBatch, names: set[str], fields: list[dict[str, Any]]) -> None:
    """Add the arrays of list columns and blobs to the fields of each row, and build the sides of preferences."""
    dtypes = batch.column("dtypes").to_pylist() if "dtypes" in names else [None] * len(fields)
    for name in ARRAY_TYPES:
        if name in names:
            for row, array in _list_values(batch.column(name), name):
                own_dtype = dtypes[row]
                dtype = msgspec.json.decode(own_dtype, type=dict[str, str]).get(name) if own_dtype is not None else None
                fields[row][name] = array if dtype is None else array.astype(dtype_named(dtype))
    entries: list[Entry] = []
    if "arrays" in names:
        for row, blob in enumerate(batch.column("arrays").to_pylist()):
            if blob is not None:
                entries += [(path, row, array) for path, _, array in _read_blob(blob)]
    # `place_arrays` needs existing keys for multi-modal inputs; in a table, only the blob names them.
    for path, row, _ in entries:
        if path[0] == "multi_modal_inputs":
            fields[row].setdefault("multi_modal_inputs", {})[path[1]] = None
    metas = {name: [values.pop(name, None) for values in fields] for name in ("chosen", "rejected")}
    sides = place_arrays(fields, entries)
    for name, column in metas.items():
        for row, meta in enumerate(column):
            if meta is not None:
                fields[row][name] = side_of_meta(meta, sides[name].get(row, {}))


def _list_values(column: pa.Array, name: str) -> Iterable[tuple[int, Array]]:
    if column.null_count == len(column):
        return
    # `values` ignores slicing and `offsets` are absolute, so both also match for slices.
    offsets = column.offsets.to_numpy(zero_copy_only=False)
    values = column.values.to_numpy(zero_copy_only=False)
    if values.dtype == object:  # a null inside a list
        raise CorruptBytes(f"column {name}: a list with a null value")
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    for row in np.flatnonzero(valid).tolist():
        yield row, values[offsets[row] : offsets[row + 1]]
