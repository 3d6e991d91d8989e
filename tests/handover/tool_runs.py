"""Runs of an agent with tools whose recorded ids no tokenizer would make again, their pairs, and the updates of our loop."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
import trl
from transformers import TrainerCallback

from generate.tiny_models import byte_tokenizer, llama
from pairwright import EID, Encoded, Experience, Message, Table, ToolCall, encode, make_pairs
from pairwright.config.train_config import TrainConfig
from pairwright.pairs.pair_table import pair_batches, write_pairs
from pairwright.records.messages import TURN_WEIGHT
from pairwright.tokens import ChatTokenizer
from pairwright.tokens.encode import encode_turns
from pairwright.training.model.policy_model import open_policy
from pairwright.training.model.ranks import Ranks
from pairwright.training.token_rows import TokenRows

TOOLS = [{"type": "function", "function": {"name": "look", "description": "the log", "parameters": {"type": "object"}}}]


def make_model(folder: Path, *, seed: int = 0, scale: float = 1.0) -> Path:
    tokenizer = byte_tokenizer()
    model = llama(tokenizer, seed=seed, context=2048)
    with torch.no_grad():
        for weight in model.parameters():
            weight *= scale
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_runs(folder: Path, model: Path, num_tasks: int = 8, *, recorded: bool = True) -> Path:
    """Two runs of each task: a call, its result, an answer; with `recorded`, words of the model spelled letter by letter."""
    tokenizer = ChatTokenizer.from_folder(str(model))
    with Table(folder) as table:
        table.append([_run(tokenizer, task, run, recorded) for task in range(num_tasks) for run in range(2)])
    return folder


def _run(tokenizer: ChatTokenizer, task: int, run: int, recorded: bool) -> Experience:
    prompt = [Message("user", f"{task}: where is the cat" + " now" * (task % 3))]
    call = ToolCall("look", f'{{"at":{task + 10 * run}}}', id="1")
    said = Message("assistant", f"the log {run}", tool_calls=(call,))
    result = Message("tool", "the dog sat on the log" + " and the mat" * (task % 4), tool_call_id="1")
    answer = Message(
        "assistant", "on the mat" if run == 0 else f"the dog {task}", extra={TURN_WEIGHT: 0.5 if task % 2 else 1.0}
    )
    arrays = {}
    if recorded:
        (sequence,) = encode_turns(tokenizer, [*prompt, said, result, answer], TOOLS)
        ids, mask = _spell(tokenizer, sequence.ids.tolist(), sequence.mask.tolist())
        start = mask.index(True)
        arrays = {"tokens": np.array(ids), "prompt_length": start, "action_mask": np.array(mask[start:])}
    return Experience(
        eid=EID(batch=0, task=task, run=run), kind="multi_turn", prompt=prompt, completion=[said, result, answer],
        tools=TOOLS, reward=float(run == 0), **arrays,
    )  # fmt: skip


def _spell(tokenizer: ChatTokenizer, ids: list[int], mask: list[bool]) -> tuple[list[int], list[bool]]:
    """What was generated, letter by letter: the same text, other ids."""
    new_ids: list[int] = []
    new_mask: list[bool] = []
    for number, trained in zip(ids, mask, strict=True):
        text = tokenizer.decode([number])
        letters = [int(tokenizer.encode(letter)[0][0]) for letter in text] if trained and "<|" not in text else [number]
        new_ids += letters
        new_mask += [trained] * len(letters)
    return new_ids, new_mask


def make_tool_pairs(folder: Path, model: Path, num: int = 8, *, recorded: bool = True) -> Encoded:
    """Encoded pairs of these runs with different weights."""
    runs = make_runs(folder / "runs", model, num, recorded=recorded)
    pairs = make_pairs(runs, folder / "pairs", strategy="best-worst", validation=0)
    assert len(pairs) == num
    write_pairs(folder / "weighted", [_weigh(batch) for batch in pair_batches(pairs.path)])
    data = encode(folder / "weighted", model, folder / "tokens", workers=1, experience=[str(runs)])
    assert data.manifest["exact"] == num
    return data


def _weigh(batch: pa.RecordBatch) -> pa.RecordBatch:
    weights = pa.array([1.0 + number % 3 for number in range(batch.num_rows)], batch.schema.field("weight").type)
    return batch.set_column(batch.schema.get_field_index("weight"), batch.schema.field("weight"), weights)


def our_update(
    data: Encoded, kind: str, model: Path, reference: Path, **options
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradient of one update of our loop on all rows."""
    rows = TokenRows(data.path, Path(str(data.tokenizer)), kind, reference=reference, **options)
    policy = open_policy(model, TrainConfig(dropout=False))
    items = rows.channel.order.items
    rows.channel.prepare(policy, items, Ranks())
    loss, _ = rows.channel.loss(policy, items, rows.channel.total(items))
    loss.backward()
    return float(loss.detach()), {name: weight.grad for name, weight in policy.model.named_parameters()}


def their_update(trainer, folder: Path | None = None) -> tuple[float, dict[str, torch.Tensor], list]:
    """Loss and gradient of the first update of a TRL trainer, and the ids and labels that its model was given."""
    losses, seen, gradients = [], [], {}
    step = trainer.training_step

    def training_step(*args, **kwargs):
        losses.append(step(*args, **kwargs))
        return losses[-1]

    class Keep(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
            gradients.update({name: weight.grad.clone() for name, weight in model.named_parameters()})

    def look(module, args, kwargs):
        if kwargs.get("labels") is not None and torch.is_grad_enabled():
            for ids, labels, mask in zip(kwargs["input_ids"], kwargs["labels"], kwargs["attention_mask"], strict=True):
                seen.append((ids[mask == 1].tolist(), (labels[mask == 1] != -100).tolist()))

    trainer.training_step = training_step
    trainer.add_callback(Keep())
    trainer.model.register_forward_pre_hook(look, with_kwargs=True)
    trainer.train()
    return float(sum(losses)), gradients, seen


def their_arguments(kind: str, folder: Path, **options):
    """Arguments of one update on eight rows, in micro-batches of 3, 3 and 2."""
    config = {"dpo": trl.DPOConfig, "sft": trl.SFTConfig, "kto": trl.KTOConfig}[kind]
    shared = {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3, "max_steps": 1, "max_grad_norm": 0.0}
    shared |= {"max_length": None, "bf16": False, "use_cpu": True, "save_strategy": "no"}
    return config(str(folder), **(shared | {"report_to": "none", "disable_tqdm": True} | options))
