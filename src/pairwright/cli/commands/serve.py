"""`pairwright serve jobs`, `serve targets add|list|remove`, `serve token create|list|revoke`, `serve model DIR`."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from pairwright.cli.arguments import AsJson, WeightType
from pairwright.cli.output import print_json, print_result, say
from pairwright.errors import ConfigError

if TYPE_CHECKING:
    from pairwright.service.rows.database import Database

targets = typer.Typer(help="The base models that jobs may train.", no_args_is_help=True)
token = typer.Typer(help="Who may use the service.", no_args_is_help=True)

Data = Annotated[Path, typer.Option("--data", help="Folder of the service.", show_default=False)]
DatabaseUrl = Annotated[
    str | None,
    typer.Option("--database", envvar="PAIRWRIGHT_DATABASE", help="postgresql://... for rows; else SQLite in --data."),
]
Name = Annotated[str, typer.Argument(help="Its name.", show_default=False)]


def serve_jobs(
    data: Data,
    host: Annotated[str, typer.Option(help="Address to listen on; only loopback without a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    database: DatabaseUrl = None,
    max_running: Annotated[int, typer.Option(min=0, help="Most jobs that run at a time.")] = 1,
    max_deployments: Annotated[int, typer.Option(min=0, help="Most models that are served at a time.")] = 8,
    max_upload_mb: Annotated[int, typer.Option(min=1, help="Largest upload.")] = 2048,
    stall_minutes: Annotated[float, typer.Option(min=0.05, help="End a job without progress for this long.")] = 60.0,
    stop_seconds: Annotated[float, typer.Option(min=0, help="Seconds that a worker has to save a checkpoint.")] = 30.0,
    quota_gb: Annotated[float | None, typer.Option(min=0, help="Disk quota of a namespace.")] = None,
    keep_checkpoints: Annotated[bool, typer.Option(help="Keep the checkpoints of jobs that ended.")] = False,
    external_endpoint: Annotated[
        list[str] | None, typer.Option(help="Host that deployments may forward to, https://...; repeat for more.")
    ] = None,
) -> None:
    """Serve fine-tuning jobs over HTTP, in the protocol of NeMo Customizer."""
    from pairwright.service import Settings
    from pairwright.service.service_server import serve

    settings = Settings(
        data=data.resolve(),
        database_url=database,
        max_running=max_running,
        max_deployments=max_deployments,
        max_upload_bytes=max_upload_mb * 2**20,  # MiB to bytes
        stall_seconds=stall_minutes * 60,
        stop_seconds=stop_seconds,
        quota_bytes=None if quota_gb is None else int(quota_gb * 1e9),
        keep_checkpoints=keep_checkpoints,
        external_endpoints=tuple(external_endpoint or ()),
    )
    serve(settings, host=host, port=port, say=say)


@targets.command("add")
def add_target(
    name: Annotated[str, typer.Argument(help="Name in jobs, such as meta/llama-3.2-1b-instruct@v1.0.0+A100.")],
    folder: Annotated[Path, typer.Argument(help="A model's folder, with its tokenizer.", show_default=False)],
    data: Data,
    database: DatabaseUrl = None,
) -> None:
    """Add a base model that jobs may train."""
    from pairwright.service.run.base_models import add_target as add

    with _database(data, database) as rows, rows.writing() as connection:
        base_model = add(connection, name, folder)
    say(f"{name}: {base_model['num_parameters']:,} parameters. Next: pairwright serve jobs --data {data}")


@targets.command("list")
def list_targets(data: Data, database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the base models."""
    from pairwright.service.rows import entities

    with _database(data, database) as rows, rows.reading() as connection:
        base_models = entities.every(connection, entities.TARGET)
    columns = ("name", "num_parameters", "precision", "max_seq_length", "model_path")
    cells = [[target[column] for column in columns] for target in base_models]
    print_result(base_models, "base models", columns, cells, as_json=as_json)
    say(f"{len(base_models)} base models in {data}. Next: pairwright serve targets add NAME DIR --data {data}")


@targets.command("remove")
def remove_target(name: Name, data: Data, database: DatabaseUrl = None) -> None:
    """Remove a base model; its files stay, and submitted jobs continue."""
    from pairwright.service.rows import entities

    see = f"; see: pairwright serve targets list --data {data}"
    with _database(data, database, way_out=see) as rows, rows.writing() as connection:
        entities.delete(connection, entities.TARGET, "", name)
    say(f"{name} is not a base model any more")


@token.command("create")
def create_token(
    data: Data,
    name: Annotated[str, typer.Option(help="Owner of the token.", show_default=False)],
    scope: Annotated[
        list[str], typer.Option(help="NAMESPACE, NAMESPACE:read, * or *:read; repeat for more.", show_default=False)
    ],
    database: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it. It is shown only once; the service stores a hash."""
    from pairwright.service.rows.api_tokens import create_token as create

    with _database(data, database) as rows:
        secret = create(rows, name, scope)
    if as_json:
        print_json({"name": name, "scopes": sorted(set(scope)), "token": secret})
    else:
        print(secret)
    say(f"token {name} for {', '.join(scope)}. Every request now needs one: Authorization: Bearer TOKEN")


@token.command("list")
def list_tokens(data: Data, database: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List the names and scopes of tokens, never the tokens."""
    from pairwright.service.rows.api_tokens import list_tokens as read_tokens

    with _database(data, database) as rows:
        tokens = read_tokens(rows)
    cells = [(item["name"], ", ".join(item["scopes"]), item["created_at"]) for item in tokens]
    print_result(tokens, "tokens", ("name", "scopes", "created_at"), cells, as_json=as_json)
    say(f"{len(tokens)} tokens in {data}. Next: pairwright serve token create --data {data} --name NAME --scope NS")


@token.command("revoke")
def revoke_token(name: Name, data: Data, database: DatabaseUrl = None) -> None:
    """Revoke a token at once."""
    from pairwright.service.rows.api_tokens import revoke_token as revoke

    with _database(data, database) as rows:
        revoke(rows, name)
    say(f"token {name} is not accepted any more")


@contextmanager
def _database(data: Path, database: str | None, *, way_out: str = "") -> "Iterator[Database]":
    """The rows of the service, closed at the end; what the service refuses becomes a ConfigError with the way out."""
    from pairwright.service import Settings
    from pairwright.service.api_errors import Refusal
    from pairwright.service.rows.database import Database

    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ConfigError(f"--data {data}: {error.strerror or error}") from None
    rows = Database(Settings(data=data.resolve(), database_url=database).url)
    try:
        yield rows
    except Refusal as refusal:
        raise ConfigError(f"{refusal.message}{way_out}") from None
    finally:
        rows.close()


def serve_model(
    context: typer.Context,
    checkpoint: Annotated[
        Path, typer.Argument(help="A model's folder, an adapter's, or a Hub id.", show_default=False)
    ],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8001,
    name: Annotated[list[str] | None, typer.Option(help="Name that clients ask for; repeat for more.")] = None,
    engine: Annotated[
        Literal["builtin", "vllm"], typer.Option(help="Our own engine, or vLLM if it is installed.")
    ] = "builtin",
    vllm: Annotated[str | None, typer.Option(help="vLLM's program, if it is not on PATH.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token that clients must send.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cuda, mps or cpu; by default the best available.")] = None,
    dtype: Annotated[WeightType, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; by default the idle cores.")] = None,
    tools_as_text: Annotated[
        Literal["off", "hermes"],
        typer.Option(help="For a chat template without a tool role: write tools, calls and results as text."),
    ] = "off",
) -> None:
    """Serve a model behind OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models, /health.

    Arguments after `--` are passed to vLLM.
    """
    from pairwright.paths import find_model
    from pairwright.serve.model_server import check_address, run_vllm, serve_folder, vllm_command

    token = None if api_key_env is None else os.environ.get(api_key_env, "")
    # it is sent in an HTTP header
    if token is not None and (not token or not token.isascii() or not token.isprintable() or " " in token):
        raise ConfigError(f"--api-key-env {api_key_env}: expected a token in that variable: printable, without spaces")
    # without a token only this machine may connect
    check_address(host, token)
    if engine == "vllm":
        if tools_as_text != "off":
            raise ConfigError("--tools-as-text: vLLM renders chats itself: only the built-in engine can")
        command = vllm_command(checkpoint, host=host, port=port, names=name or [], command=vllm, more=context.args)
        say(f"handing over to {' '.join(command)}")
        # does not return: this process becomes vLLM
        run_vllm(command, token)
    if context.args:
        raise ConfigError(f"{' '.join(context.args)}: only --engine vllm takes more options")
    serve_folder(
        find_model(checkpoint),
        host=host,
        port=port,
        names=name or [],
        token=token,
        device=device,
        dtype=dtype,
        threads=threads,
        tools_as_text=tools_as_text,
        say=say,
    )


app = typer.Typer(help="Serve fine-tuning jobs, or a model.", no_args_is_help=True)
app.command("jobs")(serve_jobs)
app.add_typer(targets, name="targets")
app.add_typer(token, name="token")
# extra arguments are what follows `--`, for vLLM
app.command("model", context_settings={"allow_extra_args": True})(serve_model)
