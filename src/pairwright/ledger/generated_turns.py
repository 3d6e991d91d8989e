"""Generated turns of experience tables, with the number of tokens of each."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from pairwright.config.sections import CreditConfig, TokensConfig
from pairwright.ledger.trained import digest_of, split_turns
from pairwright.records.arrays import Array
from pairwright.records.experience import Experience, Kind
from pairwright.records.grouping import conversation_of
from pairwright.records.messages import Message
from pairwright.store.table import Table
from pairwright.tokens.recorded import find_mask_spans, response_mask
from pairwright.tokens.stage.cache import read_sequences
from pairwright.tokens.stage.stage import encode_source

Key = tuple[str, str]  # id of the experience (or of the side), and the side; empty for a completion


class Answer(msgspec.Struct):
    """A completion, or a side of a preference."""

    row: str
    is_scored: bool
    turns: dict[int, int | None]  # message -> number of tokens, None while unknown; -1: turns cannot be distinguished
    digests: dict[int, int] = {}  # message -> hash of its recorded ids

    @property
    def is_recorded(self) -> bool:
        return bool(self.digests)


def read_answers(tables: Iterable[Table], *, use_recorded: bool = True) -> tuple[dict[Key, Answer], int]:
    """Read all answers of tables, and count duplicate records. Without `use_recorded`, recorded ids are ignored, as
    with `tokens.recorded: ignore`."""
    answers: dict[Key, Answer] = {}
    num_repeated = 0
    for table in tables:
        for experience in table.records():
            for key, answer in _answers_of(experience):
                # The first record with a key is used; the others are only counted.
                num_repeated += key in answers
                if not use_recorded:
                    answer.turns, answer.digests = dict.fromkeys(answer.turns), {}
                answers.setdefault(key, answer)
    return answers, num_repeated


def count_tokens(
    answers: dict[Key, Answer],
    tables: Iterable[Table],
    options: TokensConfig,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Count the tokens of turns without recorded ids, by encoding all turns of their tables without truncation."""
    whole = options.model_copy(
        update={"max_length": None, "max_pair_length": None, "train_turns": "all", "credit": CreditConfig()}
    )
    for number, table in enumerate(tables):
        cache = folder / f"table-{number}"
        encode_source(table.path, cache, whole, progress=progress)
        for uid, side, sequence in read_sequences(cache):
            answer = answers.get((uid, side))
            if answer is None or answer.is_recorded:
                continue
            for turn in split_turns(sequence.ids, sequence.mask, sequence.message_index):
                if turn.turn in answer.turns:
                    answer.turns[turn.turn] = turn.tokens


def _answers_of(experience: Experience) -> Iterator[tuple[Key, Answer]]:
    uid = experience.eid.uid
    if experience.kind is not Kind.PREFERENCE:
        prompt, messages = conversation_of(experience)
        num_prompt = len(prompt)
        ids, mask = None, None
        if experience.tokens is not None and experience.prompt_length is not None:
            ids = experience.tokens[experience.prompt_length :]
            mask = response_mask(len(ids), experience.action_mask)
        yield (uid, ""), _answer(uid, num_prompt, messages, ids, mask, is_scored=experience.is_scored)
        return
    for name, side in (("chosen", experience.chosen), ("rejected", experience.rejected)):
        assert side is not None
        mask = None if side.tokens is None else response_mask(len(side.tokens), side.action_mask)
        key, (prompt, messages) = uid if side.eid is None else side.eid.uid, conversation_of(experience, side)
        yield (key, name), _answer(uid, len(prompt), messages, side.tokens, mask, is_scored=True)


def _answer(
    row: str, num_prompt: int, messages: tuple[Message, ...], ids: Array | None, mask: Array | None, *, is_scored: bool
) -> Answer:
    # Indices of generated messages; -1 for an answer in which no message is marked.
    turns = [num_prompt + number for number, message in enumerate(messages) if message.is_generated] or [-1]
    if ids is None or mask is None:
        return Answer(row, is_scored, dict.fromkeys(turns))
    spans = find_mask_spans(mask).tolist()
    if len(spans) != len(turns):  # spans cannot be assigned to turns: count all sampled tokens together
        return Answer(row, is_scored, {-1: int(mask.sum())}, {-1: digest_of(ids[mask])})
    named = list(zip(turns, spans, strict=True))  # (message index, (start, end) in the response)
    return Answer(
        row,
        is_scored,
        {turn: end - start for turn, (start, end) in named},
        {turn: digest_of(ids[start:end]) for turn, (start, end) in named},
    )
