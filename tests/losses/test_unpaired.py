"""KTO without pairs: hand-derived numbers, z₀ over an update, empty examples."""

import math

import pytest
import torch

from pairwright.losses import PairLogps, PreferenceOptions, kto_loss, mismatch_sums, preference_loss, reference_point

torch.set_num_threads(1)


def sigma(x):
    return 1 / (1 + math.exp(-x))


LOGPS = torch.tensor([-4.0, -9.0, 0.0], dtype=torch.float64)
REFERENCE = torch.tensor([-6.0, -6.0, 0.0], dtype=torch.float64)
COUNTS = torch.tensor([2.0, 3.0, 0.0], dtype=torch.float64)
DESIRABLE = torch.tensor([True, False, True])
Z0 = torch.tensor(1.0, dtype=torch.float64)


def test_the_loss_has_the_value_derived_by_hand_and_an_empty_example_none():
    # Scores 2 and -3, z₀ = 1: 1.5 σ(0.5 (1 - 2)) and 0.7 σ(0.5 (-3 - 1)).
    losses = kto_loss(LOGPS, REFERENCE, COUNTS, DESIRABLE, Z0, beta=0.5, desirable_weight=1.5, undesirable_weight=0.7)
    assert losses.loss_S.tolist() == pytest.approx([1.5 * sigma(-0.5), 0.7 * sigma(-2.0), 0.0])
    assert losses.weight_S.tolist() == [1.0, 1.0, 0.0]
    assert losses.rewards_S.tolist() == [1.0, -1.5, 0.0]
    assert losses.num_empty == 1
    weighted = kto_loss(LOGPS, REFERENCE, COUNTS, DESIRABLE, Z0, beta=0.5, weight_S=torch.tensor([2.0, 0.5, 3.0]))
    assert weighted.loss_S.tolist() == pytest.approx([2 * sigma(-0.5), 0.5 * sigma(-2.0), 0.0])
    assert weighted.weight_S.tolist() == [2.0, 0.5, 0.0]


def test_pairs_under_kto_are_the_mean_of_their_two_examples():
    pair = PairLogps(LOGPS[:1], LOGPS[1:2], COUNTS[:1], COUNTS[1:2], REFERENCE[:1], REFERENCE[1:2], reference_point=Z0)
    examples = kto_loss(LOGPS, REFERENCE, COUNTS, DESIRABLE, Z0)
    paired = preference_loss("kto", pair, PreferenceOptions())
    assert paired.loss_B.item() == pytest.approx((examples.loss_S.sum() / examples.weight_S.sum()).item())


def test_the_reference_point_is_a_mean_over_the_update_and_at_least_0():
    logps = torch.tensor([-1.0, -2.0, -6.0], requires_grad=True)
    ref = torch.tensor([-2.0, -6.0, -5.0])
    sums = [mismatch_sums(logps[:1], ref[:1]), mismatch_sums(logps[1:], ref[1:])]
    point = reference_point(sums[0][0] + sums[1][0], sums[0][1] + sums[1][1])
    assert point.item() == pytest.approx((1 + 4 - 1) / 3)
    assert not point.requires_grad
    assert reference_point(*mismatch_sums(ref, logps)).item() == 0.0
    assert reference_point(*mismatch_sums(ref[:0], logps[:0])).item() == 0.0


def test_the_gradient_passes_gradcheck_and_is_finite_far_out():
    logps = LOGPS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda values: kto_loss(values, REFERENCE, COUNTS, DESIRABLE, Z0).loss_S, logps)
    point = Z0.clone().requires_grad_()
    kto_loss(logps, REFERENCE, COUNTS, DESIRABLE, point).loss_S.sum().backward()
    assert point.grad is None
    far = torch.tensor([-1e6, -1e6], requires_grad=True)
    losses = kto_loss(far, torch.tensor([0.0, -2e6]), torch.ones(2), torch.tensor([True, False]), torch.tensor(0.0))
    losses.loss_S.sum().backward()
    assert losses.loss_S.tolist() == [1.0, 1.0]
    assert far.grad.isfinite().all()
