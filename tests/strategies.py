"""Hypothesis strategies for records: any valid experience, with every field in play."""

import ml_dtypes
import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pairwright import EID, CustomField, ErrorSite, Experience, Kind, Message, Side, SideOf, Source, ToolCall

texts = st.text(max_size=12)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("$float"), inner, max_size=3),
    max_leaves=8,
)
open_dicts = st.dictionaries(texts, json_values, max_size=3)
strict_dicts = st.dictionaries(
    texts, st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts, max_size=3
)
tool_calls = st.builds(ToolCall, name=texts, arguments=texts, id=st.none() | texts)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool", "developer"]),
    content=st.none() | texts | st.lists(strict_dicts, max_size=2),
    reasoning=st.none() | texts,
    tool_calls=st.lists(tool_calls, max_size=2).map(tuple),
    tool_call_id=st.none() | texts,
    name=st.none() | texts,
    generated=st.none() | st.booleans(),
    extra=strict_dicts,
)
conversations = st.lists(messages, max_size=3).map(tuple)
names = st.integers(-(2**60), 2**60) | texts
eids = st.builds(EID, batch=names, task=names, run=st.integers(0, 2**62), step=st.integers(0, 2**62))
rewards = st.none() | st.floats()

_INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
_FLOATS = ["float16", "float32", "float64", ml_dtypes.bfloat16]


@st.composite
def bits_as(draw, dtype, shape):
    """An array of any bit patterns of a dtype: NaN payloads, denormals and negative zeros included."""
    dtype = np.dtype(dtype)
    raw = draw(hnp.arrays(np.uint8, (*shape, dtype.itemsize)))
    return raw.view(dtype).reshape(shape)


def float_arrays(length):
    return st.sampled_from(_FLOATS).flatmap(lambda dtype: bits_as(dtype, (length,)))


def masks(length):
    return st.sampled_from(["bool", *_INTEGERS]).flatmap(
        lambda dtype: hnp.arrays(np.bool_, length).map(lambda mask: mask.astype(dtype))
    )


def token_arrays(length):
    return st.sampled_from(_INTEGERS).flatmap(
        lambda dtype: hnp.arrays(dtype, length, elements=st.integers(0, min(2**31 - 1, int(np.iinfo(dtype).max))))
    )


@st.composite
def token_fields(draw, kind):
    if not draw(st.booleans()):
        return {}
    num_prompt, num_response = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    fields = {"tokens": draw(token_arrays(num_prompt + num_response)), "prompt_length": num_prompt}
    for name in ("logprobs", "token_level_reward", "advantages", "returns", "teacher_logprobs"):
        if draw(st.booleans()):
            fields[name] = draw(float_arrays(num_response))
    if kind is Kind.MULTI_TURN or draw(st.booleans()):
        fields["action_mask"] = draw(masks(num_response))
    if draw(st.booleans()):
        fields["routed_experts"] = draw(hnp.arrays(np.uint8, (2, 3, 2)))
    return fields


@st.composite
def sides(draw, with_tokens):
    arrays = {}
    if with_tokens:
        length = draw(st.integers(0, 4))
        arrays = {"tokens": draw(token_arrays(length))}
        if draw(st.booleans()):
            arrays |= {"logprobs": draw(float_arrays(length)), "action_mask": draw(masks(length))}
    return Side(messages=draw(conversations), text=draw(st.none() | texts), reward=draw(rewards), eid=draw(st.none() | eids),
                truncate_status=draw(st.sampled_from([None, "response_truncated"])), **arrays)  # fmt: skip


@st.composite
def experiences(draw):
    kind = draw(st.sampled_from(Kind))
    if kind is Kind.PREFERENCE:
        with_tokens = draw(st.booleans())
        body = {"chosen": draw(sides(with_tokens)), "rejected": draw(sides(with_tokens))}
        if with_tokens:
            body["tokens"] = draw(token_arrays(draw(st.integers(0, 4))))
    else:
        body = {"completion": draw(conversations)} | draw(token_fields(kind))
    prompt, info = draw(conversations), draw(open_dicts)
    num_messages = len(prompt) + len(body.get("completion", ()))
    sites = st.builds(
        ErrorSite, index=st.integers(0, max(num_messages - 1, 0)), kind=texts, text=texts, meta=strict_dicts
    )
    custom = [CustomField(key, f"batch_{key}", "float32") for key in info][: draw(st.integers(0, 2))]
    return Experience(
        eid=draw(eids),
        kind=kind,
        prompt=prompt,
        tools=draw(st.lists(strict_dicts, max_size=2).map(tuple)),
        prompt_text=draw(st.none() | texts),
        response_text=draw(st.none() | texts),
        reward=draw(rewards),
        reward_components=draw(open_dicts),
        truncate_status=draw(st.sampled_from([None, "prompt_truncated", "response_truncated"])),
        model_version=draw(st.none() | st.integers(0, 2**53) | texts),
        errors=tuple(draw(st.lists(sites, max_size=2))) if num_messages else (),
        info=info,
        metrics=draw(open_dicts),
        source=draw(st.none() | st.builds(Source, file=texts, line=st.none() | st.integers(1, 2**40), format=st.none() | texts)),
        side_of=draw(st.none() | st.builds(SideOf, preference=eids, side=st.sampled_from(["chosen", "rejected"]))),
        custom_fields=tuple(custom),
        multi_modal_inputs=draw(st.dictionaries(texts, bits_as("float32", (2, 2)) | bits_as(ml_dtypes.bfloat16, (3,)), max_size=2)),
        **body,
    )  # fmt: skip
