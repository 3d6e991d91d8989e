"""Queries of the page over encoded sequences: the list of items and refusals, and the tokens of one sequence."""

from functools import cached_property
from typing import Any

import msgspec
import polars as pl
import pyarrow as pa

from pairwright.errors import PairwrightError
from pairwright.pairs.pair_table import FILE_NAME
from pairwright.records.experience import EID
from pairwright.report.run_folder import open_run, read_manifest
from pairwright.tokens.sequence import Paint
from pairwright.tokens.stage.cache import ITEMS, SCHEMA, describe_losses
from pairwright.tokens.stage.paint import PALETTE, token_texts
from pairwright.tokens.stage.stage import folder_hash
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.view.experience_queries import plain
from pairwright.view.facets import FacetColumn, count_facets
from pairwright.view.library import Item, Library
from pairwright.view.row_queries import Derived, Query, RowQueries

LISTED = ("id", "side", "number", "prompt_length", "num_tokens", "num_trained", "refusal")
MAX_TOKENS = 50_000  # maximum tokens of a sequence that are sent
FACETS = (
    FacetColumn("side", "side"),
    FacetColumn("refusal", "refused"),
    FacetColumn("num_tokens", "tokens", "number"),
    FacetColumn("num_trained", "trained tokens", "number"),
)
_NO_TEXTS = (
    "Token ids only: the tokenizer of this folder was not found in the run. "
    "Start again with: pairwright view --tokenizer MODEL"
)
_OWN = "of_last_run"  # whether a row belongs to the items of the last run


class TokenQueries:
    """Queries over one tokens folder. Rows of earlier runs of the stage, which the cache keeps, are left out."""

    def __init__(self, item: Item, library: Library) -> None:
        self._item = item
        self._library = library
        self.rows = RowQueries(
            item.key, lambda: sorted(item.path.glob("sequences-*.parquet")), SCHEMA, always=(f"{_OWN} = true",)
        )
        self.rows.derived = {
            _OWN: Derived(
                pa.bool_(), ("key",), lambda frame: frame["key"].is_in(self._keys), prepare=lambda: self._keys
            )
        }

    @cached_property
    def _keys(self) -> pl.Series:
        return pl.read_parquet(self._item.path / ITEMS)["key"].unique().implode()

    def list_rows(self, query: Query, offset: int, limit: int) -> dict[str, Any]:
        """Return a page of the list: sequences and refusals of the last run, and the counts of the manifest."""
        page = self.rows.read_page(Query(query.where, "", query.sort), offset, limit, LISTED)
        manifest = self._manifest
        return {
            **page,
            "rows": [{**row, "task": self._task(row["id"])} for row in page["rows"]],
            "columns": list(SCHEMA.names),
            "losses": describe_losses(manifest) if "items" in manifest else [],
            "counts": {
                name: manifest[name]
                for name in ("items", "exact", "sequences", "tokens", "trained_tokens")
                if name in manifest
            },
        }

    def list_facets(self, query: Query) -> list[dict[str, Any]]:
        return count_facets(self.rows, Query(query.where), FACETS)

    def read_sequence(self, row: int) -> dict[str, Any]:
        """Return the tokens of one sequence: ids, texts (if the tokenizer is found), paint, mask, log-probabilities."""
        snapshot = self.rows.snapshot()
        (cells,) = self.rows.take([row], SCHEMA.names, snapshot)
        if cells["refusal"] is not None:
            known = {name: cells[name] for name in ("id", "refusal", "detail")}
            return {"row": row, "task": self._task(cells["id"]), **known}
        ids = cells["ids"][:MAX_TOKENS]
        texts = None if self._tokenizer is None else token_texts(self._tokenizer, ids)
        report = msgspec.json.decode(cells["report"] or "{}")
        return {
            "row": row,
            "id": cells["id"],
            "task": self._task(cells["id"]),
            "side": cells["side"],
            "number": cells["number"],
            "num_tokens": cells["num_tokens"],
            "num_trained": cells["num_trained"],
            "ids": ids,
            "texts": texts,
            "paint": cells["paint"][:MAX_TOKENS],
            "mask": [int(trained) for trained in cells["mask"][:MAX_TOKENS]],
            "messages": cells["message_index"][:MAX_TOKENS],
            "logprobs": plain(cells["logprobs"][:MAX_TOKENS]) if cells["logprobs"] is not None else None,
            # without empty entries
            "report": {name: plain(value) for name, value in report.items() if value},
            "palette": {
                int(paint): look.name for paint, look in PALETTE.items() if paint in set(map(Paint, cells["paint"]))
            },
            "note": _NO_TEXTS if texts is None else None,
        }

    def _task(self, identity: str) -> str:
        """Return the task of a pair (from the pairs table beside the folder) or of an experience; "" if unknown."""
        if identity.startswith("["):
            return str(EID.parse(identity).task)
        return self._tasks.get(identity, "")

    @cached_property
    def _tasks(self) -> dict[str, str]:
        file = self._item.path.parent / "pairs" / FILE_NAME
        return dict(pl.read_parquet(file, columns=["id", "task"]).iter_rows()) if file.is_file() else {}

    @cached_property
    def _manifest(self) -> dict[str, Any]:
        return read_manifest(self._item.path)

    @cached_property
    def _tokenizer(self) -> ChatTokenizer | None:
        """The tokenizer of this folder, found by its hash in the run's folders; None if it is not there."""
        if self._library.tokenizer is not None:
            return ChatTokenizer.from_folder(self._library.tokenizer)
        wanted = self._manifest.get("tokenizer")
        # A tokens folder is in a round or in the run itself; models are searched in both.
        for folder in self._item.path.parents[:2]:
            try:
                models = open_run(folder).tokenizers
            except PairwrightError:
                continue
            for model in (*models, *(path.parent for path in sorted(folder.glob("*/*/tokenizer.json")))):
                if folder_hash(model) == wanted:
                    return ChatTokenizer.from_folder(model)
        return None
