"""Training data of a channel as rows for other trainers: ids, masks, weights, reference log-probabilities, lineage.

    dpo   one row per pair; columns of its sequences begin with chosen_ and rejected_
    sft   one row per sequence
    kto   one row per run, with its label; columns that begin with kl_ have the run's prompt with the completion of
          another run, from which KTO estimates the KL divergence

docs/reference/token-rows.md describes the columns.
"""

import os
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import xxhash

from pairwright.config.config_file import adjust_config
from pairwright.errors import ConfigError
from pairwright.paths import Place, find_model, write_atomic
from pairwright.records.arrays import Array
from pairwright.records.messages import Json, content_hash
from pairwright.tokens.batch.collate import Tree
from pairwright.tokens.sequence import Origin
from pairwright.tokens.stage.stage import SPLITS, read_manifest
from pairwright.training.channels.channels import compute_references, read_channels, use_tokens
from pairwright.training.micro_batches import Limits
from pairwright.training.model.load_model import model_hash
from pairwright.training.model.policy_model import open_policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.model.reference import ReferenceCache

if TYPE_CHECKING:
    from datasets import Dataset

SIDES: dict[str, tuple[str, ...]] = {"dpo": ("chosen_", "rejected_"), "sft": ("",), "kto": ("", "kl_")}
_ROWS_AT_ONCE = 256
_SEQUENCE = {
    "ids": pa.list_(pa.int32()),
    "mask": pa.list_(pa.bool_()),
    "token_weights": pa.list_(pa.float32()),
    "ref_logprobs": pa.list_(pa.float32()),
    "uid": pa.string(),
    "turns": pa.list_(pa.int32()),
}


def row_schema(kind: str) -> pa.Schema:
    """Return the columns of a kind of rows."""
    if kind not in SIDES:
        raise ConfigError(f"kind: got {kind!r}, expected one of {', '.join(SIDES)}")
    fields = [("id", pa.string()), ("split", pa.string()), ("weight", pa.float32()), ("num_tokens", pa.int32())]
    fields += {"dpo": [("gap", pa.float32())], "sft": [], "kto": [("label", pa.bool_())]}[kind]
    fields += [(f"{side}{name}", kind_of) for side in SIDES[kind] for name, kind_of in _SEQUENCE.items()]
    # These identify the tokenizer and the reference model; all rows have the same values.
    return pa.schema([*fields, ("tokenizer", pa.string()), ("ref_model", pa.string())])


class TokenRows:
    """The rows of a folder of encoded sequences, for one kind of training.

    Args:
        tokens: A folder that `pairwright tokens` wrote.
        tokenizer: The folder of the tokenizer that the sequences were encoded with.
        kind: "dpo" and "sft" for pairs, "sft" and "kto" for runs.
        reference: A model folder; the rows then have its log-probabilities, which are cached in `tokens`.
        options: Options of the section `train`, such as `where`, `kto` and `precision`.
    """

    def __init__(
        self, tokens: Path, tokenizer: Path, kind: str, *, reference: Path | None = None, **options: Any
    ) -> None:
        self.schema = row_schema(kind)
        self.kind, self._tokens, self._tokenizer = kind, tokens, str(read_manifest(tokens)["tokenizer"])
        config = adjust_config(
            train={**options, "channels": {"dpo": 0.0, kind: 1.0}}, tokens={"tokenizer": str(tokenizer)}
        )
        if config.train.dpo.contrast == "single":  # other trainers contrast every row, also of whole runs
            config = adjust_config(config, train={"dpo": {"contrast": "all"}})
        config, pairs, experience = use_tokens(config, tokens, None, None)
        self.channel: Any
        (self.channel,) = read_channels(
            config, tokenizer, tokens, Limits(config.train, shares=False), pairs=pairs, experience=experience,
            tokens=tokens,
        )  # fmt: skip
        self.ref_model: str | None = None
        if reference is not None and self.channel.needs_reference:
            policy = open_policy(reference, config.train, is_trained=False)
            cache = ReferenceCache(tokens / "reference", check_stop=lambda: None)
            compute_references([self.channel], policy, model_hash(reference), cache, config.train, Ranks())
            self.ref_model = hash_weights(policy.plain)

    def batches(self, split: str = "train") -> Iterator[pa.RecordBatch]:
        """Yield the rows of a split ("train", "validation" or "all"), a few hundred at a time."""
        rows = self._rows(split)
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            yield pa.RecordBatch.from_pylist(some, schema=self.schema)

    def count(self, split: str) -> int:
        return sum(len(items) for name, items in self._items() if split in (name, "all"))

    def write_parquet(self, file: Place, split: str = "train") -> int:
        """Write the rows of a split; return their number."""
        if not (num_rows := self.count(split)):
            raise ConfigError(f"{self._tokens}: no rows for {self.kind} in the split {split!r}")
        with write_atomic(file) as temporary, pq.ParquetWriter(temporary, self.schema, compression="zstd") as writer:
            for batch in self.batches(split):
                writer.write_batch(batch)
        return num_rows

    @property
    def refused(self) -> dict[str, int]:
        """Items that were not encoded, by reason."""
        return dict(sorted(Counter(self.channel.data.refusals.values()).items()))

    @property
    def fingerprint(self) -> str:
        """A hash that is equal for equal rows."""
        return content_hash(self.kind, self.channel.fingerprint, self.channel.order.items.tolist(), self.ref_model)

    def _items(self) -> list[tuple[str, Array]]:
        return [("train", self.channel.order.items), ("validation", self.channel.validation)]

    def _rows(self, split: str) -> Iterator[Json]:
        if split not in SPLITS:
            raise ConfigError(f"split: got {split!r}, expected one of {', '.join(SPLITS)}")
        for name, items in self._items():
            for item in items.tolist() if split in (name, "all") else ():
                yield {**self._row(item), "split": name, "tokenizer": self._tokenizer, "ref_model": self.ref_model}

    def _row(self, item: int) -> Json:
        channel, data = self.channel, self.channel.data
        row: Json = {"id": data.ids[item], "weight": float(data.weights[item])}
        sequences = self._sequences(data.tree(item), data.token_weights(item))
        if self.kind == "dpo":
            row["gap"] = float(data.gaps[item])
        elif self.kind == "kto":
            row |= channel.signals(item)
            other = channel.find_other(item)
            sequences += self._sequences(channel.mismatch(item), data.token_weights(other))
            sequences[1]["uid"] = data.ids[other]
        row["num_tokens"] = max(len(sequence["ids"]) for sequence in sequences)
        for side, sequence in zip(SIDES[self.kind], sequences, strict=True):
            row |= {f"{side}{name}": value for name, value in sequence.items()}
        return row

    def _sequences(self, tree: Tree, weights: Array | None) -> list[Json]:
        """Return one sequence, with the prompt, per branch of a tree; `weights` has one value per trained token."""
        counts = [int(mask.sum()) for mask in tree.masks]
        starts = np.cumsum([0, *counts])
        is_known = self.ref_model is not None and not self.channel.reference.lacks(tree)
        known = self.channel.reference.of([tree]) if is_known else None
        origins = tree.rows or (Origin("", ()),) * len(counts)
        return [
            {
                "ids": ids,
                "mask": np.concatenate([np.zeros(len(tree.prompt), bool), mask]),
                "token_weights": None if weights is None else weights[start : start + num],
                "ref_logprobs": None if known is None else known[start : start + num],
                "uid": origin.uid,
                "turns": list(origin.turns),
            }
            for ids, mask, start, num, origin in zip(tree.sequences, tree.masks, starts, counts, origins, strict=False)
        ]


def make_dataset(
    tokens: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str],
    kind: str,
    *,
    split: str = "train",
    reference: str | os.PathLike[str] | None = None,
    **options: Any,
) -> "Dataset":
    """Return rows for a trainer of `pairwright.trl`, memory-mapped from an Arrow file that is written to `tokens`; see
    `Encoded.to_trl` for the arguments."""
    try:
        from datasets import Dataset
    except ImportError:
        raise ConfigError("to_trl needs datasets and trl: pip install 'pairwright[trl]'") from None
    folder, known = Path(tokens), None if reference is None else find_model(os.fspath(reference))
    rows = TokenRows(folder, find_model(os.fspath(tokenizer)), kind, reference=known, **options)
    if not rows.count(split):
        raise ConfigError(f"{folder}: no rows for {kind} in the split {split!r}")
    path = folder / f"rows-{kind}-{split}-{rows.fingerprint}.arrow"
    if not path.is_file():
        with (
            write_atomic(path, durable=False) as temporary,
            pa.OSFile(str(temporary), "wb") as file,
            pa.ipc.new_stream(file, rows.schema) as writer,
        ):
            for batch in rows.batches(split):
                writer.write_batch(batch)
    return Dataset.from_file(str(path))


def hash_weights(model: Any) -> str:
    """Hash a model's weights (128 bits), to compare the model of reference values with a trainer's model.

    Weights are rounded to bfloat16, so float32 and bfloat16 copies are equal. An adapter's trained weights are ignored:
    the reference is the model without them.
    """
    has_adapter = hasattr(model, "peft_config")
    digests = []
    for parameter in model.parameters():
        if has_adapter and parameter.requires_grad:
            continue
        if hasattr(parameter, "ds_id") or type(parameter.data).__name__ == "DTensor":
            raise ConfigError(
                "reference values: a sharded model (ZeRO-3, FSDP) cannot be compared with the reference model: leave "
                "`reference` out of to_trl, and TRL computes the values"
            )
        rounded = parameter.detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16).numpy()
        digests.append(xxhash.xxh3_128_hexdigest(rounded) + str(tuple(parameter.shape)))
    return content_hash(sorted(digests))
