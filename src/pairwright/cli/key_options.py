"""Options that are derived from keys of the configuration.

    pairwright train --config config.yaml --epochs 2 -o runs/short

An option has the type, choices, default and help of its key, and overrides the file and KEY=VALUE words.
"""

import inspect
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from pairwright.cli.arguments import PLACE, complete_choices
from pairwright.cli.overrides import FLAGS, ConfigCommand

# Flags and value placeholders of options that the name and type of their key do not determine
_FLAGS = {
    "engine.name": "--engine",
    "backend.name": "--backend",
    "pairs.within_run": "--within-run/--no-within-run",
    "pairs.memory_megabytes": "--memory",
    "collect.num_tasks": "--limit",
    "evaluate.num_tasks": "--limit",
    "score.scorers": "--with",
    "score.max_concurrency": "--concurrency",
    "teach.max_concurrency": "--concurrency",
    "tokens.allow_dropped": "--allow-dropped/--refuse-dropped",
    "tokens.allow_images": "--allow-images/--refuse-images",
    "evaluate.metrics": "--metric",
}
_METAVARS = {
    "sources.map": "TARGET=FIELD,...",
    "sources.compaction_prompt": "FILE",
    "score.scorers": "SCORER",
    "pairs.teachers": PLACE,
    "pairs.votes": PLACE,
    "pairs.memory_megabytes": "<text>",
    "tokens.experience": PLACE,
    "tokens.chat_template_kwargs": "JSON",
    "train.report_to": "NAME,NAME",
}
_JOINED = ("train.report_to",)  # lists as one word, with commas; other options of lists are repeated


def with_options(*keys: str, after: str = "output", without: tuple[str, ...] = ()) -> type[ConfigCommand]:
    """A command class that has an option for each key.

    keys: keys of the configuration, such as `train.epochs`; a section means all its keys that are not sections.
    after: the parameter after which help lists the options.
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
            for param in self.params:  # derived options are not arguments of the command's function
                key = getattr(param, "config_key", None)
                if key is None:
                    continue
                value, source = ctx.params.pop(param.name, None), ctx.get_parameter_source(param.name)
                # a default must not override the file: only what is on the command line counts
                if source is not None and source.name == "COMMANDLINE":
                    value = value.split(",") if key in _JOINED else value
                    flags[key] = (param.opts[0], tuple(value) if isinstance(value, list) else value)
            ctx.meta[FLAGS] = flags
            return rest

    return CommandWithOptions


def _expand(keys: tuple[str, ...]) -> Iterator[str]:
    from pairwright.config.config_tree import field_of, section_of

    for key in keys:
        section = section_of(field_of(key).annotation)
        if section is None:
            yield key
        else:
            fields = section.model_fields.items()
            yield from (f"{key}.{name}" for name, field in fields if section_of(field.annotation) is None)


def _build_params(keys: list[str]) -> list[Any]:
    """Build the options of keys, as Typer does for a function with these parameters."""

    # Typer reads options from the signature of a function, so we build one
    def command(**options: Any) -> None:
        pass

    options = {key: _describe(key) for key in keys}
    parameters = [
        # parameters are named by whole keys: `train` has options for both engine.name and backend.name
        inspect.Parameter(key.replace(".", "_"), inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
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
    """The annotation and the default value of a key's option."""
    from pairwright.config.config_tree import field_of
    from pairwright.config.key_comments import words_of

    field, name = field_of(key), key.rpartition(".")[2].replace("_", "-")
    kind, default = _kind_of(field.annotation), field.get_default(call_default_factory=True)
    flag = _FLAGS.get(key, f"--{name}/--no-{name}" if kind is bool and default else f"--{name}")
    metavar, words = _METAVARS.get(key), list(words_of(field.annotation))
    # a key that accepts words or a number, such as evaluate.missing, shows both
    if metavar is None and words:
        metavar = f"<{'|'.join([*words, *(['float'] if float in map(_kind_of, get_args(field.annotation)) else [])])}>"
    text = " ".join((field.description or "").split())
    if key in _JOINED:
        kind, default = str, None
    elif kind is list:
        kind, default, text = list[str], None, f"{text} Repeat the option for several."
    # other values are passed as text, and the configuration parses and checks them
    elif metavar is not None or kind not in (bool, int, float):
        kind, default = str, None if default is None else str(default)
    # a switch has no value to complete
    completion = None if kind is bool else complete_choices(key)
    option = typer.Option(flag, help=text, metavar=metavar, autocompletion=completion)
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
