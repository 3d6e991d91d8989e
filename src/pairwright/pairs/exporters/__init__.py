"""Pairs written for other tools: one file a family of targets. `EXPORTERS` lists them by the name that `--to` takes."""

from pairwright.pairs.exporters import llamafactory, nemo, openai, trinity, trl, whole
from pairwright.pairs.exporters.stream import Exporter, ExportOptions, ExportSummary, NothingFits, jsonl_exporter

EXPORTERS: dict[str, Exporter] = {
    "trl": jsonl_exporter("trl", trl.explicit_lines),
    "trl-implicit": jsonl_exporter("trl-implicit", trl.implicit_lines),
    "trl-unpaired": jsonl_exporter("trl-unpaired", trl.unpaired_lines),
    "nemo-rl-preference": jsonl_exporter("nemo-rl-preference", nemo.preference_lines),
    "nemo-rl-binary": jsonl_exporter("nemo-rl-binary", nemo.binary_lines),
    "customizer": jsonl_exporter("customizer", nemo.customizer_lines),
    "openai-preference": jsonl_exporter("openai-preference", openai.preference_lines),
    "together": jsonl_exporter("together", openai.preference_lines),
    "fireworks": jsonl_exporter("fireworks", openai.preference_lines),
    "llamafactory": jsonl_exporter("llamafactory", llamafactory.sharegpt_lines),
    "llamafactory-v1": jsonl_exporter("llamafactory-v1", llamafactory.parts_lines),
    "trinity": jsonl_exporter("trinity", trinity.plaintext_lines),
    "trinity-messages": jsonl_exporter("trinity-messages", trinity.messages_lines),
    "parquet": whole.export_parquet,
    "hf": whole.export_hf,
}

__all__ = ["EXPORTERS", "ExportOptions", "ExportSummary", "Exporter", "NothingFits"]
