"""Real templates by case: each sequence is compared with renders of transformers, and the counts are a minimum."""

import json
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("transformers", reason="the render of transformers is the check")

from bench.templates import CASES, SHARED, build_case, build_tokenizer, find_fault, render_theirs, try_template

from pairwright import Message
from pairwright.records.messages import ToolCall
from pairwright.records.tool_texts import write_tools_as_text
from pairwright.tokens import encode_turns

TEMPLATES = SHARED / "templates"
TOKENIZER = SHARED / "tokenizers" / "qwen2_5"
# They write the text beside a call after the result of the call, so the prompt and the turn show it in different forms.
TWO_FORMS = ("trl-diffusion_gemma", "trl-gemma4_v5")


needs_templates = pytest.mark.skipif(
    not TEMPLATES.is_dir() or not TOKENIZER.is_dir(), reason=f"the templates are not at {TEMPLATES}"
)


@needs_templates
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_shared_template_is_exact_or_also_refused_by_transformers(step: int) -> None:
    counts: Counter[str] = Counter()
    faults = []
    exact: Counter[tuple[str, bool]] = Counter()
    paths = sorted(TEMPLATES.glob("*.jinja"))[::step]
    for path in paths:
        for key, outcome in try_template(path, TOKENIZER).items():
            counts[outcome.kind] += 1
            exact[key] += outcome.kind in ("one", "turns", "no_reasoning")
            if path.stem in TWO_FORMS and key[0] == "agent":
                assert outcome.kind == "refused"
                assert "two_forms" in outcome.detail
                exact[key] += 1  # the refusal is right
            elif outcome.kind in ("wrong", "refused"):
                faults.append(f"{path.stem} {key}: {outcome.kind}: {outcome.detail}")
    assert not faults
    # The other templates refuse a conversation: they require alternating roles, or tools.
    assert min(exact[name, reasoning] for name in CASES for reasoning in (True, False)) >= len(paths) - 3
    assert counts["one"] >= len(paths)


def to_record(message: dict[str, Any]) -> Message:
    calls = [(call["function"], call["id"]) for call in message.get("tool_calls", ())]
    return Message(
        message["role"],
        message["content"],
        tool_calls=tuple(ToolCall(function["name"], json.dumps(function["arguments"]), id) for function, id in calls),
        tool_call_id=message.get("tool_call_id"),
    )


# Options support conversations that transformers cannot render with these templates.


@needs_templates
@pytest.mark.parametrize("name", ["trl-cohere", "trl-cohere2", "trl-gemma3"])
def test_a_template_with_alternating_roles_works_with_tools_as_text(name: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer = build_tokenizer(source, TOKENIZER)
    chat, tools = build_case("agent", reasoning=False)
    messages = write_tools_as_text([*map(to_record, chat)], tools or []).messages
    (sequence,) = encode_turns(tokenizer, messages)
    plain = [{"role": message.role, "content": message.content} for message in messages]
    turns = [number for number, message in enumerate(plain) if message["role"] == "assistant"]
    assert sequence.origin.turns == tuple(turns)
    for turn in turns:
        own = [*(sequence.mask & (sequence.message_index == turn)).nonzero()[0]]
        prompt = render_theirs(source, plain[:turn], None, tokenizer.variables, prompt=True)
        assert tokenizer.decode(sequence.ids[: own[0]]) == prompt
        assert tokenizer.decode(sequence.ids[own]).startswith(str(plain[turn]["content"]))


@needs_templates
@pytest.mark.parametrize("name", ["command-r-plus", "Hermes-2-Pro", "Hermes-3"])
def test_a_template_that_requires_tools_works_for_a_chat_with_tools(name: str) -> None:
    (path,) = TEMPLATES.glob(f"*{name}*tool_use.jinja")
    source = path.read_text(encoding="utf-8")
    tokenizer = build_tokenizer(source, TOKENIZER)
    chat, tools = build_case("chat", reasoning=False)[0], build_case("agent", reasoning=False)[1]
    sequences = encode_turns(tokenizer, chat, tools)
    assert [find_fault(tokenizer, source, chat, tools, sequence) for sequence in sequences] == [""] * len(sequences)
    assert sum(len(sequence.origin.turns) for sequence in sequences) == 2
