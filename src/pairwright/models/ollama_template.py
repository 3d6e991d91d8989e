"""Ollama's Modelfile: stops, and the chat template in Go's syntax, derived from renders of the model's template.

A chat template is split into the text before and after messages of each role. Go's template is written from these
parts, and the parts are checked against the model's template on longer chats: a template that is not a sequence of
messages (one that prints the date, or rewrites earlier turns) is refused.
"""

import itertools
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from pairwright.errors import PairwrightError
from pairwright.models.gguf_tables import ConvertError
from pairwright.tokens.tokenizer import ChatTokenizer

_MARKS = [f"MARK{number}X" for number in range(6)]  # content of messages, found again in the render
_ROLES = ("system", "user", "assistant")


class ChatParts(NamedTuple):
    """The template text around messages. `default` replaces a missing system message."""

    default: str
    before: dict[str, str]
    after: dict[str, str]
    generation: str

    def render(self, messages: Sequence[tuple[str, str]]) -> str:
        has_system = any(role == "system" for role, _ in messages)
        texts = [self.before[role] + content + self.after[role] for role, content in messages]
        return ("" if has_system else self.default) + "".join(texts) + self.generation


def modelfile(tokenizer: ChatTokenizer, model: str, where: str) -> tuple[str, list[str]]:
    """Return the text of a Modelfile for the GGUF file `model`, and notes on limits of Ollama's template."""
    parts = chat_parts(tokenizer, where)
    template = go_template(parts)
    if '"""' in template:
        raise ConvertError(f'{where}: the chat template writes """, which a Modelfile cannot hold')
    lines = [f"FROM ./{model}", f'TEMPLATE """{template}"""']
    lines += [f"PARAMETER stop {json.dumps(token, ensure_ascii=False)}" for token in sorted(tokenizer.eos)]
    notes = []
    if any("tools" in source for source in tokenizer.templates.values()):
        notes.append("the Modelfile has no tools: for tool calls use llama.cpp's server, which runs the template")
    padded = [("user", f" {_MARKS[0]} \n")]
    if parts.render(padded) != _render(tokenizer, padded):
        notes.append("the chat template strips blanks around messages, Ollama does not")
    return "\n".join(lines) + "\n", notes


def go_template(parts: ChatParts) -> str:
    """Write the template in Go's syntax over `.System` and `.Messages`; a last assistant message is continued."""
    texts = {role: (_literal(parts.before[role]), _literal(parts.after[role])) for role in parts.before}
    cases = "{{ else ".join(
        f'{{{{ if eq .Role "{role}" }}}}{before}{{{{ .Content }}}}{after}'.removeprefix("{{ " if number else "")
        for number, (role, (before, after)) in enumerate(texts.items())
    )
    default = f"{{{{ if not .System }}}}{_literal(parts.default)}{{{{ end }}}}" if parts.default else ""
    last = '{{ if and (ne .Role "assistant") (eq (len (slice $.Messages $i)) 1) }}'
    generation = last + _literal(parts.generation) + "{{ end }}"
    return f"{default}{{{{ range $i, $_ := .Messages }}}}{cases}{{{{ end }}}}{generation}{{{{ end }}}}"


def chat_parts(tokenizer: ChatTokenizer, where: str) -> ChatParts:
    """Split the default chat template into parts; raise ConvertError if it is not a sequence of messages."""
    if not tokenizer.has_template:
        raise ConvertError(f"{where}: has no chat template")
    if tokenizer.reads_clock:
        raise ConvertError(f"{where}: the chat template prints the date, which a Modelfile cannot")
    try:
        first, end = _split(tokenizer, ["user"])
        _, after_user = _split(tokenizer, ["user"], generation=False)
        _, between_users, _ = _split(tokenizer, ["user", "user"])
        _, to_answer, from_answer, _ = _split(tokenizer, ["user", "assistant", "user"])
        before_user = between_users.removeprefix(after_user)
        before = {"user": before_user, "assistant": to_answer.removeprefix(after_user)}
        after = {"user": after_user, "assistant": from_answer.removesuffix(before_user)}
        try:
            before_system, after_system, _ = _split(tokenizer, ["system", "user"])
            before["system"], after["system"] = before_system, after_system.removesuffix(before_user)
        except PairwrightError:  # a template without a system role
            pass
        parts = ChatParts(first.removesuffix(before_user), before, after, end.removeprefix(after_user))
        roles = [role for role in _ROLES if role in before]
        for number in range(2, 6):
            chat = [*(["system"] if "system" in roles and number % 2 else []), *("user", "assistant") * number, "user"]
            messages = list(zip(chat, itertools.cycle(_MARKS), strict=False))
            if parts.render(messages) != _render(tokenizer, messages):
                raise ConvertError("it is not a sequence of messages")
    except (PairwrightError, ValueError) as error:
        raise ConvertError(f"{where}: the chat template cannot be written for Ollama: {error}") from None
    return parts


def _split(tokenizer: ChatTokenizer, roles: list[str], *, generation: bool = True) -> list[str]:
    messages = list(zip(roles, _MARKS, strict=False))
    text = _render(tokenizer, messages, generation=generation)
    pieces = []
    for _, mark in messages:
        piece, found, text = text.partition(mark)
        if not found:
            raise ConvertError("it leaves out messages")
        pieces.append(piece)
    return [*pieces, text]


def _render(tokenizer: ChatTokenizer, messages: list[tuple[str, str]], *, generation: bool = True) -> str:
    chat: list[Any] = [{"role": role, "content": content} for role, content in messages]
    return tokenizer.renderer(None).text(chat, prompt=generation)


def _literal(text: str) -> str:
    return text.replace("{{", '{{ "{{" }}')
