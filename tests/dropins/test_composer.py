"""`pairwright.composer`: the documented keys and shapes, with exact ids and masks in them."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
sys.path.append(str(Path(__file__).resolve().parents[1] / "tokens"))

from token_families import SHARED, real_hf, small_tokenizer  # noqa: E402

from pairwright.composer import CollatorConfig, ComposerDataCollator  # noqa: E402
from pairwright.errors import ConfigError, RecordError  # noqa: E402

HINT = "The word has to be in the list: ask for apple."
SDPO = {
    "ctx_teacher_input_ids",
    "ctx_teacher_attention_mask",
    "sdpo_loss_mask",
    "student_response_idx",
    "teacher_response_idx",
    "student_response_valid",
    "teacher_response_valid",
}
POLICY = {"input_ids", "attention_mask", "response_mask", "rewards", "trace_index"}
DPO = {
    f"dpo_{side}_{name}" for side in ("chosen", "rejected") for name in ("input_ids", "attention_mask", "response_mask")
}


def trace(name="t", *, error="not_found", **more):
    """A call that fails and the turn that recovers, marked as the original's adapter marks it."""
    return {
        "trace_id": name,
        "turns": [
            {"role": "user", "content": "Look up zebra."},
            {"role": "assistant", "content": "", "tool_call": {"name": "look", "arguments": {"word": "zebra"}}},
            {"role": "tool", "content": "no such word"},
            {
                "role": "assistant",
                "content": "Sorry, I mean apple.",
                "tool_error": error,
                "error_meta": {"available_tools": ["look"]},
            },
        ],
        "final_reward": 1.0,
        **more,
    }


def plain(name="p", **more):
    turns = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello."}]
    return {"trace_id": name, "turns": turns, "final_reward": 0.0, **more}


@pytest.fixture
def tokenizer():
    return small_tokenizer("chatml with calls")


def collate(tokenizer, examples, **options):
    collator = ComposerDataCollator(tokenizer, CollatorConfig(**options))
    return collator, collator(examples)


def text_at(tokenizer, ids, positions):
    return tokenizer.decode(np.asarray(ids)[np.asarray(positions)])


def test_a_batch_has_the_documented_keys_shapes_and_dtypes(tokenizer):
    pairs = [
        {"state_messages": [{"role": "user", "content": "Say hi"}], "chosen": "Hi there, friend.", "rejected": "No."},
        {"chosen": "a", "rejected": "b"},
    ]
    _, batch = collate(tokenizer, [trace(dpo_pairs=pairs), plain()], hint_generator=lambda kind, meta: HINT)
    assert set(batch) == POLICY | SDPO | DPO | {"dpo_trace_index"}
    shape = batch["input_ids"].shape
    assert shape[0] == 2
    for name in ("attention_mask", "response_mask", "ctx_teacher_input_ids", "sdpo_loss_mask"):
        assert batch[name].shape == shape, name
    dtypes = {"rewards": torch.float32, "student_response_valid": torch.bool, "teacher_response_valid": torch.bool}
    assert all(value.dtype == dtypes.get(name, torch.int64) for name, value in batch.items())
    assert batch["rewards"].tolist() == [1.0, 0.0]
    assert (batch["trace_index"].tolist(), batch["dpo_trace_index"].tolist()) == ([0, 1], [0, 0])
    widths = {batch[name].shape for name in DPO}
    assert len(widths) == 1, "one width for both sides"


def test_the_student_is_trained_on_whole_turns_and_the_teacher_reads_the_hint(tokenizer):
    _, batch = collate(
        tokenizer, [trace(), plain()], hint_generator=lambda kind, meta: f"{kind}: {HINT} {meta['available_tools']}"
    )
    student, teacher = batch["input_ids"][0], batch["ctx_teacher_input_ids"][0]
    written = text_at(tokenizer, student, torch.nonzero(batch["response_mask"][0]).flatten())
    assert '"name": "look"' in written, "the call is trained"
    assert written.count("<|im_end|>") == 2, "and both stops"
    assert "no such word" not in written
    rows, columns = batch["student_response_idx"][0], batch["teacher_response_idx"][0]
    valid = rows >= 0
    assert torch.equal(student[rows[valid]], teacher[columns[valid]])
    assert text_at(tokenizer, student, rows[valid]) == "Sorry, I mean apple.<|im_end|>"
    loss = batch["sdpo_loss_mask"][0]
    assert set(loss.tolist()) == {1, -100}
    assert torch.nonzero(loss == 1).flatten().tolist() == columns[valid].tolist()
    whole = tokenizer.decode(teacher[batch["ctx_teacher_attention_mask"][0].bool()].numpy())
    assert f"not_found: {HINT} ['look']" in whole
    assert HINT not in tokenizer.decode(student.numpy())
    # A trace without errors is its own teacher, and none of its tokens are in the loss.
    assert torch.equal(batch["input_ids"][1], batch["ctx_teacher_input_ids"][1])
    assert (batch["student_response_idx"][1] == -1).all()
    assert (batch["sdpo_loss_mask"][1] == -100).all()


@pytest.mark.parametrize(
    ("generator", "text"),
    [
        ("templates", "does not exist. Look up the right name"),
        ({"not_found": "{tool} knows {tools}, not this."}, "look knows look, not this."),
        ("dropins_hints:hint", "from a function by its name"),
    ],
)
def test_hints_come_from_a_function_from_templates_or_by_name(tokenizer, generator, text, tmp_path, monkeypatch):
    (tmp_path / "dropins_hints.py").write_text("def hint(kind, meta):\n    return 'from a function by its name'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, batch = collate(tokenizer, [trace()], hint_generator=generator)
    assert text in tokenizer.decode(batch["ctx_teacher_input_ids"][0].numpy())


@pytest.mark.parametrize(
    "options", [{}, {"hint_generator": lambda kind, meta: None}, {"enable_sdpo": False, "hint_generator": "templates"}]
)
def test_without_hints_there_are_no_keys_of_sdpo(tokenizer, options):
    _, batch = collate(tokenizer, [trace()], **options)
    assert set(batch) == POLICY


def test_rewards_have_to_be_finite_numbers(tokenizer):
    for reward in (float("nan"), "good", [1]):
        with pytest.raises(RecordError, match=r"examples\[1\]\.final_reward"):
            collate(tokenizer, [trace(), plain(final_reward=reward)])


def test_what_is_too_long_is_cut_before_the_answer_or_counted(tokenizer):
    long = [{"role": "user", "content": "word " * 400}, *trace()["turns"]]
    collator, batch = collate(tokenizer, [trace(turns=long), plain()], max_seq_len=120, hint_generator="templates")
    assert batch["input_ids"].shape[1] <= 120
    written = text_at(tokenizer, batch["input_ids"][0], torch.nonzero(batch["response_mask"][0]).flatten())
    assert "Sorry, I mean apple.<|im_end|>" in written, "the response is not cut away"
    collator, batch = collate(tokenizer, [trace(turns=long), plain()], max_seq_len=9)
    assert sum(collator.counts.values()) >= 1
    assert 0 not in batch.get("trace_index", torch.tensor([])).tolist()


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real tokenizers are not beside the project")
def test_a_recovery_is_distilled_where_another_turn_cannot_be_trained():
    """Llama's template drops the text beside a call: that turn cannot be trained, but the recovery after it can."""
    hf = real_hf("llama3_1")
    both = trace()
    both["turns"][1]["content"] = "Looking."
    collator, batch = collate(hf, [both], hint_generator="templates")
    assert collator.counts == {"grpo: dropped": 1}
    assert not batch["response_mask"].any()
    index = batch["student_response_idx"][0][batch["student_response_valid"][0]]
    assert hf.decode(batch["input_ids"][0][index]) == "Sorry, I mean apple.<|eot_id|>"


def test_a_pad_id_in_the_text_stays_text(tokenizer):
    _, batch = collate(tokenizer, [plain()])
    pad = int(batch["input_ids"][0, 2])
    _, batch = collate(tokenizer, [plain(), trace()], pad_token_id=pad)
    length = int(batch["attention_mask"][0].sum())
    assert batch["input_ids"][0, length:].unique().tolist() == [pad]
    assert batch["attention_mask"][0, :length].all()


def test_a_config_of_the_original_serves_and_other_names_are_refused(tokenizer):
    @dataclass
    class Theirs:
        ignore_index: int = -7

    collator = ComposerDataCollator(tokenizer, Theirs())
    assert (collator.config.ignore_index, collator.config.max_seq_len) == (-7, 4096)
    with pytest.raises(ConfigError, match="unknown speed; known: max_seq_len,"):
        ComposerDataCollator(tokenizer, {"speed": 1})
    with pytest.raises(ConfigError, match="hint_generator"):
        ComposerDataCollator(tokenizer, CollatorConfig(hint_generator=7))
    with pytest.raises(RecordError, match="turns"):
        ComposerDataCollator(tokenizer)([{"trace_id": "x"}])


@pytest.mark.skipif(not SHARED.is_dir(), reason="the real tokenizers are not beside the project")
def test_a_tokenizer_of_transformers_serves_and_its_template_is_followed():
    hf = real_hf("qwen3")
    collator = ComposerDataCollator(hf, CollatorConfig(hint_generator="templates"))
    batch = collator([trace(), plain()])
    turns = trace()["turns"]
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"word": "zebra"}'}}
    chat = [
        turns[0],
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "no such word"},
        {"role": "assistant", "content": turns[3]["content"]},
    ]
    # The trace has no reasoning, so the law asks with thinking off.
    text = hf.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True, enable_thinking=False)
    rows = [hf.decode(row[mask.bool()]) for row, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True)]
    assert rows[0].startswith(text + "<tool_call>\n")
    # The template drops the empty reasoning of the call once turns follow: the recovery gets a separate sequence.
    assert batch["trace_index"].tolist() == [0, 0, 1]
    index = batch["student_response_idx"][1][batch["student_response_valid"][1]]
    assert hf.decode(batch["input_ids"][1][index]) == "Sorry, I mean apple.<|im_end|>"
