"""The settings section: configuration, versions, seeds, hashes."""

from datetime import UTC, datetime
from typing import Any

from pairwright.report.markup import Markup, format_number, join, table, tag
from pairwright.report.page_parts import Section
from pairwright.report.run_folder import RunFolder, read_json, read_text
from pairwright.sources.redact import redact

MAX_FACTS = 80
MAX_CHARACTERS = 300


def settings_section(run: RunFolder) -> Section | None:
    """Return the manifest and the configuration of the run, with secrets redacted; None if it has neither."""
    parts = []
    if run.manifest is not None:
        manifest = read_json(run.manifest)
        parts += _overview(manifest)
        facts = _flat(manifest)
        every = [_list(facts[:MAX_FACTS])]
        if len(facts) > MAX_FACTS:
            every.append(tag("p", f"{len(facts) - MAX_FACTS:,} more are in {run.manifest.name}.", class_="note"))
        parts.append(tag("details", tag("summary", run.manifest.name), *every))
    if run.config is not None:
        text, _ = redact(read_text(run.config))
        parts.append(tag("details", tag("summary", run.config.name), tag("pre", text, class_="file")))
    return Section("settings", "Configuration and versions", join(parts)) if parts else None


def _overview(manifest: Any) -> list[Markup]:
    """Render facts and a table of stages from a manifest of `pairwright run`; empty for other manifests."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("stages"), dict):
        return []
    rows = [("command", _text(manifest["command"]))] if manifest.get("command") else []
    if isinstance(manifest.get("started"), int | float):
        rows.append(("started", f"{datetime.fromtimestamp(manifest['started'], UTC):%Y-%m-%d %H:%M} UTC"))
    rows += [(name, _text(manifest[name])) for name in ("seed", "git") if manifest.get(name) is not None]
    versions = manifest.get("versions")
    if isinstance(versions, dict):
        rows.append(("versions", _text(", ".join(f"{name} {version}" for name, version in versions.items()))))
    stages = [
        [
            _text(name),
            _text(stage.get("state", "")),
            f"{format_number(stage.get('seconds'), 3)} s",
            f"{format_number(stage.get('cpu_seconds'), 3)} s",
            f"{format_number((stage.get('peak_memory_bytes') or 0) / 2**20, 3)} MB",
        ]
        for name, stage in manifest["stages"].items()
        if isinstance(stage, dict)
    ]
    heads = ("stage", "state", "time", "CPU time", "peak memory")
    return [_list(rows), *([tag("div", table(heads, stages), class_="card scroll")] if stages else [])]


def _list(facts: list[tuple[str, str]]) -> Markup:
    return tag("dl", *(part for name, value in facts for part in (tag("dt", name), tag("dd", value))))


def _text(value: Any) -> str:
    redacted: str = redact(str(value))[0]
    return redacted if len(redacted) <= MAX_CHARACTERS else redacted[:MAX_CHARACTERS] + "…"


def _flat(value: Any, name: str = "") -> list[tuple[str, str]]:
    """Flatten nested values to (dotted name, text) without nulls; lists of plain values are one line.

    >>> _flat({"train": {"epochs": 2, "seed": None}, "tools": ["ask", "send"]})
    [('train.epochs', '2'), ('tools', 'ask, send')]
    """
    if value is None:
        return []
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{name}.{key}" if name else str(key))]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [row for number, item in enumerate(value) for row in _flat(item, f"{name}[{number}]")]
    if isinstance(value, list):
        value = ", ".join(map(str, value))
    return [(name, _text(format_number(value) if type(value) is float else value))]
