"""Gathers: literal values, and the same values as Trinity's functions."""

import numpy as np
import pytest

from pairwright import (
    CustomField,
    Experience,
    RecordError,
    gather_action_masks,
    gather_attention_masks,
    gather_custom_fields,
    gather_multi_modal_inputs,
    gather_response_attr,
    gather_token_ids,
)

EXPS = [
    Experience(kind="multi_turn", tokens=[1, 2, 3, 4], prompt_length=3, action_mask=[True], logprobs=[-0.5]),
    Experience(kind="multi_turn", tokens=[5, 0, 6, 7], prompt_length=1, action_mask=[1, 0, 1], logprobs=[-1, -2, -3]),
]


def test_prompts_are_padded_left_and_responses_right():
    assert gather_token_ids(EXPS, 3, 4, pad_id=0).tolist() == [[1, 2, 3, 4, 0, 0, 0], [0, 0, 5, 0, 6, 7, 0]]


def test_a_pad_id_inside_the_text_is_attended_to():
    assert gather_attention_masks(EXPS, 3, 4).astype(int).tolist() == [[1, 1, 1, 1, 0, 0, 0], [0, 0, 1, 1, 1, 1, 0]]


def test_masks_and_attributes_of_the_response():
    assert gather_action_masks(EXPS, 3).tolist() == [[True, False, False], [True, False, True]]
    assert gather_response_attr(EXPS, "logprobs", 3, pad_value=9).tolist() == [[-0.5, 9, 9], [-1, -2, -3]]


def test_a_single_turn_with_no_mask_is_all_generated():
    exps = [Experience(kind="single_turn", tokens=[1, 2, 3], prompt_length=1)]
    assert gather_action_masks(exps, 3).tolist() == [[True, True, False]]


def test_what_cannot_be_gathered_is_refused():
    without = Experience(kind="single_turn")
    preference = Experience(kind="single_turn", tokens=[1, 2], prompt_length=1)
    for call in (
        lambda: gather_token_ids(EXPS, 2, 4, pad_id=0),
        lambda: gather_token_ids(EXPS, 3, 2, pad_id=0),
        lambda: gather_token_ids([without], 3, 4, pad_id=0),
        lambda: gather_token_ids([], 3, 4, pad_id=0),
        lambda: gather_action_masks(EXPS, 2),
        lambda: gather_response_attr([*EXPS, preference], "logprobs", 3),
        lambda: gather_multi_modal_inputs([]),
    ):
        with pytest.raises(RecordError):
            call()


def test_multi_modal_inputs_and_custom_fields():
    field = CustomField("score", "scores", "float32")
    exps = [
        Experience(
            kind="single_turn", multi_modal_inputs={"pixels": np.ones((1, n))}, info={"score": n}, custom_fields=[field]
        )
        for n in (1, 2)
    ]
    assert [array.shape for array in gather_multi_modal_inputs(exps)["pixels"]] == [(1, 1), (1, 2)]
    assert gather_custom_fields(exps)["scores"].tolist() == [1.0, 2.0]
    with pytest.raises(RecordError, match="custom field"):
        gather_custom_fields([exps[0], Experience(kind="single_turn")])


def test_rows_of_different_dtypes_keep_their_values():
    exps = [
        Experience(kind="single_turn", tokens=np.array(ids, dtype), prompt_length=1, logprobs=np.array([-0.1], kind))
        for ids, dtype, kind in (([1, 2], np.int16, np.float16), ([100000, 3], np.int32, np.float64))
    ]
    tokens = gather_token_ids(exps, 1, 1, pad_id=70000)
    assert (tokens.tolist(), tokens.dtype) == ([[1, 2], [100000, 3]], np.int32)
    logprobs = gather_response_attr(exps, "logprobs", 2)
    assert (logprobs[1].tolist(), logprobs.dtype) == ([-0.1, 0.0], np.float64)
    wide = Experience(kind="single_turn", tokens=np.array([1, 2**31 - 1], np.uint64), prompt_length=1)
    long = Experience(kind="single_turn", tokens=np.array([1, 2], np.int64), prompt_length=1)
    assert gather_token_ids([wide, long], 1, 1, pad_id=0).dtype == np.int64
    with pytest.raises(RecordError, match="pad_id: got 70000"):
        gather_token_ids(exps[:1], 2, 1, pad_id=70000)


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    "dtypes", [("int16", "int32"), ("int32", "int64"), ("uint8", "int8"), ("uint8", "int64"), ("int8", "int16")]
)
@pytest.mark.parametrize(
    "floats", [("float16", "float32"), ("float32", "float64"), ("bfloat16", "float32"), ("float16", "bfloat16")]
)
def test_dtypes_are_promoted_as_trinity_promotes_them(dtypes, floats, order):
    trinity = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    ours, theirs = [], []
    for number, (dtype, kind) in enumerate(list(zip(dtypes, floats, strict=True))[::order]):
        tokens = torch.tensor([1, 2 + number, 100 + number, 7][: 3 + number]).to(getattr(torch, dtype))
        logprobs = torch.tensor([-0.1, -3.7, -0.3][: 2 + number]).to(getattr(torch, kind))
        mask = torch.ones(len(logprobs), dtype=torch.bool)
        ours.append(Experience(kind="multi_turn", tokens=tokens, prompt_length=1, action_mask=mask, logprobs=logprobs))
        theirs.append(trinity.Experience(tokens=tokens, prompt_length=1, action_mask=mask, logprobs=logprobs))
    for mine, their in (
        (gather_token_ids(ours, 2, 4, pad_id=7), trinity.gather_token_ids(theirs, 2, 4, 7)),
        (gather_response_attr(ours, "logprobs", 4), trinity.gather_response_attrs(theirs, "logprobs", 4)),
    ):
        assert str(mine.dtype) == str(their.dtype).removeprefix("torch.")
        assert mine.astype(np.float64).tolist() == their.to(torch.float64).tolist()


def test_values_equal_trinitys():
    trinity = pytest.importorskip("trinity.common.experience", reason="trinity-rft is not installed")
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    ours, theirs = [], []
    for _ in range(50):
        num_prompt, num_response = int(rng.integers(1, 20)), int(rng.integers(1, 30))
        tokens = rng.integers(0, 1000, num_prompt + num_response)
        mask, logprobs = rng.random(num_response) < 0.5, rng.random(num_response, dtype=np.float32)
        ours.append(
            Experience(kind="multi_turn", tokens=tokens, prompt_length=num_prompt, action_mask=mask, logprobs=logprobs)
        )
        theirs.append(trinity.Experience(tokens=torch.from_numpy(tokens), prompt_length=num_prompt,
                                         action_mask=torch.from_numpy(mask), logprobs=torch.from_numpy(logprobs)))  # fmt: skip
    for mine, their in (
        (gather_token_ids(ours, 20, 30, pad_id=7), trinity.gather_token_ids(theirs, 20, 30, 7)),
        (gather_attention_masks(ours, 20, 30), trinity.gather_attention_masks(theirs, 20, 30)),
        (gather_action_masks(ours, 30), trinity.gather_action_masks(theirs, 30)),
        (gather_response_attr(ours, "logprobs", 30), trinity.gather_response_attrs(theirs, "logprobs", 30)),
    ):
        assert mine.dtype == their.numpy().dtype
        assert np.array_equal(mine, their.numpy())
