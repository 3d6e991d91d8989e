"""`loop`: how often the flow goes round, and from where."""

from typing import Annotated, Literal

from pydantic import Field

from pairwright.config.section import Section


class LoopConfig(Section):
    """Rounds of collect, pairs, train; then the proof, and deployment."""

    rounds: Annotated[int, Field(ge=1, le=1000)] = 1
    """Rounds; each has the model of the one before as policy."""
    reference: Literal["initial", "previous"] = "initial"
    """The reference of a round: the model that the first round started from, or the one that this round starts from."""
    accumulate: bool = True
    """Build pairs from the experience of all rounds so far, not of the last alone."""
    evaluate: Literal["last", "each", "never"] = "last"
    """Compare with the first model after the last round, after each, or not at all."""
    deploy: bool = False
    """Deploy the model through the backend when the gate opens."""
