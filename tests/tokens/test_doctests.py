"""The worked examples in the docstrings of tokens/ are true."""

import doctest
import importlib
import pkgutil

import pytest

import pairwright.tokens

MODULES = [module.name for module in pkgutil.iter_modules(pairwright.tokens.__path__, "pairwright.tokens.")]
WITH_EXAMPLES = ("batches", "collate", "encode", "owned", "render", "truncate")


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name))
    assert found.failed == 0
    assert found.attempted > 0 or name.rsplit(".")[-1] not in WITH_EXAMPLES
