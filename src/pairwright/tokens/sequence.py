"""Sequences: token ids with a same-length mask of what the model generated, and a report of how they came about."""

from enum import IntEnum
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from pairwright.arrays import Array, as_array, same_array
from pairwright.errors import RecordError


class Paint(IntEnum):
    """What a token is, for showing it."""

    TEMPLATE = 0
    SYSTEM = 1
    USER = 2
    TOOL = 3
    ASSISTANT = 4  # an assistant's turn that is not trained
    GENERATED = 5
    REASONING = 6
    CALL = 7
    STOP = 8
    HINT = 9
    TEXT = 10  # raw text that is not trained


class Report(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a sequence was made, and what a user should know about it.

    source       how the ids came about: rendered by the template, recorded, or raw text
    dropped      (message, field) of trained turns that the template does not render; only where that is allowed
    prompt_dropped  the same for messages that are not trained, and (-1, "tools") for tool schemas
    images       content parts that are no text, which no channel trains on; only where they are allowed
    rewritten    turns whose template text differs from when they were last (an empty <think> block)
    merged       tokens that begin before a turn and reach into it: BPE merged across the boundary
    unstopped    turns that end without a stop token (the last turn where the next header is the stop)
    probed       turns that had to be located on the conversation itself
    truncated    tokens cut off
    text_differs turns whose recorded ids do not spell the message's text
    """

    source: str = "rendered"
    template: str = ""
    num_turns: int = 0
    dropped: tuple[tuple[int, str], ...] = ()
    prompt_dropped: tuple[tuple[int, str], ...] = ()
    images: int = 0
    rewritten: tuple[int, ...] = ()
    merged: int = 0
    unstopped: tuple[int, ...] = ()
    stops: tuple[str, ...] = ()
    control_tokens: int = 0
    probed: int = 0
    split: bool = False
    truncated: int = 0
    text_differs: tuple[int, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Nothing that the model generated is missing from the sequence."""
        return not self.dropped and not self.truncated and not self.unstopped


_DTYPES: dict[str, np.dtype[Any]] = {
    "ids": np.dtype("int32"), "mask": np.dtype("bool"), "message_index": np.dtype("int32"), "paint": np.dtype("int8"),
    "logprobs": np.dtype("float32"),
}  # fmt: skip


class Sequence(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Token ids (S), what the model generated (mask), and which message each token belongs to (-1: the template)."""

    ids: Array
    mask: Array
    message_index: Array
    paint: Array
    logprobs: Array | None = None
    report: Report = Report()

    def __post_init__(self) -> None:
        shape = (len(self.ids),)
        for name, dtype in _DTYPES.items():
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            if type(value) is np.ndarray and value.dtype is dtype and value.shape == shape and value.flags.c_contiguous:
                continue  # as it should be
            array = as_array(value, f"sequence.{name}", dtype=dtype.name)
            if array.shape != shape:
                raise RecordError(f"sequence.{name}.shape", array.shape, f"({len(self.ids)},), one for each token")
            force_setattr(self, name, np.ascontiguousarray(array.astype(dtype, copy=False)))

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        if type(other) is not Sequence:
            return NotImplemented
        names = ("ids", "mask", "message_index", "paint", "logprobs")
        same: Any = all(same_array(getattr(self, name), getattr(other, name)) for name in names)
        return bool(same) and self.report == other.report

    __hash__ = None  # type: ignore[assignment]

    @property
    def num_trained(self) -> int:
        return int(self.mask.sum())

    def take(self, kept: Array) -> "Sequence":
        """The tokens at these positions; what is left out is counted as truncated."""
        return Sequence(
            ids=self.ids[kept],
            mask=self.mask[kept],
            message_index=self.message_index[kept],
            paint=self.paint[kept],
            logprobs=None if self.logprobs is None else self.logprobs[kept],
            report=msgspec.structs.replace(self.report, truncated=self.report.truncated + len(self) - len(kept)),
        )
