"""The policy loss and advantages: hand-derived numbers, sums that add up, tokens that are not there, extreme ratios."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from pairwright.errors import ConfigError
from pairwright.losses import (
    PolicyOptions,
    PolicyTokens,
    group_advantages,
    policy_loss,
)
from pairwright.losses.advantages import token_advantages
from pairwright.losses.policy import divergence

torch.set_num_threads(1)


def four_tokens(**changes):
    """Two sequences: tokens 0-2 with advantage 1, token 3 with advantage -2. Ratios ½, 1, 2 and 2."""
    logps = torch.full((4,), -3.0, dtype=torch.float64)
    ratios = torch.tensor([0.5, 1.0, 2.0, 2.0], dtype=torch.float64)
    tokens = PolicyTokens(
        logps_N=logps,
        advantages_N=torch.tensor([1.0, 1.0, 1.0, -2.0], dtype=torch.float64),
        sequence_N=torch.tensor([0, 0, 0, 1]),
        num_sequences=2,
        old_logps_N=logps - ratios.log(),
    )
    return replace(tokens, **changes)


# Per token, ε = 0.2: -min(½, 0.8) = -½; -1; -min(2, 1.2) = -1.2; -min(-4, -2.4) = 4.
HAND = [
    ({}, -0.5 - 1 - 1.2 + 4, 4),
    ({"aggregation": "sequence"}, (-0.5 - 1 - 1.2) / 3 + 4, 2),
    ({"aggregation": "constant", "constant_length": 10}, -0.5 - 1 - 1.2 + 4, 20),
    ({"clip_high": 0.5}, -0.5 - 1 - 1.5 + 4, 4),
    # GSPO: the first sequence has ratio (½ · 1 · 2)^(1/3) = 1, the second 2.
    ({"loss": "gspo"}, -3 + 4, 4),
]


@pytest.mark.parametrize(("changes", "total", "normaliser"), HAND, ids=[str(changes) for changes, _, _ in HAND])
def test_the_loss_has_the_value_derived_by_hand(changes, total, normaliser):
    result = policy_loss(four_tokens(), PolicyOptions(**changes))
    assert result.total.item() == pytest.approx(total)
    assert result.normaliser.item() == normaliser
    assert (result.num_tokens, result.num_sequences, result.num_unrecorded) == (4, 2, 0)


# The first sequence counts a third: its share of the sum and of what the sum is divided by.
WEIGHTED = [
    ({}, -2.7 / 3 + 4, 3 / 3 + 1),
    ({"aggregation": "sequence"}, -2.7 / 3 / 3 + 4, 1 / 3 + 1),
    ({"aggregation": "constant", "constant_length": 10}, -2.7 / 3 + 4, 10 / 3 + 10),
]


@pytest.mark.parametrize(("changes", "total", "normaliser"), WEIGHTED)
def test_a_weight_counts_in_the_sum_and_in_what_it_is_divided_by(changes, total, normaliser):
    tokens = four_tokens(weights_S=torch.tensor([1 / 3, 1.0], dtype=torch.float64))
    result = policy_loss(tokens, PolicyOptions(**changes))
    assert (result.total.item(), result.normaliser.item()) == (pytest.approx(total), pytest.approx(normaliser))
    assert result.num_sequences == 2


def test_clipped_tokens_are_counted_on_the_side_where_the_clip_takes_their_gradient():
    # ρ = 2 with A > 0 is clipped above; ρ = 2 with A < 0 is not; ρ = ½ with A > 0 is not, with A < 0 it is.
    result = policy_loss(four_tokens(), PolicyOptions())
    assert (result.num_clipped_low, result.num_clipped_high, result.ratio_sum.item()) == (0, 1, 5.5)
    turned = policy_loss(four_tokens(advantages_N=-four_tokens().advantages_N), PolicyOptions())
    assert (turned.num_clipped_low, turned.num_clipped_high) == (1, 1)
    logps = four_tokens().logps_N.clone().requires_grad_()
    policy_loss(four_tokens(logps_N=logps), PolicyOptions()).total.backward()
    assert logps.grad.tolist() == pytest.approx([-0.5, -1.0, 0.0, 4.0])


@pytest.mark.parametrize("loss", ["token", "gspo"])
def test_without_recorded_log_probabilities_the_ratio_is_1_and_the_gradient_that_of_the_policy(loss):
    """d/dθ of -ρ A at ρ = 1 is -A; for gspo too, since the tokens of a sequence share its ratio and its advantage."""
    logps = four_tokens().logps_N.clone().requires_grad_()
    result = policy_loss(four_tokens(logps_N=logps, old_logps_N=None), PolicyOptions(loss=loss))
    result.total.backward()
    assert (result.num_unrecorded, result.ratio_sum.item()) == (4, 4.0)
    assert logps.grad.tolist() == pytest.approx([-1.0, -1.0, -1.0, 2.0])


def test_a_token_without_a_record_has_a_ratio_of_1_and_the_others_keep_theirs():
    old = four_tokens().old_logps_N.clone()
    old[2] = torch.nan
    result = policy_loss(four_tokens(old_logps_N=old), PolicyOptions())
    assert result.total.item() == pytest.approx(-0.5 - 1 - 1 + 4)
    assert result.num_unrecorded == 1


def test_the_divergence_estimate_by_hand():
    # π = ½, ref = ¼: d = ln 2. And the other way round.
    logps, ref = torch.tensor([0.5, 0.25]).double().log(), torch.tensor([0.25, 0.5]).double().log()
    ln2 = math.log(2)
    assert divergence(logps, ref).tolist() == pytest.approx([0.5 - 1 + ln2, 2 - 1 - ln2])


def test_the_divergence_is_added_with_its_weight_and_reported_without():
    ref = four_tokens().logps_N - math.log(2)
    result = policy_loss(four_tokens(ref_logps_N=ref), PolicyOptions(kl_weight=0.1))
    assert result.total.item() == pytest.approx(1.3 + 0.1 * 4 * (0.5 - 1 + math.log(2)))
    assert result.kl_sum.item() == pytest.approx(4 * (0.5 - 1 + math.log(2)))
    with pytest.raises(ConfigError, match="kl_weight: it needs the reference"):
        policy_loss(four_tokens(), PolicyOptions(kl_weight=0.1))


def random_tokens(seed=0):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([4, 1, 6, 3, 2])
    sequence = torch.arange(5).repeat_interleave(lengths)
    logps = -torch.rand(16, generator=generator, dtype=torch.float64) - 0.1
    noise = torch.randn(2, 16, generator=generator, dtype=torch.float64) * 0.3
    return PolicyTokens(
        logps,
        torch.randn(5, generator=generator, dtype=torch.float64)[sequence],
        sequence,
        5,
        logps + noise[0],
        logps + noise[1],
    )


def part(tokens, first, last):
    """Sequences from `first` up to `last`, numbered from 0."""
    chosen = (tokens.sequence_N >= first) & (tokens.sequence_N < last)
    return PolicyTokens(
        tokens.logps_N[chosen], tokens.advantages_N[chosen], tokens.sequence_N[chosen] - first, last - first,
        tokens.old_logps_N[chosen], tokens.ref_logps_N[chosen],
    )  # fmt: skip


@pytest.mark.parametrize("loss", ["token", "gspo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
@pytest.mark.parametrize("cuts", [[0, 5], [0, 1, 5], [0, 1, 2, 3, 4, 5]])
def test_micro_batches_give_the_update_of_the_whole_batch(loss, aggregation, cuts):
    options = PolicyOptions(loss=loss, aggregation=aggregation, kl_weight=0.05)
    whole = random_tokens()
    whole.logps_N.requires_grad_()
    expected = policy_loss(whole, options)
    (expected.total / expected.normaliser).backward()
    tokens = random_tokens()
    tokens.logps_N.requires_grad_()
    results = [policy_loss(part(tokens, first, last), options) for first, last in pairwise(cuts)]
    normaliser = sum(result.normaliser for result in results)
    for result in results:
        (result.total / normaliser).backward()
    assert normaliser == expected.normaliser
    torch.testing.assert_close(tokens.logps_N.grad, whole.logps_N.grad, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("loss", ["token", "gspo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_the_order_of_sequences_and_those_without_tokens_change_nothing(loss, aggregation):
    options = PolicyOptions(loss=loss, aggregation=aggregation)
    tokens = random_tokens()
    expected = policy_loss(tokens, options)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(3))
    moved = PolicyTokens(
        tokens.logps_N[order], tokens.advantages_N[order], 2 * tokens.sequence_N[order] + 1, 12,
        tokens.old_logps_N[order], tokens.ref_logps_N[order],
    )  # fmt: skip
    result = policy_loss(moved, options)
    torch.testing.assert_close(result.total, expected.total)
    assert (result.normaliser, result.num_sequences) == (expected.normaliser, 5)


@pytest.mark.parametrize("loss", ["token", "gspo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_the_gradient_passes_gradcheck(loss, aggregation):
    tokens = random_tokens()
    options = PolicyOptions(loss=loss, aggregation=aggregation, kl_weight=0.05)
    assert torch.autograd.gradcheck(
        lambda logps: policy_loss(replace(tokens, logps_N=logps), options).total, tokens.logps_N.requires_grad_()
    )


@pytest.mark.parametrize("loss", ["token", "gspo"])
@pytest.mark.parametrize("aggregation", ["token", "sequence", "constant"])
def test_no_token_is_a_clean_zero(loss, aggregation):
    logps = torch.zeros(0, requires_grad=True)
    tokens = PolicyTokens(logps, torch.zeros(0), torch.zeros(0, dtype=torch.long), 3)
    result = policy_loss(tokens, PolicyOptions(loss=loss, aggregation=aggregation))
    result.total.backward()
    assert (result.total.item(), result.normaliser.item(), result.num_tokens, result.num_sequences) == (0.0, 0.0, 0, 0)
    assert logps.grad.shape == (0,)


@pytest.mark.parametrize("loss", ["token", "gspo"])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("apart", [-500.0, 500.0])
def test_extreme_ratios_have_finite_losses_and_gradients(loss, advantage, apart):
    logps = torch.tensor([-1.0, -600.0], requires_grad=True)
    old = logps.detach() - apart
    tokens = PolicyTokens(logps, torch.full((2,), advantage), torch.tensor([0, 1]), 2, old, old)
    result = policy_loss(tokens, PolicyOptions(loss=loss, kl_weight=0.1))
    result.total.backward()
    assert result.total.isfinite()
    assert logps.grad.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"loss": "ppo"}, "loss: got 'ppo', expected 'token' or 'gspo'"),
        ({"aggregation": "mean"}, "aggregation: got 'mean', expected 'token', 'sequence' or 'constant'"),
    ],
)
def test_unknown_names_are_refused(changes, words):
    with pytest.raises(ConfigError, match=words):
        policy_loss(four_tokens(), PolicyOptions(**changes))


def test_advantages_by_hand():
    # Group 0: 1, 2, 6, mean 3, deviations -2, -1, 3, variance (4 + 1 + 9) / 2 = 7. Group 1: 0, 1.
    rewards, group = torch.tensor([1.0, 0.0, 2.0, 6.0, 1.0]).double(), torch.tensor([0, 1, 0, 0, 1])
    root = math.sqrt(7)
    assert group_advantages(rewards, group, kind="dr_grpo").values_S.tolist() == [-2.0, -0.5, -1.0, 3.0, 0.5]
    assert group_advantages(rewards, group, kind="grpo", epsilon=0.0).values_S.tolist() == pytest.approx(
        [-2 / root, -0.5 / math.sqrt(0.5), -1 / root, 3 / root, 0.5 / math.sqrt(0.5)]
    )
    with pytest.raises(ConfigError, match="advantage: got 'gae', expected grpo or dr_grpo"):
        group_advantages(rewards, group, kind="gae")


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_group_without_spread_is_counted_and_exactly_zero(kind):
    """0.1 three times has a mean in float32 that is not 0.1; a single run has no counterpart."""
    rewards, group = torch.tensor([0.1, 0.1, 0.1, 7.0, 1.0, 2.0]), torch.tensor([0, 0, 0, 1, 2, 2])
    result = group_advantages(rewards, group, kind=kind, num_groups=4)
    assert result.values_S[:4].tolist() == [0.0] * 4
    assert result.values_S[4] < 0 < result.values_S[5]
    assert result.is_active_S.tolist() == [False] * 4 + [True] * 2
    assert (result.num_groups, result.num_flat_groups, result.num_unscored) == (4, 3, 0)


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_run_without_a_score_stays_out_of_its_group(kind):
    rewards, group = torch.tensor([1.0, torch.nan, 3.0, torch.inf, torch.nan]), torch.tensor([0, 0, 0, 0, 1])
    result = group_advantages(rewards, group, kind=kind)
    alone = group_advantages(torch.tensor([1.0, 3.0]), torch.tensor([0, 0]), kind=kind)
    assert result.values_S.tolist() == [alone.values_S[0], 0.0, alone.values_S[1], 0.0, 0.0]
    assert (result.num_unscored, result.num_flat_groups) == (3, 1)


def test_no_run_at_all_has_no_advantages():
    result = group_advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert (result.values_S.shape, result.num_groups, result.num_flat_groups) == ((0,), 0, 0)


def test_a_token_has_the_advantages_of_the_rewards_from_it_on():
    # Group 0 has the rewards 1, -1 and 3: mean 1, deviations 0, -2, 2, sample std 2. Group 1 has one reward: no spread.
    runs = [torch.tensor([0.0, 1.0, 0.0, -1.0]), torch.tensor([0.0, 3.0, 0.0]), torch.tensor([5.0])]
    found = token_advantages(runs, torch.tensor([0, 0, 1]), kind="grpo")
    step = 2 / (2 + 1e-4)
    assert found[0].tolist() == pytest.approx([-step, -step, -step, -step])
    assert found[1].tolist() == pytest.approx([step, step, 0.0])
    assert found[2].tolist() == [0.0]


def test_runs_without_any_reward_of_a_token_have_no_advantages():
    assert [run.tolist() for run in token_advantages([torch.zeros(2), torch.zeros(0)], torch.tensor([0, 0]))] == [
        [0, 0], []
    ]  # fmt: skip
