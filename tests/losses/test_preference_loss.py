"""Preference losses: hand-derived numbers, gradients, weights, micro-batches, empty pairs, extreme scores, refusals."""

import math
import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch

from pairwright.errors import ConfigError
from pairwright.losses import (
    PREFERENCE_LOSSES,
    PairLogps,
    PreferenceOptions,
    check_preference,
    preference_loss,
    sft_loss,
)

torch.set_num_threads(1)

NAMES = sorted(PREFERENCE_LOSSES)
LN2, LN3 = math.log(2), math.log(3)


def one_pair(**changes):
    """log π of chosen -4 over 2 tokens, of rejected -9 over 3; under the reference -6 and -6.

    Scores: chosen -4 + 6 = 2, rejected -9 + 6 = -3; averaged 1 and -1. Averaged log π: -2 and -3.
    """
    values = {
        "chosen_B": -4.0, "rejected_B": -9.0, "num_chosen_B": 2.0, "num_rejected_B": 3.0,
        "ref_chosen_B": -6.0, "ref_rejected_B": -6.0, "margin_B": 0.5, "reference_point": 1.0,
    } | changes  # fmt: skip
    return PairLogps(
        **{
            name: None if value is None else torch.tensor([value], dtype=torch.float64)
            for name, value in values.items()
        }
    )


def random_pairs(size=6, *, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def draw(scale):
        return (torch.randn(size, generator=generator, dtype=torch.float64) * scale).to(dtype)

    return PairLogps(
        chosen_B=-20 + draw(5), rejected_B=-20 + draw(5), ref_chosen_B=-20 + draw(5), ref_rejected_B=-20 + draw(5),
        num_chosen_B=torch.randint(1, 9, (size,), generator=generator).to(dtype),
        num_rejected_B=torch.randint(1, 9, (size,), generator=generator).to(dtype),
        weight_B=draw(1).abs(), margin_B=draw(1).abs(), reference_point=torch.tensor(0.3, dtype=dtype),
    )  # fmt: skip


def rows(logps, index):
    """The same pairs in another order, or some of them; z₀ belongs to the update, not to a pair."""
    taken = {
        field.name: value[index]
        for field in fields(logps)
        if isinstance(value := getattr(logps, field.name), torch.Tensor) and value.ndim
    }
    return replace(logps, **taken)


def with_gradient(logps):
    leaves = [logps.chosen_B.clone().requires_grad_(), logps.rejected_B.clone().requires_grad_()]
    return replace(logps, chosen_B=leaves[0], rejected_B=leaves[1]), leaves


# β = ln 3 / 5 makes z = β (2 - -3) = ln 3, so σ(z) = 3/4 and σ(-z) = 1/4.
BETA = LN3 / 5
HALF = 1 / (2 * BETA)  # the target of ipo


def sigma(x):
    return 1 / (1 + math.exp(-x))


HAND = [
    ("sigmoid", {}, -math.log(3 / 4)),
    ("sigmoid", {"label_smoothing": 0.2}, -0.8 * math.log(3 / 4) - 0.2 * math.log(1 / 4)),
    # The margin is taken off z: σ(ln 3 - 0.5).
    ("sigmoid", {"use_margin": True}, -math.log(sigma(LN3 - 0.5))),
    # Averaged: z = β (1 - -1) = 2 ln 3 / 5.
    ("sigmoid", {"preference_average_log_probs": True}, -math.log(sigma(2 * LN3 / 5))),
    ("robust", {}, -math.log(3 / 4)),
    ("robust", {"label_smoothing": 0.2}, (-0.8 * math.log(3 / 4) + 0.2 * math.log(1 / 4)) / 0.6),
    ("hinge", {}, 0.0),  # z = 1.0986 is beyond the hinge
    ("hinge", {"use_margin": True}, 1 - (LN3 - 0.5)),
    # Averaged scores: 1 - -1 = 2.
    ("ipo", {}, (2 - HALF) ** 2),
    ("apo_zero", {}, sigma(-2 * BETA) + sigma(-3 * BETA)),
    # σ(β·2) + σ(-z)
    ("apo_down", {}, sigma(2 * BETA) + 1 / 4),
    # Averaged log π: -2 and -3, no reference. z = β (-2 - -3) - γ.
    ("simpo", {"gamma": 0.0}, -math.log(sigma(BETA))),
    ("simpo", {}, -math.log(sigma(BETA - 0.5))),
    ("simpo", {"label_smoothing": 0.2}, -0.8 * math.log(sigma(BETA - 0.5)) - 0.2 * math.log(sigma(0.5 - BETA))),
    # NLL per token is 2; odds are e^-2 / (1 - e^-2) and e^-3 / (1 - e^-3).
    ("orpo", {}, 2 - BETA * math.log(sigma(math.log((math.exp(-2) / (1 - math.exp(-2))) / (math.exp(-3) / (1 - math.exp(-3))))))),
    # z₀ = 1: ½ σ(β (1 - 2)) + ½ σ(β (-3 - 1))
    ("kto", {}, 0.5 * sigma(-BETA) + 0.5 * sigma(-4 * BETA)),
    ("kto", {"desirable_weight": 2.0, "undesirable_weight": 3.0}, sigma(-BETA) + 1.5 * sigma(-4 * BETA)),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "expected"), HAND, ids=[f"{name}-{changes}" for name, changes, _ in HAND])
def test_a_loss_has_the_value_derived_by_hand(name, changes, expected):
    losses = preference_loss(name, one_pair(), PreferenceOptions(beta=BETA, **changes))
    assert losses.loss_B.tolist() == pytest.approx([expected], rel=1e-12, abs=1e-15)
    assert losses.preference_B.tolist() == pytest.approx([expected], rel=1e-12, abs=1e-15)


def test_every_loss_has_a_number_derived_by_hand():
    assert {name for name, _, _ in HAND} == set(PREFERENCE_LOSSES)


def test_without_any_difference_dpo_is_ln_2():
    losses = preference_loss("sigmoid", one_pair(chosen_B=-6.0, rejected_B=-6.0), PreferenceOptions())
    assert losses.loss_B.item() == pytest.approx(LN2)


def test_eight_pairs_give_the_mean_of_eight_sigmoids():
    """Not the sigmoid of a sum."""
    logps = replace(random_pairs(8), weight_B=None)
    losses = preference_loss("sigmoid", logps, PreferenceOptions(beta=0.1))
    expected = [
        -math.log(sigma(0.1 * ((c - rc) - (r - rr))))
        for c, r, rc, rr in zip(logps.chosen_B, logps.rejected_B, logps.ref_chosen_B, logps.ref_rejected_B, strict=True)
    ]
    assert (losses.loss_B.sum() / losses.weight_B.sum()).item() == pytest.approx(sum(expected) / 8)


@pytest.mark.parametrize(
    ("name", "expected"), [("sigmoid", (0.2, -0.3)), ("ipo", (0.1, -0.1)), ("simpo", (-0.2, -0.3))]
)
def test_rewards_are_the_scaled_scores_that_the_loss_compared(name, expected):
    losses = preference_loss(name, with_gradient(one_pair())[0], PreferenceOptions(beta=0.1))
    assert losses.chosen_rewards_B.tolist() == pytest.approx([expected[0]])
    assert losses.rejected_rewards_B.tolist() == pytest.approx([expected[1]])
    reported = (losses.chosen_rewards_B, losses.rejected_rewards_B, losses.preference_B, losses.sft_B)
    assert [values.requires_grad for values in (losses.loss_B, *reported)] == [True, False, False, False, False]


def test_the_sft_term_is_added_with_its_weight():
    # NLL of chosen is 4, or 2 per token; DPO is -ln(3/4).
    options = PreferenceOptions(beta=BETA, preference_loss_weight=0.5, sft_loss_weight=0.1)
    assert preference_loss("sigmoid", one_pair(), options).loss_B.item() == pytest.approx(-0.5 * math.log(3 / 4) + 0.4)
    averaged = preference_loss("sigmoid", one_pair(), options.model_copy(update={"sft_average_log_probs": True}))
    assert averaged.loss_B.item() == pytest.approx(-0.5 * math.log(3 / 4) + 0.2)
    assert averaged.sft_B.item() == pytest.approx(2.0)


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_passes_gradcheck(name):
    logps, leaves = with_gradient(random_pairs())
    options = PreferenceOptions(sft_loss_weight=0.3)

    def compute(chosen, rejected):
        return preference_loss(name, replace(logps, chosen_B=chosen, rejected_B=rejected), options).loss_B

    assert torch.autograd.gradcheck(compute, leaves)


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_pairs_changes_nothing(name):
    logps, order = random_pairs(), torch.tensor([3, 1, 5, 0, 4, 2])
    there = preference_loss(name, logps, PreferenceOptions())
    here = preference_loss(name, rows(logps, order), PreferenceOptions())
    assert torch.equal(here.loss_B, there.loss_B[order])
    assert torch.equal(here.chosen_rewards_B, there.chosen_rewards_B[order])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2], [1] * 6])
def test_micro_batches_give_the_update_of_the_whole_batch(name, cuts):
    """Weighted mean over all pairs, however they are cut: Σ w ℓ / Σ w."""
    whole, leaves = with_gradient(random_pairs())
    losses = preference_loss(name, whole, PreferenceOptions(sft_loss_weight=0.3))
    (losses.loss_B.sum() / losses.weight_B.sum()).backward()

    parts, part_leaves = with_gradient(random_pairs())
    total_weight, start = parts.weight_B.sum(), 0
    for size in cuts:
        piece = rows(parts, torch.arange(start, start + size))
        (preference_loss(name, piece, PreferenceOptions(sft_loss_weight=0.3)).loss_B.sum() / total_weight).backward()
        start += size
    for ours, expected in zip(part_leaves, leaves, strict=True):
        torch.testing.assert_close(ours.grad, expected.grad, rtol=1e-12, atol=1e-14)


def test_a_pair_of_weight_two_counts_like_two_pairs():
    logps = rows(random_pairs(), torch.tensor([0, 1]))
    twice = replace(rows(logps, torch.tensor([0, 1, 1])), weight_B=None)
    once = preference_loss("sigmoid", replace(logps, weight_B=torch.tensor([1.0, 2.0])), PreferenceOptions())
    expected = preference_loss("sigmoid", twice, PreferenceOptions())
    assert (once.loss_B.sum() / once.weight_B.sum()).item() == pytest.approx(
        (expected.loss_B.sum() / expected.weight_B.sum()).item()
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", ["num_chosen_B", "num_rejected_B"])
@pytest.mark.parametrize("value", [0.0, torch.inf, torch.nan])
def test_a_pair_with_an_empty_side_is_a_counted_zero_without_gradient(name, side, value):
    """An empty side has a sum of 0, where orpo's odds are infinite, and the padding of a batch may be anything."""
    logps = random_pairs(3)
    empty = {side: logps.num_chosen_B.clone(), "chosen_B": logps.chosen_B.clone()}
    empty[side][1], empty["chosen_B"][1] = 0.0, value
    logps, leaves = with_gradient(replace(logps, **empty))
    losses = preference_loss(name, logps, PreferenceOptions(sft_loss_weight=1.0))
    assert losses.num_empty == 1
    assert losses.loss_B[1] == losses.weight_B[1] == losses.preference_B[1] == losses.chosen_rewards_B[1] == 0
    losses.loss_B.sum().backward()
    assert all(leaf.grad[1] == 0 and leaf.grad.isfinite().all() for leaf in leaves)
    assert leaves[1].grad[0] != 0 or name == "hinge"
    others = preference_loss(name, rows(logps, torch.tensor([0, 2])), PreferenceOptions(sft_loss_weight=1.0))
    assert torch.equal(losses.loss_B[[0, 2]], others.loss_B)


@pytest.mark.parametrize("name", NAMES)
def test_no_pair_at_all_is_a_clean_zero(name):
    logps, leaves = with_gradient(rows(random_pairs(), torch.tensor([], dtype=torch.long)))
    losses = preference_loss(name, logps, PreferenceOptions())
    assert losses.loss_B.sum() == losses.weight_B.sum() == losses.num_empty == 0
    losses.loss_B.sum().backward()
    assert leaves[0].grad.shape == (0,)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("far", [-1e5, 1e5])
def test_extreme_scores_have_finite_losses_and_gradients_in_float32(name, far):
    logps = random_pairs(4, dtype=torch.float32)
    logps, leaves = with_gradient(
        replace(logps, chosen_B=torch.full((4,), min(far, 0.0)), rejected_B=torch.full((4,), min(-far, 0.0)))
    )
    losses = preference_loss(name, logps, PreferenceOptions())
    losses.loss_B.sum().backward()
    assert losses.loss_B.isfinite().all()
    assert all(leaf.grad.isfinite().all() for leaf in leaves)


def test_far_out_the_sigmoid_keeps_its_value_and_its_gradient_in_float32():
    """z = -200: log(σ(z)) through a rounded σ would be -inf. The loss is 200 and the slope -β."""
    logps = PairLogps(
        *(torch.tensor([value], requires_grad=value == -2000.0) for value in (-2000.0, -0.0, 5.0, 5.0)),
        ref_chosen_B=torch.zeros(1),
        ref_rejected_B=torch.zeros(1),
    )
    losses = preference_loss("sigmoid", logps, PreferenceOptions(beta=0.1))
    losses.loss_B.sum().backward()
    assert losses.loss_B.item() == pytest.approx(200.0)
    assert logps.chosen_B.grad.item() == pytest.approx(-0.1)


def test_the_reference_point_of_kto_has_no_gradient():
    point = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    logps, _ = with_gradient(replace(random_pairs(), reference_point=point))
    preference_loss("kto", logps, PreferenceOptions()).loss_B.sum().backward()
    assert point.grad is None


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("dpo", {}, "loss: got 'dpo', expected one of apo_down, apo_zero, hinge"),
        (
            "ipo",
            {"label_smoothing": 0.1},
            "label_smoothing: got 0.1, but ipo does not use it: it is for robust, sigmoid, simpo",
        ),
        ("sigmoid", {"gamma": 1.0}, "gamma: got 1.0, but sigmoid does not use it: it is for simpo"),
        ("robust", {"label_smoothing": 0.5}, "label_smoothing: got 0.5, expected below 0.5"),
        ("sigmoid", {"beta": 0.0}, "beta: got 0.0, expected above 0"),
        ("sigmoid", {"label_smoothing": -0.1}, "label_smoothing: got -0.1, expected at least 0"),
        ("sigmoid", {"betta": 0.1}, "unknown key 'betta'; did you mean 'beta'?"),
        ("apo_zero", {"use_margin": True}, "use_margin: got True, but apo_zero does not use it"),
        ({"apo_zero": 1.0, "ipo": 1.0}, {"gamma": 1.0}, "gamma: got 1.0, but apo_zero + ipo do not use it"),
        ({"sigmoid": 1.0, "sft": 1.0}, {}, "loss: got 'sft'"),
    ],
)
def test_what_a_loss_cannot_do_is_refused(name, changes, words):
    with pytest.raises(ConfigError) as refused:
        check_preference(name, PreferenceOptions(**changes))
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "field", "changes"),
    [
        ("sigmoid", "ref_chosen_B", {}),
        ("hinge", "margin_B", {"use_margin": True}),
        ("kto", "reference_point", {}),
    ],
)
def test_what_a_loss_needs_and_does_not_get_is_named(name, field, changes):
    with pytest.raises(ConfigError, match=f"{field}: {name} needs it"):
        preference_loss(name, replace(random_pairs(), **{field: None}), PreferenceOptions(**changes))


@pytest.mark.parametrize("name", ["simpo", "orpo"])
def test_losses_without_a_reference_do_not_ask_for_one(name):
    assert not PREFERENCE_LOSSES[name].needs_reference
    assert (
        preference_loss(name, replace(random_pairs(), ref_chosen_B=None, ref_rejected_B=None), PreferenceOptions())
        .loss_B.isfinite()
        .all()
    )


def test_sft_loss_is_weighted_and_leaves_empty_sequences_out():
    logps, num = torch.tensor([-4.0, -9.0, 0.0]), torch.tensor([2.0, 3.0, 0.0])
    loss, weight = sft_loss(logps, num)
    assert (loss.tolist(), weight.tolist()) == ([4.0, 9.0, 0.0], [1.0, 1.0, 0.0])
    loss, weight = sft_loss(logps, num, torch.tensor([1.0, 0.5, 1.0]), average=True)
    assert (loss.tolist(), weight.tolist()) == ([2.0, 1.5, 0.0], [1.0, 0.5, 0.0])


def test_every_loss_has_its_line_on_the_page():
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "losses.md"
    listed = re.findall(r"^\| `(\w+)` \|", page.read_text(encoding="utf-8").split("## Policy")[0], re.M)
    assert sorted(listed) == NAMES


def test_a_mixture_is_the_weighted_sum_of_its_losses():
    logps, options = random_pairs(), PreferenceOptions(beta=0.2)
    both = preference_loss({"sigmoid": 0.8, "apo_zero": 0.2}, logps, options)
    first, second = (preference_loss(name, logps, options) for name in ("sigmoid", "apo_zero"))
    torch.testing.assert_close(both.loss_B, 0.8 * first.loss_B + 0.2 * second.loss_B)
    assert torch.equal(both.chosen_rewards_B, first.chosen_rewards_B)
