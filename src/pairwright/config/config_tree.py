"""`Config`: one section per stage, in the order of the flow, and the dotted keys of its fields."""

import difflib
from collections.abc import Iterable, Iterator
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel, Field, model_validator
from pydantic.fields import FieldInfo

from pairwright.config.backend_config import BackendConfig
from pairwright.config.collect_config import CollectConfig, ScoreConfig, TeachConfig
from pairwright.config.model_config import PolicyConfig
from pairwright.config.pairs_config import PairsConfig
from pairwright.config.sections import EngineConfig, EvaluateConfig, LoopConfig, Section, SourcesConfig, TokensConfig
from pairwright.config.train_config import TrainConfig


class Config(Section):
    """A run: one section per stage, each with its own options. `load_config` reads one from a file.

    >>> import pairwright as pw
    >>> pw.Config(name="first", train={"epochs": 2}).train.epochs
    2
    """

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its files are in runs/<name>."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of all random draws."""
    base: str | None = None
    """Folder against which relative paths are resolved if the current folder does not have them; by default the folder
    of this file. A run writes it into the configuration that it saves, so that the saved file can be run again."""
    model: str | None = None
    """Model to train, a folder or a Hub id; also the policy, unless the policy has an endpoint. By default
    policy.model."""
    loop: LoopConfig = LoopConfig()
    sources: SourcesConfig = SourcesConfig()
    policy: PolicyConfig = PolicyConfig()
    collect: CollectConfig = CollectConfig()
    teach: TeachConfig = TeachConfig()
    score: ScoreConfig = ScoreConfig()
    pairs: PairsConfig = PairsConfig()
    tokens: TokensConfig = TokensConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    engine: EngineConfig = EngineConfig()
    backend: BackendConfig = BackendConfig()

    @property
    def trained_model(self) -> str | None:
        """The model to train: `model`, or else the policy, if it is loaded here."""
        return self.model or (self.policy.model if self.policy.base_url is None else None)

    @model_validator(mode="after")
    def _is_followed(self) -> "Config":
        """Refuse options that the backend would ignore: our own trainer follows all of them."""
        trainer = self.backend.name
        if trainer in ("local", "ray"):
            return self
        way_out = "leave it out, or set backend.name to local or ray"
        if self.pairs.curriculum != "none" and trainer != "nemo-rl":
            raise ValueError(f"pairs.curriculum: backend {trainer} would train the pairs in another order: {way_out}")
        if self.pairs.reliability == "noise":
            raise ValueError(f"pairs.reliability: noise has no effect on backend {trainer}: use weight")
        for name in ("chat_template", "chat_template_kwargs", "train_turns", "tools_as_text"):
            if getattr(self.tokens, name) != TokensConfig.model_fields[name].default:
                raise ValueError(
                    f"tokens.{name}: backend {trainer} encodes texts by itself and would not follow it: {way_out}"
                )
        return self


def is_top_key(key: str) -> bool:
    """True if the first part of a dotted key is a top-level key of the configuration."""
    return key.partition(".")[0] in Config.model_fields


def iterate_keys(model: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every absolute key, sections before the keys in them.

    >>> [key for key in iterate_keys() if key.startswith("engine")]
    ['engine', 'engine.name', 'engine.address', 'engine.workers']
    """
    for name, field in model.model_fields.items():
        alias = field.validation_alias
        # aliases of a field are keys, too; sections are walked under our own name only
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
    return fields_at(sections, Config)[name]


def fields_at(location: Iterable[str], root: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of the section at a location below `root`; none if there is no section."""
    model: type[BaseModel] | None = root
    for part in location:
        field = model.model_fields.get(part) if model is not None else None
        model = None if field is None else section_of(field.annotation)
    return {} if model is None else model.model_fields


def explain_unknown(key: str) -> str:
    """Say that a key without a section is unknown, and suggest keys.

    >>> explain_unknown("dpo.loss")
    "unknown key 'dpo.loss'; did you mean 'train.dpo.loss'?"
    """
    first, dot, rest = key.partition(".")
    # a key that was written without its section, such as dpo.loss for train.dpo.loss
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
