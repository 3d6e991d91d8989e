"""A pytest plugin for TRL's tests of chat templates: what TRL does with a training template, ours does without one.

`get_training_chat_template` names our encoding; a tokenizer that is asked to apply it gives the text, the ids and the
mask of `encode_turns`. TRL's three questions about a template are answered by our own check. Nothing is caught where
TRL itself catches nothing.
"""

import functools
import sys
import types
from datetime import datetime
from typing import Any

import peer_models
import pytest
import transformers
import trl.chat_template_utils

from pairwright.tokens import (
    ChatTokenizer,
    EncodeOptions,
    Refusal,
    Sequence,
    TokensError,
    check_template,
    encode_chat,
    encode_turns,
)

OURS = "the encoding of pairwright"
# What their tests ask for: a turn without reasoning after a prompt that opens a thought.
CLOSE = EncodeOptions(missing_reasoning="close")
CLOSE_DROPPED = EncodeOptions(allow_dropped=True, missing_reasoning="close")
_CALL = {"type": "function", "function": {"name": "dummy", "arguments": {}}}
_CALLED = [
    {"role": "user", "content": "dummy"},
    {"role": "assistant", "content": "", "tool_calls": [_CALL]},
    {"role": "tool", "name": "dummy", "content": "dummy"},
    {"role": "assistant", "content": "dummy"},
]
_ANSWERED = [{"role": role, "content": "dummy"} for role in ("user", "assistant", "user")]


class Peer:
    """A tokenizer, or a processor around one (which returns batches), with an additional template of ours."""

    def __init__(self, tokenizer: Any, *, is_processor: bool) -> None:
        self.tokenizer = tokenizer
        self.own_template = self.chat_template = tokenizer.chat_template
        self.is_processor = is_processor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.tokenizer, name)

    def apply_chat_template(self, messages: Any, *, chat_template: str | None = None, **options: Any) -> Any:
        template = chat_template or self.chat_template
        if template != OURS:
            result = self.tokenizer.apply_chat_template(messages, chat_template=template, **options)
            return result
        names = ("tools", "add_generation_prompt", "tokenize", "return_assistant_tokens_mask", "return_dict")
        tools, is_prompt, tokenize, *_ = (options.pop(name, None) for name in names)
        ready = self.chat_tokenizer(**options)
        if is_prompt or not any(message["role"] == "assistant" for message in messages):
            return ready.renderer(tools).text(messages, tools, prompt=bool(is_prompt))
        sequence = encode_turns(ready, messages, tools, options=CLOSE_DROPPED)[-1]
        if tokenize is False:
            return _read_text(ready, sequence, messages, tools)
        ids, masks = sequence.ids.tolist(), [int(trained) for trained in sequence.mask]
        columns = {"input_ids": ids, "assistant_masks": masks}
        return {name: [values] for name, values in columns.items()} if self.is_processor else columns

    def chat_tokenizer(self, **variables: Any) -> ChatTokenizer:
        """Ours, of the template that the tokenizer has now. Built once: it remembers what it learnt of the template."""
        template = self.own_template if self.chat_template == OURS else self.chat_template
        variables = {**self._default_mode(template), **variables}
        return _build_tokenizer(self.tokenizer.name_or_path, template, tuple(sorted(variables.items())))

    def _default_mode(self, template: str | None) -> dict[str, bool]:
        """The value of the thinking switch that the template has by default: TRL's tests compare with that render,
        where ours would follow the record."""
        if "enable_thinking" not in (template or ""):
            return {}
        question = [{"role": "user", "content": "dummy"}]
        prompts = [
            self.tokenizer.apply_chat_template(
                question, chat_template=template, tokenize=False, add_generation_prompt=True, **mode
            )
            for mode in ({}, {"enable_thinking": True}, {"enable_thinking": False})
        ]
        return {"enable_thinking": prompts[0] == prompts[1]}


def _read_text(tokenizer: ChatTokenizer, sequence: Sequence, messages: Any, tools: Any) -> str:
    """The text of a sequence: that of the template where the ids are the same, since decoders lose white space."""
    try:
        text = tokenizer.renderer(tools).text(messages, tools)
    except TokensError:  # the template does not take the messages as they are (DeepSeek: arguments as an object)
        return tokenizer.decode(sequence.ids)
    is_same = tokenizer.encode(text)[0].tolist() == sequence.ids.tolist()
    return text if is_same else tokenizer.decode(sequence.ids)


@functools.cache
def _build_tokenizer(name: str, template: str | None, variables: tuple[tuple[str, Any], ...]) -> ChatTokenizer:
    tokenizer = peer_models.load_model(name)
    tokens = {name: token for name, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return ChatTokenizer(
        tokenizer.backend_tokenizer,
        template or {},
        special_tokens=tokens,
        stop_tokens=tokenizer.stop_tokens,
        variables=dict(variables),
        clock=datetime.now,  # as transformers has it, whose text is compared
    )


@functools.cache
def _supports_calls(tokenizer: ChatTokenizer) -> bool:
    """TRL asks for calls and results; our `supports_tools` asks for the schemas as well."""
    check = check_template(tokenizer)
    call = next(case for case in check.cases if case.name == "call")
    has_calls = call.num_sequences > 0 or call.reason == "no_reasoning"
    return has_calls and not any(quirk.name in ("no_calls", "no_results") for quirk in check.quirks)


def supports_tool_calling(peer: Peer) -> bool:
    return _supports_calls(peer.chat_tokenizer())


def is_prefix_preserving(peer: Peer) -> bool:
    """Of a template: one sequence holds every turn as it was when it was last. Of ours: each turn has a sequence."""
    if peer.chat_template == OURS:
        return all(
            trained_ids(sequence) for sequence in encode_turns(peer.chat_tokenizer(), _CALLED, options=CLOSE_DROPPED)
        )
    try:
        report = encode_chat(peer.chat_tokenizer(), _CALLED).report
    except Refusal:
        return False
    return not report.added_tokens


def is_stop_token_trained(peer: Peer, chat_template: str | None = None) -> bool:
    try:
        sequences = encode_turns(peer.chat_tokenizer(), _ANSWERED, options=CLOSE)
    except TokensError:
        return False
    added = set(peer.tokenizer.get_added_vocab().values())
    return all(trained_ids(sequence)[-1] in added for sequence in sequences)


def trained_ids(sequence: Sequence) -> list[int]:
    ids: list[int] = sequence.ids[sequence.mask].tolist()
    return ids


def _load(name: str, *, is_processor: bool) -> Peer:
    return Peer(peer_models.load_model(name), is_processor=is_processor)


trl.chat_template_utils.get_training_chat_template = lambda peer: OURS
trl.chat_template_utils.supports_tool_calling = supports_tool_calling
trl.chat_template_utils.is_chat_template_prefix_preserving = is_prefix_preserving
trl.chat_template_utils.is_chat_template_stop_token_trained = is_stop_token_trained
transformers.AutoTokenizer.from_pretrained = lambda name: _load(name, is_processor=False)
transformers.AutoProcessor.from_pretrained = lambda name: _load(name, is_processor=True)

# TRL's own testing utilities depend on the version of TRL: the tests that are run need three names of them.
utilities: Any = types.ModuleType("tests.testing_utils")
utilities.TrlTestCase = object
utilities.require_jmespath = lambda test: test
utilities.require_vision = pytest.mark.filterwarnings("default")  # a mark that asks for nothing
sys.modules["tests.testing_utils"] = utilities
