"""Real templates by cases, each sequence checked against transformers' own renders: the counts are a floor."""

from collections import Counter

import pytest

pytest.importorskip("transformers", reason="the render of transformers is the check")

from bench.templates import CASES, SHARED, try_template

TEMPLATES = SHARED / "templates"
TOKENIZER = SHARED / "tokenizers" / "qwen2_5"


@pytest.mark.skipif(not TEMPLATES.is_dir() or not TOKENIZER.is_dir(), reason=f"the templates are not at {TEMPLATES}")
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_every_shared_template_is_exact_or_refused_by_transformers_as_well(step: int) -> None:
    counts: Counter[str] = Counter()
    faults = []
    exact: Counter[tuple[str, bool]] = Counter()
    paths = sorted(TEMPLATES.glob("*.jinja"))[::step]
    for path in paths:
        for key, outcome in try_template(path, TOKENIZER).items():
            counts[outcome.kind] += 1
            exact[key] += outcome.kind in ("one", "turns")
            if outcome.kind in ("wrong", "refused"):
                faults.append(f"{path.stem} {key}: {outcome.kind}: {outcome.detail}")
    assert not faults
    # The others are conversations that the template itself refuses: roles that alternate, tools that it demands.
    assert min(exact[name, reasoning] for name in CASES for reasoning in (True, False)) >= len(paths) - 3
    assert counts["one"] >= 2 * len(paths) - 5
