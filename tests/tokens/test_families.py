"""Every family on every case: ids are apply_chat_template's, the mask is the oracle's, or there is a refusal."""

import copy
import functools
import json
import logging
from typing import Any

import pytest
from token_cases import CASES
from token_families import (
    FAMILIES,
    REAL_STOPS,
    SHARED,
    real_hf,
    real_tokenizer,
    small_backend,
    small_tokenizer,
    special_tokens,
)
from token_oracle import Inexact, oracle

from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.refusals import Refusal

transformers = pytest.importorskip("transformers", reason="transformers is the yardstick of this test")
logging.getLogger("transformers").setLevel(logging.ERROR)

# The oracle of this file knows one sequence, the template's own stops, no thinking switch and no clock: what the law says
# beyond that is in test_law.py and test_masks.py.
WRITTEN = [name for name in FAMILIES if "the next header is the stop" not in name and name != "no stop at all"]
REAL = [name for name in REAL_STOPS if name not in ("qwen3", "gptoss")]

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")


@functools.cache
def small_hf(name: str) -> Any:
    family = FAMILIES[name]
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=small_backend(), chat_template=family.template, **special_tokens(family)
    )


def compare(ours: Any, hf: Any, case: str, stops: tuple[str, ...]) -> str:
    """ "exact", or the reason why, according to both, there is no exact sequence."""
    chat, tools = CASES[case]
    refusal = error = sequence = None
    try:
        sequence = encode_chat(ours, chat, tools, options=EncodeOptions(boundaries="whole", allow_dropped=True))
    except Refusal as caught:
        refusal = caught
    if sequence is not None and sequence.report.dropped:
        with pytest.raises(Refusal, match="dropped: the template does not render"):
            encode_chat(ours, chat, tools)
    elif sequence is not None:
        assert encode_chat(ours, chat, tools) == sequence
    if sequence is not None and 3 in sequence.report.rules:
        return "declared"  # no render shows the turn as the model wrote it: not for this oracle
    if any(message["content"] is None for message in chat) and "None" in render_or_nothing(hf, chat, tools):
        chat = [{**message, "content": message["content"] or ""} for message in chat]  # null is never printed by us
    # Null content and arguments as text that the template refuses are given to it as empty text and as an object.
    empty = [{**message, "content": message["content"] or ""} for message in chat]
    if sequence is not None and not render_or_nothing(hf, chat, tools):
        forms = (empty, with_objects(chat), with_objects(empty)) if case == "call, arguments as text" else (empty,)
        chat = next((form for form in forms if render_or_nothing(hf, form, tools)), chat)
    try:
        ids, mask = oracle(hf, chat, tools, stops)
    except Exception as caught:  # Inexact, or whatever the template raises in transformers
        error = caught
    if refusal is not None:
        assert isinstance(error, Inexact) or refusal.reason in ("no_stop", "template_error", "context_differs"), (
            refusal,
            error,
        )
        return refusal.reason
    assert error is None, error
    assert sequence is not None
    own_ids, own_mask = sequence.ids.tolist(), sequence.mask.tolist()
    if len(own_ids) == len(ids) + 1 or sequence.report.added_tokens:
        # The stop of the last turn, which the template does not write, comes after all the rest.
        assert ours.decode(own_ids[-1:]) in (*stops, ours.special_tokens["eos_token"])
        assert own_mask[-1]
        own_ids, own_mask = own_ids[:-1], own_mask[:-1]
        assert not ours.decode(ids[len(own_ids) :]).strip()
        ids, mask = ids[: len(own_ids)], mask[: len(own_ids)]
    assert own_ids == ids
    shown = [ours.decode([token]) for token in ids]
    assert list(zip(shown, own_mask, strict=True)) == list(zip(shown, mask, strict=True))
    return "exact"


def with_objects(chat: list[Any]) -> list[Any]:
    result = copy.deepcopy(chat)
    for message in result:
        for call in message.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return result


def render_or_nothing(hf: Any, chat: list[Any], tools: Any) -> str:
    try:
        return str(hf.apply_chat_template(chat, tools=tools, tokenize=False))
    except Exception:  # whatever the template raises
        return ""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WRITTEN)
def test_written_templates(name: str, case: str) -> None:
    family = FAMILIES[name]
    result = compare(small_tokenizer(name), small_hf(name), case, family.stops)
    chat, tools = CASES[case]
    if result == "declared":
        assert any("<think>" in (message["content"] or "") for message in chat)
    elif family.refused == "no_stop" and sum(message["role"] == "assistant" for message in chat) == 1:
        # EOS is added to the only turn, if nothing follows it.
        assert result in (("exact", "template_error") if chat[-1]["role"] == "assistant" else ("no_stop",))
    elif family.refused:
        opens = "<think>" in chat[-1]["content"] and "reasoning" in name
        # Reasoning that the template leaves out is dropped.
        has_reasoning = any("reasoning_content" in message for message in chat)
        assert result in (
            ("exact",) if opens else ("dropped",) if has_reasoning else (family.refused, "template_error")
        )
    elif not family.per_turn and (tools is None or family.calls):
        assert result == "exact"
    elif family.per_turn and sum(message["role"] == "assistant" for message in chat) == 1:
        assert result in ("exact", "template_error")


@needs_shared
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", REAL)
def test_real_tokenizers(name: str, case: str) -> None:
    if (name, case) == ("mistral_nemo", "system"):
        pytest.skip(
            "the system text is in the prompt and not in the render of the whole, which is this oracle's source"
        )
    result = compare(real_tokenizer(name), real_hf(name), case, REAL_STOPS[name])
    _chat, tools = CASES[case]
    if tools is None or (name in ("qwen2_5", "llama3_1") and case not in ("parallel calls", "call, null content")):
        assert result == "exact"
