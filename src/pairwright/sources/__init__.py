"""Readers of agent traces, one module per format.

`READERS` maps each `--format` name to its variants, most specific format first; with `auto` the first format that
matches a file reads it. A format with more than one layout has several variants. `BINARY_READERS` are detected by magic
bytes, and so are pairwright's own binary files and Parquet files, which store/import_task.py reads.
"""

from pairwright.sources.agents import (
    agent_data,
    atif,
    inspect_log,
    openhands,
    openhands_legacy,
    swe_agent,
    tau2_bench,
    tau_bench,
    terminal_bench,
)
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
from pairwright.sources.sessions import (
    chatgpt,
    claude_code,
    cline,
    codex,
    copilot_cli,
    cursor,
    gemini_cli,
    goose,
    hermes,
    kiro_cli,
    managed_agents,
    opencode,
    pi,
    session_lines,
)
from pairwright.sources.tracing import langfuse, langsmith, nat, otel

# The order matters to "auto": rows of messages fit many formats, so the formats with keys of their own come first.
READERS: dict[str, tuple[Format, ...]] = {
    "pairwright": (pairwright_rows.FORMAT,),
    "nemo-gym": (nemo_gym.FORMAT,),
    "tau-bench": (tau_bench.FORMAT,),
    "tau2-bench": (tau2_bench.FORMAT,),
    "terminal-bench": (terminal_bench.FORMAT,),
    "agent-data": (agent_data.FORMAT,),
    "atif": (atif.FORMAT, atif.RESULT_FORMAT),
    "nat": (nat.FORMAT,),
    "inspect": (inspect_log.FORMAT,),
    "langfuse": (langfuse.FORMAT,),
    "langsmith": (langsmith.FORMAT,),
    "otel": (otel.FORMAT,),
    "gemini-cli": (gemini_cli.FORMAT,),
    "session-lines": (session_lines.FORMAT,),
    "claude-code": (claude_code.FORMAT,),
    "codex": (codex.FORMAT,),
    "cline": (cline.FORMAT,),
    "opencode": (opencode.FORMAT,),
    "copilot-cli": (copilot_cli.FORMAT,),
    "cursor": (cursor.FORMAT,),
    "pi": (pi.FORMAT,),
    "goose": (goose.FORMAT,),
    "chatgpt": (chatgpt.FORMAT,),
    "hermes": (hermes.FORMAT,),
    "kiro-cli": (kiro_cli.FORMAT,),
    "managed-agents": (managed_agents.FORMAT,),
    "swe-agent": (swe_agent.FORMAT,),
    "openhands": (openhands.FORMAT, openhands_rows.FORMAT, openhands_legacy.FORMAT),
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
