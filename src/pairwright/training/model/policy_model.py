"""The loop's view of a model: trees of tokens in, log-probabilities of the trained tokens out.

    N  trained tokens      H  hidden size      V  vocabulary      S  branches      U  distinct trained tokens

The backbone runs on one row, the prefix tree of all branches: common prefixes are computed once (models that cannot
share use padded rows). The head runs only at positions that predict a trained token, in chunks. Logit scaling is read
from the model's configuration and *checked*: at the start, logits and shared rows are compared with the model's own
results on a small example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pairwright.config.train_config import TrainConfig
from pairwright.generate.cpu_kernels import prepare_16_bits
from pairwright.losses.logps import masked_logps
from pairwright.tokens.batch.collate import Tree, TreeBatch, collate_trees, tree_of
from pairwright.training.model.attention import NAME, CannotShare, Plan, register
from pairwright.training.model.load_model import ModelError, load_model, plain_model

TOLERANCE = 1e-4  # allowed difference of log-probabilities in the checks; float32 rounding is 100 times smaller


@dataclass(frozen=True)
class Scored:
    """Log-probability and branch of each trained token. Branches that share tokens share the hidden states (U, H) that
    predicted them; `index_N` maps tokens to hidden states."""

    logps_N: Tensor
    branch_N: Tensor
    hidden_UH: Tensor
    index_N: Tensor
    num_branches: int

    @property
    def hidden_NH(self) -> Tensor:  # noqa: N802
        """The hidden state that predicted each trained token."""
        return self.hidden_UH[self.index_N]


def open_policy(folder: Path, settings: TrainConfig, *, is_trained: bool = True) -> "Policy":
    """Load a model as a policy; without an adapter unless `is_trained`."""
    model = load_model(folder, settings, is_trained=is_trained)
    if not is_trained:
        model.eval()
    is_noisy = settings.dropout and _has_attention_dropout(plain_model(model))
    shares = settings.prefix_sharing and not is_noisy
    policy = Policy(model, prefix_sharing=shares, precision=settings.precision)
    if settings.precision == "bf16" and policy.device.type == "cpu":
        prepare_16_bits()
    if is_noisy:
        policy.why_not = f"{type(policy.plain).__name__}: its attention has dropout, and dropout is on"
    return policy


class Policy:
    """A model that scores trees of tokens. `can_share`: common prefixes are computed once; `why_not`: the reason why
    they are computed for each branch."""

    def __init__(self, model: Any, *, prefix_sharing: bool = True, precision: str = "fp32") -> None:
        self.model = model
        self.precision = "fp32"  # until the checks below are done
        self.plain = plain_model(model)
        self.device = next(model.parameters()).device
        self.head = self.plain.get_output_embeddings()
        if self.head is None:
            raise ModelError(f"{type(self.plain).__name__} has no output embeddings: expected a causal language model")
        self.scaling = _logit_scaling(self.plain.config)
        self.num_embeddings = int(self.plain.get_input_embeddings().weight.shape[0])
        self._own_attention = self.plain.config._attn_implementation
        if self._own_attention == NAME:  # another policy has used this model
            self._own_attention = "sdpa" if self.plain._supports_sdpa else "eager"
            self.plain.set_attn_implementation(self._own_attention)
        self.can_share, self.why_not = False, "prefix_sharing is off"
        self._check_head()
        if prefix_sharing:
            self.can_share, self.why_not = self._try_sharing()
        self.precision = precision

    def score(self, trees: Sequence[Tree]) -> Scored:
        """Compute log-probabilities of the trained tokens of trees, with gradients if enabled."""
        batch, states_TH = self._run_rows(trees)
        # A token that several branches train is computed once.
        _, first_U, node_N = np.unique(batch.node, return_index=True, return_inverse=True)
        hidden_UH, target_U = states_TH[self._tensor(batch.source[first_U])], self._tensor(batch.target[first_U])
        with self._autocast():
            logps_U = masked_logps(hidden_UH, self.head.weight, self.head.bias, target_U, **self.scaling)
        index_N = self._tensor(node_N)
        return Scored(logps_U[index_N], self._tensor(batch.branch), hidden_UH, index_N, batch.num_branches)

    def compute_hidden(self, trees: Sequence[Tree]) -> tuple[Tensor, Tensor]:
        """Return (hidden_NH, target_N): the states that predict trained tokens, and these tokens."""
        batch, states_TH = self._run_rows(trees)
        return states_TH[self._tensor(batch.source)], self._tensor(batch.target)

    def _run_rows(self, trees: Sequence[Tree]) -> tuple[TreeBatch, Tensor]:
        """Collate trees into rows, and compute their hidden states (T, H), indexed by `batch.source`."""
        batch = collate_trees(trees, "shared" if self.can_share else "padded")
        if self.can_share:
            plan = Plan(batch.segments, batch.position_ids[0], batch.subtree_ends[0], self.device)
            inputs: dict[str, Any] = {"position_ids": self._tensor(batch.position_ids), "plan": plan}
        else:
            inputs = {"attention_mask": self._tensor(batch.attention_mask)}
        return batch, self._backbone(input_ids=self._tensor(batch.input_ids), **inputs).flatten(0, 1)

    def logits(self, hidden_KH: Tensor) -> Tensor:
        """Compute the model's logits (K, V) at a few positions, in float32."""
        with self._autocast():
            logits_KV = self.head(hidden_KH).float() * self.scaling["scale"]
        cap = self.scaling["softcap"]
        return logits_KV if cap is None else cap * torch.tanh(logits_KV / cap)

    @torch.no_grad()
    def mean_logits(self, hidden_NH: Tensor) -> Tensor:
        """Compute the mean logit over the vocabulary at each position, before the softcap, without (N, V) logits."""
        weight = self.head.weight
        mean_N = hidden_NH.to(weight.dtype) @ weight.mean(0)
        return (mean_N if self.head.bias is None else mean_N + self.head.bias.mean()).float() * self.scaling["scale"]

    def restore_attention(self) -> None:
        """Restore the model's original attention, before it is saved or used elsewhere."""
        if self.can_share:
            self.plain.set_attn_implementation(self._own_attention)

    def _backbone(self, **inputs: Any) -> Tensor:
        with self._autocast():
            states: Tensor = self.plain.base_model(**inputs, use_cache=False).last_hidden_state
        return states

    def _autocast(self) -> Any:
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    @torch.no_grad()
    def _check_head(self) -> None:
        """Check that our logits at the last position equal the model's."""
        ids = torch.tensor([_example(self.num_embeddings)[:8]], device=self.device)
        theirs_V = self.plain(input_ids=ids, use_cache=False).logits[0, -1].float()
        ours_V = self.logits(self._backbone(input_ids=ids)[0, -1:])[0]
        if not torch.allclose(ours_V, theirs_V, atol=1e-2, rtol=1e-2):
            raise ModelError(
                f"{type(self.plain).__name__} transforms its logits in a way that is not supported: "
                f"they differ by {float((ours_V - theirs_V).abs().max()):.3g}"
            )

    @torch.no_grad()
    def _try_sharing(self) -> tuple[bool, str]:
        """Return whether a row of trees gives the results of padded rows on a small example, else why not."""
        ids = np.array(_example(self.num_embeddings))
        masks = np.ones(5, bool), np.ones(3, bool)
        # Two roots; below the first, a pair and runs that branch off its sides and each other.
        pair = Tree(ids[:7], (ids[7:12], ids[12:15]), masks)
        run = np.concatenate([pair.sequences[0][:9], ids[15:22]])
        fork = np.concatenate([run[:12], ids[22:26]])
        trees = [pair, Tree(ids[15:18], (ids[18:23], ids[23:26]), masks)]
        trees += [tree_of(one, np.arange(len(one)) > 6) for one in (run, fork)]
        expected_N = self.score(trees).logps_N
        try:
            register()
            self.plain.set_attn_implementation(NAME)
            self.can_share = True
            shared_N = self.score(trees).logps_N
        except Exception as error:  # models may fail on a row of trees with any error
            self.plain.set_attn_implementation(self._own_attention)
            reason = str(error) if isinstance(error, CannotShare) else f"{type(error).__name__}: {str(error)[:120]}"
            return False, f"{type(self.plain).__name__}: {reason}"
        off = float((shared_N - expected_N).abs().max())
        if not off <= TOLERANCE:
            self.plain.set_attn_implementation(self._own_attention)
            return False, f"{type(self.plain).__name__}: log-probabilities of a shared row differ by {off:.2g}"
        return True, ""


def _has_attention_dropout(model: Any) -> bool:
    """Return whether attention has dropout."""
    rates = [getattr(module, name, 0.0) for module in model.modules() for name in ("attention_dropout", "attn_dropout")]
    return any((rate.p if isinstance(rate, torch.nn.Dropout) else rate) for rate in rates)


def _logit_scaling(config: Any) -> dict[str, Any]:
    """Read a model's logit scaling from its configuration, as arguments of `masked_logps`."""
    scale = 1.0
    if isinstance(getattr(config, "logit_scale", None), float | int):  # Cohere
        scale = float(config.logit_scale)
    elif isinstance(getattr(config, "logits_scaling", None), float | int):  # Granite
        scale = 1.0 / float(config.logits_scaling)
    cap = getattr(config, "final_logit_softcapping", None)  # Gemma 2
    return {"scale": scale, "softcap": None if cap is None else float(cap)}


def _example(num_embeddings: int) -> list[int]:
    """Return 26 ids without a pattern, for a vocabulary of any size."""
    return [(number * 7919 + 13) % num_embeddings for number in range(26)]
