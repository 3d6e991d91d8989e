"""Our losses against TRL's own code on random tensors.

TRL computes a loss inside a trainer's method. The method is called as it is, on an object that has the few attributes
it reads and a model that returns given log-probabilities: what runs is TRL's.
"""

import math
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

from pairwright.losses import (
    DistillOptions,
    PairLogps,
    PolicyOptions,
    PolicyTokens,
    PreferenceOptions,
    distill_loss,
    group_advantages,
    kto_loss,
    mismatch_sums,
    policy_loss,
    preference_loss,
    reference_point,
    sum_by_sequence,
)

pytest.importorskip("trl", reason="TRL is not installed: nothing to compare with")
pytestmark = pytest.mark.filterwarnings("default")  # warnings here are TRL's, not ours

torch.set_num_threads(1)

B, T = 5, 9  # pairs, tokens of a completion with padding


class Accelerator:
    """One process: gathering gives back what is there."""

    device = torch.device("cpu")
    num_processes = 1

    def gather(self, values):
        return values

    gather_for_metrics = gather

    def reduce(self, values, reduction):
        return values


def draw(*shape, seed, scale=1.0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def completions(rows, seed):
    """Lengths of `rows` completions, their mask (rows, T), and log-probabilities (rows, T) that are 0 beyond."""
    lengths = torch.randint(1, T + 1, (rows,), generator=torch.Generator().manual_seed(seed))
    mask = torch.arange(T)[None] < lengths[:, None]
    return lengths, mask, -draw(rows, T, seed=seed + 1).abs() * mask


def fields(per_token_logps):
    """Further values that TRL's fused head returns for metrics."""
    zeros = torch.zeros_like(per_token_logps)
    squares = -draw(*per_token_logps.shape, seed=7).abs()
    return SimpleNamespace(
        log_probs=per_token_logps, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool(), log_sum_sq_probs=squares
    )


def trl_dpo(loss_type, per_token_logps, mask, ref_logps, **attributes):
    from trl.trainer.dpo_trainer import DPOTrainer

    prompt = torch.zeros(len(mask), 1, dtype=torch.bool)
    completion_mask = torch.cat([prompt, mask], 1).long()
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=Accelerator(), aux_loss_enabled=False, precompute_ref_logps=True,
        loss_types=[loss_type], _tp_size=1, args=SimpleNamespace(discopop_tau=0.05),
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0,
        **({"ld_alpha": None, "label_smoothing": 0.0, "f_divergence_type": "reverse_kl", "use_weighting": False,
            "loss_weights": [1.0]} | attributes),
    )  # fmt: skip
    inputs = {
        "input_ids": torch.zeros_like(completion_mask), "attention_mask": torch.ones_like(completion_mask),
        "completion_mask": completion_mask, "ref_chosen_logps": ref_logps[:B], "ref_rejected_logps": ref_logps[B:],
    }  # fmt: skip
    loss = DPOTrainer._compute_loss(trainer, lambda **_: fields(per_token_logps), inputs, False)
    return loss, {name: values[-1] for name, values in trainer._metrics["train"].items()}


def ours(name, per_token_logps, mask, ref_logps, options):
    """The same through flat tokens, as the loop has them."""
    sequence = torch.arange(2 * B)[:, None].expand(-1, T)[mask]
    tokens = per_token_logps[mask]
    sums, counts = sum_by_sequence(tokens, sequence, 2 * B)
    logps = PairLogps(sums[:B], sums[B:], counts[:B], counts[B:], ref_logps[:B], ref_logps[B:])
    losses = preference_loss(name, logps, options)
    return losses.loss_B.sum() / losses.weight_B.sum(), losses


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("name", "theirs", "changes"),
    [
        ("sigmoid", "sigmoid", {}),
        ("sigmoid", "sigmoid_norm", {"preference_average_log_probs": True}),
        ("robust", "robust", {"label_smoothing": 0.2}),
        ("hinge", "hinge", {}),
        ("ipo", "ipo", {}),
        ("apo_zero", "apo_zero", {}),
        ("apo_down", "apo_down", {}),
    ],
)
def test_pairs_have_the_loss_gradient_and_rewards_of_dpo_trainer(name, theirs, changes, seed):
    _, mask, logps = completions(2 * B, seed * 10)
    ref_logps = logps.sum(1) + draw(2 * B, seed=seed * 10 + 5)
    options = PreferenceOptions(beta=0.3, **changes)
    attributes = {key: value for key, value in changes.items() if key != "preference_average_log_probs"}
    left, right = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    expected, metrics = trl_dpo(theirs, left, mask, ref_logps, beta=0.3, **attributes)
    loss, losses = ours(name, right, mask, ref_logps, options)
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=1e-12)
    expected.backward()
    loss.backward()
    torch.testing.assert_close(right.grad[mask], left.grad[mask], rtol=1e-6, atol=1e-9)
    # TRL reports sums where the loss compares means, and log-ratios where it compares other divergences.
    is_plain = not options.preference_average_log_probs
    if is_plain and name != "ipo":
        assert losses.chosen_rewards_B.mean().item() == pytest.approx(metrics["rewards/chosen"])
        assert losses.rejected_rewards_B.mean().item() == pytest.approx(metrics["rewards/rejected"])


def test_a_mixture_is_that_of_dpo_trainer():
    """MPO: two preference terms by weight."""
    _, mask, logps = completions(2 * B, 30)
    ref_logps = logps.sum(1) + draw(2 * B, seed=35)
    left, right = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    expected, _ = trl_dpo("sigmoid", left, mask, ref_logps, beta=0.3)
    second, _ = trl_dpo("apo_zero", left, mask, ref_logps, beta=0.3, loss_weights=[0.2])
    loss, _ = ours({"sigmoid": 1.0, "apo_zero": 0.2}, right, mask, ref_logps, PreferenceOptions(beta=0.3))
    torch.testing.assert_close(loss, expected + second)


def pair_logps(seed):
    _, mask, logps = completions(2 * B, seed)
    counts = mask.sum(1).double()
    sums = logps.sum(1)
    return PairLogps(sums[:B], sums[B:], counts[:B], counts[B:]), sums / counts


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_simpo_is_that_of_cpo_trainer(smoothing):
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    logps, averaged = pair_logps(40)
    trainer = SimpleNamespace(
        alpha=0.0, loss_type="simpo", simpo_gamma=0.7, beta=2.0, label_smoothing=smoothing, accelerator=Accelerator()
    )
    expected, chosen_rewards, _ = CPOTrainer.cpo_loss(trainer, averaged[:B], averaged[B:])
    losses = preference_loss("simpo", logps, PreferenceOptions(beta=2.0, gamma=0.7, label_smoothing=smoothing))
    torch.testing.assert_close(losses.loss_B, expected)
    torch.testing.assert_close(losses.chosen_rewards_B, chosen_rewards)


def test_sigmoid_with_label_smoothing_is_that_of_cpo_trainer():
    """DPOTrainer has no label smoothing for `sigmoid`; CPOTrainer has, without a reference."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    logps, _ = pair_logps(41)
    zeros = torch.zeros(B, dtype=torch.float64)
    trainer = SimpleNamespace(alpha=0.0, loss_type="sigmoid", beta=0.1, label_smoothing=0.2, accelerator=Accelerator())
    expected, _, _ = CPOTrainer.cpo_loss(trainer, logps.chosen_B, logps.rejected_B)
    logps = PairLogps(logps.chosen_B, logps.rejected_B, logps.num_chosen_B, logps.num_rejected_B, zeros, zeros)
    torch.testing.assert_close(
        preference_loss("sigmoid", logps, PreferenceOptions(label_smoothing=0.2)).loss_B, expected
    )


def test_orpo_is_the_odds_ratio_loss_of_orpo_trainer_and_the_likelihood():
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    logps, averaged = pair_logps(42)
    trainer = SimpleNamespace(beta=0.1, accelerator=Accelerator())
    weighted, chosen_rewards, *_ = ORPOTrainer.odds_ratio_loss(trainer, averaged[:B], averaged[B:])
    losses = preference_loss("orpo", logps, PreferenceOptions(beta=0.1))
    torch.testing.assert_close(losses.loss_B, -averaged[:B] - weighted, rtol=1e-5, atol=1e-6, check_dtype=False)
    torch.testing.assert_close(losses.chosen_rewards_B, chosen_rewards, check_dtype=False)


@pytest.mark.parametrize("shift", [0.0, 5.0])
def test_kto_is_that_of_kto_trainer(shift):
    """With a mean mismatch below 0, which counts as 0, and above it."""
    from trl.trainer.kto_trainer import KTOTrainer

    rows = 2 * B
    _, mask, logps = completions(rows, 50)
    ref_logps = logps.sum(1) + draw(rows, seed=53)
    kl_logps, ref_kl_logps = logps.sum(1) - 3 + shift, logps.sum(1) - 1.5
    label = torch.arange(rows) % 3 > 0
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), accelerator=Accelerator(), aux_loss_enabled=False, calculate_KL=True,
        precompute_ref_logps=True, beta=0.2, desirable_weight=1.5, undesirable_weight=0.7, loss_type="kto", _tp_size=1,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _compute_kl_logps=lambda *_: kl_logps,
    )  # fmt: skip
    completion_mask = torch.cat([torch.zeros(rows, 1, dtype=torch.long), mask.long()], 1)
    inputs = {
        "input_ids": torch.zeros_like(completion_mask), "attention_mask": torch.ones_like(completion_mask),
        "completion_mask": completion_mask, "label": label, "ref_logps": ref_logps, "ref_KL_logps": ref_kl_logps,
    }  # fmt: skip
    expected = KTOTrainer._compute_loss(trainer, lambda **_: fields(logps), inputs, False)
    z0 = reference_point(*mismatch_sums(kl_logps, ref_kl_logps))
    losses = kto_loss(
        logps.sum(1), ref_logps, mask.sum(1), label, z0, beta=0.2, desirable_weight=1.5, undesirable_weight=0.7
    )
    assert z0.item() == pytest.approx(trainer._metrics["train"]["kl"][0]) == (3.5 if shift else 0.0)
    torch.testing.assert_close(losses.loss_S.sum() / losses.weight_S.sum(), expected)


def trl_grpo(
    loss_type,
    logps,
    mask,
    advantages,
    old_logps,
    ref_logps,
    *,
    level="token",
    beta=0.0,
    high=0.3,
    delta=None,
    sampling=None,
):
    from trl.trainer.grpo_trainer import GRPOTrainer

    rows = len(mask)
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=False), accelerator=Accelerator(), aux_loss_enabled=False, top_entropy_quantile=1.0,
        off_policy_mask_threshold=None, importance_sampling_level=level, beta=beta, loss_type=loss_type, epsilon_low=0.2,
        epsilon_high=high, use_vllm=sampling is not None, vllm_importance_sampling_correction=True,
        args=SimpleNamespace(delta=delta, use_bias_correction_kl=False),
        max_completion_length=32, _entropy_bonus_enabled=False, _metrics={"eval": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (logps, torch.zeros_like(logps), None),
    )  # fmt: skip
    inputs = {
        "prompt_ids": torch.zeros(rows, 1, dtype=torch.long), "prompt_mask": torch.ones(rows, 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask, dtype=torch.long), "completion_mask": mask.long(), "advantages": advantages,
        "old_per_token_logps": old_logps, "ref_per_token_logps": ref_logps, "num_items_in_batch": mask.sum(),
        **({} if sampling is None else {"importance_sampling_ratio": sampling}),
    }  # fmt: skip
    loss = GRPOTrainer._compute_loss(trainer, None, inputs)
    return loss, {name: values[-1] for name, values in trainer._metrics["eval"].items()}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(
    ("theirs", "kwargs", "options"),
    [
        ("grpo", {}, {"aggregation": "sequence"}),
        ("bnpo", {}, {"aggregation": "token"}),
        ("dapo", {"beta": 0.04}, {"aggregation": "token", "kl_weight": 0.04}),
        ("dr_grpo", {}, {"aggregation": "constant", "constant_length": 32}),
        ("grpo", {"level": "sequence"}, {"loss": "gspo", "aggregation": "sequence"}),
    ],
)
def test_the_policy_loss_is_that_of_grpo_trainer(theirs, kwargs, options, recorded):
    rows = 6
    _, mask, logps = completions(rows, 60)
    advantages = draw(rows, seed=64)
    old_logps = logps + draw(rows, T, seed=65, scale=0.5) if recorded else None
    ref_logps = logps + draw(rows, T, seed=66, scale=0.5)
    left, right = logps.clone().requires_grad_(), logps.clone().requires_grad_()
    expected, metrics = trl_grpo(theirs, left, mask, advantages, old_logps, ref_logps, **kwargs)
    sequence = torch.arange(rows)[:, None].expand(-1, T)[mask]
    tokens = PolicyTokens(
        right[mask],
        advantages[sequence],
        sequence,
        rows,
        None if old_logps is None else old_logps[mask],
        ref_logps[mask],
    )
    result = policy_loss(tokens, PolicyOptions(**{"clip_high": 0.3} | options))
    torch.testing.assert_close(result.total / result.normaliser, expected)
    (result.total / result.normaliser).backward()
    expected.backward()
    torch.testing.assert_close(right.grad[mask], left.grad[mask])
    assert result.num_unrecorded == (0 if recorded else mask.sum())
    if "kl" in metrics:
        assert (result.kl_sum / result.num_tokens).item() == pytest.approx(metrics["kl"])
    if theirs == "bnpo" and recorded:
        assert result.num_clipped_low / result.num_tokens == pytest.approx(metrics["clip_ratio/low_mean"])
        assert result.num_clipped_high / result.num_tokens == pytest.approx(metrics["clip_ratio/high_mean"])
        assert result.num_clipped_low > 0 < result.num_clipped_high


def test_advantages_have_the_deviation_of_trl():
    from trl.trainer.utils import nanstd

    rewards = draw(4, 5, seed=70)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (nanstd(rewards, dim=1, keepdim=True) + 1e-4)
    result = group_advantages(rewards.flatten(), torch.arange(4).repeat_interleave(5), kind="grpo")
    torch.testing.assert_close(result.values_S, expected.flatten())


@pytest.mark.parametrize("beta", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("top_k", [None, 4])
def test_distillation_is_that_of_sdpo_trainer(beta, top_k):
    from trl.experimental.sdpo import loss_utils

    student, teacher = draw(7, 20, seed=80, scale=2), draw(7, 20, seed=81, scale=2)
    left, right = student.clone().requires_grad_(), student.clone().requires_grad_()
    if top_k is None:
        expected = loss_utils.compute_full_logit_self_distillation_loss(left, teacher, distillation_alpha=beta)
    else:
        expected = loss_utils.compute_topk_self_distillation_loss(
            left, teacher, distillation_topk=top_k, distillation_alpha=beta, distillation_add_tail=True
        )
    losses = distill_loss(right, teacher, DistillOptions(beta=beta, top_k=top_k))
    torch.testing.assert_close(losses.loss_K, expected)
    losses.loss_K.sum().backward()
    expected.sum().backward()
    torch.testing.assert_close(right.grad, left.grad)


def test_the_importance_ratio_is_clipped_as_in_sdpo_trainer():
    from trl.experimental.sdpo import loss_utils

    student, teacher = draw(7, 20, seed=82), draw(7, 20, seed=83)
    targets = torch.arange(7)
    logps = torch.log_softmax(student, -1)[targets, targets]
    old_logps = logps + torch.linspace(-2, 2, 7, dtype=torch.float64)
    plain = distill_loss(student, teacher, DistillOptions(ratio_clip=None))
    expected = loss_utils.apply_importance_sampling_clipping(plain.loss_K, logps, old_logps, 2.0)
    losses = distill_loss(student, teacher, DistillOptions(ratio_clip=2.0), targets_K=targets, old_logps_K=old_logps)
    torch.testing.assert_close(losses.loss_K, expected)
    assert losses.loss_K[0] == 2 * plain.loss_K[0]
    assert losses.loss_K[6].item() == pytest.approx(math.exp(-2) * plain.loss_K[6].item())


@pytest.mark.parametrize("temperature", [1.0, 1.7])
def test_the_temperature_is_that_of_gkd_trainer(temperature):
    from trl.experimental.gkd.gkd_trainer import GKDTrainer

    student, teacher = draw(7, 20, seed=84), draw(7, 20, seed=85)
    expected = GKDTrainer.generalized_jsd_loss(
        student, teacher, beta=0.3, temperature=temperature, reduction="none"
    ).sum(-1)
    losses = distill_loss(student, teacher, DistillOptions(beta=0.3, temperature=temperature, top_k=None))
    torch.testing.assert_close(losses.loss_K, expected)
