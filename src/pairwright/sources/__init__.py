"""Readers of agent traces: one file a format.

`READERS` lists them by the name that `--format` takes, most specific first: the first that matches a file reads it. A
format with more than one layout has several variants. `BINARY_READERS` are told by first bytes; so are our own bytes
and Parquet files, which store/exported_files.py reads.
"""

from pairwright.sources import (
    atif,
    claude_code,
    codex,
    customizer,
    inspect_log,
    langfuse,
    langsmith,
    nat,
    nemo_gym,
    nemo_rl_preference,
    openai_chat,
    openai_preference,
    openhands,
    openhands_rows,
    otel,
    pairwright_rows,
    sharegpt,
    swe_agent,
    tau_bench,
    trinity,
    trl_preference,
    ultrafeedback,
)
from pairwright.sources.binary import BINARY_READERS
from pairwright.sources.format import Format

READERS: dict[str, tuple[Format, ...]] = {
    "pairwright": (pairwright_rows.FORMAT,),
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
    "nemo-rl-preference": (nemo_rl_preference.FORMAT,),
    "openai-preference": (openai_preference.FORMAT,),
    "customizer": (customizer.FORMAT,),
    "ultrafeedback": (ultrafeedback.FORMAT,),
    "sharegpt": (sharegpt.FORMAT,),
    "trl-preference": (trl_preference.FORMAT,),
    "openai-chat": (openai_chat.FORMAT,),
}

__all__ = ["BINARY_READERS", "READERS", "Format"]
