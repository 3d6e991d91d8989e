"""`make reference`: fill the generated parts of the documentation from the code.

A part is the text between `<!-- generated: NAME -->` and `<!-- end -->`, in any page. The names are `commands`,
`options COMMAND`, `keys SECTION`, `formats` and `columns`. `tests/test_docs.py` fails if a page is outdated.
"""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from typer.main import get_command

from pairwright.cli import app
from pairwright.config import Config
from pairwright.config.key_comments import list_keys, to_yaml
from pairwright.sources import READERS
from pairwright.store.columns import CONTENT, NARROW

DOCS = Path(__file__).resolve().parents[1] / "docs"
_PART = re.compile(r"(<!-- generated: ([^>]*?) -->\n).*?(<!-- end -->)", re.S)


def fill_page(page: Path) -> str:
    """Return the text of a page with regenerated parts."""
    text = page.read_text(encoding="utf-8")

    def fill(match: re.Match[str]) -> str:
        rows = _link_pages("\n".join(_make_part(match[2], page)), page)
        return f"{match[1]}\n{rows}\n\n{match[3]}"

    return _PART.sub(fill, text)


def _link_pages(text: str, page: Path) -> str:
    """Replace file names of pages, such as docs/how-to/own-data.md, by links."""

    def link(match: re.Match[str]) -> str:
        path = DOCS / match[1]
        name = path.parent.name if path.stem == "index" else path.stem
        return f"[{name.replace('-', ' ')}]({os.path.relpath(path, page.parent)})"

    return re.sub(r"\bdocs/([\w/-]+\.md)", link, text)


def _make_part(name: str, page: Path) -> Iterator[str]:
    kind, _, argument = name.partition(" ")
    if kind == "commands":
        return _command_rows(page)
    if kind == "options":
        return _option_rows(argument)
    if kind == "keys":
        return _key_rows(argument)
    if kind == "formats":
        return _format_rows(page)
    if kind == "columns":
        return _column_rows()
    raise ValueError(f"{page}: unknown part {name!r}")


# Commands.


def list_commands(command: Any = None, name: str = "pairwright") -> Iterator[tuple[str, Any]]:
    """Return every command with its full name, in the order of `--help`."""
    command = get_command(app) if command is None else command
    if not hasattr(command, "commands"):
        yield name, command
        return
    for child in command.list_commands(None):
        yield from list_commands(command.commands[child], f"{name} {child}")


def _command_rows(page: Path) -> Iterator[str]:
    homes = {}
    for other in sorted(page.parent.glob("*.md")):
        for heading in re.findall(r"^## (`pairwright .*)$", other.read_text(encoding="utf-8"), re.M):
            words = heading.strip("`").split()
            homes[" ".join(words)] = f"{other.name}#{make_anchor(heading)}"
    yield "| command | |"
    yield "|---|---|"
    for name, command in list_commands():
        link = next((home for heading, home in homes.items() if f"{heading} ".startswith(f"{name} ")), None)
        if link is None:
            raise ValueError(f"{name} has no section in {page.parent}: write one that begins with ## `{name} ...`")
        yield f"| [`{name}`]({link}) | {_cell((command.help or '').partition(chr(10) * 2)[0])} |"


def make_anchor(heading: str) -> str:
    """Return the anchor of a heading, as GitHub and our MkDocs settings derive it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


# Options that the page Commands describes once.
_SHARED = ("--set", "--json")


def _option_rows(name: str) -> Iterator[str]:
    """Return a table of the command's own options; options of configuration keys are links to their section."""
    command = dict(list_commands())[name]
    options = [
        param
        for param in command.params
        if param.param_type_name == "option" and not param.hidden and "--help" not in param.opts
    ]
    own = [param for param in options if _key_of(param) is None and not set(param.opts) & set(_SHARED)]
    if own:
        yield "| option | meaning | default |"
        yield "|---|---|---|"
    for param in own:
        spellings = ", ".join(f"`{word}`" for word in (*param.opts, *param.secondary_opts))
        choices = param.metavar or ""
        meaning = _cell(param.help or "")
        if "|" in choices:
            words = ", ".join(f"`{word}`" for word in choices.strip("<>").split("|"))
            meaning += f" One of {words}."
        yield f"| {spellings} | {meaning} | {_default_of(param)} |"
    if own:
        yield ""
    yield from _listed_options(options)


def _key_of(param: Any) -> str | None:
    """Return the configuration key that an option sets, such as `pairs.min_gap`."""
    return getattr(param, "config_key", None)


def _listed_options(options: list[Any]) -> Iterator[str]:
    """Return a line for each section whose keys have options, then a line for the options that all commands share."""
    sections: dict[str, list[str]] = {}
    for param in options:
        if (key := _key_of(param)) is not None:
            spelling = f"`{param.opts[0]}`"
            # option names that differ from the key, such as --engine for engine.name
            if param.opts[0].removeprefix("--").replace("-", "_") != key.rpartition(".")[2]:
                spelling += f" (`{key}`)"
            sections.setdefault(key.partition(".")[0] if "." in key else "", []).append(spelling)
    for section, spellings in sections.items():
        link = _section_link(section)
        yield f"- keys of {link}: {', '.join(spellings)}"
    if shared := [f"`{word}`" for param in options for word in param.opts if word in _SHARED]:
        yield f"- [shared](index.md): {', '.join(shared)}"


def _section_link(section: str) -> str:
    if not section:
        return "[the file](../configuration/index.md#the-file)"
    for page in sorted((DOCS / "reference" / "configuration").glob("*.md")):
        if f"\n## {section}\n" in page.read_text(encoding="utf-8"):
            return f"[`{section}`](../configuration/{page.name}#{section})"
    raise ValueError(f"section {section!r} has no heading in docs/reference/configuration")


def _default_of(param: Any) -> str:
    if not param.show_default or callable(param.default) or param.default in (None, False, (), [], ""):
        return ""
    return "yes" if param.default is True else f"`{_text_of(param.default)}`"


# Keys of the configuration.


def _key_rows(path: str) -> Iterator[str]:
    section: type[BaseModel] = Config
    for name in filter(None, path.split(".")):
        section = next(key.section for key in list_keys(section) if key.name == name and key.section is not None)
    yield "| key | meaning | default |"
    yield "|---|---|---|"
    yield from _rows_of(section, "", {section}, leaves_only=not path)


def _rows_of(section: type[BaseModel], prefix: str, above: set[type[BaseModel]], *, leaves_only: bool) -> Iterator[str]:
    for key in list_keys(section):
        meaning = _cell(key.comment)
        if key.choices:
            meaning += " One of " + ", ".join(f"`{choice}`" for choice in key.choices) + "."
        if key.section is None:
            yield f"| `{prefix}{key.name}` | {meaning} | `{_text_of(key.default)}` |"
        elif leaves_only:
            continue
        elif key.section.__name__ == "PolicyConfig" and key.name != "grpo":
            yield f"| `{prefix}{key.name}` | {meaning} Keys as in `policy`. | |"
        else:
            yield f"| `{prefix}{key.name}` | {meaning} | {'' if key.is_section else f'`{_text_of(key.default)}`'} |"
            yield from _rows_of(key.section, f"{prefix}{key.name}.", {*above, key.section}, leaves_only=False)


def _text_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, tuple | frozenset):
        value = list(value)
    if isinstance(value, str):
        return value or '""'
    text = to_yaml(value, inline=True).strip() if isinstance(value, list | dict) else str(value)
    return {"True": "true", "False": "false"}.get(text, text)


# Formats and columns.


def _format_rows(page: Path) -> Iterator[str]:
    homes = {}
    for other in sorted(page.parent.glob("*.md")):
        for heading in re.findall(r"^## (\S+)$", other.read_text(encoding="utf-8"), re.M):
            homes[heading] = os.path.relpath(other, page.parent)
    yield "| format | reads |"
    yield "|---|---|"
    for name, variants in READERS.items():
        titles = "; ".join(dict.fromkeys(variant.summary for variant in variants))
        yield f"| [`{name}`]({homes[name]}#{make_anchor(name)}) | {_cell(titles)} |"


def _column_rows() -> Iterator[str]:
    yield "| column | type | meaning |"
    yield "|---|---|---|"
    for column in (*NARROW, *CONTENT):
        yield f"| `{column.name}` | {column.type} | {column.meaning} |"


def _cell(text: str) -> str:
    """Format text as a table cell: one line, with the special characters of Markdown escaped."""
    pieces = " ".join(text.split()).replace("|", "\\|").split("`")
    pieces[::2] = [piece.replace("<", "&lt;").replace("*", "\\*") for piece in pieces[::2]]  # not inside `code`
    return "`".join(pieces)


def main() -> int:
    for page in sorted(DOCS.rglob("*.md")):
        text = fill_page(page)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            print(page.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
