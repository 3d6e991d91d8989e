"""Readers of agent traces: one file a format.

`READERS` lists them by the name that `--format` takes, most specific first: the first that matches a file reads it. A
format with more than one layout has several variants. `BINARY_READERS` are told by first bytes.
"""

from pairwright.sources import (
    atif,
    claude_code,
    codex,
    inspect_log,
    langfuse,
    langsmith,
    nat,
    nemo_gym,
    openai_chat,
    openhands,
    openhands_rows,
    otel,
    swe_agent,
    tau_bench,
    trinity,
)
from pairwright.sources.binary import BINARY_READERS
from pairwright.sources.format import Format

READERS: dict[str, tuple[Format, ...]] = {
    "nemo-gym": (nemo_gym.FORMAT,),
    "tau-bench": (tau_bench.FORMAT,),
    "atif": (atif.FORMAT,),
    "nat": (nat.FORMAT,),
    "inspect": (inspect_log.FORMAT,),
    "langfuse": (langfuse.FORMAT,),
    "langsmith": (langsmith.FORMAT,),
    "otel": (otel.FORMAT,),
    "claude-code": (claude_code.FORMAT,),
    "codex": (codex.FORMAT,),
    "swe-agent": (swe_agent.FORMAT,),
    "openhands": (openhands.FORMAT, openhands_rows.FORMAT),
    "trinity": (trinity.FORMAT,),
    "openai-chat": (openai_chat.FORMAT,),
}

__all__ = ["BINARY_READERS", "READERS", "Format"]
