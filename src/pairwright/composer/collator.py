"""The collator: converts recorded traces and their pairs to one batch of tensors for GRPO, SDPO and replayed DPO.

    input_ids, attention_mask, response_mask       (B, T)   int64, one row per sequence; response_mask: 1 if generated
    rewards                                        (B,)     float32; 0.0 for a trace without one
    ctx_teacher_input_ids                          (B, T)   int64, the same rows with the hints in their context
    sdpo_loss_mask                                 (B, T)   int64, on the teacher: 1 at recoveries, else ignore_index
    student_response_idx, teacher_response_idx     (B, K)   int64, positions of the same token in both; padded with -1
    student_response_valid, teacher_response_valid (B, K)   bool, False where the index is -1
    dpo_chosen_input_ids, dpo_rejected_input_ids   (P, L)   int64, one row per pair, one width for both sides
    dpo_chosen_response_mask, dpo_rejected_...     (P, L)   int64, 1 at the answers

A trace has several sequences if its template rewrites history. Channels without rows have no keys. Keys that Composer
does not have: `ctx_teacher_attention_mask`, `dpo_*_attention_mask`, and the example of each row in `trace_index` (B,)
and `dpo_trace_index` (P,). Ids and masks are those of `tokens/`: whole turns with calls, reasoning and stop tokens,
exact with any template. Rows that cannot be encoded are left out and counted.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, NamedTuple, TypedDict

import msgspec
import numpy as np

from pairwright.composer.stub_encoder import StubEncoder, TokenizerLike
from pairwright.config.user_code import load_function
from pairwright.errors import ConfigError, RecordError
from pairwright.records.arrays import Array, to_torch
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import ErrorSite, Json, Message
from pairwright.sources.assemble import split_at_first_answer
from pairwright.sources.fields import BadRecord
from pairwright.sources.rollouts.s1_traces import read_pair, read_turns
from pairwright.tokens.batch.collate import IGNORE_INDEX, make_attention_mask, pad_rows
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.hints import HINT_FUNCTIONS, HINTS, Hint, find_hints
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence as TokenSequence
from pairwright.tokens.sequence import truncate
from pairwright.tokens.teacher_sequences import Distillation, distill_experience, truncate_distillation
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

HintGenerator = Callable[[str, Json], str | None]


class TraceTurn(TypedDict, total=False):
    """A turn of a trace. An assistant turn with `tool_error`, the kind of an error, is the recovery from that error."""

    role: str
    content: str
    tool_call: Json | None
    tool_error: str | None
    error_meta: Json


class TraceExample(TypedDict, total=False):
    """A trace with its reward, and its replayed pairs, each {state_messages, chosen, rejected}. `tools`, the schemas
    for the chat template, is our addition."""

    trace_id: str
    turns: list[TraceTurn]
    final_reward: float
    dpo_pairs: list[Json] | None
    tools: list[Json]


@dataclass
class CollatorConfig:
    """Options of the collator.

    hint_generator   None: no SDPO. A function of (tool_error, error_meta) that returns a hint or None. Not in Composer:
                     "templates" (by error kind), a dict of templates by error kind, or a function as module:function
    """

    max_seq_len: int = 4096
    max_dpo_seq_len: int = 2048
    pad_token_id: int = 0
    ignore_index: int = IGNORE_INDEX
    enable_sdpo: bool = True
    hint_generator: HintGenerator | Mapping[str, str] | str | None = None
    enable_replay_dpo: bool = True
    rlvr_reward_key: str = "final_reward"


class _Encoder(NamedTuple):
    """The functions that encode traces, hinted traces and pairs: those of `tokens/`, or of a `StubEncoder`."""

    encode_trace: Callable[[Experience], list[TokenSequence]]
    distill: Callable[[Experience, Sequence[Hint]], list[Distillation]]
    encode_pairs: Callable[[Iterable[PairMessages], int], Iterator[EncodedPair | TokensError]]


@dataclass
class ComposerDataCollator:
    """Callable on a list of trace examples; `counts` has what was left out or truncated, by channel and reason.

    `tokenizer` is one of transformers, ours, or a stub that implements `TokenizerLike`.
    """

    tokenizer: TokenizerLike | ChatTokenizer
    config: CollatorConfig = field(default_factory=CollatorConfig)
    counts: Counter[str] = field(default_factory=Counter, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.config = read_config(self.config)
        self._encoder = _choose_encoder(self.tokenizer)
        _read_generator(self.config.hint_generator)  # raises for an invalid generator now instead of at the first batch

    def __call__(self, batch: Sequence[TraceExample]) -> dict[str, Any]:
        config = self.config
        traces = [self._read_trace(example, number) for number, example in enumerate(batch)]
        rows: list[tuple[TokenSequence, Distillation | None]] = []
        trace_index: list[int] = []
        for number, trace in enumerate(traces):
            encoded = self._encode_trace(trace)
            rows += encoded
            trace_index += [number] * len(encoded)
        arrays: dict[str, Array] = {}
        if rows:
            arrays |= self._policy_arrays([row for row, _ in rows], [item for _, item in rows])
            arrays["trace_index"] = np.array(trace_index, np.int64)
            arrays["rewards"] = self._rewards(batch, trace_index)
        if config.enable_replay_dpo:
            arrays |= self._preference_arrays(traces, batch)
        self.counts += Counter()  # without the reasons that never occurred
        if not arrays:
            reasons = ", ".join(f"{reason} {num}" for reason, num in sorted(self.counts.items())) or "no traces"
            raise RecordError("examples", len(batch), f"at least one that can be encoded ({reasons})")
        return {name: to_torch(array) for name, array in arrays.items()}

    def _read_trace(self, example: TraceExample, number: int) -> Experience:
        """Convert a trace to an experience; the prompt ends before the first assistant turn."""
        turns = example.get("turns")
        if not isinstance(turns, list):
            raise RecordError(f"examples[{number}].turns", turns, "a list of turns")
        try:
            messages, errors, num_empty = read_turns(turns)
        except BadRecord as error:
            raise BadRecord(f"examples[{number}].{error}") from None
        self.counts["empty_turns"] += num_empty
        prompt, completion = split_at_first_answer(messages)
        return Experience(
            eid=EID(task=str(example.get("trace_id", ""))),
            kind=Kind.MULTI_TURN,
            prompt=tuple(prompt),
            completion=tuple(completion),
            tools=tuple(example.get("tools") or ()),
            errors=tuple(errors),
        )

    def _encode_trace(self, trace: Experience) -> list[tuple[TokenSequence, Distillation | None]]:
        """Return the rows of a trace, each with its hinted version, if any."""
        if not trace.messages:
            self.counts["grpo: no_turns"] += 1
            return []
        try:
            sequences = self._encoder.encode_trace(trace)
        except TokensError as error:
            self._count("grpo", error)
            # A recovery may be encoded exactly although another turn is not: its row is in SDPO only (response mask 0).
            fitting = [item for item in map(self._fit, self._distill(trace)) if item is not None]
            return [
                (msgspec.structs.replace(item.student, mask=np.zeros(len(item.student), bool)), item)
                for item in fitting
            ]
        # Keyed by trained turns: a template that rewrites history gives several sequences of one trace.
        hinted = {_turns_of(item.student): item for item in self._distill(trace)}
        rows: list[tuple[TokenSequence, Distillation | None]] = []
        for sequence in sequences:
            self.counts["grpo: dropped"] += len(sequence.report.dropped)
            item = hinted.pop(_turns_of(sequence), None)
            item = None if item is None else self._fit(item)
            if item is not None:
                rows.append((item.student, item))
                continue
            try:
                rows.append((truncate(sequence, self.config.max_seq_len), None))
            except Refusal as error:
                self._count("grpo", error)
        self.counts["sdpo: context_differs"] += len(hinted)
        return rows

    def _fit(self, item: Distillation) -> Distillation | None:
        """Truncate a hinted row to `max_seq_len` tokens; None (and counted) if no recovery fits."""
        try:
            return truncate_distillation(item, self.config.max_seq_len)
        except Refusal as error:
            self._count("sdpo", error)
            return None

    def _distill(self, trace: Experience) -> list[Distillation]:
        options = _read_generator(self.config.hint_generator)
        if options is None or not self.config.enable_sdpo:
            return []
        hints, counted = find_hints(trace.messages, trace.errors, **options)
        self.counts["sdpo: without_hint"] += counted.without_hint
        self.counts["sdpo: without_recovery"] += counted.without_recovery
        if not hints:
            return []
        try:
            return self._encoder.distill(trace, hints)
        except TokensError as error:
            self._count("sdpo", error)
            return []

    def _policy_arrays(self, sequences: list[TokenSequence], items: list[Distillation | None]) -> dict[str, Array]:
        has_hints = any(item is not None for item in items)
        # Without a hint the teacher gets the student's row, which is not in the loss.
        teachers = [sequence if item is None else item.teacher for sequence, item in zip(sequences, items, strict=True)]
        width = max(len(row) for row in (*sequences, *(teachers if has_hints else ())))
        pad, pad_id = partial(pad_rows, dtype="int64", length=width), self.config.pad_token_id
        batch = {
            "input_ids": pad([row.ids for row in sequences], pad_id),
            "attention_mask": make_attention_mask([len(row) for row in sequences], width),
            "response_mask": pad([row.mask for row in sequences], 0),
        }
        if not has_hints:
            return batch
        nothing = np.zeros(0, np.int64)
        pairs = [(nothing, nothing) if item is None else (item.student_index, item.teacher_index) for item in items]
        loss_mask = np.full((len(sequences), width), self.config.ignore_index, np.int64)
        for row, (_, index) in zip(loss_mask, pairs, strict=True):
            row[index] = 1
        student_index, teacher_index = (pad_rows([pair[side] for pair in pairs], -1, dtype="int64") for side in (0, 1))
        return batch | {
            "ctx_teacher_input_ids": pad([row.ids for row in teachers], pad_id),
            "ctx_teacher_attention_mask": make_attention_mask([len(row) for row in teachers], width),
            "sdpo_loss_mask": loss_mask,
            "student_response_idx": student_index,
            "teacher_response_idx": teacher_index,
            "student_response_valid": student_index >= 0,
            "teacher_response_valid": teacher_index >= 0,
        }

    def _rewards(self, examples: Sequence[TraceExample], trace_index: list[int]) -> Array:
        key = self.config.rlvr_reward_key
        rewards = np.zeros(len(trace_index), np.float32)
        for row, number in enumerate(trace_index):
            value: Any = examples[number].get(key)
            if value is None:
                self.counts["rewards: missing"] += 1
                continue
            try:
                rewards[row] = float(value)
            except (TypeError, ValueError):
                rewards[row] = np.nan
            if not np.isfinite(rewards[row]):
                raise RecordError(f"examples[{number}].{key}", value, "a finite number")
        return rewards

    def _preference_arrays(self, traces: Sequence[Experience], examples: Sequence[TraceExample]) -> dict[str, Array]:
        numbered_pairs = [
            (number, PairMessages(*sides, list(traces[number].tools) or None))
            for number, example in enumerate(examples)
            for place, pair in enumerate(example.get("dpo_pairs") or [])
            for sides in [read_pair(pair, f"examples[{number}].dpo_pairs[{place}]", list(traces[number].prompt))]
        ]
        encoded: list[EncodedPair] = []
        trace_index: list[int] = []
        results = self._encoder.encode_pairs((pair for _, pair in numbered_pairs), self.config.max_dpo_seq_len)
        for (number, _), item in zip(numbered_pairs, results, strict=True):
            if isinstance(item, TokensError):
                self._count("dpo", item)
                continue
            self.counts["dpo: truncated"] += bool(item.chosen.report.truncated)
            encoded.append(item)
            trace_index.append(number)
        if not encoded:
            return {}
        batch: dict[str, Array] = {}
        width = max(len(side) for pair in encoded for side in (pair.chosen, pair.rejected))
        pad = partial(pad_rows, dtype="int64", length=width)
        for name in ("chosen", "rejected"):
            sides = [getattr(pair, name) for pair in encoded]
            batch[f"dpo_{name}_input_ids"] = pad([side.ids for side in sides], self.config.pad_token_id)
            batch[f"dpo_{name}_attention_mask"] = make_attention_mask([len(side) for side in sides], width)
            batch[f"dpo_{name}_response_mask"] = pad([side.mask for side in sides], 0)
        return batch | {"dpo_trace_index": np.array(trace_index, np.int64)}

    def _count(self, channel: str, error: TokensError) -> None:
        self.counts[f"{channel}: {error.reason if isinstance(error, Refusal) else 'template_error'}"] += 1


def read_config(config: Any) -> CollatorConfig:
    """Convert a dict, or an object with the same attributes such as Composer's own; unknown names are refused."""
    if config is None or isinstance(config, CollatorConfig):
        return config or CollatorConfig()
    if not isinstance(config, Mapping):
        config = vars(config)
    names = [field.name for field in fields(CollatorConfig)]
    if unknown := sorted(set(config) - set(names)):
        raise ConfigError(f"CollatorConfig: unknown {', '.join(unknown)}; known: {', '.join(names)}")
    return CollatorConfig(**config)


def _turns_of(sequence: TokenSequence) -> tuple[int, ...]:
    turns: list[int] = np.unique(sequence.message_index[sequence.mask]).tolist()
    return tuple(turns)


def _choose_encoder(tokenizer: Any) -> _Encoder:
    try:
        ready = chat_tokenizer(tokenizer)
    except TokensError:
        if not callable(tokenizer):
            raise
        ready = None
    if ready is None or (callable(tokenizer) and not ready.has_template):
        stub = StubEncoder(tokenizer)
        return _Encoder(stub.encode_trace, stub.distill, stub.encode_pairs)

    def encode_all(pairs: Iterable[PairMessages], max_length: int) -> Iterator[EncodedPair | TokensError]:
        return encode_pairs(ready, pairs, EncodeOptions(max_length=max_length))

    return _Encoder(partial(encode_experience, ready), partial(distill_experience, ready), encode_all)


def _read_generator(generator: HintGenerator | Mapping[str, str] | str | None) -> Json | None:
    """Return the options of `find_hints` for a hint generator; None for no hints."""
    if generator is None:
        return None
    if generator == "templates" or isinstance(generator, Mapping):
        return {"templates": HINTS if isinstance(generator, str) else generator, "sources": ("kind",)}
    function: Any = load_function(generator, group=HINT_FUNCTIONS) if isinstance(generator, str) else generator
    if not callable(function):
        raise ConfigError(f"hint_generator: got {generator!r}, expected a function, templates by error kind or a name")

    def ask(_: Sequence[Message], site: ErrorSite) -> str | None:
        text = function(site.kind, dict(site.meta))
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"hint_generator: got {text!r}, expected the text of a hint, or None")
        return text

    return {"function": ask, "sources": ("function",)}
