"""`pairwright teach EXPERIENCE --teacher NAME=URL#MODEL ... -o DIR`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pairwright.cli.arguments import PLACE, AsJson
from pairwright.cli.commands.collect import say_failures
from pairwright.cli.output import print_result, say
from pairwright.cli.overrides import Overrides, load_settings, set_flags
from pairwright.cli.progress_view import CollectView
from pairwright.errors import ConfigError, PairwrightError

if TYPE_CHECKING:
    from pairwright.collection.runner import Collected
    from pairwright.collection.teaching import States
    from pairwright.config import PolicyConfig


def ask_teachers(
    ctx: typer.Context,
    experience: Annotated[
        str, typer.Argument(metavar=PLACE, help="The student's experience table; also s3://...", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="Folder of the answers; a teacher's table is in NAME/experience.")
    ],
    teacher: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=WHERE", help="An endpoint (URL#MODEL) or a model's folder; repeat."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="A configuration whose `teach` section also names teachers.")
    ] = None,
    override: Overrides = None,
    temperature: Annotated[float, typer.Option(min=0, help="Sampling temperature of --teacher.")] = 0.0,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer of --teacher.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the key of --teacher endpoints.")
    ] = None,
    token_ids: Annotated[
        bool, typer.Option("--token-ids", help="Ask --teacher endpoints for token ids and log-probabilities.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Ask teachers for one action at every decision of a student; repeated, the command asks only what is missing."""
    from pairwright.collection.teaching import read_states, teach
    from pairwright.config import PolicyConfig, base_folder
    from pairwright.paths import place
    from pairwright.store.table import Table

    settings = load_settings(config, override, set_flags(ctx))
    # for teachers of the command line; those of the configuration have their own options
    options = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "api_key_env": api_key_env,
        "logprobs": token_ids,
        "return_token_ids": token_ids,
    }
    teachers: dict[str, PolicyConfig] = dict(settings.teach.teachers)
    for text in teacher or ():
        name, policy = parse_teacher(text, options)
        if name in teachers:
            raise ConfigError(f"--teacher {text}: there is a teacher {name!r} already: give each its own name")
        teachers[name] = policy
    states = read_states(Table(place(experience), create=False))

    def watch(name: str) -> Any:
        say(f"{name}: asked at {len(states.decisions):,} states of {states.num_decisions:,} decisions")
        return view.show

    with CollectView() as view:
        collections = teach(
            states,
            teachers,
            output=output,
            seed=settings.seed,
            watch=watch,
            max_concurrency=settings.teach.max_concurrency,
            base=None if config is None else base_folder(settings, config),
        )
    _report(states, collections, experience, as_json=as_json)


def parse_teacher(text: str, options: dict[str, Any]) -> tuple[str, "PolicyConfig"]:
    """A teacher from the command line: NAME=URL#MODEL (without #MODEL the model is called NAME), or NAME=FOLDER."""
    from pairwright.config import PolicyConfig

    name, has_place, where = text.partition("=")
    if not has_place or not name or not where:
        raise ConfigError(f"--teacher: got {text!r}, expected NAME=URL#MODEL or NAME=FOLDER")
    if where.startswith(("http://", "https://")):
        url, _, model = where.partition("#")
        return name, PolicyConfig.model_validate({**options, "base_url": url, "model": model or name})
    # a local model needs no key, and always records token ids
    local = {key: options[key] for key in ("temperature", "max_tokens")}
    return name, PolicyConfig.model_validate({**local, "model": where})


def _report(states: "States", collections: "dict[str, Collected]", student: str, *, as_json: bool) -> None:
    figures = {
        name: {
            "answers": collection.status.num_candidates,
            "done_before": collection.status.num_before,
            "failed": collection.status.num_failed,
            "tokens": collection.status.num_tokens,
            "seconds": round(collection.seconds, 3),
            "without_token_ids": dict(collection.status.without_ids),
        }
        for name, collection in collections.items()
    }
    head = {
        "experiences": states.num_experiences,
        "decisions": states.num_decisions,
        "states": len(states.decisions),
        "skipped": dict(states.skipped),
    }
    columns = ("teacher", "answers", "done_before", "failed", "tokens", "seconds")
    rows = [(name, *(row[key] for key in columns[1:])) for name, row in figures.items()]
    print_result({**head, "teachers": figures}, "teachers", columns, rows, as_json=as_json)
    for reason, count in states.skipped.most_common():
        say(f"{count:,} of {states.num_experiences:,} experiences have no decision: {reason}")
    for name, collection in collections.items():
        say_failures(collection, of=f"{name} ")
    # fail: otherwise the votes of this teacher would be missing silently
    without_answer = [name for name, collection in collections.items() if not collection.status.num_candidates]
    if without_answer:
        raise PairwrightError(f"no answer of {', '.join(without_answer)}: see above; the same command asks again")
    tables = " ".join(f"--teachers {collection.experience}" for collection in collections.values())
    num_answers = sum(collection.status.num_candidates for collection in collections.values())
    num_failed = sum(collection.status.num_failed for collection in collections.values())
    say(
        f"{num_answers:,} answers of {len(collections):,} teachers at "
        f"{len(states.decisions):,} states ({states.num_decisions:,} decisions), {num_failed:,} failed"
        f"{'; the same command asks again' if num_failed else ''}. "
        f"Next: pairwright pairs {student} --strategy teachers {tables} -o PAIRS"
    )
