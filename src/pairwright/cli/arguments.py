"""Arguments that commands share, and the values that the shell completes.

Names to complete come from the registries of the code, loaded on demand.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    import polars as pl

PLACE = "<path>"  # placeholder in help for a local path or an address; parsed by `pairwright.paths.paths`
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
WeightType = Literal["auto", "float32", "bfloat16", "float16"]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
RunOutput = Annotated[Path | None, typer.Option("-o", "--output", help="Folder of the run; by default runs/<name>.")]


def complete_choices(key: str) -> Callable[[str], list[str]]:
    """A completion of the values that a key of the configuration takes, such as `backend.name`."""

    def complete(incomplete: str) -> list[str]:
        # in a list with commas only the last value is completed; those before it are not offered again
        before, comma, last = incomplete.rpartition(",")
        rest = [word for word in _choices_of(key) if word not in before.split(",")]
        return [before + comma + word for word in rest if word.startswith(last)]

    return complete


def complete_target(incomplete: str) -> list[str]:
    """Names for `export --to`."""
    from pairwright.export import EXPORTERS

    return [name for name in (*EXPORTERS, "jsonl", "bytes", "tokens") if name.startswith(incomplete)]


def complete_override(incomplete: str) -> list[str]:
    """`KEY=` for `--set`, and after the equals sign the values that the key takes."""
    from pairwright.config.config_tree import iterate_keys

    key, equals, value = incomplete.partition("=")
    if equals:
        return [f"{key}={choice}" for choice in _choices_of(key) if choice.startswith(value)]
    return [f"{name}=" for name in iterate_keys() if name.startswith(incomplete)]


def _choices_of(key: str) -> list[str]:
    """The words that a key accepts: literals of its type, or names of a registry; none for numbers and free text."""
    from pairwright.config.backend_config import BACKEND_NAMES
    from pairwright.config.config_tree import field_of
    from pairwright.config.key_comments import words_of
    from pairwright.config.pairs_config import STRATEGY_NAMES
    from pairwright.config.train_config import PREFERENCE_LOSS_NAMES

    # Keys that also accept user code, so their type is not a list of literals.
    names = {"train.dpo.loss": PREFERENCE_LOSS_NAMES, "pairs.strategy": STRATEGY_NAMES, "backend.name": BACKEND_NAMES}
    if key in names:
        return list(names[key])
    if key == "sources.format":
        from pairwright.sources import READERS

        return ["auto", *READERS]
    try:
        annotation = field_of(key).annotation
    except KeyError:
        return []
    return ["true", "false"] if annotation is bool else list(words_of(annotation))


def condition_of(where: str | None) -> "pl.Expr | None":
    """The condition of --where; None without one."""
    if where is None:
        return None
    from pairwright.store.conditions import parse_where

    return parse_where(where)
