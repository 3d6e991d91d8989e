"""Readers of agent traces, one module per format.

`READERS` maps each `--format` name to its variants, most specific format first; with `auto` the first format that
matches a file reads it. A format with more than one layout has several variants. `BINARY_READERS` are detected by magic
bytes, and so are pairwright's own binary files and Parquet files, which store/import_task.py reads.
"""

from pairwright.sources.agents import atif, inspect_log, openhands, swe_agent, tau_bench
from pairwright.sources.agents import openhands_events as openhands_rows
from pairwright.sources.binary import BINARY_READERS
from pairwright.sources.datasets import customizer_rows as customizer
from pairwright.sources.datasets import (
    nemo_rl_preference,
    openai_chat,
    openai_preference,
    pairwright_rows,
    sharegpt,
    trl_preference,
    ultrafeedback,
)
from pairwright.sources.format import Format
from pairwright.sources.rollouts import nemo_gym, trinity
from pairwright.sources.sessions import claude_code, codex
from pairwright.sources.tracing import (
    agents_sdk_traces,
    claude_stream,
    langfuse,
    langsmith,
    litellm_logs,
    mlflow_traces,
    nat,
    nat_atof,
    otel,
    weave_calls,
)

# The order matters to "auto": rows of messages fit many formats, so the formats with keys of their own come first.
READERS: dict[str, tuple[Format, ...]] = {
    "pairwright": (pairwright_rows.FORMAT,),
    "nemo-gym": (nemo_gym.FORMAT,),
    "tau-bench": (tau_bench.FORMAT,),
    "atif": (atif.FORMAT,),
    "nat": (nat.FORMAT,),
    "inspect": (inspect_log.FORMAT,),
    "langfuse": (langfuse.FORMAT,),
    "langsmith": (langsmith.FORMAT,),
    "mlflow": (mlflow_traces.FORMAT,),
    "weave": (weave_calls.FORMAT,),
    "openai-agents": (agents_sdk_traces.FORMAT,),
    "litellm": (litellm_logs.FORMAT,),
    "nat-atof": (nat_atof.FORMAT,),
    "claude-stream": (claude_stream.FORMAT,),
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
    "customizer-sft": (customizer.SFT_FORMAT,),
}

__all__ = ["BINARY_READERS", "READERS", "Format"]
