"""Audit a file: compare the tokens that TRL's trainer would train with those that the model generated.

The installed trainer prepares the file as for training (with a tiny model instead of the real one), and its collator
returns ids and masks. Our encoding of the same rows gives the origin of each token. If TRL encoded something else
(arguments of calls twice, another spelling), ids are aligned; tokens without a counterpart were not generated.
"""

import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from pairwright.errors import PairwrightError
from pairwright.export import EXPORTERS, ExportOptions
from pairwright.pairs.pair_table import FILE_NAME
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, to_chat_message
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.tokens import ChatTokenizer, TokensError
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.spans.grammar import count_common
from pairwright.tokens.stage.paint import PALETTE

_TRL_ROWS = ({"chosen", "rejected"}, {"prompt", "completion"}, {"messages"})


class Audit(msgspec.Struct, kw_only=True):
    """Counts over all rows that we encode exactly."""

    trainer: str
    rows: int = 0
    sequences: int = 0
    equal: int = 0
    trained: int = 0  # tokens that TRL would train
    generated: int = 0  # tokens that the model generated
    both: int = 0
    left_out: int = 0  # generated tokens that TRL would not train, including those of rows that it drops
    rows_left_out: int = 0  # rows that TRL drops
    # Trained tokens that the model did not generate, by kind; "encoded otherwise" are tokens that the exact sequence
    # does not have, such as quotes of arguments that were encoded twice.
    not_generated: dict[str, int] = {}
    refused: dict[str, int] = {}  # rows that we cannot encode exactly, by reason; excluded from the counts


def audit_file(path: Path, tokenizer: Path, *, arguments: Json | None = None) -> Audit:
    """Prepare a file with the installed TRL and compare its masks with what the model generated.

    Args:
        path: A file for TRL, any file that `import` reads, or a folder of pairs.
        tokenizer: The folder of the model or its tokenizer.
        arguments: Arguments of TRL's trainer in place of its defaults, such as `max_length`.
    """
    import datasets

    with tempfile.TemporaryDirectory(prefix="pairwright-audit-") as folder:
        if path.is_dir() and (path / FILE_NAME).exists():
            EXPORTERS["trl"](path, Path(folder) / "pairs.jsonl", ExportOptions())
            path = Path(folder) / "pairs.jsonl"
        ready = ChatTokenizer.from_folder(str(tokenizer))
        records, keys = _read(path)
        if keys is None:
            rows = datasets.Dataset.from_list([_chat_row(record) for record in records.values()])
        else:
            rows = datasets.Dataset.from_json(str(path), cache_dir=folder)
        rows = rows.add_column("audited_row", list(records) if keys is None else list(range(len(rows))))
        kind = "dpo" if "chosen" in rows.column_names else "kto" if "label" in rows.column_names else "sft"
        prepared = _prepare(kind, rows, tokenizer, arguments or {}, Path(folder))
        return _compare(kind, prepared, records, len(rows), ready)


def _read(path: Path) -> tuple[dict[int, Experience], set[str] | None]:
    """Read experiences of a file by row number, and the names of its columns if it is a TRL file."""
    layout = detect(path)
    if isinstance(layout, Rejected):
        raise PairwrightError(f"{path}: {layout.reason}")
    keys: set[str] | None = None
    numbers: dict[int, int] = {}  # line of a row -> its number
    if layout.shape == "lines":
        names: set[str] = set()
        with open(path, "rb") as file:
            for line, text in enumerate(file, start=1):
                if text.strip():
                    names = names or set(msgspec.json.decode(text))
                    numbers[line] = len(numbers)
        keys = names if any(known <= names for known in _TRL_ROWS) else None
    records: dict[int, Experience] = {}
    for number, record in enumerate(read_file(path, layout, Options())):
        if isinstance(record, Experience):
            place = None if record.source is None else record.source.line
            records[number if keys is None or place is None else numbers[place]] = record
    if not records:
        raise PairwrightError(f"{path}: no record to audit")
    return records, keys


def _chat_row(record: Experience) -> Json:
    """Convert a run to a row for TRL's SFT trainer, with its messages unchanged."""
    row: Json = {"messages": [to_chat_message(message) for message in record.messages]}
    # As text: Arrow would merge the keys of all schemas.
    return row | ({"tools": json.dumps(list(record.tools))} if record.tools else {"tools": None})


def _prepare(kind: str, rows: Any, tokenizer: Path, arguments: Json, folder: Path) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of each row that TRL keeps, and (ids, mask) of its sequences, as they would reach TRL's loss."""
    import trl
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    theirs = AutoTokenizer.from_pretrained(tokenizer, local_files_only=True)
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    models = [LlamaForCausalLM(LlamaConfig(vocab_size=len(theirs), **shape)) for _ in range(1 if kind == "sft" else 2)]
    make_arguments, make_trainer = {
        "dpo": (trl.DPOConfig, trl.DPOTrainer),
        "sft": (trl.SFTConfig, trl.SFTTrainer),
        "kto": (trl.KTOConfig, trl.KTOTrainer),
    }[kind]
    settings = {"bf16": False, "use_cpu": True, "report_to": "none", "per_device_train_batch_size": 2} | arguments
    trainer = make_trainer(
        model=models[0],
        args=make_arguments(str(folder / "out"), **settings),
        train_dataset=rows,
        processing_class=theirs,
        **({} if kind == "sft" else {"ref_model": models[1]}),
    )
    for row in trainer.train_dataset:
        batch = trainer.data_collator([row])
        mask_ST = batch["labels"] != -100 if kind == "sft" else batch["completion_mask"] == 1
        each = zip(batch["input_ids"], mask_ST, batch["attention_mask"], strict=True)
        yield row["audited_row"], [(ids[real == 1].numpy(), mask[real == 1].numpy()) for ids, mask, real in each]


def _compare(
    kind: str, prepared: Any, records: dict[int, Experience], num_rows: int, tokenizer: ChatTokenizer
) -> Audit:
    audit = Audit(trainer=kind, rows=num_rows)
    not_generated: Counter[str] = Counter()
    refused: Counter[str] = Counter({"unreadable": num_rows - len(records)} if num_rows > len(records) else {})
    theirs = dict(prepared)
    for number, record in records.items():
        try:
            ours = _encode(tokenizer, record)
        except TokensError as error:
            refused[getattr(error, "reason", "template_error")] += 1
            continue
        audit.rows_left_out += number not in theirs
        for side, sequences in enumerate(ours):
            audit.sequences += 1
            generated = sum(sequence.num_trained for sequence in sequences)
            audit.generated += generated
            if number not in theirs:
                audit.left_out += generated
                continue
            ids, mask = theirs[number][side]
            # Nothing predicts the first token: TRL leaves it out of the loss.
            mask = mask & (np.arange(len(mask)) > 0)
            paints, is_generated, is_known = _align(ids, sequences)
            both = int((mask & is_generated).sum())
            audit.trained += int(mask.sum())
            audit.both += both
            audit.left_out += generated - both
            audit.equal += both == generated == int(mask.sum())
            odd = mask & ~is_generated
            not_generated.update(PALETTE[Paint(paint)].name for paint in paints[odd & is_known])
            not_generated["encoded otherwise"] += int((odd & ~is_known).sum())
    if not audit.sequences:
        reasons = ", ".join(f"{reason} {num}" for reason, num in refused.items())
        raise PairwrightError(f"no row could be compared: {reasons}")
    audit.not_generated = {name: num for name, num in not_generated.most_common() if num}
    audit.refused = dict(refused.most_common())
    return audit


def _encode(tokenizer: ChatTokenizer, record: Experience) -> list[list[Sequence]]:
    """Encode a row exactly: the sequences of each side of a preference, or of a run."""
    if record.chosen is None or record.rejected is None:
        return [encode_experience(tokenizer, record)]
    sides = record.chosen.messages, record.rejected.messages
    pair = encode_pair(tokenizer, record.prompt, *sides, list(record.tools) or None)
    return [[pair.chosen], [pair.rejected]]


def _align(ids: Any, sequences: list[Sequence]) -> tuple[Any, Any, Any]:
    """Return our paint of TRL's tokens, which were generated in one of our sequences, and which we have."""
    paints = np.zeros(len(ids), np.int8)
    is_generated, is_known = np.zeros(len(ids), bool), np.zeros(len(ids), bool)
    for sequence in sequences:
        for start, others_start, size in _matches(ids.tolist(), sequence.ids.tolist()):
            here, there = slice(start, start + size), slice(others_start, others_start + size)
            # Keep tokens that an earlier sequence generated: later sequences have them as context.
            new = ~is_generated[here]
            paints[here][new] = sequence.paint[there][new]
            is_generated[here] |= sequence.mask[there]
            is_known[here] = True
    return paints, is_generated, is_known


def _matches(left: list[int], right: list[int]) -> list[tuple[int, int, int]]:
    """Return matching runs of ids, in order: (start in left, start in right, length).

    >>> _matches([1, 2, 3, 4, 9], [1, 7, 3, 8, 4, 9])
    [(0, 0, 1), (2, 2, 1), (3, 4, 2)]
    """
    start = count_common(left, right)
    end = count_common(left[start:][::-1], right[start:][::-1])
    middle = SequenceMatcher(None, left[start : len(left) - end], right[start : len(right) - end], autojunk=False)
    inner = [(start + one, start + other, size) for one, other, size in middle.get_matching_blocks() if size]
    return [(0, 0, start), *inner, (len(left) - end, len(right) - end, end)]
