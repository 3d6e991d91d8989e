"""Events of the NeMo Agent Toolkit: what each says of itself."""

from pairwright.messages import Json
from pairwright.sources.format import Origin, Rejected

NAME = "nat"


def event_of(payload: Json) -> str:
    """The event's type; enums that were written as text keep only their last word."""
    return str(payload["event_type"]).rpartition(".")[2].upper()


def name_of(payload: Json) -> str:
    name = payload.get("name")
    return name if isinstance(name, str) else ""


def rejected(reason: str, origin: Origin) -> Rejected:
    return Rejected(file=origin.file, line=origin.line, reason=reason, format=NAME)
