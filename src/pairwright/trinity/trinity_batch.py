"""Trinity's batches: experiences as rectangular tensors, with prompts padded on the left and responses on the right;
grouping by task, run or step; and Hugging Face datasets of experiences. A length mismatch is an error.

Shapes: B experiences, P the longest prompt, R the longest response.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
import torch
from torch import Tensor

from pairwright.errors import RecordError
from pairwright.records.messages import Json
from pairwright.sources.rollouts.safe_pickle import as_plain
from pairwright.store.arrow import import_datasets
from pairwright.trinity.trinity_experience import EID, MULTI_MODAL, TENSORS, CustomField, Experience, restore

if TYPE_CHECKING:
    import datasets

_KEYS: dict[str, Callable[[EID], tuple[str, tuple[Any, ...]]]] = {
    "task": lambda eid: (eid.tid, (eid.batch, eid.task)),
    "run": lambda eid: (eid.rid, (eid.batch, eid.task, eid.run)),
    "step": lambda eid: (eid.sid, (eid.batch, eid.task, eid.step)),
}


@dataclass
class Experiences:
    """A batch. Fields that some experiences lack are None; custom fields are attributes under their own names.

    tokens, attention_masks                                         (B, P + R)
    action_masks, logprobs, token_level_rewards, advantages,
    returns, teacher_logprobs                                       (B, R)
    rewards                                                         (B,)
    """

    eids: list[EID]
    tokens: Tensor
    rewards: Tensor | None
    token_level_rewards: Tensor | None
    advantages: Tensor | None
    returns: Tensor | None
    attention_masks: Tensor
    action_masks: Tensor | None
    prompt_length: int
    logprobs: Tensor | None
    multi_modal_inputs: dict[str, list[Tensor]] | None
    custom_fields: list[str] = field(default_factory=list)
    teacher_logprobs: Tensor | None = None

    @property
    def batch_size(self) -> int:
        return len(self.tokens)

    @classmethod
    def gather_experiences(
        cls, experiences: list[Experience], pad_token_id: int = 0, custom_fields: list[CustomField] | None = None
    ) -> "Experiences":
        """Pad experiences to one batch; preferences are split first, chosen before rejected.

        >>> batch = Experiences.gather_experiences([Experience(tokens=[1, 2], prompt_length=1),
        ...                                         Experience(tokens=[3, 4, 5], prompt_length=2)])
        >>> batch.tokens.tolist(), batch.prompt_length
        ([[0, 1, 2], [3, 4, 5]], 2)
        """
        if not experiences:
            return empty_experiences(custom_fields)
        if experiences[0].experience_type == "dpo":
            experiences = split_dpo_experience_to_single_turn(experiences)
        # Columns: P for prompts, padded on the left, then R for responses, padded on the right.
        prompt = max(exp.prompt_length for exp in experiences)
        response = max(len(exp.tokens) - exp.prompt_length for exp in experiences)

        def gather(name: str) -> Tensor | None:
            if any(getattr(exp, name) is None for exp in experiences):
                return None
            return gather_response_attrs(experiences, name, response)

        # A mean over a batch with missing rewards would be silently wrong.
        rewards = [exp.reward for exp in experiences]
        if None in rewards and rewards.count(None) < len(rewards):
            raise RecordError("reward", None, "a reward on all experiences of a batch, or on none")
        has_modal = all(exp.multi_modal_inputs is not None for exp in experiences)
        batch = cls(
            eids=[exp.eid for exp in experiences],
            tokens=gather_token_ids(experiences, prompt, response, pad_token_id),
            rewards=None if rewards[0] is None else torch.tensor(rewards, dtype=torch.float),
            token_level_rewards=gather("token_level_reward"),
            advantages=gather("advantages"),
            returns=gather("returns"),
            attention_masks=gather_attention_masks(experiences, prompt, response),
            action_masks=gather_action_masks(experiences, response),
            prompt_length=prompt,
            logprobs=gather("logprobs"),
            multi_modal_inputs=gather_multi_modal_inputs(experiences) if has_modal else None,
            teacher_logprobs=gather("teacher_logprobs"),
        )
        for item in custom_fields or []:
            values = [exp.info[item.source_field] for exp in experiences]
            batch.custom_fields.append(item.destination_field)
            setattr(batch, item.destination_field, torch.tensor(values, dtype=item.data_type))
        return batch


def empty_experiences(custom_fields: list[CustomField] | None = None) -> Experiences:
    floats, masks = torch.empty(0), torch.empty(0, dtype=torch.bool)
    batch = Experiences(
        eids=[],
        tokens=torch.empty(0, dtype=torch.int32),
        rewards=floats,
        token_level_rewards=floats,
        advantages=floats,
        returns=floats,
        attention_masks=masks,
        action_masks=masks,
        prompt_length=0,
        logprobs=floats,
        multi_modal_inputs={},
    )
    for item in custom_fields or []:
        batch.custom_fields.append(item.destination_field)
        setattr(batch, item.destination_field, torch.empty(0, dtype=item.data_type))
    return batch


def gather_token_ids(
    experiences: Sequence[Experience], max_prompt_length: int, max_response_length: int, pad_token_id: int
) -> Tensor:
    """Return token ids (B, P + R): every response begins in column P."""
    # A batch may have ids of several dtypes; the widest is used.
    dtype = _promote([exp.tokens.dtype for exp in experiences])
    rows = torch.full((len(experiences), max_prompt_length + max_response_length), pad_token_id, dtype=dtype)
    for row, exp in zip(rows, experiences, strict=True):
        start = _start_of(exp, max_prompt_length, max_response_length)
        row[start : start + len(exp.tokens)] = exp.tokens
    return rows


def gather_attention_masks(
    experiences: Sequence[Experience], max_prompt_length: int, max_response_length: int
) -> Tensor:
    """Return a mask (B, P + R) that is True at every token."""
    masks = torch.zeros((len(experiences), max_prompt_length + max_response_length), dtype=torch.bool)
    for row, exp in zip(masks, experiences, strict=True):
        start = _start_of(exp, max_prompt_length, max_response_length)
        row[start : start + len(exp.tokens)] = True
    return masks


def gather_action_masks(experiences: Sequence[Experience], max_response_length: int) -> Tensor:
    """Return a mask (B, R) that is True at every generated token."""
    return gather_response_attrs(experiences, "action_mask", max_response_length)


def gather_response_attrs(
    experiences: Sequence[Experience], attr_name: str, max_response_length: int, pad_value: float = 0
) -> Tensor:
    """Return a field over the response as one tensor (B, R, ...), padded on the right."""
    values = [getattr(exp, attr_name) for exp in experiences]
    for exp, value in zip(experiences, values, strict=True):
        exp.check()
        if value is None:
            raise RecordError(attr_name, None, f"a tensor on every experience; {exp.eid.uid} has none")
        if len(value) > max_response_length:
            raise RecordError("max_response_length", max_response_length, f"at least {len(value)}")
    # Values per token may have further dimensions, such as the top k log-probabilities.
    shape = (len(values), max_response_length, *values[0].shape[1:])
    rows = torch.full(shape, pad_value, dtype=_promote([value.dtype for value in values]))
    for number, value in enumerate(values):
        rows[number, : len(value)] = value  # by index: assignment to a row view fails for values that require gradients
    return rows


def gather_multi_modal_inputs(experiences: Sequence[Experience]) -> dict[str, list[Tensor]]:
    """Return for each key of the first experience the tensors of all experiences."""
    inputs = [exp.multi_modal_inputs or {} for exp in experiences]
    for exp, values in zip(experiences, inputs, strict=True):
        if values.keys() != inputs[0].keys():
            expected = f"the keys {sorted(inputs[0])}, as the first experience has them"
            raise RecordError(f"multi_modal_inputs of {exp.eid.uid}", sorted(values), expected)
    return {key: [values[key] for values in inputs] for key in inputs[0]}


def group_by(experiences: Sequence[Experience], id_type: Literal["task", "run", "step"]) -> dict[str, list[Experience]]:
    """Group experiences by task (tid), run (rid) or step (sid). Different ids with the same key are refused: keys are
    joined with "/", which the name of a batch or task may contain."""
    if id_type not in _KEYS:
        raise ValueError(f"Unknown id_type: {id_type}")
    groups: dict[str, list[Experience]] = {}
    parts_of: dict[str, tuple[Any, ...]] = {}
    for exp in experiences:
        key, parts = _KEYS[id_type](exp.eid)
        if parts_of.setdefault(key, parts) != parts:
            raise RecordError("eid", parts, f"an id whose key differs from {key!r}, the key of {parts_of[key]}")
        groups.setdefault(key, []).append(exp)
    return groups


def split_dpo_experience_to_single_turn(experiences: Sequence[Experience]) -> list[Experience]:
    """Convert every preference to two single turns, chosen before rejected."""
    turns = []
    for exp in experiences:
        for side, messages in ((exp.chosen, exp.chosen_messages), (exp.rejected, exp.rejected_messages)):
            if side is None:
                raise RecordError("chosen, rejected", None, f"both sides on {exp.eid.uid}")
            # A new suffix: the two sides are two experiences.
            eid = exp.eid
            turns.append(
                Experience(
                    eid=EID(batch=eid.batch, task=eid.task, run=eid.run, step=eid.step),
                    tokens=torch.cat([exp.tokens, side]),
                    reward=exp.reward,
                    info=exp.info,
                    metrics=exp.metrics,
                    prompt_length=len(exp.tokens),
                    prompt_text=exp.prompt_text,
                    messages=messages,
                )
            )
    return turns


def _start_of(exp: Experience, max_prompt_length: int, max_response_length: int) -> int:
    """Return the column of the first token; raises RecordError if prompt or response exceeds its maximum length."""
    for name, most, length in (
        ("max_prompt_length", max_prompt_length, exp.prompt_length),
        ("max_response_length", max_response_length, len(exp.tokens) - exp.prompt_length),
    ):
        if length > most:
            raise RecordError(name, most, f"at least {length}, as {exp.eid.uid} has")
    return max_prompt_length - exp.prompt_length


def _promote(dtypes: list[torch.dtype]) -> torch.dtype:
    """Return the dtype that can represent the values of all."""
    return reduce(torch.promote_types, dtypes)


OURS = "pairwright"
"""Column with JSON text of what Arrow would change: the type, dtypes, empty shapes, ids, rewards and nested fields (a
dict would get the keys of all rows). Trinity ignores the column; a dataset without it is read as Trinity would."""
_CONVERSATIONS = ("messages", "chosen_messages", "rejected_messages")
_EXACT = ("reward", "info", "metrics", "tools", *_CONVERSATIONS)


def to_hf_datasets(experiences: Sequence[Experience]) -> "datasets.Dataset":
    """Return a dataset with Trinity's columns.

    If rows differ, a column has their common type: text for the batch or task of an id, float for rewards, content
    parts for the content of messages. Raises RecordError that names the rows without a common type.

    >>> exp = Experience(tokens=[1, 2, 3], prompt_length=1, reward=1.0)
    >>> from_hf_datasets(to_hf_datasets([exp])) == [exp]
    True
    """
    for exp in experiences:
        exp.check()
    exact = [_exact_fields(exp, number) for number, exp in enumerate(experiences)]
    columns: dict[str, pa.Array] = {}
    for item in fields(Experience):
        name = item.name
        if name in TENSORS:
            columns[name] = _tensor_column(name, [getattr(exp, name) for exp in experiences])
            continue
        values = [
            row["eid"] if name == "eid" else row["fields"].get(name) if name in _EXACT else _plain_value(exp, name)
            for exp, row in zip(experiences, exact, strict=True)
        ]
        columns[name] = _column(name, _with_common_type(name, values), None)
    columns[OURS] = pa.array([json.dumps(row) for row in exact], pa.string())
    return import_datasets().Dataset(pa.table(columns))


def from_hf_datasets(dataset: "datasets.Dataset") -> list[Experience]:
    """Return the experiences of a dataset made by `to_hf_datasets`, ours or Trinity's."""
    types = {item.name: _element_dtype(item.type) for item in dataset.data.schema if item.name in TENSORS}
    known = {item.name for item in fields(Experience)}
    experiences = []
    for row in dataset.to_list():
        ours: Json = json.loads(row[OURS]) if row.get(OURS) else {}
        values = {name: value for name, value in row.items() if name in known and value is not None}
        values |= {**ours.get("fields", {}), **({"eid": ours["eid"]} if "eid" in ours else {})}
        dtypes = {**types, **{name: getattr(torch, dtype) for name, dtype in ours.get("dtypes", {}).items()}}
        shapes = ours.get("shapes", {})
        values |= {name: _tensor(values[name], dtypes[name], shapes.get(name)) for name in TENSORS if name in values}
        values["custom_fields"] = [CustomField.from_dict(item) for item in values.get("custom_fields", [])]
        if values.get("multi_modal_inputs") is not None:
            tensors = {
                key: _tensor(value, dtypes.get(f"{MULTI_MODAL}{key}"), shapes.get(f"{MULTI_MODAL}{key}"))
                for key, value in values["multi_modal_inputs"].items()
                if value is not None
            }
            values["multi_modal_inputs"] = tensors or None
        experiences.append(restore(ours.get("experience_type"), values))
    return experiences


def _exact_fields(exp: Experience, number: int) -> Json:
    """Return the content of the column `OURS`; raises RecordError that names a non-JSON value and its row."""
    tensors = {name: value for name in TENSORS if (value := getattr(exp, name)) is not None}
    tensors |= {f"{MULTI_MODAL}{key}": value for key, value in (exp.multi_modal_inputs or {}).items()}
    where = f"row {number} ({exp.eid.uid})"
    exact = {
        "experience_type": exp.experience_type,
        "eid": as_plain(exp.eid.to_dict(), f"{where}: eid"),
        "dtypes": {name: str(value.dtype).removeprefix("torch.") for name, value in tensors.items()},
        "shapes": {name: list(value.shape) for name, value in tensors.items() if not value.numel()},
        "fields": {
            name: as_plain(value, f"{where}: {name}") for name in _EXACT if (value := getattr(exp, name)) is not None
        },
    }
    try:
        json.dumps(exact)
    except (TypeError, ValueError) as error:
        raise RecordError(where, str(error), "JSON values") from None
    return exact


def _plain_value(exp: Experience, name: str) -> Any:
    value = getattr(exp, name)
    if name == "custom_fields":
        return [item.to_dict() for item in value]
    if name == "multi_modal_inputs" and value is not None:
        return {key: item.detach().cpu().tolist() for key, item in value.items()}
    return value


def _with_common_type(name: str, values: list[Any]) -> list[Any]:
    """Convert values to one type, for fields in which rows may differ."""
    if name == "eid":
        for key in ("batch", "task"):
            if len({type(value[key]) for value in values}) > 1:
                values = [{**value, key: str(value[key])} for value in values]
    elif name == "reward":
        values = [None if value is None else float(value) for value in values]
    elif name in _CONVERSATIONS:
        messages = [message for value in values for message in value or []]
        kinds = {type(message.get("content")) for message in messages} - {type(None)}
        if kinds == {str, list}:
            values = [value and [_with_parts(message) for message in value] for value in values]
    return values


def _with_parts(message: Json) -> Json:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}]} if isinstance(content, str) else message


def _tensor_column(name: str, values: list[Tensor | None]) -> pa.Array:
    """Return tensors as nested lists, in a dtype that can represent the values of all rows."""
    present = [value for value in values if value is not None]
    if not present:
        return pa.nulls(len(values))
    dtype = _promote([value.dtype for value in present])
    # Arrow has no bfloat16: stored as float32, and `dtypes` has the original dtype.
    kind = pa.float32() if dtype is torch.bfloat16 else pa.from_numpy_dtype(torch.empty(0, dtype=dtype).numpy().dtype)
    for _ in range(present[0].ndim):
        kind = pa.list_(kind)
    return _column(name, [None if value is None else value.detach().cpu().tolist() for value in values], kind)


def _column(name: str, values: list[Any], kind: pa.DataType | None) -> pa.Array:
    """Return an Arrow column; raises RecordError that names two rows without a common type."""
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError) as error:
        reason = str(error).partition("\n")[0]
    # The first row that is incompatible with earlier rows, and the first earlier row that it conflicts with.
    last = bisect_left(range(len(values)), True, key=lambda number: not _fits(values[: number + 1], kind))
    first = next((number for number in range(last) if not _fits([values[number], values[last]], kind)), None)
    rows = f"row {last}" if first is None else f"rows {first} and {last}"
    raise RecordError(f"{name} of {rows}", reason, "values of one type in all rows")


def _fits(values: list[Any], kind: pa.DataType | None) -> bool:
    try:
        pa.array(values, kind)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _tensor(value: Any, dtype: torch.dtype | None, shape: list[int] | None) -> Tensor:
    tensor = torch.tensor(value, dtype=dtype)
    return tensor if shape is None else tensor.reshape(shape)  # an empty list loses its shape


def _element_dtype(kind: pa.DataType) -> torch.dtype | None:
    while isinstance(kind, pa.ListType | pa.LargeListType | pa.FixedSizeListType):
        kind = kind.value_type
    if pa.types.is_null(kind):
        return None
    return torch.from_numpy(pa.array([], kind).to_numpy(zero_copy_only=False).copy()).dtype
