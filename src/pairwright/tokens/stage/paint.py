"""Show tokens by kind: in a terminal, in a pipe, as rows for other programs.

With colours, trained tokens are underlined; without colours, they are between ⟦ and ⟧.
"""

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

from rich.text import Text

from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer


class Look(NamedTuple):
    name: str
    style: str


PALETTE = {
    Paint.TEMPLATE: Look("template", "bright_black"),
    Paint.SYSTEM: Look("system", "magenta"),
    Paint.USER: Look("user", "blue"),
    Paint.TOOL: Look("tool output", "yellow"),
    Paint.ASSISTANT: Look("assistant, not trained", "cyan"),
    Paint.GENERATED: Look("generated", "bold green"),
    Paint.REASONING: Look("generated: reasoning", "green"),
    Paint.CALL: Look("generated: call", "bold bright_green"),
    Paint.STOP: Look("generated: stop", "bold white on red"),
    Paint.HINT: Look("hint", "bold black on yellow"),
    Paint.TEXT: Look("text, not trained", "blue"),
}
OPEN, CLOSE = "⟦", "⟧"  # around trained tokens, without colours


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
