"""Griffe extension: doctests of docstrings become code blocks on the pages of the Python API."""

import re
from typing import Any

import griffe

# A doctest: lines from `>>>` to the next blank line, or to the end.
_DOCTEST = re.compile(r"^>>> .*?(?=\n\s*\n|\Z)", re.M | re.S)


class DocstringExamples(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            text = _DOCTEST.sub(lambda match: f"```pycon\n{match[0]}\n```", obj.docstring.value)
            obj.docstring.value = text
