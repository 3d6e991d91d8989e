"""The files of a run folder, by stage. A missing stage is None, and its section is left out.

RUN/                 config.yaml, manifest.json, evaluation.json, comparison.json, and one round's stages, or
RUN/round-N/         the stages of round N
<stages>/            experience/, pairs/, tokens/, metrics.jsonl (or train/metrics.jsonl), evaluation.json, model/
"""

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from pairwright.config.plain_yaml import read_yaml
from pairwright.errors import PairwrightError
from pairwright.records.json_text import from_json

# No stage writes larger files: refuse them before they fill the memory
MAX_JSON_BYTES = 64 * 2**20
MAX_TEXT_CHARACTERS = 40_000


@dataclass(frozen=True)
class Stages:
    """The stages of one round: the paths of their outputs."""

    name: str
    folder: Path
    pairs: Path | None
    tokens: Path | None
    metrics: Path | None
    train: Path | None
    evaluation: Path | None


@dataclass(frozen=True)
class RunFolder:
    """A run: its rounds in order, its configuration and its manifest."""

    name: str
    rounds: list[Stages]
    evaluation: Path | None
    config: Path | None
    manifest: Path | None
    comparison: Path | None = None

    @property
    def tokenizers(self) -> list[Path]:
        """Model folders of the run, the newest first; then those that its trainings and its configuration name."""
        places = ("model", "train/model", "adapter", "train/adapter")
        folders = [stages.folder / place for stages in self.rounds[::-1] for place in places]
        for file in (stages.train for stages in self.rounds[::-1] if stages.train is not None):
            with contextlib.suppress(PairwrightError, KeyError, TypeError):  # another program's train.json
                state: Any = read_json(file)
                folders.append(file.parent / state["inputs"]["tokenizer"])
        with contextlib.suppress(PairwrightError, AttributeError, TypeError):  # another program's config.yaml
            config: Any = read_yaml(self.config) if self.config is not None else {}
            named = [config.get("tokens", {}).get("tokenizer"), config.get("model")]
            bases = [Path(), Path(config.get("base") or "")]
            folders += [base / name for name in named if isinstance(name, str) for base in bases]
        return [path for path in dict.fromkeys(folders) if (path / "tokenizer.json").is_file()]

    def last(self, output: Literal["pairs", "tokens"]) -> Path | None:
        """Return the folder of an output of the last round that has it."""
        return next((path for stages in reversed(self.rounds) if (path := getattr(stages, output))), None)


def open_run(folder: Path) -> RunFolder:
    """List the stages of a run folder, without reading the files."""
    if not folder.is_dir():
        raise PairwrightError(f"{folder}: no such folder; expected the folder of a run")
    rounds = [_stages(path, path.name.replace("-", " ")) for path in round_folders(folder)]
    own = _stages(folder, "")
    # a run without rounds, or with stages directly in its folder
    if not rounds or own.pairs or own.metrics:
        rounds = [own, *rounds]
    # the evaluation of the run itself, else of the last evaluated round
    evaluations = [own.evaluation, *(stages.evaluation for stages in reversed(rounds))]
    run = RunFolder(
        name=folder.resolve().name,
        rounds=rounds,
        evaluation=next(filter(None, evaluations), None),
        config=_file(folder / "config.yaml"),
        manifest=_file(folder / "manifest.json"),
        comparison=_file(folder / "comparison.json"),
    )
    outputs = [[item.pairs, item.tokens, item.metrics, item.train, item.evaluation] for item in rounds]
    if not any(map(any, [*outputs, [run.evaluation, run.config, run.manifest, run.comparison]])):
        raise PairwrightError(
            f"{folder}: nothing to report on; expected pairs/, tokens/, metrics.jsonl or evaluation.json in it"
        )
    return run


def round_folders(folder: Path) -> list[Path]:
    """Return the folders of the rounds of a run, in order: round-10 comes after round-9."""
    rounds = [path for path in folder.iterdir() if re.fullmatch(r"round-\d{1,6}", path.name)]
    return sorted(rounds, key=lambda path: int(path.name.removeprefix("round-")))


def read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise PairwrightError(f"{path}: more than {MAX_JSON_BYTES >> 20} MB, which no stage writes")
        return from_json(path.read_bytes())
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PairwrightError(f"{path}: cannot be read: {error}") from error


def read_manifest(tokens: Path) -> dict[str, Any]:
    """Read the manifest of a tokens folder; {} if it has none."""
    path = tokens / "manifest.json"
    return dict(read_json(path)) if path.is_file() else {}


def find_side(folder: Path, evaluation: dict[str, Any], side: str) -> Path | None:
    """Return the experience table of a side (before, after) of the evaluation in a folder: beside it, in the last
    round, or the compared table."""
    places = (folder, *reversed(round_folders(folder)))
    folders = [place / "evaluation" / side / "experience" for place in places]
    name = evaluation.get(side)
    folders += [Path(name)] if isinstance(name, str) else []
    return next((path for path in folders if (path / "table.json").is_file()), None)


def read_json_lines(path: Path) -> tuple[list[dict[str, Any]], int]:
    """Read the objects of a JSON Lines file, which may still be growing, and count the invalid lines."""
    rows, num_bad = [], 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    row = from_json(line)
                except (msgspec.MsgspecError, ValueError, RecursionError):
                    row = None
                if type(row) is dict:
                    rows.append(row)
                else:
                    # empty lines do not count; an unfinished last line does
                    num_bad += bool(line.strip())
    except OSError as error:
        raise PairwrightError(f"{path}: cannot be read: {error}") from error
    return rows, num_bad


def read_text(path: Path) -> str:
    """Read a text file of a run; a very long one is truncated."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_TEXT_CHARACTERS + 1)
    except OSError as error:
        raise PairwrightError(f"{path}: cannot be read: {error}") from error
    return text if len(text) <= MAX_TEXT_CHARACTERS else text[:MAX_TEXT_CHARACTERS] + "\n… (cut)"


def _stages(folder: Path, name: str) -> Stages:
    return Stages(
        name=name,
        folder=folder,
        pairs=folder / "pairs" if (folder / "pairs" / "pairs.parquet").is_file() else None,
        tokens=folder / "tokens" if (folder / "tokens" / "items.parquet").is_file() else None,
        metrics=_file(folder / "metrics.jsonl") or _file(folder / "train" / "metrics.jsonl"),
        train=_file(folder / "train.json") or _file(folder / "train" / "train.json"),
        evaluation=_file(folder / "evaluation.json"),
    )


def _file(path: Path) -> Path | None:
    return path if path.is_file() else None
