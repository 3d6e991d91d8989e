"""Encode messages as token ids with the model's chat template, in the sandbox of transformers."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pairwright.generate.requests import GenerateError, Ids
from pairwright.generate.template_variables import KEY, explain_variables
from pairwright.records.messages import Json, Message, to_template_chat
from pairwright.records.tool_texts import to_chat_tool, write_tools_as_text

Render = Callable[[list[Json], list[Json] | None, Json | None], str]  # chat, tools, variables of the template


class ChatEncoder:
    """Encodes prompts with one tokenizer."""

    def __init__(self, tokenizer: Any, *, tools_as_text: bool = False) -> None:
        self._tokenizer = tokenizer
        self._tools_as_text = tools_as_text
        self._form: tuple[str, str | None] | None = None  # form of calls that the template accepts, once known
        self.render: Render = self._apply_template

    def ids(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> Ids:
        """Encode a conversation with the generation prompt; `variables` of the template: enable_thinking, ..."""
        return self.text_ids(self.text(messages, tools, variables=variables))

    def text_ids(self, text: str) -> Ids:
        """Encode text without a template: control tokens in the text are parsed, no tokens are added."""
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:  # a slow tokenizer, in Python
            return np.array(self._tokenizer.encode(text, add_special_tokens=False), dtype=np.int32)
        if backend.truncation is not None or backend.padding is not None:  # state left by another call
            backend.no_truncation()
            backend.no_padding()
        return np.array(backend.encode(text, add_special_tokens=False).ids, dtype=np.int32)

    def text(self, messages: Sequence[Message], tools: Sequence[Json] = (), *, variables: Json | None = None) -> str:
        if not self._tokenizer.chat_template:
            raise GenerateError("the model has no chat template: request a text completion instead of a chat")
        if variables:  # checked before they become keyword arguments of apply_chat_template
            template = self._tokenizer.chat_template
            problem = explain_variables(variables, template.values() if isinstance(template, dict) else [template])
            if problem is not None:
                raise GenerateError(f"{KEY}: {problem}")
        if self._tools_as_text:
            messages, tools = write_tools_as_text(messages, tools).messages, ()
        if not any(message.tool_calls for message in messages):
            return self._render(messages, tools, "object", "", variables)
        # templates differ in how they take arguments and empty content: try all forms, then reuse the first that works
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
        return self.render(chat, [to_chat_tool(tool) for tool in tools] or None, more)

    def _apply_template(self, chat: list[Json], tools: list[Json] | None, variables: Json | None) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                chat, tools=tools, tokenize=False, add_generation_prompt=True, **(variables or {})
            )
        except Exception as error:  # a template may raise anything to reject a conversation
            raise GenerateError(
                f"the chat template refuses this conversation: {type(error).__name__}: {error}"
            ) from None
        return text
