"""Errors of encoding, which name the turn and the reason; and resource limits of templates.

TokensError            any error of this package that the user can act on
├── TemplateError      the template cannot be compiled, raised an error, or broke its limits
│   └── TemplateLimit  it ran too long or allocated too much
└── Refusal            no exact mask exists for this conversation: reason, message index, what to do
"""

import time
from functools import partial
from typing import Any, Literal

from pairwright.errors import PairwrightError

Reason = Literal[
    "template_error",  # the template raised, or the prompt before the turn cannot be rendered
    "context_differs",  # one sequence was requested, and the law needs several
    "two_forms",  # renders show a turn in different forms; it is unknown which one the model samples
    "no_stop",  # no stop token follows the turn
    "no_reasoning",  # the prompt opens a thought, and the turn has no reasoning
    "foreign_text",  # a token of the turn also holds text of another message
    "dropped",  # the template does not render what the model generated in a trained turn
    "multimodal",  # there are images, audio, video or files, and no channel trains on them
    "multi_modal_inputs",  # such inputs were recorded beside the tokens: training stops
    "control_tokens",  # a message contains control tokens, and the option is to refuse them
    "text_differs",  # the render with provenance differs from the plain render
    "recorded_ids",  # recorded token ids do not fit the conversation
    "only_ids",  # only token ids were recorded, and the option is to ignore them
    "too_long",  # longer than max_length, and cannot be cut
    "not_selected",  # there are generated turns, but train_turns selects none of them
    "no_run",  # train_turns needs the run of a pair's side, but the run has other messages
    "not_generated",  # there is nothing to train on
    "prompts_differ",  # the two sides of a pair do not continue one prompt
    "text_in_chat",  # raw text instead of a chat, or mixed with chat messages
    "template_variables",  # the template does not read a variable that the record was sampled with
    "no_template",  # the tokenizer has no chat template, and the conversation is a chat
]

WAY_OUT = {
    "context_differs": "use encode_turns: one sequence for each group of turns, in the context that inference has",
    "two_forms": "declare which one the model samples (`prefer` of a row in tokens.grammar, --grammar FILE), or set "
    "the mode that it was sampled in: tokens.chat_template_kwargs",
    "no_stop": "name the stop in generation_config.json or with stop_tokens; or train without one: "
    "tokens.require_stop=false",
    "no_reasoning": "set the mode without thinking in tokens.chat_template_kwargs, or close the thought, untrained: "
    "tokens.missing_reasoning=close, --missing-reasoning close",
    "template_error": "use a template that takes it: tokens.chat_template, --chat-template FILE",
    "text_differs": "use a template that does not mark text as safe HTML",
    "text_in_chat": "text is trained as it is, without a template: make all messages text, or none",
    "no_template": "name a template with --chat-template FILE (tokens.chat_template), or train raw text (role 'text')",
    "dropped": "use a template that renders it, declare how a thought is written (a row in tokens.grammar, --grammar "
    "FILE), or train without it: tokens.allow_dropped, --allow-dropped",
    "multimodal": "to train on the tokens alone: tokens.allow_images, --allow-images",
    "multi_modal_inputs": "to train on the tokens alone: tokens.allow_images, --allow-images",
    "template_variables": "to leave out those of records: tokens.record_kwargs=ignore, --record-kwargs ignore",
    "control_tokens": "pass control_tokens='escape' to encode them as text",
    "only_ids": "train on the recorded ids: tokens.recorded: use, and with pairs their experience table",
    "recorded_ids": "set tokens.recorded: ignore to encode the messages instead",
}


class TokensError(PairwrightError, ValueError):
    pass


class TemplateError(TokensError):
    pass


class TemplateLimit(TemplateError):
    pass


class Refusal(TokensError):
    """No exact mask exists; `message` is the index of the turn, or None for the whole conversation."""

    def __init__(self, reason: Reason, detail: str, *, message: int | None = None) -> None:
        self.reason = reason
        self.message = message
        self.detail = detail
        where = "" if message is None else f"message {message}: "
        way_out = f" ({WAY_OUT[reason]})" if reason in WAY_OUT else ""
        super().__init__(f"{where}{reason}: {detail}{way_out}")

    def __reduce__(self) -> tuple[object, ...]:  # keyword arguments survive a process boundary
        return partial(Refusal, self.reason, self.detail, message=self.message), ()


SECONDS = 20.0  # run time of one render
MAX_SIZE = 16_000_000  # characters or items of one value
MAX_SPENT = 400_000_000  # characters and items of all values of a render
_CHECK_EVERY = 64  # ticks between two looks at the clock
_MAX_BITS = 4096  # bits of an integer


class Limits:
    """Resource usage of one render: time, characters, list items. Exceeding a limit raises TemplateLimit.

    Templates are untrusted: the sandbox protects Python's internals, these limits bound run time and memory. `tick` is
    called in every loop iteration and call, `charge` for every text or list that is built. Neither signals nor threads
    are needed: each step is short, since no value can grow past `max_size`. Limits grow with a large conversation.
    """

    __slots__ = ("_deadline", "_input", "_ticks", "max_size", "seconds", "spent")

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.begin(None)

    def begin(self, conversation: Any) -> None:
        """Start a render. The size of the conversation is computed only when a limit is reached."""
        self._input = conversation
        self.max_size = MAX_SIZE
        self.spent = 0
        self._ticks = 0
        self._deadline = time.monotonic() + self.seconds

    def tick(self) -> None:
        self._ticks += 1
        if self._ticks % _CHECK_EVERY == 0:
            self.check_time()

    def check_time(self) -> None:
        if time.monotonic() > self._deadline and not self._extend():
            raise TemplateLimit(f"the chat template ran for more than {self.seconds:g} seconds")

    def charge(self, size: int) -> None:
        """Account for a value of `size` characters or items."""
        self.spent += size
        if size > self.max_size or self.spent > MAX_SPENT:
            while self._extend():
                if size <= self.max_size and self.spent <= MAX_SPENT:
                    return
            raise TemplateLimit(f"the chat template built {max(size, self.spent):,} characters or items")

    def _extend(self) -> bool:
        """Raise the limits in proportion to the conversation, once; return whether it is large enough for that."""
        if self._input is None:
            return False
        size, self._input = size_of(self._input), None
        self.max_size += 16 * size
        self.spent -= 64 * size
        self._deadline += size / 1_000_000
        return size > 1_000_000

    def charge_nested(self, value: Any, depth: int = 0) -> None:
        """Account for converting a container to text; shared parts count each time they occur."""
        if isinstance(value, str):
            self.charge(len(value))
        elif isinstance(value, dict | list | tuple | set | frozenset):
            if depth > 100:
                raise TemplateLimit("the chat template nests values more than 100 deep")
            self.tick()
            self.charge(32 + 4 * len(value))
            if isinstance(value, dict):
                for key, item in value.items():
                    self.charge_nested(key, depth + 1)
                    self.charge_nested(item, depth + 1)
            else:
                for item in value:
                    self.charge_nested(item, depth + 1)
        elif isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise TemplateLimit("the chat template computed a number of more than 4096 bits")

    def product(self, left: Any, right: Any) -> None:
        """Account for `left * right` before it is computed."""
        if isinstance(left, int) and isinstance(right, int):
            if left.bit_length() + right.bit_length() > _MAX_BITS:
                raise TemplateLimit("the chat template computed a number of more than 4096 bits")
            return
        for items, times in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple | bytes) and isinstance(times, int):
                self.charge(len(items) * max(times, 0))

    def power(self, left: Any, right: Any) -> None:
        """Check `left ** right` before it is computed."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _MAX_BITS:
            raise TemplateLimit("the chat template computed a number of more than 4096 bits")


def size_of(value: Any) -> int:
    """Count the characters of text in a value."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(size_of, value.values()))
    return sum(map(size_of, value)) if isinstance(value, list) else 8
