"""Raw text from a file to the trained batches: no template is put around it, and none is needed."""

import json
import pickle
import struct

import numpy as np
import pytest
from safetensors.numpy import save
from tokenizers import Tokenizer
from typer.testing import CliRunner

from pairwright.cli.main import app
from pairwright.config import Config, TokensConfig
from pairwright.export import EXPORTERS, ExportOptions
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.store.importing import import_files
from pairwright.store.table import Table
from pairwright.tokens.stage.stage import encode_source
from pairwright.training import read_batch, train
from training.made_runs import make_model

ROWS = [{"prompt": f"{word} is", "chosen": " good.", "rejected": f" not {word}."} for word in ("red", "blue", "green")]


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    """A model whose tokenizer has no chat template."""
    folder = make_model(tmp_path_factory.mktemp("base"))
    config = json.loads((folder / "tokenizer_config.json").read_text())
    del config["chat_template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def pairs(tmp_path):
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    import_files([str(tmp_path / "rows.jsonl")], Table(tmp_path / "experience"))
    build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", PairOptions(strategy="imported"))
    return tmp_path / "pairs"


def settings(**changes):
    base = {"batch_size": 3, "learning_rate": 1e-3, "threads": 1, "max_steps": 1, "dump_batches": 1}
    return Config.model_validate({"train": base | changes})


def spelled(folder, ids):
    return Tokenizer.from_file(str(folder / "tokenizer.json")).decode(list(ids), skip_special_tokens=False)


def dumped(folder, model, channel="dpo"):
    """Prompts, branches and what of them is trained, as text."""
    (saved,) = (folder / "batches").iterdir()
    return {
        tuple(
            spelled(model, part) for part in (tree.prompt, *tree.branches, *map(np.extract, tree.masks, tree.branches))
        )
        for tree in read_batch(saved)[channel]
    }


def test_text_rows_are_trained_as_text_with_and_without_a_template(pairs, model, base_model, tmp_path):
    for name, folder in (("chat", model), ("base", base_model)):
        train(settings(), model=folder, pairs=pairs, output=tmp_path / name)
        expected = set()
        for row in ROWS:
            sides = tuple(f"{row[side]}<|end|>" for side in ("chosen", "rejected"))
            expected.add((row["prompt"], *sides, *sides))
        assert dumped(tmp_path / name, folder) == expected


def test_text_rows_come_back_from_an_export_to_trl(pairs, tmp_path):
    EXPORTERS["trl"](pairs, tmp_path / "out.jsonl", ExportOptions())
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    found = [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in rows]
    assert sorted(found, key=str) == sorted(ROWS, key=str)


def test_an_unpaired_text_is_trained_by_sft(base_model, tmp_path):
    row = {"prompt": "red is", "completion": " good.", "label": True}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    import_files([str(tmp_path / "rows.jsonl")], Table(tmp_path / "experience"))
    config = settings(channels={"dpo": 0, "sft": 1}, batch_size=1)
    train(config, model=base_model, experience=tmp_path / "experience", output=tmp_path / "run")
    ((_, branch, trained),) = dumped(tmp_path / "run", base_model, "sft")
    assert branch.endswith(" good.<|end|>")
    assert trained == " good.<|end|>"


def test_a_chat_is_refused_without_a_template_with_the_reason(base_model, tmp_path):
    rows = [{"prompt": [{"role": "user", "content": "red?"}], "chosen": "yes", "rejected": "no"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_files([str(tmp_path / "rows.jsonl")], Table(tmp_path / "experience"))
    build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", PairOptions(strategy="imported"))
    with pytest.raises(Exception, match="1 × refused: no_template"):
        train(settings(), model=base_model, pairs=tmp_path / "pairs", output=tmp_path / "run")
    manifest = encode_source(
        tmp_path / "pairs", tmp_path / "tokens", TokensConfig(tokenizer=str(base_model)), num_workers=1
    )
    assert manifest["refused"] == {"no_template": 1}


def payload(responses, *, tokenizer=None):
    """Trinity's bytes as its rollouts are: templated text and, with a tokenizer, the ids, with no messages."""
    prompt = "<|user|>red?<|end|><|assistant|>"
    items, tensors = [], {}
    for number, (response, reward, status) in enumerate(responses):
        eid = {"batch": 0, "task": "t", "run": number, "step": 0, "suffix": f"s{number}"}
        items.append({"eid": eid, "reward": np.float32(reward), "prompt_text": prompt, "response_text": response,
                      "prompt_length": 3, "truncate_status": status})  # fmt: skip
        if tokenizer is not None:
            backend = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
            given, sampled = backend.encode(prompt).ids, backend.encode(response).ids  # no stop token was sampled
            items[-1]["prompt_length"] = len(given)
            tensors[f"{number}:tokens"] = np.array(given + sampled, np.int32)
    meta = pickle.dumps({"version": 1, "num_items": len(items), "items": items})
    body = save(tensors)
    return b"TRXP" + struct.pack("<BQQ", 1, len(meta), len(body)) + meta + body


RESPONSES = [("yes", 1.0, None), ("no, bl", 0.0, "response_truncated")]


@pytest.mark.parametrize("with_tokens", [False, True])
def test_templated_text_of_trinity_is_never_wrapped_and_recorded_ids_come_first(base_model, tmp_path, with_tokens):
    (tmp_path / "payload.trxp").write_bytes(payload(RESPONSES, tokenizer=base_model if with_tokens else None))
    import_files([str(tmp_path / "payload.trxp")], Table(tmp_path / "experience"))
    build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", PairOptions(strategy="all"))
    options = TokensConfig(tokenizer=str(base_model))
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)
    assert (manifest["exact"], manifest["recorded"]) == (1, 2 if with_tokens else 0)
    train(settings(batch_size=1), model=base_model, pairs=tmp_path / "pairs", output=tmp_path / "run")
    good = "yes" if with_tokens else "yes<|end|>"  # recorded ids are taken as they are
    assert dumped(tmp_path / "run", base_model) == {
        ("<|user|>red?<|end|><|assistant|>", good, "no, bl", good, "no, bl")
    }  # fmt: skip
    manifest = encode_source(
        tmp_path / "experience", tmp_path / "own", TokensConfig(tokenizer=str(base_model)), num_workers=1
    )
    assert (manifest["exact"], manifest["recorded"]) == (2, 2 if with_tokens else 0)


def ids_payload(sides, **item):
    """Trinity's bytes of preferences that have token ids; messages only where `item` has them."""
    items, tensors = [], {}
    for number, (prompt, chosen, rejected) in enumerate(sides):
        eid = {"batch": 0, "task": f"t{number}", "run": 0, "step": 0, "suffix": f"s{number}"}
        items.append({"eid": eid, "prompt_length": len(prompt), **item})
        for name, ids in (("tokens", prompt), ("chosen", chosen), ("rejected", rejected)):
            tensors[f"{number}:{name}"] = np.array(ids, np.int32)
    meta, body = pickle.dumps({"version": 1, "num_items": len(items), "items": items}), save(tensors)
    return b"TRXP" + struct.pack("<BQQ", 1, len(meta), len(body)) + meta + body


IDS = [([5, 6, 7], [8, 9], [10]), ([5, 6, 7], [11], [12, 13]), ([20, 21], [8, 9], [10]), ([22], [23], [23])]
CHAT_PROMPT = {"messages": [{"role": "user", "content": "red?"}]}


@pytest.mark.parametrize("item", [{}, CHAT_PROMPT, {"prompt_text": "<|user|>red?"}])
def test_preferences_of_token_ids_alone_are_paired_and_trained_on_these_ids(base_model, tmp_path, item):
    (tmp_path / "payload.trxp").write_bytes(ids_payload([*IDS, IDS[0]], **item))
    import_files([str(tmp_path / "payload.trxp")], Table(tmp_path / "experience"))
    summary = build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", PairOptions(strategy="imported"))
    drops = {drop["reason"]: drop["count"] for stage in summary["stages"] for drop in stage["drops"]}
    # Ids are compared like text: equal sides and equal pairs are dropped; a prompt may have its own name.
    assert drops["identical completions"] == 1
    assert summary["pairs"] == (2 if item else 3)
    options = TokensConfig(tokenizer=str(base_model))
    assert encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)["refused"] == {}
    train(settings(batch_size=summary["pairs"]), model=base_model, pairs=tmp_path / "pairs", output=tmp_path / "run")
    (saved,) = (tmp_path / "run" / "batches").iterdir()
    trained = [
        ([*tree.prompt], *([*branch] for branch in tree.branches), all(mask.all() for mask in tree.masks))
        for tree in read_batch(saved)["dpo"]
    ]
    expected = [(*ids, True) for ids in (IDS[:2] if item else IDS[:3])]
    assert sorted(trained) == sorted(expected)


def test_token_ids_without_text_are_refused_where_text_is_needed(base_model, tmp_path):
    (tmp_path / "payload.trxp").write_bytes(ids_payload(IDS[:2]))
    import_files([str(tmp_path / "payload.trxp")], Table(tmp_path / "experience"))
    build_pairs([Table(tmp_path / "experience")], tmp_path / "pairs", PairOptions(strategy="imported"))
    options = TokensConfig(tokenizer=str(base_model), recorded="ignore")
    assert encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)["refused"] == {"only_ids": 2}
    for target in ("trl", "customizer", "nemo-rl-preference", "trinity"):
        summary = EXPORTERS[target](tmp_path / "pairs", tmp_path / "out.jsonl", ExportOptions())
        assert (summary.written, sum(summary.refused.values())) == (0, 2)


def test_commands_show_text_as_text(pairs, base_model, tmp_path):
    runner = CliRunner()
    shown = runner.invoke(app, ["experience", "head", str(tmp_path / "experience"), "-n", "1"]).output
    assert "prompt       text: red is" in shown
    assert "chosen       text: good." in shown
    (tmp_path / "payload.trxp").write_bytes(payload(RESPONSES))
    import_files([str(tmp_path / "payload.trxp")], Table(tmp_path / "trinity"))
    shown = runner.invoke(app, ["experience", "head", str(tmp_path / "trinity"), "-n", "1"]).output
    assert "prompt       text: <|user|>red?<|end|><|assistant|>" in shown
    assert "completion   text: yes" in shown
    told = runner.invoke(app, ["tokens", "show", str(pairs), "--tokenizer", str(base_model), "-n", "1", "--json"])
    (first,) = json.loads(told.stdout)
    assert {token["is"] for token in first["tokens"]} == {"text", "generated", "stop"}
