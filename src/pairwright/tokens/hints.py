"""Error sites and hints: what a teacher is told that the student was not.

A site is where a conversation shows a failure; its target is the next turn that the model generated, the recovery. A
hint comes from the kind of the error (HINTS), from what the environment said, or from a judge whose answers are kept on
disk. Sites without a hint or without a recovery are skipped, and counted.
"""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from pairwright.messages import ErrorSite, Message

Judge = Callable[[Sequence[Message], ErrorSite], str | None]
HintSource = Literal["kind", "environment", "judge"]

# Error kind -> hint. Fields: tool, tools (the available ones), error (what was seen).
HINTS: dict[str, str] = {
    "unknown_tool": "There is no tool named {tool}. The available tools are: {tools}.",
    "invalid_arguments": "The arguments of {tool} did not match its schema. Check names and types, and call it again.",
    "invalid_json": "The arguments of {tool} were not valid JSON. Write them as one JSON object.",
    "missing_argument": "The call of {tool} lacked a required argument. Read its schema and give every required one.",
    "not_found": "What {tool} was asked for does not exist. Look up the right name before trying again.",
    "permission_denied": "{tool} is not allowed to do this here. Choose another way.",
    "timeout": "{tool} took too long. Ask for less at a time.",
    "tool_error": "{tool} failed. Read its message, correct the cause, and do not repeat the same call.",
}


class Hint(msgspec.Struct, frozen=True):
    """A hint for one turn: `target` is the generated message that the hint should have helped."""

    site: ErrorSite
    target: int
    text: str
    source: HintSource


class HintCounts(msgspec.Struct, frozen=True):
    hinted: int = 0
    without_hint: int = 0
    without_recovery: int = 0


def find_sites(messages: Sequence[Message], is_error: Callable[[int, Message], str | None]) -> list[ErrorSite]:
    """Sites by predicate: the kind of error that a message shows, or None."""
    sites = []
    for index, message in enumerate(messages):
        kind = is_error(index, message)
        if kind is not None:
            sites.append(ErrorSite(index=index, kind=kind, text=message.text, tool=message.name))
    return sites


def hints_for(
    messages: Sequence[Message],
    sites: Sequence[ErrorSite],
    *,
    templates: Mapping[str, str] = HINTS,
    sources: Sequence[HintSource] = ("kind", "environment", "judge"),
    judge: Judge | None = None,
    cache: Path | None = None,
) -> tuple[list[Hint], HintCounts]:
    """At most one hint for each recovery turn, from the first source that has one."""
    hints: dict[int, Hint] = {}
    counts: Counter[str] = Counter()
    for site in sites:
        target = _recovery(messages, site.index)
        if target is None:
            counts["without_recovery"] += 1
            continue
        found = _hint(messages, site, templates, sources, judge, cache)
        if found is None:
            counts["without_hint"] += 1
            continue
        if target not in hints:
            hints[target] = Hint(site, target, *found)
        counts["hinted"] += 1
    return [hints[target] for target in sorted(hints)], HintCounts(**counts)


def with_hint(message: Message, hint: str) -> Message:
    """The hint as an addendum to a user's or tool's message: a system role in mid-dialogue is often refused."""
    if isinstance(message.content, list):
        parts = [*message.content, {"type": "text", "text": addendum(hint)}]
        return msgspec.structs.replace(message, content=parts)
    return msgspec.structs.replace(message, content=(message.content or "") + addendum(hint))


def addendum(hint: str) -> str:
    return f"\n\n[Hint: {hint}]"


def _recovery(messages: Sequence[Message], index: int) -> int | None:
    """The next generated turn that has text, right after a message that can carry a hint."""
    for position in range(index + 1, len(messages)):
        message = messages[position]
        if message.is_generated:
            says = message.text.strip() or message.tool_calls or (message.reasoning or "").strip()
            carries = messages[position - 1].role in ("user", "tool") and not messages[position - 1].is_generated
            return position if says and carries else None
    return None


def _hint(
    messages: Sequence[Message],
    site: ErrorSite,
    templates: Mapping[str, str],
    sources: Sequence[HintSource],
    judge: Judge | None,
    cache: Path | None,
) -> tuple[str, HintSource] | None:
    for source in sources:
        text: str | None = None
        if source == "kind" and site.kind in templates:
            fields = {"tool": site.tool or "the tool", "tools": ", ".join(site.available_tools), "error": site.text}
            text = templates[site.kind].format(**fields)
        elif source == "environment":
            text = site.text.strip() or None
        elif source == "judge" and judge is not None:
            text = _judged(messages, site, judge, cache)
        if text:
            return text, source
    return None


def _judged(messages: Sequence[Message], site: ErrorSite, judge: Judge, cache: Path | None) -> str | None:
    """The judge's hint; asked once for each conversation and site."""
    if cache is None:
        return judge(messages, site)
    seen = msgspec.json.encode([list(messages[: site.index + 1]), site])
    path = cache / f"{hashlib.sha256(seen).hexdigest()}.json"
    if path.is_file():
        kept: str | None = json.loads(path.read_text(encoding="utf-8"))["hint"]
        return kept
    hint = judge(messages, site)
    cache.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.tmp")
    partial.write_text(json.dumps({"hint": hint}), encoding="utf-8")
    partial.replace(path)
    return hint
