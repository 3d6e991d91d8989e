"""A finetuning configuration of NeMo Agent Toolkit (NAT), converted to ours, with the keys that have no counterpart.

`read_nat` reads a file as NAT does, `from_nat` converts its tree. Every NAT key is mapped, has no effect, or is
reported with a reason; a reported section stands for all keys below it. A NAT default that differs from ours is written
out. `${VAR}` stays a reference. Secrets are never copied.

>>> conversion = from_nat({"trainers": {"t": {"_type": "nemo_customizer_trainer", "num_runs": 3, "speed": 9}}})
>>> conversion.tree["collect"]["num_runs"], [(entry.key, entry.reason) for entry in conversion.unmapped]
(3, [('trainers.t.speed', 'no counterpart')])
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pydantic
from ruamel.yaml import YAML
from ruamel.yaml.error import MantissaNoDotYAML1_1Warning
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.resolver import VersionedResolver
from ruamel.yaml.tag import Tag

from pairwright.config import nat_keys
from pairwright.config.config_tree import Config, fields_at, section_of
from pairwright.config.pairs_names import own_names
from pairwright.config.plain_yaml import merge_trees, read_yaml
from pairwright.errors import ConfigError


def read_nat(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The tree of a file, merged over the file that its `base` names; `above` are the files that led to this one."""
    if path.resolve() in above:
        raise ConfigError(f"{above[-1]}: base: {path} builds on this file itself")
    yaml = YAML(typ="safe", pure=True)
    # NAT reads YAML 1.1, where `yes` and `on` are booleans
    yaml.version = (1, 1)
    yaml.Resolver = _Resolver
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MantissaNoDotYAML1_1Warning)  # NAT reads 5e-6 as a number, and so do we
        tree = read_yaml(path, yaml)
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(tree).__name__}")
    base = tree.pop("base", None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base: got {base!r}, expected the path of a file")
    return merge_trees(read_nat(path.parent / base, (*above, path.resolve())), tree)


class _Resolver(VersionedResolver):
    """YAML 1.1 as PyYAML reads it, which NAT uses: a lone `y` or `n` is text."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        is_letter = kind is ScalarNode and value in ("y", "Y", "n", "N") and implicit[0]
        return Tag(suffix="tag:yaml.org,2002:str") if is_letter else super().resolve(kind, value, implicit)


def with_text_keys(tree: Mapping[Any, Any]) -> dict[str, Any]:
    try:
        return {str(key): with_text_keys(value) if isinstance(value, Mapping) else value for key, value in tree.items()}
    except RecursionError:
        raise ConfigError("a section contains itself") from None


def entry_of(tree: Mapping[str, Any], section: str) -> Any:
    """A section of a file; {} if it is missing. Components must be mappings by name."""
    value = tree.get(section)
    if value is None:
        return {}
    if section in nat_keys.COMPONENTS or section == "llms":
        if not isinstance(value, Mapping) or not all(isinstance(entry, Mapping) for entry in value.values()):
            raise ConfigError(f"{section}: expected components by name, each with its keys")
    elif section == "finetuning" and not isinstance(value, Mapping):
        raise ConfigError(f"finetuning: expected keys and values, got {type(value).__name__}")
    return value


def find_component(tree: Mapping[str, Any], section: str) -> str | None:
    """Name of the component that `finetuning` selects, or of the only one."""
    role = nat_keys.COMPONENTS[section]
    names = list(entry_of(tree, section))
    name = entry_of(tree, "finetuning").get(role)
    if name is not None:
        if str(name) not in names:
            raise ConfigError(f"finetuning.{role}: {name!r} is not in {section}: {', '.join(names) or 'it is empty'}")
        return str(name)
    return names[0] if len(names) == 1 else None


def find_llm(tree: Mapping[str, Any]) -> str | None:
    """Name of the model whose model_name (or name) is `finetuning.target_model`; without a target, the only one."""
    llms = entry_of(tree, "llms")
    target = entry_of(tree, "finetuning").get("target_model")
    if target is None:
        return next(iter(llms)) if len(llms) == 1 else None
    matches = [name for name, llm in llms.items() if target in (name, llm.get("model_name"), llm.get("model"))]
    return matches[0] if len(matches) == 1 else None


Key = tuple[str, ...]
# ${NAME}, or ${NAME:-default} and ${NAME-default}: group 1 is the name, group 2 the default (unsupported here)
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(:?-[^}]*)?\}")
_NO_COUNTERPART = "no counterpart"


@dataclass(frozen=True)
class Unmapped:
    """A NAT key (and all below it) that our configuration does not have, and why."""

    key: str
    reason: str


@dataclass(frozen=True)
class Converted:
    """Our configuration as a tree, the NAT keys that are not in it, and the keys to set before it runs."""

    tree: dict[str, Any]
    num_mapped: int
    unmapped: tuple[Unmapped, ...]
    to_set: tuple[str, ...]


def from_nat(theirs: Mapping[Any, Any]) -> Converted:
    """Our configuration for a NAT file as `read_nat` reads it. ConfigError if it does not configure finetuning."""
    if not any(section in theirs for section in ("finetuning", *nat_keys.COMPONENTS)):
        raise ConfigError(f"no finetuning configuration: expected one of finetuning, {', '.join(nat_keys.COMPONENTS)}")
    tree = with_text_keys(theirs)
    curriculum = entry_of(tree, "finetuning").get("curriculum_learning")
    # a section that is switched off has no effect, whatever is in it
    if isinstance(curriculum, dict) and not curriculum.get("enabled"):
        del tree["finetuning"]["curriculum_learning"]
    conversion = _Conversion(chosen={section: find_component(tree, section) for section in nat_keys.COMPONENTS})
    conversion.chosen["llms"] = find_llm(tree)
    # `finetuning` first: if two keys disagree, the first one counts
    for section in sorted(tree, key=lambda name: name != "finetuning"):
        for key, value in _leaves((section,), entry_of(tree, section)):
            conversion.convert(key, value)
    # the keys that the file itself set; defaults that are added below are not counted as mapped
    keys = frozenset(conversion.origins.values())
    conversion.add_defaults(tree)
    return conversion.result(keys)


@dataclass
class _Conversion:
    chosen: dict[str, str | None]
    values: dict[Key, Any] = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)
    unmapped: dict[str, str] = field(default_factory=dict)

    def convert(self, key: Key, value: Any) -> None:
        """Map one NAT key to our configuration, or record it as unsupported."""
        section = key[0]
        if section in self.chosen and len(key) > 1:
            if key[1] != self.chosen[section]:
                self.leave(key[:2], f"not what is trained: {self._choice(section)}")
                return
            # `*` in place of the component's name, as in the tables of nat_keys.py
            pattern = ".".join((section, "*", *key[2:]))
        else:
            pattern = ".".join(key)
        if pattern in nat_keys.TYPES:
            if value not in nat_keys.TYPES[pattern]:
                self.leave(key[:-1], f"of type {value!r}; converted are {', '.join(nat_keys.TYPES[pattern])}")
            return
        # keys of `finetuning` that only select a component
        if section == "finetuning" and len(key) == 2 and key[1] in nat_keys.COMPONENTS.values():
            return
        if key == ("finetuning", "target_model") and (value is None or self.chosen["llms"] is not None):
            return
        if pattern in nat_keys.WITHOUT_EFFECT and nat_keys.WITHOUT_EFFECT[pattern] == value:
            return
        if any(".".join(key).startswith(f"{left}.") for left in self.unmapped):
            return  # the whole section is reported
        self._translate(pattern, key, value)

    def _translate(self, pattern: str, key: Key, value: Any) -> None:
        # the NAT section whose keys are copied by name
        below = next((theirs for theirs in nat_keys.BELOW if pattern.startswith(f"{theirs}.")), None)
        if pattern in nat_keys.RENAMED:
            self.place(nat_keys.RENAMED[pattern], value, key)
        elif below is not None and _is_ours(own := nat_keys.BELOW[below] + pattern.removeprefix(below)):
            self.place(own, value, key)
        elif pattern in nat_keys.PAIRS:
            self._pairs(key, value)
        elif pattern == nat_keys.STATUS_FAILURES:
            # NAT counts the failure that ends the wait, we count the failures before it
            if isinstance(value, int) and value >= 1:
                self.place("backend.nemo_customizer.max_status_failures", value - 1, key)
            elif value is not None:
                self.leave(key, "set backend.nemo_customizer.max_status_failures to one less")
        elif pattern in (nat_keys.STORE_TOKEN, nat_keys.API_KEY):
            self._secret(pattern, key, value)
        else:
            self._give_reason(pattern, key)

    def place(self, own: str, value: Any, key: Key) -> None:
        """Set one of our keys. A NAT null keeps our default; if two NAT keys disagree, the first one counts."""
        name, path = ".".join(key), tuple(own.split("."))
        if value is None:
            return
        if isinstance(value, list) and "${" in str(value):
            self.leave(key, f"references to the environment in a list: set {own}")
            return
        if isinstance(value, str):
            if value.startswith("file://"):
                self.leave(key, f"the content of a file: write it into {own}")
                return
            # our configuration has no defaults in references: keep the name, and report the rest
            plain = _REFERENCE.sub(r"${\1}", value)
            if "${" in re.sub(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", "", plain):
                self.leave(key, f"only ${{NAME}} is filled from the environment: set {own}")
                return
            if plain != value:
                self.unmapped[name] = f"{own} is {plain} without its default: set the variable, or write the value"
            value = plain
        if path in self.values:
            if self.values[path] != value:
                self.leave(key, f"{self.origins[path]} says another {own}")
            return
        self.values[path], self.origins[path] = value, name

    def leave(self, key: Key, reason: str) -> None:
        self.unmapped.setdefault(".".join(key), reason)

    def add_defaults(self, tree: Mapping[str, Any]) -> None:
        for pattern, value in nat_keys.DEFAULTS.items():
            # patterns with `*` belong to a component, which must have been chosen and understood
            section, _, rest = pattern.partition(".*.")
            if rest:
                name = self.chosen[section]
                if name is None or f"{section}.{name}" in self.unmapped or rest in entry_of(tree, section)[name]:
                    continue
                self._translate(pattern, (section, name, rest), value)
            else:
                self.values.setdefault(tuple(nat_keys.RENAMED[pattern].split(".")), value)
        llm = self.chosen["llms"]
        if llm is not None and entry_of(tree, "llms")[llm].get("_type") == "nim":
            self.values.setdefault(("policy", "max_tokens"), nat_keys.NIM_MAX_TOKENS)
        elif llm is not None:
            self.values.setdefault(("policy", "max_tokens"), None)  # NAT's default is the endpoint's limit, ours is 512
        if self.values.get(("loop", "deploy")) is True:
            self.values.setdefault(("backend", "nemo_customizer", "deployment_config", "image_name"), nat_keys.IMAGE)
        adapter = self.chosen["trainer_adapters"]
        if adapter is not None and f"trainer_adapters.{adapter}" not in self.unmapped:
            self.values[("backend", "name")] = "nemo-customizer"
        self.values[("pairs", "within_run")] = True  # NAT builds pairs separately for each run
        self.values[("pairs", "contradictions")] = "keep"  # NAT removes exact duplicates only
        if ("evaluate", "dataset") not in self.values:
            self.values[("loop", "evaluate")] = "never"

    def result(self, file_keys: frozenset[str]) -> Converted:
        """The tree with the values that our configuration accepts; refused values are reported. `file_keys`: the keys
        of the NAT file."""
        # each turn drops the values that our configuration refuses, so the loop ends
        while True:
            # references are text whatever the field's type is, so they cannot be validated here
            checked = {path: value for path, value in self.values.items() if "${" not in str(value)}
            try:
                values = Config.model_validate(_tree(checked)).model_dump(mode="json")
                break
            except pydantic.ValidationError as error:
                for problem in error.errors(include_url=False, include_input=False):
                    self._refuse(tuple(map(str, problem["loc"])), problem["msg"])
        own_values = {
            path: reduce(getitem, path, values) if path in checked else value for path, value in self.values.items()
        }
        # sections in the order of the flow, plain keys before nested ones
        order = list(Config.model_fields)
        tree = _tree(dict(sorted(own_values.items(), key=lambda item: (order.index(item[0][0]), len(item[0])))))
        names = ["collect.workflow", "model", "collect.dataset"]
        if ("policy", "model") in self.values and ("policy", "base_url") not in self.values:
            names.append("policy.base_url")
        elif ("policy", "model") not in self.values:
            names.append("policy.model")
        missing = tuple(name for name in names if tuple(name.split(".")) not in self.values)
        unmapped = tuple(Unmapped(key, reason) for key, reason in sorted(self.unmapped.items()))
        return Converted(tree, len(file_keys & set(self.origins.values())), unmapped, missing)

    def _refuse(self, location: Key, message: str) -> None:
        # the value whose path is a prefix of the problem's location
        path = next((path for path in self.values if location[: len(path)] == path), None)
        if path is None:
            raise ConfigError(f"{'.'.join(location)}: {message}")
        del self.values[path]
        origin = self.origins.pop(path, ".".join(path))
        self.unmapped[origin] = f"{'.'.join(path)}: {message.removeprefix('Value error, ')}"

    def _pairs(self, key: Key, value: Any) -> None:
        if value is None:
            return
        try:
            settings = own_names({key[-1]: value})
        except ConfigError as error:
            self.leave(key, str(error))
            return
        for own, ours in settings.items():
            self.place(f"pairs.{own}", ours, key)

    def _secret(self, pattern: str, key: Key, value: Any) -> None:
        """Copy a token or key only if it is a reference to the environment."""
        is_key = pattern == nat_keys.API_KEY
        reference = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None:
            if value not in (None, ""):
                own = "policy.api_key_env" if is_key else "backend.nemo_customizer.hf_token: ${HF_TOKEN}"
                self.leave(key, f"a secret is not copied: put it into the environment and set {own}")
        elif is_key:
            self.place("policy.api_key_env", reference[1], key)
        else:
            self.place("backend.nemo_customizer.hf_token", f"${{{reference[1]}}}", key)

    def _choice(self, section: str) -> str:
        name = self.chosen[section]
        if section == "llms":
            return f"llms.{name} is" if name else "finetuning.target_model does not say which is; set policy"
        return f"finetuning.{nat_keys.COMPONENTS[section]} is {name}" if name else "finetuning names none"

    def _give_reason(self, pattern: str, key: Key) -> None:
        # patterns that match the start of the key; the longest is the most specific reason
        parts = tuple(pattern.split("."))
        fitting = [
            theirs.split(".")
            for theirs in nat_keys.REASONS
            if len(words := theirs.split(".")) <= len(parts)
            and all(want in ("*", part) for want, part in zip(words, parts, strict=False))
        ]
        if not fitting:
            self.leave(key, nat_keys.OTHER_REASONS.get(key[0], _NO_COUNTERPART))
            return
        longest = max(fitting, key=len)
        self.leave(key[: len(longest)], nat_keys.REASONS[".".join(longest)])


def _leaves(key: Key, value: Any) -> Iterator[tuple[Key, Any]]:
    """Every key that has a value, `_type` of a component first; empty sections are skipped."""
    if not isinstance(value, Mapping):
        yield key, value
        return
    # False sorts before True: `_type` comes first and may refuse the whole component
    for name in sorted(value, key=lambda name: name != "_type"):
        yield from _leaves((*key, str(name)), value[name])


def _is_ours(dotted: str) -> bool:
    *sections, name = dotted.split(".")
    field = fields_at(sections, Config).get(name)
    return field is not None and section_of(field.annotation) is None


def _tree(values: Mapping[Key, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for (*parents, last), value in values.items():
        section = tree
        for parent in parents:
            section = section.setdefault(parent, {})
        section[last] = value
    return tree
