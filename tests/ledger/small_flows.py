"""Small whole flows for the ledger: a table of runs, pairs of it, a tiny model, and what it was trained on."""

import json
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from pairwright.config import Config
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.pairs.pair_table import read_pairs
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message
from pairwright.store.table import Table
from pairwright.training import train
from tokens.token_families import FAMILIES, small_backend, special_tokens

BACKEND = small_backend()
AFTER = BACKEND.encode("\n").ids
STOP = BACKEND.token_to_id("<|im_end|>")


def make_model(folder: Path, family: str = "chatml") -> Path:
    """A tiny model with a tokenizer that has merges, so that texts can be spelled in several ways."""
    folder.mkdir(parents=True)
    BACKEND.save(str(folder / "tokenizer.json"))
    config = {"chat_template": FAMILIES[family].template, **special_tokens(FAMILIES[family])}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(config | {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "<s>"})
    )
    torch.manual_seed(0)
    shape = {
        "vocab_size": BACKEND.get_vocab_size(), "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512, "bos_token_id": None,
        "eos_token_id": STOP, "pad_token_id": 0,
    }  # fmt: skip
    LlamaForCausalLM(LlamaConfig(**shape)).save_pretrained(folder)
    return folder


def asked(question: str) -> list[int]:
    """The ids of a user's turn and of the prompt to answer it."""
    return BACKEND.encode(f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n").ids


def letters(text: str) -> list[int]:
    """Ids of a text that the tokenizer itself would not choose: letter by letter."""
    return [number for letter in text for number in BACKEND.encode(letter).ids]


def run_of(
    task: int, run: int, answers: list[str], *, reward: float | None, is_recorded: bool = False, is_cut: bool = False,
    fails: bool = False,
) -> Experience:  # fmt: skip
    """A run in which a user asks again after each answer. Its ids, if recorded, are the answers letter by letter."""
    completion: list[Message] = []
    first, again = asked(f"hi {task}"), AFTER + asked("hi")
    ids, mask = list(first), []
    for number, answer in enumerate(answers):
        if number:
            completion.append(Message("user", "hi"))
            ids += again
            mask += [False] * len(again)
        is_last_and_cut = is_cut and number == len(answers) - 1
        sampled = letters(answer) + ([] if is_last_and_cut else [STOP])
        completion.append(Message("assistant", answer))
        ids += sampled
        mask += [True] * len(sampled)
    arrays = {}
    if is_recorded:
        logprobs = [-0.5 if sampled else 0.0 for sampled in mask]
        arrays = {"tokens": ids, "prompt_length": len(first), "action_mask": mask, "logprobs": logprobs}
    return Experience(
        eid=EID(batch=0, task=task, run=run, suffix=f"{task}-{run}"), kind="multi_turn", prompt=[Message("user", f"hi {task}")],
        completion=completion, reward=reward, truncate_status="response_truncated" if is_cut else None,
        errors=[ErrorSite(2, "nonzero_exit", "hi")] if fails and len(answers) > 1 else (), **arrays,
    )  # fmt: skip


def train_on(folder: Path, model: Path, runs: list[Experience], *, pairs=None, tokens=None, **settings) -> Path:
    """The flow: table, pairs, training with every batch dumped. Returns the folder of the training."""
    with Table(folder / "experience") as table:
        table.append(runs)
    channels = {"dpo": 0.0} | settings.pop("channels", {"dpo": 1.0})
    if channels["dpo"] or channels.get("sft"):
        build_pairs([table], folder / "pairs", PairOptions(**(pairs or {})))
    base = {"channels": channels, "batch_size": 2, "threads": 1, "learning_rate": 1e-4, "dump_batches": 1000}
    config = Config.model_validate({"train": base | settings, "tokens": {"workers": 1, **(tokens or {})}})
    train(
        config, model=model, output=folder / "train", experience=folder / "experience",
        pairs=folder / "pairs" if (folder / "pairs").exists() else None,
    )  # fmt: skip
    return folder / "train"


def dumped(folder: Path) -> list[tuple[str, str, str, list[int]]]:
    """(channel, id, side, trained ids) of every sequence of every update, from the batches as they were written."""
    rows = []
    for path in sorted((folder / "batches").glob("step-*.json")):
        for channel, items in json.loads(path.read_text())["channels"].items():
            for item in items:
                sides = ("chosen", "rejected") if len(item["branches"]) == 2 else ("",)
                for side, branch, mask in zip(sides, item["branches"], item["masks"], strict=True):
                    trained = [number for number, is_trained in zip(branch, mask, strict=True) if is_trained]
                    rows.append((channel, item["id"], side, trained))
    return rows


def experience_of(folder: Path):
    """(channel, id, side) -> the experience that it came from."""
    known = {exp.eid.uid: exp for exp in Table(folder.parent / "experience").records()}
    pairs = {}
    if (folder.parent / "pairs").exists():
        pairs = {pair.id: pair for pair in read_pairs(folder.parent / "pairs")}

    def find(channel: str, name: str, side: str) -> Experience:
        if name in known:
            return known[name]
        return known[(pairs[name].rejected_eid if side == "rejected" else pairs[name].chosen_eid).uid]

    return find
