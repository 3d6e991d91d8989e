"""`pairwright` and `python -m pairwright`: the command line. Ctrl-C is handled while its modules are loaded, too."""

import sys

from pairwright.interrupts import handle_interrupts


def run_program() -> None:
    handle_interrupts()
    try:
        from pairwright.cli import run_program as run_commands

        run_commands()
    except KeyboardInterrupt:  # before a command begins or after it has ended
        print("pairwright: stopped", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    run_program()
