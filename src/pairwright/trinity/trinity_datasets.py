"""Experiences as Hugging Face datasets, both ways, in Trinity's columns: what either writes, the other reads.

A column more, `pairwright`, is JSON text with the type, the dtypes and the fields that Arrow would change (a dict gets
the keys of all rows); Trinity does not read it. Without it, a dataset of Trinity's is read as Trinity reads it, in the
dtypes of its columns.
"""

import json
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch

from pairwright.errors import RecordError
from pairwright.records.messages import Json
from pairwright.store.arrow import import_datasets
from pairwright.trinity.trinity_experience import TENSORS, CustomField, Experience

if TYPE_CHECKING:
    import datasets

OURS = "pairwright"
# Fields of nested values, which Arrow keeps only if all rows have the same keys.
_NESTED = ("info", "metrics", "messages", "tools", "chosen_messages", "rejected_messages")


def to_hf_datasets(experiences: Sequence[Experience]) -> "datasets.Dataset":
    """A dataset with Trinity's columns.

    >>> exp = Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)
    >>> from_hf_datasets(to_hf_datasets([exp])) == [exp]
    True
    """
    for exp in experiences:
        exp.check()
    columns: dict[str, pa.Array] = {}
    for item in fields(Experience):
        values = [getattr(exp, item.name) for exp in experiences]
        try:
            columns[item.name] = _tensor_column(values) if item.name in TENSORS else _plain_column(item.name, values)
        except pa.ArrowException as error:
            raise RecordError(item.name, str(error).partition("\n")[0], "values of one type in all rows") from None
    try:
        columns[OURS] = pa.array([json.dumps(_unchanged(exp)) for exp in experiences], pa.string())
    except TypeError as error:
        raise RecordError("info, metrics, messages or tools", str(error), "values that JSON has") from None
    return import_datasets().Dataset(pa.table(columns))


def from_hf_datasets(dataset: "datasets.Dataset") -> list[Experience]:
    """The experiences of a dataset that `to_hf_datasets`, ours or Trinity's, has made."""
    types = {item.name: _element_dtype(item.type) for item in dataset.data.schema if item.name in TENSORS}
    known = {item.name for item in fields(Experience)}
    experiences = []
    for row in dataset.to_list():
        ours: Json = json.loads(row[OURS]) if row.get(OURS) else {}
        values = {name: value for name, value in row.items() if name in known and value is not None}
        values |= ours.get("fields", {})
        for name in TENSORS:
            if name in values:
                dtype = getattr(torch, ours["dtypes"][name]) if name in ours.get("dtypes", {}) else types[name]
                values[name] = torch.tensor(values[name], dtype=dtype)
        # The mask of a single turn stands in Trinity's column, where it would make several turns of it.
        if ours.get("experience_type") == "single_turn":
            values.pop("action_mask", None)
        values["custom_fields"] = [CustomField.from_dict(item) for item in values.get("custom_fields", [])]
        modal = values.get("multi_modal_inputs")
        if modal is not None:
            values["multi_modal_inputs"] = _modal_tensors(modal, ours.get("modal", {}))
        experiences.append(Experience(**values))
    return experiences


def _unchanged(exp: Experience) -> Json:
    """What Arrow would change."""
    tensors = {name: value for name in TENSORS if (value := getattr(exp, name)) is not None}
    modal = exp.multi_modal_inputs or {}
    return {
        "experience_type": exp.experience_type,
        "dtypes": {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()},
        "modal": {key: str(value.dtype).removeprefix("torch.") for key, value in modal.items()},
        "fields": {name: value for name in _NESTED if (value := getattr(exp, name)) is not None},
    }


def _tensor_column(values: list[torch.Tensor | None]) -> pa.Array:
    """Nested lists in the dtype that holds the values of all rows."""
    present = [value for value in values if value is not None]
    if not present:
        return pa.nulls(len(values))
    dtype = present[0].dtype
    for value in present[1:]:
        dtype = torch.promote_types(dtype, value.dtype)
    # Arrow has no bfloat16; float32 holds its values, and `dtypes` says what they were.
    kind = pa.float32() if dtype is torch.bfloat16 else pa.from_numpy_dtype(torch.empty(0, dtype=dtype).numpy().dtype)
    for _ in range(present[0].ndim):
        kind = pa.list_(kind)
    return pa.array([None if value is None else value.detach().cpu().tolist() for value in values], kind)


def _plain_column(name: str, values: list[Any]) -> pa.Array:
    if name == "eid":
        values = [value.to_dict() for value in values]
    elif name == "custom_fields":
        values = [[item.to_dict() for item in value] for value in values]
    elif name == "multi_modal_inputs":
        values = [None if value is None else {key: item.tolist() for key, item in value.items()} for value in values]
    return pa.array(values)


def _element_dtype(kind: pa.DataType) -> torch.dtype | None:
    while isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    return torch.from_numpy(pa.array([], kind).to_numpy(zero_copy_only=False).copy()).dtype


def _modal_tensors(modal: Json, dtypes: dict[str, str]) -> dict[str, torch.Tensor] | None:
    tensors = {
        key: torch.tensor(value, dtype=getattr(torch, dtypes[key]) if key in dtypes else None)
        for key, value in modal.items()
        if value is not None
    }
    return tensors or None
