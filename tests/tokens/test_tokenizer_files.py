"""Vocabularies other than tokenizer.json: the ids of the family's own library, or a refusal with a suggested fix.
And the named templates of a folder, as transformers reads them."""

import base64
import json
import shutil
from pathlib import Path

import pytest
from token_families import small_backend
from transformers import AutoTokenizer

from pairwright import EID, Experience, Message, Table
from pairwright.config import TokensConfig
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.refusals import TokensError
from pairwright.tokens.stage.stage import encode_source, hash_tokenizer
from pairwright.tokens.tokenizer import ChatTokenizer, choose_template, load_tokenizer, read_templates

TEXTS = ("hello  world", "\n\n    x = [1, 2]\t# é 日本 🙂", " a  b   c ", "1,234.5 don't SHOUT camelCase")
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }}[/INST]{% else %}"
    " {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
CHAT = [{"role": "user", "content": "hi  there"}, {"role": "assistant", "content": "ok"}]


def mistral_file(name: str) -> Path:
    library = pytest.importorskip("mistral_common", reason="mistral-common has the vocabularies of this test")
    return Path(library.__file__).parent / "data" / name


def test_a_tekken_vocabulary_has_the_ids_of_its_library(tmp_path):
    shutil.copy(mistral_file("tekken_240718.json"), tmp_path / "tekken.json")
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    theirs = Tekkenizer.from_file(str(tmp_path / "tekken.json"))
    ours = ChatTokenizer.from_folder(tmp_path, template=TEMPLATE)
    for text in TEXTS:
        assert ours.encode(text)[0].tolist() == theirs.encode(text, bos=False, eos=False)
    sequence = encode_chat(ours, CHAT)
    assert ours.decode(sequence.ids) == "<s>[INST] hi  there[/INST] ok</s>"
    assert ours.decode(sequence.ids[sequence.mask]) == " ok</s>"
    assert sequence.ids[[0, 1, -1]].tolist() == [theirs.bos_id, 3, theirs.eos_id]


@pytest.mark.parametrize("name", ["tokenizer.model.v1", "mistral_instruct_tokenizer_240323.model.v3"])
def test_a_sentencepiece_vocabulary_has_the_ids_of_its_library(name, tmp_path):
    library = pytest.importorskip("sentencepiece", reason="sentencepiece is the yardstick of this test")
    shutil.copy(mistral_file(name), tmp_path / "tokenizer.model")
    theirs = library.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    ours = ChatTokenizer.from_folder(tmp_path, template=TEMPLATE)
    for text in TEXTS:
        assert ours.encode(text)[0].tolist() == theirs.encode(text)
    assert ours.special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}
    # The hash is of this file, so that another vocabulary is another cache.
    before = hash_tokenizer(TokensConfig(tokenizer=str(tmp_path)))
    with (tmp_path / "tokenizer.model").open("ab") as file:
        file.write(b"\0")
    assert hash_tokenizer(TokensConfig(tokenizer=str(tmp_path))) != before


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.model", b"IQ== 0\nIg== 1\n", "a tiktoken file; text is split by code of the model"),
        ("qwen.tiktoken", b"IQ== 0\n", "a tiktoken file"),
        ("tekken.json", b"{}", "not a Tekken vocabulary"),
        ("readme.md", b"", "no tokenizer.json"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_way_out(name, content, words, tmp_path):
    if name == "tekken.json":
        mistral_file("")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TokensError, match=words):
        ChatTokenizer.from_folder(tmp_path)


PATTERN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# "wor" cannot be merged from two tokens: tiktoken takes a whole piece that is a token as it is.
MERGED = (b"he", b"ll", b"hell", b"hello", b" w", b"  ", b"12", b"123", "é".encode(), b"\n\n", b" wor", b"rld")


def make_tiktoken_folder(folder: Path, pattern: str | None = PATTERN) -> dict[bytes, int]:
    """256 bytes, a few merges, and special tokens with a gap between their ids, as Kimi has them."""
    ranks = {token: rank for rank, token in enumerate([*(bytes([byte]) for byte in range(256)), *MERGED])}
    lines = [base64.b64encode(token) + b" %d" % rank for token, rank in ranks.items()]
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines))
    special = {str(number): {"content": token, "special": True} for number, token in ((300, "[BOS]"), (305, "</s>"))}
    config = {"added_tokens_decoder": special, "bos_token": "[BOS]", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config | ({"pat_str": pattern} if pattern else {})))
    return ranks


def test_a_tiktoken_vocabulary_has_the_ids_of_its_library(tmp_path):
    library = pytest.importorskip("tiktoken", reason="tiktoken is the yardstick of this test")
    ranks = make_tiktoken_folder(tmp_path)
    special = {"[BOS]": 300, "</s>": 305}
    theirs = library.Encoding("own", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    ours = ChatTokenizer.from_folder(tmp_path)
    for text in (*TEXTS, "hello world 123 worrld [BOS]hé\n\n</s>", "word"):
        assert ours.encode(text)[0].tolist() == theirs.encode(text, allowed_special="all")
    sequence = encode_chat(ours, CHAT)
    assert ours.decode(sequence.ids[sequence.mask]) == " ok</s>"
    assert sequence.ids[[0, -1]].tolist() == [300, 305]
    before = hash_tokenizer(TokensConfig(tokenizer=str(tmp_path)))
    with (tmp_path / "tiktoken.model").open("ab") as file:
        file.write(b"\n")
    assert hash_tokenizer(TokensConfig(tokenizer=str(tmp_path))) != before


def test_a_tiktoken_vocabulary_is_refused_without_its_pattern_and_where_the_pattern_is_read_otherwise(tmp_path):
    pytest.importorskip("tiktoken", reason="tiktoken is the yardstick of this test")
    make_tiktoken_folder(tmp_path, pattern=None)
    with pytest.raises(TokensError, match=r'write the pattern into tokenizer_config\.json as "pat_str"'):
        ChatTokenizer.from_folder(tmp_path)
    # Possessive for tiktoken; for `tokenizers` one or more times three digits.
    make_tiktoken_folder(tmp_path, pattern=r"\p{N}{1,3}+|\P{N}+")
    with pytest.raises(TokensError, match="cannot be rebuilt exactly"):
        ChatTokenizer.from_folder(tmp_path)


def test_a_hub_id_is_found_in_the_cache_and_else_named_with_its_command(tmp_path, monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        TokensError, match=r"not in the cache of huggingface_hub.*pairwright model fetch org/tiny -o models/tiny"
    ):
        ChatTokenizer.from_folder("org/tiny")
    snapshot = tmp_path / "models--org--tiny" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--org--tiny" / "refs").mkdir()
    (tmp_path / "models--org--tiny" / "refs" / "main").write_text("0" * 40)
    small_backend().save(str(snapshot / "tokenizer.json"))
    (snapshot / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "</s>"}))
    ready = load_tokenizer(TokensConfig(tokenizer="org/tiny"))
    assert ready.decode(encode_chat(ready, CHAT).ids).endswith("ok</s>")
    assert hash_tokenizer(TokensConfig(tokenizer="org/tiny"))


# Named templates.

LISTED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
FOLDERS = {
    "a list": (LISTED, {}),
    "a list and a file": (LISTED, {"chat_template.jinja": "J"}),
    "a list, a file and more": (LISTED, {"chat_template.jinja": "J", "additional_chat_templates/rag.jinja": "R"}),
    "text and more": ("S", {"additional_chat_templates/tool_use.jinja": "R"}),
    "only more": (None, {"additional_chat_templates/tool_use.jinja": "R"}),
    "text": ("S", {}),
}


def make_folder(place: Path, template, files) -> Path:
    place.mkdir(exist_ok=True)
    small_backend().save(str(place / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    return place


@pytest.mark.parametrize("case", FOLDERS)
def test_the_templates_of_a_folder_are_those_of_transformers(case, tmp_path):
    folder = make_folder(tmp_path, *FOLDERS[case])
    theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True).chat_template
    ours = read_templates(folder, json.loads((folder / "tokenizer_config.json").read_text()))
    assert ours == (theirs if isinstance(theirs, dict) else {"default": theirs})


def test_a_template_is_picked_by_tools_by_name_or_by_file(tmp_path, monkeypatch):
    folder = make_folder(tmp_path / "model", LISTED, {})
    monkeypatch.chdir(tmp_path)
    tools = [{"type": "function", "function": {"name": "f"}}]

    def rendered(**options) -> list[str]:
        ready = load_tokenizer(TokensConfig(tokenizer=str(folder), **options))
        return [ready.renderer(given).text([{"role": "user", "content": "x"}], given) for given in (None, tools)]

    assert rendered() == ["D", "T"]
    assert rendered(chat_template="tool_use") == ["T", "T"]
    assert rendered(chat_template="default") == ["D", "D"]
    Path("mine.jinja").write_text("M")
    assert rendered(chat_template="mine.jinja") == ["M", "M"]
    with pytest.raises(TokensError, match="expected a file with a Jinja template, or one of default, tool_use"):
        rendered(chat_template="rag")
    Path("tool_use").write_text("M")
    with pytest.raises(TokensError, match=r"write \./tool_use for the file"):
        rendered(chat_template="tool_use")
    hashes = {hash_tokenizer(TokensConfig(tokenizer=str(folder), chat_template=name)) for name in ("default", None)}
    assert len(hashes) == 2


def test_a_list_that_is_none_is_refused(tmp_path):
    folder = make_folder(tmp_path, [{"name": "default"}], {})
    with pytest.raises(TokensError, match="expected text, or a list of"):
        ChatTokenizer.from_folder(folder)


def test_the_manifest_names_what_was_encoded_with_a_named_template(tmp_path):
    template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"  # fmt: skip
    named = [{"name": "default", "template": "{{ raise_exception('no') }}"}, {"name": "rag", "template": template}]
    folder = make_folder(tmp_path / "model", named, {})
    with Table(tmp_path / "experience") as table:
        run = {"prompt": [Message("user", "hi")], "completion": [Message("assistant", "ok")]}
        table.append([Experience(eid=EID("b", "t", 0, 0, "s"), kind="single_turn", **run)])
    options = TokensConfig(tokenizer=str(folder), chat_template="rag")
    assert encode_source(table.path, tmp_path / "tokens", options, num_workers=1)["exact"] == 1
    assert choose_template(folder, "rag") == template
