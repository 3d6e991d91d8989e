"""The configuration of a run: `Config`, its dotted keys, its errors, and how it is loaded.

    seed: 0
    sources: {paths: ["${TRACES}/*.jsonl"], format: auto}

`load_config` reads a YAML file, then the environment, then the command line; each overrides the one before. `${VAR}` in
the file is replaced by the variable's value; `PAIRWRIGHT_SOURCES__FORMAT=nat` in the environment and
`sources.format=nat` on the command line set single keys. An unknown key is an error that suggests the nearest one.
Values from the environment are never printed: `config show` prints the reference, and errors do not repeat the value.
`adjust_config` lays options over a configuration, and `Options` is a section that is created by itself.
"""

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from types import UnionType
from typing import TYPE_CHECKING, Any, Union, get_args, get_origin

import pydantic
from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from pairwright.config.backend_config import BackendConfig
from pairwright.config.collect_config import CollectConfig, PolicyConfig, ScoreConfig, TeachConfig
from pairwright.config.nat_keys import COMPONENTS
from pairwright.config.pairs_config import PairsConfig, own_names
from pairwright.config.plain_yaml import parse_yaml, read_yaml
from pairwright.config.sections import EngineConfig, EvaluateConfig, LoopConfig, Section, SourcesConfig, TokensConfig
from pairwright.config.train_config import TrainConfig
from pairwright.errors import ConfigError
from pairwright.paths import is_address, place

# The model tree: one section a stage, in the order of the flow.


class Config(Section):
    """A run: one section a stage, each with its own options. `load_config` reads one from a file.

    >>> import pairwright as pw
    >>> pw.Config(name="first", train={"epochs": 2}).train.epochs
    2
    """

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Name of the run; its files are in runs/<name>."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of everything that is drawn."""
    base: str | None = None
    """Folder that relative paths count from where the current one does not have them; by default that of this file. A
    run writes it into the configuration that it saves, so that this one runs again."""
    model: str | None = None
    """Model that is trained, a folder or a Hub id; also the policy's unless that has an endpoint. By default
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

    @model_validator(mode="after")
    def _follows_curriculum(self) -> "Config":
        """Our own trainer follows a curriculum; NeMo RL can keep the order of its file, but knows no stages."""
        pairs, trainer = self.pairs, self.backend.name
        key = "curriculum_start" if pairs.curriculum_start is not None else "curriculum"
        if pairs.curriculum == "none" or trainer in ("local", "ray") or (trainer, key) == ("nemo-rl", "curriculum"):
            return self
        raise ValueError(
            f"pairs.{key}: backend {trainer} would train the pairs in another order: leave it out, or set "
            "backend.name to local or ray"
        )

    @model_validator(mode="after")
    def _is_encoded_here(self) -> "Config":
        """Other trainers encode the texts of pairs by themselves, with the model's own template."""
        names = ("chat_template", "chat_template_kwargs", "train_turns", "tools_as_text")
        changed = [name for name in names if getattr(self.tokens, name) != getattr(TokensConfig(), name)]
        for name in changed if self.backend.name not in ("local", "ray") else ():
            raise ValueError(
                f"tokens.{name}: backend {self.backend.name} encodes texts by itself and would not follow it: leave it "
                "out, or set backend.name to local or ray"
            )
        return self


# Dotted keys: which exist, their fields, and what to write instead of one that does not exist.


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
        # foreign names of a field are keys, too, but sections are walked under our own name only
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


# Errors: validation problems as lines that name the key, or the command-line option that set it.

# Pydantic's phrases and ours; longer phrases come before those that they contain
_WORDS = {
    "Input should be": "expected",
    "greater than or equal to": "at least",
    "greater than": "above",
    "less than or equal to": "at most",
    "less than": "below",
}


def describe_problems(
    error: ValidationError,
    root: type[BaseModel],
    *,
    flags: Mapping[str, tuple[str, Any]] | None = None,
    with_values: bool = False,
) -> list[str]:
    """One line a problem.

    root: the model that was validated.
    flags: for keys that were set on the command line, the option and its value; lines name these instead of the key.
    with_values: whether to repeat bad values; those of a configuration may be secrets from the environment.
    """
    lines: dict[str, str] = {}
    for problem in error.errors(include_url=False):
        location, message = _locate(problem, root)
        key = ".".join(location)
        # an option stands for every problem at or below its key; the dots keep `a.b` from matching `a.bc`
        flag = next((option for option in flags or {} if f"{key}.".startswith(f"{option}.")), None)
        if problem["type"] == "extra_forbidden":
            name, line = key, _explain_unknown(location, root)
        elif flags and flag is not None:
            name, line = flag, _with_value(*flags[flag], message)
        elif with_values and len(problem["loc"]) == len(location):
            name, line = location[0], _with_value(location[0], problem["input"], message)
        else:
            name, line = key, f"{key}: {message}" if key else message
        # the branches of a union are problems of one value: the first says what is expected, the others add to it
        lines[name] = f"{lines[name]}, or {_expectation(message).removeprefix('expected ')}" if name in lines else line
    return list(lines.values())


class Options(Section):
    """A section that Python callers create by itself: what is wrong with it is a ConfigError, as in a configuration.

    >>> from pairwright.config.train_config import DistillTerms
    >>> class DistillOptions(Options, DistillTerms): ...
    >>> DistillOptions(beta=1.5)
    Traceback (most recent call last):
    pairwright.errors.ConfigError: beta: got 1.5, expected at most 1
    """

    if not TYPE_CHECKING:  # type checkers see the fields as arguments

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError("; ".join(describe_problems(error, type(self), with_values=True))) from None


def _locate(problem: Any, root: type[BaseModel]) -> tuple[list[str], str]:
    """Where a problem is, and what. A check over several fields names its field at the start of its message."""
    location = [str(part) for part in problem["loc"]]
    if problem["type"] != "value_error":
        return location, problem["msg"]
    message = problem["msg"].removeprefix("Value error, ")
    name, colon, rest = message.partition(": ")
    # a validator may name its field by its own name, or by the full dotted key
    prefix = ".".join([*location, ""])
    if colon and (name in _list_keys(location, root) or (prefix and name.startswith(prefix))):
        return [*location, name.removeprefix(prefix)], rest
    return location, message


def _with_value(name: str, value: Any, message: str) -> str:
    expectation = _expectation(message)
    return f"{name}: got {value!r}, {expectation}" if expectation.startswith("expected") else f"{name}: {message}"


def _expectation(message: str) -> str:
    for theirs, ours in _WORDS.items():
        message = message.replace(theirs, ours, 1)
    return message


# Keys of earlier versions, and what happens without them.
_REMOVED = {
    "policy.retry_seconds": "the first wait is 0.5 s and doubles",
    "policy.max_retry_seconds": "the longest wait is 60 s",
    "train.dpo.margin_scale": "a margin is the reward gap itself",
    "train.grpo.max_ratio": "ratios are bounded by clip_low and clip_high alone",
    "train.grpo.kl_estimator": "the estimator is k3",
    "train.grpo.teacher_beta": "the advantage is log p_teacher - log p_student",
    "train.sdpo.top_k_of": "the tokens are the student's likeliest",
    "train.sdpo.token_clip": "the loss of a token is not bounded",
    "train.sdpo.entropy_weight": "tokens count alike",
    "train.sdpo.feedback_field": "feedback is info.feedback",
    "train.sdpo.solution_text": "the text around an answer is fixed",
    "train.sdpo.feedback_text": "the text around feedback is fixed",
    "backend.nemo_customizer.request_timeout_seconds": "a request may take 60 s",
    "backend.nemo_platform.request_timeout_seconds": "a request may take 60 s, an upload 600",
    "backend.nemo_platform.max_status_failures": "10 status calls in a row may fail",
    "backend.nemo_platform.output_name": "models are named after dataset_name",
    "backend.local.deployment_timeout_seconds": "a model server may take 300 s to answer",
}


def _explain_unknown(location: list[str], root: type[BaseModel]) -> str:
    # Options that are built in Python have no section in front of their key.
    removed = next((key for key in _REMOVED if f".{key}".endswith("." + ".".join(location))), None)
    if removed is not None:
        return f"unknown key {'.'.join(location)!r}, which was removed: {_REMOVED[removed]}"
    known = _list_keys(location[:-1], root)
    near = difflib.get_close_matches(location[-1], known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"
    return f"unknown key {'.'.join(location)!r}; {hint}"


def _list_keys(location: list[str], root: type[BaseModel]) -> list[str]:
    model: type[BaseModel] | None = root
    for part in location:
        field = model.model_fields.get(part) if model is not None else None
        model = None if field is None else section_of(field.annotation)
    return [] if model is None else list(model.model_fields)


# Loading: file, environment, overrides and command-line options as one tree, which is then validated.

ENVIRONMENT_PREFIX = "PAIRWRIGHT_"
# Keys that hold addresses, which may have credentials in them
_PLACES = (("sources", "paths"), ("pairs", "teachers"), ("tokens", "experience"))
# ${NAME}: group 1 is the name of the variable
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def load_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, tuple[str, Any]] | None = None,
) -> Config:
    """The configuration of a file (or the defaults), with the environment and then the overrides applied.

    Args:
        path: A YAML file; None for the defaults.
        overrides: Keys and their values as YAML text, e.g. [("train.epochs", "2")].
        environment: Variables to read instead of those of this process; PAIRWRIGHT_TRAIN__EPOCHS is train.epochs.
        flags: What command-line options set, as key: (option, value). They override the rest; errors name the option.

    >>> import pairwright as pw
    >>> pw.load_config(overrides=[("train.epochs", "2")], environment={}).train.epochs
    2
    """
    environment = os.environ if environment is None else environment
    tree = _fill(merge_tree(path, overrides=overrides, environment=environment), environment, "config")
    if flags:
        _set_flags(tree, flags)
    config = validate_tree(tree, str(path or "config"), flags or {})
    return config if path is None else _with_code_files(config, base_folder(config, path))


def base_folder(config: Config, path: str | os.PathLike[str]) -> Path:
    """The folder that relative paths of a configuration file count from, after the current one."""
    folder = Path(path).resolve().parent
    return folder if config.base is None else folder / config.base


def printable_config(
    path: str | os.PathLike[str] | None = None,
    *,
    overrides: Sequence[tuple[str, str]] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The resolved configuration as it may be printed: `${VAR}` for variables, addresses without their credentials."""
    environment = os.environ if environment is None else environment
    # resolve for real, then put the references back where the written tree has them
    resolved = load_config(path, overrides=overrides, environment=environment).model_dump(mode="json")
    tree: dict[str, Any] = _with_references(resolved, merge_tree(path, overrides=overrides, environment=environment))
    if tree["base"] is None and path is not None:
        tree["base"] = str(Path(path).resolve().parent)
    for section, key in _PLACES:
        tree[section][key] = [str(place(text)) if is_address(text) else text for text in tree[section][key]]
    return tree


def merge_tree(
    path: str | os.PathLike[str] | None, *, overrides: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> dict[str, Any]:
    """File, environment and overrides as one tree of plain values, `${VAR}` not filled yet."""
    tree = {} if path is None else read_tree(Path(path))
    for variable in sorted(environment):
        if variable.startswith(ENVIRONMENT_PREFIX):
            key = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("__", ".")
            # a reference and not the value, so that printing the tree cannot reveal it
            _set(tree, key, f"${{{variable}}}", variable)
    for key, value in overrides:
        if not is_top_key(key):
            raise ConfigError(explain_unknown(key))
        _set(tree, key, parse_yaml(value, key), key)  # 3 is a number, true a bool, [a, b] a list
    return tree


def config_schema() -> dict[str, Any]:
    """The JSON schema of the configuration, for editors."""
    return Config.model_json_schema()


def read_tree(path: Path) -> dict[str, Any]:
    """The keys and values of a YAML file; ConfigError if it has others."""
    value = read_yaml(path)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{path}: expected keys and values at the top, got {type(value).__name__}")
    return value


def _set(tree: dict[str, Any], dotted: str, value: Any, where: str) -> None:
    *parents, last = dotted.split(".")
    for parent in parents:
        tree = tree.setdefault(parent, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"{where}: {parent!r} is a value, not a section")
    tree[last] = value


def _set_flags(tree: dict[str, Any], flags: Mapping[str, tuple[str, Any]]) -> None:
    """Set what command-line options say, also where the file uses a foreign or short name for the same thing."""
    if isinstance(tree.get("pairs"), dict):
        tree["pairs"] = own_names(tree["pairs"])
    if isinstance(tree.get("engine"), str):
        tree["engine"] = {"name": tree["engine"]}
    engine = tree.get("engine")
    if "engine.name" in flags and isinstance(engine, dict) and engine.get("name") != flags["engine.name"][1]:
        engine.pop("address", None)  # the address of another engine
    for key, (flag, value) in flags.items():
        _set(tree, key, value, flag)


def _fill(value: Any, environment: Mapping[str, str], where: str) -> Any:
    if isinstance(value, dict):
        return {key: _fill(item, environment, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, environment, f"{where}[{number}]") for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value

    def look_up(match: re.Match[str]) -> str:
        if match[1] not in environment:
            raise ConfigError(f"{where}: the environment has no {match[1]}: set it, or write the value in the file")
        return environment[match[1]]

    text = _REFERENCE.sub(look_up, value)
    # a value that is one reference keeps its YAML type, so that ${PORT} can be a number
    return parse_yaml(text, where) if _REFERENCE.fullmatch(value) else text


def _with_references(resolved: Any, written: Any) -> Any:
    if isinstance(resolved, dict) and isinstance(written, dict):
        return {key: _with_references(item, written.get(key)) for key, item in resolved.items()}
    if isinstance(resolved, list) and isinstance(written, list) and len(resolved) == len(written):
        return [_with_references(item, source) for item, source in zip(resolved, written, strict=True)]
    return written if isinstance(written, str) and _REFERENCE.search(written) else resolved


def validate_tree(tree: dict[str, Any], where: str, flags: Mapping[str, tuple[str, Any]] = {}) -> Config:
    if any(section in tree for section in ("finetuning", *COMPONENTS)):
        raise ConfigError(
            f"{where}: a configuration of NeMo Agent Toolkit: turn it into one of ours with pairwright config from-nat "
            f"{where} -o ours.yaml, or keep it and run nat finetune with our plugin (docs: From NAT)"
        )
    try:
        return Config.model_validate(tree)
    except pydantic.ValidationError as error:
        problems = describe_problems(error, Config, flags=flags)
        # the name of the file helps only if something in it is wrong, not an option
        is_file_wrong = any(not problem.startswith("--") for problem in problems)
        raise ConfigError((f"{where}: " if is_file_wrong else "") + "; ".join(problems)) from None


def _with_code_files(config: Config, folder: Path) -> Config:
    """Functions as path/file.py:function (`train.sdpo.hint`, `tokens.train_turns`, `tokens.credit.function`) count
    from here, then from the folder of the configuration."""

    def find(name: str | None) -> str | None:
        place, _, function = (name or "").rpartition(":")
        is_there = place.endswith(".py") and not Path(place).exists() and (folder / place).exists()
        return f"{folder / place}:{function}" if is_there else name

    train, tokens = config.train, config.tokens
    if (hint := find(train.sdpo.hint)) != train.sdpo.hint:
        train = train.model_copy(update={"sdpo": train.sdpo.model_copy(update={"hint": hint})})
    if (rule := find(tokens.train_turns)) != tokens.train_turns:
        tokens = tokens.model_copy(update={"train_turns": rule})
    if (credit := find(tokens.credit.function)) != tokens.credit.function:
        tokens = tokens.model_copy(update={"credit": tokens.credit.model_copy(update={"function": credit})})
    return (
        config
        if (train, tokens) == (config.train, config.tokens)
        else config.model_copy(update={"train": train, "tokens": tokens})
    )


# Options from Python, laid over a configuration and validated like those of a file.


def adjust_config(config: "Config | str | os.PathLike[str] | None" = None, **values: Any) -> Config:
    """A configuration (or the file of one, or the defaults) with values in the place of its own.

    Args:
        config: What to start from.
        **values: Top-level keys; a dict is laid over the section, key by key.

    >>> adjust_config(seed=3, train={"epochs": 2}).train.epochs
    2
    """
    base = config if isinstance(config, Config) else load_config(config)
    if all(value == {} for value in values.values()):
        return base  # exactly as it is, for those who compare configurations
    # exclude_unset: a value that was never set stays a default, and validators see only what was written
    return validate_tree(_merge(base.model_dump(exclude_unset=True), values), "options")


def _merge(tree: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(tree)
    for key, value in values.items():
        before = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merge(before if isinstance(before, Mapping) else {}, value)
        else:
            merged[key] = _plain(value)
    return merged


def _plain(value: Any) -> Any:
    """Paths as text, also in lists, since a configuration is what a YAML file can say."""
    if isinstance(value, PurePath):
        return str(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
