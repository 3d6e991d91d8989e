"""Distillation: hand-derived numbers, the formula term by term, support, clips and weights, and what must not be NaN."""

import math

import pytest
import torch

from pairwright.errors import ConfigError
from pairwright.losses import DistillOptions, distill_loss, generalised_jsd

torch.set_num_threads(1)

# p_S = (½, ½), p_T = (¾, ¼)
STUDENT = torch.tensor([[0.5, 0.5]], dtype=torch.float64).log()
TEACHER = torch.tensor([[0.75, 0.25]], dtype=torch.float64).log()
KL_TS = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
KL_ST = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


# β = ¼: M = ¾ p_S + ¼ p_T = (9/16, 7/16)
QUARTER = 0.25 * kl((0.75, 0.25), (9 / 16, 7 / 16)) + 0.75 * kl((0.5, 0.5), (9 / 16, 7 / 16))


@pytest.mark.parametrize(("beta", "expected"), [(0.0, KL_TS), (0.25, QUARTER), (1.0, KL_ST)])
def test_the_divergence_has_the_value_derived_by_hand(beta, expected):
    assert generalised_jsd(STUDENT, TEACHER, beta).tolist() == pytest.approx([expected])
    losses = distill_loss(STUDENT + 3.0, TEACHER - 1.0, DistillOptions(beta=beta))  # logits, up to a constant
    assert losses.loss_K.tolist() == pytest.approx([expected])


def logits(rows=5, vocabulary=12, *, seed=0, scale=2.0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, vocabulary, generator=generator, dtype=torch.float64) * scale


def test_the_temperature_divides_the_logits_of_both():
    warm = distill_loss(logits(), logits(seed=1), DistillOptions(temperature=2.0, top_k=None))
    half = distill_loss(logits() / 2, logits(seed=1) / 2, DistillOptions(top_k=None))
    torch.testing.assert_close(warm.loss_K, half.loss_K)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [None, 3])
def test_equal_distributions_have_no_loss_and_no_gradient(beta, top_k):
    student = logits().requires_grad_()
    losses = distill_loss(student, logits(), DistillOptions(beta=beta, top_k=top_k))
    losses.loss_K.sum().backward()
    torch.testing.assert_close(losses.loss_K, torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-14)
    torch.testing.assert_close(student.grad, torch.zeros_like(student), rtol=0, atol=1e-14)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("options", [{"top_k": None}, {"top_k": 3}, {"top_k": 3, "temperature": 1.4}])
def test_the_gradient_passes_gradcheck_and_the_teacher_has_none(beta, options):
    teacher = logits(seed=1).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda student: distill_loss(student, teacher, DistillOptions(beta=beta, **options)).loss_K,
        logits().requires_grad_(),
    )
    distill_loss(logits().requires_grad_(), teacher, DistillOptions(beta=beta, **options)).loss_K.sum().backward()
    assert teacher.grad is None


def test_the_tail_bucket_holds_what_the_likeliest_leave():
    # Student ½, ¼, ⅛, ⅛ and teacher ⅛, ½, ¼, ⅛. Top 1 of the student: (½ | ½) and (⅛ | ⅞).
    student = torch.tensor([[0.5, 0.25, 0.125, 0.125]], dtype=torch.float64).log()
    teacher = torch.tensor([[0.125, 0.5, 0.25, 0.125]], dtype=torch.float64).log()
    by_student = distill_loss(student, teacher, DistillOptions(beta=1.0, top_k=1))
    assert by_student.loss_K.tolist() == pytest.approx([kl((0.5, 0.5), (0.125, 0.875))])


def test_a_support_of_the_whole_vocabulary_is_the_full_divergence():
    everything = distill_loss(logits(), logits(seed=1), DistillOptions(top_k=12))
    assert torch.equal(everything.loss_K, distill_loss(logits(), logits(seed=1), DistillOptions(top_k=None)).loss_K)
    nearly = distill_loss(logits(), logits(seed=1), DistillOptions(top_k=11))  # one token in the bucket is that token
    torch.testing.assert_close(nearly.loss_K, everything.loss_K)


def test_a_tail_below_the_resolution_of_1_keeps_its_value_in_float32():
    """1 - Σp would be 0 for both; the tails are e^-30 and e^-20."""
    student = torch.tensor([[0.0, -30.0]], dtype=torch.float32)
    teacher = torch.tensor([[0.0, -20.0]], dtype=torch.float32)
    student, teacher = torch.cat([student, student[:, 1:] - 50], 1), torch.cat([teacher, teacher[:, 1:] - 50], 1)
    losses = distill_loss(student, teacher, DistillOptions(beta=0.0, top_k=1))
    assert losses.loss_K.item() == pytest.approx(math.exp(-20) * (30 - 20), rel=1e-3, abs=2e-8)


def test_recorded_log_probabilities_weight_by_the_ratio_where_there_are_some():
    logps = STUDENT.gather(-1, torch.tensor([[1]]))[:, 0]  # log ½
    options = DistillOptions(beta=0.0)
    for old, ratio in [(math.log(0.4), 1.25), (math.log(0.1), 2.0), (math.nan, 1.0)]:
        losses = distill_loss(
            STUDENT, TEACHER, options, targets_K=torch.tensor([1]), old_logps_K=torch.tensor([old], dtype=torch.float64)
        )
        assert losses.loss_K.tolist() == pytest.approx([ratio * KL_TS])
    assert logps.exp().tolist() == [0.5]


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [None, 2])
def test_extreme_and_forbidden_logits_give_no_nan(beta, top_k):
    """Rows: certain of different tokens; a token that both forbid; the rest of the support forbidden."""
    inf = torch.inf
    student = torch.tensor([[1e4, 0.0, 0.0, -1e4], [1.0, 2.0, 3.0, -inf], [1.0, 2.0, -inf, -inf]], requires_grad=True)
    teacher = torch.tensor([[0.0, 1e4, 0.0, -1e4], [3.0, 2.0, 1.0, -inf], [2.0, 1.0, -inf, -inf]])
    losses = distill_loss(
        student,
        teacher,
        DistillOptions(beta=beta, top_k=top_k),
        targets_K=torch.tensor([0, 1, 0]),
        old_logps_K=torch.tensor([-5.0, torch.nan, 0.0]),
    )
    losses.loss_K.sum().backward()
    assert losses.loss_K.isfinite().all()
    assert (losses.loss_K >= 0).all()
    assert student.grad.isfinite().all()


def test_no_position_is_a_clean_zero_and_rows_do_not_know_each_other():
    student = logits(0).requires_grad_()
    losses = distill_loss(
        student, logits(0), DistillOptions(), targets_K=torch.zeros(0, dtype=torch.long), old_logps_K=torch.zeros(0)
    )
    losses.loss_K.sum().backward()
    assert losses.loss_K.shape == (0,)
    whole = distill_loss(logits(), logits(seed=1), DistillOptions(top_k=3)).loss_K
    pieces = [
        distill_loss(logits()[row], logits(seed=1)[row], DistillOptions(top_k=3)).loss_K
        for row in (slice(0, 2), slice(2, 5))
    ]
    torch.testing.assert_close(torch.cat(pieces), whole)


def test_bfloat16_logits_are_compared_in_float32():
    student, teacher = logits().bfloat16(), logits(seed=1).bfloat16()
    losses = distill_loss(student, teacher, DistillOptions())
    assert losses.loss_K.dtype == torch.float32
    torch.testing.assert_close(losses.loss_K, distill_loss(student.float(), teacher.float(), DistillOptions()).loss_K)


def test_what_is_missing_or_out_of_range_is_refused():
    with pytest.raises(ConfigError, match=r"beta: got 1.5, expected at most 1"):
        distill_loss(STUDENT, TEACHER, DistillOptions(beta=1.5))
    with pytest.raises(ConfigError, match="unknown key 'top_k_of', which was removed: the tokens are the student's"):
        DistillOptions(top_k=1, top_k_of="teacher")
    with pytest.raises(ConfigError, match="targets_K: the importance ratio needs the tokens"):
        distill_loss(STUDENT, TEACHER, DistillOptions(), old_logps_K=torch.zeros(1))
