"""TRL's DPO, SFT and KTO trainers on our rows: the ids, masks, weights and reference values reach the loss unchanged.

    B  rows of a micro-batch      S  their sequences (DPO: all chosen sides, then all rejected)      T  tokens

Invariant: the gradient of an update is that of Σ w·ℓ / Σ w over all micro-batches and processes. TRL averages the means
of micro-batches, so pairs in a small micro-batch would have more weight.
"""

import warnings
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import torch
import trl
from torch import Tensor
from transformers import Trainer

from pairwright.config.train_config import PreferenceConfig, PreferenceTerms
from pairwright.errors import ConfigError
from pairwright.losses.preference import PairLogps, PreferenceOptions, check_preference, preference_loss
from pairwright.losses.unpaired import kto_loss, mismatch_sums, reference_point
from pairwright.records.messages import Json
from pairwright.tokens.batch.collate import make_attention_mask, pad_rows
from pairwright.training.token_rows import SIDES, hash_weights, row_schema

TESTED = ("1.16.0",)  # TRL releases that tests/trl ran with; the subclasses use private methods
# Kind of rows -> {prefix of tensor names in a batch: column prefixes of the sequences that these tensors hold}.
_GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "dpo": {"": SIDES["dpo"]},
    "sft": {"": SIDES["sft"]},
    "kto": {"": ("",), "KL_": ("kl_",)},
}
_VALUES = ("ids", "mask", "token_weights", "ref_logprobs")
# Columns of the sums of reference log-probabilities that TRL computes, in the same order.
_TRL_SUMS: dict[str, dict[str, tuple[str, ...]]] = {
    "dpo": {"": ("ref_chosen_logps", "ref_rejected_logps")},
    "sft": {"": ()},
    "kto": {"": ("ref_logps",), "KL_": ("ref_KL_logps",)},
}


class RowCollator:
    """Collates rows into tensors with TRL's names, padded on the right.

    {input_ids, attention_mask, completion_mask, token_weights} (S, T), {ref_logps} (S,) if rows have them,
    {weight, gap, label} (B,); kto also has the first five with the prefix KL_.
    """

    def __init__(self, kind: str, multiple_of: int | None = None) -> None:
        self.kind, self.multiple_of = kind, multiple_of or 1

    def __call__(self, rows: Items[Json]) -> dict[str, Tensor]:
        names = [name for name in ("weight", "gap", "label") if name in rows[0]]
        batch: dict[str, Tensor] = {name: torch.tensor([row[name] for row in rows]) for name in names}
        for prefix, sides in _GROUPS[self.kind].items():
            each = [{name: row[f"{side}{name}"] for name in _VALUES} for side in sides for row in rows]
            ids_ST = pad_rows([one["ids"] for one in each], 0, dtype="int64", multiple_of=self.multiple_of)
            width = ids_ST.shape[1]
            mask_ST = pad_rows([one["mask"] for one in each], 0, dtype="int64", length=width)
            weights_ST = mask_ST.astype(np.float32)
            for weights_T, one in zip(weights_ST, each, strict=True):
                if one["token_weights"] is not None:
                    weights_T[weights_T > 0] = one["token_weights"]
            attention_ST = make_attention_mask([len(one["ids"]) for one in each], width)
            arrays = {"input_ids": ids_ST, "attention_mask": attention_ST, "completion_mask": mask_ST}
            arrays["token_weights"] = weights_ST
            sums = _TRL_SUMS[self.kind][prefix]
            if sums and sums[0] in rows[0]:
                arrays["ref_logps"] = np.array([row[name] for name in sums for row in rows], np.float32)
            elif each[0]["ref_logprobs"] is not None:
                arrays["ref_logps"] = np.array([_sum_reference(one) for one in each], np.float32)
            batch |= {f"{prefix}{name}": torch.from_numpy(array) for name, array in arrays.items()}
        return batch


def _sum_reference(sequence: Json) -> float:
    """Return the sum of a sequence's reference values, weighted by token."""
    weights = sequence["token_weights"]
    return float(np.sum(sequence["ref_logprobs"]) if weights is None else np.dot(weights, sequence["ref_logprobs"]))


class _OnOurRows(Trainer):  # type: ignore[misc]
    """Base of the three trainers: checks of rows and arguments, sums over an update."""

    _kind: str
    loss_is_scaled_for_ga = True  # the loss is divided by the weights of the whole update
    repeated_rows = 0  # rows trained twice in an epoch, so that all processes have the same number

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if trl.__version__ not in TESTED:
            raise ConfigError(
                f"trl {trl.__version__}: pairwright.trl was tested with {', '.join(TESTED)} and uses private parts of "
                f"it: pip install trl=={TESTED[-1]}"
            )
        for name in ("data_collator", "compute_metrics", "compute_loss_func", "formatting_func"):
            if kwargs.get(name) is not None:
                raise ConfigError(f"{name}: not supported by pairwright's trainers, which have their own: leave it out")
        multiple_of = getattr(kwargs.get("args"), "pad_to_multiple_of", None)
        super().__init__(*args, data_collator=RowCollator(self._kind, multiple_of), **kwargs)
        parallel = self.accelerator.parallelism_config
        self._refuse(
            router_aux_loss_coef=self.aux_loss_enabled,
            context_or_sequence_parallelism=parallel is not None and (parallel.cp_enabled or parallel.sp_enabled),
        )

    def _refuse(self, **asked: Any) -> None:
        """Raise for TRL options that our loss does not support."""
        if names := [name for name, is_set in asked.items() if is_set]:
            raise ConfigError(f"{', '.join(names)}: not supported by pairwright's {type(self).__name__}: leave it out")

    def _check_arguments(self, args: Any) -> None:
        """Raise for arguments of TRL's loss that ours does not support."""

    def _prepare_dataset(self, dataset: Any, processing_class: Any, args: Any, *_: Any) -> Any:
        """Check rows, instead of TRL's tokenising and truncation."""
        self._check_arguments(args)
        if not isinstance(dataset, datasets.Dataset):
            raise ConfigError(f"dataset: got {type(dataset).__name__}, expected the rows of Encoded.to_trl")
        if missing := sorted(set(row_schema(self._kind).names) - set(dataset.column_names)):
            raise ConfigError(
                f"dataset: no {', '.join(missing[:4])}: expected the rows of Encoded.to_trl({self._kind!r}); TRL's own "
                "trainer takes text"
            )
        longest = max(dataset["num_tokens"], default=0)
        if args.max_length is not None and longest > args.max_length:
            raise ConfigError(
                f"max_length: {args.max_length}, but a row has {longest} tokens, and TRL would truncate it: set "
                "max_length=None, or encode with pairwright tokens --max-length"
            )
        known = dataset.unique("ref_model")
        if known != [None] and not getattr(args, "precompute_ref_log_probs", True):
            raise ConfigError(
                "precompute_ref_log_probs: expected True: otherwise TRL ignores the reference values of the rows"
            )
        return dataset

    def _set_signature_columns_if_needed(self) -> None:
        sums = [name for names in _TRL_SUMS[self._kind].values() for name in names]
        self._signature_columns = [*row_schema(self._kind).names, *sums]

    def _precompute_ref_logps(self, dataset: Any, name: str, batch_size: int) -> Any:
        """Keep the rows' reference values if this model computed them; TRL computes missing reference values."""
        known = dataset.unique("ref_model")
        if known == [None]:
            return super()._precompute_ref_logps(dataset, name, batch_size)
        ours = hash_weights(self.ref_model or self.model)
        if known != [ours]:
            raise ConfigError(
                f"ref_model: the rows have reference values of {', '.join(map(str, known))}, but the reference of this "
                f"trainer is {ours}: make the rows with to_trl(..., reference=MODEL) of this model"
            )
        return dataset

    def compute_ref_log_probs(self, model: Any, inputs: Any) -> Any:
        """Compute TRL's reference values, weighted by token."""

        def weigh(**kwargs: Any) -> Any:
            prefix = "KL_" if kwargs["input_ids"] is inputs.get("KL_input_ids") else ""
            weights_ST = inputs[f"{prefix}token_weights"][:, 1:]
            return SimpleNamespace(log_probs=model(**kwargs).log_probs[:, -weights_ST.size(1) :] * weights_ST)

        # Other inputs are left out, since TRL would pass them to the model.
        names = [name for name in inputs if name.endswith(("input_ids", "attention_mask", "completion_mask"))]
        return super().compute_ref_log_probs(weigh, {name: inputs[name] for name in names})

    def _sum_logps(self, model: Any, inputs: Any, prefix: str = "") -> tuple[Tensor, Tensor]:
        """Return sums (S,) of the weighted log-probabilities of trained tokens, and of their weights."""
        ids_ST, weights_ST = inputs[f"{prefix}input_ids"], inputs[f"{prefix}token_weights"][:, 1:]
        labels_ST = ids_ST.masked_fill(inputs[f"{prefix}completion_mask"] == 0, -100)
        attention_ST = inputs[f"{prefix}attention_mask"]
        # TRL's head computes log-probabilities at the labels only; virtual tokens of an adapter come first.
        outputs = model(
            input_ids=ids_ST, attention_mask=attention_ST, labels=labels_ST, use_cache=False, fused_lm_head=True
        )
        return (outputs.log_probs[:, -weights_ST.size(1) :] * weights_ST).sum(1), weights_ST.sum(1)

    def _weigh_batch(self, inputs: Any) -> Tensor:
        """Return the normaliser of a micro-batch: the total weight of rows with trained tokens."""
        num_SB = inputs["token_weights"][:, 1:].sum(1).view(-1, len(inputs["weight"]))
        return (inputs["weight"] * (num_SB > 0).all(0)).sum()

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: Any) -> Any:
        """Return the normaliser of an update, over its micro-batches and all processes."""
        if not batch_samples:
            return None
        total = torch.stack([self._weigh_batch(inputs).to(device) for inputs in batch_samples]).sum()
        return self.accelerator.gather(total).sum()

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        mode = "train" if self.model.training else "eval"
        total = self._sum_losses(model, inputs, self._metrics[mode])
        if mode == "train":
            tokens = self.accelerator.gather_for_metrics(inputs["attention_mask"].sum()).sum().item()
            self._total_train_tokens += tokens // self._tp_size
        self._metrics[mode]["num_tokens"] = [self._total_train_tokens]
        if num_items_in_batch is None:
            return total / self._weigh_batch(inputs).clamp(min=1e-12)
        # Gradients are averaged over processes: multiply by their number to get the sum.
        return total / num_items_in_batch.clamp(min=1e-12) * (self.accelerator.num_processes // self._tp_size)

    def _note(self, metrics: Any, values: Mapping[str, Tensor]) -> None:
        for name, value_B in values.items():
            metrics[name].append(self.accelerator.gather_for_metrics(value_B.detach().float()).mean().item())

    def get_train_dataloader(self) -> Any:
        loader = super().get_train_dataloader()
        num_rows, processes = len(self.train_dataset), self.accelerator.num_processes
        self.repeated_rows = max(0, len(loader) * self.args.per_device_train_batch_size * processes - num_rows)
        if processes == 1:
            self.repeated_rows = 0  # the last batch is smaller
        elif self.repeated_rows:
            warnings.warn(
                f"{self.repeated_rows} of {num_rows} rows are trained twice in an epoch, so that {processes} processes "
                "have the same number of batches",
                stacklevel=2,
            )
        return loader


class DPOTrainer(_OnOurRows, trl.DPOTrainer):  # type: ignore[misc]
    """`trl.DPOTrainer` on the rows of `Encoded.to_trl("dpo")`.

    Args:
        terms: Options of the preference loss as in the section train.dpo, by default from `args`: `loss_type`,
            `loss_weights`, `beta`, `label_smoothing`.
    """

    _kind = "dpo"

    def __init__(self, *args: Any, terms: PreferenceConfig | None = None, **kwargs: Any) -> None:
        self._given_terms = terms
        super().__init__(*args, **kwargs)

    def _check_arguments(self, args: Any) -> None:
        weights = args.loss_weights or [1.0] * len(args.loss_type)
        self._losses = dict(zip(args.loss_type, weights, strict=True))
        self._terms: PreferenceTerms = PreferenceOptions(beta=args.beta, label_smoothing=args.label_smoothing)
        if self._given_terms is not None:
            self._losses, self._terms = self._given_terms.losses, self._given_terms
        self._mixture = check_preference(self._losses, self._terms)
        self._refuse(
            f_divergence_type=args.f_divergence_type != "reverse_kl",
            ld_alpha=args.ld_alpha is not None,
            use_weighting=args.use_weighting,
            loss_type_kto=self._mixture.needs_reference_point,
        )

    def _sum_losses(self, model: Any, inputs: Any, metrics: Any) -> Tensor:
        logps_S, num_S = self._sum_logps(model, inputs)
        chosen_B, rejected_B = logps_S.chunk(2)
        known: Any = (None, None)
        if self._mixture.needs_reference and "ref_logps" in inputs:
            known = inputs["ref_logps"].chunk(2)
        elif self._mixture.needs_reference:
            known = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        num_chosen_B, num_rejected_B = num_S.chunk(2)
        pairs = PairLogps(
            chosen_B=chosen_B,
            rejected_B=rejected_B,
            num_chosen_B=num_chosen_B,
            num_rejected_B=num_rejected_B,
            ref_chosen_B=known[0],
            ref_rejected_B=known[1],
            weight_B=inputs["weight"],
            margin_B=inputs["gap"],
        )
        losses = preference_loss(self._losses, pairs, self._terms)
        rewards = losses.chosen_rewards_B, losses.rejected_rewards_B
        self._note(
            metrics,
            {
                "rewards/chosen": rewards[0],
                "rewards/rejected": rewards[1],
                "rewards/margins": rewards[0] - rewards[1],
                "rewards/accuracies": rewards[0] > rewards[1],
                "logps/chosen": chosen_B,
                "logps/rejected": rejected_B,
            },
        )
        return losses.loss_B.sum()


class SFTTrainer(_OnOurRows, trl.SFTTrainer):  # type: ignore[misc]
    """`trl.SFTTrainer` on the rows of `Encoded.to_trl("sft")`: the weighted mean over trained tokens."""

    _kind = "sft"

    def _check_arguments(self, args: Any) -> None:
        self._refuse(
            packing=args.packing or args.eval_packing,
            padding_free=args.padding_free,
            loss_type=args.loss_type != "nll",
            label_smoothing_factor=args.label_smoothing_factor,
            assistant_only_loss=args.assistant_only_loss,
        )

    def _weigh_batch(self, inputs: Any) -> Tensor:
        return (inputs["weight"] * inputs["token_weights"][:, 1:].sum(1)).sum()

    def _sum_losses(self, model: Any, inputs: Any, metrics: Any) -> Tensor:
        logps_S, num_S = self._sum_logps(model, inputs)
        self._note(metrics, {"nll": -logps_S / num_S.clamp(min=1)})
        return -(inputs["weight"] * logps_S).sum()


class KTOTrainer(_OnOurRows, trl.KTOTrainer):  # type: ignore[misc]
    """`trl.KTOTrainer` on the rows of `Encoded.to_trl("kto")`, with z₀ from all mismatched sequences of an update."""

    _kind = "kto"
    _point: Any = None  # z₀ of the current update

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        samples, num_items = super().get_batch_samples(epoch_iterator, num_batches, device)
        self._point = self._find_point(self.model_wrapped, samples) if samples else None
        return samples, num_items

    @torch.no_grad()
    def _find_point(self, model: Any, samples: list[Any]) -> Tensor:
        if not self.calculate_KL:
            return torch.zeros((), device=self.accelerator.device)
        sums = []
        for inputs in samples:
            ready = self._prepare_inputs(inputs)
            if "ref_logps" not in inputs:
                # Kept for the loss, so that the reference runs once.
                inputs["ref_logps"], inputs["KL_ref_logps"] = self._find_reference(ready)
            known_B = inputs["KL_ref_logps"].to(self.accelerator.device)
            with self.compute_loss_context_manager():
                logps_B, _ = self._sum_logps(model, ready, "KL_")
            sums.append(torch.stack(mismatch_sums(logps_B, known_B)))
        total, count = self.accelerator.gather(torch.stack(sums).sum(0)[None]).sum(0)
        return reference_point(total, count)

    def _find_reference(self, inputs: Any) -> tuple[Tensor, Tensor]:
        sums: tuple[Tensor, Tensor] = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        return sums

    def _sum_losses(self, model: Any, inputs: Any, metrics: Any) -> Tensor:
        point = self._point if self.model.training else self._find_point(model, [inputs])
        logps_B, num_B = self._sum_logps(model, inputs)
        known_B = inputs["ref_logps"] if "ref_logps" in inputs else self._find_reference(inputs)[0]
        losses = kto_loss(
            logps_B,
            known_B,
            num_B,
            inputs["label"],
            point,
            beta=self.beta,
            desirable_weight=self.desirable_weight,
            undesirable_weight=self.undesirable_weight,
            weight_S=inputs["weight"],
        )
        good_B = inputs["label"].float()
        self._note(
            metrics,
            {
                "kl": point.expand(len(good_B)),
                "rewards/chosen": losses.rewards_S * good_B / good_B.mean().clamp(min=1e-12),
                "rewards/rejected": losses.rewards_S * (1 - good_B) / (1 - good_B).mean().clamp(min=1e-12),
            },
        )
        return losses.loss_S.sum()
