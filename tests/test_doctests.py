"""The worked examples in docstrings are true. Those of public names need files: tests/test_public_face.py runs them."""

import doctest
import importlib
import pkgutil
from importlib.util import find_spec

import pytest

import pairwright

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(pairwright.__path__, "pairwright.")
    # the modules of the plugin are loaded by NAT, and import it
    if not module.name.endswith("__main__") and (find_spec("nat") or not module.name.startswith("pairwright.nat."))
)
MIN_EXAMPLES = 90
NEED_FILES = ("import pairwright as pw", "models/tiny")


def examples_of(name: str) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder().find(importlib.import_module(name), name)
    return [test for test in tests if test.examples and not any(mark in test.docstring for mark in NEED_FILES)]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name):
    for test in examples_of(name):
        assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_examples_are_found():
    assert sum(len(test.examples) for name in MODULES for test in examples_of(name)) >= MIN_EXAMPLES
