"""The process that serves a model folder, with the built-in engine or by running vLLM."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pairwright.engines.listening import LOOPBACK, listen, serve_app, url_of
from pairwright.errors import ConfigError, PairwrightError
from pairwright.generate.model_folder import base_of_adapter


def check_address(host: str, token: str | None) -> None:
    """Raise if the host is not loopback and no token is set."""
    if token is None and host not in LOOPBACK:
        raise ConfigError(
            f"--host {host}: other machines could connect without authentication: set a token with "
            f"--api-key-env NAME, or serve on 127.0.0.1"
        )


def serve_folder(
    folder: Path,
    *,
    host: str,
    port: int,
    names: Sequence[str] = (),
    token: str | None = None,
    device: str | None = None,
    dtype: str = "auto",
    threads: int | None = None,
    tools_as_text: str = "off",
    say: Callable[[str], None],
) -> None:
    check_address(host, token)
    if not any((folder / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise PairwrightError(f"{folder}: not a model folder: it has no config.json and no adapter_config.json")
    listener = listen(host, port)  # before the model is loaded, so that a port in use fails immediately
    try:
        # model_app imports starlette first: if it is missing, the error names it
        from pairwright.serve.model_app import ModelServer, model_app  # isort: skip
        from transformers.utils import logging as transformers_logging

        from pairwright.generate import Engine
    except ImportError as error:
        raise PairwrightError(f"serving needs more packages ({error}): pip install 'pairwright[serve]'") from None
    transformers_logging.disable_progress_bar()
    # `threads` defaults to the number of idle cores, since more threads would be slower.
    import torch

    # The load average of the last minute is about the number of busy cores.
    idle = (os.cpu_count() or 1) - round(os.getloadavg()[0])
    torch.set_num_threads(threads or max(1, idle))
    engine = Engine.load(folder, device=device, dtype=dtype, tools_as_text=tools_as_text)
    server = ModelServer(engine=engine, names=tuple(names) or (engine.name,), token=token)
    say(
        f"{server.names[0]} on {engine.device} at {url_of(listener)}/v1 (context {engine.context:,}). Stop with Ctrl-C."
    )
    serve_app(model_app(server), listener)


def vllm_command(
    folder: Path, *, host: str, port: int, names: Sequence[str], command: str | None, more: Sequence[str]
) -> list[str]:
    """Build the vLLM command that serves a model folder under `names`; an adapter gets only the first one."""
    program = _vllm(command)
    # vLLM serves an adapter as a module of its base model, under a separate name.
    base = base_of_adapter(folder)
    name = names[0] if names else folder.name
    words = [program, "serve", str(base or folder), "--host", host, "--port", str(port)]
    if base is None:
        return [*words, "--served-model-name", *(names or [name]), *more]
    return [*words, "--enable-lora", "--lora-modules", f"{name}={folder}", *more]


def run_vllm(command: Sequence[str], token: str | None) -> None:
    """Replace this process by vLLM."""
    # The token is passed in the environment, since other users can see the command line.
    environment = {**os.environ, **({"VLLM_API_KEY": token} if token else {})}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(command[0], list(command), environment)


def _vllm(command: str | None) -> str:
    # vLLM is searched beside this Python first, then on the PATH.
    beside = Path(sys.executable).with_name("vllm")
    wanted = command or (str(beside) if beside.exists() else "vllm")
    path = shutil.which(wanted)
    if path is None:
        raise PairwrightError(
            f"--engine vllm: no program {wanted!r}: install vLLM in a separate environment and name it with "
            f"--vllm PATH/bin/vllm, or leave --engine out to use the built-in engine"
        )
    return path
