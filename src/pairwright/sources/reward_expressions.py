"""Expressions over scores: numbers, names, dotted paths, + - * / and parentheses. Parsed, never executed as code."""

import ast
import math
import operator
import sys
from collections.abc import Callable

from pairwright.errors import ConfigError

_OPERATIONS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}
# No calls, subscripts, comparisons, comprehensions or texts
_ALLOWED = (
    *(ast.BinOp, ast.UnaryOp, ast.Name, ast.Attribute, ast.Constant),
    *(ast.operator, ast.UAdd, ast.USub, ast.expr_context),
)
_MAX_NODES = 400  # evaluation is recursive


def parse_reward(expression: str, where: str = "") -> ast.expr:
    """Parse an expression of numbers, names and arithmetic; raise ConfigError for anything else."""
    where = where or f"--reward {expression!r}"
    try:
        tree = ast.parse(expression.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"{where}: neither a component's name nor an expression") from None
    nodes = list(ast.walk(tree))
    if len(nodes) > _MAX_NODES:
        raise ConfigError(f"{where[:200]}: too long; add up the components before the import")
    for node in nodes:
        if not isinstance(node, _ALLOWED) or (isinstance(node, ast.Constant) and type(node.value) not in (int, float)):
            raise ConfigError(f"{where}: only numbers, names, + - * / and parentheses are understood")
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) > sys.float_info.max:
            raise ConfigError(f"{where}: a number that is too large")
        if isinstance(node, ast.Attribute) and not isinstance(node.value, ast.Name | ast.Attribute):
            raise ConfigError(f"{where}: a path is names with dots between them")
        if isinstance(node, ast.operator) and type(node) not in _OPERATIONS:
            raise ConfigError(f"{where}: only + - * / are understood")
    return tree


def evaluate(node: ast.expr, number_of: Callable[[str], float | None]) -> float | None:
    """Evaluate an expression of numbers by name or path; None if one is missing, NaN for a division by zero."""
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name | ast.Attribute):
        return number_of(ast.unparse(node))
    if isinstance(node, ast.UnaryOp):
        operand = evaluate(node.operand, number_of)
        return None if operand is None else -operand if isinstance(node.op, ast.USub) else operand
    assert isinstance(node, ast.BinOp)
    left, right = evaluate(node.left, number_of), evaluate(node.right, number_of)
    if left is None or right is None:
        return None
    try:
        return _OPERATIONS[type(node.op)](left, right)
    except ZeroDivisionError:
        # NaN is not a score: the record counts as unscored, and the import continues.
        return math.nan


def names_in(tree: ast.expr) -> list[str]:
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name | ast.Attribute) and id(node) not in inner]
    return [ast.unparse(node) for node in nodes]
