"""Pairs whose ids were recorded: used where both sides continue the same ones, else the messages, with the reason."""

import numpy as np
import pytest
from token_families import small_tokenizer

from pairwright.messages import Message
from pairwright.records import EID, Experience, Side
from pairwright.tokens.pairs import EncodedPair, encode_pair
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.tokenizer import ChatTokenizer

PROMPT = (Message("user", "hi"),)
GOOD, BAD = (Message("assistant", "ok"),), (Message("assistant", "no"),)


@pytest.fixture
def tokenizer() -> ChatTokenizer:
    return small_tokenizer("chatml")


def letters(tokenizer: ChatTokenizer, text: str) -> list[int]:
    """Ids that the tokenizer itself would not choose: one a letter."""
    return [int(number) for char in text for number in tokenizer.encode(char)[0]]


def run(tokenizer: ChatTokenizer, completion: tuple[Message, ...], **fields: object) -> Experience:
    """An experience that recorded what it was given and what it said."""
    given = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")[0].tolist()
    said = [*letters(tokenizer, completion[0].text), tokenizer.added["<|im_end|>"]]
    made: dict = {
        "eid": EID("b", "t", 0, 0, completion[0].text), "kind": "single_turn", "prompt": PROMPT,
        "completion": completion, "tokens": [*given, *said], "prompt_length": len(given),
        "logprobs": [-0.5] * len(said),
    }  # fmt: skip
    return Experience(**(made | fields))


def encoded(tokenizer: ChatTokenizer, *sources: Experience) -> EncodedPair:
    return encode_pair(tokenizer, PROMPT, GOOD, BAD, recorded=(sources[0], sources[1]))


def test_recorded_ids_of_both_sides_are_the_pair(tokenizer: ChatTokenizer) -> None:
    good, bad = run(tokenizer, GOOD), run(tokenizer, BAD)
    pair = encoded(tokenizer, good, bad)
    assert pair.chosen.ids.tolist() == good.tokens.tolist()  # type: ignore[union-attr]
    assert pair.rejected.ids.tolist() == bad.tokens.tolist()  # type: ignore[union-attr]
    assert pair.prompt_length == good.prompt_length
    assert not pair.chosen.mask[: pair.prompt_length].any()
    assert pair.chosen.logprobs is not None
    assert pair.chosen.logprobs[pair.chosen.mask].tolist() == [-0.5] * 3
    assert (pair.chosen.report.source, pair.chosen.report.text_differs) == ("recorded", ())
    rendered = encode_pair(tokenizer, PROMPT, GOOD, BAD)
    assert rendered.chosen.ids.tolist() != pair.chosen.ids.tolist()
    assert rendered.chosen.report.source == "rendered"


def test_a_preference_with_ids_is_its_ids(tokenizer: ChatTokenizer) -> None:
    sides = {
        name: Side(messages=messages, tokens=[*letters(tokenizer, messages[0].text), 7], logprobs=[-1.0, -2.0, -3.0])
        for name, messages in (("chosen", GOOD), ("rejected", BAD))
    }
    preference = Experience(kind="preference", prompt=PROMPT, tokens=[5, 6], **sides)  # type: ignore[arg-type]
    pair = encoded(tokenizer, preference, preference)
    assert pair.prompt_length == 2
    assert pair.chosen.ids.tolist() == [5, 6, *letters(tokenizer, "ok"), 7]
    assert pair.rejected.mask.tolist() == [False, False, True, True, True]
    assert pair.rejected.logprobs.tolist() == [0.0, 0.0, -1.0, -2.0, -3.0]  # type: ignore[union-attr]


def test_ids_that_do_not_fit_are_not_used_and_the_reason_is_told(tokenizer: ChatTokenizer) -> None:
    good, bad = run(tokenizer, GOOD), run(tokenizer, BAD)
    other_prompt = bad.tokens.copy()  # type: ignore[union-attr]
    other_prompt[0] = 9
    longer = run(tokenizer, BAD, prompt=(*PROMPT, *GOOD, Message("user", "and?")))
    cases = [
        (run(tokenizer, BAD, tokens=other_prompt), "different ids for the prompt"),
        (run(tokenizer, BAD, tokens=None, prompt_length=None, logprobs=None), "no ids on one side"),
        (good, "of other messages"),
        (longer, "of other messages"),
    ]
    for source, reason in cases:
        pair = encoded(tokenizer, good, source)
        assert reason in pair.chosen.report.unrecorded
        assert pair == encode_pair(tokenizer, PROMPT, GOOD, BAD) or pair.chosen.report.source == "rendered"
        assert pair.chosen.logprobs is None


def test_the_later_turns_of_a_run_are_compared_after_the_earlier_ones(tokenizer: ChatTokenizer) -> None:
    """Runs that part at their second turn: what both did before is the prompt."""
    common = (Message("assistant", "a"), Message("user", "go on"))
    stop = tokenizer.added["<|im_end|>"]
    shared = [5, 6, *letters(tokenizer, "a"), stop, 7, 8]

    def long(last: tuple[Message, ...]) -> Experience:
        said = [*letters(tokenizer, last[0].text), stop]
        mask = [True, True, False, False, *([True] * len(said))]
        arrays = {"tokens": [*shared, *said], "prompt_length": 2, "action_mask": mask}
        return Experience(kind="multi_turn", prompt=PROMPT, completion=(*common, *last), **arrays)  # type: ignore[arg-type]

    pair = encode_pair(tokenizer, (*PROMPT, *common), GOOD, BAD, recorded=(long(GOOD), long(BAD)))
    assert pair.prompt_length == len(shared)
    assert pair.chosen.ids.tolist() == [*shared, *letters(tokenizer, "ok"), stop]
    assert pair.chosen.mask.tolist() == [False] * 6 + [True] * 3
    assert set(pair.chosen.message_index[pair.chosen.mask].tolist()) == {3}


def test_ids_of_another_tokenizer_are_refused_or_noticed(tokenizer: ChatTokenizer) -> None:
    good, bad = run(tokenizer, GOOD), run(tokenizer, BAD)
    foreign = np.array([*bad.tokens[:-1], 99_999])  # type: ignore[index]
    with pytest.raises(Refusal, match="recorded_ids: ids up to 99999 were recorded with another tokenizer"):
        encoded(tokenizer, good, run(tokenizer, BAD, tokens=foreign))
    assert encoded(tokenizer, good, run(tokenizer, BAD, tokens=good.tokens)).rejected.report.text_differs == (1,)
