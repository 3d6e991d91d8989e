"""Models whose chat template has no tool role: tools, calls and results as text, the same in training and inference."""

import json
from pathlib import Path

import numpy as np
import pytest
from token_families import small_backend

from generate.tiny_models import byte_tokenizer, llama
from pairwright import EID, Experience, Message, Table, ToolCall
from pairwright.config import TokensConfig, load_config
from pairwright.errors import ConfigError
from pairwright.generate import Engine
from pairwright.generate.prompt_encoding import ChatEncoder
from pairwright.generate.tool_calls import split_calls
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.records.tool_texts import write_tools_as_text
from pairwright.tokens import EncodeOptions
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.stage.cache import CachedPairs, read_sequences
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.tokenizer import ChatTokenizer

TEMPLATE = (  # system, user and assistant in turn, and nothing else
    "{% for m in messages %}{% if m.role not in ('system', 'user', 'assistant') %}{{ raise_exception('no such role') }}"
    "{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOLS = ({"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},)
CALLS = tuple(ToolCall("clock", f'{{"zone":  "{zone}"}}', f"c{zone}") for zone in ("CET", "UTC"))
STEPS = (
    Message("assistant", "Let me see.", tool_calls=CALLS),
    Message("tool", "12:30", tool_call_id="cCET"),
    Message("tool", "11:30", tool_call_id="cUTC"),
    Message("assistant", "Half past."),
)


def run(number: int = 0, **fields) -> Experience:
    base = {"prompt": [Message("user", "time?")], "tools": TOOLS, "completion": STEPS, "reward": 1.0}
    return Experience(**({"eid": EID("b", "t", number, 0, f"s{number}"), "kind": "multi_turn"} | base | fields))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer")
    small_backend().save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE, "eos_token": "<|im_end|>"}))
    return place


def turns_of(ready: ChatTokenizer, sequence) -> dict[int, str]:
    return {
        turn: ready.decode(sequence.ids[sequence.mask & (sequence.message_index == turn)])
        for turn in sorted(set(sequence.message_index[sequence.mask].tolist()))
    }


def test_calls_are_trained_as_text_under_the_numbers_of_their_messages(folder):
    ready = ChatTokenizer.from_folder(folder)
    with pytest.raises(Refusal, match="no such role"):
        encode_experience(ready, run())
    (sequence,) = encode_experience(ready, run(), options=EncodeOptions(tools_as_text="hermes"))
    assert turns_of(ready, sequence) == {
        1: 'Let me see.\n<tool_call>\n{"name": "clock", "arguments": {"zone":  "CET"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "clock", "arguments": {"zone":  "UTC"}}\n</tool_call><|im_end|>',
        4: "Half past.<|im_end|>",
    }
    text = ready.decode(sequence.ids)
    assert f"<tools>\n{json.dumps(TOOLS[0])}\n</tools>" in text
    assert (
        "<|im_start|>user\n<tool_response>\n12:30\n</tool_response>\n<tool_response>\n11:30\n</tool_response><|im_end|>"
        in text
    )


def test_a_refusal_names_the_message_of_the_record(folder):
    ready = ChatTokenizer.from_folder(folder, template=TEMPLATE.replace("{{ m.content }}", "{{ m.content[:4] }}"))
    with pytest.raises(Refusal) as refused:  # in the text that is rendered it is message 2, after the system prompt
        encode_experience(ready, run(), options=EncodeOptions(tools_as_text="hermes"))
    assert (refused.value.reason, refused.value.message) == ("dropped", 1)


def test_what_is_trained_is_what_the_model_is_given_and_what_is_read_of_its_answer(folder):
    ready, tokenizer = ChatTokenizer.from_folder(folder), byte_tokenizer()
    tokenizer.chat_template = TEMPLATE
    (sequence,) = encode_experience(ready, run(), options=EncodeOptions(tools_as_text="hermes"))
    encoder = ChatEncoder(tokenizer, tools_as_text=True)
    whole = ready.decode(sequence.ids)
    for turn, text in turns_of(ready, sequence).items():
        prompt = encoder.text(run().messages[:turn], TOOLS)
        assert whole.startswith(prompt + text)
    engine = Engine(llama(tokenizer), tokenizer, tools_as_text="hermes")
    answer = turns_of(ready, sequence)[1].removesuffix("<|im_end|>")
    content, calls = split_calls(engine.call_format, answer)
    assert (content, [(call.name, call.arguments) for call in calls]) == (
        "Let me see.", [(call.name, call.arguments) for call in CALLS],
    )  # fmt: skip


def test_a_pair_keeps_the_recorded_ids_of_one_side_and_encodes_the_text_of_the_other(folder, tmp_path):
    ready = ChatTokenizer.from_folder(folder)
    (sequence,) = encode_experience(ready, run(), options=EncodeOptions(tools_as_text="hermes"))
    start = int(sequence.mask.argmax())
    ids = sequence.ids.copy()
    ids[start] += 1  # what was sampled, not what its text is encoded to
    recorded = {"tokens": ids, "prompt_length": start, "action_mask": sequence.mask[start:]}
    with Table(tmp_path / "experience") as table:
        other = run(1, completion=(*STEPS[:3], Message("assistant", "No idea.")), reward=0.0)
        table.append([run(0, **recorded), other])
    build_pairs([table], tmp_path / "pairs", PairOptions(strategy="best-worst"))
    options = TokensConfig(tokenizer=str(folder), tools_as_text="hermes")
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)
    assert (manifest["encoded"], manifest["refused"]) == (1, {})
    (pair,) = CachedPairs(tmp_path / "tokens")
    assert np.array_equal(pair.chosen.ids, ids)
    assert (pair.chosen.report.source, pair.rejected.report.source) == ("recorded", "rendered")
    assert list(turns_of(ready, pair.chosen)) == list(turns_of(ready, pair.rejected)) == [1, 4]


def test_pairs_and_selected_turns_go_together_with_it(folder, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([run(0), run(1, completion=(*STEPS[:3], Message("assistant", "No idea.")), reward=0.0)])
    build_pairs([table], tmp_path / "pairs", PairOptions(strategy="best-worst"))
    ready, options = ChatTokenizer.from_folder(folder), TokensConfig(tokenizer=str(folder), tools_as_text="hermes")
    manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", options, num_workers=1)
    assert (manifest["encoded"], manifest["options"]["tools_as_text"]) == (1, "hermes")
    (pair,) = CachedPairs(tmp_path / "tokens")
    assert list(turns_of(ready, pair.chosen)) == list(turns_of(ready, pair.rejected)) == [1, 4]
    assert "<tools>" in ready.decode(pair.chosen.ids[: pair.prompt_length])
    last = options.model_copy(update={"train_turns": "last"})
    encode_source(table.path, tmp_path / "runs", last, num_workers=1)
    texts = [turns_of(ready, sequence) for _, _, sequence in read_sequences(tmp_path / "runs")]
    assert texts == [{4: "Half past.<|im_end|>"}, {4: "No idea.<|im_end|>"}]


def test_a_system_prompt_keeps_its_text_and_arguments_that_are_no_json_stay_text():
    call = ToolCall("clock", "not json", "c1")
    chat = write_tools_as_text([Message("system", "Be brief."), Message("assistant", None, tool_calls=(call,))], TOOLS)
    assert chat.messages[0].content.startswith("Be brief.\n\nYou can call these tools:\n<tools>\n")
    assert chat.messages[1].content == '<tool_call>\n{"name": "clock", "arguments": "not json"}\n</tool_call>'
    assert chat.origins == (0, 1)
    assert write_tools_as_text([Message("text", "a")], TOOLS).messages == (Message("text", "a"),)


def test_where_another_renders_it_is_refused():
    with pytest.raises(ConfigError, match=r"serve model --tools-as-text"):
        load_config(overrides=[("policy.base_url", "http://x/v1"), ("policy.tools_as_text", "hermes")], environment={})
    with pytest.raises(ConfigError, match=r"tokens.train_turns: backend trl encodes texts by itself"):
        load_config(overrides=[("backend.name", "trl"), ("tokens.train_turns", "last")], environment={})
