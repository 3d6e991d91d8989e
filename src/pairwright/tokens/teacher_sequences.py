"""Student and teacher: the same completion ids, in the original context and in one with additions.

The teacher's context differs only by text appended to messages (hints, a successful run, feedback). Completions are
not rendered again: their ids are copied. The alignment is a list of index pairs, checked for
`student.ids[s] == teacher.ids[t]`. A template that rewrites history gives one item for each group of turns that share a
context. Truncation cuts both at the same place.
"""

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Items
from functools import partial
from typing import Any

import msgspec
import numpy as np

from pairwright.records.arrays import Array
from pairwright.records.experience import Experience
from pairwright.records.messages import Json, Message
from pairwright.tokens.clock import time_of
from pairwright.tokens.encode import Prepared, encode_located, prepare_chat
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.hints import Hint, add_text
from pairwright.tokens.recorded import (
    RECORDED,
    RecordedTurn,
    build_from_arrays,
    build_from_turns,
    drop_stop,
    is_cut,
    split_turns,
)
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.sequence import Sequence, Truncation, cut_position
from pairwright.tokens.spans.dropped import refuse_dropped, refuse_media_inputs
from pairwright.tokens.spans.regions import Located, locate_groups
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer, record_variables


class Distillation(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A student and its teacher: `student_index[k]` and `teacher_index[k]` are the same token of a distilled turn."""

    student: Sequence
    teacher: Sequence
    student_index: Array
    teacher_index: Array

    def __post_init__(self) -> None:
        same = len(self.student_index) == len(self.teacher_index) and np.array_equal(
            self.student.ids[self.student_index], self.teacher.ids[self.teacher_index]
        )
        if not same:
            raise Refusal("recorded_ids", "student and teacher differ at an index pair")

    @property
    def student_mask(self) -> Array:
        """True at the student's tokens of distilled turns."""
        return np.isin(np.arange(len(self.student)), self.student_index)

    @property
    def teacher_mask(self) -> Array:
        """True at the teacher's tokens of distilled turns."""
        return np.isin(np.arange(len(self.teacher)), self.teacher_index)

    @property
    def targets(self) -> list[int]:
        turns: list[int] = np.unique(self.student.message_index[self.student_index]).tolist()
        return turns


def encode_distillations(
    tokenizer: Any,
    messages: Items[Message],
    hints: Items[Hint],
    tools: Items[Json] | None = None,
    options: EncodeOptions = DEFAULT,
    *,
    train_from: int = 0,
    recorded: Mapping[int, RecordedTurn] | None = None,
    student: Sequence | None = None,
    is_cut: bool = False,
) -> list[Distillation]:
    """Encode a conversation with hints: one item for each group of turns that share a context and include a target.

    `recorded` has the sampled ids of each turn, and `student` the whole recorded sequence. Without them the student is
    rendered and split at the turns, so that no token crosses the start of a turn. With `is_cut`, the conversation ends
    without a stop token.
    """
    ready = chat_tokenizer(tokenizer)
    if not hints:
        raise Refusal("not_generated", "there is no hint to distil")
    added = {hint.target - 1: f"\n\n[Hint: {hint.text}]" for hint in hints}
    targets = {hint.target for hint in hints}
    # Text of runs and tools is untrusted: it must not end the message that it is appended to.
    if controls := [token for token in ready.special for text in added.values() if token in text]:
        raise Refusal("control_tokens", f"the teacher's text contains {controls[0]!r}")
    prepared = prepare_chat(ready, messages, tools, allow_images=options.allow_images)
    chat, generated = prepared.chat, prepared.generated
    turns = sorted(recorded) if recorded else [index for index in generated if index >= train_from]
    if any(turn not in generated for turn in turns):
        raise Refusal("recorded_ids", f"ids are recorded for {turns}, generated were {generated}")
    if targets.isdisjoint(turns):
        raise Refusal("not_generated", "no hint belongs to a turn that is trained")
    hinted_messages = list(messages)
    for index, text in added.items():
        hinted_messages[index] = add_text(hinted_messages[index], text)
    hinted = prepare_chat(ready, hinted_messages, tools, allow_images=options.allow_images, mode=prepared.mode)
    # Only the targets are trained: `_check_dropped` handles missing fields of other turns.
    terms = RECORDED if recorded else options.terms._replace(allow_dropped=True)
    groups = locate_groups(prepared.tokenizer, chat, prepared.tools, turns, terms)
    items = []
    for part, located in groups:
        if any(region.message in targets for region in located.regions):
            located = _check_dropped(located, added, targets, is_recorded=bool(recorded), allow=options.allow_dropped)
            if student is not None and len(groups) == 1:
                own = student
            elif recorded:
                sampled = {region.message: recorded[region.message] for region in located.regions}
                own = build_from_turns(prepared, part, located, sampled)
            else:
                own = encode_located(prepared, part, located, DEFAULT)
                # Only the group that ends the conversation can be cut short.
                own = drop_stop(own) if is_cut and len(part) == len(chat) else own
            items.append(_build_item(hinted, own, len(part), located, added, targets, recorded))
    return items


def _check_dropped(
    located: Located, added: Mapping[int, str], targets: set[int], *, is_recorded: bool, allow: bool
) -> Located:
    """Refuse targets that are not rendered completely, and hints that are not rendered; other turns are context."""
    dropped = tuple(item for item in located.dropped if item[0] in targets)
    if not is_recorded:
        refuse_dropped(dropped, allow=allow)
    # Templates drop old reasoning by design: in the context, only other fields count as missing.
    context = tuple(item for item in located.dropped if item[0] not in targets and item[1] != "reasoning")
    prompt_dropped = (*located.prompt_dropped, *context)
    unseen = [message for message, name in prompt_dropped if message in added and name == "content"]
    if unseen and not allow:
        raise Refusal("dropped", "the template does not render the message with the hint", message=unseen[0])
    return located._replace(dropped=dropped, prompt_dropped=prompt_dropped)


def distill_experience(
    tokenizer: ChatTokenizer,
    experience: Experience,
    hints: Items[Hint],
    options: EncodeOptions = DEFAULT,
) -> list[Distillation]:
    """Encode student and teacher for the target turns of an experience. Recorded ids are the student's sequence, and
    the completion's ids in both."""
    refuse_media_inputs(experience, allow=options.allow_images)
    if options.record_kwargs == "use":
        tokenizer = tokenizer.with_variables(record_variables(experience.info))
    tokenizer = tokenizer.at(time_of(experience.info))
    encode = partial(
        encode_distillations, tokenizer, experience.messages, hints, list(experience.tools) or None, options
    )
    if experience.tokens is None or options.recorded == "ignore":
        items = encode(train_from=len(experience.prompt), is_cut=is_cut(experience))
    else:
        student = build_from_arrays(tokenizer, experience)
        items = encode(recorded=split_turns(student), student=student)
    uid = experience.eid.uid
    return [
        msgspec.structs.replace(
            item, student=item.student.with_report(uid=uid), teacher=item.teacher.with_report(uid=uid)
        )
        for item in items
    ]


def _build_item(
    hinted: Prepared,
    student: Sequence,
    size: int,
    located: Located,
    added: Mapping[int, str],
    targets: set[int],
    recorded: Mapping[int, RecordedTurn] | None,
) -> Distillation:
    """Build the teacher of a student: the first `size` messages of `hinted`, with the student's ids."""
    turns = [region.message for region in located.regions]
    sampled = {turn: RecordedTurn(tuple(student.ids[_is_turn(student, turn)].tolist())) for turn in turns}
    if recorded:
        sampled = {turn: recorded[turn] for turn in turns}
    chat = hinted.chat[:size]
    groups = locate_groups(hinted.tokenizer, chat, hinted.tools, turns, RECORDED)
    if len(groups) > 1:
        raise Refusal("context_differs", "with the hint, these turns need several sequences", message=turns[0])
    inside = {index: text for index, text in added.items() if index < size - 1}
    teacher = build_from_turns(hinted, chat, groups[0][1], sampled, added=inside)
    return _align(student, teacher, [turn for turn in turns if turn in targets])


def truncate_distillation(
    item: Distillation, max_length: int, truncation: Truncation = "keep_end", *, keep_first: int = 0
) -> Distillation:
    """Cut student and teacher at the same place until both fit; hinted turns that are cut off are no longer targets.

    "keep_end" cuts the beginning: inside the common prefix before the first hint or, if that is not enough, everything
    up to the end of a turn. "keep_start" cuts after the last turn that fits. The first `keep_first` tokens always stay.
    "drop" refuses. Items without a remaining target are refused.
    """
    longest = max(len(item.student), len(item.teacher))
    if longest <= max_length:
        return item
    if truncation == "drop":
        raise Refusal("too_long", f"{longest} tokens of at most {max_length}")
    sides = item.student, item.teacher
    cut = _cut_start(sides, max_length, keep_first) if truncation == "keep_end" else _cut_end(sides, max_length)
    if cut is not None:
        student, teacher = (side.take(positions) for side, positions in zip(sides, cut, strict=True))
        targets = [turn for turn in item.targets if _is_turn(student, turn).any()]
        if targets:
            return _align(student, teacher, targets)
    raise Refusal("too_long", f"{longest} tokens; no hinted turn fits into {max_length}")


def _cut_start(sides: tuple[Sequence, Sequence], max_length: int, keep_first: int) -> list[Array] | None:
    # Before the first hint, student and teacher are equal: a cut there is the same position in both.
    size = min(map(len, sides))
    differ = np.flatnonzero(sides[0].ids[:size] != sides[1].ids[:size])
    common = int(differ[0]) if len(differ) else size
    if keep_first > common:
        return None
    first = np.arange(keep_first)
    # The longer side determines the cut; a cut inside a trained turn moves to the end of the turn.
    start = cut_position(sides[0], max(map(len, sides)) - max_length + keep_first, has_context=keep_first > 0)

    def fits(ends: list[int]) -> bool:
        return all(len(side) - end <= max_length - keep_first for side, end in zip(sides, ends, strict=True))

    # After the common prefix, both sides are cut at the end of the first turn after which they fit.
    starts = [start, start] if start <= common else next(filter(fits, _turn_ends(sides)), None)
    if starts is None:
        return None
    return [np.concatenate([first, np.arange(start, len(side))]) for start, side in zip(starts, sides, strict=True)]


def _cut_end(sides: tuple[Sequence, Sequence], max_length: int) -> list[Array] | None:
    """Return the positions to keep when the end is cut: up to the last turn that fits on both sides."""
    fitting = [ends for ends in _turn_ends(sides) if max(ends) <= max_length]
    return [np.arange(end) for end in fitting[-1]] if fitting else None


def _turn_ends(sides: tuple[Sequence, Sequence]) -> Iterator[list[int]]:
    for turn in np.unique(sides[0].message_index[sides[0].mask]):
        yield [int(np.flatnonzero(_is_turn(side, turn))[-1]) + 1 for side in sides]


def _align(student: Sequence, teacher: Sequence, targets: list[int]) -> Distillation:
    # (K,) positions of the targets' trained tokens on each side; the counts are equal, since the ids are copies.
    index = [
        np.flatnonzero(side.mask & np.isin(side.message_index, targets)).astype(np.int32) for side in (student, teacher)
    ]
    return Distillation(student=student, teacher=teacher, student_index=index[0], teacher_index=index[1])


def _is_turn(sequence: Sequence, turn: int) -> Array:
    is_turn: Array = sequence.mask & (sequence.message_index == turn)
    return is_turn
