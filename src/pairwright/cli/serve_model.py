"""`pairwright serve model CHECKPOINT`."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.completion import complete_choices
from pairwright.cli.output import say
from pairwright.errors import ConfigError


class ServeEngine(StrEnum):
    builtin = "builtin"
    vllm = "vllm"


def serve_model(
    context: typer.Context,
    checkpoint: Annotated[Path, typer.Argument(help="A model's folder, or an adapter's.", show_default=False)],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8001,
    name: Annotated[list[str] | None, typer.Option(help="Name that clients ask for; repeat for more.")] = None,
    engine: Annotated[ServeEngine, typer.Option(help="Our own, or vLLM where it is installed.")] = ServeEngine.builtin,
    vllm: Annotated[str | None, typer.Option(help="vLLM's program, where it is not on the path.")] = None,
    api_key_env: Annotated[
        str | None, typer.Option(help="Environment variable with the token that clients must send.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, ...; else a GPU if there is one.")] = None,
    dtype: Annotated[
        str,
        typer.Option(help="auto, float32, bfloat16 or float16.", autocompletion=complete_choices("policy.dtype")),
    ] = "auto",
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; else the idle cores.")] = None,
) -> None:
    """Serve a model behind OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models, /health.

    What follows `--` goes to vLLM.
    """
    from pairwright.serve.server import check_address, run_vllm, serve_folder, vllm_command

    token = _token(api_key_env)
    check_address(host, token)
    if engine is ServeEngine.vllm:
        command = vllm_command(checkpoint, host=host, port=port, names=name or [], command=vllm, more=context.args)
        say(f"handing over to {' '.join(command)}")
        run_vllm(command, token)
    if context.args:
        raise ConfigError(f"{' '.join(context.args)}: only --engine vllm takes more options")
    serve_folder(
        checkpoint, host=host, port=port, names=name or [], token=token, device=device, dtype=dtype, threads=threads,
        say=say,
    )  # fmt: skip


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(f"--api-key-env {variable}: expected a token in that variable: printable, without spaces")
    return token
