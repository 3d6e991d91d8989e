"""Keys of the configuration on the command line: as `KEY=VALUE` words, and as options that are derived from keys.

    pairwright run config.yaml train.epochs=2 -o runs/short        a word, or after --set
    pairwright train --config config.yaml --epochs 2 -o runs/short     an option, see `with_options`

Keys are absolute. A word is an override, a path, or an error: one that could be both is refused, never guessed. An
option has the type, choices, default and help of its key, and overrides the file and the words.
"""

import glob
import inspect
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer
from typer.core import TyperCommand

from pairwright.cli.arguments import (
    PLACE,
    complete_choices,
    complete_format,
    complete_names,
    complete_override,
    literals_of,
)
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.config import Config

# KEY=VALUE words.

# A dotted key; parts after the first may have dashes
_KEY = r"[A-Za-z_]\w*(?:\.[\w-]+)*"
# Group 1 is the key; a value may span lines
_OVERRIDE = re.compile(rf"({_KEY})=.*", re.S)
_OLD_OPTIONS = ("-o", "--override")  # what set keys in an earlier release

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set one key of the configuration, e.g. train.epochs=2; repeat. --set may be left out.",
        autocompletion=complete_override,
    ),
]


class ConfigCommand(TyperCommand):
    """A command that takes a configuration: its words KEY=VALUE are handed to `--set` before parsing."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = _label_words(self.params, args)
        if not ctx.resilient_parsing:  # completion neither fails nor looks at files
            _refuse_old_form(self.params, words)
        joined = []
        for label, word in words:
            is_override = label == "argument" and _is_override(word, is_checked=not ctx.resilient_parsing)
            joined += ["--set", word] if is_override else [word]
        return super().parse_args(ctx, joined)


def parse_overrides(words: Iterable[str] | None) -> list[tuple[str, str]]:
    """Keys and values, as `load_config` takes them."""
    pairs = []
    for word in words or ():
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set: got {word!r}, expected KEY=VALUE, e.g. --set train.epochs=2")
        pairs.append((key, value))
    return pairs


def load_settings(
    file: Path | None, words: list[str] | None, flags: Mapping[str, tuple[str, Any]] | None = None
) -> "Config":
    """The configuration of a command that works without one: without a file the environment sets no keys.

    flags: what the command's derived options set, see `set_flags`."""
    from pairwright.config import load_config
    from pairwright.config.config_file import ENVIRONMENT_PREFIX

    environment = {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
    return load_config(
        file, overrides=parse_overrides(words), environment=None if file is not None else environment, flags=flags
    )


def _label_words(params: list[Any], args: list[str]) -> list[tuple[str, str]]:
    """Each word with its part in the command: option, value (of the option before it), argument, literal (after --)."""
    # spellings of options that take a value: the word after one is no argument
    with_value = {
        spelling
        for param in params
        if param.param_type_name == "option" and not param.is_flag and not param.count
        for spelling in param.opts
    }
    labels, words = [], iter(args)
    for word in words:
        if word == "--":
            labels += [("option", word), *(("literal", other) for other in words)]
        elif word in with_value:
            labels += [("option", word), *(("value", value) for value in [next(words, None)] if value is not None)]
        else:
            labels.append(("option" if word.startswith("-") and word != "-" else "argument", word))
    return labels


def _is_override(word: str, *, is_checked: bool) -> bool:
    """Whether a word among the arguments sets a key. Folders of datasets may be called `date=2026-01-01`."""
    match = _OVERRIDE.fullmatch(word)
    if match is None or not is_checked:
        return match is not None
    from pairwright.config.config_file import explain_unknown, is_top_key

    key = match[1]
    # lexists: a broken link is a path, too
    is_path = os.path.lexists(word) or (glob.has_magic(word) and any(True for _ in glob.iglob(word, recursive=True)))
    if is_path and is_top_key(key):
        raise ConfigError(f"{word}: a path and an override: write ./{word} for the path, or --set {shlex.quote(word)}")
    if not is_path and not is_top_key(key):
        raise ConfigError(f"{word}: no such file, and as an override: {explain_unknown(key)}")
    return not is_path


def _refuse_old_form(params: list[Any], labels: list[tuple[str, str]]) -> None:
    """`-o KEY VALUE` set a key once. Now `-o` is the output: whoever writes the old form reads the new one."""
    words = [word for _, word in labels]
    has_output = any("-o" in param.opts for param in params)
    # how many words each argument takes; -1 is any number
    capacity = [param.nargs for param in params if param.param_type_name == "argument"]
    num_arguments = sum(label == "argument" and not _OVERRIDE.fullmatch(word) for label, word in labels)
    has_excess = -1 not in capacity and num_arguments > sum(capacity)
    old, new = [], []
    for number, (label, word) in enumerate(labels):
        if label != "option" or word not in _OLD_OPTIONS:
            continue
        # the two words after the option, "" where there are fewer
        key, value = (*words[number + 1 : number + 3], "", "")[:2]
        # an option cannot be the value of the old form: `-o train --batch-size 8` names a folder
        is_value = bool(value) and not value.startswith("-")
        is_output = word == "-o" and has_output and not (is_value and (has_excess or "." in key))
        if not is_output and _is_like_key(key, is_exact=word == "-o" and has_output and not has_excess):
            old.append(f"{word} {key} {value}".strip())
            new.append(shlex.quote(f"{key}={value or 'VALUE'}"))
    if new:
        output = "-o is the output" if has_output else "there is no -o here"
        raise ConfigError(f"{' '.join(old)}: {output}; keys are set by KEY=VALUE words: write {' '.join(new)}")


def _is_like_key(text: str, *, is_exact: bool) -> bool:
    """Whether a word is a key of the configuration, or (not exact) begins like one."""
    if not re.fullmatch(_KEY, text):
        return False
    from pairwright.config.config_file import explain_unknown, is_top_key, iterate_keys

    return text in iterate_keys() if is_exact else is_top_key(text) or "did you mean" in explain_unknown(text)


# Options that are derived from keys.

_META = "pairwright.flags"  # where the context keeps what derived options set


@dataclass(frozen=True)
class Spelling:
    """How a key is written on the command line, where its name and type do not decide it."""

    flag: str | None = None
    metavar: str | None = None
    complete: Callable[[str], list[str]] | None = None
    is_joined: bool = False
    """A list as one word, with commas; by default the option is repeated."""


_SPELLINGS = {
    "sources.format": Spelling(complete=complete_format),
    "sources.map": Spelling(metavar="TARGET=FIELD,..."),
    "sources.compaction_prompt": Spelling(metavar="FILE"),
    "engine.name": Spelling("--engine"),
    "backend.name": Spelling("--backend", complete=complete_choices("backend.name")),
    "pairs.strategy": Spelling(complete=complete_choices("pairs.strategy")),
    "pairs.within_run": Spelling("--within-run/--no-within-run"),
    "score.scorers": Spelling("--with", metavar="SCORER"),
    "score.max_concurrency": Spelling("--concurrency"),
    "pairs.teachers": Spelling(metavar=PLACE),
    "pairs.votes": Spelling(metavar=PLACE),
    "pairs.memory_megabytes": Spelling("--memory", metavar="<text>"),
    "tokens.experience": Spelling(metavar=PLACE),
    "tokens.chat_template_kwargs": Spelling(metavar="JSON"),
    "tokens.allow_dropped": Spelling("--allow-dropped/--refuse-dropped"),
    "tokens.allow_images": Spelling("--allow-images/--refuse-images"),
    "train.dpo.loss": Spelling(complete=complete_choices("train.dpo.loss")),
    "train.report_to": Spelling(
        metavar="NAME,NAME", is_joined=True, complete=complete_names("tensorboard", "wandb", "mlflow", "trackio")
    ),
    "evaluate.metrics": Spelling("--metric"),
    "evaluate.num_resamples": Spelling("--resamples"),
    "teach.max_concurrency": Spelling("--concurrency"),
}


def with_options(*keys: str, after: str = "output", without: tuple[str, ...] = ()) -> type[ConfigCommand]:
    """A command class that has an option for each key.

    keys: keys of the configuration, such as `train.epochs`; a section stands for all its keys that are no sections.
    after: the parameter of the command below which help lists the options.
    without: keys of a named section that get no option.
    """

    class CommandWithOptions(ConfigCommand):
        def __init__(self, *args: Any, **settings: Any) -> None:
            self._declared: list[Any] = []
            self._all: list[Any] | None = None
            super().__init__(*args, **settings)

        @property
        def params(self) -> list[Any]:  # derived when first read: `pairwright --help` loads no configuration
            if self._all is None:
                names = [param.name for param in self._declared]
                position = names.index(after) + 1
                derived = _build_params([key for key in _expand(keys) if key not in without])
                self._all = [*self._declared[:position], *derived, *self._declared[position:]]
            return self._all

        @params.setter
        def params(self, declared: list[Any]) -> None:
            self._declared, self._all = declared, None

        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            rest = super().parse_args(ctx, args)
            flags = {}
            for param in self.params:  # derived options are no arguments of the command's function
                key = getattr(param, "config_key", None)
                if key is None:
                    continue
                value, source = ctx.params.pop(param.name, None), ctx.get_parameter_source(param.name)
                # a default must not override the file: only what stands on the command line counts
                if source is not None and source.name == "COMMANDLINE":
                    is_joined = key in _SPELLINGS and _SPELLINGS[key].is_joined
                    value = value.split(",") if is_joined else value
                    flags[key] = (param.opts[0], tuple(value) if isinstance(value, list) else value)
            ctx.meta[_META] = flags
            return rest

    return CommandWithOptions


def set_flags(ctx: typer.Context) -> dict[str, tuple[str, Any]]:
    """What derived options were set on the command line, as key: (option, value)."""
    flags: dict[str, tuple[str, Any]] = ctx.meta[_META]
    return flags


def _expand(keys: tuple[str, ...]) -> Iterator[str]:
    """Keys, with those of a section in its place."""
    from pairwright.config.config_file import field_of, section_of

    for key in keys:
        section = section_of(field_of(key).annotation)
        if section is None:
            yield key
        else:
            fields = section.model_fields.items()
            yield from (f"{key}.{name}" for name, field in fields if section_of(field.annotation) is None)


def _build_params(keys: list[str]) -> list[Any]:
    """Options as Typer builds them for a function that has these parameters."""

    # Typer reads options from the signature of a function, so one is made up for them
    def command(**options: Any) -> None:
        pass

    options = {key: _describe(key) for key in keys}
    parameters = [
        inspect.Parameter(
            key.rpartition(".")[2], inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
        )
        for key, (annotation, default) in options.items()
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    app = typer.Typer(add_completion=False)
    app.command()(command)
    params = [param for param in typer.main.get_command(app).params if param.name != "help"]
    for key, param in zip(keys, params, strict=True):
        param.config_key = key  # type: ignore[attr-defined]
    return params


def _describe(key: str) -> tuple[Any, Any]:
    """The annotation and the default of a key's option."""
    from pairwright.config.config_file import field_of

    field, name = field_of(key), key.rpartition(".")[2].replace("_", "-")
    spelling = _SPELLINGS.get(key, Spelling())
    kind, default = _kind_of(field.annotation), field.get_default(call_default_factory=True)
    flag, metavar, words = spelling.flag, spelling.metavar, list(literals_of(field.annotation))
    if flag is None:
        flag = f"--{name}/--no-{name}" if kind is bool and default else f"--{name}"
    # a number that is allowed beside words, as in evaluate.missing, is named, too
    if metavar is None and words:
        metavar = f"<{'|'.join([*words, *(['float'] if float in map(_kind_of, get_args(field.annotation)) else [])])}>"
    text = " ".join((field.description or "").split())
    if kind is list and spelling.is_joined:
        kind, default = str, None
    elif kind is list:
        kind, default, text = list[str], None, f"{text} Repeat the option for several."
    # other values are passed as text, and the configuration parses and checks them
    elif metavar is not None or kind not in (bool, int, float):
        kind, default = str, None if default is None else str(default)
    option = typer.Option(
        flag,
        help=text,
        metavar=metavar,
        autocompletion=spelling.complete or (complete_choices(key) if words else None),
    )
    return Annotated[kind | None if default is None else kind, option], default


def _kind_of(annotation: Any) -> Any:
    """bool, int, float, list or str: the type of an option's value."""
    if get_origin(annotation) is Annotated:
        return _kind_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        # several possible types: text, which the configuration parses
        kinds = {_kind_of(choice) for choice in get_args(annotation) if choice is not NoneType}
        return kinds.pop() if len(kinds) == 1 else str
    if get_origin(annotation) is tuple:
        return list
    return annotation if annotation in (bool, int, float) else str
