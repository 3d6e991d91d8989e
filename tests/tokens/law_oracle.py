"""An independent implementation of the law of masks that uses only transformers, jinja2 and regular expressions.

`judge` returns what the law allows for every generated turn: the prompt P(i), the text after it and its rule, or the
valid refusals. It reads renders only. Words identify the author of a character: every text of the conversation consists
of words of at least five letters that occur nowhere else (`check_words`), so that a word in a render identifies its
message. An end token inside an answer is between words of that answer, or part of a text that is matched as a whole.

Two inputs are not in renders and are provided by hand: the stop tokens in a model's generation_config.json, and the tags
around reasoning. Declared rows are not used: if only a row could decide (`Verdict.rule` 3), `explain_declared` checks
what such a row may do.
"""

import copy
import functools
import itertools
import json
import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from jinja2 import meta, nodes
from transformers.utils.chat_template_utils import _compile_jinja_template, render_jinja_template

Chat = list[dict[str, Any]]
Tools = list[dict[str, Any]] | None

THOUGHTS = (
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<think:opensource>", "</think:opensource>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<judge>", "</judge>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|open|>think<|sep|>", "<|close|>think<|sep|>"),
    ("<|think|>", "<|end|>"),
    ("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]"),
)
# A variable that switches thinking: its values for on and off.
SWITCHES: dict[str, tuple[Any, Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "thinking_mode": ("enabled", "disabled"),
}
CLOCK = datetime(2026, 3, 4, 5, 6, 7)  # what templates print that ask for the time
_WORD = re.compile(r"[a-z]{5,}")


@dataclass(frozen=True)
class Model:
    """A template with what the model's other files say: special tokens, ends of generation, and control tokens."""

    source: str
    special: dict[str, str]
    ends: frozenset[str]
    controls: tuple[str, ...]
    variables: dict[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def control(self) -> re.Pattern[str]:
        longest_first = sorted({*self.controls, *self.ends}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, longest_first)))

    def __hash__(self) -> int:
        return hash(self.source)


class Forms(NamedTuple):
    """Format of messages that a template expects: arguments as objects, content as parts, null beside calls, key of reasoning."""

    objects: bool
    parts: bool
    null: bool
    reasoning: str


class Verdict(NamedTuple):
    """What the law allows for one turn.

    rule      1 the next prompt witnesses, 2 a separate sequence, 3 a declared row or a refusal, 4 a refusal
    texts     valid texts after the prompt; two if two renders disagree and a row decides
    refusals  valid reasons for a refusal; empty if a refusal would be wrong
    closing   number of characters at the start of each text that close reasoning without being generated: not trained
    """

    turn: int
    rule: int
    prompt: str
    texts: tuple[str, ...] = ()
    refusals: frozenset[str] = frozenset()
    closing: tuple[int, ...] = ()
    note: str = ""


class Found(NamedTuple):
    text: str
    end: str
    closing: int
    fault: str = ""  # why the render is not a witness, although it contains the turn
    between: str = ""  # a control token that the law is not clear about


# Renders


def render(model: Model, chat: Chat, tools: Tools, mode: dict[str, Any], *, prompt: bool) -> str | None:
    """The render of transformers, or None where the template refuses the conversation."""
    variables = {**model.special, **model.variables, **mode}
    names: dict[str, Any] = {}
    try:
        names = _compile_jinja_template(model.source).globals  # of the compiled template, which transformers caches
        theirs, names["strftime_now"] = names["strftime_now"], _print_time
        texts, _ = render_jinja_template(
            conversations=[chat],
            tools=tools,
            chat_template=model.source,
            add_generation_prompt=prompt,
            **variables,
        )
    except Exception:  # a template may raise anything
        return None
    finally:
        if names:
            names["strftime_now"] = theirs
    return str(texts[0])


def _print_time(layout: str) -> str:
    return CLOCK.strftime(layout)


@functools.lru_cache(maxsize=512)
def read_names(source: str) -> frozenset[str]:
    """The variables that a template reads before it sets them."""
    tree = _compile_jinja_template(source).environment.parse(source)
    first: dict[tuple[str, str], int] = {}
    for name in tree.find_all(nodes.Name):
        first.setdefault((name.name, name.ctx), name.lineno)
    undeclared = meta.find_undeclared_variables(tree)
    return frozenset(
        name for name in undeclared if first.get((name, "load"), 1 << 30) <= first.get((name, "store"), 1 << 30)
    )


def find_mode(model: Model, chat: Chat) -> dict[str, Any]:
    """Thinking on if the record has reasoning and off if not, where the template reads a switch."""
    place = 0 if any(message.get("reasoning_content") for message in chat) else 1
    names = read_names(model.source)
    switches = {name: values[place] for name, values in SWITCHES.items() if name in names}
    if "reasoning_effort" in names and "no_think" in model.source:
        switches["reasoning_effort"] = ("high", "no_think")[place]
    if not switches or switches.keys() & model.variables.keys():
        return {}
    name = next(iter(switches))
    return {name: switches[name]}


_ASK: dict[str, Any] = {"role": "user", "content": "qaskzz"}
_CALL = {"id": "zq0000000", "type": "function", "function": {"name": "qfunzz", "arguments": {"qkeyzz": "qvalzz"}}}


@functools.lru_cache(maxsize=512)
def find_forms(model: Model) -> Forms:
    """The forms that show the most of three small conversations; the usual ones first."""
    result: dict[str, Any] = {"role": "tool", "content": "qreszz", "tool_call_id": "zq0000000", "name": "qfunzz"}
    plain = [_ASK, {"role": "assistant", "content": "qanszz"}, _ASK]
    calls = [_ASK, {"role": "assistant", "content": "", "tool_calls": [_CALL]}, result]
    thought = [_ASK, {"role": "assistant", "content": "qanszz", "reasoning_content": "qwhyzz"}]
    schema = {"type": "object", "properties": {"qkeyzz": {"type": "string", "description": "x"}}}
    tool = {"type": "function", "function": {"name": "qfunzz", "description": "x", "parameters": schema}}

    def score(chat: Chat, words: tuple[str, ...], tools: Tools, forms: Forms) -> tuple[bool, int, bool]:
        text = render(model, apply_forms(chat, forms), tools, find_mode(model, chat), prompt=False)
        # JSON inside JSON, or Python's spelling of a dict: the arguments were given in the wrong form.
        is_json = '\\"qkeyzz' not in (text or "") and "'qkeyzz'" not in (text or "")
        return text is not None, sum(word in (text or "") for word in words), is_json

    def size(forms: Forms) -> int:
        return -len(render(model, apply_forms(calls, forms), [tool], find_mode(model, calls), prompt=False) or "")

    best = Forms(True, False, False, "reasoning_content")
    options = [Forms(True, parts, False, "reasoning_content") for parts in (False, True)]
    best = max(options, key=lambda forms: score(plain, ("qaskzz", "qanszz"), None, forms))
    options = [best._replace(objects=o, null=n) for o, n in itertools.product((True, False), (False, True))]
    scores = [score(calls, ("qfunzz", "qkeyzz", "qvalzz", "qreszz"), [tool], forms) for forms in options]
    best = options[scores.index(max(scores))]
    # Of two forms of an empty content the right one writes less: "None", or a header for nothing, is for the other.
    equal = [forms for forms, own in zip(options, scores, strict=True) if own == max(scores)]
    best = max((forms for forms in equal if forms.objects == best.objects), key=size)
    options = [best._replace(reasoning=name) for name in ("reasoning_content", "reasoning", "thinking")]
    return max(options, key=lambda forms: score(thought, ("qwhyzz", "qanszz"), None, forms))


def apply_forms(chat: Chat, forms: Forms) -> Chat:
    result = copy.deepcopy(chat)
    for message in result:
        if "reasoning_content" in message:
            message[forms.reasoning] = message.pop("reasoning_content")
        for call in message.get("tool_calls", ()):
            if not forms.objects:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        if forms.null and message.get("tool_calls") and not message["content"]:
            message["content"] = None
        elif forms.parts and isinstance(message["content"], str):
            message["content"] = [{"type": "text", "text": message["content"]}]
    return result


# What a message says


def words_of(message: dict[str, Any]) -> set[str]:
    """Return the words that occur nowhere else. Names of tools and arguments also occur in schemas and results."""
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    texts = [message.get("content") or "", message.get("reasoning_content") or ""]
    texts += [leaf for call in calls for leaf in _leaves(call) if isinstance(leaf, str)]
    return {word for text in texts for word in _WORD.findall(text)}


def check_words(model: Model, chat: Chat, tools: Tools) -> None:
    """Every word belongs to one message and occurs neither in the template nor in the schemas."""
    others = model.source + json.dumps(tools) + " ".join(model.controls)
    seen: set[str] = set()
    for message in chat:
        words = {word for word in words_of(message) if word not in others}
        assert not words & seen, f"in two messages: {words & seen}"
        seen |= words
    for left, right in itertools.permutations(seen, 2):
        assert left not in right, f"{left} is a part of {right}"


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]


def _keys(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [*value, *(key for item in value.values() for key in _keys(item))]
    return [key for item in value for key in _keys(item)] if isinstance(value, list) else []


def _spellings(leaf: Any) -> list[str]:
    if isinstance(leaf, str):
        return [leaf, json.dumps(leaf, ensure_ascii=False)[1:-1], json.dumps(leaf)[1:-1]] if leaf else []
    return [json.dumps(leaf), str(leaf)]


def list_parts(message: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(field, spellings) of everything that the record says was generated; text up to white space at its ends."""
    parts = []
    if reasoning := (message.get("reasoning_content") or "").strip():
        parts.append(("reasoning", [reasoning]))
    if content := (message.get("content") or "").strip():
        parts.append(("content", [content]))
    for call in message.get("tool_calls", ()):
        function = call["function"]
        parts.append(("tool_calls", [function["name"]]))
        parts += [("tool_calls", [key]) for key in _keys(function["arguments"])]
        parts += [("tool_calls", words) for leaf in _leaves(function["arguments"]) if (words := _spellings(leaf))]
    return parts


def find_missing(message: dict[str, Any], text: str) -> set[str]:
    return {name for name, spellings in list_parts(message) if not any(words in text for words in spellings)}


# The law


def judge(model: Model, chat: Chat, tools: Tools, mode: dict[str, Any] | None = None) -> list[Verdict]:
    """Return the verdict on each turn of a conversation, with the variables of its mode."""
    mode = find_mode(model, chat) if mode is None else mode
    turns = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
    return [_judge_turn(model, chat, tools, mode, turn) for turn in turns]


def _judge_turn(model: Model, chat: Chat, tools: Tools, mode: dict[str, Any], turn: int) -> Verdict:
    forms = find_forms(model)
    message = chat[turn]

    def show(part: Chat, *, prompt: bool) -> str | None:
        return render(model, apply_forms(part, forms), tools, mode, prompt=prompt)

    given = show(chat[:turn], prompt=True)
    if given is None:
        return Verdict(turn, 4, "", refusals=frozenset(["template_error"]))
    following = next((n for n in range(turn + 1, len(chat)) if chat[n]["role"] == "assistant"), len(chat))
    after = chat[turn + 1 : following] or probe_after(message)
    next_prompt = show([*chat[: turn + 1], *after], prompt=True)
    as_last = show(chat[: turn + 1], prompt=False)
    if next_prompt is None and as_last is None:
        return Verdict(turn, 4, given, refusals=frozenset(["template_error"]))
    foreign = set().union(*map(words_of, [*chat[:turn], *chat[turn + 1 :], *after])) - words_of(message)
    read = functools.partial(read_turn, model, given, message, foreign)
    by_next, by_last = read(next_prompt), read(as_last)
    is_next, is_last = _is_witness(by_next), _is_witness(by_last)
    opened = find_opened(_after_words(given, chat[:turn]))
    has_reasoning = bool((message.get("reasoning_content") or "").strip())

    def verdict(rule: int, found: list[Found], refusals: tuple[str, ...] = (), note: str = "") -> Verdict:
        between = [f"{item.between} inside" for item in found if item.between]
        return Verdict(
            turn,
            rule,
            given,
            tuple(item.text for item in found),
            frozenset([*refusals, *(["any"] if between else [])]),
            tuple(item.closing for item in found),
            "; ".join([*filter(None, [note]), *between]),
        )

    if is_next:
        assert by_next is not None
        if is_last and by_last is not None and by_last.text != by_next.text:
            return verdict(1, [by_next, by_last], ("two_forms",), "two forms")
        return verdict(1, [by_next])
    if is_last:
        assert by_last is not None
        shown = _shown_end(model, message, foreign, next_prompt)
        if shown in (None, by_last.end):
            return verdict(2, [by_last])
        other = by_last._replace(text=by_last.text.removesuffix(by_last.end) + shown)
        return verdict(
            3, [by_last, other], ("any",), f"ends with {by_last.end} as last, with {shown} in the next prompt"
        )
    aligned = [
        found
        for text in (next_prompt, as_last)
        if (found := read_elsewhere(model, given, message, foreign, chat[:turn], text)) and _is_witness(found)
    ]
    if aligned:
        different = list({found.text: found for found in aligned}.values())
        return verdict(2, different, ("two_forms",) if len(different) > 1 else (), "beside its prompt")
    missing = find_missing(message, next_prompt or "") & find_missing(message, as_last or "")
    reasons = []
    if opened and not has_reasoning:
        reasons.append("no_reasoning")
    if missing:
        reasons.append("dropped")
    faults = sorted({found.fault for found in (by_next, by_last) if found is not None and found.fault})
    note = "; ".join([*(f"not shown: {name}" for name in sorted(missing)), *faults])
    # A row may declare reasoning that no render shows, and an end, but not text, calls or reasoning that does not exist.
    can_declare = not missing - {"reasoning"} and not (opened and not has_reasoning)
    return verdict(3 if can_declare else 4, [], tuple(reasons) or ("any",), note)


def probe_after(message: dict[str, Any]) -> Chat:
    """What might come after a last turn: a result for each of its calls, or a user's message."""
    calls = message.get("tool_calls") or []
    results = [
        {
            "role": "tool",
            "content": f"qprobe{'abcdefgh'[n]}zz",
            "tool_call_id": call["id"],
            "name": call["function"]["name"],
        }
        for n, call in enumerate(calls)
    ]
    return results or [{"role": "user", "content": "qprobezz"}]


def read_turn(model: Model, given: str, message: dict[str, Any], foreign: set[str], text: str | None) -> Found | None:
    """Find the turn in a render that begins with its prompt; None if it does not, or if a part of the turn is missing."""
    if text is None or not text.startswith(given):
        return None
    return _read_rest(model, given, message, foreign, text[len(given) :])


def _read_rest(model: Model, given: str, message: dict[str, Any], foreign: set[str], rest: str) -> Found | None:
    last, is_call = 0, False
    for name, spellings in list_parts(message):
        ends = [at + len(words) for words in spellings if (at := rest.find(words)) >= 0]
        if not ends:
            return None
        if min(ends) >= last:
            last, is_call = min(ends), name == "tool_calls"
    # White space at the ends of the content is the record's where the render has it.
    limit = min((at for word in foreign if (at := rest.find(word)) >= 0), default=len(rest))
    if limit < last:
        return None  # text of another message inside the turn
    tokens = [match for match in model.control.finditer(rest, last) if match.end() <= limit]
    end = next((match for match in tokens if match.group() in model.ends), None)
    if end is None:
        return None
    text = rest[: end.end()]
    # By the letter a control token between text and end makes a render no witness, though a family may close its answers
    # so (Kimi K3, Command R7B); an end that the template writes inside the turn does not, though the model would have
    # stopped there, unless its turns are several messages (Solar). Both a refusal and the text are taken as right then.
    between = tokens[0].group() if end is not tokens[0] and not is_call else ""
    if is_call and _has_long_run({}, "", rest[len(rest[: end.start()].rstrip()) : end.start()]):
        between = "white space"  # the law speaks of text; before the end of a call it may be indentation as well
    own = [message.get("content") or "", message.get("reasoning_content") or ""]
    inner = [match.group() for match in model.control.finditer(rest, 0, last) if match.group() in model.ends]
    if len(inner) > sum(words.strip().count(token) for words in own for token in model.ends):
        between = inner[0]
    fault = ""
    closing = 0
    has_reasoning = bool((message.get("reasoning_content") or "").strip())
    opened = find_opened(given)
    if opened is not None:
        at = text.find(opened[1])
        if at < 0:
            return None
        if not has_reasoning:
            closing = at + len(opened[1])
    elif not has_reasoning:
        closing = max(_end_of_empty_thought(text, tags) for tags in THOUGHTS)
    if _is_indented(message, text, closing, last, end.start()):
        fault = "indentation"
    return Found(text, end.group(), closing, fault, between)


def _end_of_empty_thought(text: str, tags: tuple[str, str]) -> int:
    """Return the end of empty reasoning at the start of a text; 0 if there is none."""
    found = re.match(rf"\s*{re.escape(tags[0])}\s*{re.escape(tags[1])}", text)
    return found.end() if found and tags[0] != tags[1] else 0


def _is_indented(message: dict[str, Any], text: str, closing: int, last: int, end: int) -> bool:
    """White space before or after the text that the record does not have: neither one character nor newlines."""
    before = text[closing : len(text) - len(text[closing:].lstrip())]
    after = text[last:end]
    return _has_long_run(message, before, "" if after.strip() else after)


def _has_long_run(message: dict[str, Any], before: str, after: str) -> bool:
    content = message.get("content") or ""
    runs = [
        before.removesuffix(content[: len(content) - len(content.lstrip())]),
        after.removeprefix(content[len(content.rstrip()) :]),
    ]
    return any(len(run) > 1 and run.strip("\n") for run in runs)


def _is_witness(found: Found | None) -> bool:
    return found is not None and not found.fault


def _shown_end(model: Model, message: dict[str, Any], foreign: set[str], text: str | None) -> str | None:
    """Return the control token after the part of a turn that a render shows, at any position; None if it shows nothing."""
    if text is None:
        return None
    last, is_call = 0, False
    for name, spellings in list_parts(message):
        if name != "reasoning":
            ends = [at + len(words) for words in spellings if words and (at := text.rfind(words)) >= 0]
            last, is_call = (min(ends), name == "tool_calls") if ends and min(ends) > last else (last, is_call)
    if not last or not words_of(message) & set(_WORD.findall(text)):
        return None
    limit = min((at for word in foreign if (at := text.find(word, last)) >= 0), default=len(text))
    tokens = [match.group() for match in model.control.finditer(text, last) if match.end() <= limit]
    ends = [token for token in tokens if token in model.ends]
    if ends and (is_call or tokens[0] == ends[0]):
        return ends[0]
    return tokens[0] if tokens and not is_call else None


def _after_words(text: str, messages: Chat) -> str:
    """What a render has after the last word of these messages."""
    ends = [text.rfind(word) + len(word) for message in messages for word in words_of(message) if word in text]
    return text[max(ends, default=0) :]


def find_opened(text: str) -> tuple[str, str] | None:
    """The tags of a thought that a prompt leaves open."""
    tail = text[-200:]
    for opening, closing in THOUGHTS:
        if opening != closing and tail.rfind(opening) > tail.rfind(closing) and tail.rstrip().endswith(opening):
            return opening, closing
    return None


def read_elsewhere(
    model: Model, given: str, message: dict[str, Any], foreign: set[str], before: Chat, text: str | None
) -> Found | None:
    """The turn in a render that differs from its prompt only before the turn, or by an empty thought in the prompt."""
    own = words_of(message)
    if text is None or not own:
        return None
    header = _after_words(given, before)
    first = min((at for word in own if (at := text.find(word)) >= 0), default=-1)
    earlier = set().union(*map(words_of, before)) if before else set()
    starts = [text.rfind(word, 0, first) + len(word) for word in earlier if 0 <= text.find(word) < first]
    if first < 0 or not starts:
        return None
    rest = text[max(starts) :]
    headers = [header]
    if not (message.get("reasoning_content") or "").strip():
        for opening, closing in THOUGHTS:
            empty = re.search(re.escape(opening) + r"\s*" + re.escape(closing) + r"\s*$", header)
            headers += [header[: empty.start()]] if empty else []
    for head in headers:
        if rest.startswith(head):
            body = rest[len(head) :]
            if head != header:
                body = _after_empty_thought(header[len(head) :], body)
            return _read_rest(model, given, message, foreign, body)
    return None


def _after_empty_thought(in_prompt: str, body: str) -> str:
    """The text of a turn without an empty thought, or the end of one, that its prompt has already in another form."""
    for opening, closing in THOUGHTS:
        found = re.match(rf"\s*(?:{re.escape(opening)})?\s*{re.escape(closing)}", body)
        if found:
            after = in_prompt[in_prompt.rfind(closing) + len(closing) :]
            return body[found.end() :].removeprefix(after)
    return body


def explain_declared(model: Model, verdict: Verdict, message: dict[str, Any], trained: str, context: str) -> str:
    """Return why a text cannot result from a declared row after the prompt; "" if it can.

    A row adds tags around reasoning, and an end: all other text must be in the record."""
    if not context.startswith(verdict.prompt):
        return "the prompt is not what inference is given"
    text = context[len(verdict.prompt) :] + trained
    missing = find_missing(message, text)
    if missing:
        return f"not there: {', '.join(sorted(missing))}"
    if not any(trained.rstrip().endswith(end) for end in model.ends):
        return "no end"
    opened = find_opened(verdict.prompt)
    if opened is not None and opened[1] not in text:
        return f"{opened[0]} is not closed"
    content = (message.get("content") or "").strip()
    before, found, after = text.rpartition(content) if content else ("", "", "")
    lead, trail = before[len(before.rstrip()) :], after[: len(after) - len(after.lstrip())]
    if found and _has_long_run(message, lead, "" if message.get("tool_calls") else trail):
        return "indentation"
    if message.get("tool_calls"):
        return ""
    rest = text
    for _, spellings in list_parts(message):
        rest = rest.replace(spellings[0], "", 1)
    for tag in (*itertools.chain(*THOUGHTS), *model.ends, *model.controls):
        rest = rest.replace(tag, "")
    # A family may open a thought with words (Apriel); its template has them.
    strange = [line for line in rest.split("\n") if _WORD.search(line) and line.strip() not in model.source]
    return f"more than the record and tags: {strange}" if strange else ""
