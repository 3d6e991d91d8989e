"""Batches: attention from lengths, masks as the sequences have them, rows that say what they are of."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_families import small_tokenizer

from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.tokens.batch.bins import buckets, packing
from pairwright.tokens.batch.collate import (
    as_torch,
    collate_distill,
    collate_policy,
    collate_preference,
    collate_trees,
)
from pairwright.tokens.encode_pairs import EncodedPair, encode_pair
from pairwright.tokens.hints import find_hints
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Origin, Sequence, truncate
from pairwright.tokens.teacher_sequences import distill_experience


def sequence(ids: list[int], mask: list[int], turns: list[int] | None = None, **more: object) -> Sequence:
    return Sequence(ids=ids, mask=mask, message_index=turns or [0] * len(ids), paint=[0] * len(ids), **more)  # type: ignore[arg-type]


def test_a_pad_id_inside_text_is_attended_to() -> None:
    batch = collate_policy([sequence([0, 5, 0], [0, 1, 1]), sequence([7], [1])], [1.0, 2.0], pad_id=0)
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.labels.tolist() == [[-100, 5, 0], [7, -100, -100]]
    assert batch.lengths.tolist() == [3, 1]


def test_recorded_logprobs_are_kept_only_if_all_rows_have_them() -> None:
    known = sequence([1, 2], [0, 1], logprobs=[0.0, -1.5])
    assert collate_policy([known], [0.0], pad_id=0).logprobs.tolist() == [[0.0, -1.5]]  # type: ignore[union-attr]
    assert collate_policy([known, sequence([1], [1])], [0.0, 1.0], pad_id=0).logprobs is None


def test_preference_rows_have_equal_prompts() -> None:
    tokenizer = small_tokenizer("chatml")
    sides = ([Message("assistant", "yes")], [Message("assistant", "no, not at all")])
    pair = encode_pair(tokenizer, [Message("user", "hi")], *sides)
    batch = collate_preference([pair, pair], pad_id=0, multiple_of=8)
    size = int(batch.prompt_lengths[0])
    assert (batch.chosen_ids[:, :size] == batch.rejected_ids[:, :size]).all()
    assert batch.chosen_ids.shape[1] % 8 == 0
    assert batch.chosen_mask.sum() == 2 * pair.chosen.num_trained
    assert (batch.chosen_attention_mask.sum(axis=1) == len(pair.chosen)).all()


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_buckets_hold_each_sequence_once_within_the_limit(lengths: list[int]) -> None:
    result = buckets(lengths, max_tokens=60)
    assert sorted(position for bucket in result for position in bucket) == list(range(len(lengths)))
    assert all(len(bucket) * max(lengths[position] for position in bucket) <= 60 for bucket in result)


PAIR = EncodedPair(
    chosen=sequence([1, 2, 7, 8], [0, 0, 1, 1]), rejected=sequence([1, 2, 9], [0, 0, 1]), prompt_length=2
)


def test_pairs_and_sequences_can_be_laid_out_with_shared_prompts_packed_or_padded() -> None:
    alone = sequence([4, 5, 6], [0, 1, 0])
    shared = collate_trees([PAIR, alone])
    assert shared.input_ids.tolist() == [[1, 2, 7, 8, 9, 4, 5, 6]]
    assert shared.position_ids.tolist() == [[0, 1, 2, 3, 2, 0, 1, 2]]
    assert shared.segments == ((0, 2, 5), (2, 4, 4), (4, 5, 5), (5, 8, 8))  # start, stop, end of what is below
    assert shared.subtree_ends.tolist() == [[5, 5, 4, 4, 5, 8, 8, 8]]
    packed = collate_trees([alone, PAIR], "packed", row_length=6, pad_id=3)
    assert packed.input_ids.tolist() == [[1, 2, 7, 8, 9, 3], [4, 5, 6, 3, 3, 3]]
    assert packed.sequence_ids.tolist() == [[1, 1, 1, 1, 1, -1], [0, 0, 0, -1, -1, -1]]
    assert (packed.source.tolist(), packed.branch.tolist()) == ([6, 1, 2, 1], [0, 1, 1, 2])
    rows = collate_trees([PAIR, alone], "padded", multiple_of=8)
    assert rows.attention_mask.sum(axis=1).tolist() == [4, 3, 3]
    assert rows.input_ids.shape == (3, 8)
    for batch in (shared, packed, rows):  # every trained token of every branch once, whatever the layout
        assert sorted(batch.target.tolist()) == [5, 7, 8, 9]
    with pytest.raises(ConfigError, match="row_length"):
        collate_trees([PAIR], "packed")


def test_what_branches_of_any_tree_begin_with_stands_once_and_says_who_predicts_what() -> None:
    runs = [sequence([1, 2, 7, 8], [0, 0, 1, 1]), sequence([1, 2, 7, 9, 3], [0, 0, 1, 0, 1]), sequence([1, 4], [0, 1])]
    batch = collate_trees([PAIR, *runs])
    assert batch.input_ids.tolist() == [[1, 2, 7, 8, 9, 3, 9, 4]]
    assert batch.position_ids.tolist() == [[0, 1, 2, 3, 3, 4, 2, 1]]
    assert batch.target.tolist() == [7, 8, 9, 7, 8, 7, 3, 4]
    assert batch.source.tolist() == [1, 2, 1, 1, 2, 1, 4, 0]
    assert batch.node.tolist() == [2, 3, 6, 2, 3, 2, 5, 7]  # the 7 that begins three branches is one token
    assert batch.branch.tolist() == [0, 0, 1, 2, 2, 3, 3, 4]


def test_padded_trees_are_the_rows_of_the_preference_batch() -> None:
    batch, trees = collate_preference([PAIR], pad_id=0, multiple_of=4), collate_trees([PAIR], "padded")
    assert trees.input_ids.tolist() == [*batch.chosen_ids.tolist(), *batch.rejected_ids.tolist()]
    masks = np.concatenate([batch.chosen_mask, batch.rejected_mask])
    assert trees.input_ids[masks].tolist() == trees.target.tolist()


def test_what_does_not_fit_a_row_is_an_error() -> None:
    with pytest.raises(ConfigError, match="truncate first"):
        packing([5], 4)
    with pytest.raises(ConfigError, match="truncate first"):
        buckets([5], max_tokens=4)


def test_truncation_never_cuts_through_a_trained_turn() -> None:
    item = sequence([1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 0, 1, 1], [0, 0, 1, 1, 2, 3, 3])
    assert truncate(item, 4).ids.tolist() == [5, 6, 7]
    assert truncate(item, 6, "keep_start").ids.tolist() == [1, 2, 3, 4, 5]
    assert truncate(item, 4).report.truncated == 4
    for limit, mode in ((1, "keep_end"), (3, "keep_start"), (6, "drop")):
        with pytest.raises(Refusal, match="too_long"):
            truncate(item, limit, mode)  # type: ignore[arg-type]


CALL = ToolCall("look", "{}", "call00000")
PROMPT = (Message("user", "go"),)
DONE = (
    Message("assistant", "", tool_calls=(CALL,)),
    Message("tool", "no such file", tool_call_id="call00000"),
    Message("assistant", "I see"),
)
SITE = ErrorSite(index=2, kind="not_found", tool="look")


def run(eid: EID) -> Experience:
    return Experience(eid=eid, kind="multi_turn", prompt=PROMPT, completion=DONE, reward=0.5, errors=(SITE,))


def test_student_and_teacher_of_a_row_are_aligned() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    experience = run(EID())
    items = distill_experience(tokenizer, experience, find_hints(experience.messages, experience.errors)[0])
    batch = collate_distill([*items, *items], pad_id=0)
    rows = np.arange(2)[:, None]
    student = batch.student_ids[rows, batch.student_index]
    teacher = batch.teacher_ids[rows, batch.teacher_index]
    assert (student == teacher)[batch.index_valid].all()
    assert batch.sdpo_mask.sum() == batch.index_valid.sum()
    assert tokenizer.decode(batch.student_ids[0][batch.sdpo_mask[0]]) == "I see<|im_end|>"


def test_torch_tensors_on_request() -> None:
    torch = pytest.importorskip("torch")
    assert as_torch(collate_preference([PAIR], pad_id=0))["chosen_mask"].dtype == torch.bool
    batch = as_torch(collate_policy([sequence([1], [1])], [1.0], pad_id=0))
    assert batch["input_ids"].dtype == torch.int64
    assert "logprobs" not in batch


def test_every_row_says_which_trace_and_turns_it_is_of() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    experience = run(EID("batch", "task", 3, 0, "x"))
    uid = experience.eid.uid
    policy = collate_policy(encode_experience(tokenizer, experience), [0.5], pad_id=0)
    assert policy.rows == (Origin(uid, (1, 3)),)  # the call and the answer
    hints, _ = find_hints(experience.messages, experience.errors)
    distill = collate_distill(distill_experience(tokenizer, experience, hints), pad_id=0)
    assert distill.rows == (Origin(uid, (3,)),)  # only the turn with a hint
    pair = encode_pair(tokenizer, PROMPT, DONE, [Message("assistant", "no")])
    sides = pair.chosen.with_report(uid="good"), pair.rejected.with_report(uid="bad")
    named = EncodedPair(chosen=sides[0], rejected=sides[1], prompt_length=pair.prompt_length)
    batch = as_torch(collate_preference([named], pad_id=0))
    assert batch["chosen_rows"] == (Origin("good", (1, 3)),)
    assert batch["rejected_rows"] == (Origin("bad", (1,)),)


def test_trees_say_which_trace_each_branch_is_of_in_every_layout() -> None:
    alone = sequence([4, 5, 6], [0, 1, 1], [0, 1, 1]).with_report(uid="run")
    sides = PAIR.chosen.with_report(uid="good"), PAIR.rejected.with_report(uid="bad")
    pair = EncodedPair(chosen=sides[0], rejected=sides[1], prompt_length=PAIR.prompt_length)
    for layout in ("shared", "packed", "padded"):
        batch = collate_trees([pair, alone], layout, row_length=8)
        assert [row.uid for row in batch.rows] == ["good", "bad", "run"]
        assert batch.rows[2].turns == (1,)
