"""Declared rows: facts about model families that renders of their chat templates do not show.

The package's rows are in families.yaml, which explains the fields. `tokens.grammar` names a file with more rows, which
are tried first.
"""

from functools import cache
from pathlib import Path
from typing import Literal

import msgspec

from pairwright.config.plain_yaml import read_yaml
from pairwright.tokens.refusals import TokensError

_OWN = Path(__file__).with_name("families.yaml")


class Row(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What models of a family sample; an empty field declares nothing."""

    name: str
    match: tuple[str, ...]
    opening: str = ""
    closing: str = ""
    end_text: str = ""
    end_call: str = ""
    prefer: Literal["next", "last", ""] = ""
    is_users: bool = False  # from tokens.grammar: a failed check is an error

    def end_of(self, *, has_calls: bool) -> str:
        return (self.end_call if has_calls else "") or self.end_text


@cache
def own_rows() -> tuple[Row, ...]:
    return read_rows(_OWN)


def read_rows(path: Path, *, is_users: bool = False) -> tuple[Row, ...]:
    try:
        rows = msgspec.convert(read_yaml(path), list[Row])
    except msgspec.ValidationError as error:
        raise TokensError(f"{path}: expected a list of rows (name, match, opening, ...): {error}") from None
    return tuple(msgspec.structs.replace(row, is_users=is_users) for row in rows)
