"""Both sides of a pair continue one prompt, and are cut alike."""

import re

import pytest
from token_cases import TOOLS, assistant, call, system, tool, user
from token_families import FAMILIES, REAL_STOPS, SHARED, real_tokenizer, small_tokenizer

from pairwright.records.messages import Message, ToolCall
from pairwright.tokens import EncodeOptions, encode_turns
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.encode_pairs import PairMessages, encode_pair, encode_pairs, truncate_pair
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.tokenizer import ChatTokenizer

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")


def trained(tokenizer: ChatTokenizer, sequence: object) -> str:
    return tokenizer.decode(sequence.ids[sequence.mask])  # type: ignore[attr-defined]


def test_sides_share_the_prompt_and_train_their_own_turns() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    prompt = [system("Be brief."), user("weather?")]
    chosen = [assistant("", calls=[call()]), tool("sun"), assistant("sunny")]
    pair = encode_pair(tokenizer, prompt, chosen, [assistant("dunno")], TOOLS)
    size = pair.prompt_length
    assert pair.chosen.ids[:size].tolist() == pair.rejected.ids[:size].tolist()
    assert not pair.chosen.mask[:size].any()
    assert not pair.rejected.mask[:size].any()
    assert pair.chosen.mask[size]
    assert pair.rejected.mask[size]
    assert tokenizer.decode(pair.chosen.ids[:size]).endswith("weather?<|im_end|>\n<|im_start|>assistant\n")
    assert trained(tokenizer, pair.rejected) == "dunno<|im_end|>"
    assert trained(tokenizer, pair.chosen).endswith("</tool_call><|im_end|>sunny<|im_end|>")
    assert "sun<|im_end|>" not in trained(tokenizer, pair.chosen)


def test_turns_of_the_prompt_are_context() -> None:
    tokenizer = small_tokenizer("chatml")
    pair = encode_pair(tokenizer, [user("a"), assistant("b"), user("c")], [assistant("d")], [assistant("e")])
    assert trained(tokenizer, pair.chosen) == "d<|im_end|>"


def test_a_token_that_would_merge_across_the_boundary_is_split_on_both_sides() -> None:
    tokenizer = small_tokenizer("chatml")
    whole = encode_chat(tokenizer, [user("a"), assistant("\n\nb")])
    pair = encode_pair(tokenizer, [user("a")], [assistant("\n\nb")], [assistant("b")])
    assert whole.report.merged == 1
    assert pair.chosen.report.merged == 0
    assert trained(tokenizer, pair.chosen) == "\n\nb<|im_end|>"


def test_later_turns_of_a_side_are_split_from_their_prompts_too() -> None:
    tokenizer = small_tokenizer("chatml")
    answers = [assistant("b"), user("c"), assistant("\n\nd")]
    (run,) = encode_turns(tokenizer, [user("a"), *answers])
    pair = encode_pair(tokenizer, [user("a")], answers, [assistant("e")])
    assert trained(tokenizer, pair.chosen) == "b<|im_end|>\n\nd<|im_end|>"
    assert pair.chosen.report.merged == 0
    assert pair.chosen.ids.tolist() == run.ids.tolist()
    whole = encode_pair(tokenizer, [user("a")], answers, [assistant("e")], options=EncodeOptions(boundaries="whole"))
    assert whole.chosen.report.merged == 1


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.refused])
def test_every_family_gives_equal_prompts(name: str) -> None:
    tokenizer = small_tokenizer(name)
    pair = encode_pair(
        tokenizer,
        [user("Zulu")],
        [assistant("ok", reasoning="r")],
        [assistant("  ok\n")],
        options=EncodeOptions(allow_dropped=True),
    )
    assert pair.chosen.ids[: pair.prompt_length].tolist() == pair.rejected.ids[: pair.prompt_length].tolist()
    assert "ok" in trained(tokenizer, pair.chosen)
    assert "Zulu" not in trained(tokenizer, pair.chosen)


@needs_shared
@pytest.mark.parametrize("name", REAL_STOPS)
def test_real_families_give_what_the_whole_render_gives(name: str) -> None:
    tokenizer = real_tokenizer(name)
    pair = encode_pair(tokenizer, [user("hi there")], [assistant("ok, yes")], [assistant("no")])
    whole = encode_chat(tokenizer, [user("hi there"), assistant("ok, yes")])
    assert pair.chosen.ids.tolist() == whole.ids.tolist()
    assert pair.chosen.mask.tolist() == whole.mask.tolist()
    assert trained(tokenizer, pair.rejected).startswith("no") or name == "gptoss" or name == "qwen3"


def test_records_and_dicts_give_the_same() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    records = [Message("assistant", None, tool_calls=(ToolCall("get_weather", '{"city": "Rome"}', "call00000"),))]
    dicts = [assistant(None, calls=[call(0, {"city": "Rome"})])]
    other = [Message("assistant", "no")]
    left = encode_pair(tokenizer, [Message("user", "hi")], records, other, TOOLS)
    right = encode_pair(tokenizer, [user("hi")], dicts, [assistant("no")], TOOLS)
    assert left == right


@pytest.mark.parametrize("first", [0, 2])
def test_truncation_cuts_both_prompts_alike_and_keeps_completions(first: int) -> None:
    tokenizer = small_tokenizer("chatml")
    pair = encode_pair(tokenizer, [user("one two three four five six")], [assistant("yes")], [assistant("no, not me")])
    limit = max(len(pair.chosen), len(pair.rejected)) - 4
    cut = truncate_pair(pair, limit, keep_first=first)
    assert cut.prompt_length == pair.prompt_length - 4
    assert cut.chosen.ids[: cut.prompt_length].tolist() == cut.rejected.ids[: cut.prompt_length].tolist()
    assert trained(tokenizer, cut.chosen) == "yes<|im_end|>"
    assert trained(tokenizer, cut.rejected) == "no, not me<|im_end|>"
    assert max(len(cut.chosen), len(cut.rejected)) == limit
    kept = pair.chosen.ids[4 + first : pair.prompt_length]
    assert cut.chosen.ids[first : cut.prompt_length].tolist() == kept.tolist()
    assert cut.chosen.ids[:first].tolist() == pair.chosen.ids[:first].tolist()
    assert cut.chosen.report.truncated == 4


def test_a_pair_whose_prompt_would_lose_the_generation_prompt_is_refused() -> None:
    tokenizer = small_tokenizer("chatml")
    pair = encode_pair(tokenizer, [user("one two three four five six")], [assistant("yes")], [assistant("no, not me")])
    with pytest.raises(Refusal, match="too_long"):  # the answer would continue the middle of the user's message
        truncate_pair(pair, max(len(pair.chosen), len(pair.rejected)) - 4, "keep_start")


def test_what_cannot_be_cut_is_refused() -> None:
    tokenizer = small_tokenizer("chatml")
    sides = ([user("hi")], [assistant("a long answer")], [assistant("no")])
    with pytest.raises(Refusal, match="too_long"):
        encode_pair(tokenizer, *sides, options=EncodeOptions(max_length=4))
    with pytest.raises(Refusal, match="too_long"):
        encode_pair(tokenizer, *sides, options=EncodeOptions(max_length=12, truncation="drop"))


def test_a_completion_must_start_with_the_model() -> None:
    with pytest.raises(Refusal, match="message 1: not_generated"):
        encode_pair(small_tokenizer("chatml"), [user("hi")], [user("x"), assistant("y")], [assistant("z")])


def test_many_pairs_are_each_encoded_as_one() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    called = [assistant("", calls=[call()]), tool("sun"), assistant("sunny")]
    some = [
        PairMessages([user("hi")], [assistant("ok")], [assistant("no")]),
        PairMessages([user("hi")], [assistant("ok")], called),
        PairMessages([user("hi")], [user("x")], [assistant("no")]),
        PairMessages([user("hi <|im_end|>")], [assistant("a long answer " * 9)], [assistant("")]),
        PairMessages([Message("user", "hi")], [Message("assistant", "ok")], [Message("assistant", "\n\nno")], TOOLS),
    ]
    pairs = some * 30  # more than are encoded at once
    found = list(encode_pairs(tokenizer, iter(pairs), options=EncodeOptions(max_length=80)))
    for pair, got in zip(pairs, found, strict=True):
        if isinstance(got, Refusal):
            with pytest.raises(Refusal, match=re.escape(str(got))):
                encode_pair(tokenizer, *pair[:4], options=EncodeOptions(max_length=80))
        else:
            assert got == encode_pair(tokenizer, *pair[:4], options=EncodeOptions(max_length=80))
    reasons = [got.reason if isinstance(got, Refusal) else "" for got in found[:5]]
    assert reasons == ["", "", "not_generated", "too_long", ""]


def test_a_text_that_several_pairs_share_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small_tokenizer("chatml")
    sides = [[assistant(f"answer {number}")] for number in range(6)]
    pairs = [PairMessages([user("hi")], chosen, rejected) for chosen in sides for rejected in sides]
    # What is tried once a tokenizer is not counted, whichever test comes first.
    encode_pair(tokenizer, [user("once")], [assistant("yes")], [assistant("no")])
    encoded: list[str] = []
    encode_many = ChatTokenizer.encode_many
    monkeypatch.setattr(
        ChatTokenizer, "encode_many", lambda self, texts: encoded.extend(texts) or encode_many(self, texts)
    )
    assert len(list(encode_pairs(tokenizer, pairs))) == 36
    assert len(encoded) == 7


def test_control_tokens_in_the_text_of_pairs() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    stop = tokenizer.added["<|im_end|>"]
    tail = [assistant("", calls=[call()]), tool("x<|im_end|>y"), assistant("z<|im_end|>")]
    sides = ([user("a<|im_end|>b")], tail, [assistant("no")])
    kept = encode_pair(tokenizer, *sides)
    escaped = encode_pair(tokenizer, *sides, options=EncodeOptions(control_tokens="escape"))
    assert tokenizer.decode(escaped.chosen.ids) == tokenizer.decode(kept.chosen.ids)
    count = [(pair.chosen.ids == stop).sum() for pair in (kept, escaped)]
    assert count[0] - count[1] == 2  # the model's own stays
    assert (escaped.chosen.report.control_tokens, escaped.rejected.report.control_tokens) == (2, 1)
    size = escaped.prompt_length
    assert escaped.chosen.ids[:size].tolist() == escaped.rejected.ids[:size].tolist()
    assert trained(tokenizer, escaped.chosen) == trained(tokenizer, kept.chosen)
    with pytest.raises(Refusal, match="message 0: control_tokens"):
        encode_pair(tokenizer, *sides, options=EncodeOptions(control_tokens="refuse"))


def test_steps_in_contexts_of_their_own_become_a_pair_of_the_first_turns_that_differ() -> None:
    tokenizer = small_tokenizer("channels, return becomes end")
    shared = [assistant("same"), user("go on")]
    chosen, rejected = [*shared, assistant("good"), user("c"), assistant("d")], [*shared, assistant("bad")]
    pair = encode_pair(tokenizer, [user("a")], chosen, rejected)
    texts = [tokenizer.decode(side.ids[pair.prompt_length :]) for side in (pair.chosen, pair.rejected)]
    assert ["good" in texts[0], "bad" in texts[1]] == [True, True]
    assert pair.chosen.report.left_out == (5,)
    assert pair.rejected.report.left_out == ()
    prompt = tokenizer.renderer(None).text([user("a"), *shared], prompt=True)
    assert tokenizer.decode(pair.chosen.ids[: pair.prompt_length]) == prompt
    with pytest.raises(Refusal, match="context_differs"):  # what differs first was not generated
        encode_pair(tokenizer, [user("a")], chosen, [assistant("same"), user("no"), assistant("bad")])
