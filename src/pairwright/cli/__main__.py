"""`python -m pairwright.cli`: the command without its script, as child processes start it."""

from pairwright.cli.main import main

if __name__ == "__main__":
    main()
