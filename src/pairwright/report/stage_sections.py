"""The sections on data: the funnel from experiences to pairs, and token sequences.

Token sequences of some sample pairs are coloured by kind, trained tokens underlined.
"""

from pathlib import Path
from typing import Any

import polars as pl

from pairwright.errors import PairwrightError
from pairwright.pairs.funnel import read_funnel
from pairwright.records.experience import Pair
from pairwright.report.charts import Bar, bar_chart
from pairwright.report.markup import Markup, join, tag
from pairwright.report.page_parts import Plot, Section
from pairwright.report.pairs_section import sample_pairs
from pairwright.report.run_folder import RunFolder, Stages, read_manifest
from pairwright.tokens.encode_options import DEFAULT, EncodeOptions
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.stage.cache import describe_losses, read_sequences
from pairwright.tokens.stage.paint import PALETTE, token_texts
from pairwright.tokens.stage.stage import folder_hash
from pairwright.tokens.tokenizer import ChatTokenizer

MAX_PAIRS = 3  # sample pairs with tokens on the page
MAX_TOKENS = 600  # tokens of a sequence that are shown


def funnel_section(run: RunFolder) -> Section | None:
    """Return the funnels of all rounds; the last is expanded, earlier ones are collapsed."""
    plots: list[Plot] = []
    parts: list[Markup] = []
    for stages in reversed(run.rounds):
        try:
            funnel = {} if stages.pairs is None else read_funnel(stages.pairs)
        except PairwrightError:  # pairs from elsewhere have no funnel, but the other sections show them
            continue
        if not funnel.get("stages"):
            continue
        stage_plots = [_stage_plot(stage, stages) for stage in funnel["stages"]]
        plots += stage_plots
        grid = tag("div", *(plot.card() for plot in stage_plots), class_="cards")
        words = tag("p", _sentence(stages, funnel), class_="lead")
        if parts:
            parts.append(tag("details", tag("summary", f"Funnel of {stages.name or 'the run itself'}"), words, grid))
        else:
            parts += [words, grid]
    return Section("funnel", "From experiences to pairs", join(parts), plots) if parts else None


def _sentence(stages: Stages, funnel: dict[str, Any]) -> str:
    first = funnel["stages"][0]
    held = f", {funnel['validation']:,} of them held out for validation" if funnel.get("validation") else ""
    where = f"{stages.name[:1].upper()}{stages.name[1:]}: " if stages.name else ""
    strategy = funnel.get("options", {}).get("strategy")
    how = f" by the strategy {strategy}" if strategy else ""
    hint = f" {funnel['hint']}" if funnel.get("hint") else ""
    return f"{where}{first['in']:,} {first['unit']} gave {funnel.get('pairs', 0):,} pairs{how}{held}.{hint}"


def _stage_plot(stage: dict[str, Any], stages: Stages) -> Plot:
    total = stage["in"] or 1
    bars = [Bar("in", stage["in"], "before")]
    # the reason with the most drops comes first
    drops = sorted(stage["drops"], key=lambda drop: -drop["count"])
    bars += [Bar(drop["reason"], drop["count"], "rejected", f"{drop['count'] / total:.0%}") for drop in drops]
    bars.append(Bar("out", stage["out"], "accent", f"{stage['out'] / total:.0%}"))
    # in the CSV file drops are negative, so that `in` plus all drops is `out`
    rows = [("what", "count"), ("in", stage["in"]), *((drop["reason"], -drop["count"]) for drop in drops)]
    rows.append(("out", stage["out"]))
    name = f"funnel-{stage['unit']}" + (f"-{stages.name.replace(' ', '-')}" if stages.name else "")
    return Plot(name, stage["unit"].capitalize(), bar_chart(bars, label=f"{stage['unit']}: in, dropped, out"), rows)


def tokens_section(run: RunFolder, tokenizer: Path | None = None) -> Section | None:
    """Return sequences of the sample pairs: from the tokens stage, or else encoded with the tokenizer of the run."""
    cached = run.last("tokens")
    pairs = sample_pairs(run)[:MAX_PAIRS]
    folders = [tokenizer] if tokenizer is not None else run.tokenizers
    if cached is None:
        ready = ChatTokenizer.from_folder(folders[0]) if folders else None
        sequences = [] if ready is None else _encode_pairs(ready, pairs)
    else:
        ids = [pair.id for pair in pairs]
        # in the order of the samples, chosen before rejected
        found = read_sequences(cached, pl.col("id").is_in(ids))
        sequences = sorted(found, key=lambda row: (ids.index(row[0]), row[1]))
        ready = _find_tokenizer(cached, folders, pairs, sequences)
        if ready is None and tokenizer is not None:
            raise PairwrightError(f"{tokenizer}: not the tokenizer that {cached} was made with; leave --tokenizer out")
    if not sequences or ready is None:
        # no sequences to show, but refused and dropped content is always reported
        has_losses = cached is not None and bool(describe_losses(read_manifest(cached)))
        return Section("tokens", "Tokens", _counts(cached)) if has_losses else None
    # colours that occur, for the legend
    paints = {Paint(int(paint)) for _, _, sequence in sequences for paint in sequence.paint}
    keys = [tag("span", names[0], class_=f"p{int(paint)}") for paint, names in PALETTE.items() if paint in paints]
    parts = [
        tag("p", "Underlined tokens are trained; all others are only read.", class_="lead"),
        tag("p", *(join([key, " "]) for key in keys), class_="keys"),
        _counts(cached),
    ]
    for name in dict.fromkeys(row[0] for row in sequences):
        sides = [_render_sequence(ready, side, sequence) for own, side, sequence in sequences if own == name]
        header = tag("header", tag("span", name[:12]))
        parts.append(tag("article", header, tag("div", *sides, class_="sides"), class_="card pair"))
    return Section("tokens", "Tokens", join(parts))


def _find_tokenizer(
    cached: Path, folders: list[Path], pairs: list[Pair], sequences: list[tuple[str, str, Sequence]]
) -> ChatTokenizer | None:
    """Find the tokenizer of the cached sequences: one with the same hash, or one that gives the same ids."""
    manifest = read_manifest(cached)
    tokenizer_hash = manifest.get("tokenizer")
    options = manifest.get("options", {})
    allowed = EncodeOptions(
        allow_dropped=bool(options.get("allow_dropped")), allow_images=bool(options.get("allow_images"))
    )
    # the folder with the same hash comes first, since it needs no encoding
    for folder in sorted(folders, key=lambda folder: folder_hash(folder) != tokenizer_hash):
        ready = ChatTokenizer.from_folder(folder)
        if folder_hash(folder) == tokenizer_hash:
            return ready
        ids = {(name, side): sequence.ids.tolist() for name, side, sequence in _encode_pairs(ready, pairs, allowed)}
        if sequences and all(ids.get((name, side)) == sequence.ids.tolist() for name, side, sequence in sequences):
            return ready
    return None


def _encode_pairs(
    tokenizer: ChatTokenizer, pairs: list[Pair], options: EncodeOptions = DEFAULT
) -> list[tuple[str, str, Sequence]]:
    """Encode pairs to (pair id, side, sequence); refused pairs are skipped."""
    sequences = []
    for pair in pairs:
        try:
            sides = pair.prompt, pair.chosen, pair.rejected
            encoded = encode_pair(tokenizer, *sides, list(pair.tools) or None, options)
        except (Refusal, TemplateError):  # counted by the tokens stage; no sequence to show
            continue
        sequences += [(pair.id, "chosen", encoded.chosen), (pair.id, "rejected", encoded.rejected)]
    return sequences


def _counts(cached: Path | None) -> Markup:
    manifest = {} if cached is None else read_manifest(cached)
    if not manifest:
        return Markup("")
    refused = sum(manifest.get("refused", {}).values())
    summary = (
        f"{manifest.get('sequences', 0):,} sequences of {manifest.get('encoded', manifest.get('exact', 0)):,} pairs, "
        f"{manifest.get('tokens', 0):,} tokens, {manifest.get('trained_share', 0):.1%} of them trained, "
        f"{refused:,} refused."
    )
    return join([tag("p", line, class_="note") for line in (summary, *describe_losses(manifest))])


def _render_sequence(tokenizer: ChatTokenizer, side: str, sequence: Sequence) -> Markup:
    """Render a sequence around the first trained token: a long prompt is truncated at its start."""
    # argmax of a bool array is the first True
    first_trained = int(sequence.mask.argmax()) if sequence.mask.any() else 0
    # half of the window is the prompt right before the first trained token
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
