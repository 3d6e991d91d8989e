"""Readers of agent traces, one module per format.

`READERS` maps each `--format` name to its variants, most specific format first; with `auto` the first format that
matches a file reads it. A format with more than one layout has several variants. `BINARY_READERS` are detected by magic
bytes, and so are pairwright's own payloads and Parquet files, which store/exported_units.py reads.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pairwright.config.user_code import FORMATS, installed, is_own, load_own
from pairwright.errors import ConfigError, suggest_name
from pairwright.sources.agents import (
    agent_data,
    atif,
    inspect_log,
    openhands,
    openhands_legacy,
    openhands_rows,
    swe_agent,
    tau_bench,
    terminal_bench,
)
from pairwright.sources.agents.inspect_log import read_eval
from pairwright.sources.assemble import Parts
from pairwright.sources.datasets import (
    annotation_exports,
    answer_trees,
    eval_results,
    media_rows,
    message_rows,
    openai_chat,
    pairwright_rows,
    public_sets,
    rows,
    sharegpt,
    slack_export,
    trl_preference,
)
from pairwright.sources.fields import BadRecord
from pairwright.sources.format import Format, Options, Origin
from pairwright.sources.frameworks import (
    adk_sessions,
    api_logs,
    autogen_state,
    batch_files,
    dspy_history,
    gateway_logs,
    langchain_dumps,
    pydantic_ai_history,
    run_states,
    smolagents_memory,
)
from pairwright.sources.rollouts import (
    nemo_gym,
    rendered_dumps,
    s1_traces,
    trinity,
    verifiers_results,
    verifiers_traces,
)
from pairwright.sources.rollouts.trinity_buffer import read_trinity
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
from pairwright.sources.tracing import claude_stream, deepeval_runs, langfuse, nat, otel, span_formats

# "auto" tries the formats in this order: those with distinctive keys first, general readers (`Format.is_general`) last,
# since rows of messages match many formats.
READERS: dict[str, tuple[Format, ...]] = {
    "pairwright": (pairwright_rows.FORMAT,),
    "nemo-gym": (nemo_gym.FORMAT,),
    "verifiers": (verifiers_traces.FORMAT, verifiers_results.FORMAT),
    "trl-completions": (rendered_dumps.TRL_FORMAT,),
    "verl": (rendered_dumps.VERL_FORMAT,),
    "skyrl": (rendered_dumps.SKYRL_FORMAT,),
    "s1": (s1_traces.FORMAT,),
    "tau-bench": (tau_bench.TAU_FORMAT,),
    "tau2-bench": (tau_bench.TAU2_FORMAT,),
    "terminal-bench": (terminal_bench.FORMAT,),
    "agent-data": (agent_data.FORMAT,),
    "atif": (atif.FORMAT, atif.RESULT_FORMAT),
    "nat": (nat.FORMAT,),
    "inspect": (inspect_log.FORMAT,),
    "batch": (batch_files.FORMAT,),
    "api-log": (api_logs.FORMAT, gateway_logs.FORMAT),
    "pydantic-ai": (pydantic_ai_history.FORMAT,),
    "adk": (adk_sessions.FORMAT,),
    "autogen": (autogen_state.FORMAT,),
    "langchain": (langchain_dumps.FORMAT,),
    "smolagents": (smolagents_memory.FORMAT,),
    "dspy": (dspy_history.FORMAT,),
    "langfuse": (langfuse.FORMAT,),
    **{name: (own,) for name, own in span_formats.DECLARED.items()},
    "openai-agents": (span_formats.OPENAI_AGENTS.format, run_states.FORMAT),
    "claude-stream": (claude_stream.FORMAT,),
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
    "argilla": (annotation_exports.FORMAT_ARGILLA,),
    "label-studio": (annotation_exports.FORMAT_LABEL_STUDIO,),
    "alpaca-eval": (public_sets.ALPACA_EVAL.format,),
    "oasst": (answer_trees.OASST_FORMAT,),
    "prm800k": (answer_trees.PRM800K_FORMAT,),
    "xlam": (public_sets.XLAM.format,),
    "deepeval": (deepeval_runs.FORMAT, span_formats.DEEPEVAL.format),
    "lm-eval": (eval_results.LM_EVAL_FORMAT,),
    "promptfoo": (eval_results.PROMPTFOO_FORMAT,),
    "openai-evals": (eval_results.OPENAI_ITEM_FORMAT, eval_results.OPENAI_LOG_FORMAT),
    "slack": (slack_export.FORMAT,),
    "llamafactory-media": (media_rows.FORMAT,),
    "nemo-rl-preference": (public_sets.NEMO_RL_PREFERENCE.format,),
    "openai-preference": (public_sets.OPENAI_PREFERENCE.format,),
    "customizer": (public_sets.CUSTOMIZER.format,),
    "ultrafeedback": (public_sets.ULTRAFEEDBACK.format,),
    "sharegpt": (sharegpt.FORMAT,),
    "trl-preference": (trl_preference.FORMAT,),
    "customizer-sft": (public_sets.CUSTOMIZER_SFT.format,),
    "message-rows": (message_rows.FORMAT,),
    "openai-chat": (openai_chat.FORMAT, message_rows.TRANSCRIPT_FORMAT),
    "rows": (rows.DOCUMENT_FORMAT, rows.FORMAT),
}

# Magic bytes of files that store/exported_units.py reads: payloads, and Parquet with the columns of the table.
OWN_PREFIXES = (b"PWXP", b"PAR1")
# Format name -> (magic bytes, function that yields experiences or decoded units for the format's reader)
BINARY_READERS: dict[str, tuple[bytes, Callable[[Path], Iterator[Any]]]] = {
    "inspect": (b"PK\x03\x04", read_eval),
    "trinity": (b"TRXP", read_trinity),
}


def find_format(name: str) -> tuple[Format, ...]:
    """Return the variants of a format of READERS, or the user's `file.py:FORMAT` or entry point; else ConfigError."""
    if name in READERS:
        return READERS[name]
    if is_own(name, FORMATS):
        return (load_own(name, Format, group=FORMATS),)
    raise ConfigError(f"--format {name!r}: {suggest_name(name, ['auto', *sorted(READERS)])}, or file.py:FORMAT")


def all_formats() -> dict[str, tuple[Format, ...]]:
    """Return the formats that "auto" tries, in order: formats installed by the user, then the built-in ones."""
    return {name: find_format(name) for name in installed(FORMATS) if name not in READERS} | READERS


__all__ = [
    "BINARY_READERS",
    "OWN_PREFIXES",
    "READERS",
    "BadRecord",
    "Format",
    "Options",
    "Origin",
    "Parts",
    "all_formats",
    "find_format",
]
