"""`score`: the scorers that are run over an experience table."""

from pairwright.config.sections import Section


class ScoreConfig(Section):
    """Scorers of existing runs; `pairs.score` names the one whose scores become rewards."""

    scorers: tuple[str, ...] = ()
    """Scorers: programs (all built-in criteria), one criterion such as no_loop or number:answer:0.01, file.py:FUNCTION,
    command:PROGRAM. NAME=SCORER names its scores."""
