"""What was asked for and what it was done with: configuration, versions, seeds, hashes."""

from typing import Any

from pairwright.report.markup import join, shown, tag
from pairwright.report.run_folder import RunFolder, read_json, read_text
from pairwright.report.section import Section
from pairwright.sources.redact import redact

MAX_FACTS = 80


def settings_section(run: RunFolder) -> Section | None:
    parts = []
    if run.manifest is not None:
        facts = _flat(read_json(run.manifest))
        rows = [part for name, value in facts[:MAX_FACTS] for part in (tag("dt", name), tag("dd", value))]
        parts.append(tag("dl", *rows))
        if len(facts) > MAX_FACTS:
            parts.append(tag("p", f"{len(facts) - MAX_FACTS:,} more are in {run.manifest.name}.", class_="note"))
    if run.config is not None:
        text, _ = redact(read_text(run.config))
        parts.append(tag("details", tag("summary", run.config.name), tag("pre", text, class_="file")))
    return Section("settings", "Configuration and versions", join(parts)) if parts else None


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Nested values with dotted names; lists of plain values on one line. Keys for certain are not shown."""
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [row for number, item in enumerate(value) for row in _flat(item, f"{name}[{number}]")]
    text = (
        ", ".join(map(str, value)) if isinstance(value, list) else shown(value) if type(value) is float else str(value)
    )
    hidden, _ = redact(text)
    return [(name, hidden if len(hidden) <= 300 else hidden[:300] + "…")]
