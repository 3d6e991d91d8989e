"""The records that flow between the stages. They are frozen, and validated when they are built.

    Message, ToolCall   one turn of a conversation; arguments keep their original JSON text
    EID                 the identity of an experience: batch, task, run, step, suffix
    Experience          one row of the table: at this prompt the model did this and got this reward
    Side                one of the two answers of a preference, with its own arrays
    Pair                a prompt with a chosen and a rejected completion, and the source of each

An existing record is valid: lengths agree, dtypes and ranges are right, JSON fields are JSON. Errors name the field,
the value and what was expected. Records are compared by value, arrays by dtype, shape and bytes.

Array lengths: `tokens` is the whole sequence (S), the other arrays cover the response, R = S - prompt_length.
In a preference, `tokens` is the shared prompt, and each side's arrays cover that side's response.
"""

import math
import os
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec
from msgspec.structs import force_setattr

from pairwright.errors import RecordError
from pairwright.records.arrays import Array, as_array, dtype_named, to_torch
from pairwright.records.checks import (
    check_tools,
    check_truncation,
    same_record,
    set_array,
    set_response_arrays,
    set_reward,
    set_tokens,
    set_tuple,
)
from pairwright.records.json_text import check_json, check_text, decode, encode
from pairwright.records.messages import TEXT, Json, mark_generated
from pairwright.records.messages import ErrorSite as ErrorSite
from pairwright.records.messages import Message as Message

if TYPE_CHECKING:
    import torch


class Kind(StrEnum):
    """The kind of an experience. Stored with it, never inferred from the fields that are set.

    >>> import pairwright as pw; pw.Kind("multi_turn") is pw.Kind.MULTI_TURN
    True
    """

    SINGLE_TURN = "single_turn"
    MULTI_TURN = "multi_turn"
    PREFERENCE = "preference"


# Array fields: of a Side, of an Experience with one value per response token, and all of an Experience.
SIDE_ARRAYS = ("tokens", "logprobs", "action_mask")
RESPONSE_ARRAYS = ("logprobs", "action_mask", "token_level_reward", "advantages", "returns", "teacher_logprobs")
ARRAYS = ("tokens", *RESPONSE_ARRAYS, "routed_experts")


# gc=False, here and below: records have no reference cycles, and tracking millions of them would slow the collector
class EID(msgspec.Struct, frozen=True, gc=False, array_like=True, forbid_unknown_fields=True):
    """The identity of an experience. Keys are JSON arrays as text, so different ids never have the same key.

    >>> from pairwright import EID; EID(batch=0, task="1/2", run=3, step=0, suffix="a").tid
    '[0,"1/2"]'
    """

    batch: int | str = ""
    task: int | str = ""
    run: int = 0
    step: int = 0
    suffix: str = msgspec.field(default_factory=lambda: os.urandom(12).hex())

    def __post_init__(self) -> None:
        if type(self.batch) is not int:
            check_text(self.batch, "eid.batch", "an int or a string")
        if type(self.task) is not int:
            check_text(self.task, "eid.task", "an int or a string")
        # 2**63: run and step are int64 columns in the table
        if type(self.run) is not int or not 0 <= self.run < 2**63:
            raise RecordError("eid.run", self.run, "an int of at least 0")
        if type(self.step) is not int or not 0 <= self.step < 2**63:
            raise RecordError("eid.step", self.step, "an int of at least 0")
        if not self.suffix:
            raise RecordError("eid.suffix", self.suffix, "a non-empty string")
        check_text(self.suffix, "eid.suffix")

    @property
    def uid(self) -> str:
        return encode(self).decode()

    @property
    def tid(self) -> str:
        """The task: equal for all runs and steps of one task of one batch."""
        return encode((self.batch, self.task)).decode()

    @property
    def rid(self) -> str:
        """The run: equal for all steps of one attempt."""
        return encode((self.batch, self.task, self.run)).decode()

    @property
    def sid(self) -> str:
        """The step: equal for all runs of a task at that step."""
        # four elements, with null as run, so that a step never has the key of a run (three) or a task (two)
        return encode((self.batch, self.task, None, self.step)).decode()

    @classmethod
    def parse(cls, uid: str | bytes) -> "EID":
        """Invert `uid`."""
        try:
            return cls(*decode(uid, type=tuple[int | str, int | str, int, int, str]))
        except msgspec.MsgspecError as error:
            raise RecordError("uid", uid, f"[batch, task, run, step, suffix] as JSON ({error})") from None


class Source(msgspec.Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Where a record was read from.

    >>> import pairwright as pw; pw.Source("traces/a.jsonl", line=3, format="openai-chat").line
    3
    """

    file: str
    line: int | None = None
    format: str | None = None

    def __post_init__(self) -> None:
        if self.line is not None and not 0 <= self.line < 2**63:
            raise RecordError("source.line", self.line, "an int of at least 0")


class CustomField(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A value of `info` that goes into the training batch: source key, name in the batch, and dtype.

    >>> import pairwright as pw; pw.CustomField("w", "weight", "float32").destination_field
    'weight'
    """

    source_field: str
    destination_field: str
    dtype: str

    def __post_init__(self) -> None:
        dtype_named(self.dtype)


class Side(msgspec.Struct, frozen=True, gc=False, kw_only=True, eq=False, forbid_unknown_fields=True):
    """One answer of a preference, with its messages, reward and arrays.

    >>> import pairwright as pw; pw.Side(messages=[{"role": "assistant", "content": "4"}], reward=1.0).messages[0].text
    '4'
    """

    messages: tuple[Message, ...] = ()
    text: str | None = None
    reward: float | None = None
    eid: EID | None = None
    truncate_status: str | None = None
    errors: tuple[ErrorSite, ...] = ()
    tokens: Array | None = None
    logprobs: Array | None = None
    action_mask: Array | None = None

    def __post_init__(self) -> None:
        set_tuple(self, "messages", Message)
        if self.messages and self.messages[0].role == TEXT:
            force_setattr(self, "messages", mark_generated(self.messages))
        set_tuple(self, "errors", ErrorSite)
        set_reward(self)
        check_truncation(self.truncate_status)
        if self.text is not None:
            check_text(self.text, "side.text")
        # the tokens of a side are its response, so its other arrays have the same length
        length = None if self.tokens is None else set_tokens(self)
        set_response_arrays(self, SIDE_ARRAYS[1:], length)

    # msgspec's equality would compare numpy arrays with ==, which returns an array instead of a truth value
    def __eq__(self, other: object) -> bool:
        return same_record(self, other) if type(other) is Side else NotImplemented

    __hash__ = None  # type: ignore[assignment]


class SideOf(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Marks an experience as one side of a split preference.

    >>> import pairwright as pw; pw.SideOf(pw.EID(task="a"), "chosen").side
    'chosen'
    """

    preference: EID
    side: Literal["chosen", "rejected"]


def check_text_only(prompt: tuple[Message, ...], completion: tuple[Message, ...]) -> None:
    """Raise RecordError if a conversation mixes raw text with chat messages."""
    for message in (*prompt, *completion):
        if message.role != TEXT:
            raise RecordError("message.role", message.role, "'text', since other messages of the conversation are text")


class Experience(msgspec.Struct, frozen=True, gc=False, kw_only=True, eq=False, forbid_unknown_fields=True):
    """At this prompt (messages and tools) the model produced this completion and got this reward.

    `prompt` is the model's input, `completion` the output of the model and its tools. A preference has `chosen` and
    `rejected` instead of a completion. `reward` may be None, NaN or infinite: such a record is valid, but unscored.
    Messages may be plain chat dicts; they become `Message`s.

    >>> import pairwright as pw; run = pw.Experience(kind="single_turn", prompt=[{"role": "user", "content": "2+2?"}],
    ...                     completion=[pw.Message("assistant", "4")], reward=1.0)
    >>> run.prompt[0].text, run.is_scored
    ('2+2?', True)
    """

    # identity and conversation
    eid: EID = msgspec.field(default_factory=EID)
    kind: Kind
    prompt: tuple[Message, ...] = ()
    tools: tuple[Json, ...] = ()
    completion: tuple[Message, ...] = ()
    chosen: Side | None = None
    rejected: Side | None = None
    # recorded texts, used if there are no messages
    prompt_text: str | None = None
    response_text: str | None = None
    reward: float | None = None
    reward_components: Json = {}
    truncate_status: str | None = None
    model_version: int | str | None = None
    errors: tuple[ErrorSite, ...] = ()
    info: Json = {}
    metrics: Json = {}
    source: Source | None = None
    side_of: SideOf | None = None
    custom_fields: tuple[CustomField, ...] = ()
    # tokens: S is the length of `tokens`, R = S - prompt_length; see the head of this file
    prompt_length: int | None = None
    tokens: Array | None = None  # (S,) int
    logprobs: Array | None = None  # (R,) float, log-probabilities of the policy that sampled
    action_mask: Array | None = None  # (R,) bool or 0 and 1, True for generated tokens
    token_level_reward: Array | None = None  # (R,) float
    advantages: Array | None = None
    returns: Array | None = None
    teacher_logprobs: Array | None = None  # (R, ...) float: the only array with optional further axes
    routed_experts: Array | None = None
    multi_modal_inputs: Mapping[str, Array] = {}

    def __post_init__(self) -> None:
        if type(self.kind) is not Kind:  # the record is frozen: normalized values are set with force_setattr
            try:
                force_setattr(self, "kind", Kind(self.kind))
            except ValueError:
                raise RecordError("kind", self.kind, f"one of {', '.join(Kind)}") from None
        if type(self.eid) is not EID:
            raise RecordError("eid", self.eid, "an EID")
        set_tuple(self, "prompt", Message)
        set_tuple(self, "completion", Message)
        prompt, completion = self.prompt, self.completion
        # a conversation is either all raw text or all chat, so the first message of each part decides
        if (prompt and prompt[0].role == TEXT) or (completion and completion[0].role == TEXT):
            check_text_only(prompt, completion)
            force_setattr(self, "completion", mark_generated(completion))
        set_reward(self)
        check_truncation(self.truncate_status)
        self._check_json_fields()
        if self.prompt_text is not None:
            check_text(self.prompt_text, "prompt_text")
        if self.response_text is not None:
            check_text(self.response_text, "response_text")
        if self.kind is Kind.PREFERENCE:
            self._check_sides()
        elif self.chosen is not None or self.rejected is not None:
            raise RecordError("kind", self.kind.value, "'preference', since there are sides")
        if self.errors:
            self._check_errors()
        if self.custom_fields:
            self._check_custom_fields()
        self._check_arrays()

    def _check_json_fields(self) -> None:
        if self.tools:
            check_tools(self)
        elif type(self.tools) is not tuple:
            force_setattr(self, "tools", ())
        for name in ("info", "metrics", "reward_components"):
            value = getattr(self, name)
            if type(value) is not dict:
                raise RecordError(name, value, "a dict")
            if value:
                check_json(value, name)

    def _check_sides(self) -> None:
        for name in ("chosen", "rejected"):
            side = getattr(self, name)
            if type(side) is not Side:
                raise RecordError(name, side, "a Side, since the kind is 'preference'")
            # with tokens of only one part, prompt + chosen and prompt + rejected could not be concatenated
            if (side.tokens is None) != (self.tokens is None):
                raise RecordError(f"{name}.tokens", side.tokens, "tokens on the prompt and both sides, or on none")
            if self.prompt and side.messages and TEXT in (self.prompt[0].role, side.messages[0].role):
                check_text_only(self.prompt, side.messages)
        if self.completion:
            raise RecordError("completion", self.completion, "none: the answers of a preference are its sides")

    def _check_errors(self) -> None:
        set_tuple(self, "errors", ErrorSite)
        num_messages = len(self.prompt) + len(self.completion)
        for site in self.errors:
            if site.index >= num_messages:
                raise RecordError("errors.index", site.index, f"the position of one of {num_messages} messages")

    def _check_custom_fields(self) -> None:
        set_tuple(self, "custom_fields", CustomField)
        for field in self.custom_fields:
            if field.source_field not in self.info:
                raise RecordError("custom_fields", field.source_field, f"a key of info: {sorted(self.info)}")

    def _check_arrays(self) -> None:
        length, response_length = self.prompt_length, None
        if self.tokens is not None:
            num_tokens = set_tokens(self)
            # the tokens of a preference are its shared prompt, so their number is the prompt length
            if self.kind is Kind.PREFERENCE and length is None:
                force_setattr(self, "prompt_length", length := num_tokens)
            if type(length) is not int or not 0 <= length <= num_tokens:
                raise RecordError("prompt_length", length, f"an int from 0 to {num_tokens}, the number of tokens")
            response_length = num_tokens - length
            # a multi-turn response includes tool results, which would be trained on without a mask
            if self.kind is Kind.MULTI_TURN and self.action_mask is None:
                raise RecordError("action_mask", None, "a mask over the response, since the kind is 'multi_turn'")
            if self.kind is Kind.PREFERENCE and response_length:
                raise RecordError("prompt_length", length, f"{num_tokens}: a preference's tokens are its prompt")
        elif length is not None:
            raise RecordError("prompt_length", length, "None, since there are no tokens")
        set_response_arrays(self, RESPONSE_ARRAYS, response_length)
        # these two have arbitrary shapes (layers and experts, image features): only the dtype is checked
        if self.routed_experts is not None:
            set_array(self, "routed_experts", "uint8")
        if self.multi_modal_inputs:
            inputs = {
                key: as_array(value, f"multi_modal_inputs.{key}", dtype="float32")
                for key, value in self.multi_modal_inputs.items()
            }
            force_setattr(self, "multi_modal_inputs", inputs)

    def __eq__(self, other: object) -> bool:
        return same_record(self, other) if type(other) is Experience else NotImplemented

    def __hash__(self) -> int:
        # equal records have equal ids, as a hash requires; arrays and dicts are not hashable
        return hash(self.eid)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole conversation: prompt, then completion."""
        return self.prompt + self.completion

    @property
    def is_scored(self) -> bool:
        return self.reward is not None and math.isfinite(self.reward)

    def torch(self, name: str) -> "torch.Tensor | None":
        """Return an array field as a torch tensor of the same dtype."""
        array = getattr(self, name)
        return None if array is None else to_torch(array)


class Pair(msgspec.Struct, frozen=True, gc=False, kw_only=True, forbid_unknown_fields=True):
    """One preference to train on, with the ids of both source experiences. `id` is a hash of the content.

    >>> import pairwright as pw; pw.Pairs("runs/first/pairs")[0].chosen[0].text
    'it is red'
    """

    id: str
    prompt: tuple[Message, ...]
    tools: tuple[Json, ...] = ()
    chosen: tuple[Message, ...]
    rejected: tuple[Message, ...]
    chosen_reward: float
    rejected_reward: float
    chosen_eid: EID
    rejected_eid: EID
    gap: float
    strategy: str
    weight: float = 1.0
    split: Literal["train", "validation"] = "train"
    info: Json = {}

    def __post_init__(self) -> None:
        for name in ("prompt", "chosen", "rejected"):
            set_tuple(self, name, Message)
        for name in ("chosen", "rejected"):
            side = getattr(self, name)
            if not side:
                raise RecordError(f"pair.{name}", (), "at least one message")
            if side[0].role == TEXT:
                force_setattr(self, name, mark_generated(side))
        # a comparison with NaN is always False and would pass below, so finiteness is checked first
        for name in ("chosen_reward", "rejected_reward", "gap", "weight"):
            value = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise RecordError(f"pair.{name}", value, "a finite number")
        if self.chosen_reward <= self.rejected_reward:
            raise RecordError("pair.chosen_reward", self.chosen_reward, f"more than {self.rejected_reward!r}")
        if self.weight < 0:
            raise RecordError("pair.weight", self.weight, "at least 0")
        check_json(self.info, "pair.info", finite=True)
