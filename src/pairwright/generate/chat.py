"""Messages to the token ids of a prompt, through the model's own chat template in transformers' sandbox.

Templates disagree on the arguments of calls (objects or text) and on empty content beside calls; the forms are tried
in the order that inference servers use, and the first that the template takes is kept.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from pairwright.generate.requests import GenerateError, Ids
from pairwright.messages import Json, Message, to_template_chat

_MAX_KNOWN = 100_000


class ChatEncoder:
    """Prompts of one tokenizer. Equal prompts are rendered once: agents ask the same again and again."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._form: tuple[str, str | None] | None = None
        self._known: dict[bytes, Ids] = {}

    def ids(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> Ids:
        """The ids of a conversation with the generation prompt; `variables` go to the template (enable_thinking)."""
        key = msgspec.json.encode((messages, tools, variables))
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            found = self._known[key] = self.text_ids(self.text(messages, tools, variables=variables))
        return found

    def text_ids(self, text: str) -> Ids:
        """The ids of text as it stands: control tokens in it count, none are added."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # a tokenizer in Python
            return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
        if backend.truncation is not None or backend.padding is not None:  # somebody else's call switched them on
            backend.no_truncation()
            backend.no_padding()
        return np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def text(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> str:
        if not self._tokenizer.chat_template:
            raise GenerateError("the model has no chat template: ask for a completion of text instead of a chat")
        if not any(message.tool_calls for message in messages):
            return self._render(messages, tools, "object", "", variables)
        forms = [self._form] if self._form else list(itertools.product(("object", "text"), (None, "")))
        for number, (arguments, empty) in enumerate(forms):
            try:
                text = self._render(messages, tools, arguments, empty, variables)
            except GenerateError:
                if number == len(forms) - 1:
                    raise
                continue
            self._form = (arguments, empty)
            return text
        raise AssertionError("the last form returned or raised")

    def _render(
        self, messages: Sequence[Message], tools: Sequence[Json], arguments: str, empty: str | None, more: Json | None
    ) -> str:
        chat = to_template_chat(messages, arguments=arguments, empty=empty)
        try:
            text: str = self._tokenizer.apply_chat_template(
                chat, tools=list(tools) or None, tokenize=False, add_generation_prompt=True, **(more or {})
            )
        except Exception as error:  # a template is a program: whatever it raises means that it does not take this
            raise GenerateError(
                f"the chat template refuses this conversation: {type(error).__name__}: {error}"
            ) from None
        return text
