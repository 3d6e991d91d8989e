"""Attention over a tree of tokens, by calls and by block masks, is that of each sequence alone."""

import numpy as np
import pytest
import torch

from pairwright.tokens.batch.token_tree import TokenTree, build_token_tree, list_segments
from pairwright.training.model import attention
from pairwright.training.model.attention import Plan, attend_by_blocks, compare_blocks, tree_attention

HEADS, KEY_HEADS, SIZE = 4, 2, 8
OPTIONS = [{}, {"window": 37}, {"softcap": 1.5}, {"window": 37, "softcap": 1.5, "sinks": True}, {"sinks": True}]


@pytest.fixture(scope="module")
def tree() -> TokenTree:
    """Long and short runs of tokens, forks below forks, two roots, a sequence that another one continues."""
    random = np.random.default_rng(0)
    sequences = [random.integers(0, 50, 230)]
    for shared, more in ((200, 40), (150, 170), (150, 3), (230, 60), (90, 9), (0, 55), (90, 9), (151, 30), (90, 0)):
        source = sequences[-1] if shared == 151 else sequences[0]
        sequences.append(np.concatenate([source[:shared], random.integers(0, 50, more)]))
    return build_token_tree(sequences)


def make_inputs(num_tokens: int) -> list[torch.Tensor]:
    torch.manual_seed(0)
    heads = (HEADS, KEY_HEADS, KEY_HEADS)
    return [torch.randn(1, num, num_tokens, SIZE, requires_grad=True) for num in heads]


def make_plan(tree: TokenTree) -> Plan:
    return Plan(list_segments(tree.positions, tree.ends), tree.positions, tree.ends, "cpu")


def attend_alone(tree, query, key, value, *, window=None, softcap=None, sinks=None):
    """Each sequence by itself, with all scores in memory; (T, heads, D)."""
    key, value = (tensor.repeat_interleave(HEADS // KEY_HEADS, 1) for tensor in (key, value))
    output = torch.zeros(len(tree.ids), HEADS, SIZE)
    for path in map(torch.from_numpy, tree.paths):
        scores = query[0][:, path] @ key[0][:, path].transpose(1, 2) * SIZE**-0.5
        scores = scores if softcap is None else softcap * torch.tanh(scores / softcap)
        distance = torch.arange(len(path))[:, None] - torch.arange(len(path))
        is_seen = (distance >= 0) if window is None else (distance >= 0) & (distance < window)
        scores = scores.masked_fill(~is_seen, -torch.inf)
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, None, None].expand(-1, len(path), 1)], -1)
        shares = scores.softmax(-1)[..., : len(path)]
        # Tokens that several sequences share are written several times, with one value.
        output = output.index_put((path,), (shares @ value[0][:, path]).transpose(0, 1))
    return output


@pytest.mark.parametrize("small", [0, 160])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_values_and_gradients_are_those_of_each_sequence_alone(options, small, tree, monkeypatch):
    monkeypatch.setattr(attention, "SMALL_TREE", small)
    monkeypatch.setattr(attention, "DENSE_KEYS", 64)
    monkeypatch.setattr(attention, "DENSE_ROWS", 100)
    inputs = make_inputs(len(tree.ids))
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], requires_grad=True) if options.get("sinks") else None
    expected = attend_alone(tree, *inputs, **{**options, "sinks": sinks})
    weights = torch.randn_like(expected)
    wanted = [*inputs, *([] if sinks is None else [sinks])]
    expected_grads = torch.autograd.grad((expected * weights).sum(), wanted)
    output, _ = tree_attention(
        None, *inputs, None, plan=make_plan(tree), sliding_window=options.get("window"),
        softcap=options.get("softcap"), s_aux=sinks,
    )  # fmt: skip
    torch.testing.assert_close(output[0], expected, atol=1e-5, rtol=1e-5)
    for gradient, other in zip(torch.autograd.grad((output[0] * weights).sum(), wanted), expected_grads, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-5, rtol=1e-4)


def test_in_bfloat16_values_and_gradients_are_near(tree):
    inputs = make_inputs(len(tree.ids))
    expected, _ = tree_attention(None, *inputs, None, plan=make_plan(tree))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, _ = tree_attention(None, *inputs, None, plan=make_plan(tree))
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.float(), expected, atol=0.03, rtol=0.03)
    grads = torch.autograd.grad(output.float().square().sum(), inputs)
    for gradient, other in zip(grads, torch.autograd.grad(expected.square().sum(), inputs), strict=True):
        torch.testing.assert_close(gradient, other, atol=0.1, rtol=0.1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.filterwarnings("ignore:.*flex_attention:UserWarning")
def test_block_masks_of_flex_attention_give_the_same_values(options, tree):
    inputs = [tensor.detach() for tensor in make_inputs(len(tree.ids))]
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0]) if options.get("sinks") else None
    output = attend_by_blocks(
        *inputs, make_plan(tree), scale=SIZE**-0.5, **{**options, "sinks": sinks}, is_compiled=False
    )
    expected = attend_alone(tree, *inputs, **{**options, "sinks": sinks})
    torch.testing.assert_close(output[0].transpose(0, 1), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 300])
def test_blocks_that_are_left_out_have_no_token_that_sees_another(window):
    """A block is whole where all see all, and left out where none sees any."""
    root = np.arange(400)
    others = [np.concatenate([root[:300], np.full(200, 999)]), np.concatenate([root, np.full(90, 999)])]
    tree = build_token_tree([root, *others, np.arange(500, 700)])
    places = np.arange(len(tree.ids))
    is_seen = (places <= places[:, None]) & (places[:, None] < tree.ends)
    if window is not None:
        is_seen &= tree.positions[:, None] - tree.positions < window
    some, whole = compare_blocks(tree.positions, tree.ends, window)
    assert whole.any()
    assert np.tril(~some & ~whole).any()  # some earlier block is left out
    for row, column in np.ndindex(some.shape):
        block = is_seen[row * 128 : (row + 1) * 128, column * 128 : (column + 1) * 128]
        assert not whole[row, column] or block.all()
        assert some[row, column] or whole[row, column] or not block.any()
