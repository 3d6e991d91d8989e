"""Show tokens by kind: in a terminal, in a pipe, as rows for other programs, as an HTML page.

With colours, trained tokens are underlined; without colours, they are between ⟦ and ⟧. The page is self-contained: it
loads nothing, follows the light or dark theme, and all text in it is escaped.
"""

import html
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from rich.text import Text

from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer


class Look(NamedTuple):
    """The look of a kind of token: `style` in a terminal; (background, colour) on the page, for light and dark."""

    name: str
    style: str
    light: tuple[str, str]
    dark: tuple[str, str]


PALETTE = {
    Paint.TEMPLATE: Look("template", "bright_black", ("#ffffff", "#6b7280"), ("#14171c", "#8b93a1")),
    Paint.SYSTEM: Look("system", "magenta", ("#f5eafa", "#5b2a73"), ("#33203f", "#e2b8f5")),
    Paint.USER: Look("user", "blue", ("#e8f0fd", "#1d3f7a"), ("#1b2a45", "#a9c7fb")),
    Paint.TOOL: Look("tool output", "yellow", ("#fdf3dc", "#6b4c00"), ("#3a2f14", "#f2d58a")),
    Paint.ASSISTANT: Look("assistant, not trained", "cyan", ("#e3f4f4", "#14565a"), ("#14343a", "#93dbe0")),
    Paint.GENERATED: Look("generated", "bold green", ("#d9f5df", "#0d5222"), ("#12402a", "#9df0b6")),
    Paint.REASONING: Look("generated: reasoning", "green", ("#e7f7d4", "#3c5a10"), ("#2c3d14", "#cdea9a")),
    Paint.CALL: Look("generated: call", "bold bright_green", ("#c6efd6", "#06492c"), ("#0c4a3a", "#8cf2cf")),
    Paint.STOP: Look("generated: stop", "bold white on red", ("#f9c9c4", "#7d150b"), ("#6b1d16", "#ffd3ce")),
    Paint.HINT: Look("hint", "bold black on yellow", ("#fff1a8", "#5c4a00"), ("#574700", "#ffeb8a")),
    Paint.TEXT: Look("text, not trained", "blue", ("#edf1f7", "#33475f"), ("#232b36", "#bccbdd")),
}
OPEN, CLOSE = "⟦", "⟧"  # around trained tokens, without colours
_FOLDED = 300  # the page folds longer runs of template text: tool schemas, long instructions


def token_texts(tokenizer: ChatTokenizer, ids: Iterable[int]) -> list[str]:
    """Return the text of each token; a character spelled by several tokens belongs to the last of them.

    The joined texts equal the decoded ids.
    """
    numbers = [int(number) for number in ids]
    texts: list[str] = []
    # numbers[before:start] spell the last text; numbers[start : position + 1] have no text yet.
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


def describe_report(sequence: Sequence) -> list[str]:
    """Describe what is missing from a sequence and what was changed, one line for each kind."""
    report = sequence.report
    lines = [] if sequence.num_trained else ["nothing is trained: no turn of the model"]
    kinds = (("generated", report.dropped), ("prompt", report.prompt_dropped))
    for kind, fields in kinds:
        names = ", ".join(name if message < 0 else f"{name} of message {message}" for message, name in fields[:8])
        if fields:
            lines.append(f"not rendered ({kind}): {names}{', ...' if len(fields) > 8 else ''}")
    turns = (
        ("no stop token after", report.unstopped),
        ("by a declared row:", report.declared),
        ("not trained, behind the first turns that differ:", report.left_out),
        ("recorded ids do not spell the text of", report.text_differs),
    )
    for what, numbers in turns:
        if numbers:
            more = ", ..." if len(numbers) > 8 else ""
            lines.append(f"{what} message{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers[:8]))}{more}")
    counts = (
        ("images, audio, video or files left out", report.images),
        ("tokens added that nobody generated", report.added_tokens),
        ("ids of calls rewritten", report.rewritten_ids),
        ("tokens cut off", report.truncated),
        ("tokens begin before their turn", report.merged),
        ("control tokens in text that is not the model's", report.control_tokens),
    )
    lines += [f"{count:,} {what}" for what, count in counts if count]
    if sequence.weights is not None:
        weights = dict(zip(sequence.message_index[sequence.mask], sequence.weights[sequence.mask], strict=True))
        shown = ", ".join(f"message {message} × {weight:g}" for message, weight in list(weights.items())[:8])
        lines.append(f"weights: {shown}{', ...' if len(weights) > 8 else ''}")
    return lines


def describe_size(sequence: Sequence) -> str:
    turns = f"{sequence.report.num_turns} turn{'s' if sequence.report.num_turns != 1 else ''}"
    stops = f", stop {' '.join(sequence.report.stops)}" if sequence.report.stops else ""
    return f"{len(sequence):,} tokens, {sequence.num_trained:,} trained, {turns}{stops}"


def token_rows(tokenizer: Any, sequence: Sequence) -> list[dict[str, Any]]:
    """Return the tokens as rows for other programs: id, text, kind, whether trained, message (-1: the template)."""
    texts = token_texts(chat_tokenizer(tokenizer), sequence.ids)
    columns = (sequence.ids.tolist(), texts, sequence.paint.tolist(), sequence.mask.tolist())
    return [
        {"id": number, "text": text, "is": Paint(paint).name.lower(), "trained": trained, "message": message}
        for number, text, paint, trained, message in zip(*columns, sequence.message_index.tolist(), strict=True)
    ]


def paint_text(tokenizer: Any, sequence: Sequence, *, colours: bool = True) -> Text:
    """Paint tokens for a terminal: `rich.print(paint_text(...))`. Newlines are visible. Without colours, trained tokens
    are in double brackets."""
    ready = chat_tokenizer(tokenizer)
    result = Text()
    tokens = zip(token_texts(ready, sequence.ids), sequence.paint, sequence.mask, strict=True)
    for trained, group in itertools.groupby(tokens, key=lambda token: bool(token[2])):
        result.append(OPEN if trained and not colours else "")
        for text, paint, _ in group:
            style = PALETTE[Paint(paint)].style + (" underline" if trained else "")
            result.append(text.replace("\n", "⏎\n"), style=style if colours else "")
        result.append(CLOSE if trained and not colours else "")
    return result


def legend(*, colours: bool = True) -> Text:
    if not colours:
        return Text(f"{OPEN}trained{CLOSE}")
    result = Text()
    for look in PALETTE.values():
        result.append(f" {look.name} ", style=look.style)
        result.append("  ")
    return result


# The page.

_STYLE = """
:root{color-scheme:light dark;--page:#fff;--text:#1c1f24;--soft:#5b6472;--line:#dfe2e7;--panel:#f6f7f9;--link:#0b57d0;
--here:#ff9f0a}
@media(prefers-color-scheme:dark){:root{--page:#14171c;--text:#e6e8ec;--soft:#a2abb8;--line:#333a45;--panel:#1c2027;
--link:#8ab4f8;--here:#ffb340}}
*{box-sizing:border-box}
body{font:15px/1.6 system-ui,sans-serif;margin:0 auto;max-width:72rem;padding:1rem;background:var(--page);
color:var(--text)}
h1{font-size:1.4rem;margin:.4rem 0}
h2{font-size:1.05rem;margin:1.6rem 0 .2rem;overflow-wrap:anywhere}
p,ul{margin:.3rem 0}
.soft,li{color:var(--soft)}
ul{padding-left:1.2rem}
a{color:var(--link)}
.legend{display:flex;flex-wrap:wrap;gap:.3rem .4rem}
.legend span{padding:0 .45rem;border-radius:4px;border:1px solid var(--line)}
nav{display:flex;flex-wrap:wrap;gap:.2rem .9rem}
nav a{padding:.15rem 0}
pre{font:13px/1.75 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid var(--line);
border-radius:6px;padding:.8rem;margin:.5rem 0}
pre span{border-radius:3px}
mark{background:none;color:inherit;text-decoration:underline;text-underline-offset:3px;scroll-margin:30vh 0}
mark:target,mark.here{outline:2px solid var(--here);outline-offset:2px;border-radius:3px}
details{display:inline}
summary{display:inline;cursor:pointer;color:var(--link);background:var(--panel);border-radius:4px;padding:0 .4rem}
summary::before{content:"\\25b8\\a0"}
details[open]>summary::before{content:"\\25be\\a0"}
kbd{font:12px ui-monospace,monospace;border:1px solid var(--line);border-radius:3px;padding:0 .35rem}
.refused{border-left:3px solid #c5392c;padding-left:.7rem}
@media(max-width:40rem){body{padding:.6rem}pre{padding:.5rem;font-size:12px}}
"""
# n and p go to the next and the previous trained run, wherever the reader is.
_SCRIPT = """
const runs=[...document.querySelectorAll('mark')];let at=-1;
addEventListener('keydown',event=>{
if(!runs.length||event.ctrlKey||event.metaKey||event.altKey||(event.key!=='n'&&event.key!=='p'))return;
if(at>=0)runs[at].classList.remove('here');
at=at<0?(event.key==='n'?0:runs.length-1):(at+(event.key==='n'?1:-1)+runs.length)%runs.length;
runs[at].classList.add('here');runs[at].scrollIntoView({block:'center'});});
"""


def html_page(
    tokenizer: Any,
    sequences: Iterable[tuple[str, Sequence]],
    *,
    title: str = "tokens",
    refused: Iterable[tuple[str, str]] = (),
) -> str:
    """Write one self-contained page: titled sequences, then refused items with reasons.

    A tooltip shows a token's id and message. Long template text (tool schemas) is folded; links and the keys n and p
    jump to runs of trained tokens.
    """
    ready = chat_tokenizer(tokenizer)
    light, dark = (_list_rules(theme) for theme in ("light", "dark"))
    names = "".join(f'<span class="p{int(paint)}">{html.escape(look.name)}</span>' for paint, look in PALETTE.items())
    bodies = "".join(_article(ready, number, *item) for number, item in enumerate(sequences))
    refusals = "".join(
        f'<article class="refused"><h2>{html.escape(name)}</h2><p>refused: {html.escape(reason)}</p></article>'
        for name, reason in refused
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none';style-src 'unsafe-inline';script-src 'unsafe-inline'\">"
        f"<title>{html.escape(title)}</title>"
        f"<style>{_STYLE}{light}@media(prefers-color-scheme:dark){{{dark}}}</style></head>"
        f'<body><h1>{html.escape(title)}</h1><p class="legend">{names}</p>'
        '<p class="soft">Trained tokens are underlined; <kbd>n</kbd> and <kbd>p</kbd> go to the next and the previous '
        f"run of them.</p>{bodies}{refusals}<script>{_SCRIPT}</script></body></html>"
    )


def _list_rules(theme: str) -> str:
    """Write a CSS class for each paint: p0, p1, ..."""
    looks = ((int(paint), *getattr(look, theme)) for paint, look in PALETTE.items())
    return "".join(f".p{number}{{background:{background};color:{colour}}}" for number, background, colour in looks)


def _article(tokenizer: ChatTokenizer, number: int, name: str, sequence: Sequence) -> str:
    """Write a sequence: its report, links to its trained runs, its tokens."""
    facts = "".join(f"<li>{html.escape(line)}</li>" for line in describe_report(sequence))
    links, parts = [], []
    for run, (paint, trained, message, spans, text) in enumerate(_iterate_runs(tokenizer, sequence)):
        body = "".join(spans)
        if trained:
            anchor = f"s{number}r{run}"
            links.append(f'<a href="#{anchor}">message {message}, {len(spans)} tokens</a>')
            body = f'<mark id="{anchor}">{body}</mark>'
        elif paint is Paint.TEMPLATE and len(text) > _FOLDED:
            what = "tool schemas" if _has_schemas(text) else "template text"
            body = f"<details><summary>{what}, {len(spans)} tokens</summary>{body}</details>"
        parts.append(body)
    navigation = f"<nav>{''.join(links)}</nav>" if links else ""
    return (
        f'<article><h2>{html.escape(name)}</h2><p class="soft">{html.escape(describe_size(sequence))}</p>'
        f"{f'<ul>{facts}</ul>' if facts else ''}{navigation}<pre>{''.join(parts)}</pre></article>"
    )


def _iterate_runs(
    tokenizer: ChatTokenizer, sequence: Sequence
) -> Iterator[tuple[Paint | None, bool, int, list[str], str]]:
    """Yield runs of tokens that are trained in the same message, are template text, or are neither: (paint, is trained,
    message, HTML of each token, text)."""
    columns = (sequence.ids, sequence.paint, sequence.mask, sequence.message_index)
    tokens = zip(token_texts(tokenizer, sequence.ids), *columns, strict=True)

    def kind(token: Any) -> tuple[bool, bool, int]:
        _, _, paint, trained, message = token
        return bool(trained), paint == Paint.TEMPLATE, int(message) if trained else -1

    for (trained, is_template, message), group in itertools.groupby(tokens, key=kind):
        spans, texts = [], []
        for text, number, paint, _, owner in group:
            visible = html.escape(text).replace("\n", "⏎\n")
            tooltip = f"id {number}" + (f", message {owner}" if owner >= 0 else "")
            spans.append(f'<span class="p{int(paint)}" title="{tooltip}">{visible}</span>')
            texts.append(text)
        yield Paint.TEMPLATE if is_template else None, trained, message, spans, "".join(texts)


def _has_schemas(text: str) -> bool:
    """Return whether template text looks like tool schemas, in JSON or in the format of gpt-oss."""
    return '"parameters"' in text or '"function"' in text or "namespace functions" in text
