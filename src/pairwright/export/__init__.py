"""Export pairs to other tools: one module per family of targets. `EXPORTERS` maps the names of `--to` to exporters."""

import os
from typing import Any

from pairwright.config.user_code import TARGETS, is_own, load_function
from pairwright.errors import ConfigError, suggest_name
from pairwright.export import llamafactory, nemo, openai_export, trinity_export, trl_export, whole_pairs
from pairwright.export.exporter import Exporter, ExportOptions, ExportSummary, NothingFits, jsonl_exporter, own_lines
from pairwright.export.hub_dataset import HubSummary, pull, push
from pairwright.export.trl_unpaired import export_runs
from pairwright.pairs.container import Pairs
from pairwright.paths import place

EXPORTERS: dict[str, Exporter] = {
    "trl": jsonl_exporter("trl", trl_export.explicit_lines),
    "trl-implicit": jsonl_exporter("trl-implicit", trl_export.implicit_lines),
    "trl-unpaired": jsonl_exporter("trl-unpaired", trl_export.unpaired_lines),
    "nemo-rl-preference": jsonl_exporter("nemo-rl-preference", nemo.preference_lines),
    "nemo-rl-binary": jsonl_exporter("nemo-rl-binary", nemo.binary_lines),
    "customizer": jsonl_exporter("customizer", nemo.customizer_lines),
    "customizer-sft": jsonl_exporter("customizer-sft", nemo.customizer_sft_lines),
    "nemo-platform": jsonl_exporter("nemo-platform", nemo.platform_lines),
    "nemo-platform-text": jsonl_exporter("nemo-platform-text", nemo.platform_text_lines),
    "openai-preference": jsonl_exporter("openai-preference", openai_export.preference_lines),
    "together": jsonl_exporter("together", openai_export.preference_lines),
    "fireworks": jsonl_exporter("fireworks", openai_export.preference_lines),
    "llamafactory": jsonl_exporter("llamafactory", llamafactory.sharegpt_lines),
    "llamafactory-v1": jsonl_exporter("llamafactory-v1", llamafactory.parts_lines),
    "trinity": jsonl_exporter("trinity", trinity_export.plaintext_lines),
    "trinity-messages": jsonl_exporter("trinity-messages", trinity_export.messages_lines),
    # These keep every column of the table; all others are JSON Lines.
    "parquet": whole_pairs.export_parquet,
    "hf": whole_pairs.export_hf,
}


def find_target(name: str) -> Exporter:
    """Return an exporter of `EXPORTERS`, or the user's `file.py:FUNCTION` or entry point.

    The user's function takes a pair as a chat row, {prompt, chosen, rejected, tools, chosen_reward, rejected_reward},
    and returns the row to write as a line of JSON, or None for a pair that the target cannot hold.
    """
    if name in EXPORTERS:
        return EXPORTERS[name]
    if name == "tokens":
        raise ConfigError(
            "export: tokens are rows of encoded pairs: Encoded(...).to_trl(kind), or the command's --to tokens"
        )
    if not is_own(name, TARGETS):
        raise ConfigError(f"--to {name!r}: {suggest_name(name, EXPORTERS)}, or file.py:FUNCTION")
    return jsonl_exporter(name, own_lines(load_function(name, group=TARGETS)))


__all__ = [
    "EXPORTERS",
    "ExportOptions",
    "ExportSummary",
    "Exporter",
    "HubSummary",
    "NothingFits",
    "export_pairs",
    "export_runs",
    "find_target",
    "pull",
    "push",
]


def export_pairs(
    pairs: Pairs | str | os.PathLike[str], target: str, output: str | os.PathLike[str], **options: Any
) -> ExportSummary:
    """Write pairs for another tool.

    Args:
        pairs: Pairs, or their folder.
        target: One of `EXPORTERS`, such as "trl", "nemo-rl-preference" or "parquet": see docs/reference/exports.md.
        output: The file to write; for "hf" the folder.
        **options: Fields of ExportOptions: `split`, `history`, `arguments`, `needs_rows`.

    >>> import pairwright as pw
    >>> pw.export_pairs("runs/first/pairs", "trl", "pairs.jsonl").written
    4
    """
    exporter = find_target(target)
    try:
        export_options = ExportOptions(**options)
    except TypeError:
        names = ", ".join(ExportOptions.__struct_fields__)
        raise ConfigError(f"export: got {', '.join(options)}, expected among {names}") from None
    if not isinstance(pairs, Pairs):
        pairs = Pairs(pairs)
    return exporter(pairs.on_disk(), place(output), export_options)
