"""Log-probabilities at wanted positions: equal to the plain computation, value and gradient, in chunks."""

import doctest

import pytest
import torch

from pairwright.losses import logps as module
from pairwright.losses.logps import masked_logps, sum_by_sequence

torch.set_num_threads(1)


def inputs(*, n=7, h=5, v=11, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(n, h, generator=generator, dtype=torch.float64).to(dtype)
    weight = torch.randn(v, h, generator=generator, dtype=torch.float64).to(dtype)
    bias = torch.randn(v, generator=generator, dtype=torch.float64).to(dtype)
    targets = torch.randint(0, v, (n,), generator=generator)
    return hidden, weight, bias, targets


def plain(hidden, weight, bias, targets, *, scale=1.0, softcap=None, temperature=1.0):
    """What the function must equal, as one would write it with all logits at hand."""
    logits = torch.nn.functional.linear(hidden, weight, bias).to(torch.promote_types(hidden.dtype, torch.float32))
    logits = logits * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    logps = torch.log_softmax(logits / temperature, -1)
    return logps.gather(1, targets[:, None])[:, 0], -(logps.exp() * logps).sum(-1)


HEADS = [{}, {"scale": 0.3}, {"softcap": 2.0}, {"temperature": 0.7}, {"scale": 1.7, "softcap": 3.0, "temperature": 1.3}]


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("chunk_size", [1, 3, 7, 100])
def test_values_and_gradients_equal_the_plain_computation(head, chunk_size):
    hidden, weight, bias, targets = inputs()
    results = []
    for compute in (
        lambda *args: masked_logps(*args, chunk_size=chunk_size, **head),
        lambda *args: plain(*args, **head)[0],
    ):
        leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight, bias)]
        logps = compute(*leaves, targets)
        (logps * torch.linspace(-1, 2, 7, dtype=torch.float64)).sum().backward()
        results.append([logps.detach(), *(leaf.grad for leaf in leaves)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("head", HEADS, ids=str)
@pytest.mark.parametrize("trained", ["hidden", "weight", "bias", "all"])
def test_the_gradient_passes_gradcheck_whatever_is_trained(head, trained):
    hidden, weight, bias, targets = inputs(n=4, h=3, v=5)
    for name, tensor in {"hidden": hidden, "weight": weight, "bias": bias}.items():
        tensor.requires_grad_(trained in (name, "all"))
    assert torch.autograd.gradcheck(
        lambda h, w, b: masked_logps(h, w, b, targets, chunk_size=3, **head), (hidden, weight, bias)
    )


def test_a_bias_is_not_needed():
    hidden, weight, _, targets = inputs()
    torch.testing.assert_close(masked_logps(hidden, weight, None, targets), plain(hidden, weight, None, targets)[0])


def test_a_second_backward_pass_gives_the_same_gradient():
    """The block that the forward pass keeps is overwritten by the first backward pass."""
    hidden, weight, bias, targets = inputs()
    weight.requires_grad_()
    logps = masked_logps(hidden, weight, bias, targets, chunk_size=3)
    (first,) = torch.autograd.grad(logps.sum(), weight, retain_graph=True)
    (second,) = torch.autograd.grad(logps.sum(), weight)
    assert torch.equal(first, second)


def test_logps_have_no_grad_fn_without_gradients():
    hidden, weight, bias, targets = inputs()
    with torch.no_grad():
        logps = masked_logps(hidden.requires_grad_(), weight, bias, targets)
    assert logps.grad_fn is None


def test_no_position_gives_nothing_and_a_zero_gradient():
    hidden, weight, bias, targets = inputs(n=0)
    weight.requires_grad_()
    logps = masked_logps(hidden, weight, bias, targets)
    assert logps.shape == (0,)
    logps.sum().backward()
    assert torch.equal(weight.grad, torch.zeros_like(weight))


def test_under_bfloat16_the_softmax_and_the_sums_over_chunks_are_float32():
    """A chunk adds 1 at a time to a weight's gradient of more than 256, which bfloat16 could not count."""
    n = 600
    hidden = torch.ones(n, 1, dtype=torch.bfloat16)
    weight = torch.tensor([[40.0], [0.0]], dtype=torch.bfloat16, requires_grad=True)
    logps = masked_logps(hidden, weight, None, torch.ones(n, dtype=torch.long), chunk_size=1)
    assert logps.dtype == torch.float32
    assert logps.tolist() == [-40.0] * n  # log p = 0 - log(e^40 + 1)
    logps.sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    assert weight.grad.flatten().tolist() == [-600.0, 600.0]


def test_bfloat16_is_as_close_to_the_truth_as_the_plain_computation():
    hidden, weight, bias, targets = inputs(n=64, h=32, v=200, dtype=torch.bfloat16)
    exact = plain(*(tensor.double() for tensor in (hidden, weight, bias)), targets)[0]
    ours = masked_logps(hidden, weight, bias, targets, chunk_size=10)
    theirs = plain(hidden, weight, bias, targets)[0]
    torch.testing.assert_close(ours, theirs)
    assert (ours - exact).abs().max() <= (theirs - exact).abs().max() * 1.01


def test_extreme_logits_give_finite_values_and_gradients():
    hidden = torch.tensor([[1e4], [-1e4], [3e38]], requires_grad=True)
    weight = torch.tensor([[1.0], [-1.0]], requires_grad=True)
    logps = masked_logps(hidden, weight, None, torch.tensor([0, 0, 0]), chunk_size=2)
    assert logps.tolist() == [0.0, -2e4, 0.0]
    logps.sum().backward()
    # d/dw of the second: (1 - p0) h = -1e4 for the target, (0 - p1) h = 1e4 for the other.
    assert weight.grad.flatten().tolist() == [-1e4, 1e4]
    assert hidden.grad.flatten().tolist() == [0.0, 2.0, 0.0]


def test_a_forbidden_token_has_no_share():
    """A bias of -inf, as padded vocabularies have it."""
    bias = torch.tensor([0.0, 0.0, -torch.inf])
    logps = masked_logps(torch.zeros(1, 2), torch.zeros(3, 2), bias, torch.tensor([1]))
    torch.testing.assert_close(logps, torch.tensor([0.5]).log())


def test_autocast_computes_in_its_dtype_and_gives_gradients_in_that_of_the_parameters():
    hidden, weight, bias, targets = inputs(n=9, dtype=torch.float32)
    weight.requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logps = masked_logps(hidden, weight, bias, targets, chunk_size=4)
    narrow = [tensor.detach().bfloat16() for tensor in (hidden, weight, bias)]
    assert torch.equal(logps, masked_logps(*narrow, targets, chunk_size=4))
    logps.sum().backward()
    assert weight.grad.dtype == torch.float32


class Blocks(torch.utils._python_dispatch.TorchDispatchMode):
    """Notes the number of elements of every tensor that is made."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else [result]
        self.sizes += [tensor.numel() for tensor in results if isinstance(tensor, torch.Tensor)]
        return result


@pytest.mark.parametrize("frozen_head", [True, False])
def test_the_whole_block_of_logits_is_never_held(frozen_head):
    """No tensor of more than a chunk of positions by the vocabulary is made, forward or backward."""
    hidden, weight, bias, targets = inputs(n=64, h=4, v=512)
    hidden.requires_grad_()
    weight.requires_grad_(not frozen_head)
    with Blocks() as blocks:
        masked_logps(hidden, weight, bias, targets, chunk_size=8).sum().backward()
    assert max(blocks.sizes) == 8 * 512


def test_with_a_frozen_head_no_logits_are_computed_again():
    hidden, weight, bias, targets = inputs(n=64, h=4, v=512)
    logps = masked_logps(hidden.requires_grad_(), weight, bias, targets, chunk_size=8)
    with Blocks() as blocks:
        logps.sum().backward()
    assert max(blocks.sizes) == 64 * 4


def test_sums_and_counts_of_sequences():
    logps = torch.tensor([-1.0, -2.0, -4.0, -8.0], requires_grad=True)
    sums, counts = sum_by_sequence(logps, torch.tensor([2, 0, 2, 3]), 5)
    assert sums.tolist() == [-2.0, 0.0, -5.0, -8.0, 0.0]
    assert counts.tolist() == [1.0, 0.0, 2.0, 1.0, 0.0]
    assert sums.requires_grad
    assert not counts.requires_grad
    assert doctest.testmod(module).failed == 0
