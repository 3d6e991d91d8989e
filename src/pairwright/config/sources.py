"""`sources`: what is read into the experience table."""

from typing import Literal

from pairwright.config.section import Section


class SourcesConfig(Section):
    """What is read into the experience table."""

    paths: tuple[str, ...] = ()
    """Files, folders and globs."""
    format: str = "auto"
    """A format's name, or auto: told by the content of each file."""
    reward: str | None = None
    """Name of the reward component to use where a record has several."""
    redact: bool = False
    """Replace API keys, tokens and private keys by placeholders."""
    on_bad_record: Literal["quarantine", "fail"] = "quarantine"
    """Keep bad records aside and go on, or end with exit code 1 when there are any."""
