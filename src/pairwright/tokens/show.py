"""Sequences painted: what was generated, what the prompt is, tool output, stops, hints; in a terminal or as a page."""

import html
from collections.abc import Iterable
from typing import Any

from rich.text import Text

from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

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
    """The text of each token; a character that several tokens spell is told with the last of them.

    Joined, the texts are what the ids decode to.
    """
    numbers = [int(number) for number in ids]
    texts: list[str] = []
    before = start = 0
    for position in range(len(numbers)):
        known = tokenizer.decode(numbers[before:start])
        more = tokenizer.decode(numbers[before : position + 1])
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
    columns = (sequence.ids.tolist(), texts, sequence.paint.tolist(), sequence.mask.tolist())
    return [
        {"id": number, "text": text, "is": Paint(paint).name.lower(), "trained": trained, "message": message}
        for number, text, paint, trained, message in zip(*columns, sequence.message_index.tolist(), strict=True)
    ]


def painted_text(tokenizer: Any, sequence: Sequence) -> Text:
    """For a terminal: `rich.print(painted_text(...))`. Newlines are shown."""
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
    """One self-contained page: a title and a sequence each; a token's id and message are told when pointed at."""
    ready = chat_tokenizer(tokenizer)
    rules = "".join(f".p{int(paint)}{{background:{told[2]};color:{told[3]}}}" for paint, told in PALETTE.items())
    names = "".join(f'<span class="p{int(paint)}">{html.escape(told[0])}</span> ' for paint, told in PALETTE.items())
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
        shown = html.escape(text).replace("\n", "⏎\n")
        told = f"id {number}" + (f", message {message}" if message >= 0 else "")
        spans.append(f'<span class="p{int(paint)}{" t" if trained else ""}" title="{told}">{shown}</span>')
    facts = f"{len(sequence)} tokens, {sequence.num_trained} trained, {sequence.report.num_turns} turns"
    facts = html.escape("; ".join([facts, *describe_dropped(sequence)]))
    return f"<article><h2>{html.escape(name)}</h2><p>{facts}</p><pre>{''.join(spans)}</pre></article>"
