"""Hints: which sites get one, and a teacher that continues the same ids."""

from pathlib import Path

import numpy as np
import pytest
from token_families import FAMILIES, small_tokenizer

from pairwright.messages import ErrorSite, Message, ToolCall
from pairwright.tokens.distill import Distillation, encode_distillation
from pairwright.tokens.hints import HintCounts, find_sites, hints_for
from pairwright.tokens.recorded import RecordedTurn
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Paint, Sequence

CALL = ToolCall("look", '{"word": "zebra"}', "call00000")
CHAT = (
    Message("user", "Which word?"),
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "no such word", tool_call_id="call00000", name="look"),
    Message("assistant", "\n\nSorry, I mean ok."),
    Message("user", "fine"),
    Message("assistant", "ok"),
)
SITE = ErrorSite(index=2, kind="not_found", text="no such word", tool="look")


def test_the_kind_of_the_error_gives_the_hint() -> None:
    hints, counts = hints_for(CHAT, [SITE])
    assert [(hint.target, hint.source) for hint in hints] == [(3, "kind")]
    assert hints[0].text.startswith("What look was asked for does not exist")
    assert counts == HintCounts(hinted=1)


def test_the_available_tools_are_told() -> None:
    site = ErrorSite(index=1, kind="unknown_tool", tool="look", available_tools=("find", "open"))
    hints, _ = hints_for(CHAT, [site])
    assert hints[0].text == "There is no tool named look. The available tools are: find, open."


def test_sites_without_hint_or_recovery_are_counted() -> None:
    silent = ErrorSite(index=2, kind="strange", text="")
    late = ErrorSite(index=5, kind="not_found")
    hints, counts = hints_for(CHAT, [silent, late])
    assert (hints, counts) == ([], HintCounts(without_hint=1, without_recovery=1))
    speechless = (*CHAT[:3], Message("assistant", " "))
    assert hints_for(speechless, [SITE])[1] == HintCounts(without_recovery=1)


def test_the_environment_and_then_the_judge_are_asked(tmp_path: Path) -> None:
    asked = []

    def judge(messages: object, site: ErrorSite) -> str:
        asked.append(site)
        return "try a horse"

    unknown = ErrorSite(index=2, kind="strange", text=" it said no ")
    assert hints_for(CHAT, [unknown], judge=judge)[0][0].text == "it said no"
    for _ in range(2):
        (hint,), _ = hints_for(CHAT, [unknown], sources=("kind", "judge"), judge=judge, cache=tmp_path)
        assert (hint.text, hint.source) == ("try a horse", "judge")
    assert len(asked) == 1


def test_sites_are_found_by_predicate() -> None:
    sites = find_sites(CHAT, lambda index, message: "not_found" if message.text.startswith("no such") else None)
    assert [(site.index, site.kind, site.tool) for site in sites] == [(2, "not_found", "look")]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if family.calls and not family.per_turn])
def test_the_teacher_continues_the_same_ids(name: str) -> None:
    tokenizer = small_tokenizer(name)
    hints, _ = hints_for(CHAT, [SITE])
    item = encode_distillation(tokenizer, CHAT, hints)
    assert len(item.student_index) == len(item.teacher_index) > 0
    assert item.student.ids[item.student_index].tolist() == item.teacher.ids[item.teacher_index].tolist()
    text = tokenizer.decode(item.teacher.ids[item.teacher_index])
    assert text.startswith("\n\nSorry, I mean ok.")
    assert "[Hint: What look" in tokenizer.decode(item.teacher.ids[: item.teacher_index[0]])
    assert "Hint" not in tokenizer.decode(item.student.ids)
    assert item.teacher.ids[item.teacher.mask].tolist() == item.student.ids[item.student.mask].tolist()
    painted = tokenizer.decode(item.teacher.ids[item.teacher.paint == Paint.HINT])
    assert "What look was asked for" in painted
    assert "no such word" not in painted


def test_recorded_ids_are_what_the_teacher_continues() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    letters = tuple(int(tokenizer.encode(char)[0][0]) for char in "ok")
    recorded = {3: RecordedTurn((*letters, tokenizer.added["<|im_end|>"]))}
    item = encode_distillation(tokenizer, CHAT, hints_for(CHAT, [SITE])[0], recorded=recorded)
    assert item.teacher.ids[item.teacher_index].tolist() == [*letters, tokenizer.added["<|im_end|>"]]


def test_a_wrong_alignment_cannot_be_built() -> None:
    sequence = Sequence(ids=[1, 2], mask=[0, 1], message_index=[0, 1], paint=[0, 0])
    with pytest.raises(Refusal, match="differ at an index pair"):
        Distillation(student=sequence, teacher=sequence, student_index=np.array([0]), teacher_index=np.array([1]))
    with pytest.raises(Refusal, match="no hint"):
        encode_distillation(small_tokenizer("chatml with calls"), CHAT, [])
