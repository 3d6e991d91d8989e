"""`view --export DIR`: a selection as one page that opens from disk, without a server and network requests.

The page has the same script and precomputed answers, embedded as inert JSON. Its content security policy allows only
this script and style, by their hashes.
"""

import base64
import hashlib
import html
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import msgspec

from pairwright.errors import ConfigError
from pairwright.paths import write_bytes
from pairwright.view.answers import Answers
from pairwright.view.library import Item
from pairwright.view.row_queries import MAX_PAGE
from pairwright.view.view_server import BUILT


@dataclass(frozen=True)
class Exported:
    """The written page, its size, and for each table the number of exported and of matching rows."""

    page: Path
    num_bytes: int
    rows: dict[str, tuple[int, int]]
    whole: list[str]  # tables without the columns of the condition, exported unfiltered


def export_view(
    answers: Answers,
    output: Path,
    *,
    where: str | None = None,
    text: str = "",
    limit: int = 200,
    show: Callable[[int, int], None] = lambda done, total: None,
) -> Exported:
    """Write the page `output/index.html` with at most `limit` rows of each table, those that satisfy a condition and
    contain a text; `show` is called with the number of tables done and in total."""
    items = list(answers.library.items.values())
    copy = _Copy(answers, where, text, limit)
    copy.ask("library")
    copy.ask("runs.list")
    for number, item in enumerate(items):
        copy.add(item)
        show(number + 1, len(items))
    tables = [item for item in items if item.kind in ("experiences", "pairs")]
    if where is not None and tables and len(copy.whole) == len(tables):
        raise ConfigError(f"--where {where!r}: no table here has these columns")
    page = output / "index.html"
    title = ", ".join(path.name for path in answers.library.paths)
    content = _page(title, {"title": title, "answers": copy.known, "lists": copy.lists})
    write_bytes(page, content)
    return Exported(page, len(content), copy.counts, copy.whole)


@dataclass
class _Copy:
    """The answers that the page may request, by question and parameters, and the first rows of its lists."""

    answers: Answers
    where: str | None
    text: str
    limit: int
    known: dict[str, Any] = field(default_factory=dict)
    lists: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    whole: list[str] = field(default_factory=list)

    def add(self, item: Item) -> None:
        source = item.key
        if item.kind == "run":
            self.ask("runs.run", source=source)
            return
        if item.kind == "evaluation":
            for row in self._list("evaluation.tasks", source=source):
                self.ask("evaluation.task", source=source, task=row["task"])
            return
        narrowed = {"source": source}
        if item.kind != "tokens":
            narrowed |= {"q": self.text} if self.text else {}
            narrowed |= self._condition(item)
        for row in self._list(f"{item.kind}.rows", **narrowed):
            if item.kind == "experiences":
                self.ask("experiences.record", source=source, uid=row["uid"])
                self.ask("experiences.lineage", source=source, uid=row["uid"])
            elif item.kind == "pairs":
                self.ask("pairs.pair", source=source, id=row["id"])
            else:
                self.ask("tokens.sequence", source=source, row=str(row["row"]))

    def ask(self, question: str, **asked: str) -> None:
        answer = self.answers.answer(question, {name: [value] for name, value in asked.items()})
        # as the page's URLSearchParams formats them, sorted by name
        text = "&".join(f"{_escape(name)}={_escape(asked[name])}" for name in sorted(asked))
        self.known[f"{question}?{text}"] = answer

    def _condition(self, item: Item) -> dict[str, str]:
        """Return the condition of the selection as a parameter, unless it is for another kind of table."""
        if self.where is None:
            return {}
        try:
            self.answers.answer(f"{item.kind}.rows", {"source": [item.key], "w": [self.where], "limit": ["1"]})
        except ConfigError as error:
            if "no column" not in str(error):
                raise
            self.whole.append(item.key)
            return {}
        return {"w": self.where}

    def _list(self, question: str, **asked: str) -> list[dict[str, Any]]:
        """Read the first rows of a list, page by page, and store them under the name of the list."""
        parameters = {name: [value] for name, value in asked.items()}
        rows: list[dict[str, Any]] = []
        while True:
            page = {"offset": [str(len(rows))], "limit": [str(min(MAX_PAGE, self.limit - len(rows)))]}
            answer = self.answers.answer(question, {**parameters, **page})
            rows += answer["rows"]
            if len(rows) >= min(self.limit, answer["matches"]) or not answer["rows"]:
                break
        self.counts[asked["source"]] = (len(rows), answer["matches"])
        self.lists[f"{question}?source={asked['source']}"] = {**answer, "rows": rows, "matches": len(rows)}
        return rows


def _escape(text: str) -> str:
    return quote_plus(text, safe="*").replace("~", "%7E")


def _page(title: str, content: dict[str, Any]) -> bytes:
    script, style = ((BUILT / name).read_text(encoding="utf-8") for name in ("view.js", "view.css"))
    assert "</script" not in script.lower(), "the script ends where it should not"
    assert "</style" not in style.lower(), "the style ends where it should not"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # "<" is escaped in JSON strings, so that no record text can end the element.
    text = msgspec.json.encode(content).decode().replace("<", "\\u003c")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<title>{html.escape(title)} · pairwright</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        f'<div id="app"></div>\n<script type="application/json" id="copy">{text}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    ).encode()


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
