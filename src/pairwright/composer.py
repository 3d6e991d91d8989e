"""The Composer collator's interface over our encoding: frozen traces with pairs to one batch of flat tensors for GRPO,
SDPO and replayed DPO. Change the import; keep the training step.

    input_ids, attention_mask, response_mask       (B, T)   a row a trace; response_mask is 1 where the model wrote
    rewards                                        (B,)     where the traces have them
    ctx_teacher_input_ids                          (B, T)   the same rows with the hints in their context
    sdpo_loss_mask                                 (B, T)   on the teacher: 1 at hinted turns, else ignore_index
    student_response_idx, teacher_response_idx     (B, K)   where both have the same token; -1 after the last
    dpo_chosen_input_ids, dpo_rejected_input_ids   (P, L)   a row a pair, one width for both sides
    dpo_chosen_response_mask, dpo_rejected_...     (P, L)   1 at the answers

Channels without rows have no keys. Beside them stand `ctx_teacher_attention_mask`, `dpo_*_attention_mask`, and which
example each row is of: `trace_index` (B,), `dpo_trace_index` (P,). Ids and masks are those of `tokens/`: whole turns
with calls, reasoning and stop tokens, exact on any template; what cannot be encoded is left out and counted.
"""

import inspect
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, TypedDict

import numpy as np

from pairwright.collect.user_code import load_function
from pairwright.errors import ConfigError, RecordError
from pairwright.records.arrays import Array, to_torch
from pairwright.records.experience import EID, Experience, Kind
from pairwright.records.messages import ErrorSite, Json, Message, ToolCall
from pairwright.tokens.batch.collate import IGNORE_INDEX, make_attention_mask, pad_rows
from pairwright.tokens.encode_pairs import EncodedPair, PairMessages, encode_pairs
from pairwright.tokens.hints import HINT_FUNCTIONS, HINTS, Hint, find_hints
from pairwright.tokens.options import EncodeOptions
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Sequence as TokenSequence
from pairwright.tokens.sequence import truncate
from pairwright.tokens.teacher_sequences import Distillation, distill_experience, truncate_distillation
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

# Where the messages before the answers of a pair may stand.
_PROMPTS = ("prompt", "messages", "state_messages", "context")


class TraceTurn(TypedDict, total=False):
    """A turn of a trace. `tool_error` stands at the turn that follows a failure, or at the result that shows it."""

    role: str
    content: str
    tool_call: Json | None
    tool_error: str | None
    error_meta: Json


class TraceExample(TypedDict, total=False):
    """A trace with its reward, under `CollatorConfig.reward_key`, and the pairs that are replayed along with it, each
    {prompt: text or messages, chosen: text or messages, rejected: ...}; without a prompt, the trace's own."""

    trace_id: str
    turns: list[TraceTurn]
    tools: list[Json]
    reward: float
    dpo_pairs: list[Json]


@dataclass
class CollatorConfig:
    """Options of the collator; a config of the original with these names serves as well.

    hint_generator   None: no SDPO. A function of (error kind, error_meta) or of the turn; "templates": ours by error
                     kind; a dict of templates by error kind; or the name of a function, as module:function
    """

    max_seq_length: int = 4096
    max_dpo_length: int = 2048
    ignore_index: int = IGNORE_INDEX
    reward_key: str = "reward"
    hint_generator: Callable[..., str | None] | Mapping[str, str] | str | None = None
    enable_grpo: bool = True
    enable_sdpo: bool = True
    enable_dpo: bool = True


class ComposerDataCollator:
    """Callable on a list of trace examples; `counts` says what was left out of which channel, and why."""

    def __init__(self, tokenizer: Any, config: Any = None) -> None:
        """`tokenizer` is one of transformers' or ours; the id of its pad token fills the rows."""
        self.tokenizer: ChatTokenizer = chat_tokenizer(tokenizer)
        self.config = read_config(config)
        pad = getattr(tokenizer, "pad_token_id", None)
        # The attention mask comes from lengths: a pad id that is text elsewhere stays text.
        self.pad_id = pad if isinstance(pad, int) else 0
        self.counts: Counter[str] = Counter()
        self._hint = _read_generator(self.config.hint_generator)

    def __call__(self, examples: Sequence[TraceExample]) -> Json:
        config = self.config
        traces = [read_trace(example) for example in examples]
        rows: list[tuple[TokenSequence, Distillation | None]] = []
        trace_index: list[int] = []
        for number, (trace, example) in enumerate(zip(traces, examples, strict=True)):
            encoded = self._encode_trace(trace, example) if config.enable_grpo or config.enable_sdpo else []
            rows += encoded
            trace_index += [number] * len(encoded)
        batch: dict[str, Array] = {}
        if rows:
            batch |= self._policy_arrays([row for row, _ in rows], [item for _, item in rows])
            batch["trace_index"] = np.array(trace_index, np.int64)
            batch |= self._rewards(examples, trace_index)
        if config.enable_dpo:
            batch |= self._preference_arrays(traces, examples)
        self.counts += Counter()  # without the reasons that never occurred
        if not batch:
            reasons = ", ".join(f"{reason} {num}" for reason, num in sorted(self.counts.items())) or "no traces"
            raise RecordError("examples", len(examples), f"at least one that can be encoded ({reasons})")
        return {name: to_torch(array) for name, array in batch.items()}

    # Traces: a row each, and beside it the same row with hints.

    def _encode_trace(
        self, trace: Experience, example: TraceExample
    ) -> list[tuple[TokenSequence, Distillation | None]]:
        try:
            sequences = encode_experience(self.tokenizer, trace)
        except TokensError as error:
            self._count("grpo", error)
            return []
        # By the turns that are trained: a template that rewrites history gives several sequences.
        hinted = {_turns_of(item.student): item for item in self._distill(trace, example)}
        rows: list[tuple[TokenSequence, Distillation | None]] = []
        for sequence in sequences:
            item = hinted.pop(_turns_of(sequence), None)
            try:
                if item is not None:
                    item = truncate_distillation(item, self.config.max_seq_length)
                    rows.append((item.student, item))
                    continue
            except Refusal as error:
                self._count("sdpo", error)
            try:
                rows.append((truncate(sequence, self.config.max_seq_length), None))
            except Refusal as error:
                self._count("grpo", error)
        self.counts["sdpo: context_differs"] += len(hinted)
        return rows

    def _distill(self, trace: Experience, example: TraceExample) -> list[Distillation]:
        if self._hint is None or not self.config.enable_sdpo:
            return []
        hints = [hint for hint in self._find_hints(trace, example) if hint.target >= len(trace.prompt)]
        if not hints:
            return []
        try:
            return distill_experience(self.tokenizer, trace, hints)
        except TokensError as error:
            self._count("sdpo", error)
            return []

    def _find_hints(self, trace: Experience, example: TraceExample) -> list[Hint]:
        """The hints of a trace, one a recovery turn. What the conversation says already is no hint."""
        assert self._hint is not None
        options = self._hint
        if callable(options):
            options = {"function": _ask_with_turns(options, example["turns"]), "sources": ("function",)}
        hints, counted = find_hints(trace.messages, trace.errors, **options)
        self.counts["sdpo: without_hint"] += counted.without_hint
        self.counts["sdpo: without_recovery"] += counted.without_recovery
        return hints

    def _policy_arrays(self, sequences: list[TokenSequence], items: list[Distillation | None]) -> dict[str, Array]:
        has_hints = any(item is not None for item in items)
        # Without a hint the teacher reads what the student reads, and nothing of it is in the loss.
        teachers = [sequence if item is None else item.teacher for sequence, item in zip(sequences, items, strict=True)]
        width = max(len(row) for row in (*sequences, *(teachers if has_hints else ())))
        lengths = [len(row) for row in sequences]
        batch = {
            "input_ids": pad_rows([row.ids for row in sequences], self.pad_id, dtype="int64", length=width),
            "attention_mask": make_attention_mask(lengths, width),
            "response_mask": pad_rows([row.mask for row in sequences], 0, dtype="int64", length=width),
        }
        if not has_hints:
            return batch
        nothing = np.zeros(0, np.int64)
        pairs = [(nothing, nothing) if item is None else (item.student_index, item.teacher_index) for item in items]
        loss_mask = np.full((len(sequences), width), self.config.ignore_index, np.int64)
        for row, (_, index) in zip(loss_mask, pairs, strict=True):
            row[index] = 1
        return batch | {
            "ctx_teacher_input_ids": pad_rows([row.ids for row in teachers], self.pad_id, dtype="int64", length=width),
            "ctx_teacher_attention_mask": make_attention_mask([len(row) for row in teachers], width),
            "sdpo_loss_mask": loss_mask,
            "student_response_idx": pad_rows([student for student, _ in pairs], -1, dtype="int64"),
            "teacher_response_idx": pad_rows([teacher for _, teacher in pairs], -1, dtype="int64"),
        }

    def _rewards(self, examples: Sequence[TraceExample], trace_index: list[int]) -> dict[str, Array]:
        rewards = [examples[number].get(self.config.reward_key) for number in trace_index]
        if all(reward is None for reward in rewards) or not self.config.enable_grpo:
            return {}
        for number, reward in zip(trace_index, rewards, strict=True):
            if isinstance(reward, bool) or not isinstance(reward, int | float) or not np.isfinite(reward):
                expected = "a finite number: other traces of the batch have one"
                raise RecordError(f"examples[{number}].{self.config.reward_key}", reward, expected)
        return {"rewards": np.array(rewards, np.float32)}

    # Pairs.

    def _preference_arrays(self, traces: Sequence[Experience], examples: Sequence[TraceExample]) -> dict[str, Array]:
        numbered_pairs = [
            (number, read_pair(pair, traces[number]))
            for number, example in enumerate(examples)
            for pair in example.get("dpo_pairs") or []
        ]
        encoded: list[EncodedPair] = []
        trace_index: list[int] = []
        options = EncodeOptions(max_length=self.config.max_dpo_length)
        results = encode_pairs(self.tokenizer, (pair for _, pair in numbered_pairs), options)
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
        for name in ("chosen", "rejected"):
            sides = [getattr(pair, name) for pair in encoded]
            ids = pad_rows([side.ids for side in sides], self.pad_id, dtype="int64", length=width)
            batch[f"dpo_{name}_input_ids"] = ids
            batch[f"dpo_{name}_attention_mask"] = make_attention_mask([len(side) for side in sides], width)
            batch[f"dpo_{name}_response_mask"] = pad_rows([s.mask for s in sides], 0, dtype="int64", length=width)
        return batch | {"dpo_trace_index": np.array(trace_index, np.int64)}

    def _count(self, channel: str, error: TokensError) -> None:
        self.counts[f"{channel}: {error.reason if isinstance(error, Refusal) else 'template_error'}"] += 1


def read_config(config: Any) -> CollatorConfig:
    """Ours, a dict, or a dataclass of the original's with the same names; other names are refused."""
    if config is None or isinstance(config, CollatorConfig):
        return config or CollatorConfig()
    if not isinstance(config, Mapping):
        config = asdict(config) if is_dataclass(config) and not isinstance(config, type) else vars(config)
    names = [field.name for field in fields(CollatorConfig)]
    if unknown := sorted(set(config) - set(names)):
        raise ConfigError(f"CollatorConfig: unknown {', '.join(unknown)}; known: {', '.join(names)}")
    return CollatorConfig(**config)


def read_trace(example: TraceExample) -> Experience:
    """A trace as an experience: the prompt ends before the first assistant turn; errors are the marked failures."""
    turns = example.get("turns")
    if not turns:
        raise RecordError("example.turns", turns, "at least one turn")
    messages, errors = [], []
    last_call: ToolCall | None = None
    for number, turn in enumerate(turns):
        calls: tuple[ToolCall, ...] = ()
        if call := turn.get("tool_call"):
            last_call = _tool_call(call, number)
            calls = (last_call,)
        role = turn.get("role")
        # A result answers the call before it.
        answered = last_call if role == "tool" else None
        result: Json = {} if answered is None else {"tool_call_id": answered.id, "name": answered.name}
        messages.append(Message(str(role), turn.get("content"), tool_calls=calls, **result))
        if kind := turn.get("tool_error"):
            # At an assistant's turn it says that this turn answers a failure: the message before shows it.
            index = number - 1 if role == "assistant" and number else number
            meta = turn.get("error_meta") or {}
            available = tuple(map(str, meta.get("available_tools") or ()))
            errors.append(
                ErrorSite(
                    index=index,
                    kind=str(kind),
                    text=messages[index].text,
                    tool=None if last_call is None else last_call.name,
                    available_tools=available,
                    meta=meta,
                )
            )
    start = next((number for number, message in enumerate(messages) if message.role == "assistant"), len(messages))
    return Experience(
        eid=EID(task=str(example.get("trace_id", ""))),
        kind=Kind.MULTI_TURN,
        prompt=tuple(messages[:start]),
        completion=tuple(messages[start:]),
        tools=tuple(example.get("tools") or ()),
        errors=tuple(errors),
    )


def read_pair(pair: Json, trace: Experience) -> PairMessages:
    """A pair of texts or messages; without a prompt of its own it answers the prompt of the trace."""
    prompt = next((pair[key] for key in _PROMPTS if pair.get(key)), None)
    messages = trace.prompt if prompt is None else _messages(prompt, "user")
    chosen, rejected = (_messages(pair.get(name), "assistant", f"dpo_pairs.{name}") for name in ("chosen", "rejected"))
    return PairMessages(messages, chosen, rejected, list(trace.tools) or None)


def _messages(value: Any, role: str, where: str = "dpo_pairs.prompt") -> tuple[Message, ...]:
    if isinstance(value, str):
        return (Message(role, value),)
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise RecordError(where, value, "text, or a list of messages")
    return Experience(kind=Kind.MULTI_TURN, prompt=tuple(value)).prompt


def _tool_call(call: Json, number: int) -> ToolCall:
    # As OpenAI writes it, or flat.
    function = call["function"] if isinstance(call.get("function"), dict) else call
    name, arguments = function.get("name"), function.get("arguments", {})
    if not isinstance(name, str):
        raise RecordError(f"turns[{number}].tool_call.name", name, "the name of a tool")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(name, text, str(call.get("id") or f"call_{number}"))


def _turns_of(sequence: TokenSequence) -> tuple[int, ...]:
    turns: list[int] = np.unique(sequence.message_index[sequence.mask]).tolist()
    return tuple(turns)


def _read_generator(
    generator: Callable[..., str | None] | Mapping[str, str] | str | None,
) -> Callable[..., str | None] | Json | None:
    """The function that the configuration names, or the options of `find_hints` for templates; None for no hints."""
    if generator == "templates":
        return {"templates": HINTS, "sources": ("kind",)}
    if isinstance(generator, Mapping):
        return {"templates": dict(generator), "sources": ("kind",)}
    if isinstance(generator, str):
        return load_function(generator, group=HINT_FUNCTIONS)
    if generator is not None and not callable(generator):
        raise ConfigError(f"hint_generator: got {generator!r}, expected a function, templates by error kind or a name")
    return generator


def _ask_with_turns(
    generator: Callable[..., str | None], turns: Sequence[TraceTurn]
) -> Callable[[Sequence[Message], ErrorSite], str | None]:
    """A generator of hints as `find_hints` calls one; it gets the marked turn, or kind and meta of the error."""
    takes_turn = len(inspect.signature(generator).parameters) == 1

    def ask(_: Sequence[Message], site: ErrorSite) -> str | None:
        at = turns[site.index]
        # The mark stands at the message that shows the failure, or at the turn after it.
        marked = at if at.get("tool_error") else turns[site.index + 1]
        text = generator(marked) if takes_turn else generator(site.kind, dict(site.meta))
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"hint_generator: got {text!r}, expected the text of a hint, or None")
        return text

    return ask
