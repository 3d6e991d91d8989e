"""Batches: attention from lengths, masks as the sequences have them, channels filled from traces."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from token_families import small_tokenizer

from pairwright.errors import ConfigError
from pairwright.records.experience import EID, Experience, Pair
from pairwright.records.messages import ErrorSite, Message, ToolCall
from pairwright.tokens.batch.bins import buckets, packing
from pairwright.tokens.batch.collate import (
    as_torch,
    collate_policy,
    collate_preference,
    collate_trees,
    pack,
)
from pairwright.tokens.batch.combine import Collator, CombinedBatch, CombineOptions, Trace
from pairwright.tokens.encode_pairs import EncodedPair, encode_pair
from pairwright.tokens.hints import Hint, HintCounts
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Origin, Sequence, name_record, truncate


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


@given(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=1, max_size=12))
def test_packed_rows_give_every_sequence_back(items: list[list[int]]) -> None:
    masks = [np.arange(len(item)) % 2 == 0 for item in items]
    packed = pack([np.array(item) for item in items], masks, row_length=10, pad_id=0)
    for number, item in enumerate(items):
        here = packed.sequence_ids == number
        assert packed.input_ids[here].tolist() == item
        assert packed.position_ids[here].tolist() == list(range(len(item)))
        assert packed.response_mask[here].tolist() == masks[number].tolist()
        assert packed.labels[here].tolist()[0] == -100
    assert packed.attention_mask.sum() == sum(map(len, items))
    assert ((packed.sequence_ids >= 0) == packed.attention_mask.astype(bool)).all()


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
    assert batch.node.tolist() == [2, 3, 6, 2, 3, 2, 5, 7]  # the 7 of three branches is one token
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


def trace(**fields: object) -> Trace:
    pair = Pair(
        id="p", prompt=PROMPT, chosen=DONE, rejected=(Message("assistant", "no"),), chosen_reward=1.0,
        rejected_reward=0.0, chosen_eid=EID(), rejected_eid=EID(), gap=1.0, strategy="all",
    )  # fmt: skip
    options: dict = {"reward": 0.5, "errors": (SITE,), "reward_components": {"style": 2}, **fields}
    return Trace(Experience(kind="multi_turn", prompt=PROMPT, completion=DONE, **options), (pair,))  # type: ignore[arg-type]


def test_the_combined_collator_fills_three_channels() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    collate = Collator(tokenizer, pad_id=0)
    batch = collate([trace(), trace(reward=None)])
    assert isinstance(batch, CombinedBatch)
    assert batch.policy is not None
    assert batch.distill is not None
    assert batch.preference is not None
    assert batch.policy.rewards.tolist() == [0.5]
    assert collate.counts["policy: unscored"] == 1
    assert batch.preference.chosen_ids.shape[0] == batch.distill.student_ids.shape[0] == 2
    rows = np.arange(2)[:, None]
    student = batch.distill.student_ids[rows, batch.distill.student_index]
    teacher = batch.distill.teacher_ids[rows, batch.distill.teacher_index]
    assert (student == teacher)[batch.distill.index_valid].all()
    assert batch.distill.sdpo_mask.sum() == batch.distill.index_valid.sum()
    assert tokenizer.decode(batch.distill.student_ids[0][batch.distill.sdpo_mask[0]]) == "I see<|im_end|>"


def test_channels_can_be_switched_off_and_capped() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    off = CombineOptions(use_policy=False, use_distill=False, use_preference=False)
    empty = Collator(tokenizer, pad_id=0, options=off)([trace()])
    assert (empty.policy, empty.distill, empty.preference) == (None, None, None)  # type: ignore[union-attr]
    small = Collator(tokenizer, pad_id=0, options=CombineOptions(max_length=12, max_pair_length=12))
    batch = small([trace()])
    assert batch.policy.input_ids.shape[1] <= 12  # type: ignore[union-attr]
    assert batch.distill is None  # type: ignore[union-attr]
    assert small.counts["distill: too_long"] == 1
    assert small.counts["preference: too_long"] == 1
    assert small.counts["policy: truncated"] == 1
    keyed = Collator(tokenizer, pad_id=0, options=CombineOptions(reward_key="style"))([trace()])
    assert keyed.policy.rewards.tolist() == [2.0]  # type: ignore[union-attr]


def test_torch_tensors_on_request() -> None:
    torch = pytest.importorskip("torch")
    batch = Collator(small_tokenizer("chatml with calls"), pad_id=0, tensors="torch")([trace()])
    assert isinstance(batch, dict)
    assert batch["policy"]["input_ids"].dtype == torch.int64
    assert batch["preference"]["chosen_mask"].dtype == torch.bool
    assert "logprobs" not in as_torch(collate_policy([sequence([1], [1])], [1.0], pad_id=0))


def test_every_row_says_which_trace_and_turns_it_is_of() -> None:
    first, named = trace(eid=EID("batch", "task", 1)), trace(eid=EID("batch", "task", 3, 0, "x"))
    uid = named.experience.eid.uid
    pair = named.pairs[0]
    for tensors in ("numpy", "torch"):
        batch = Collator(small_tokenizer("chatml with calls"), pad_id=0, tensors=tensors)([first, named])  # type: ignore[arg-type]
        if not isinstance(batch, dict):
            channels = ("policy", "distill", "preference")
            batch = {channel: msgspec.structs.asdict(getattr(batch, channel)) for channel in channels}
        assert [row.uid for row in batch["policy"]["rows"]] == [first.experience.eid.uid, uid]
        assert batch["policy"]["rows"][1].turns == (1, 3)  # the call and the answer
        assert batch["distill"]["rows"][1] == Origin(uid, (3,))  # only the turn with a hint
        assert batch["preference"]["chosen_rows"][1] == Origin(pair.chosen_eid.uid, (1, 3))
        assert batch["preference"]["rejected_rows"][1] == Origin(pair.rejected_eid.uid, (1,))


def test_trees_say_which_trace_each_branch_is_of_in_every_layout() -> None:
    alone = name_record(sequence([4, 5, 6], [0, 1, 1], [0, 1, 1]), "run")
    sides = name_record(PAIR.chosen, "good"), name_record(PAIR.rejected, "bad")
    pair = EncodedPair(chosen=sides[0], rejected=sides[1], prompt_length=PAIR.prompt_length)
    for layout in ("shared", "packed", "padded"):
        batch = collate_trees([pair, alone], layout, row_length=8)
        assert [row.uid for row in batch.rows] == ["good", "bad", "run"]
        assert batch.rows[2].turns == (1,)


def test_what_is_too_long_to_distil_is_cut_and_counted() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    whole = Collator(tokenizer, pad_id=0)([trace()])
    longest = whole.distill.teacher_ids.shape[1]  # type: ignore[union-attr]
    collate = Collator(tokenizer, pad_id=0, options=CombineOptions(max_length=longest - 1, use_policy=False))
    cut = collate([trace()])
    assert cut.distill.teacher_ids.shape[1] <= longest - 1  # type: ignore[union-attr]
    assert cut.distill.sdpo_mask.sum() == whole.distill.sdpo_mask.sum()  # type: ignore[union-attr]
    assert collate.counts["distill: truncated"] == 1
    dropping = Collator(tokenizer, pad_id=0, options=CombineOptions(max_length=longest - 1, truncation="drop"))
    assert dropping([trace()]).distill is None  # type: ignore[union-attr]
    assert dropping.counts["distill: too_long"] == 1


def test_a_template_that_rewrites_history_fills_all_channels() -> None:
    collate = Collator(small_tokenizer("channels, return becomes end"), pad_id=0)
    more = (*DONE, Message("user", "and?"), Message("assistant", "done"))
    long = Experience(kind="multi_turn", prompt=PROMPT, completion=more, reward=1.0, errors=(SITE,))
    batch = collate([Trace(long, trace().pairs)])
    assert batch.policy.input_ids.shape[0] == 2  # type: ignore[union-attr]
    assert batch.distill.student_ids.shape[0] == 1  # type: ignore[union-attr]
    assert batch.preference is not None  # type: ignore[union-attr]
    assert batch.distill.student_ids.shape[1] < batch.policy.input_ids.shape[1]  # type: ignore[union-attr]


def test_hints_come_from_a_function_and_channels_can_be_left_out() -> None:
    options = CombineOptions(max_length=99, ignore_index=-1, use_preference=False)
    tokenizer = small_tokenizer("chatml with calls")

    def hints(messages: object, sites: object) -> tuple[list[Hint], HintCounts]:
        return [Hint(SITE, 3, "look twice", "judge")], HintCounts(hinted=1)

    batch = Collator(tokenizer, pad_id=0, options=options, hints=hints)([trace()])
    assert batch.preference is None  # type: ignore[union-attr]
    assert batch.policy.labels.min() == -1  # type: ignore[union-attr]
    assert "[Hint: look twice]" in tokenizer.decode(batch.distill.teacher_ids[0])  # type: ignore[union-attr]
