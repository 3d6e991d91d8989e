"""The card of a dataset repository: content of the table, its funnel, and hashes of its files.

The generated part of the card is between two markers; text outside the markers is kept when the table is pushed again.
"""

import html
import re
from pathlib import Path
from typing import Any

import msgspec

from pairwright.errors import ConfigError, PairwrightError
from pairwright.pairs.funnel import FILE_NAME as FUNNEL
from pairwright.pairs.funnel import funnel_rows, read_funnel
from pairwright.pairs.pair_stats import pair_statistics
from pairwright.store.table import Table
from pairwright.store.table_stats import table_statistics

_BEGIN, _END = "<!-- pairwright: this part is written by pairwright push -->", "<!-- /pairwright -->"
_LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]{0,60}")
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def make_card(
    folder: Path,
    manifest: dict[str, Any],
    *,
    old: bytes | None = None,
    license: str | None = None,
) -> bytes:
    """Return README.md for a table and its manifest; text and licence of the `old` card are kept unless replaced."""
    from huggingface_hub import DatasetCard

    if license is not None and not _LICENSE.fullmatch(license):
        raise ConfigError(f"license: got {license!r}, expected an identifier of the Hub such as apache-2.0")
    try:
        # huggingface_hub warns if there is no metadata, so an empty block is added.
        card = DatasetCard((old or b"---\n{}\n---\n").decode(), ignore_metadata_errors=True)
    except Exception as error:  # users may have written any YAML
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise PairwrightError(f"README.md of the repository: its metadata cannot be read: {first}") from None
    data = card.data
    data["license"] = license or data.get("license")
    tags = {tag for tag in data.get("tags") or () if isinstance(tag, str)}
    data["tags"] = sorted(tags | {"pairwright"} | ({"dpo"} if manifest["kind"] == "pairs" else set()))
    data["size_categories"] = [next((name for most, name in _SIZES if manifest["rows"] < most), "n>1M")]
    # Explicit, so that only the table is shown as the dataset, not outcomes.parquet.
    path = "pairs.parquet" if manifest["kind"] == "pairs" else "*.parquet"
    data["configs"] = [{"config_name": "default", "data_files": [{"split": "train", "path": path}]}]
    own = f"{_BEGIN}\n{_describe(folder, manifest, data['license'])}\n{_END}"
    text = card.text.strip()
    if _BEGIN in text and _END in text:
        before, _, rest = text.partition(_BEGIN)
        text = f"{before}{own}{rest.partition(_END)[2]}".strip()
    else:
        text = f"{text}\n\n{own}".strip()
    return f"---\n{data.to_yaml()}\n---\n\n{text}\n".encode()


def _describe(folder: Path, manifest: dict[str, Any], license_name: str | None) -> str:
    is_pairs = manifest["kind"] == "pairs"
    noun = "preference pairs" if is_pairs else "experiences (scored runs of an agent)"
    parts = [
        f"# {manifest['rows']:,} {noun}",
        "`pairwright pull THIS -o DIR` downloads the table and checks every byte; "
        + ("`pairwright train --pairs DIR` trains on it." if is_pairs else "`pairwright pairs DIR -o PAIRS` pairs it."),
        f"Licence: {license_name}." if license_name else "No licence was named: ask before you use it.",
    ]
    if is_pairs and (folder / FUNNEL).is_file():
        funnel = read_funnel(folder)
        parts += ["## Funnel", _table(("stage", "what", "count"), funnel_rows(funnel))]
        options = {name: value for name, value in funnel.get("options", {}).items() if value not in (None, [], False)}
        # A condition may contain the characters that end a code block.
        text = msgspec.json.format(msgspec.json.encode(options)).decode().replace("`", "\\u0060")
        parts += ["## Options", f"```json\n{text}\n```"]
    statistics = pair_statistics(folder) if is_pairs else table_statistics(Table(folder, create=False))
    rows: list[tuple[Any, ...]] = [(name, value) for name, value in statistics.items() if not isinstance(value, dict)]
    for name, counts in statistics.items():
        if isinstance(counts, dict) and not any(isinstance(value, dict) for value in counts.values()):
            rows += [(f"{name}: {key}", value) for key, value in counts.items()]
    parts += ["## Statistics", _table(("what", "value"), [row for row in rows if row[1] is not None])]
    files = [(name, entry["size"], entry["sha256"]) for name, entry in manifest["files"].items()]
    parts += ["## Files", _table(("file", "bytes", "SHA-256"), files)]
    return "\n\n".join(parts)


def _table(names: tuple[str, ...], rows: Any) -> str:
    lines = [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
    lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    """Format a cell of a Markdown table; text from traces (models, formats) is escaped."""
    if isinstance(value, int):
        return f"{value:,}"
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    escaped = re.sub(r"([\\|`*_\[\]!#~])", r"\\\1", " ".join(text.split()))
    return html.escape(escaped[:200], quote=False)
