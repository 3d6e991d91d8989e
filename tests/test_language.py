"""How the code is written: names that say what they are, comments where code is dense. `bench/house.py` measures."""

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from bench.house import LOCALS, count_comments, is_participle  # noqa: E402

FILES = sorted((ROOT / "src" / "pairwright").rglob("*.py"))
MAX_PARTICIPLES = 0.03
MAX_LOCALS = 20
MAX_FMT_SKIP = 20
MIN_COMMENTS = 0.04


def functions():
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path.name}:{node.lineno} {node.name}", node.name


def test_functions_are_verbs_not_participles():
    named = list(functions())
    offenders = [where for where, name in named if is_participle(name)]
    assert len(offenders) < MAX_PARTICIPLES * len(named), "\n".join(offenders)


def test_values_are_nouns():
    offenders = [
        f"{path.name}:{node.lineno} {node.id}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in LOCALS
    ]
    assert len(offenders) <= MAX_LOCALS, "\n".join(offenders)


def test_dense_code_has_comments_and_is_formatted():
    texts = [path.read_text(encoding="utf-8") for path in FILES]
    num_lines = sum(len(text.splitlines()) for text in texts)
    assert sum(map(count_comments, texts)) >= MIN_COMMENTS * num_lines
    assert sum(text.count("# fmt: skip") for text in texts) <= MAX_FMT_SKIP
