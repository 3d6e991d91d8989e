"""The settings section: configuration, versions, seeds, hashes."""

from typing import Any

from pairwright.report.page_sections import Section
from pairwright.report.plots import format_number, join, tag
from pairwright.report.run_folder import RunFolder, read_json, read_text
from pairwright.sources.redact import redact

MAX_FACTS = 80


def settings_section(run: RunFolder) -> Section | None:
    """The manifest and the configuration of the run, with secrets redacted; None if it has neither."""
    parts = []
    if run.manifest is not None:
        facts = _flat(read_json(run.manifest))
        # <dt> and <dd> alternate in one flat list
        rows = [part for name, value in facts[:MAX_FACTS] for part in (tag("dt", name), tag("dd", value))]
        parts.append(tag("dl", *rows))
        if len(facts) > MAX_FACTS:
            parts.append(tag("p", f"{len(facts) - MAX_FACTS:,} more are in {run.manifest.name}.", class_="note"))
    if run.config is not None:
        text, _ = redact(read_text(run.config))
        parts.append(tag("details", tag("summary", run.config.name), tag("pre", text, class_="file")))
    return Section("settings", "Configuration and versions", join(parts)) if parts else None


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Flatten nested values to (dotted name, text); lists of plain values are one line. Secrets are redacted."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [row for number, item in enumerate(value) for row in _flat(item, f"{name}[{number}]")]
    text = (
        ", ".join(map(str, value))
        if isinstance(value, list)
        else format_number(value)
        if type(value) is float
        else str(value)
    )
    redacted, _ = redact(text)
    return [(name, redacted if len(redacted) <= 300 else redacted[:300] + "…")]
