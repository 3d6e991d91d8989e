"""Distillation on templates that rewrite history, and items that are too long."""

import numpy as np
import pytest
from token_families import SHARED, real_tokenizer, small_tokenizer

from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.tokens import EncodeOptions
from pairwright.tokens.hints import find_hints
from pairwright.tokens.recorded import RecordedTurn
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.teacher_sequences import (
    Distillation,
    encode_distillations,
    truncate_distillation,
)
from pairwright.tokens.template.render import plain_chat
from pairwright.tokens.tokenizer import ChatTokenizer


def failing(number: int, reasoning: str | None = None) -> tuple[Message, ...]:
    """A question, a call that fails, and the recovery."""
    made = ToolCall("look", '{"word": "zebra"}', f"call{number:05d}")
    return (
        Message("user", f"Which word is number {number}?"),
        Message("assistant", "", reasoning=reasoning, tool_calls=(made,)),
        Message("tool", "no such word", tool_call_id=made.id, name="look"),
        Message("assistant", f"Sorry, I mean ok {number}.", reasoning=reasoning),
    )


CHAT = (*failing(0, "why"), *failing(1, "how"))
SITES = [ErrorSite(index=index, kind="not_found", text="no such word", tool="look") for index in (2, 6)]
HINTS, _ = find_hints(CHAT, SITES)


def told(tokenizer: ChatTokenizer, item: Distillation) -> list[str]:
    """Return the text of the targets in the sequences of the student and of the teacher."""
    return [
        tokenizer.decode(item.student.ids[item.student_index]),
        tokenizer.decode(item.teacher.ids[item.teacher_index]),
    ]


def test_old_reasoning_that_is_dropped_gives_one_item_for_each_question() -> None:
    tokenizer = small_tokenizer("drops old reasoning")
    first, second = encode_distillations(tokenizer, CHAT, HINTS)
    assert (first.targets, second.targets) == ([3], [7])
    assert told(tokenizer, first) == ["<think>\nwhy\n</think>\n\nSorry, I mean ok 0.<|im_end|>"] * 2
    assert told(tokenizer, second) == ["<think>\nhow\n</think>\n\nSorry, I mean ok 1.<|im_end|>"] * 2
    assert "why" not in tokenizer.decode(second.student.ids)


def test_every_student_is_what_inference_saw_and_every_teacher_adds_its_hint() -> None:
    names = [name for name in ("gptoss", "qwen3", "llama3_1") if SHARED.is_dir()]
    tokenizers = [small_tokenizer("channels, return becomes end"), *map(real_tokenizer, names)]
    chats = [CHAT, *([tuple(failing(0, "why") + failing(1, "how"))] * len(names))]
    for tokenizer, chat in zip(tokenizers, chats, strict=True):
        items = encode_distillations(tokenizer, chat, HINTS, options=EncodeOptions(allow_dropped=True))
        assert [target for item in items for target in item.targets] == [3, 7]
        renderer = tokenizer.renderer(None)
        for item in items:
            for target in item.targets:
                start = int(np.flatnonzero(item.student.mask & (item.student.message_index == target))[0])
                given = tokenizer.decode(item.student.ids[:start])
                assert given == renderer.text(_prompt(tokenizer, chat[:target]), prompt=True)
                assert "Hint" not in given
                begin = int(np.flatnonzero(item.teacher.mask & (item.teacher.message_index == target))[0])
                assert "[Hint: What look was asked for" in tokenizer.decode(item.teacher.ids[:begin])


def _prompt(tokenizer: ChatTokenizer, messages: tuple[Message, ...]) -> list:
    from pairwright.tokens.message_dialect import adapt_records

    return plain_chat(adapt_records(tokenizer, messages, None)[0])


def test_recorded_ids_are_continued_on_a_template_that_rewrites_history() -> None:
    tokenizer = small_tokenizer("drops old reasoning")
    stop = tokenizer.added["<|im_end|>"]
    letters = tuple(int(tokenizer.encode(char)[0][0]) for char in "ok")
    recorded = {3: RecordedTurn((*letters, stop), (-1.0, -2.0, -0.5)), 7: RecordedTurn((*letters[::-1], stop))}
    first, second = encode_distillations(tokenizer, CHAT, HINTS, recorded=recorded)
    assert first.teacher.ids[first.teacher_index].tolist() == [*letters, stop]
    assert second.student.ids[second.student_index].tolist() == [*letters[::-1], stop]
    assert first.student.logprobs is not None
    with pytest.raises(Refusal, match="recorded_ids"):
        encode_distillations(tokenizer, CHAT, HINTS, recorded={0: RecordedTurn((1,))})


@pytest.fixture
def item() -> Distillation:
    options = EncodeOptions(allow_dropped=True)
    return encode_distillations(small_tokenizer("chatml with calls"), CHAT, HINTS, options=options)[0]


def check_cut(whole: Distillation, cut: Distillation, limit: int) -> None:
    """Both fit; what was cut is counted; the targets that are left are whole."""
    for side, before in ((cut.student, whole.student), (cut.teacher, whole.teacher)):
        assert len(side) <= limit
        assert side.report.truncated == len(before) - len(side)
        for turn in np.unique(side.message_index[side.mask]):
            assert (side.mask & (side.message_index == turn)).sum() == (
                before.mask & (before.message_index == turn)
            ).sum()
    assert cut.student.ids[cut.student_index].tolist() == cut.teacher.ids[cut.teacher_index].tolist()
    assert set(cut.targets) <= set(whole.targets)


def test_every_length_is_cut_alike_or_refused(item: Distillation) -> None:
    longest = len(item.teacher)
    seen = set()
    for limit in range(1, longest + 1):
        for mode in ("keep_end", "keep_start"):
            try:
                cut = truncate_distillation(item, limit, mode)  # type: ignore[arg-type]
            except Refusal as refusal:
                seen.add((mode, refusal.reason))
                continue
            check_cut(item, cut, limit)
            seen.add((mode, tuple(cut.targets)))
    assert seen == {
        ("keep_end", "too_long"), ("keep_end", (7,)), ("keep_end", (3, 7)),
        ("keep_start", "too_long"), ("keep_start", (3,)), ("keep_start", (3, 7)),
    }  # fmt: skip


def test_the_cut_before_the_first_hint_is_at_the_same_place_on_both_sides(item: Distillation) -> None:
    cut = truncate_distillation(item, len(item.teacher) - 3, keep_first=2)
    assert cut.targets == item.targets
    for side, before in ((cut.student, item.student), (cut.teacher, item.teacher)):
        assert side.ids.tolist() == [*before.ids[:2], *before.ids[5:]]
    assert truncate_distillation(item, len(item.teacher)) is item
    with pytest.raises(Refusal, match="too_long"):
        truncate_distillation(item, len(item.teacher) - 1, "drop")


def test_a_hint_that_is_cut_away_takes_its_target_with_it(item: Distillation) -> None:
    tokenizer = small_tokenizer("chatml with calls")
    rest = len(item.teacher) - int(np.flatnonzero(item.teacher.message_index == 3)[-1]) - 1
    cut = truncate_distillation(item, rest)
    assert cut.targets == [7]
    assert tokenizer.decode(cut.teacher.ids).count("[Hint:") == 1
    assert tokenizer.decode(cut.student.ids).startswith("\n<|im_start|>user\nWhich word is number 1?")
