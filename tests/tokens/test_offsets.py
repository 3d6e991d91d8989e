"""Offsets derived from bytes equal those of the tokenizer, or are not provided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_cases import CASES
from token_families import REAL_STOPS, SHARED, real_tokenizer, small_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.tokenizer import ChatTokenizer, TokenBytes, sort_offsets


def check(tokenizer: ChatTokenizer, text: str) -> bool:
    """Return whether offsets are derived from bytes; if so, check that they equal those of the tokenizer."""
    encoding = tokenizer.backend.encode(text, add_special_tokens=False)
    found = TokenBytes(tokenizer.backend).encode(text, encoding.ids)
    ids, offsets = tokenizer.encode(text)
    assert ids.tolist() == encoding.ids
    assert offsets.tolist() == sort_offsets(encoding.offsets).tolist()
    assert found is None or found[1].tolist() == offsets.tolist() == [list(pair) for pair in encoding.offsets]
    return found is not None


PARTS = [*" \n\taAzok.é你😀<>|{}\"'\\\u0301▁ſ\x00", "<|im_end|>", "</think>"]
ANY = st.lists(st.sampled_from(PARTS), max_size=30).map("".join)


@given(ANY)
@settings(max_examples=200, deadline=None)
def test_small_vocabulary(text: str) -> None:
    assert check(small_tokenizer("chatml"), text)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
@pytest.mark.parametrize("name", REAL_STOPS)
def test_real_vocabularies(name: str) -> None:
    tokenizer = real_tokenizer(name)
    texts = ["", "é", "  x", "e\u0301 \u0958", "▁a ▁", "\u2028 x\r\n", "a" * 1000]
    for chat, tools in CASES.values():
        try:
            texts.append(tokenizer.renderer(tools).text(chat, tools))
        except TemplateError:
            continue
    known = sum(check(tokenizer, text) for text in texts)
    assert known > len(texts) / 2 or name == "phi3_mini"  # its control tokens absorb white space


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
@given(ANY)
@settings(max_examples=60, deadline=None)
def test_any_text_of_real_vocabularies(text: str) -> None:
    for name in ("qwen2_5", "gemma3", "llama3_1"):
        check(real_tokenizer(name), text)


def changing(**options: object) -> ChatTokenizer:
    """Return a tokenizer with one token per letter that changes its text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for name, value in options.items():
        setattr(backend, name, value)
    backend.add_tokens([AddedToken("<x>", rstrip=True, normalized=False)])
    return ChatTokenizer(backend, "{{ messages }}")


def test_a_text_changed_by_the_tokenizer_gets_its_offsets() -> None:
    assert not check(changing(normalizer=normalizers.Lowercase()), "Hello")
    assert not check(changing(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)), "hello")
    swallowing = changing()
    assert check(swallowing, "a<x>b")
    assert not check(swallowing, "a<x>  b")


def test_a_change_is_detected_even_if_the_lengths_add_up() -> None:
    composing = changing(normalizer=normalizers.NFC())
    assert check(composing, "é a")
    # NFC makes the first character three bytes longer, and the other three together three bytes shorter.
    assert not check(composing, "\u0958" + "\u212b" * 3)


def test_offsets_from_bytes_are_not_tried_again_if_every_text_changes() -> None:
    tokenizer = changing(normalizer=normalizers.Lowercase())
    for _ in range(20):
        tokenizer.encode("Hello")
    assert tokenizer._bytes is not None
    assert not tokenizer._bytes.pays
    assert tokenizer.encode("Hi")[1].tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_post_processor_that_trims_offsets_leaves_no_gap_between_tokens(is_nested: bool) -> None:
    trimming = processors.ByteLevel(trim_offsets=True)
    nested = processors.Sequence([trimming, processors.TemplateProcessing(single="$A", special_tokens=[])])
    tokenizer = changing(
        normalizer=normalizers.Lowercase(), post_processor=nested if is_nested else trimming
    )  # a text that changes has no offsets from bytes
    assert tokenizer.backend.encode("A \n", add_special_tokens=False).offsets[-2:] != [(1, 2), (2, 3)]
    assert tokenizer.encode("A \n")[1].tolist() == [[0, 1], [1, 2], [2, 3]]


def test_several_texts_are_encoded_like_single_texts() -> None:
    tokenizer = small_tokenizer("chatml")
    texts = ["ok ok", "", "你好 é", "<|im_end|>x"]
    for text, (ids, offsets) in zip(texts, tokenizer.encode_many(texts), strict=True):
        assert np.array_equal(ids, tokenizer.encode(text)[0])
        assert np.array_equal(offsets, tokenizer.encode(text)[1])
