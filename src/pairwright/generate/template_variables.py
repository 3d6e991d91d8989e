"""The variables of a chat template besides the conversation: `enable_thinking`, `date_string`, `documents` ...

The variables that a template reads are found in its syntax tree, without rendering. Only these may be set: a name that
the template does not read would have no effect, and a name of the renderer (`messages`, `chat_template`, `bos_token`)
would change the template's input. Both are errors that list the allowed variables.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes as nodes
import jinja2.parser
import jinja2.sandbox

KEY = "chat_template_kwargs"  # the same key in requests (vLLM's name), in `info` and in the configuration
# What the renderer itself passes, and the other parameters of transformers' apply_chat_template.
_OWN = ("messages", "conversation", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "self")
_CALL = ("chat_template", "continue_final_message", "tokenize", "tokenizer", "tokenizer_kwargs", "processor_kwargs")
_OUTPUT = ("padding", "truncation", "max_length", "return_tensors", "return_dict", "return_assistant_tokens_mask")
_RESERVED = frozenset((*_OWN, *_CALL, *_OUTPUT))


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}`, with which some templates mark the model's turns; its body is rendered unchanged."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


@lru_cache(maxsize=64)
def list_variables(template: str) -> tuple[str, ...]:
    """Return the names that a template reads before it sets them, except reserved names and special tokens.

    >>> list_variables("{% set x = 1 %}{{ bos_token + messages[x].content }}{% if enable_thinking %}<think>{% endif %}")
    ('enable_thinking',)
    """
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(extensions=[GenerationTag, jinja2.ext.loopcontrols])
    try:
        tree = environment.parse(template)
        undeclared = jinja2.meta.find_undeclared_variables(tree)
        # Jinja also lists a name that is set in one branch and read later: here it counts as set.
        contexts: dict[str, str] = {}
        for name in _iterate_names(tree, frozenset()):
            contexts.setdefault(name.name, name.ctx)
    except (jinja2.TemplateError, RecursionError, MemoryError):
        return ()  # rendering reports the error
    names = {name for name in undeclared if contexts.get(name) == "load" and name not in environment.globals}
    return tuple(sorted(name for name in names - _RESERVED if not name.endswith("_token")))


def explain_variables(variables: Mapping[str, Any], templates: Iterable[str]) -> str | None:
    """Explain what is wrong with variables for these templates; None if every one is read by some template.

    >>> explain_variables({"thinking": True}, ["{{ enable_thinking }}"])
    "the chat template reads no variable 'thinking'; it reads enable_thinking"
    """
    known = sorted({name for template in templates for name in list_variables(template)})
    for name in variables:
        if name not in known:
            can = f"it reads {', '.join(known)}" if known else "it reads none"
            return f"the chat template reads no variable {name!r}; {can}"
    return None


def _iterate_names(node: nodes.Node, local: frozenset[str]) -> Iterator[nodes.Name]:
    """Yield every name in evaluation order, except parameters of macros."""
    if isinstance(node, nodes.Name):
        if node.name not in local:
            yield node
        return
    children = list(node.iter_child_nodes())
    if isinstance(node, nodes.Assign | nodes.For):
        # The value is evaluated before its name is set.
        value = node.node if isinstance(node, nodes.Assign) else node.iter
        children.sort(key=lambda child: child is not value)
    elif isinstance(node, nodes.Macro | nodes.CallBlock):
        local = local | {argument.name for argument in node.args}
    for child in children:
        yield from _iterate_names(child, local)
