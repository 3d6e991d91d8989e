"""Verdicts on turns for `tokens.credit.function`: True, False, or None if the verdict is unknown.

told         the verdict of the tools, immediate or late (`info.verdicts`)
at_random    the same number of turns per run as failed, drawn at random: a control for the effect of masking itself
"""

import random
from typing import Any


def told(run: Any, turn: int) -> bool | None:
    verdict = run.info["verdicts"][generated_turns(run).index(turn)]
    return None if verdict is None else bool(verdict)


def at_random(run: Any, turn: int) -> bool:
    turns = generated_turns(run)
    num_failed = sum(verdict == 0 for verdict in run.info["verdicts"])
    return turn not in random.Random(run.eid.uid).sample(turns, num_failed)


def generated_turns(run: Any) -> list[int]:
    """Return the positions of generated turns in prompt and completion; `info.verdicts` has one item per position."""
    first = len(run.prompt)
    return [first + place for place, message in enumerate(run.completion) if message.is_generated]
