"""Recorded ids are the sequence; the template encodes only what the environment added."""

import numpy as np
import pytest
from token_cases import assistant, user
from token_families import small_tokenizer

from pairwright.records.experience import Experience
from pairwright.records.messages import Message
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.recorded import RecordedTurn, encode_experience, encode_recorded
from pairwright.tokens.refusals import Refusal

CHAT = [user("hi"), assistant("ok"), user("more"), assistant("bye")]


def test_sampled_ids_are_kept_though_the_tokenizer_would_spell_them_otherwise() -> None:
    tokenizer = small_tokenizer("chatml")
    stop = tokenizer.added["<|im_end|>"]
    o, k = (int(tokenizer.encode(char)[0][0]) for char in "ok")
    sampled = {1: RecordedTurn((o, k, stop), (-1.0, -2.0, -0.5)), 3: RecordedTurn((k, stop), (-3.0, -0.25))}
    sequence = encode_recorded(tokenizer, CHAT, sampled)
    assert sequence.ids[sequence.mask].tolist() == [o, k, stop, k, stop]
    assert sequence.logprobs is not None
    assert sequence.logprobs[sequence.mask].tolist() == [-1.0, -2.0, -0.5, -3.0, -0.25]
    assert sequence.message_index[sequence.mask].tolist() == [1, 1, 1, 3, 3]
    assert tokenizer.decode(sequence.ids).startswith(
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
    )
    assert sequence.report.source == "recorded"


def test_equal_ids_give_the_rendered_sequence() -> None:
    tokenizer = small_tokenizer("chatml")
    rendered = encode_chat(tokenizer, CHAT)
    turns = {
        n: RecordedTurn(tuple(rendered.ids[rendered.mask & (rendered.message_index == n)].tolist())) for n in (1, 3)
    }
    sequence = encode_recorded(tokenizer, CHAT, turns)
    assert sequence.ids.tolist() == rendered.ids.tolist()
    assert sequence.mask.tolist() == rendered.mask.tolist()


def test_a_stop_that_was_not_sampled_is_context() -> None:
    tokenizer = small_tokenizer("chatml")
    ids = tuple(tokenizer.encode("ok")[0].tolist())
    sequence = encode_recorded(tokenizer, CHAT, {1: RecordedTurn(ids)})
    assert sequence.ids[sequence.mask].tolist() == list(ids)
    assert tokenizer.decode(sequence.ids) == tokenizer.decode(encode_chat(tokenizer, CHAT).ids)


def test_ids_of_a_turn_that_the_model_did_not_write_are_refused() -> None:
    with pytest.raises(Refusal, match="recorded_ids"):
        encode_recorded(small_tokenizer("chatml"), CHAT, {0: RecordedTurn((1,))})
    with pytest.raises(Refusal, match="message 1: recorded_ids"):
        encode_recorded(small_tokenizer("chatml"), CHAT, {1: RecordedTurn((1, 2), (0.5,))})


def experience(**fields: object) -> Experience:
    return Experience(
        kind="multi_turn", prompt=(Message("user", "hi"),),  # type: ignore[arg-type]
        completion=(Message("assistant", "ok"), Message("user", "more"), Message("assistant", "bye")), **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def test_an_experience_with_tokens_is_its_tokens() -> None:
    tokenizer = small_tokenizer("chatml")
    (one,), two = tokenizer.encode("ok")[0], tokenizer.encode("bye")[0]
    arrays = {
        "tokens": [5, 6, one, 8, *two], "prompt_length": 2, "action_mask": [1, 0, *[1] * len(two)],
        "logprobs": [-1.0, 0.0, *[-2.0] * len(two)],
    }  # fmt: skip
    (sequence,) = encode_experience(tokenizer, experience(**arrays))
    assert sequence.ids.tolist() == [5, 6, one, 8, *two]
    assert sequence.mask.tolist() == [False, False, True, False, *[True] * len(two)]
    assert sequence.message_index.tolist() == [-1, -1, 1, -1, *[3] * len(two)]
    assert sequence.logprobs is not None
    assert sequence.logprobs.dtype == np.float32


def test_an_experience_without_tokens_is_rendered() -> None:
    tokenizer = small_tokenizer("chatml")
    (sequence,) = encode_experience(tokenizer, experience())
    assert tokenizer.decode(sequence.ids[sequence.mask]) == "ok<|im_end|>bye<|im_end|>"
