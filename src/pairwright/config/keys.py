"""Dotted keys of the configuration: which exist, and what to write instead of one that does not.

    train.dpo.loss      a key is absolute: it begins with a section, or is one of the keys at the top

The other names that a section accepts (`train.lr_scheduler_type`) are keys as well.
"""

import difflib
from collections.abc import Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from pairwright.config.tree import Config


def is_top_key(key: str) -> bool:
    """Whether a dotted key begins with a section or another key at the top of the configuration."""
    return key.partition(".")[0] in Config.model_fields


def iterate_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every absolute key, sections before the keys in them.

    >>> [key for key in iterate_keys() if key.startswith("engine")]
    ['engine', 'engine.name', 'engine.address', 'engine.workers', 'engine.max_retries']
    """
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        others = [str(other) for other in alias.choices] if isinstance(alias, AliasChoices) else []
        for spelling in dict.fromkeys((name, *others)):
            yield prefix + spelling
        section = section_of(field.annotation)
        if section is not None:
            yield from iterate_keys(section, f"{prefix}{name}.")


def field_of(key: str) -> FieldInfo:
    """The field of an absolute key, with its type, default and description.

    >>> field_of("pairs.min_gap").default
    0.0
    """
    *sections, name = key.split(".")
    model: type[BaseModel] | None = Config
    for section in sections:
        model = (
            None
            if model is None or section not in model.model_fields
            else section_of(model.model_fields[section].annotation)
        )
    if model is None or name not in model.model_fields:
        raise KeyError(key)
    return model.model_fields[name]


def explain_unknown(key: str) -> str:
    """What is wrong with a key that has no section, and which keys may be meant.

    >>> explain_unknown("dpo.loss")
    "unknown key 'dpo.loss'; did you mean 'train.dpo.loss'?"
    """
    first, dot, rest = key.partition(".")
    absolute = [name for name in iterate_keys() if name.endswith(f".{key}")]
    near = [name + dot + rest for name in difflib.get_close_matches(first, Config.model_fields, n=1)]
    suggestions = " or ".join(map(repr, absolute or near))
    hint = f"did you mean {suggestions}?" if suggestions else f"known keys: {', '.join(Config.model_fields)}"
    return f"unknown key {key!r}; {hint}"


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a field holds; also of `Section | None`."""
    is_union = get_origin(annotation) in (Union, UnionType)
    for choice in get_args(annotation) if is_union else (annotation,):
        if isinstance(choice, type) and issubclass(choice, BaseModel):
            return choice
    return None
