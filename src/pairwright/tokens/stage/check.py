"""Test a chat template on small conversations.

A quirk is not an error: it describes what to expect of this model's data (`rewrites_history`: a sequence for each turn
or question; `drops_content`: the template omits text beside a call, so such turns are refused unless allowed).
"""

import itertools
from typing import Any

import msgspec

from pairwright.tokens.encode import encode_turns
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.message_dialect import adapt_records, find_forms
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.spans.regions import is_regular
from pairwright.tokens.stage.template_cases import (
    EXAMPLE,
    PROBES,
    TOOL,
    CaseCheck,
    Setting,
    advise,
    count_dropped,
    count_exact,
    try_cases,
    try_settings,
)
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer


class Quirk(msgspec.Struct, frozen=True):
    name: str
    detail: str


class TemplateCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of testing a template."""

    template: str
    is_supported: bool  # a conversation of user and assistant gives an exact mask
    supports_tools: bool
    stops: tuple[str, ...]
    arguments: str
    cases: tuple[CaseCheck, ...]
    num_exact: int  # cases that are exact
    num_single: int  # exact cases that are one sequence
    drops: dict[str, int]  # field -> number of cases in which the template does not render it
    settings: tuple[Setting, ...]  # variables that the template reads, tried one by one
    advice: Setting | None  # the best setting if it helps
    quirks: tuple[Quirk, ...]
    example: tuple[tuple[str, bool], ...]  # a conversation, split at the mask: (text, is trained)


def check_template(tokenizer: Any, *, try_variables: bool = False) -> TemplateCheck:
    """Try a tokenizer's template, with `try_variables` also under every setting of the variables that it reads."""
    ready = chat_tokenizer(tokenizer)
    renderer = ready.renderer(None)
    cases = try_cases(ready)
    num_exact, num_single = count_exact(cases)
    # One sequence for each case is optimal: no setting can be better.
    settings = tuple(try_settings(ready)) if try_variables and num_single < len(cases) else ()
    quirks = [*_check_cases(cases), *_check_renders(ready)]
    if not is_regular(ready, renderer):
        detail = "the prompt depends on how many turns there are: each is verified, which takes longer"
        quirks.append(Quirk("counts_turns", detail))
    by_name = {case.name: case for case in cases}
    supports_tools = by_name["call"].num_sequences > 0 and not any(
        quirk.name in ("no_tools", "no_calls", "no_results") for quirk in quirks
    )
    return TemplateCheck(
        template=renderer.hash,
        is_supported=by_name["one answer"].num_sequences > 0,
        supports_tools=supports_tools,
        stops=tuple(sorted({stop for case in cases for stop in case.stops})),
        arguments=find_forms(ready, renderer).arguments,
        cases=cases,
        num_exact=num_exact,
        num_single=num_single,
        drops=count_dropped(cases),
        settings=settings,
        advice=advise(cases, list(settings)),
        quirks=tuple(quirks),
        example=_example(ready, supports_tools=supports_tools),
    )


def _check_cases(cases: tuple[CaseCheck, ...]) -> list[Quirk]:
    """List quirks: refusals of the simplest cases, the first case that needs several sequences, dropped content."""
    by_name = {case.name: case for case in cases}
    refused = (("refused_plain", by_name["one answer"]), ("refused_calls", by_name["call"]))
    quirks = [Quirk(name, f"{case.reason}: {case.detail}") for name, case in refused if not case.num_sequences]
    rewriting = next((case for case in cases if case.num_sequences > 1), None)
    if rewriting is not None:
        quirks.append(Quirk("rewrites_history", f"with {rewriting.name}: {rewriting.num_sequences} sequences"))
    # (message, field) as reports name it; message 1 is the turn.
    has_calls = by_name["call"].num_sequences > 0 and (1, "tool_calls") not in by_name["call"].dropped
    two_calls = by_name["two calls at once"]
    lacks_call = not two_calls.num_sequences or (1, "tool_calls") in two_calls.dropped
    losses = (
        ("no_tools", "tool schemas", any(name == "tools" for _, name in by_name["call"].prompt_dropped)),
        ("no_parallel_calls", "the second of two calls", has_calls and lacks_call),
        ("drops_content", "text beside a call", (1, "content") in by_name["text and call"].dropped),
        ("drops_calls", "calls beside text", (1, "tool_calls") in by_name["text and call"].dropped),
        ("drops_reasoning", "reasoning", (1, "reasoning") in by_name["reasoning"].dropped),
    )
    return quirks + [Quirk(name, f"left out of the text: {what}") for name, what, is_lost in losses if is_lost]


def _check_renders(tokenizer: ChatTokenizer) -> list[Quirk]:
    quirks = []
    for name, (messages, word) in PROBES.items():
        try:
            is_shown = word in tokenizer.renderer(None).text(adapt_records(tokenizer, messages, None)[0])
            why = "" if is_shown else "left out of the text"
        except TemplateError as error:
            why = f"refused: {error}"
        if why:
            quirks.append(Quirk(name, why))
    return quirks


def _example(tokenizer: ChatTokenizer, *, supports_tools: bool) -> tuple[tuple[str, bool], ...]:
    """Encode the example that is shown to the user with its trained text marked."""
    question, *_, answer = EXAMPLE
    messages, tools = (EXAMPLE, [TOOL]) if supports_tools else ((question, answer), None)
    try:
        sequence = encode_turns(tokenizer, messages, tools, EncodeOptions(allow_dropped=True))[-1]
    except Refusal:
        return ()
    tokens = zip(sequence.ids, sequence.mask, strict=True)
    runs = itertools.groupby(tokens, key=lambda item: bool(item[1]))
    return tuple((tokenizer.decode([token for token, _ in group]), trained) for trained, group in runs)
