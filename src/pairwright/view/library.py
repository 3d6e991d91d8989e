"""The items of the page: runs, experience tables, pairs, tokens and evaluations in the given folders.

The key of an item consists of folder names, such as `first/round-1/pairs`, so that links stay valid after a restart.
"""

import filecmp
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pairwright.errors import PairwrightError
from pairwright.evaluation.evaluation import FILE_NAME as EVALUATION_NAME
from pairwright.evaluation.held_out_runs import SIDES
from pairwright.pairs.lineage import source_tables
from pairwright.pairs.pair_table import FILE_NAME as PAIRS_NAME
from pairwright.report.run_folder import RunFolder, open_run, round_folders
from pairwright.store.table_marker import MARKER
from pairwright.tokens.stage.cache import ITEMS

Kind = Literal["run", "experiences", "pairs", "tokens", "evaluation"]
MAX_RUNS = 500  # maximum runs per folder
_FILES: dict[str, Kind] = {MARKER: "experiences", PAIRS_NAME: "pairs", ITEMS: "tokens"}  # by which a folder is known


@dataclass(frozen=True)
class Item:
    """An item of the page; `run` is the key of its run, or empty."""

    key: str
    kind: Kind
    path: Path
    run: str = ""


class Library:
    """The items of the page, by key, in folders of runs, tables, pairs or tokens, or in their parent folders.
    `tokenizer` is the model folder for coloured tokens; by default that of the run."""

    def __init__(self, paths: Sequence[Path], *, tokenizer: Path | None = None) -> None:
        self.paths = [path.resolve() for path in paths]
        self.tokenizer = tokenizer
        self.items: dict[str, Item] = {}
        self.refresh()
        if not self.items:
            names = ", ".join(map(str, paths))
            raise PairwrightError(
                f"{names}: nothing to view; expected the folder of a run, of experiences, of pairs or of tokens. "
                "Make one with: pairwright import TRACES -o runs/first/experience"
            )

    def refresh(self) -> None:
        """List the folders again, since runs grow."""
        items: dict[str, Item] = {}
        for path in self.paths:
            if not path.exists():
                raise PairwrightError(f"{path}: no such folder")
            for item in _list_items(path.parent if path.is_file() else path):
                if any(item.path.resolve() == known.path and item.kind == known.kind for known in items.values()):
                    continue
                # Two folders of one name: the second gets a number.
                key, number = item.key, 2
                while key in items:
                    key, number = f"{item.key}~{number}", number + 1
                items[key] = Item(key, item.kind, item.path.resolve(), item.run)
        self.items = items

    def get(self, key: str, kind: Kind) -> Item:
        """Return the item with a key; raises PairwrightError if there is none of this kind."""
        item = self.items.get(key)
        if item is None or item.kind != kind:
            keys = [known.key for known in self.items.values() if known.kind == kind]
            raise PairwrightError(f"no {kind} {key!r:.200} here; there are: {', '.join(keys[:20]) or 'none'}")
        return item

    def of_kind(self, kind: Kind) -> list[Item]:
        return [item for item in self.items.values() if item.kind == kind]

    def tables_of_pairs(self, pairs: Item) -> list[Item]:
        """Return the experience tables in the library that pairs were built from."""
        folders = {Path(str(table.path)).resolve() for table in source_tables(pairs.path)}
        return [item for item in self.of_kind("experiences") if item.path in folders]

    def pairs_of_table(self, table: Item) -> list[Item]:
        return [item for item in self.of_kind("pairs") if table in self.tables_of_pairs(item)]

    def as_json(self) -> list[dict[str, Any]]:
        return [{"key": item.key, "kind": item.kind, "run": item.run} for item in self.items.values()]


def _list_items(path: Path) -> Iterator[Item]:
    """Yield the items of a folder, which is an item, a run, or a folder of runs."""
    own = _kind_of(path)
    if own is not None:
        yield Item(path.name, own, path)
        return
    if _is_run(path):
        yield from _items_of_run(path)
        return
    children = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    for child in children[:MAX_RUNS]:
        kind = _kind_of(child)
        if kind is not None:
            yield Item(f"{path.name}/{child.name}", kind, child)
        elif _is_run(child):
            yield from _items_of_run(child)


def _items_of_run(path: Path) -> Iterator[Item]:
    yield Item(path.name, "run", path)
    rounds = round_folders(path)
    for folder in [path, *rounds]:
        prefix = path.name if folder == path else f"{path.name}/{folder.name}"
        for name in ("experience", "pairs", "tokens"):
            kind = _kind_of(folder / name)
            if kind is not None:
                yield Item(f"{prefix}/{name}", kind, folder / name, path.name)
        for side in SIDES:
            table = folder / "evaluation" / side / "experience"
            if _kind_of(table) == "experiences":
                yield Item(f"{prefix}/evaluation/{side}", "experiences", table, path.name)
        # The run folder has a copy of the last round's evaluation, which is listed only in its round.
        copies = [child / EVALUATION_NAME for child in rounds if folder == path and (child / EVALUATION_NAME).is_file()]
        if (folder / EVALUATION_NAME).is_file() and not any(
            filecmp.cmp(folder / EVALUATION_NAME, copy, shallow=False) for copy in copies
        ):
            yield Item(f"{prefix}/evaluation", "evaluation", folder, path.name)


def _kind_of(path: Path) -> Kind | None:
    return next((kind for name, kind in _FILES.items() if (path / name).is_file()), None)


def _is_run(path: Path) -> bool:
    return bool(open_begun_run(path).rounds) or (path / "experience" / MARKER).is_file()


def open_begun_run(path: Path) -> RunFolder:
    """Return the run in a folder; without rounds if no stage after the collection has ended."""
    try:
        return open_run(path)
    except PairwrightError:
        return RunFolder(path.name, [], None, None, None)
