"""A few sequences to look at, in colours: from the cache, or encoded now from a table, from pairs, from a conversation.

folder of cached sequences   as they were encoded
experience table, pairs      encoded now; with `hints`, the hinted teacher of an experience beside the student
.json, .jsonl                conversations: a list of messages, or {"messages": [...], "tools": [...]}
"""

import html
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
from rich.text import Text

from pairwright.errors import PairwrightError, TableError
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.encode_turns import encode_turns
from pairwright.tokens.hints import Hinter
from pairwright.tokens.recorded import encode_experience
from pairwright.tokens.refusals import TokensError
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.spans.dropped import refuse_media_inputs
from pairwright.tokens.stage.cache import ITEMS, list_refusals, read_sequences
from pairwright.tokens.stage.items import Item, Source
from pairwright.tokens.teacher_sequences import encode_distillations
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

Titled = tuple[str, Sequence]
Result = tuple[str, Sequence | TokensError]
_MAX_REFUSED = 200  # items of a table that are refused before no more are tried


def preview(
    path: Path,
    tokenizer: ChatTokenizer,
    *,
    name: str | None = None,
    num: int = 3,
    hints: Hinter | None = None,
    allow_dropped: bool = False,
    allow_images: bool = False,
    refused: Callable[[str, str], None] = lambda title, reason: None,
) -> list[Titled]:
    """At most `num` sequences with their titles; `name`: only those of this experience or pair. `refused` is called
    with the title and the reason of at most `num` items that are refused."""
    options = {"allow_dropped": allow_dropped, "allow_images": allow_images}
    if path.is_file():
        results = _preview_file(path, tokenizer, options)
    elif (path / ITEMS).is_file():
        results = _preview_cache(path, None if name is None else pl.col("id") == name)
    else:
        results = _preview_source(path, tokenizer, name, options, hints=hints)
    sequences: list[Titled] = []
    reasons: list[str] = []
    for title, result in results:
        if not isinstance(result, TokensError):
            sequences.append((title, result))
            if len(sequences) == num:
                break
            continue
        reasons.append(str(result))
        if len(reasons) <= num:
            refused(title, str(result))
    if not sequences:
        what = f"no sequence{'' if hints is None else ' with a hint'}{'' if name is None else f' of {name}'}"
        why = f": {len(reasons):,} refused, the first one because {reasons[0]}" if reasons else ""
        raise PairwrightError(f"{path}: {what}{why}")
    return sequences


def _preview_cache(path: Path, where: pl.Expr | None) -> Iterator[Result]:
    for uid, _, detail in list_refusals(path, where):
        yield uid, TokensError(detail)
    for uid, side, sequence in read_sequences(path, where):
        yield f"{uid} {side}".strip(), sequence


def _preview_source(
    path: Path, tokenizer: ChatTokenizer, name: str | None, options: dict[str, bool], *, hints: Hinter | None
) -> Iterator[Result]:
    try:
        # No salt: keys are not looked up in a cache here.
        source = Source(path, salt="")
    except TableError:
        raise TableError(f"{path}: no cached sequences, no experience table, no pairs, no file") from None
    num_refused = 0
    for item in source.items(set()):
        if name is None or item.id == name:
            try:
                if hints is None:
                    yield from _preview_item(tokenizer, item, options)
                else:
                    yield from _preview_hinted(tokenizer, item, options, hints)
            except TokensError as error:
                yield item.id, error
                # A template may refuse every item of a large table: stop after some.
                num_refused += 1
                if num_refused == _MAX_REFUSED:
                    return


def _preview_item(tokenizer: ChatTokenizer, item: Item, options: dict[str, bool]) -> Iterator[Titled]:
    if item.experience is not None:
        sequences = encode_experience(
            tokenizer, item.experience, allow_dropped=options["allow_dropped"], allow_images=options["allow_images"]
        )
        yield from ((item.id, sequence) for sequence in sequences)
        return
    sides = item.prompt, item.chosen, item.rejected
    pair = encode_pair(
        tokenizer,
        *sides,
        list(item.tools) or None,
        sources=item.sources,
        cut=item.cut,
        allow_dropped=options["allow_dropped"],
        allow_images=options["allow_images"],
    )
    yield f"{item.id} chosen", pair.chosen
    yield f"{item.id} rejected", pair.rejected


def _preview_hinted(tokenizer: ChatTokenizer, item: Item, options: dict[str, bool], hinter: Hinter) -> Iterator[Titled]:
    experience = item.experience
    if experience is None or not experience.errors:
        return
    hints, _ = hinter(experience.messages, experience.errors)
    # Turns of the prompt are context: they have no teacher.
    hints = [hint for hint in hints if hint.target >= len(experience.prompt)]
    if hints:
        tools = list(experience.tools) or None
        start = len(experience.prompt)
        refuse_media_inputs(experience, allow=options["allow_images"])
        for distillation in encode_distillations(
            tokenizer,
            experience.messages,
            hints,
            tools,
            train_from=start,
            allow_dropped=options["allow_dropped"],
            allow_images=options["allow_images"],
        ):
            yield f"{experience.eid.uid} student", distillation.student
            yield f"{experience.eid.uid} teacher", distillation.teacher


def _preview_file(path: Path, tokenizer: ChatTokenizer, options: dict[str, bool]) -> Iterator[Result]:
    for number, value in enumerate(_values(path), start=1):
        # A bare list of messages is a conversation without tools.
        chat = {"messages": value} if isinstance(value, list) else value
        messages = chat.get("messages") if isinstance(chat, dict) else None
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise PairwrightError(f"{path}:{number}: expected a list of messages, or an object with one as 'messages'")
        title = f"{path.name}:{number}"
        try:
            sequences = encode_turns(
                tokenizer,
                messages,
                chat.get("tools"),
                allow_dropped=options["allow_dropped"],
                allow_images=options["allow_images"],
            )
        except TokensError as error:
            yield title, error
            continue
        yield from ((title, sequence) for sequence in sequences)


def _values(path: Path) -> Iterator[Any]:
    try:
        data = path.read_bytes()
        if path.suffix == ".jsonl":
            yield from (msgspec.json.decode(line) for line in data.splitlines() if line.strip())
        else:
            yield msgspec.json.decode(data)
    except (OSError, msgspec.MsgspecError) as error:
        raise PairwrightError(f"{path}: not a conversation: {error}") from None


# Colours of tokens by what they are, in a terminal and as an HTML page.

# Paint -> (name, terminal style, background of the page, colour of the page). Trained tokens are underlined, too.
PALETTE: dict[Paint, tuple[str, str, str, str]] = {
    Paint.TEMPLATE: ("template", "bright_black", "#ffffff", "#8a8f98"),
    Paint.SYSTEM: ("system", "magenta", "#f5eafa", "#5b2a73"),
    Paint.USER: ("user", "blue", "#e8f0fd", "#1d3f7a"),
    Paint.TOOL: ("tool output", "yellow", "#fdf3dc", "#6b4c00"),
    Paint.ASSISTANT: ("assistant, not trained", "cyan", "#e3f4f4", "#14565a"),
    Paint.GENERATED: ("generated", "bold green", "#d9f5df", "#0d5222"),
    Paint.REASONING: ("generated: reasoning", "green", "#e7f7d4", "#3c5a10"),
    Paint.CALL: ("generated: call", "bold bright_green", "#c6efd6", "#06492c"),
    Paint.STOP: ("generated: stop", "bold white on red", "#f9c9c4", "#7d150b"),
    Paint.HINT: ("hint", "bold black on yellow", "#fff1a8", "#5c4a00"),
    Paint.TEXT: ("text, not trained", "blue", "#edf1f7", "#33475f"),
}


def token_texts(tokenizer: ChatTokenizer, ids: Iterable[int]) -> list[str]:
    """The text of each token; a character that several tokens spell belongs to the last of them.

    Joined, the texts are what the ids decode to.
    """
    numbers = [int(number) for number in ids]
    texts: list[str] = []
    # numbers[before:start] spell the last text; numbers[start:] up to the position have none yet.
    before = start = 0
    for position in range(len(numbers)):
        # Decode with the token before, since some tokenizers change the start of a text.
        known = tokenizer.decode(numbers[before:start])
        more = tokenizer.decode(numbers[before : position + 1])
        # A replacement character: the token ends inside a character, so wait for the next one.
        if more.endswith("\ufffd") and position - start < 12 and position + 1 < len(numbers):
            texts.append("")
            continue
        texts.append(more[len(known) :])
        before, start = start, position + 1
    return texts


def describe_dropped(sequence: Sequence) -> list[str]:
    """What the template left out of a sequence, a line for each kind."""
    lines = []
    kinds = (("generated", sequence.report.dropped), ("prompt", sequence.report.prompt_dropped))
    for kind, fields in kinds:
        names = ", ".join(name if message < 0 else f"{name} of message {message}" for message, name in fields[:8])
        if fields:
            lines.append(f"not rendered ({kind}): {names}{', ...' if len(fields) > 8 else ''}")
    if sequence.report.images:
        lines.append(f"left out: {sequence.report.images} images, audio, video or files")
    return lines


def token_rows(tokenizer: Any, sequence: Sequence) -> list[dict[str, Any]]:
    """The tokens for other programs: id, text, what it is, whether it is trained, its message (-1: the template)."""
    texts = token_texts(chat_tokenizer(tokenizer), sequence.ids)
    # One row for each token: id, text, paint, whether it is trained.
    columns = (sequence.ids.tolist(), texts, sequence.paint.tolist(), sequence.mask.tolist())
    return [
        {"id": number, "text": text, "is": Paint(paint).name.lower(), "trained": trained, "message": message}
        for number, text, paint, trained, message in zip(*columns, sequence.message_index.tolist(), strict=True)
    ]


def paint_text(tokenizer: Any, sequence: Sequence) -> Text:
    """For a terminal: `rich.print(paint_text(...))`. Newlines are shown."""
    ready = chat_tokenizer(tokenizer)
    result = Text()
    for text, paint, trained in zip(token_texts(ready, sequence.ids), sequence.paint, sequence.mask, strict=True):
        style = PALETTE[Paint(paint)][1] + (" underline" if trained else "")
        result.append(text.replace("\n", "⏎\n"), style=style)
    return result


def legend() -> Text:
    result = Text()
    for name, style, _, _ in PALETTE.values():
        result.append(f" {name} ", style=style)
        result.append("  ")
    return result


def html_page(tokenizer: Any, sequences: Iterable[tuple[str, Sequence]], *, title: str = "tokens") -> str:
    """One self-contained page: a title and a sequence each; a tooltip shows a token's id and message."""
    ready = chat_tokenizer(tokenizer)
    # A CSS class for each paint (p0, p1, ...), and t for trained tokens.
    rules = "".join(f".p{int(paint)}{{background:{entry[2]};color:{entry[3]}}}" for paint, entry in PALETTE.items())
    names = "".join(f'<span class="p{int(paint)}">{html.escape(entry[0])}</span> ' for paint, entry in PALETTE.items())
    bodies = "".join(_article(ready, name, sequence) for name, sequence in sequences)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>body{{font:14px/1.7 system-ui,sans-serif;margin:2rem auto;"
        "max-width:70rem;padding:0 1rem;color:#1c1f24}pre{font:13px/1.8 ui-monospace,monospace;white-space:pre-wrap;"
        "overflow-wrap:anywhere;border:1px solid #dfe2e7;border-radius:6px;padding:1rem}pre span{border-radius:3px;"
        "box-shadow:inset 0 0 0 .5px #0000001a}.t{text-decoration:underline;text-underline-offset:3px}"
        f".legend span{{padding:.1rem .4rem;border-radius:3px}}{rules}</style></head>"
        f'<body><h1>{html.escape(title)}</h1><p class="legend">{names}</p>{bodies}</body></html>'
    )


def _article(tokenizer: ChatTokenizer, name: str, sequence: Sequence) -> str:
    spans = []
    texts = token_texts(tokenizer, sequence.ids)
    columns = (sequence.ids, sequence.paint, sequence.mask, sequence.message_index)
    for text, number, paint, trained, message in zip(texts, *columns, strict=True):
        visible = html.escape(text).replace("\n", "⏎\n")
        tooltip = f"id {number}" + (f", message {message}" if message >= 0 else "")
        spans.append(f'<span class="p{int(paint)}{" t" if trained else ""}" title="{tooltip}">{visible}</span>')
    facts = f"{len(sequence)} tokens, {sequence.num_trained} trained, {sequence.report.num_turns} turns"
    facts = html.escape("; ".join([facts, *describe_dropped(sequence)]))
    return f"<article><h2>{html.escape(name)}</h2><p>{facts}</p><pre>{''.join(spans)}</pre></article>"
