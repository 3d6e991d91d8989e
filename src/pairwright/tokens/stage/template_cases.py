"""Small conversations that test a chat template, and the settings that make more of them exact.

A case is exact if everything that the model generated is trained, including stop tokens, in one or several sequences.
The variables that a template reads (`enable_thinking`, `reasoning_effort`, ...) are found in its syntax tree; each is
tried with the values that the template compares it with.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from jinja2 import nodes

from pairwright.generate.template_variables import list_variables
from pairwright.records.messages import Json, Message, ToolCall
from pairwright.tokens.encode import encode_turns
from pairwright.tokens.encode_options import EncodeOptions
from pairwright.tokens.refusals import WAY_OUT, Refusal, TokensError
from pairwright.tokens.template.environment import ChatEnvironment
from pairwright.tokens.tokenizer import ChatTokenizer

# No template contains words that begin with zq, so such a word in the text comes from a message.
TOOL: Json = {
    "type": "function",
    "function": {
        "name": "zq_lookup",
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_MAX_VARIABLES = 8  # variables of a template that are tried
_MAX_VALUES = 6  # values of a variable that are tried
# Variables that hold content: they do not select a mode of the template.
_NO_MODES = frozenset(("documents", "date_string", "custom_tools", "builtin_tools", "functions", "available_tools"))


def _ask(text: str) -> Message:
    return Message("user", text)


def _say(text: str, why: str | None = None) -> Message:
    return Message("assistant", text, reasoning=why)


def _call(text: str = "", why: str | None = None, *, num_calls: int = 1) -> Message:
    # Nine characters: some templates accept no other length.
    words = ("zebra", "lion")[:num_calls]
    calls = tuple(
        ToolCall("zq_lookup", f'{{"word": "{word}"}}', f"zq000000{number}") for number, word in enumerate(words)
    )
    return Message("assistant", text, reasoning=why, tool_calls=calls)


def _result(number: int = 0, text: str = "a word") -> Message:
    return Message("tool", text, tool_call_id=f"zq000000{number}", name="zq_lookup")


_SYSTEM = Message("system", "Be brief.")
# Name -> the conversation; those with calls come with the tool's schema.
CASES: dict[str, tuple[Message, ...]] = {
    "one answer": (_ask("one"), _say("two")),
    "two questions": (_ask("one"), _say("two"), _ask("three"), _say("four")),
    "system message": (_SYSTEM, _ask("one"), _say("two")),
    "reasoning": (_ask("one"), _say("two", "why")),
    "reasoning, two questions": (_ask("one"), _say("two", "why"), _ask("three"), _say("four", "how")),
    "reasoning in one of two": (_ask("one"), _say("two", "why"), _ask("three"), _say("four")),
    "call": (_ask("one"), _call(), _result(), _say("two")),
    "text and call": (_ask("one"), _call("let me see"), _result(), _say("two")),
    "two calls at once": (_ask("one"), _call(num_calls=2), _result(), _result(1), _say("two")),
    "reasoning and call": (_ask("one"), _call("", "why"), _result(), _say("two", "how")),
    "agent": (_SYSTEM, _ask("one"), _call("let me see"), _result(), _say("two"), _ask("three"), _say("four")),
    "agent with reasoning": (
        _SYSTEM,
        _ask("one"),
        _call("let me see", "why"),
        _result(),
        _say("two", "how"),
        _ask("three"),
        _say("four", "so"),
    ),
}

EXAMPLE = (_ask("Which word?"), _call(), _result(), _say("It is a word."))
# Quirk -> (conversation, word): the template has the quirk if it refuses the conversation or does not render the word.
_ANSWERED = (_ask("one"), _say("two"))
PROBES: dict[str, tuple[tuple[Message, ...], str]] = {
    "refuses_system": ((Message("system", "zqsystem"), *_ANSWERED), "zqsystem"),
    "refuses_system_in_the_middle": ((*_ANSWERED, Message("system", "zqsystem"), _ask("three")), "zqsystem"),
    "no_calls": ((_ask("one"), _call()), "zq_lookup"),
    "no_results": ((_ask("one"), _call(), _result(text="zqresult")), "zqresult"),
}


class CaseCheck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a case: the number of sequences, or 0 and the refusal's reason, turn and detail."""

    name: str
    num_sequences: int = 0
    reason: str = ""
    message: int | None = None
    detail: str = ""
    dropped: tuple[tuple[int, str], ...] = ()  # (message, field) of trained turns that is not rendered
    prompt_dropped: tuple[tuple[int, str], ...] = ()  # the same of other messages
    unstopped: tuple[int, ...] = ()  # turns that end without a stop token
    added: int = 0  # number of added tokens and of turns written by a declared row
    stops: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        return self.num_sequences > 0 and not (self.dropped or self.unstopped or self.added)

    def list_problems(self) -> Iterator["Problem"]:
        """Yield the reasons why the case is not one exact sequence."""
        if not self.num_sequences:
            yield Problem(
                f"{self.reason}: {self.detail}",
                self.message,
                WAY_OUT.get(self.reason, "--chat-template FILE that takes it"),
            )
        for name, owners in _by_field(self.dropped).items():
            yield Problem(f"{name} not rendered", owners[0], "--allow-dropped trains without it")
        for name, owners in _by_field(self.prompt_dropped).items():
            where = owners[0] if owners[0] >= 0 else None
            yield Problem(f"{name} of the prompt not rendered", where, "--chat-template FILE that renders it")
        if self.unstopped:
            yield Problem("no stop token follows", self.unstopped[0], "generation_config.json with eos_token_id")
        if self.added:
            yield Problem("tokens that no render shows are added", None, "generation_config.json, or another template")
        if self.num_sequences > 1:
            yield Problem("earlier turns look different later", None, "none needed: a sequence for each context")


class Problem(NamedTuple):
    """A problem, the first message that it concerns, and what to do about it."""

    reason: str
    message: int | None
    way_out: str


def _by_field(fields: tuple[tuple[int, str], ...]) -> dict[str, list[int]]:
    """Group messages by field.

    >>> _by_field(((1, "reasoning"), (3, "reasoning")))
    {'reasoning': [1, 3]}
    """
    owners: dict[str, list[int]] = {}
    for message, name in fields:
        owners.setdefault(name, []).append(message)
    return owners


class Setting(msgspec.Struct, frozen=True):
    """A template variable with a value, how many cases are exact with it, and how many of these as one sequence."""

    variables: Json
    num_exact: int
    num_single: int


def try_cases(tokenizer: ChatTokenizer) -> tuple[CaseCheck, ...]:
    return tuple(_try_case(tokenizer, name, messages) for name, messages in CASES.items())


def _try_case(tokenizer: ChatTokenizer, name: str, messages: tuple[Message, ...]) -> CaseCheck:
    tools = [TOOL] if any(message.tool_calls for message in messages) else None
    try:
        sequences = encode_turns(tokenizer, messages, tools, EncodeOptions(allow_dropped=True))
    except TokensError as error:
        if not isinstance(error, Refusal):
            return CaseCheck(name=name, reason="template_error", detail=str(error))
        return CaseCheck(name=name, reason=error.reason, message=error.message, detail=error.detail)
    reports = [sequence.report for sequence in sequences]
    unions: dict[str, Any] = {
        field: tuple(sorted({item for report in reports for item in getattr(report, field)}))
        for field in ("dropped", "unstopped", "stops")
    }
    unions["added"] = sum(report.added_tokens + len(report.declared) for report in reports)
    # A turn trained in one sequence is context in the next: report what it lacks only once.
    trained = {number for number, message in enumerate(messages) if message.is_generated}
    prompt = {item for report in reports for item in report.prompt_dropped if item[0] not in trained}
    return CaseCheck(name=name, num_sequences=len(sequences), prompt_dropped=tuple(sorted(prompt)), **unions)


def count_dropped(cases: tuple[CaseCheck, ...]) -> dict[str, int]:
    """Count cases by field that the template does not render; "prompt: " marks untrained messages."""
    counts: Counter[str] = Counter()
    for case in cases:
        counts.update({field for _, field in case.dropped})
        counts.update({f"prompt: {field}" for _, field in case.prompt_dropped})
    return dict(sorted(counts.items()))


def count_exact(cases: tuple[CaseCheck, ...]) -> tuple[int, int]:
    exact = [case for case in cases if case.is_exact]
    return len(exact), sum(case.num_sequences == 1 for case in exact)


def try_settings(tokenizer: ChatTokenizer) -> Iterator[Setting]:
    """Test every value of every variable that the template reads, one variable at a time."""
    renderers = [tokenizer.renderer(None), tokenizer.renderer([TOOL])]
    # One source, or two if tools have a separate template.
    source = "".join({item.hash: item.source for item in renderers}.values())
    names = [name for name in list_variables(source) if name not in _NO_MODES and name not in tokenizer.variables]
    for name in names[:_MAX_VARIABLES]:
        for value in find_values(source, name)[:_MAX_VALUES]:
            try:
                counts = count_exact(try_cases(tokenizer.with_variables({name: value})))
            except TokensError:
                continue  # the template refuses this value
            yield Setting({name: value}, *counts)


def find_values(source: str, name: str) -> list[str | bool]:
    """Return the words that a template compares a variable with; false and true if there are none.

    >>> find_values("{% if effort in ['low', 'high'] or effort == 'none' %}{% endif %}", "effort")
    ['low', 'high', 'none']
    >>> find_values("{% if enable_thinking is false %}{% endif %}", "enable_thinking")
    [False, True]
    """
    words: dict[str | bool, None] = {}  # a set that keeps its order
    tree = ChatEnvironment().parse(source)
    for compare in tree.find_all(nodes.Compare):
        sides = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(isinstance(side, nodes.Name) and side.name == name for side in sides):
            for side in sides:
                constants = [side] if isinstance(side, nodes.Const) else side.find_all(nodes.Const)
                words |= dict.fromkeys(item.value for item in constants if isinstance(item.value, str))
    return list(words) or [False, True]


def advise(cases: tuple[CaseCheck, ...], settings: list[Setting]) -> Setting | None:
    """Return the setting with the most exact cases, then the most single sequences; None if none is better."""
    best = max(settings, key=lambda setting: (setting.num_exact, setting.num_single), default=None)
    return best if best is not None and (best.num_exact, best.num_single) > count_exact(cases) else None
