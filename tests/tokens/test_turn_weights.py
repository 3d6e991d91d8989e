"""Weights of single turns: from the data to the sequences, the cache and the batches."""

import numpy as np
from test_masks import thinker
from token_families import small_tokenizer

from pairwright import EID, Experience, Message
from pairwright.records.experience import Kind
from pairwright.records.messages import TURN_WEIGHT
from pairwright.tokens import collate_policy, encode_experience, encode_turns
from pairwright.tokens.sequence import truncate, weigh_turns
from pairwright.tokens.stage.paint import describe_report

MESSAGES = [
    Message("user", "one"),
    Message("assistant", "two", extra={TURN_WEIGHT: 0.25}),
    Message("user", "three"),
    Message("assistant", "four"),
]


def test_every_trained_token_of_a_turn_has_its_weight() -> None:
    (sequence,) = (weigh_turns(s, MESSAGES) for s in encode_turns(small_tokenizer("chatml"), MESSAGES))
    assert sequence.weights is not None
    expected = {1: 0.25, 3: 1.0}
    for weight, mask, message in zip(sequence.weights, sequence.mask, sequence.message_index, strict=True):
        assert weight == (expected[int(message)] if mask else 0)
    assert set(sequence.weights[sequence.mask].tolist()) == {0.25, 1.0}


def test_a_turn_in_a_sequence_of_its_own_has_its_weight_also_without_the_stage() -> None:
    # The prompt closes reasoning that history does not have, so each turn has a separate sequence.
    tokenizer = thinker("{{ m.content }}", "<think>\n\n</think>\n\n")
    experience = Experience(
        eid=EID("b", 1, 0), kind=Kind.MULTI_TURN, prompt=tuple(MESSAGES[:1]), completion=tuple(MESSAGES[1:])
    )
    first, second = encode_experience(tokenizer, experience)
    assert first.weights is not None
    assert set(first.weights[first.mask].tolist()) == {0.25}
    assert second.weights is None
    assert describe_report(first) == ["weights: message 1 × 0.25"]


def test_sequences_without_weights_have_none() -> None:
    plain = [Message(message.role, message.content) for message in MESSAGES]
    (sequence,) = encode_turns(small_tokenizer("chatml"), plain)
    assert weigh_turns(sequence, plain).weights is None


def test_weights_are_cut_with_the_tokens_and_padded_with_the_rows() -> None:
    (sequence,) = encode_turns(small_tokenizer("chatml"), MESSAGES)
    weighted = weigh_turns(sequence, MESSAGES)
    cut = truncate(weighted, len(weighted) - 3)
    assert cut.weights is not None
    assert cut.weights.tolist() == weighted.weights[-len(cut) :].tolist()
    batch = collate_policy([weighted, cut, sequence], [1.0, 1.0, 1.0], pad_id=0)
    assert batch.weights.shape == batch.input_ids.shape
    assert batch.weights[1, len(cut) :].tolist() == [0.0] * (len(sequence) - len(cut))
    assert np.array_equal(batch.weights[2], sequence.mask)
    assert collate_policy([sequence], [1.0], pad_id=0).weights is None
