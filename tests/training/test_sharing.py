"""A prompt that is computed once gives the loss and the gradients of the padded pair."""

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    GptOssConfig,
    MambaConfig,
    MistralConfig,
    MixtralConfig,
    Qwen3Config,
)

from pairwright.tokens.batch.collate import Tree, collate_trees, tree_of
from pairwright.training.model.attention import CannotShare, Plan, tree_attention
from pairwright.training.model.load_model import read_weights
from pairwright.training.model.policy_model import Policy
from training.made_runs import make_model

SHAPE = {
    "vocab_size": 90, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0, "initializer_range": 0.2,
}  # fmt: skip


def made_trees(vocabulary: int, seed: int = 0) -> list[Tree]:
    random = np.random.default_rng(seed)

    def branch(length: int) -> tuple[np.ndarray, np.ndarray]:
        return random.integers(0, vocabulary, length), random.random(length) < 0.7

    trees = []
    for prompt, chosen, rejected in ((17, 5, 9), (1, 3, 1), (6, 0, 4), (11, 7, 7)):
        sides = [branch(chosen), branch(rejected)]
        trees.append(
            Tree(random.integers(0, vocabulary, prompt), tuple(s[0] for s in sides), tuple(s[1] for s in sides))
        )
    return trees


@pytest.fixture(params=["small trees in groups", "each tree by itself"])
def group_size(request, monkeypatch):
    """Both ways of attending to a row, on the same trees."""
    if request.param == "each tree by itself":
        monkeypatch.setattr("pairwright.training.model.attention.SMALL_TREE", 0)
    else:
        monkeypatch.setattr("pairwright.training.model.attention.GROUP_TOKENS", 40)


def gradients(policy: Policy, trees: list[Tree]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    policy.model.zero_grad()
    scored = policy.score(trees)
    sums = scored.logps_N.new_zeros(scored.num_branches).index_add(0, scored.branch_N, scored.logps_N)
    loss = -torch.nn.functional.logsigmoid(0.1 * (sums[0::2] - sums[1::2])).mean()
    loss.backward()
    return scored.logps_N.detach(), {
        name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
def test_a_shared_prompt_gives_the_loss_and_the_gradients_of_the_padded_pair(kind, group_size, tmp_path):
    model = read_weights(make_model(tmp_path, kind)).eval()
    padded, shared = Policy(model, prefix_sharing=False), None
    trees = made_trees(padded.num_embeddings)
    expected, expected_grads = gradients(padded, trees)
    shared = Policy(model)
    assert shared.can_share, shared.why_not
    found, found_grads = gradients(shared, trees)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    assert found_grads.keys() == expected_grads.keys()
    for name, gradient in expected_grads.items():
        torch.testing.assert_close(found_grads[name], gradient, atol=1e-5, rtol=1e-4)


def fork(trees: list[Tree], vocabulary: int) -> list[Tree]:
    """The same trees behind a common beginning, two of them with the same prompt."""
    beginning = np.random.default_rng(1).integers(0, vocabulary, 21)
    prompts = [np.concatenate([beginning, tree.prompt]) for tree in trees]
    prompts[2] = prompts[0]
    return [Tree(prompt, tree.branches, tree.masks) for prompt, tree in zip(prompts, trees, strict=True)]


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_what_all_prompts_begin_with_is_computed_once_and_changes_nothing(kind, group_size, tmp_path):
    model = read_weights(make_model(tmp_path, kind)).eval()
    padded = Policy(model, prefix_sharing=False)
    trees = fork(made_trees(padded.num_embeddings), padded.num_embeddings)
    expected, expected_grads = gradients(padded, trees)
    logps, grads = gradients(Policy(model), trees)
    torch.testing.assert_close(logps, expected, atol=1e-5, rtol=1e-5)
    for name, gradient in expected_grads.items():
        torch.testing.assert_close(grads[name], gradient, atol=1e-5, rtol=1e-4)


def test_pairs_of_one_prompt_score_as_they_do_alone(tmp_path):
    policy = Policy(read_weights(make_model(tmp_path, "llama")).eval())
    first = made_trees(policy.num_embeddings)[0]
    trees = [first, first, Tree(first.prompt, first.branches[::-1], first.masks[::-1])]
    together = policy.score(trees).logps_N
    alone = torch.cat([policy.score([tree]).logps_N for tree in trees])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_log_probabilities_are_those_of_transformers_own_forward(kind, tmp_path):
    model = read_weights(make_model(tmp_path, kind)).eval()
    policy = Policy(model)
    trees = made_trees(policy.num_embeddings)
    found = policy.score(trees).logps_N
    policy.restore_attention()
    expected = []
    for tree in trees:
        for branch, mask in zip(tree.branches, tree.masks, strict=True):
            ids = torch.from_numpy(np.concatenate([tree.prompt, branch]))[None]
            logps = torch.log_softmax(model(input_ids=ids).logits[0], -1)
            for place in np.flatnonzero(mask) + len(tree.prompt):
                expected.append(logps[place - 1, ids[0, place]])
    torch.testing.assert_close(found, torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        Qwen3Config(**SHAPE, head_dim=8),
        MistralConfig(**SHAPE, sliding_window=5),
        Gemma2Config(**SHAPE, head_dim=8, sliding_window=5, attn_logit_softcapping=2.0),
        GptOssConfig(**SHAPE, head_dim=8, sliding_window=5, num_local_experts=4, num_experts_per_tok=2),
        Gemma3TextConfig(**SHAPE, head_dim=8, sliding_window=5),
        CohereConfig(**SHAPE, logit_scale=0.25),
        MixtralConfig(**SHAPE, num_local_experts=4),
        GPTNeoXConfig(**{k: v for k, v in SHAPE.items() if k != "num_key_value_heads"}),
    ],
    ids=lambda config: config.model_type,
)
def test_models_of_other_families_share_and_agree(config, group_size):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    for trees in (made_trees(90), fork(made_trees(90), 90)):
        expected = Policy(model, prefix_sharing=False).score(trees).logps_N
        policy = Policy(model)
        assert policy.can_share, policy.why_not
        torch.testing.assert_close(policy.score(trees).logps_N, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(vocab_size=90, hidden_size=32, num_hidden_layers=2, initializer_range=0.2),
        BloomConfig(vocab_size=90, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.2),
    ],
    ids=lambda config: config.model_type,
)
def test_a_model_that_cannot_share_falls_back_and_says_why(config):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    policy = Policy(model)
    assert not policy.can_share
    assert type(model).__name__ in policy.why_not
    trees = made_trees(90)
    expected = Policy(model, prefix_sharing=False).score(trees).logps_N
    torch.testing.assert_close(policy.score(trees).logps_N, expected, atol=1e-6, rtol=1e-6)


def test_attention_that_has_something_unknown_refuses():
    q = torch.zeros(1, 2, 3, 4)
    plan = Plan((), np.zeros(0), np.zeros(0), "cpu")
    with pytest.raises(CannotShare, match="position_bias"):
        tree_attention(None, q, q, q, None, plan=plan, position_bias=q)
    with pytest.raises(CannotShare, match="dropout"):
        tree_attention(None, q, q, q, None, plan=plan, dropout=0.1)
    with pytest.raises(CannotShare, match="mask of its own"):
        tree_attention(None, q, q, q, None)


def test_branches_do_not_see_each_other(group_size, tmp_path):
    """The log-probabilities of one side do not depend on the other side."""
    policy = Policy(read_weights(make_model(tmp_path)).eval())
    one, mask = np.array([3, 4, 5]), np.ones(3, bool)
    first = policy.score([Tree([7, 8], (one, [9, 9, 9, 9]), (mask, np.ones(4, bool)))]).logps_N[:3]
    second = policy.score([Tree([7, 8], (one, [1]), (mask, np.ones(1, bool)))]).logps_N[:3]
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


def test_gradient_checkpointing_gives_the_same_gradients_on_a_shared_row(tmp_path):
    folder = make_model(tmp_path)
    plain, checked = read_weights(folder), read_weights(folder)
    checked.gradient_checkpointing_enable({"use_reentrant": False})
    trees = made_trees(Policy(plain).num_embeddings)
    expected = gradients(Policy(plain.train()), trees)
    found = gradients(Policy(checked.train()), trees)
    torch.testing.assert_close(found[0], expected[0])
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-6, rtol=1e-5)


def test_a_row_has_no_padding_and_a_padded_batch_the_same_targets():
    trees = made_trees(50)
    row, padded = collate_trees(trees), collate_trees(trees, "padded")
    assert row.input_ids.shape == (1, sum(tree.num_tokens for tree in trees))
    assert row.target.tolist() == padded.target.tolist()
    assert row.branch.tolist() == padded.branch.tolist()
    assert padded.input_ids.flat[padded.source].tolist() == row.input_ids.flat[row.source].tolist()


def test_the_first_token_of_a_sequence_is_never_trained():
    tree = tree_of(np.array([4, 5, 6]), np.array([True, True, False]))
    assert (tree.prompt.tolist(), tree.masks[0].tolist()) == ([4], [True, False])
    nothing = tree_of(np.array([4, 5]), np.array([False, False]))
    assert nothing.num_tokens == 2
    assert not nothing.masks[0].any()
