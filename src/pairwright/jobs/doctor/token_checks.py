"""Checks of the chat template against the data: encodes a sample as training would, and counts tool calls."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pairwright.config.sections import TokensConfig
from pairwright.errors import PairwrightError
from pairwright.jobs.doctor.findings import Finding, Patient, fine, warn, wrong
from pairwright.pairs.pair_table import FILE_NAME, pair_batches
from pairwright.paths import is_address
from pairwright.records.experience import Experience, Kind
from pairwright.sources.files import expand_paths
from pairwright.sources.format import Options, Rejected
from pairwright.sources.reading import detect, read_file
from pairwright.store.table import Table
from pairwright.tokens.refusals import TokensError
from pairwright.tokens.stage.check import check_template
from pairwright.tokens.stage.items import Item, Source
from pairwright.tokens.stage.stage import encode_items

# Records per table that are encoded, enough to test a template.
_SAMPLE = 256
_WAY_OUT = "train a model whose chat template has tool calls, or accept it: tokens.allow_dropped: true"
_TOKENS_ALONE = "tokens.allow_images: true trains on the tokens alone"
# Refusals with specific advice; each of them is an error, not a warning.
_REASONS = {"dropped": _WAY_OUT, "multimodal": _TOKENS_ALONE, "multi_modal_inputs": _TOKENS_ALONE}


def check_tokens(patient: Patient) -> Iterator[Finding]:
    """Check that the chat template renders the training data."""
    tokenizer = patient.config.tokens.tokenizer or patient.model
    if tokenizer is None or not (Path(tokenizer) / "tokenizer.json").is_file():
        return
    try:
        renders_calls = "no_calls" not in {quirk.name for quirk in check_template(tokenizer).quirks}
    except TokensError:
        return  # check_model has the reason
    options = patient.config.tokens.model_copy(update={"tokenizer": tokenizer})
    tables = list(_tables(patient))
    for folder in tables:
        finding = None if renders_calls else _check_calls(folder, options)
        if finding is not None:
            yield finding
        else:
            # Only the first records are tested: encoding all would take as long as the tokens stage.
            yield from _check_items(str(folder), islice(_items(folder, options), _SAMPLE), options)
    if not tables:
        yield from _check_items("sources.paths", islice(_source_items(patient), _SAMPLE), options)


def _check_calls(folder: Path, options: TokensConfig) -> Finding | None:
    """Return a finding if the template drops tool calls of a table, else None. For templates that render no calls.

    Calls are counted in the whole table. Recorded token ids are trained regardless of the template, so a sample of the
    records with calls is encoded to see whether they are refused.
    """
    num_calls, num_rows = _count_calls(folder)
    if not num_calls:
        return None
    # Only rows with calls can be refused for calls, so the sample is taken among them.
    with_calls = islice((item for item in _items(folder, options) if _has_calls(item)), _SAMPLE)
    if not any(row.get("refusal") == "dropped" for row in encode_items(list(with_calls), options)):
        return None
    records = f"{folder}: {num_calls:,} of {num_rows:,} records"
    return wrong("tokens", f"{records} have tool calls, but the chat template renders none", _WAY_OUT)


def _items(folder: Path, options: TokensConfig) -> Iterator[Item]:
    recorded = TokensConfig(experience=options.experience, recorded=options.recorded)
    return Source(folder, recorded).items(set())


def _has_calls(item: Item) -> bool:
    completion = () if item.experience is None else item.experience.completion
    return any(message.tool_calls for message in (*completion, *item.chosen, *item.rejected))


def _check_items(where: str, items: Iterator[Item], options: TokensConfig) -> Iterator[Finding]:
    """Encode items, and report refusals and fields missing from the prompts."""
    sample = list(items)
    if not sample:
        return
    rows = encode_items(sample, options)
    size = f"{where}: {len(sample):,} records encoded"
    refused = [row for row in rows if row.get("refusal")]
    for reason, count in Counter(row["refusal"] for row in refused).items():
        example = next(row["detail"] for row in refused if row["refusal"] == reason)
        message = f"{size}, {count:,} refused as {reason}, the first one because {example}"
        # A few refusals for other reasons are normal; a completely refused sample is not.
        if reason in _REASONS or count == len(sample):
            yield wrong("tokens", message, _REASONS.get(reason, "the page Tokens of the documentation has the reasons"))
        else:
            yield warn("tokens", message)
    lacking: Counter[str] = Counter()
    for row in rows:
        report = msgspec.json.decode(row.get("report") or "{}")
        # Pairs of (message, field) that the template left out of the prompt.
        lacking.update({field for _, field in report.get("prompt_dropped", ())})
    if lacking:
        fields = ", ".join(f"{name} in {count:,}" for name, count in sorted(lacking.items()))
        yield warn("tokens", f"{size}; the chat template does not render parts of the prompt: {fields}")
    if not refused and not lacking:
        yield fine("tokens", size)


def _tables(patient: Patient) -> Iterator[Path]:
    """Yield the pairs table, and the experience tables of the configuration and of the run."""
    if patient.pairs is not None and (patient.pairs / FILE_NAME).is_file():
        yield patient.pairs
    named = [Path(path) for path in patient.config.tokens.experience if not is_address(path)]
    for folder in (*named, patient.output / "experience", *sorted(patient.output.glob("round-*/experience"))):
        if (folder / "table.json").is_file():
            yield folder


def _source_items(patient: Patient) -> Iterator[Item]:
    """Yield the records of the source files."""
    sources = patient.config.sources
    for pattern in sources.paths:
        # Paths are relative to the folder of the configuration.
        is_relative = patient.base is not None and not is_address(pattern) and not Path(pattern).is_absolute()
        try:
            files = expand_paths([str(patient.base / pattern) if patient.base and is_relative else pattern])
        except PairwrightError:
            continue  # check_sources has the reason
        for path in files:
            layout = detect(path, sources.format)
            if not isinstance(layout, Rejected):
                records = read_file(path, layout, Options(reward=sources.reward))
                yield from (_item_of(record) for record in records if isinstance(record, Experience))


def _item_of(experience: Experience) -> Item:
    name = experience.eid.uid
    if experience.kind is not Kind.PREFERENCE or experience.chosen is None or experience.rejected is None:
        return Item(name, name, experience)
    sides = experience.chosen.messages, experience.rejected.messages
    return Item(name, name, None, experience.prompt, experience.tools, *sides)


def _count_calls(folder: Path) -> tuple[int, int]:
    """Return the number of records with tool calls in the generated messages, and of all records.

    Matches `"tool_calls":` in the JSON of the messages: the key is omitted if there are no calls, and quotes inside
    text are escaped.
    """
    is_pairs = (folder / FILE_NAME).is_file()
    columns = ["chosen", "rejected"] if is_pairs else ["completion"]
    batches: Iterator[Any] = (
        pair_batches(folder, columns) if is_pairs else Table(folder, create=False).scan(columns=columns)
    )
    num_calls = num_rows = 0
    for batch in batches:
        has_calls = pa.array([False] * batch.num_rows)
        for name in columns:
            has_calls = pc.or_(has_calls, pc.fill_null(pc.match_substring(batch.column(name), '"tool_calls":'), False))
        num_calls += int(pc.sum(has_calls).as_py() or 0)
        num_rows += batch.num_rows
    return num_calls, num_rows
