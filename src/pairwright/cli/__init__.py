"""The command line: verbs in the order of the flow. Heavy libraries are loaded by the command that needs them."""

from pairwright.cli.main import app, main, run_program

__all__ = ["app", "main", "run_program"]
