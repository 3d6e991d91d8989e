"""Find the plain words that a chat template tests text for, from its syntax tree."""

import functools
import re
from collections.abc import Iterator

import jinja2
from jinja2 import nodes

from pairwright.tokens.template.environment import ChatEnvironment

_SEARCHES = frozenset({"startswith", "endswith", "find", "rfind", "index", "rindex", "count"}) | {
    "split",
    "rsplit",
    "partition",
    "rpartition",
}
_TEXT_KEYS = frozenset(("content", "text", "reasoning_content", "reasoning", "thinking"))
_WORD = re.compile(r"[\w\s'’.,!?-]{2,60}")


@functools.lru_cache(maxsize=64)
def find_tested_words(source: str) -> re.Pattern[str] | None:
    """Return a pattern for plain words that the template searches for in messages ('quickly' in message.content).

    Words with a bracket or bar are constants of skeletons instead (spans/skeletons.py); roles and keys are ignored.

    >>> find_tested_words("{% if 'quickly' in m.content and 'tool_calls' in m and m.role == 'user' %}{% endif %}")
    re.compile('quickly', re.IGNORECASE)
    """
    try:
        tree = ChatEnvironment().parse(source)
    except (jinja2.exceptions.TemplateError, RecursionError):
        return None
    mappings = _find_mappings(tree)
    words = {word for word in _find_words(tree, mappings) if _WORD.fullmatch(word) and word.strip()} - _TEXT_KEYS
    ordered = sorted(words, key=lambda word: (-len(word), word))
    return re.compile("|".join(map(re.escape, ordered)), re.IGNORECASE) if ordered else None


def _find_mappings(tree: nodes.Template) -> frozenset[str]:
    """Return names that are used as mappings: `x.role`, `x['content']`."""
    names = set()
    for node in tree.find_all(nodes.Getattr):
        if isinstance(node.node, nodes.Name) and node.attr not in dir(str):
            names.add(node.node.name)
    for item in tree.find_all(nodes.Getitem):
        if isinstance(item.node, nodes.Name) and isinstance(getattr(item.arg, "value", None), str):
            names.add(item.node.name)
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
    """Return whether this may be the text of a message, rather than a message or a list of names."""
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
