"""Pairs whose ids were recorded: the ids are the sides, or the pair is refused with the reason."""

import numpy as np
import pytest
from token_families import small_tokenizer

from pairwright.records.experience import EID, Experience, Side
from pairwright.records.messages import Message
from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair, encode_pair
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
    """Return an experience with recorded ids of its prompt and its answer."""
    given = tokenizer.encode("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")[0].tolist()
    said = [*letters(tokenizer, completion[0].text), tokenizer.added["<|im_end|>"]]
    made: dict = {
        "eid": EID("b", "t", 0, 0, completion[0].text), "kind": "single_turn", "prompt": PROMPT,
        "completion": completion, "tokens": [*given, *said], "prompt_length": len(given),
        "logprobs": [-0.5] * len(said),
    }  # fmt: skip
    return Experience(**(made | fields))


def encoded(tokenizer: ChatTokenizer, *sources: Experience) -> EncodedPair:
    return encode_pair(tokenizer, PROMPT, GOOD, BAD, sources=(sources[0], sources[1]))


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


def test_ids_that_do_not_fit_are_refused_with_the_way_out(tokenizer: ChatTokenizer) -> None:
    good, bad = run(tokenizer, GOOD), run(tokenizer, BAD)
    other_prompt = bad.tokens.copy()  # type: ignore[union-attr]
    other_prompt[1] = 9
    longer = run(tokenizer, BAD, prompt=(*PROMPT, *GOOD, Message("user", "and?")))
    cases = [
        (run(tokenizer, BAD, tokens=other_prompt), "prompts of the two sides spell different texts"),
        (good, "of other messages"),
        (longer, "of other messages"),
    ]
    for source, reason in cases:
        with pytest.raises(Refusal, match=reason):
            encoded(tokenizer, good, source)
    rendered = encode_pair(tokenizer, PROMPT, GOOD, BAD, sources=(good, good), options=EncodeOptions(recorded="ignore"))
    assert rendered.rejected.report.source == "rendered"


def test_a_side_without_ids_is_rendered_beside_one_with_ids(tokenizer: ChatTokenizer) -> None:
    good, rendered = run(tokenizer, GOOD), encode_pair(tokenizer, PROMPT, GOOD, BAD)
    pair = encode_pair(tokenizer, PROMPT, GOOD, BAD, sources=(good, None))
    assert pair.chosen.ids.tolist() == good.tokens.tolist()  # type: ignore[union-attr]
    assert pair.rejected == rendered.rejected
    assert pair.prompt_length == rendered.prompt_length


def test_prompts_that_were_sampled_as_other_tokens_are_kept_as_each_side_had_them(tokenizer: ChatTokenizer) -> None:
    """Both runs begin with "hello", one of them letter by letter: the shared ids end where they differ."""
    common = (Message("assistant", "hello"), Message("user", "go on"))
    stop = tokenizer.added["<|im_end|>"]

    def long(last: tuple[Message, ...], first: list[int]) -> Experience:
        sampled = [*letters(tokenizer, last[0].text), stop]
        mask = [*[True] * len(first), False, False, *([True] * len(sampled))]
        arrays = {"tokens": [5, 6, *first, 7, 8, *sampled], "prompt_length": 2, "action_mask": mask}
        return Experience(kind="multi_turn", prompt=PROMPT, completion=(*common, *last), **arrays)  # type: ignore[arg-type]

    whole, spelled = [*tokenizer.encode("hello")[0].tolist(), stop], [*letters(tokenizer, "hello"), stop]
    assert whole != spelled
    sources = long(GOOD, whole), long(BAD, spelled)
    pair = encode_pair(tokenizer, (*PROMPT, *common), GOOD, BAD, sources=sources)
    assert pair.prompt_length == 2
    for side, source in zip((pair.chosen, pair.rejected), sources, strict=True):
        assert side.ids.tolist() == source.tokens.tolist()  # type: ignore[union-attr]
        assert tokenizer.decode(side.ids[side.mask]) in ("ok<|im_end|>", "no<|im_end|>")


def test_one_action_of_a_longer_run_is_its_own_ids(tokenizer: ChatTokenizer) -> None:
    """Later turns of the run are not part of the pair."""
    stop = tokenizer.added["<|im_end|>"]
    rest = (Message("user", "go on"), Message("assistant", "bye"))
    first, last = [*letters(tokenizer, "no"), stop], [*letters(tokenizer, "bye"), stop]
    mask = [*[True] * len(first), False, False, *[True] * len(last)]
    given = run(tokenizer, BAD).tokens[: run(tokenizer, BAD).prompt_length].tolist()  # type: ignore[index]
    tokens = [*given, *first, 7, 8, *last]
    arrays = {"tokens": tokens, "prompt_length": len(given), "action_mask": mask}
    whole = Experience(kind="multi_turn", prompt=PROMPT, completion=(*BAD, *rest), **arrays)  # type: ignore[arg-type]
    pair = encode_pair(tokenizer, PROMPT, GOOD, BAD, sources=(None, whole))
    assert pair.rejected.ids.tolist() == [*given, *first]
    assert tokenizer.decode(pair.rejected.ids[pair.rejected.mask]) == "no<|im_end|>"


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

    pair = encode_pair(tokenizer, (*PROMPT, *common), GOOD, BAD, sources=(long(GOOD), long(BAD)))
    assert pair.prompt_length == len(shared)
    assert pair.chosen.ids.tolist() == [*shared, *letters(tokenizer, "ok"), stop]
    assert pair.chosen.mask.tolist() == [False] * 6 + [True] * 3
    assert set(pair.chosen.message_index[pair.chosen.mask].tolist()) == {3}


def test_ids_of_another_tokenizer_are_refused_or_noticed(tokenizer: ChatTokenizer) -> None:
    good, bad = run(tokenizer, GOOD), run(tokenizer, BAD)
    foreign = np.array([*bad.tokens[:-1], 99_999])  # type: ignore[index]
    with pytest.raises(Refusal, match="recorded_ids: ids up to 99999 were recorded with another tokenizer"):
        encoded(tokenizer, good, run(tokenizer, BAD, tokens=foreign))
    with pytest.raises(Refusal, match="the ids spell none of the generated messages"):
        encoded(tokenizer, good, run(tokenizer, BAD, tokens=good.tokens))
