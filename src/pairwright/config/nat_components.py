"""Which components of a NAT file are meant: builder, trainer and adapter of `finetuning`, and the model behind them."""

from collections.abc import Mapping
from typing import Any

from pairwright.config.nat_names import COMPONENTS
from pairwright.errors import ConfigError


def named(tree: Mapping[Any, Any]) -> dict[str, Any]:
    """A file's tree with every key as text."""
    try:
        return {str(key): named(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    except RecursionError:
        raise ConfigError("a section contains itself") from None


def entry_of(tree: Mapping[str, Any], section: str) -> Any:
    """What a file says in a section: nothing is {}. Components must be there by name, with keys."""
    value = tree.get(section)
    if value is None:
        return {}
    if section in COMPONENTS or section == "llms":
        if not isinstance(value, Mapping) or not all(isinstance(entry, Mapping) for entry in value.values()):
            raise ConfigError(f"{section}: expected components by name, each with its keys")
    elif section == "finetuning" and not isinstance(value, Mapping):
        raise ConfigError(f"finetuning: expected keys and values, got {type(value).__name__}")
    return value


def chosen_component(tree: Mapping[str, Any], section: str) -> str | None:
    """Name of the component that `finetuning` names, or the only one there is."""
    role, _ = COMPONENTS[section]
    names = list(entry_of(tree, section))
    wanted = entry_of(tree, "finetuning").get(role)
    if wanted is not None:
        if str(wanted) not in names:
            raise ConfigError(f"finetuning.{role}: {wanted!r} is not in {section}: {', '.join(names) or 'it is empty'}")
        return str(wanted)
    return names[0] if len(names) == 1 else None


def trained_llm(tree: Mapping[str, Any]) -> str | None:
    """Name of the model whose model_name (or name) is `finetuning.target_model`; without one, the only one there is."""
    llms = entry_of(tree, "llms")
    wanted = entry_of(tree, "finetuning").get("target_model")
    if wanted is None:
        return next(iter(llms)) if len(llms) == 1 else None
    found = [name for name, llm in llms.items() if wanted in (name, llm.get("model_name"), llm.get("model"))]
    return found[0] if len(found) == 1 else None
