"""What a chat template reads, from its syntax tree: the variables that set its mode, and the words it tests text for."""

import functools
import re
from collections.abc import Iterator

import jinja2
from jinja2 import meta, nodes

from pairwright.tokens.template.environment import ChatEnvironment
from pairwright.tokens.template.limits import Limits

# What every render gets, and what belongs to the environment: no setting of the template.
_GIVEN = frozenset(
    ("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now", "continue_final_message")
)  # fmt: skip
_SEARCHES = frozenset(
    ("startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit", "partition", "rpartition")
)  # fmt: skip
# Keys of a message that hold what somebody wrote.
_TEXT_KEYS = frozenset(("content", "text", "reasoning_content", "reasoning", "thinking"))
_WORD = re.compile(r"[\w\s'’.,!?-]{2,60}")


@functools.lru_cache(maxsize=64)
def find_variables(source: str) -> tuple[str, ...]:
    """The variables that a template reads besides the conversation: `enable_thinking`, `reasoning_effort`, ...

    >>> find_variables("{% if enable_thinking %}{{ bos_token }}{% endif %}{{ messages[0].content }}")
    ('enable_thinking',)
    """
    tree = _parse(source)
    if tree is None:
        return ()
    # A name that is set somewhere is the template's own, unless it asks whether the caller has set it.
    asked = {test.node.name for test in tree.find_all(nodes.Test) if _asks(test) and isinstance(test.node, nodes.Name)}
    asked |= {
        item.node.name
        for item in tree.find_all(nodes.Filter)
        if item.name in ("default", "d") and isinstance(item.node, nodes.Name)
    }
    stored = {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}
    names = meta.find_undeclared_variables(tree) - _GIVEN - (stored - asked)
    return tuple(sorted(name for name in names if not name.endswith("_token")))


def _asks(test: nodes.Test) -> bool:
    return test.name in ("defined", "undefined", "none")


@functools.lru_cache(maxsize=64)
def find_tested_words(source: str) -> re.Pattern[str] | None:
    """Matches plain words that the template looks for in the text of messages ('quickly' in message.content).

    Words with a bracket or a bar are constants of skeletons (spans/skeletons.py); roles and keys are no text.

    >>> find_tested_words("{% if 'quickly' in messages[-1].content and 'tool_calls' in m and m.role == 'user' %}{% endif %}")
    re.compile('quickly', re.IGNORECASE)
    """
    tree = _parse(source)
    if tree is None:
        return None
    mappings = _find_mappings(tree)
    words = {word for word in _find_words(tree, mappings) if _WORD.fullmatch(word) and word.strip()} - _TEXT_KEYS
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE) if ordered else None


def _parse(source: str) -> nodes.Template | None:
    try:
        return ChatEnvironment(clock=_no_clock, limits=Limits()).parse(source)
    except (jinja2.exceptions.TemplateError, RecursionError):
        return None


def _no_clock() -> None:  # the tree is read, never run
    raise NotImplementedError


def _find_mappings(tree: nodes.Template) -> frozenset[str]:
    """Names that are used as mappings somewhere: `x.role`, `x['content']`."""
    names = set()
    for node in tree.find_all((nodes.Getattr, nodes.Getitem)):
        is_key = isinstance(node, nodes.Getattr) or isinstance(getattr(node.arg, "value", None), str)
        is_method = isinstance(node, nodes.Getattr) and node.attr in dir(str)
        if is_key and not is_method and isinstance(node.node, nodes.Name):
            names.add(node.node.name)
    return frozenset(names)


def _find_words(tree: nodes.Template, mappings: frozenset[str]) -> Iterator[str]:
    for compare in tree.find_all(nodes.Compare):
        for operand in compare.ops:
            left, right = compare.expr, operand.expr
            if operand.op in ("in", "notin") and _is_text(right, mappings):
                yield from _strings(left)
            elif operand.op in ("eq", "ne") and (_is_content(left) or _is_content(right)):
                yield from (*_strings(left), *_strings(right))
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Getattr) and call.node.attr in _SEARCHES:
            yield from (word for argument in call.args for word in _strings(argument))


def _strings(node: nodes.Node) -> Iterator[str]:
    constants = [node] if isinstance(node, nodes.Const) else node.find_all(nodes.Const)
    for constant in constants:
        if isinstance(constant.value, str):
            yield constant.value


def _is_text(node: nodes.Node, mappings: frozenset[str]) -> bool:
    """May this be the text of a message, and not a message or a list of names?"""
    if isinstance(node, nodes.Name):
        return node.name not in mappings
    if isinstance(node, nodes.Getattr | nodes.Getitem):
        return _is_content(node)
    return isinstance(node, nodes.Filter | nodes.Call | nodes.Concat | nodes.Add | nodes.CondExpr | nodes.Or)


def _is_content(node: nodes.Node) -> bool:
    if isinstance(node, nodes.Filter):
        return node.node is not None and _is_content(node.node)
    if isinstance(node, nodes.Call):
        return isinstance(node.node, nodes.Getattr) and _is_content(node.node.node)
    key = node.attr if isinstance(node, nodes.Getattr) else None
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const):
        key = node.arg.value
    return key in _TEXT_KEYS
