"""Which turns are trained: by rule, by function, by what the data say; the others are context, and counted."""

import json
from pathlib import Path

import pytest
from token_families import FAMILIES, small_backend

from pairwright import EID, Experience, Message, Table, ToolCall, import_traces
from pairwright.config import TokensConfig, load_config
from pairwright.errors import ConfigError
from pairwright.pairs.build import build_pairs
from pairwright.pairs.options import PairOptions
from pairwright.records.messages import ErrorSite
from pairwright.tokens import EncodeOptions
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.stage.cache import CachedPairs, read_sequences
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.tokenizer import ChatTokenizer

CALL = ToolCall("look", '{"q": 1}', "call_0")
STEPS = (
    Message("assistant", "let me", tool_calls=(CALL,)),
    Message("tool", "Error: no", tool_call_id="call_0"),
    Message("assistant", "again", tool_calls=(CALL,)),
    Message("tool", "fine", tool_call_id="call_0"),
    Message("assistant", "done"),
    Message("user", "more"),
    Message("assistant", "bye"),
)
# The turns are messages 1, 3, 5 and 7; message 2 is the failure.
RULES = {
    "all": ["let me", "again", "done", "bye"],
    "last": ["bye"],
    "after-error": ["again"],
    "calls": ["let me", "again"],
    "text": ["done", "bye"],
}


def run(number: int = 0, **fields) -> Experience:
    base = {"prompt": [Message("user", "hi")], "completion": STEPS, "errors": [ErrorSite(2, "tool_error", "no")]}
    return Experience(**({"eid": EID("b", "t", number, 0, f"s{number}"), "kind": "multi_turn", "reward": 1.0} | base | fields))  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("tokenizer")
    small_backend().save(str(place / "tokenizer.json"))
    config = {"chat_template": FAMILIES["chatml with calls"].template, "eos_token": "<|im_end|>"}
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    return place


def trained(ready: ChatTokenizer, sequences) -> list[str]:
    """The text of each trained turn, without its calls and stop."""
    pieces = []
    for sequence in sequences:
        for turn in sorted(set(sequence.message_index[sequence.mask].tolist())):
            text = ready.decode(sequence.ids[sequence.mask & (sequence.message_index == turn)])
            assert text.endswith("<|im_end|>")
            pieces.append(text.removesuffix("<|im_end|>").split("\n")[0])
    return pieces


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_trains_its_turns_and_leaves_the_ids_alone(rule, folder):
    ready = ChatTokenizer.from_folder(folder)
    (whole,) = encode_experience(ready, run())
    (sequence,) = encode_experience(ready, run(), options=EncodeOptions(train_turns=rule))
    assert trained(ready, [sequence]) == RULES[rule]
    assert sequence.ids.tolist() == whole.ids.tolist()
    assert len(sequence.report.not_selected) == 4 - len(RULES[rule])


def test_a_function_selects_and_none_selected_is_refused(folder):
    ready = ChatTokenizer.from_folder(folder)
    (sequence,) = encode_experience(
        ready, run(), options=EncodeOptions(train_turns=lambda messages, index: messages[index].text == "done")
    )
    assert trained(ready, [sequence]) == ["done"]
    with pytest.raises(Refusal, match="not_selected: none of 4 generated turns is selected"):
        encode_experience(ready, run(), options=EncodeOptions(train_turns=lambda messages, index: False))
    with pytest.raises(ConfigError, match="failed: ZeroDivisionError"):
        encode_experience(ready, run(), options=EncodeOptions(train_turns=lambda messages, index: 1 / 0))


def test_a_stop_that_was_not_sampled_is_dropped_from_the_last_turn_only(folder):
    ready = ChatTokenizer.from_folder(folder)
    cut = run(truncate_status="response_truncated")
    (sequence,) = encode_experience(ready, cut, options=EncodeOptions(train_turns="calls"))
    assert trained(ready, [sequence]) == ["let me", "again"]  # with their stops
    (sequence,) = encode_experience(ready, cut, options=EncodeOptions(train_turns="last"))
    assert ready.decode(sequence.ids[sequence.mask]) == "bye"


def test_recorded_ids_are_masked_by_turn(folder):
    ready = ChatTokenizer.from_folder(folder)
    (whole,) = encode_experience(ready, run())
    start = int(whole.mask.argmax())
    arrays = {"tokens": whole.ids, "prompt_length": start, "action_mask": whole.mask[start:]}
    (sequence,) = encode_experience(ready, run(**arrays), options=EncodeOptions(train_turns="last"))
    assert (sequence.report.source, trained(ready, [sequence])) == ("recorded", ["bye"])
    # One span for two turns: which tokens are whose is not known.
    joined = arrays | {"action_mask": [True] * (len(whole.ids) - start)}
    with pytest.raises(Refusal, match="train_turns cannot select"):
        encode_experience(ready, run(**joined), options=EncodeOptions(train_turns="last"))


def test_the_stage_counts_what_is_not_selected_and_knows_a_changed_function(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Table(tmp_path / "experience") as table:
        table.append([run(0), run(1, completion=STEPS[4:], errors=())])
    ready = ChatTokenizer.from_folder(folder)

    def encode(rule: str):
        manifest = encode_source(
            table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(folder), train_turns=rule), num_workers=1
        )
        sequences = [sequence for _, _, sequence in read_sequences(tmp_path / "tokens")]
        return manifest, trained(ready, sequences)

    manifest, texts = encode("calls")
    assert texts == ["let me", "again"]
    assert (manifest["turns_not_selected"], manifest["refused"]) == (2, {"not_selected": 1})
    assert manifest["options"]["train_turns"] == "calls"
    assert encode("last")[1] == ["bye", "bye"]
    for number, words in enumerate((["done"], ["again", "done"])):
        path = tmp_path / f"rule{number}.py"  # a module that was loaded is not loaded again in this process
        path.write_text(f"def pick(messages, index):\n    return messages[index].text in {words}\n")
        manifest, texts = encode(f"rule{number}.py:pick")
        assert texts == [*words, "done"]
        assert manifest["from_cache"] == 0
        before = path.read_text()
        path.write_text(before + "# changed\n")
        assert encode(f"rule{number}.py:pick")[0]["from_cache"] == 0
        path.write_text(before)
        assert encode(f"rule{number}.py:pick")[0]["from_cache"] == 2


def test_the_sides_of_a_pair_are_compared_by_their_selected_turns(folder, tmp_path):
    with Table(tmp_path / "experience") as table:
        table.append([run(0), run(1, reward=0.0, completion=(*STEPS[:4], Message("assistant", "lost")))])
    build_pairs([table], tmp_path / "pairs", PairOptions(strategy="best-worst"))
    ready, options = ChatTokenizer.from_folder(folder), TokensConfig(tokenizer=str(folder))
    expected = {
        "all": (RULES["all"], ["let me", "again", "lost"]), "last": (["bye"], ["lost"]),
        "after-error": (["again"], ["again"]),
    }  # fmt: skip
    for rule, sides in expected.items():
        rules = options.model_copy(update={"train_turns": rule})
        manifest = encode_source(tmp_path / "pairs", tmp_path / "tokens", rules, num_workers=1)
        (pair,) = CachedPairs(tmp_path / "tokens")
        assert (trained(ready, [pair.chosen]), trained(ready, [pair.rejected])) == sides
        assert pair.chosen.ids[: pair.prompt_length].tolist() == pair.rejected.ids[: pair.prompt_length].tolist()
        assert manifest["turns_not_selected"] == (0 if rule == "all" else 5)


def test_a_rule_that_does_not_exist_is_a_config_error():
    with pytest.raises(
        ConfigError, match=r"tokens\.train_turns: expected one of all, accepted, last, after-error, calls"
    ):
        load_config(overrides=[("tokens.train_turns", "first")], environment={})


@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": False}, {"loss_weight": 0.0}])
def test_a_message_that_the_data_leave_out_is_context(mark, folder, tmp_path):
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "no"}, {"role": "user", "content": "so"}, {"role": "assistant", "content": "yes"}]  # fmt: skip
    for number, words in ((1, ["yes"]), (3, ["no"])):
        messages = [turn | (mark if place == number else {}) for place, turn in enumerate(turns)]
        path = tmp_path / f"rows{number}.jsonl"
        path.write_text(json.dumps({"messages": messages}) + "\n")
        (record,) = import_traces(path, tmp_path / f"table{number}").records()
        ready = ChatTokenizer.from_folder(folder)
        (sequence,) = encode_experience(ready, record)
        assert trained(ready, [sequence]) == words
        assert all(text in ready.decode(sequence.ids) for text in ("hi", "no", "so", "yes"))
