"""Experiences as rectangular arrays: token ids, masks, response values, custom fields.

B is the number of experiences, P the prompt width and R the response width; a name that ends in `_B` holds one value
per experience. Prompts are padded on the left, responses on the right.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from pairwright.errors import RecordError
from pairwright.records.arrays import Array, dtype_named
from pairwright.records.experience import Experience, Kind


def gather_token_ids(experiences: Sequence[Experience], max_prompt: int, max_response: int, *, pad_id: int) -> Array:
    """Return token ids (B, P+R) in a dtype that holds all of them: int16 and int32 give int32.

    Args:
        experiences: Experiences with `tokens`.
        max_prompt: Width of the prompts, P.
        max_response: Width of the responses, R.
        pad_id: Token id of the padding.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", tokens=[5, 6, 7], prompt_length=1),
    ...         pw.Experience(kind="single_turn", tokens=[8, 9], prompt_length=1)]
    >>> pw.gather_token_ids(runs, 2, 2, pad_id=0).tolist()
    [[0, 5, 6, 7], [0, 8, 9, 0]]
    """
    lengths_B, prompts_B = _lengths(experiences, max_prompt, max_response)
    # every prompt ends at column P, so that all responses begin in the same column
    tokens = [exp.tokens for exp in experiences if exp.tokens is not None]
    return _pad_rows(tokens, max_prompt - prompts_B, lengths_B, max_prompt + max_response, pad_id)


def gather_attention_masks(experiences: Sequence[Experience], max_prompt: int, max_response: int) -> Array:
    """Return a mask (B, P+R) that is True at every token, computed from lengths.

    Args:
        experiences: Experiences with `tokens`.
        max_prompt: Width of the prompts, P.
        max_response: Width of the responses, R.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", tokens=[5, 6, 7], prompt_length=1),
    ...         pw.Experience(kind="single_turn", tokens=[8, 9], prompt_length=1)]
    >>> pw.gather_attention_masks(runs, 2, 2).tolist()
    [[False, True, True, True], [False, True, True, False]]
    """
    lengths_B, prompts_B = _lengths(experiences, max_prompt, max_response)
    # column numbers (P+R,) compared with starts and ends (B, 1) give the mask (B, P+R)
    position = np.arange(max_prompt + max_response)
    starts_B = (max_prompt - prompts_B)[:, None]
    return (position >= starts_B) & (position < starts_B + lengths_B[:, None])


def gather_action_masks(experiences: Sequence[Experience], max_response: int) -> Array:
    """Return a mask (B, R) that is True at every generated token; a single turn without a mask is all generated.

    Args:
        experiences: Experiences with `tokens`.
        max_response: Width of the responses, R.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", tokens=[5, 6, 7], prompt_length=1),
    ...         pw.Experience(kind="single_turn", tokens=[8, 9], prompt_length=1)]
    >>> pw.gather_action_masks(runs, 2).tolist()
    [[True, True], [True, False]]
    """
    masks = [_action_mask(exp) for exp in experiences]
    # masks may be stored as integers 0 and 1; padding is False
    return _gather_response(masks, "action_mask", max_response, pad_value=0).astype(bool, copy=False)


def gather_response_attr(
    experiences: Sequence[Experience], name: str, max_response: int, *, pad_value: float = 0
) -> Array:
    """Return an array over the response (B, R), such as "logprobs", in a dtype that holds all values.

    Args:
        experiences: Experiences that have the array.
        name: Name of the array: "logprobs", "advantages", "returns", ...
        max_response: Width of the responses, R.
        pad_value: Value of the padding after a response.

    >>> import pairwright as pw
    >>> runs = [pw.Experience(kind="single_turn", tokens=[5, 6, 7], prompt_length=1, logprobs=[-1.0, -2.0]),
    ...         pw.Experience(kind="single_turn", tokens=[8, 9], prompt_length=1, logprobs=[-3.0])]
    >>> pw.gather_response_attr(runs, "logprobs", 2).tolist()
    [[-1.0, -2.0], [-3.0, 0.0]]
    """
    return _gather_response([getattr(exp, name) for exp in experiences], name, max_response, pad_value=pad_value)


def gather_multi_modal_inputs(experiences: Sequence[Experience]) -> dict[str, list[Array]]:
    """Return the arrays of all experiences, for each key of the first experience.

    Args:
        experiences: Experiences whose `multi_modal_inputs` have the same keys.

    >>> import pairwright as pw
    >>> run = pw.Experience(kind="single_turn", multi_modal_inputs={"pixels": [[0.5, 1.0]]})
    >>> [array.shape for array in pw.gather_multi_modal_inputs([run, run])["pixels"]]
    [(1, 2), (1, 2)]
    """
    if not experiences:
        raise RecordError("experiences", experiences, "at least one")
    keys = experiences[0].multi_modal_inputs.keys()
    for exp in experiences:
        if exp.multi_modal_inputs.keys() != keys:
            raise RecordError("multi_modal_inputs", sorted(exp.multi_modal_inputs), f"the keys {sorted(keys)}")
    return {key: [exp.multi_modal_inputs[key] for exp in experiences] for key in keys}


def gather_custom_fields(experiences: Sequence[Experience]) -> dict[str, Array]:
    """Return the custom fields (values of `info`) as arrays (B, ...), by their names in the batch.

    Args:
        experiences: Experiences that have the same custom fields.

    >>> import pairwright as pw
    >>> field = pw.CustomField("w", "weight", "float32")
    >>> run = pw.Experience(kind="single_turn", info={"w": 0.5}, custom_fields=[field])
    >>> pw.gather_custom_fields([run, run])["weight"].tolist()
    [0.5, 0.5]
    """
    if not experiences:
        raise RecordError("experiences", experiences, "at least one")
    batch: dict[str, Array] = {}
    for field in experiences[0].custom_fields:
        for exp in experiences:
            if field not in exp.custom_fields:
                raise RecordError("custom_fields", field.source_field, f"a custom field of {exp.eid.uid}, too")
        values = [exp.info[field.source_field] for exp in experiences]
        try:
            # np.array raises ValueError for rows of unequal length; astype then gives the declared dtype
            batch[field.destination_field] = np.array(values).astype(dtype_named(field.dtype))
        except (TypeError, ValueError):
            raise RecordError(f"info.{field.source_field}", values, f"numbers of one shape, as {field.dtype}") from None
    return batch


def _lengths(experiences: Sequence[Experience], max_prompt: int, max_response: int) -> tuple[Array, Array]:
    if not experiences:
        raise RecordError("experiences", experiences, "at least one")
    for exp in experiences:
        if exp.tokens is None or exp.prompt_length is None:
            raise RecordError("tokens", None, f"token ids on {exp.eid.uid}: run `pairwright tokens` first")
        if exp.kind is Kind.PREFERENCE:
            raise RecordError("kind", exp.kind.value, f"a single sequence; split {exp.eid.uid} with split_preference")
    # sequence lengths S and prompt lengths: (B,) int
    lengths_B = np.array([len(exp.tokens) for exp in experiences if exp.tokens is not None])
    prompts_B = np.array([exp.prompt_length for exp in experiences])
    if prompts_B.max() > max_prompt:
        raise RecordError("max_prompt", max_prompt, f"at least {prompts_B.max()}, the longest prompt")
    if (lengths_B - prompts_B).max() > max_response:
        raise RecordError("max_response", max_response, f"at least {(lengths_B - prompts_B).max()}, the longest one")
    return lengths_B, prompts_B


def _gather_response(arrays: list[Array | None], name: str, max_response: int, *, pad_value: float) -> Array:
    present = [array for array in arrays if array is not None]
    if len(present) != len(arrays) or not present:
        raise RecordError(name, None, f"{name} on every experience; {len(arrays) - len(present)} have none")
    lengths_B = np.array([len(array) for array in present])
    if lengths_B.max() > max_response:
        raise RecordError("max_response", max_response, f"at least {lengths_B.max()}, the longest response")
    return _pad_rows(present, np.zeros_like(lengths_B), lengths_B, max_response, pad_value)


def _pad_rows(arrays: list[Array], starts_B: Array, lengths_B: Array, width: int, pad_value: float) -> Array:
    """Copy each array into its row of (B, width), beginning at its start, in a dtype that holds all values."""
    first, dtype = arrays[0], _promote([array.dtype for array in arrays])
    if first.dtype.kind not in "iu":
        pad_value = np.array(pad_value).astype(first.dtype).item()  # in the dtype of the first array, as in Trinity
    try:
        # arrays of more than one dimension, such as teacher_logprobs (R, ...), keep their further axes
        out = np.full((len(arrays), width, *first.shape[1:]), pad_value, dtype)
    except OverflowError:
        raise RecordError("pad_id", pad_value, f"a value that {dtype} holds") from None
    for row, start, length, array in zip(out, starts_B.tolist(), lengths_B.tolist(), arrays, strict=True):
        row[start : start + length] = array
    return out


def _promote(dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return a dtype that holds the values of all dtypes, with torch's promotion rules; integers stay integers."""
    distinct = list(dict.fromkeys(dtypes))
    result = distinct[0]
    for dtype in distinct[1:]:
        if {result.name, dtype.name} == {"float16", "bfloat16"}:  # neither represents the other's values
            result = np.dtype(np.float32)
        elif result.kind in "iu" and dtype.kind in "iu":
            promoted = np.promote_types(result, dtype)
            # numpy promotes uint64 with a signed dtype to float64, which would round large token ids
            result = promoted if promoted.kind in "iu" else np.dtype(np.int64)
        else:
            result = np.promote_types(result, dtype)
    return result


def _action_mask(exp: Experience) -> Array | None:
    if exp.action_mask is None and exp.kind is Kind.SINGLE_TURN and exp.response_length is not None:
        return np.ones(exp.response_length, bool)
    return exp.action_mask
