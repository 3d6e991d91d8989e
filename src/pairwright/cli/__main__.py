"""`python -m pairwright.cli`: the command without its script, as child processes start it."""

from pairwright.cli.main import run_program

if __name__ == "__main__":
    run_program()
