"""Tokens painted by what they are, trained ones underlined: the sequences of some of the pairs that are shown."""

from pathlib import Path
from typing import Any

import polars as pl

from pairwright.errors import PairwrightError
from pairwright.records.experience import Pair
from pairwright.report.pairs_section import shown_pairs
from pairwright.report.plots import Markup, Section, join, tag
from pairwright.report.run_folder import RunFolder, read_json
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.stage.cache import describe_losses, read_sequences
from pairwright.tokens.stage.preview import PALETTE, token_texts
from pairwright.tokens.stage.stage import folder_hash
from pairwright.tokens.tokenizer import ChatTokenizer

MAX_PAIRS = 3
MAX_TOKENS = 600


def tokens_section(run: RunFolder, tokenizer: Path | None = None) -> Section | None:
    """What the tokens stage made of the shown pairs; without it, what the run's own tokenizer makes of them."""
    cached = next((one.tokens for one in reversed(run.rounds) if one.tokens), None)
    pairs = shown_pairs(run)[:MAX_PAIRS]
    folders = [tokenizer] if tokenizer is not None else run.tokenizers
    if cached is None:
        ready = ChatTokenizer.from_folder(folders[0]) if folders else None
        found = [] if ready is None else _encoded(ready, pairs)
    else:
        found = _from_cache(cached, pairs)
        ready = _made_with(cached, folders, pairs, found)
        if ready is None and tokenizer is not None:
            raise PairwrightError(f"{tokenizer}: not the tokenizer that {cached} was made with; leave --tokenizer out")
    if not found or ready is None:
        # nothing to paint, but what was refused or left out is said in any case
        has_losses = cached is not None and bool(describe_losses(_manifest(cached)))
        return Section("tokens", "Tokens", _counts(cached)) if has_losses else None
    seen = {Paint(int(paint)) for _, _, sequence in found for paint in sequence.paint}
    keys = [tag("span", told[0], class_=f"p{int(paint)}") for paint, told in PALETTE.items() if paint in seen]
    parts = [
        tag("p", "Underlined tokens are trained; all others are only read.", class_="lead"),
        tag("p", *(join([key, " "]) for key in keys), class_="keys"),
        _counts(cached),
        *(
            _pair(ready, name, [row[1:] for row in found if row[0] == name])
            for name in dict.fromkeys(row[0] for row in found)
        ),
    ]
    return Section("tokens", "Tokens", join(parts))


def _made_with(
    cached: Path, folders: list[Path], pairs: list[Pair], found: list[tuple[str, str, Sequence]]
) -> ChatTokenizer | None:
    """The tokenizer that cached sequences were made with: its files are the same, or it gives the same ids."""
    manifest = _manifest(cached)
    made_with = manifest.get("tokenizer")
    options = manifest.get("options", {})
    allowed = {name: bool(options.get(name)) for name in ("allow_dropped", "allow_images")}
    for folder in sorted(folders, key=lambda folder: folder_hash(folder) != made_with):
        ready = ChatTokenizer.from_folder(folder)
        if folder_hash(folder) == made_with:
            return ready
        ids = {(name, side): sequence.ids.tolist() for name, side, sequence in _encoded(ready, pairs, **allowed)}
        if found and all(ids.get((name, side)) == sequence.ids.tolist() for name, side, sequence in found):
            return ready
    return None


def _from_cache(folder: Path, pairs: list[Pair]) -> list[tuple[str, str, Sequence]]:
    ids = [pair.id for pair in pairs]
    found = read_sequences(folder, pl.col("id").is_in(ids))
    return sorted(found, key=lambda row: (ids.index(row[0]), row[1]))


def _encoded(
    tokenizer: ChatTokenizer, pairs: list[Pair], *, allow_dropped: bool = False, allow_images: bool = False
) -> list[tuple[str, str, Sequence]]:
    found = []
    for pair in pairs:
        try:
            made = encode_pair(
                tokenizer, pair.prompt, pair.chosen, pair.rejected, list(pair.tools) or None,
                allow_dropped=allow_dropped, allow_images=allow_images,
            )  # fmt: skip
        except (Refusal, TemplateError):  # the tokens stage counts it; there is nothing to paint
            continue
        found += [(pair.id, "chosen", made.chosen), (pair.id, "rejected", made.rejected)]
    return found


def _manifest(cached: Path) -> dict[str, Any]:
    path = cached / "manifest.json"
    return dict(read_json(path)) if path.is_file() else {}


def _counts(cached: Path | None) -> Markup:
    manifest = {} if cached is None else _manifest(cached)
    if not manifest:
        return Markup("")
    refused = sum(manifest.get("refused", {}).values())
    told = (
        f"{manifest.get('sequences', 0):,} sequences of {manifest.get('encoded', manifest.get('exact', 0)):,} pairs, "
        f"{manifest.get('tokens', 0):,} tokens, {manifest.get('trained_share', 0):.1%} of them trained, "
        f"{refused:,} refused."
    )
    return join([tag("p", line, class_="note") for line in (told, *describe_losses(manifest))])


def _pair(tokenizer: ChatTokenizer, name: str, sequences: list[tuple[str, Sequence]]) -> Markup:
    sides = [_painted(tokenizer, side, sequence) for side, sequence in sequences]
    return tag("article", tag("header", tag("span", name[:12])), tag("div", *sides, class_="sides"), class_="card pair")


def _painted(tokenizer: ChatTokenizer, side: str, sequence: Sequence) -> Markup:
    """A sequence around the start of what is trained: a long prompt is cut in front."""
    first_trained = int(sequence.mask.argmax()) if sequence.mask.any() else 0
    start = max(0, min(first_trained - MAX_TOKENS // 2, len(sequence) - MAX_TOKENS))
    end = min(len(sequence), start + MAX_TOKENS)
    texts = token_texts(tokenizer, sequence.ids[start:end])
    columns = (sequence.ids[start:end], sequence.paint[start:end], sequence.mask[start:end])
    spans = [
        tag("span", text.replace("\n", "⏎\n"), class_=f"p{int(paint)}{' t' if trained else ''}", title=f"id {number}")
        for text, number, paint, trained in zip(texts, *columns, strict=True)
    ]
    if start:
        spans.insert(0, tag("i", f"… {start:,} tokens before … ", class_="more"))
    if end < len(sequence):
        spans.append(tag("i", f" … {len(sequence) - end:,} tokens after", class_="more"))
    facts = f"{side or 'sequence'}, {len(sequence):,} tokens, {sequence.num_trained:,} trained"
    return tag("div", tag("h4", facts), tag("pre", *spans, class_="tokens"))
