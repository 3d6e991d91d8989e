"""Templates that rewrite history: each sequence is what inference saw."""

import random
import re

import numpy as np
import pytest
from token_cases import CASES, assistant, user
from token_families import FAMILIES, REAL_STOPS, SHARED, real_tokenizer, small_backend, small_tokenizer
from tokenizers import AddedToken, Tokenizer

from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode import encode_turns, prepare_chat
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.spans.control_tokens import compile_tokens
from pairwright.tokens.spans.regions import Region
from pairwright.tokens.spans.spelling import PrefixEncoder, encode_text, index_tokens
from pairwright.tokens.template.render import Rendered, plain_chat
from pairwright.tokens.tokenizer import ChatTokenizer

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")


def check(tokenizer: ChatTokenizer, case: str) -> int:
    """Every generated turn is trained exactly once, after exactly the prompt that inference is given."""
    chat, tools = CASES[case]
    try:
        sequences = encode_turns(tokenizer, chat, tools, options=EncodeOptions(boundaries="split", allow_dropped=True))
    except Refusal as caught:
        return {"template_error": 0, "no_stop": 0, "two_forms": 0}[caught.reason]
    prepared = prepare_chat(tokenizer, chat, tools)  # as the template takes it: null that it would print is ""
    chat, renderer = prepared.chat, prepared.tokenizer.renderer(tools)
    seen: list[int] = []
    for sequence in sequences:
        for turn in sorted(set(sequence.message_index[sequence.mask].tolist())):
            first = int(np.argmax(sequence.mask & (sequence.message_index == turn)))
            given = renderer.text(plain_chat(chat[:turn]), tools, prompt=True)
            expected = tokenizer.encode(given)[0].tolist()
            context = tokenizer.decode(sequence.ids[:first])
            if sequence.report.added_tokens:  # a thought that the template closed after the prompt
                assert context.startswith(given)
                assert context[len(given) :].strip() in ("", "<think></think>")
            else:
                assert sequence.ids[:first].tolist() == expected or context == given
            seen.append(turn)
    assert seen == [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    return len(sequences)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if not family.refused])
def test_written_templates(name: str, case: str) -> None:
    count = check(small_tokenizer(name), case)
    _, tools = CASES[case]
    if tools is None and not FAMILIES[name].per_turn:
        assert count == 1


@needs_shared
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("twenty turns", "fifteen steps")])
@pytest.mark.parametrize("name", [name for name in REAL_STOPS if name != "phi3_mini"])
def test_real_tokenizers(name: str, case: str) -> None:
    check(real_tokenizer(name), case)


def test_old_reasoning_gives_one_sequence_for_each_question() -> None:
    tokenizer = small_tokenizer("drops old reasoning")
    assert check(tokenizer, "reasoning in both turns") == 2
    assert check(tokenizer, "steps with reasoning") == 1
    chat, tools = CASES["reasoning in both turns"]
    first, second = encode_turns(tokenizer, chat, tools)
    assert tokenizer.decode(first.ids[first.mask]) == "<think>\none\n</think>\n\nhello<|im_end|>"
    assert "one" not in tokenizer.decode(second.ids)


def test_a_stop_that_is_rewritten_gives_one_sequence_for_each_turn() -> None:
    tokenizer = small_tokenizer("channels, return becomes end")
    sequences = encode_turns(tokenizer, [user("a"), assistant("b"), user("c"), assistant("d")])
    assert [tokenizer.decode(s.ids[s.mask]) for s in sequences] == [
        "<|channel|>final<|message|>b<|return|>",
        "<|channel|>final<|message|>d<|return|>",
    ]
    assert "b<|end|>" in tokenizer.decode(sequences[1].ids)


def test_old_reasoning_is_no_reason_to_miss_the_stop() -> None:
    tokenizer = small_tokenizer("drops old reasoning, the next header is the stop")
    chat, tools = CASES["reasoning in both turns"]
    first, second = encode_turns(tokenizer, chat, tools)
    assert tokenizer.decode(first.ids[first.mask]) == "\n<think>one</think>\nhello<|user|>"
    assert tokenizer.decode(second.ids[second.mask]) == "\n<think>two</think>\nbye<|user|>"
    assert (first.report.unstopped, first.report.added_tokens) == ((), 0)
    assert check(tokenizer, "steps with reasoning") == 1


@pytest.mark.parametrize("text", ["", "<|a|>", "x<|a|><|b|>y<|a|> z", "<|a|>ok\n\n<|b|>\n<|a|><|b|><|a|>", "é<|b"])
def test_segments_end_with_the_tokens_that_the_tokenizer_takes(text: str) -> None:
    backend = Tokenizer.from_str(small_backend().to_str())  # a copy, since other tests use it
    backend.add_special_tokens(["<|a|>", "<|b|>", "<|a|><|b|>"])  # one begins like another
    backend.add_tokens([AddedToken("ok", normalized=True)])
    tokenizer = ChatTokenizer(backend, "")
    texts = (text, text + "<|b|>ok", text + text, "<|b|>" + text, text + "<|a|>", "<|a|>" + text)
    encoder = PrefixEncoder(tokenizer, texts)
    for whole in texts:
        expected = index_tokens(tokenizer, *tokenizer.encode(whole), is_split=False)
        for array, other in zip(encoder.encode()[:4], expected[:4], strict=True):
            assert array.tolist() == other.tolist()


def test_a_pattern_of_tokens_takes_the_longest_of_those_that_begin_alike() -> None:
    source = random.Random(0)
    for _ in range(200):
        tokens = {"".join(source.choices("ab<|.", k=source.randrange(1, 5))) for _ in range(source.randrange(1, 12))}
        text = "".join(source.choices("ab<|.", k=60))
        one_by_one = re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))))
        assert compile_tokens(tokens).findall(text) == one_by_one.findall(text)
    assert compile_tokens([]).search("a") is None


def test_texts_that_begin_alike_are_encoded_as_if_alone() -> None:
    tokenizer = small_tokenizer("chatml")
    chat = [item for number in range(6) for item in (user(f"question {number}"), assistant(f"answer {number}"))]
    texts = [tokenizer.renderer(None).text(chat[:size], prompt=True) for size in (3, 5, 4, 9, 2)]
    encoder = PrefixEncoder(tokenizer, texts)
    for text in texts:
        encoded = encoder.encode()
        expected = index_tokens(tokenizer, *tokenizer.encode(text), is_split=False)
        for array, other in zip(encoded[:4], expected[:4], strict=True):
            assert array.tolist() == other.tolist()


def test_texts_that_begin_alike_are_split_as_if_alone() -> None:
    tokenizer = small_tokenizer("chatml")
    start = "<|im_start|>user\nhello there<|im_end|>\n<|im_start|>assistant\n"
    texts = [start + "\n\nhello<|im_end|>", start + "ok<|im_end|>", start + "\n\nok<|im_end|>\n" + start + "\nok"]
    encoder = PrefixEncoder(tokenizer, texts)
    for text in texts:
        regions = [Region(1, len(start), len(start), len(text), None)]
        alone = encode_text(tokenizer, Rendered(text, []), regions, boundaries="split", controls="keep")[0]
        encoded = encode_text(
            tokenizer, Rendered(text, []), regions, boundaries="split", controls="keep", encoder=encoder
        )
        assert encoded[0].is_split == alone.is_split == ("\n\n" in text)
        for array, other in zip(encoded[0][:4], alone[:4], strict=True):
            assert array.tolist() == other.tolist()
