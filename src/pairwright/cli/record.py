"""`pairwright record --upstream URL -o DIR`."""

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from pairwright.cli.output import print_json, say
from pairwright.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")


def record(
    upstream: Annotated[str, typer.Option(help="The endpoint that answers, e.g. https://api.openai.com/v1.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder of the experience table.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8002,
    batch: Annotated[str, typer.Option(help="Name of this recording in the ids of its experiences.")] = "record",
    timeout: Annotated[
        float, typer.Option(help="Seconds without a byte after which the upstream is given up.")
    ] = 600.0,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Listen on an address that other machines reach; there are no keys.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the counts as JSON at the end.")] = False,
) -> None:
    """Pass requests of the OpenAI API through to an endpoint, and record them as experiences."""
    if host not in _LOOPBACK and not allow_remote:
        raise ConfigError(f"--host {host}: anybody who reaches it could use it; add --allow-remote if that is meant")
    try:
        from pairwright.collect.listening import listen, serve_app, url_of
        from pairwright.collect.proxy import Proxy
    except ImportError as error:
        raise ConfigError(
            f"recording needs starlette, httpx and uvicorn ({error}): pip install 'pairwright[collect]'"
        ) from None
    proxy = Proxy(upstream, output, batch=batch, timeout_seconds=timeout)
    listener = listen(host, port)
    say(f"recording {url_of(listener)}/v1 -> {proxy.upstream} into {output}; point base_url there, end with Ctrl-C")
    with contextlib.suppress(KeyboardInterrupt):  # the usual end: the server has shut down in order by then
        serve_app(proxy.app(), listener, lifespan="on", date_header=False)
    counts = proxy.counts
    if as_json:
        print_json(
            {
                "requests": counts.requests,
                "experiences": counts.experiences,
                "feedback": counts.feedback,
                "upstream_errors": {str(code): count for code, count in counts.upstream_errors.items()},
                "not_recorded": dict(counts.not_recorded),
            }
        )
    for reason, count in counts.not_recorded.most_common(10):
        say(f"not recorded: {count:,} × {reason}")
    say(
        f"{counts.experiences:,} experiences of {counts.requests:,} requests in {output}, {counts.feedback:,} rewards, "
        f"{counts.upstream_errors.total():,} upstream errors. Next: pairwright experience stats {output}"
    )
