"""Trinity's Experience: mutable, with torch tensors. Lengths are checked when it is created, serialized, gathered or
converted to a record. The bytes have Trinity's format; reading them executes no code.

S is the length of `tokens`, R = S - prompt_length; arrays over the response have the length R.
"""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal

import torch
from safetensors.torch import save
from torch import Tensor

from pairwright.errors import CodecError, RecordError
from pairwright.records.arrays import DTYPE_NAMES, Array, as_array, to_torch
from pairwright.records.experience import Experience as Record
from pairwright.records.experience import Kind
from pairwright.records.messages import Json, Message, count_ids, to_chat_message
from pairwright.sources.rollouts.safe_pickle import dump_plain
from pairwright.sources.rollouts.trinity import HEADER, MAGIC, VERSION, BadItem, experience_from_fields, read_items

if TYPE_CHECKING:
    from pairwright.trinity.trinity_batch import Experiences

ExperienceType = Literal["single_turn", "multi_turn", "dpo"]
# Tensor fields, with the dtype of values given as a list.
TENSORS = {
    "tokens": torch.int32,
    "logprobs": torch.float32,
    "token_level_reward": torch.float32,
    "advantages": torch.float32,
    "returns": torch.float32,
    "action_mask": torch.bool,
    "chosen": torch.int32,
    "rejected": torch.int32,
    "teacher_logprobs": torch.float32,
    "routed_experts": torch.uint8,
}
_OVER_RESPONSE = ("logprobs", "token_level_reward", "advantages", "returns", "action_mask", "teacher_logprobs")
# Other fields, which are written as a pickle of plain values.
PLAIN = (
    *("reward", "truncate_status", "info", "metrics", "prompt_length", "response_text", "prompt_text"),
    *("messages", "tools", "chosen_messages", "rejected_messages"),
)
MULTI_MODAL = "multi_modal_inputs:"
_TRUNCATED = "prompt_truncated"


class InvalidExperience(RecordError, AssertionError):
    """An experience with inconsistent fields. Also an AssertionError, which Trinity raises."""


@dataclass
class EID:
    """The identity of an experience.

    >>> eid = EID(batch=1, task=2, run=3, step=4, suffix="a")
    >>> eid.uid, eid.tid, eid.rid, eid.sid
    ('1/2/3/4/a', '1/2', '1/2/3', '1/2/4')
    """

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    # 96 bits; Trinity's 24 bits collide within some thousand experiences.
    suffix: str = field(default_factory=lambda: os.urandom(12).hex())

    @property
    def uid(self) -> str:
        return f"{self.batch}/{self.task}/{self.run}/{self.step}/{self.suffix}"

    @property
    def sid(self) -> str:
        """Id of a step of a task, shared by all runs."""
        return f"{self.batch}/{self.task}/{self.step}"

    @property
    def rid(self) -> str:
        """Id of a run, shared by its steps."""
        return f"{self.batch}/{self.task}/{self.run}"

    @property
    def tid(self) -> str:
        """Id of a task, shared by its runs."""
        return f"{self.batch}/{self.task}"

    def __str__(self) -> str:
        return self.uid

    def __repr__(self) -> str:
        return f"EID(batch={self.batch}, task={self.task}, run={self.run}, step={self.step}, uuid={self.suffix})"

    def to_dict(self) -> Json:
        return {item.name: getattr(self, item.name) for item in fields(self)}


@dataclass(frozen=True)
class CustomField:
    """A value of `info` that is copied to the batch: its key in `info`, its name in the batch, and its dtype."""

    source_field: str
    destination_field: str
    data_type: torch.dtype

    def to_dict(self) -> Json:
        return {**vars(self), "data_type": str(self.data_type)}

    @classmethod
    def from_dict(cls, value: Json) -> "CustomField":
        name = str(value.get("data_type")).removeprefix("torch.")
        if name not in DTYPE_NAMES:  # other names would be arbitrary attributes of torch
            raise RecordError("custom_fields.data_type", name, f"one of {', '.join(DTYPE_NAMES)}")
        return cls(str(value.get("source_field")), str(value.get("destination_field")), getattr(torch, name))


@dataclass(kw_only=True, eq=False)
class Experience:
    """Trinity's Experience. As in Trinity, the fields determine the type: an `action_mask` makes it multi_turn,
    `chosen` and `rejected` make it dpo. Bytes and datasets preserve the type.

    >>> exp = Experience(tokens=[10, 11, 12], prompt_length=1, logprobs=[-0.2, -0.3], reward=1.0)
    >>> exp.experience_type, exp.action_mask.tolist(), Experience.deserialize(exp.serialize()) == exp
    ('single_turn', [True, True], True)
    """

    # The defaults are those of Trinity's signature; `__post_init__` replaces None by an id and empty values.
    eid: EID = None  # type: ignore[assignment]
    tokens: Tensor
    prompt_length: int = 1
    logprobs: Tensor | None = None
    reward: float | None = None
    token_level_reward: Tensor | None = None
    advantages: Tensor | None = None
    returns: Tensor | None = None
    truncate_status: str | None = None
    info: Json = None  # type: ignore[assignment]
    metrics: dict[str, float] = None  # type: ignore[assignment]
    response_text: str | None = None
    prompt_text: str | None = None
    action_mask: Tensor | None = None
    messages: list[Json] | None = None
    tools: list[Json] | None = None
    chosen: Tensor | None = None
    rejected: Tensor | None = None
    chosen_messages: list[Json] | None = None
    rejected_messages: list[Json] | None = None
    multi_modal_inputs: dict[str, Tensor] | None = None
    teacher_logprobs: Tensor | None = None
    routed_experts: Tensor | None = None
    custom_fields: list[CustomField] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        for name, dtype in TENSORS.items():
            setattr(self, name, _as_tensor(getattr(self, name), name, dtype))
        eid: EID | Json | None = self.eid
        self.eid = EID() if eid is None else EID(**eid) if isinstance(eid, dict) else eid
        self.info, self.metrics, self.custom_fields = self.info or {}, self.metrics or {}, self.custom_fields or []
        if self.multi_modal_inputs is not None:
            self.multi_modal_inputs = {
                key: value if isinstance(value, Tensor) else torch.tensor(value)
                for key, value in self.multi_modal_inputs.items()
            }
        self.experience_type: ExperienceType = "single_turn"
        if self.action_mask is not None:
            self.experience_type = "multi_turn"
        elif self.chosen is not None and self.rejected is not None:
            self.experience_type = "dpo"
            self.prompt_length = len(self.tokens)
        if self.experience_type == "single_turn":
            self._mask_single_turn()
        self.check()

    def _mask_single_turn(self) -> None:
        if self.prompt_length <= 0:
            raise InvalidExperience("prompt_length", self.prompt_length, "more than 0 in a single turn")
        if self.truncate_status == _TRUNCATED:
            # The prompt was too long to be answered: the response has no generated tokens.
            length = 0 if self.logprobs is None else len(self.logprobs)
            self.action_mask = torch.zeros(length, dtype=torch.bool)
        elif len(self.tokens) <= self.prompt_length:
            raise InvalidExperience("tokens", len(self.tokens), f"more than prompt_length, {self.prompt_length}")
        else:
            self.action_mask = torch.ones(len(self.tokens) - self.prompt_length, dtype=torch.bool)

    def check(self) -> None:
        """Raise InvalidExperience if an array over the response does not have the length of the response."""
        # A preference has two responses and a truncated prompt has none, so the expected length is unknown.
        if self.experience_type == "dpo" or self.truncate_status == _TRUNCATED:
            return
        length = len(self.tokens) - self.prompt_length
        for name in _OVER_RESPONSE:
            value = getattr(self, name)
            if value is not None and (not value.ndim or len(value) != length):
                expected = f"({length}, ...): one value per token of the response, by tokens and prompt_length"
                raise InvalidExperience(f"{name}.shape", tuple(value.shape), expected)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Experience:
            return NotImplemented
        same = self.experience_type == other.experience_type
        return same and all(_same(getattr(self, item.name), getattr(other, item.name)) for item in fields(self))

    __hash__ = None  # type: ignore[assignment]

    def to_dict(self) -> Json:
        """Return the fields for display: without tensors and unset fields."""
        result: Json = {
            "eid": self.eid.to_dict(),
            "type": self.experience_type,
            "prompt_length": self.prompt_length,
            "response_length": len(self.tokens) - self.prompt_length,
            "info": self.info,
            "metrics": self.metrics,
        }
        more = ("prompt_text", "response_text", "messages", "tools", "chosen_messages", "rejected_messages")
        result |= {name: getattr(self, name) for name in more if getattr(self, name) is not None}
        if self.reward is not None:
            result["reward"] = float(self.reward)
        if self.truncate_status is not None:
            result["truncate_status"] = self.truncate_status
        return result

    # Bytes: Trinity's layout. A header, a pickle of plain values, and safetensors named "<number>:<field>".

    def serialize(self) -> bytes:
        return self.serialize_many([self])

    @classmethod
    def serialize_many(cls, experiences: "list[Experience]") -> bytes:
        items: list[Json] = []
        tensors: dict[str, Tensor] = {}
        for number, exp in enumerate(experiences):
            exp.check()
            arrays = exp.tensors()
            modal = exp.multi_modal_inputs or {}
            items.append(
                {
                    "eid": exp.eid.to_dict(),
                    **{name: getattr(exp, name) for name in PLAIN},
                    "custom_fields": [item.to_dict() for item in exp.custom_fields],
                    "multi_modal_input_keys": list(modal),
                    # Trinity reads only the keys above.
                    "experience_type": exp.experience_type,
                }
            )
            arrays |= {f"{MULTI_MODAL}{key}": value for key, value in modal.items()}
            # Cloned, since safetensors rejects tensors that share memory.
            tensors |= {f"{number}:{name}": value.detach().cpu().clone() for name, value in arrays.items()}
        metadata = dump_plain({"version": VERSION, "num_items": len(items), "items": items}, "experience")
        stored = save({name: value.contiguous() for name, value in tensors.items()})
        return HEADER.pack(MAGIC, VERSION, len(metadata), len(stored)) + metadata + stored

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensor fields that are set, without the mask of a single turn: it is redundant, and Trinity would
        read the experience as multi_turn."""
        names = [name for name in TENSORS if name != "action_mask" or self.experience_type != "single_turn"]
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @classmethod
    def deserialize(cls, data: bytes) -> "Experience":
        experiences = cls.deserialize_many(data)
        if len(experiences) != 1:
            raise CodecError(f"payload: {len(experiences)} experiences where one was expected: use deserialize_many")
        return experiences[0]

    @classmethod
    def deserialize_many(cls, data: bytes) -> "list[Experience]":
        """Return the experiences of a payload, Trinity's or ours, without executing code; raises CodecError or
        RecordError if it cannot be read."""
        experiences = []
        for item in read_items(data, _from_fields):
            if isinstance(item, BadItem):
                raise item.error if isinstance(item.error, CodecError | RecordError) else CodecError(item.reason)
            experiences.append(item)
        return experiences

    @classmethod
    def gather(
        cls, experiences: "list[Experience]", pad_token_id: int = 0, custom_fields: list[CustomField] | None = None
    ) -> "Experiences":
        from pairwright.trinity.trinity_batch import Experiences

        return Experiences.gather_experiences(experiences, pad_token_id, custom_fields)

    def to_record(self) -> Record:
        """Convert to a record of the experience table (`pairwright.Experience`)."""
        self.check()
        arrays = {name: as_array(value, name, dtype="float32") for name, value in self.tensors().items()}
        if (
            self.experience_type == "single_turn"
            and self.truncate_status == _TRUNCATED
            and self.action_mask is not None
        ):
            arrays["action_mask"] = as_array(self.action_mask, "action_mask", dtype="bool")
        for key, value in (self.multi_modal_inputs or {}).items():
            arrays[f"{MULTI_MODAL}{key}"] = as_array(value, key, dtype="float32")
        row = {name: getattr(self, name) for name in PLAIN}
        row |= {"eid": self.eid.to_dict(), "custom_fields": [item.to_dict() for item in self.custom_fields]}
        return experience_from_fields(row, arrays)

    @classmethod
    def from_record(cls, record: Record) -> "Experience":
        """Convert a record of the experience table, which must have token ids."""
        if record.tokens is None:
            expected = f"token ids on {record.eid.uid}, which a Trinity experience must have"
            raise RecordError("tokens", None, expected)
        arrays: dict[str, Array | None] = {
            name: getattr(record, name) for name in TENSORS if name not in ("chosen", "rejected")
        }
        info = dict(record.info)
        if record.model_version is not None:
            info.setdefault("model_version", record.model_version)
        values: Json = {"info": info, "metrics": dict(record.metrics)}
        prompt = _chat_messages(record.prompt)
        if record.kind is Kind.PREFERENCE and record.chosen is not None and record.rejected is not None:
            for name, side in (("chosen", record.chosen), ("rejected", record.rejected)):
                arrays[name] = side.tokens
                answer = _chat_messages(side.messages)
                values[f"{name}_messages"] = [*prompt, *answer] if answer else None
            if prompt and values["chosen_messages"] is None:
                values["messages"] = prompt
        else:
            values["messages"] = [*prompt, *_chat_messages(record.completion)] or None
        return cls(
            eid=EID(record.eid.batch, record.eid.task, record.eid.run, record.eid.step, record.eid.suffix),
            **{name: to_torch(array) for name, array in arrays.items() if array is not None},
            **values,
            prompt_length=record.prompt_length,  # type: ignore[arg-type]  # set wherever there are tokens
            reward=record.reward,
            truncate_status=record.truncate_status,
            prompt_text=record.prompt_text,
            response_text=record.response_text,
            tools=list(record.tools) or None,
            multi_modal_inputs={key: to_torch(value) for key, value in record.multi_modal_inputs.items()} or None,
            custom_fields=[
                CustomField(item.source_field, item.destination_field, getattr(torch, item.dtype))
                for item in record.custom_fields
            ],
        )


def _from_fields(row: Json, arrays: dict[str, Array]) -> Experience:
    modal = {name.removeprefix(MULTI_MODAL): to_torch(a) for name, a in arrays.items() if name.startswith(MULTI_MODAL)}
    values = {name: row[name] for name in PLAIN if row.get(name) is not None}
    if "tokens" not in arrays:
        raise RecordError("tokens", None, "token ids")
    arguments = {
        **values,
        "eid": row.get("eid"),
        **{name: to_torch(arrays[name]) for name in TENSORS if name in arrays},
        "multi_modal_inputs": modal or None,
        "custom_fields": [CustomField.from_dict(item) for item in row.get("custom_fields") or []],
    }
    return restore(row.get("experience_type"), arguments)


def restore(experience_type: Any, arguments: Json) -> Experience:
    """Build an experience with its stored type: a single turn that was stored with a mask stays single_turn."""
    exp = Experience(**arguments)
    if experience_type == "single_turn":
        exp.experience_type = "single_turn"
    return exp


def _chat_messages(messages: Iterable[Message]) -> list[Json]:
    """Convert messages to chat dicts, except those with only recorded ids, which the tensors contain."""
    return [to_chat_message(message) for message in messages if not count_ids(message)]


def _as_tensor(value: Any, name: str, dtype: torch.dtype) -> Tensor | None:
    """Convert a list to the dtype of its field, and other values with torch's default; tensors are unchanged."""
    if value is None or isinstance(value, Tensor):
        return value
    if isinstance(value, list) or name in ("teacher_logprobs", "routed_experts"):
        return torch.tensor(value, dtype=dtype)
    return torch.as_tensor(value).clone()


def _same(left: Any, right: Any) -> bool:
    """Return whether field values are equal; NaN equals NaN."""
    if isinstance(left, Tensor) and isinstance(right, Tensor):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        return bool(((left == right) | (left.isnan() & right.isnan())).all())
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(type(left) is type(right) and left == right)
