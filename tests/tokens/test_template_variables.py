"""Variables of a chat template: which ones it reads, and how they arrive in sequences from config, records and pairs."""

import json
from pathlib import Path

import pytest
from token_families import small_backend

from pairwright import EID, Experience, Message, Table
from pairwright.config import TokensConfig, load_config
from pairwright.errors import ConfigError
from pairwright.generate.template_variables import explain_variables, list_variables
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.stage.cache import CachedPairs, list_refusals, read_sequences
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.tokenizer import ChatTokenizer, load_tokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "templates"
TEMPLATE = (
    "{% if date_string is not defined %}{% set date_string = 'today' %}{% endif %}{{ bos_token }}{{ date_string }}\n"
    "{% for m in messages %}{% set content = m.content %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and think %}<think></think>{% endif %}{{ content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if think %}<think></think>{% endif %}{% endif %}"
)
SPECIAL = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
EXPECTED = {
    "trl-qwen3_6": ("add_vision_id", "enable_thinking", "preserve_thinking"),
    "google-gemma-4-31B-it": ("enable_thinking",),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("enable_thinking", "truncate_history_thinking"),
    "meta-llama-Llama-3.2-3B-Instruct": ("custom_tools", "date_string", "tools_in_user_message"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("documents", "enable_citations", "enable_thinking"),
    "Qwen3-Coder": (),
}


@pytest.fixture
def folder(tmp_path) -> Path:
    place = tmp_path / "tokenizer"
    place.mkdir()
    small_backend().save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, **SPECIAL}))
    return place


def run(number: int, reward: float = 1.0, **info) -> Experience:
    return Experience(
        eid=EID("b", "t", number, 0, f"s{number}"), kind="single_turn", prompt=[Message("user", "hi")],
        completion=[Message("assistant", f"answer {number}")], reward=reward, info=info,
    )  # fmt: skip


def texts(tokens: Path, tokenizer: Path) -> list[str]:
    ready = ChatTokenizer.from_folder(tokenizer)
    return [ready.decode(sequence.ids) for _, _, sequence in read_sequences(tokens)]


@pytest.mark.parametrize("name", EXPECTED)
def test_the_variables_of_a_real_template_are_those_that_a_user_may_set(name):
    if not SHARED.is_dir():
        pytest.skip(f"the real templates are not at {SHARED}")
    assert list_variables((SHARED / f"{name}.jinja").read_text()) == EXPECTED[name]


def test_what_a_template_sets_itself_is_no_variable_of_it():
    assert list_variables(TEMPLATE) == ("date_string", "think")
    assert list_variables("{% macro f(documents) %}{{ documents }}{% endmacro %}{{ f(messages) }}") == ()
    assert list_variables("{% for x in y %}{{ x }}{% endfor %}{% generation %}{{ z }}{% endgeneration %}") == ("y", "z")
    assert list_variables("{% if %}") == ()
    # A default that the template sets where the caller has set none is still the caller's.
    assert list_variables("{% if not x is defined %}{% set x = 1 %}{% endif %}{{ x }}") == ("x",)


@pytest.mark.parametrize(
    "name", ["chat_template", "messages", "tools", "tokenize", "bos_token", "add_generation_prompt"]
)
def test_what_belongs_to_the_renderer_is_never_a_variable(name):
    assert explain_variables({name: "x"}, ["{{ " + name + " }}{{ enable_thinking }}"]) == (
        f"the chat template reads no variable {name!r}; it reads enable_thinking"
    )


def test_a_tokenizer_with_variables_renders_them_and_leaves_the_other_alone():
    plain = ChatTokenizer(small_backend(), TEMPLATE, special_tokens=SPECIAL)
    chat = [{"role": "user", "content": "hi"}]
    before = plain.renderer(None).text(chat)
    dated = plain.with_variables({"date_string": "May"})
    assert dated.renderer(None).text(chat).startswith("<s>May\n")
    assert dated.with_variables({"date_string": "June"}).renderer(None).text(chat).startswith("<s>June\n")
    assert plain.with_variables({"date_string": "May"}) is dated
    assert plain.renderer(None).text(chat) == before
    with pytest.raises(Refusal, match="reads no variable 'thinking'; it reads date_string, think"):
        plain.with_variables({"thinking": True})


def test_documents_reach_the_template():
    ready = ChatTokenizer(small_backend(), "{{ documents[0].text if documents else 'none' }}{{ messages[0].content }}")
    chat = [{"role": "user", "content": "hi"}]
    assert ready.renderer(None).text(chat) == "nonehi"
    assert ready.with_variables({"documents": [{"text": "a"}]}).renderer(None).text(chat) == "ahi"


def test_variables_of_the_config_are_in_sequences_cache_and_manifest(folder, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([run(0)])
    for value, number in (("May", 0), ("June", 0), ("May", 1)):
        options = TokensConfig(tokenizer=str(folder), chat_template_kwargs={"date_string": value})
        manifest = encode_source(table.path, tmp_path / "tokens", options, num_workers=1)
        assert (manifest["options"]["chat_template_kwargs"], manifest["from_cache"]) == ({"date_string": value}, number)
        assert texts(tmp_path / "tokens", folder)[0].startswith(f"<s>{value}\n")
    with pytest.raises(
        TokensError, match=r"tokens.chat_template_kwargs: the chat template reads no variable 'tinking'"
    ):
        load_tokenizer(TokensConfig(tokenizer=str(folder), chat_template_kwargs={"tinking": 1}))


def test_a_prompt_supplied_by_a_variable_is_not_trained(folder, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([run(0, chat_template_kwargs={"think": True}), run(1)])
    encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(folder)), num_workers=1)
    ready = ChatTokenizer.from_folder(folder)
    sequences = [sequence for _, _, sequence in read_sequences(tmp_path / "tokens")]
    assert ["<think>" in ready.decode(sequence.ids) for sequence in sequences] == [True, False]
    assert [ready.decode(sequence.ids[sequence.mask]) for sequence in sequences] == [
        "answer 0<|im_end|>", "answer 1<|im_end|>",
    ]  # fmt: skip


def test_variables_of_a_record_override_the_config_and_unread_ones_are_refused(folder, tmp_path):
    kwargs = [{"date_string": "June"}, {"enable_thinking": True}, ["list"], {}]
    with Table(tmp_path / "experience") as table:
        table.append([run(number, chat_template_kwargs=value) for number, value in enumerate(kwargs)])
    options = TokensConfig(tokenizer=str(folder), chat_template_kwargs={"date_string": "May"})
    manifest = encode_source(table.path, tmp_path / "tokens", options, num_workers=1)
    assert manifest["refused"] == {"template_variables": 2}
    assert [text[:6] for text in texts(tmp_path / "tokens", folder)] == ["<s>Jun", "<s>May"]
    details = " ".join(detail for _, _, detail in list_refusals(tmp_path / "tokens"))
    assert "reads no variable 'enable_thinking'; it reads date_string, think" in details
    assert "--record-kwargs ignore" in details
    ignoring = options.model_copy(update={"record_kwargs": "ignore"})
    manifest = encode_source(table.path, tmp_path / "tokens", ignoring, num_workers=1)
    assert (manifest["encoded"], manifest["refused"]) == (4, {})
    assert {text[:6] for text in texts(tmp_path / "tokens", folder)} == {"<s>May"}


def test_a_changed_variable_of_a_record_is_encoded_anew(folder, tmp_path):
    for value in ("May", "June"):
        with Table(tmp_path / f"experience-{value}") as table:
            table.append([run(0, chat_template_kwargs={"date_string": value})])
        manifest = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(folder)), num_workers=1)
        assert manifest["from_cache"] == 0
        assert texts(tmp_path / "tokens", folder)[0].startswith(f"<s>{value}\n")


def test_pairs_keep_the_variables_of_their_sides(folder, tmp_path):
    runs = [
        run(0, 1.0, chat_template_kwargs={"date_string": "May"}),
        run(1, 0.0, chat_template_kwargs={"date_string": "May"}),
        run(2, 0.5, chat_template_kwargs={"date_string": "June"}),
        run(3, 0.2),
    ]
    with Table(tmp_path / "experience") as table:
        table.append(runs)
    build_pairs([table], tmp_path / "pairs", PairOptions(strategy="all"))
    options = TokensConfig(tokenizer=str(folder))
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)
    # Of six pairs one has sides with the same variables.
    assert (manifest["items"], manifest["encoded"], manifest["refused"]) == (6, 1, {"prompts_differ": 5})
    (pair,) = CachedPairs(tmp_path / "tokens")
    ready = ChatTokenizer.from_folder(folder)
    assert ready.decode(pair.chosen.ids).startswith("<s>May\n")
    assert ready.decode(pair.rejected.ids).startswith("<s>May\n")
    ignoring = options.model_copy(update={"record_kwargs": "ignore"})
    assert encode_source(tmp_path / "pairs", tmp_path / "tokens", ignoring, num_workers=1)["encoded"] == 6


def test_the_command_line_has_them_as_json_and_as_words():
    words = load_config(overrides=[("tokens.chat_template_kwargs.enable_thinking", "false")], environment={})
    assert words.tokens.chat_template_kwargs == {"enable_thinking": False}
    flags = {"tokens.chat_template_kwargs": ("--chat-template-kwargs", '{"enable_thinking": false}')}
    assert load_config(environment={}, flags=flags).tokens.chat_template_kwargs == {"enable_thinking": False}
    bad = {"tokens.chat_template_kwargs": ("--chat-template-kwargs", "enable_thinking")}
    with pytest.raises(ConfigError, match=r"--chat-template-kwargs: .*expected a JSON object"):
        load_config(environment={}, flags=bad)
    with pytest.raises(ConfigError, match="has a key of its own"):
        load_config(overrides=[("policy.extra_body.chat_template_kwargs.x", "1")], environment={})
