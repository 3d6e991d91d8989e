"""`pairwright serve jobs|targets|token|model`."""

import typer

from pairwright.cli.serve_jobs import serve_jobs, targets, token
from pairwright.cli.serve_model import serve_model

app = typer.Typer(help="Serve fine-tuning jobs, or a model.", no_args_is_help=True)
app.command("jobs")(serve_jobs)
app.add_typer(targets, name="targets")
app.add_typer(token, name="token")
app.command("model", context_settings={"allow_extra_args": True})(serve_model)
