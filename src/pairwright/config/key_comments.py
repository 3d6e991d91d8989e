"""The keys of the configuration with their comments: for `config show --comments` and for the pages of the reference.

The comments are the docstrings of the fields, so that every key is described once.
"""

import textwrap
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from typing import Any

from pydantic import BaseModel, TypeAdapter
from ruamel.yaml import YAML

_WIDTH = 110
_INDENT = "  "


@dataclass(frozen=True)
class Key:
    """One key of a section: its default (None for required keys and null), the values it may have, its comment."""

    name: str
    default: Any
    choices: tuple[str, ...]
    comment: str
    section: type[BaseModel] | None  # the class of a key that holds keys
    is_section: bool  # False where the section may be null, or is in a list or a mapping


def list_keys(section: type[BaseModel]) -> Iterator[Key]:
    """The keys of one section, in the order of its class."""
    for name, field in section.model_fields.items():
        classes = list(_classes_in(field.annotation))
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        yield Key(
            name=name,
            default=default,
            choices=tuple(dict.fromkeys(words_of(field.annotation))),
            comment=field.description or ((classes[0].__doc__ or "").partition("\n\n")[0] if classes else ""),
            section=classes[0] if classes else None,
            is_section=isinstance(field.annotation, type) and bool(classes),
        )


def to_yaml(value: Any, *, inline: bool = False) -> str:
    """A value as YAML, one key per line; `inline`: everything in one line."""
    stream = StringIO()
    yaml = YAML()
    yaml.default_flow_style = inline
    yaml.width = 10_000  # comments are wrapped, values are not
    yaml.dump(value, stream)
    return stream.getvalue()


def to_commented_yaml(tree: Mapping[str, Any], section: type[BaseModel]) -> str:
    """A configuration as YAML with a comment above each key; it loads to the same configuration."""
    return "".join(f"{line}\n" for line in _lines_of(tree, section, "", {section: "the file"}))


def _lines_of(
    tree: Mapping[str, Any], section: type[BaseModel], path: str, homes: dict[type[BaseModel], str]
) -> Iterator[str]:
    for key in list_keys(section):
        where = f"{path}.{key.name}" if path else key.name
        if path == "" and key.is_section:
            yield ""
        yield from _comment_lines(key)
        value = tree[key.name]
        if key.section is None:
            yield from _value_lines(key.name, value)
            continue
        home = homes.setdefault(key.section, where)
        if home != where:
            # a class that was described above: refer to it instead of repeating its comments
            yield f"# keys as in {home}"
            yield from _value_lines(key.name, value)
        elif key.is_section:
            yield f"{key.name}:"
            yield from (_INDENT + line if line else line for line in _lines_of(value, key.section, where, homes))
        else:
            yield from _value_lines(key.name, value)
            # keys that have no value here, as comments
            yield f"# keys of {where}:"
            for absent in list_keys(key.section):
                default = TypeAdapter(Any).dump_python(absent.default, mode="json")
                lines = [*_comment_lines(absent), *_value_lines(absent.name, default)]
                yield from (f"# {_INDENT}{line}" for line in lines)


def _value_lines(name: str, value: Any) -> list[str]:
    if value is None:
        return [f"{name}: null"]
    if isinstance(value, list | dict) and len(line := f"{name}: {to_yaml(value, inline=True).strip()}") <= _WIDTH:
        return [line]  # a short list reads better in one line
    return to_yaml({name: value}).splitlines()


def _comment_lines(key: Key) -> list[str]:
    text = " ".join(key.comment.split())
    if key.choices:
        text = f"{text} One of: {', '.join(key.choices)}."
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH)]


def _classes_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _classes_in(part)


def words_of(annotation: Any) -> Iterator[str]:
    """The words that a type allows, as `Literal` has them, also inside of unions and tuples."""
    for part in typing.get_args(annotation):
        if isinstance(part, str):
            yield part
        else:
            yield from words_of(part)
