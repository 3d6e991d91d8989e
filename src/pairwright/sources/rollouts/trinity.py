"""Trinity data: serialized experiences (`TRXP` bytes or whole pickles), and JSON Lines with these rows:

    {eid, type, messages, reward, ...}             an experience from `to_dict`; fields as in the bytes, without tensors
    {messages: JSON text, tools: JSON text}        a conversation; the prompt ends before the first assistant turn
    {prompt, answer1, answer2, ...}                unjudged answers: one unscored experience each, all of one task
    {system, prompt, chosen, rejected}             plaintext for DPO; only if the format is given by name, since TRL
                                                   uses the same keys. Trinity renders the texts as chat turns

`loads_trinity` reads the bytes.
"""

import struct
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import numpy as np
import safetensors

from pairwright.errors import CodecError, CorruptBytes, ForeignBytes, RecordError, TruncatedBytes
from pairwright.records.arrays import Array, dtype_named
from pairwright.records.experience import EID, CustomField, Experience, Kind, Side, Source
from pairwright.records.messages import TEXT, Json, Message, message_of_ids
from pairwright.sources.assemble import Parts, split_at_first_answer
from pairwright.sources.datasets.preference_rows import (
    SCORES,
    answer_from,
    conversations_from,
    is_preference_row,
    preference_of_row,
    prompt_from,
    split_sides,
)
from pairwright.sources.datasets.row_names import PREFERENCES, plain_name
from pairwright.sources.fields import (
    BadRecord,
    filled,
    items,
    json_value,
    mapping,
    optional_mapping,
    optional_objects,
    optional_text,
    small_fields,
    text,
)
from pairwright.sources.format import Format, Options, Origin, Rejected
from pairwright.sources.rollouts.safe_pickle import Foreign, Held, Holders, Loaded, PickledTensor, holder, load
from pairwright.sources.shapes.chat_messages import messages_from_chat, tools_from_chat
from pairwright.sources.shapes.row_fields import reward_of, task_of, tools_of
from pairwright.sources.shapes.tool_errors import error_sites, result_error_kind

NAME = "trinity"
_KINDS = ("single_turn", "multi_turn", "dpo")
_READ = frozenset({"system", "prompt", "chosen", "rejected", "tools", *SCORES})
_Built = TypeVar("_Built")
MAGIC = b"TRXP"
VERSION = 1
# Magic, version, length of the metadata (a pickle), length of the tensors (safetensors).
HEADER = struct.Struct("<4sBQQ")
_MODULES = ("trinity.common.experience", "pairwright.trinity.trinity_experience")  # modules of pickled experiences
# Arrays with one value per response token.
_RESPONSE = ("logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs")
_TENSOR_FIELDS = ("tokens", "action_mask", "chosen", "rejected", "routed_experts", *_RESPONSE)
_MULTI_MODAL = "multi_modal_inputs:"
# Dtype name in safetensors -> numpy
_DTYPES = {
    "BOOL": "bool", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64", "U8": "uint8", "U16": "uint16",
    "U32": "uint32", "U64": "uint64", "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
}  # fmt: skip
_TRUNCATIONS = (None, "prompt_truncated", "response_truncated")


class BadItem(msgspec.Struct, frozen=True):
    """An unreadable record of a payload: its number (from 0), the total number of records, and the error."""

    number: int
    total: int
    error: Exception

    @property
    def reason(self) -> str:
        return f"{self.error} (record {self.number} of {self.total}, from 0)"


def loads_trinity(data: bytes, *, on_bad: Callable[[BadItem], None] | None = None) -> list[Experience]:
    """Return the experiences of a payload; CodecError for unreadable bytes, RecordError for invalid records.

    Args:
        data: Output of Trinity's `Experience.serialize` or `serialize_many`. No code in it is executed.
        on_bad: Called with each unreadable record; the others are returned. Without it, the first unreadable record
            raises its error.

    >>> import pairwright as pw
    >>> try:
    ...     pw.loads_trinity(b"nonsense")
    ... except pw.CodecError:
    ...     print("not Trinity's bytes")
    not Trinity's bytes
    """
    experiences = []
    for item in read_payload(data):
        if isinstance(item, Experience):
            experiences.append(item)
        elif on_bad is not None:
            on_bad(item)
        elif isinstance(item.error, CodecError | RecordError):
            raise item.error
        else:
            raise CorruptBytes(f"metadata: {item.reason}") from None
    return experiences


def read_payload(data: bytes) -> Iterator[Experience | BadItem]:
    """Yield the records of a payload in order; raise CodecError if the payload as a whole is unreadable."""
    yield from read_items(data, experience_from_fields)


def read_items(data: bytes, build: Callable[[Json, dict[str, Array]], _Built]) -> Iterator[_Built | BadItem]:
    """Yield `build(fields, arrays)` for each record, and BadItem for records that it refuses."""
    if not data.startswith(MAGIC):
        loaded, rows, tensors = *_whole_pickle(data), {}
    else:
        metadata, tensor_bytes = _split(data)
        loaded = load(metadata)
        rows, tensors = _rows(loaded), _tensors(tensor_bytes)
    # Tensors are named "<record number>:<field>"; group them by record.
    by_item: list[dict[str, Array | CorruptBytes]] = [{} for _ in rows]
    for name, array in tensors.items():
        number, _, field = name.partition(":")
        if not number.isascii() or not number.isdigit() or len(number) > 9 or int(number) >= len(rows):
            raise CorruptBytes(f"tensor {name!r}: no item of this number among {len(rows)}")
        by_item[int(number)][field] = array
    # A bad record does not prevent reading the others.
    for place, (row, arrays) in enumerate(zip(rows, by_item, strict=True)):
        try:
            for array in arrays.values():
                if isinstance(array, CorruptBytes):
                    raise array
            known = {name: array for name, array in arrays.items() if not isinstance(array, CorruptBytes)}
            if isinstance(row, Held):
                row, known = _split_pickled(row)
            yield build(mapping(loaded.plain(row), "record"), known)
        except (BadRecord, CodecError, RecordError) as error:
            yield BadItem(place, len(rows), error)
        except (OverflowError, RecursionError, UnicodeError, msgspec.MsgspecError) as error:
            yield BadItem(place, len(rows), BadRecord(f"a value that JSON cannot hold: {error}"))


def experience_from_fields(row: Json, arrays: dict[str, Array]) -> Experience:
    """Build an experience from the fields of Trinity's Experience class and its tensors (`arrays`)."""
    info = dict(optional_mapping(row.get("info"), "info"))
    truncate_status = row.get("truncate_status")
    # An unknown status is kept in `info`.
    if truncate_status not in _TRUNCATIONS:
        info["truncate_status"], truncate_status = truncate_status, None
    eid = optional_mapping(row.get("eid"), "eid")
    common: Json = {
        "eid": EID(**filled({key: eid.get(key) for key in ("batch", "task", "run", "step", "suffix")})),
        "tools": tuple(tools_from_chat(row.get("tools"), "tools")),
        "reward": row.get("reward"),
        "truncate_status": truncate_status,
        "info": info,
        "metrics": optional_mapping(row.get("metrics"), "metrics"),
        "prompt_text": optional_text(row.get("prompt_text"), "prompt_text"),
        "response_text": optional_text(row.get("response_text"), "response_text"),
        "custom_fields": _custom_fields(row.get("custom_fields")),
        "routed_experts": arrays.get("routed_experts"),
        "multi_modal_inputs": {
            name.removeprefix(_MULTI_MODAL): array for name, array in arrays.items() if name.startswith(_MULTI_MODAL)
        },
    }
    sides = [row.get("chosen_messages"), row.get("rejected_messages")]
    # Bytes store both sides as tokens; JSON Lines have no tensors and store the sides as messages.
    if ("chosen" in arrays and "rejected" in arrays) or (not arrays and all(sides)):
        return _preference(row, arrays, common)
    messages = messages_from_chat(row["messages"], "messages") if row.get("messages") else []
    prompt, completion = split_at_first_answer(messages)
    # Bytes without the type have a mask only for multi-turn records; whole pickles have both.
    kind = row.get("experience_type") or row.get("type") or ("multi_turn" if "action_mask" in arrays else "single_turn")
    response: Json = {field: arrays.get(field) for field in ("tokens", "action_mask", *_RESPONSE)}
    return Experience(
        kind=Kind.MULTI_TURN if kind == "multi_turn" else Kind.SINGLE_TURN,
        prompt=tuple(prompt),
        completion=tuple(completion),
        errors=tuple(error_sites(messages, list(common["tools"]), result_error_kind)),
        prompt_length=row.get("prompt_length", 1) if "tokens" in arrays else None,
        **common,
        **response,
    )


def _preference(row: Json, arrays: dict[str, Array], common: Json) -> Experience:
    """Build a preference: the shared prompt, and each side with its tokens."""
    prompt: list[Message] = []
    chosen: list[Message] = []
    rejected: list[Message] = []
    if row.get("chosen_messages") and row.get("rejected_messages"):
        prompt, chosen, rejected = split_sides(
            messages_from_chat(row["chosen_messages"], "chosen_messages"),
            messages_from_chat(row["rejected_messages"], "rejected_messages"),
        )
    elif row.get("messages"):
        prompt = messages_from_chat(row["messages"], "messages")
    if "tokens" in arrays and not prompt and not common["prompt_text"]:
        prompt = [message_of_ids(arrays["tokens"].tolist())]
    if "chosen" in arrays and "rejected" in arrays and not chosen:
        # Sides without messages: only their ids can be compared and trained.
        role = prompt[0].role if prompt and prompt[0].role == TEXT else "assistant" if prompt else TEXT
        chosen, rejected = (
            [message_of_ids(arrays[side].tolist(), role, generated=True)] for side in ("chosen", "rejected")
        )
    # Per-token values of a preference are not assigned to a side.
    unused = [field for field in ("action_mask", *_RESPONSE) if field in arrays]
    if unused:
        common["info"]["arrays_dropped"] = unused
    return Experience(
        kind=Kind.PREFERENCE,
        prompt=tuple(prompt),
        chosen=Side(messages=tuple(chosen), tokens=arrays.get("chosen")),
        rejected=Side(messages=tuple(rejected), tokens=arrays.get("rejected")),
        tokens=arrays.get("tokens"),
        **common,
    )


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Split a payload into metadata and tensor bytes, checking the lengths in the header."""
    if len(data) < HEADER.size:
        raise TruncatedBytes(f"header: {len(data)} bytes, expected {HEADER.size}")
    _, version, metadata_length, tensor_length = HEADER.unpack_from(data)
    if version != VERSION:
        raise ForeignBytes(f"header: version {version}, expected {VERSION}")
    expected = HEADER.size + metadata_length + tensor_length
    if len(data) < expected:
        raise TruncatedBytes(f"payload: {len(data)} bytes, and the header promises {expected}")
    if len(data) > expected:
        raise CorruptBytes(f"payload: {len(data)} bytes, and the header accounts for {expected}")
    split = HEADER.size + metadata_length
    return data[HEADER.size : split], data[split:]


def _rows(loaded: Loaded) -> list[Any]:
    """Return the items of the metadata, not yet converted to plain values."""
    metadata = loaded.value
    if isinstance(metadata, Foreign) or not isinstance(metadata, dict):
        metadata = loaded.plain(metadata)
    try:
        rows = items(mapping(metadata, "metadata").get("items"), "items")
    except BadRecord as error:
        raise CorruptBytes(f"metadata: {error}") from None
    if metadata.get("num_items", len(rows)) != len(rows):
        raise CorruptBytes(f"metadata: {len(rows)} items, and num_items is {metadata['num_items']!r}")
    return rows


def _tensors(data: bytes) -> dict[str, Array | CorruptBytes]:
    try:
        stored = safetensors.deserialize(data)  # type: ignore[no-untyped-call]
    except safetensors.SafetensorError as error:
        raise CorruptBytes(f"tensors: {error}") from None
    arrays: dict[str, Array | CorruptBytes] = {}
    for name, tensor in stored:
        if tensor["dtype"] not in _DTYPES:
            arrays[name] = CorruptBytes(
                f"tensor {name!r}: dtype {tensor['dtype']!r}, expected one of {', '.join(_DTYPES)}"
            )
            continue
        if tensor["dtype"] == "BOOL":  # untrusted bools may have any byte
            array = np.frombuffer(tensor["data"], dtype=np.uint8) != 0
        else:
            array = np.frombuffer(tensor["data"], dtype=dtype_named(_DTYPES[tensor["dtype"]]))
        arrays[name] = array.reshape(tensor["shape"])
    return arrays


def _whole_pickle(data: bytes) -> tuple[Loaded, list[Any]]:
    if not data.startswith(b"\x80"):
        raise ForeignBytes(f"payload: begins with {data[:4]!r}, expected {MAGIC!r} or a pickle")
    names = ("EID", "Experience", "CustomField")
    holders: Holders = {(module, name): holder(name) for module in _MODULES for name in names}
    loaded = load(data, holders)
    return loaded, loaded.value if isinstance(loaded.value, list) else [loaded.value]


def _split_pickled(experience: Held) -> tuple[Json, dict[str, Array]]:
    """Split a pickled Experience into its plain fields and its tensors, named as in the other layout."""
    values = vars(experience)
    modal = values.get("multi_modal_inputs")
    if isinstance(modal, dict):
        values = {**values, "multi_modal_inputs": None, **{f"{_MULTI_MODAL}{key}": item for key, item in modal.items()}}
    arrays = {
        name: item.array
        for name, item in values.items()
        if isinstance(item, PickledTensor) and (name in _TENSOR_FIELDS or name.startswith(_MULTI_MODAL))
    }
    return {name: item for name, item in values.items() if name not in arrays}, arrays


def _custom_fields(value: Any) -> tuple[CustomField, ...]:
    fields = []
    for place, item in optional_objects(value, "custom_fields"):
        dtype = item.get("data_type")
        if not isinstance(dtype, str):
            raise RecordError(f"{place}.data_type", dtype, "the name of a dtype")
        names = [optional_text(item.get(key), key) or "" for key in ("source_field", "destination_field")]
        fields.append(CustomField(names[0], names[1], dtype.removeprefix("torch.")))
    return tuple(fields)


def matches(value: Any) -> bool:
    if not isinstance(value, dict):
        return False
    if isinstance(value.get("eid"), dict):
        return value.get("type") in _KINDS
    messages = value.get("messages")
    if isinstance(messages, str):
        return messages.lstrip().startswith("[{")
    is_judged = any(plain_name(key) in PREFERENCES for key in value)  # judged rows are read by `rows`
    return isinstance(value.get("prompt"), str) and isinstance(value.get("answer1"), str) and not is_judged


def read(value: Any, origin: Origin, options: Options) -> Iterator[Parts | Experience | Rejected]:
    row = mapping(value, "row")
    if "eid" in row:
        if row.get("type") == "dpo" and not (row.get("chosen_messages") and row.get("rejected_messages")):
            raise BadRecord(
                "a dpo experience without chosen_messages and rejected_messages: its answers were only tokens"
            )
        # The record keeps its id; only its source is replaced.
        source = Source(origin.file, origin.line, NAME)
        yield msgspec.structs.replace(experience_from_fields(row, {}), source=source)
    elif is_preference_row(row):
        yield _plaintext(row, origin)
    elif "messages" in row:
        reward, components = reward_of(row)
        yield Parts(
            NAME,
            origin,
            task=task_of(row),
            messages=messages_from_chat(json_value(row["messages"], "messages"), "messages"),
            tools=tools_of(row),
            reward=reward,
            reward_components=components,
        )
    else:
        yield from _read_unjudged(row, origin)


def _plaintext(row: Json, origin: Origin) -> Parts:
    # Text is a chat turn here: `prompt_from` and `answer_from` assign its role.
    prompt, chosen, rejected = conversations_from(
        prompt_from(row["prompt"], "prompt"),
        answer_from(row["chosen"], "chosen"),
        answer_from(row["rejected"], "rejected"),
    )
    if system := optional_text(row.get("system"), "system"):
        prompt = [Message("system", system), *prompt]
    return preference_of_row(NAME, origin, row, (prompt, chosen, rejected), small_fields(row, _READ))


def _read_unjudged(row: Json, origin: Origin) -> Iterator[Parts | Rejected]:
    prompt = [Message("user", text(row.get("prompt"), "prompt"))]
    number = 1
    # answer1, answer2, ... up to the first missing number
    while f"answer{number}" in row:
        answer = text(row[f"answer{number}"], f"answer{number}")
        yield Parts(NAME, origin, task=None, run=number - 1, prompt=prompt, completion=[Message("assistant", answer)])
        number += 1
    if number == 1:
        raise BadRecord("neither messages nor answers")


FORMAT = Format(NAME, "record", matches, read, "Trinity experiences and conversations", matches_named=is_preference_row)
