"""Every channel, on every kind of model: the loss and the gradients of a batch with what it shares computed once are
those of padded rows."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from pairwright.config import Config
from pairwright.tokens.batch.collate import count_distinct
from pairwright.training.channels.channels import load_channels
from pairwright.training.model.policy_model import Policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceCache
from training.made_runs import make_failed_runs, make_pairs, make_tokenizer

SHAPE = {
    "vocab_size": 262, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "bos_token_id": None, "eos_token_id": 5, "pad_token_id": 0, "initializer_range": 0.1,
    "max_position_embeddings": 512,
}  # fmt: skip
WINDOW = {"head_dim": 8, "sliding_window": 20}
MODELS = {
    "llama": LlamaConfig(**SHAPE),
    "qwen2": Qwen2Config(**SHAPE),
    "qwen3": Qwen3Config(**SHAPE, head_dim=8),
    "gpt2": GPT2Config(
        vocab_size=262, n_embd=32, n_layer=2, n_head=4, n_positions=512, bos_token_id=5, eos_token_id=5,
        initializer_range=0.1, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0,
    ),
    "mistral, window": MistralConfig(**SHAPE, **WINDOW),
    "gemma2, window and cap": Gemma2Config(**SHAPE, **WINDOW, attn_logit_softcapping=2.0),
    "gpt-oss, window and sinks": GptOssConfig(**SHAPE, **WINDOW, num_local_experts=2, num_experts_per_tok=2),
}  # fmt: skip
CHANNELS = ("dpo", "sft", "grpo", "kto", "sdpo")


def score_batches(channels, policy):
    """The loss and the gradients of the first batch of each channel."""
    results = {}
    for channel in channels:
        items = channel.order.batch(0)
        channel.prepare(policy, items, Ranks())
        policy.model.zero_grad()
        loss, _ = channel.loss(policy, items, channel.total(items))
        loss.backward()
        grads = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
        results[channel.name] = loss.detach(), grads
    return results


def compare(kind, folder):
    """By channel: how far apart losses are, and gradients to the largest of them; and the tokens of both ways."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(MODELS[kind]).eval()
    make_tokenizer(folder / "model")
    settings = {
        "batch_size": 12,
        "channels": dict.fromkeys(CHANNELS, 1.0),
        "sdpo": {"teacher": "same"},
        "kto": {"sft_loss_weight": 1},
    }
    config = Config.model_validate({"train": settings})
    padded = Policy(model, prefix_sharing=False)
    channels = load_channels(
        config, padded, folder / "model", "initial", folder / "run", Ranks(), pairs=make_pairs(folder / "pairs", 12),
        experience=make_failed_runs(folder / "runs"), validation=None, tokens=None,
        cache=ReferenceCache(folder / "reference", lambda: None), progress=lambda event: None,
    )  # fmt: skip
    expected = score_batches(channels, padded)
    shared = Policy(model)
    assert shared.can_share, shared.why_not
    results = score_batches(channels, shared)
    apart = {}
    for name, (loss, grads) in expected.items():
        mine, my_grads = results[name]
        assert my_grads.keys() == grads.keys()
        off = max(float((my_grads[key] - grads[key]).abs().max()) for key in grads)
        apart[name] = abs(float(mine - loss)), off
    trees = {channel.name: [channel.data.tree(item) for item in channel.order.batch(0)] for channel in channels}
    sizes = {
        name: (sum(len(ids) for tree in each for ids in tree.sequences), count_distinct(each))
        for name, each in trees.items()
    }
    return apart, sizes


@pytest.mark.parametrize("kind", MODELS)
def test_every_channel_has_the_loss_and_the_gradients_of_padded_rows(kind, tmp_path):
    apart, sizes = compare(kind, tmp_path)
    assert set(apart) == set(CHANNELS)
    for name, (loss, gradient) in apart.items():
        assert loss < 1e-5, name
        assert gradient < 1e-5, name
        total, distinct = sizes[name]
        assert distinct < total, name
