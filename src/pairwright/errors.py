"""The errors that pairwright raises deliberately.

    PairwrightError            an error that the user can fix; the command line prints one line
    ├── RecordError            a record that cannot be built: field, value, what was expected
    ├── CodecError             bytes that cannot be read
    │   ├── ForeignBytes       not ours: wrong magic or an unknown version
    │   ├── TruncatedBytes     fewer bytes than the header states
    │   ├── CorruptBytes       checksum, offsets or layout are inconsistent
    │   └── UnsafeBytes        a foreign payload that would execute code
    ├── TableError             an experience table that cannot be opened, read or written
    ├── SourceError            an input file that cannot be read at all
    ├── PlaceError             an address (s3://...) that cannot be reached, read or written
    └── ConfigError            bad configuration or usage

A message says what is wrong, where, what was expected, and how to fix it, if there is a way. `exit_code` is the exit
code of the command line.
"""

import difflib
from collections.abc import Iterable


class PairwrightError(Exception):
    exit_code = 1


class RecordError(PairwrightError, ValueError):
    """A field of a record has an invalid value."""

    def __init__(self, field: str, value: object, expected: str) -> None:
        self.field = field
        self.value = value
        self.expected = expected
        super().__init__(f"{field}: got {_short(value)}, expected {expected}")


class CodecError(PairwrightError, ValueError):
    pass


class ForeignBytes(CodecError):
    pass


class TruncatedBytes(CodecError):
    pass


class CorruptBytes(CodecError):
    pass


class UnsafeBytes(CodecError):
    pass


class TableError(PairwrightError):
    pass


class SourceError(PairwrightError):
    pass


class PlaceError(PairwrightError):
    pass


class ConfigError(PairwrightError, ValueError):
    exit_code = 3


def _short(value: object, limit: int = 120) -> str:
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


def suggest_name(name: str, known: Iterable[str]) -> str:
    """Suggest known names that are similar to an unknown one, and list the known names.

    >>> suggest_name("openai", ["trl", "openai-preference"])
    "did you mean 'openai-preference'? Known: trl, openai-preference"
    """
    names = list(known)
    near = [other for other in names if name and name.lower() in other.lower()]
    near = near or difflib.get_close_matches(name, names, n=2)
    listed = ", ".join(names)
    return f"did you mean {' or '.join(map(repr, near[:3]))}? Known: {listed}" if near else f"expected one of {listed}"
