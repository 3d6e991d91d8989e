"""The law of masks: which text of a generated turn is trained, as witnessed by renders of the template.

    prompt   P(i): the conversation before the turn, with the generation prompt: the prompt of inference
    next     P(i+1): the prompt before the next turn; for the last turn, the prompt after a probe (a result for each
             of its calls, or a user message)
    last     L(i): the conversation up to and including the turn

A render witnesses a turn if it begins with P(i) and shows, before the first token that ends a turn, everything that was
generated according to the record, no text of another message, and a closing for every thought that P(i) opened.

    rule 1   `next` witnesses: its text is trained. The turn shares a sequence with the next one.
    rule 2   `last` witnesses, or one of the two would witness if it began with P(i): the sequence ends with the turn
    rule 3   a declared row defines how the thought is written or what ends the turn; EOS if no render shows an end
    refusal  no_reasoning, dropped, two_forms, template_error

If `next` and `last` witness different texts, the row decides which one the model samples; without a row: `two_forms`.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Reason, TemplateError
from pairwright.tokens.spans.control_tokens import control_pattern
from pairwright.tokens.spans.dropped import describe_dropped, find_dropped_fields, squeeze
from pairwright.tokens.spans.grammar import (
    Grammar,
    Thought,
    count_common,
    learn_grammar,
    reasoning_of,
    try_render,
    without_reasoning,
)
from pairwright.tokens.template.render import Piece, Rendered, Template
from pairwright.tokens.template.tracked_str import CALL_ID, CONTENT, REASONING, Chat
from pairwright.tokens.tokenizer import ChatTokenizer

MissingReasoning = Literal["refuse", "close"]
Source = Literal["next", "last"]


class Terms(NamedTuple):
    """What the user allows, and whether the law applies."""

    require_stop: bool = True  # a turn needs a token that ends it
    close_thoughts: bool = False  # close a thought that the prompt opens if the turn has no reasoning
    allow_dropped: bool = False  # train turns that are not rendered completely
    is_recorded: bool = False  # the turn's ids are recorded: exempt from the law, only its position is needed


class Fault(NamedTuple):
    """Why a render does not witness a turn."""

    reason: Reason
    detail: str


class Shown(NamedTuple):
    """A turn in a render that witnesses it, in characters."""

    rendered: Rendered
    prompt: int  # end of the prompt
    start: int  # start of the trained text: after a thought that the template closed
    end: int  # end of the trained text, stop included
    stop: str | None
    own: tuple[Piece, ...]  # the turn's pieces
    dropped: tuple[str, ...] = ()  # the turn's fields that are not rendered

    @property
    def text(self) -> str:
        return self.rendered.text[self.start : self.end]

    @property
    def written(self) -> str:
        """The text after the prompt, including a thought that the template closed."""
        return self.rendered.text[self.prompt : self.end]


class Verdict(NamedTuple):
    """How a turn is trained."""

    rule: int  # 1, 2 or 3
    source: Source  # the render that shows the turn's text
    shown: Shown  # the turn in that render, or in the joined text (prompt followed by the turn)
    following: Shown | None = None  # the turn in the next turn's prompt, if they share a sequence
    is_joined: bool = False  # the prompt and the turn come from two renders
    end_added: bool = False  # no render shows the token that ends the turn
    is_declared: bool = False  # the text comes from a row that no render shows
    continues: bool = False  # `following` exists; kept when the renders are forgotten


class Case:
    """One turn of a conversation with its renders, made lazily. `is_excerpt`: renders with provenance were already
    compared with plain ones, on the turn's skeleton."""

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        renderer: Template,
        chat: Chat,
        tools: list[Json] | None,
        turn: int,
        *,
        is_excerpt: bool = False,
    ) -> None:
        self.tokenizer, self.renderer, self.chat, self.tools, self.turn = tokenizer, renderer, chat, tools, turn
        self.is_excerpt = is_excerpt
        self.message = chat[turn]
        self.grammar: Grammar = learn_grammar(tokenizer, renderer)

    @cached_property
    def prompt(self) -> Rendered:
        return self.renderer.render(self.chat[: self.turn], self.tools, prompt=True)

    @cached_property
    def last(self) -> Rendered:
        return self.renderer.render(self.chat[: self.turn + 1], self.tools)

    @cached_property
    def next(self) -> Rendered | None:
        """None if the template refuses any message after this turn."""
        later = range(self.turn + 1, len(self.chat))
        following = next((number for number in later if self.chat[number].get("role") == "assistant"), None)
        if following is not None:
            return try_render(self.renderer, self.chat[:following], self.tools, prompt=True)
        chats = ([*self.chat[: self.turn + 1], *probe] for probe in _probes(self.message))
        renders = (try_render(self.renderer, chat, self.tools, prompt=True) for chat in chats)
        return next(filter(None, renders), None)

    @cached_property
    def thought(self) -> Thought | None:
        return self.grammar.find_thought(self.prompt.text)

    @property
    def is_open(self) -> bool:
        return self.thought is not None and self.thought.is_open

    @cached_property
    def has_reasoning(self) -> bool:
        return self.grammar.has_reasoning(self.message)

    @property
    def has_calls(self) -> bool:
        return bool(self.message.get("tool_calls"))

    @property
    def declared_end(self) -> str:
        """The end of this turn according to the declared row; "" if there is none."""
        return self.grammar.row.end_of(has_calls=self.has_calls) if self.grammar.row else ""


def _probes(message: Json) -> list[Chat]:
    """Return messages that may follow a last turn: a result for each of its calls, or a user message."""
    user: Chat = [{"role": "user", "content": "zqu"}]
    calls = message.get("tool_calls")
    return [[_result_of(call) for call in calls], user] if isinstance(calls, list) and calls else [user]


def _result_of(call: object) -> Json:
    result: Json = {"role": "tool", "content": "zqt"}
    if isinstance(call, dict):
        function = call.get("function", call)
        if call.get("id") is not None:
            result["tool_call_id"] = call["id"]
        if isinstance(function, dict) and "name" in function:
            result["name"] = function["name"]
    return result


def judge(case: Case, terms: Terms) -> Verdict | Fault:
    """Judge by the law how a turn is trained; incomplete text is used only if no render is complete."""
    if terms.allow_dropped:
        complete = _judge(case, terms._replace(allow_dropped=False))
        if isinstance(complete, Verdict):
            return complete
    return _judge(case, terms)


def _judge(case: Case, terms: Terms) -> Verdict | Fault:
    try:
        prompt = case.prompt.text
        is_same = case.is_excerpt or prompt == case.renderer.text(case.chat[: case.turn], case.tools, prompt=True)
    except TemplateError as error:
        return Fault("template_error", f"the prompt before this turn cannot be rendered: {error}")
    try:
        whole = case.last.text
        is_same &= case.is_excerpt or whole == case.renderer.text(case.chat[: case.turn + 1], case.tools)
    except TemplateError as error:
        return Fault("template_error", str(error))
    if not is_same:
        return Fault("text_differs", "the template depends on the type of its strings")
    last = witness(case, case.last, len(prompt), terms) if whole.startswith(prompt) else None
    following = None
    if case.next is not None and case.next.text.startswith(prompt):
        following = witness(case, case.next, len(prompt), terms)
    prefer = case.grammar.row.prefer if case.grammar.row else ""
    if isinstance(following, Shown):
        if not isinstance(last, Shown) or (last.stop is None and following.stop is not None):
            return Verdict(1, "next", following, following, continues=True)
        if last.written == following.written:  # use the render without a probe
            return Verdict(1, "last", last, following, continues=True)
        if squeeze(last.written) == squeeze(following.written):  # differences in white space are not two forms
            return Verdict(1, "next", following, following, continues=True)
        if prefer:
            is_last = prefer == "last"
            return Verdict(
                1, prefer, last if is_last else following, None if is_last else following, continues=not is_last
            )
        return _two_forms(following.written, last.written)
    if isinstance(last, Shown):
        other = _contradiction(case, last)
        if not other or prefer == "last" or last.stop == case.declared_end:
            return Verdict(2, "last", last)
        if not prefer:
            return _two_forms(last.text, other)
    joined = _join_renders(case, terms)
    if isinstance(joined, Verdict):
        return joined
    return _declare(case, terms) or _end_turn(case, terms) or _worst(case, last, following, joined)


def witness(case: Case, rendered: Rendered, begin: int, terms: Terms) -> Shown | Fault:
    """Return the turn in a render, where it begins at `begin`; or the fault if the render does not witness it."""
    grammar, text = case.grammar, rendered.text
    own, limit = _find_own(case, rendered, begin)
    if any(piece.message == case.turn and piece.end > piece.start and piece.end <= begin for piece in rendered.pieces):
        return Fault("two_forms", "the template also renders text of this turn before it")
    numbers = _cut_block(case, rendered, own)
    block = [rendered.pieces[number] for number in numbers]
    text_end = max(block[-1].end, begin) if block else begin
    end, stop = _find_end(case, text, text_end, limit)
    dropped = tuple(find_dropped_fields(rendered, numbers, case.message, limit if stop is None else end))
    if dropped and not (terms.allow_dropped or terms.is_recorded):
        return Fault("dropped", describe_dropped(dropped, has_calls=case.has_calls))
    if stop is None and terms.require_stop:
        return Fault("no_stop", "no render shows a token that ends the turn")
    if stop is None:
        end = text_end
    first = next((max(piece.start, begin) for piece in block if piece.end > max(piece.start, begin)), text_end)
    start = closed = begin
    if not case.has_reasoning:
        closed, start = (min(position, first if block else end) for position in grammar.match_empty(text, begin))
    if not terms.is_recorded:
        fault = _check_thought(case, text, begin, start, end, terms) or _check_space(
            case, text[closed:first], text[text_end : end - len(stop or "")]
        )
        if fault is not None:
            return fault
    return Shown(rendered, begin, start, end, stop, tuple(block), dropped)


def _find_own(case: Case, rendered: Rendered, begin: int) -> tuple[list[int], int]:
    """Return the indices of the turn's pieces from `begin` on, and the start of another message's text."""
    limit, own = len(rendered.text), []
    for number, piece in enumerate(rendered.pieces):
        if piece.message == case.turn:
            if piece.start < limit and (piece.end > begin or piece.start >= begin):
                own.append(number)
        elif piece.start >= begin and (piece.message > case.turn or piece.end > piece.start):
            limit = min(limit, piece.start)
    return [number for number in own if rendered.pieces[number].start <= limit], limit


def _cut_block(case: Case, rendered: Rendered, own: list[int]) -> list[int]:
    """Return the generated pieces: up to the first end after which the turn's text is only repeated."""
    pieces = [rendered.pieces[number] for number in own]
    for size in range(1, len(own)):
        if _find_end(case, rendered.text, pieces[size - 1].end, pieces[size].start)[1] is None:
            continue
        shown: dict[int, str] = {}
        for piece in pieces[:size]:
            shown[piece.field] = shown.get(piece.field, "") + "\n" + rendered.text[piece.start : piece.end]
        if all(
            piece.field == CALL_ID or rendered.text[piece.start : piece.end] in shown.get(piece.field, "")
            for piece in pieces[size:]
        ):
            return own[:size]
    return own


def _find_end(case: Case, text: str, start: int, limit: int) -> tuple[int, str | None]:
    """Find the first token in `text[start:limit]` that ends a turn; return its end and the token."""
    opener = case.grammar.opener
    for match in control_pattern(case.tokenizer).finditer(text, start, limit):
        if match.group() == opener and opener not in case.grammar.ends:
            break  # the header of another message
        if match.group() in case.grammar.ends:
            return match.end(), match.group()
    return start, None


def _check_thought(case: Case, text: str, begin: int, start: int, end: int, terms: Terms) -> Fault | None:
    """Check that a thought opened by the prompt is closed, and not opened again."""
    thought = case.thought
    if thought is None or not thought.is_open or not terms.require_stop:
        return None
    if thought.tags.closing not in text[begin:end]:
        if case.has_reasoning:
            return Fault("dropped", "the template does not render the end of this turn's thought")
        return Fault("no_reasoning", "the prompt opens a thought, and the turn has no reasoning")
    written = text[begin:end].lstrip().removeprefix(thought.tags.closing).lstrip()
    if written.startswith(thought.tags.opening):
        return Fault("two_forms", "the prompt opens a thought, and the turn opens it again")
    return None


def _check_space(case: Case, before: str, after: str) -> Fault | None:
    """Check white space between the prompt and a turn, or a turn and its end: one character, or newlines."""
    row = case.grammar.row
    lead, trail = before[: len(before) - len(before.lstrip())], after[len(after.rstrip()) :]
    for run, where in ((lead, "before"), (trail, "after")):
        declared = row is not None and any(
            run in field for field in (row.opening, row.closing, row.end_text, row.end_call)
        )
        if len(run) > 1 and run.strip("\n") and not declared:
            detail = f"the template writes {len(run)} characters of white space {where} the text of this turn"
            return Fault("template_error", detail)
    return None


def _contradiction(case: Case, last: Shown) -> str:
    """Return what `next` shows in place of the end that `last` shows; "" if it shows the same, or no end."""
    if case.next is None or last.stop is None or not last.own:
        return ""
    own = [piece for piece in case.next.pieces if piece.message == case.turn]
    shown, end = _tail_of(case, case.next), last.rendered.text[last.own[-1].end : last.end]
    # If `next` omits the turn's last field, it shows nothing about the turn's end.
    is_same = any(piece.field == last.own[-1].field for piece in own) and shown != ""
    return "" if not is_same or shown.startswith(end) else shown


def _two_forms(left: str, right: str) -> Fault:
    return Fault("two_forms", f"one render shows {_short(left)}, another one {_short(right)}")


def _short(text: str) -> str:
    return repr(text if len(text) < 60 else f"…{text[-57:]}")


def _find_witnesses(
    case: Case, sources: tuple[Source, ...], prefix: str, terms: Terms
) -> Iterator[tuple[Source, Shown | Fault]]:
    """Yield what renders show of the turn, or why not, if it begins after `prefix` or after the same header."""
    for source in sources:
        rendered = case.next if source == "next" else case.last
        begin = _find_begin(case, rendered, prefix) if rendered is not None else None
        if rendered is not None and begin is not None:
            yield source, witness(case, rendered, begin, terms)


def _join_renders(case: Case, terms: Terms) -> Verdict | Fault | None:
    """Rule 2, joined: text before the turn differs between the renders, or the prompt closed an empty thought. Join the
    prompt with the turn from another render."""
    if case.is_open:
        return None
    prefix = _prefix(case)
    fault: Fault | None = None
    found: dict[Source, Shown] = {}
    for source, shown in _find_witnesses(case, ("next", "last"), prefix, terms):
        if isinstance(shown, Shown):
            found[source] = shown
        else:
            fault = fault or shown
    if not found:
        return fault
    # If the prompt closes a thought, the renders may or may not repeat it.
    is_closed = len(prefix) < len(case.prompt.text)
    texts = [shown.text if is_closed else shown.written for shown in found.values()]
    if len({*map(squeeze, texts)}) > 1:
        row = case.grammar.row
        if row is None or not row.prefer:
            return _two_forms(*texts)
        found = {row.prefer: found[row.prefer]}
    source, first = next(iter(found.items()))
    rest, added = _rest(case, first)
    return Verdict(2, source, _join(case, [], first, rest, added=added), is_joined=True)


def _prefix(case: Case) -> str:
    """Return the prompt, without an empty thought that it closes if the turn has no reasoning."""
    thought = case.thought
    is_closed = thought is not None and not thought.is_open and not case.has_reasoning
    return case.prompt.text[: thought.start] if is_closed and thought is not None else case.prompt.text


def _rest(case: Case, shown: Shown) -> tuple[int, int]:
    """Return the position in the render where the turn continues the prompt, and how many characters from there are not
    trained. An empty thought of the prompt is not repeated; any other empty thought is counted as added."""
    if len(_prefix(case)) == len(case.prompt.text):
        return shown.prompt, shown.start - shown.prompt
    rest, _ = case.grammar.match_empty(shown.rendered.text, shown.prompt)
    if rest > shown.start:
        return shown.start, 0
    prompt = case.prompt.text
    space = prompt[len(prompt.rstrip()) :]  # white space after the thought may be the prompt's
    is_same = rest > shown.prompt and shown.rendered.text.startswith(space, rest)
    return rest + len(space) if is_same else rest, 0


def _find_begin(case: Case, rendered: Rendered, prefix: str) -> int | None:
    """Return where the turn begins in a render: after `prefix` (the prompt or its start), or its header."""
    if rendered.text.startswith(prefix):
        return len(prefix)
    first = next((number for number, piece in enumerate(rendered.pieces) if piece.message == case.turn), None)
    if first is None:
        return None
    # The header follows the message before the turn, which both must show identically.
    before = rendered.pieces[first - 1] if first else None
    own = case.prompt.pieces[-1] if case.prompt.pieces else None
    if (before is None) != (own is None):
        return None
    low = 0
    header = prefix
    if before is not None and own is not None:
        texts = rendered.text[before.start : before.end], case.prompt.text[own.start : own.end]
        if before[2:] != own[2:] or texts[0] != texts[1]:
            return None
        low, header = before.end, prefix[own.end :]
    lead = rendered.text[low : rendered.pieces[first].start]
    if header and lead.startswith(header):
        return low + len(header)
    # The end of the message before the turn also differs: the header is the text that the generation prompt adds.
    try:
        bare = case.renderer.text(case.chat[: case.turn], case.tools)
    except TemplateError:
        return None
    header = prefix[len(bare) :] if prefix.startswith(bare) else ""
    position = lead.rfind(header) if header.strip() else -1
    return low + position + len(header) if position >= 0 else None


def _join(
    case: Case,
    written: list[tuple[str, int]],
    shown: Shown,
    rest: int,
    *,
    added: int = 0,
    closing: str = "",
    stop: str | None = None,
) -> Shown:
    """Concatenate the prompt, `written` (text and field; -1: template text), and the shown turn from `rest` on. The
    first `added` characters after the prompt are not trained. `closing` and `stop` follow a turn without an end."""
    position = begin = len(case.prompt.text)
    pieces = list(case.prompt.pieces)
    for text, field in written:
        if field >= 0:
            pieces.append(Piece(position, position + len(text), case.turn, field))
        position += len(text)
    shift = position - rest
    own = [Piece(max(p.start, rest) + shift, p.end + shift, p.message, p.field) for p in shown.own if p.end >= rest]
    before = case.prompt.text + "".join(text for text, _ in written)
    text = before + shown.rendered.text[rest : shown.end] + closing + (stop or "")
    new = pieces[len(case.prompt.pieces) :]
    stop = stop or shown.stop
    return Shown(Rendered(text, [*pieces, *own]), begin, begin + added, len(text), stop, (*new, *own), shown.dropped)


def _declare(case: Case, terms: Terms) -> Verdict | None:
    """Rule 3: write the turn's thought as the row declares it; None if no row declares it."""
    row, thought = case.grammar.row, case.thought
    if row is None or not row.opening.strip() or (thought is not None and not thought.is_open):
        return None
    reasoning, chat = reasoning_of(case.message), case.chat
    if not reasoning and (parts := case.grammar.split_thought(case.message)) is not None:
        reasoning = parts[0]
        chat = [*chat[: case.turn], {**case.message, "content": parts[1]}, *chat[case.turn + 1 :]]
    if not reasoning and not (case.is_open and terms.close_thoughts):
        return None
    prefix = case.prompt.text if thought is None else case.prompt.text[: thought.start]
    answer = [*chat[: case.turn], without_reasoning(chat[case.turn]), *chat[case.turn + 1 :]]
    plain = Case(case.tokenizer, case.renderer, answer, case.tools, case.turn)
    plain.__dict__["prompt"] = Rendered(prefix, case.prompt.pieces)  # overrides the lazy render
    order: tuple[Source, ...] = ("last", "next") if row.prefer == "last" else ("next", "last")
    for source, shown in _find_witnesses(plain, order, prefix, terms._replace(require_stop=False)):
        if isinstance(shown, Fault):
            continue
        closing, stop = ("", None) if shown.stop else _missing_end(plain)
        if not shown.stop and not stop and terms.require_stop:
            continue
        first = next((piece.start for piece in shown.own), shown.start)
        header = case.grammar.header.strip()
        if header and header in shown.rendered.text[shown.start : first]:
            continue  # the turn begins with a header that the prompt does not have
        field = REASONING if reasoning_of(case.message) else CONTENT
        written = [(row.closing, -1)] if not reasoning else [(reasoning.strip(), field), (row.closing, -1)]
        if not case.is_open:
            written.insert(0, (row.opening, -1))
        added = 0 if reasoning else len(row.closing)
        joined = _join(case, written, shown, shown.start, added=added, closing=closing, stop=stop)
        return Verdict(
            3, source, joined, is_joined=True, end_added=stop is not None, is_declared=not case.grammar.is_shown
        )
    return None


def _end_turn(case: Case, terms: Terms) -> Verdict | None:
    """Add an end to a turn whose witness shows none: the one in `next` (rule 2), the row's, or EOS."""
    if case.next is None:
        return None
    lenient = terms._replace(require_stop=False)
    for source, shown in _find_witnesses(case, ("last", "next"), _prefix(case), lenient):
        if isinstance(shown, Fault) or shown.stop is not None:
            continue
        if case.is_open and case.thought is not None and case.thought.tags.closing not in shown.text:
            continue
        rest, added = _rest(case, shown)
        following = _tail_of(case, case.next)
        end, token = _find_end(case, following, 0, len(following))
        if token is not None:  # `next` shows the end that this render omits
            closing = following[: end - len(token)]
            joined = _join(case, [], shown, rest, added=added, closing=closing, stop=token)
            return Verdict(2, source, joined, is_joined=True)
        closing, stop = _missing_end(case)
        if stop is not None:
            joined = _join(case, [], shown, rest, added=added, closing=closing, stop=stop)
            return Verdict(3, source, joined, is_joined=True, end_added=True)
    return None


def _missing_end(case: Case) -> tuple[str, str | None]:
    """Return the text that both renders write behind a turn without an end, and the row's end, else EOS."""
    names = (case.declared_end, str(case.tokenizer.special_tokens.get("eos_token")), *sorted(case.tokenizer.eos))
    stop = next((name for name in names if name in case.tokenizer.added), None)
    closing = _tail_of(case, case.last)
    if case.next is not None:
        closing = closing[: count_common(closing, _tail_of(case, case.next))]
    if case.grammar.opener:
        closing = closing.partition(case.grammar.opener)[0]
    return closing.rstrip(), stop


def _tail_of(case: Case, rendered: Rendered) -> str:
    """Return the template text after the turn, up to the next message's text."""
    numbers = [number for number, piece in enumerate(rendered.pieces) if piece.message == case.turn]
    if not numbers:
        begin = _find_begin(case, rendered, _prefix(case))
        if begin is None:
            return ""
        return rendered.text[case.grammar.match_empty(rendered.text, begin)[0] : _find_own(case, rendered, begin)[1]]
    own, limit = _find_own(case, rendered, rendered.pieces[numbers[0]].start)
    block = _cut_block(case, rendered, own)
    return rendered.text[rendered.pieces[block[-1]].end : limit] if block else ""


# Reasons of faults, the most helpful first.
_ORDER: tuple[Reason, ...] = ("no_reasoning", "dropped", "template_error", "two_forms", "no_stop")


def _worst(case: Case, *faults: Shown | Fault | Verdict | None) -> Fault:
    """Return the fault that helps most to fix the problem."""
    found = [fault for fault in faults if isinstance(fault, Fault)]
    if case.is_open and not case.has_reasoning:
        return Fault("no_reasoning", "the prompt opens a thought, and the turn has no reasoning")
    for reason in _ORDER:
        if fault := next((item for item in found if item.reason == reason), None):
            return fault
    begin = next((piece.start for piece in case.last.pieces if piece.message == case.turn), 0)
    plain = tuple(find_dropped_fields(case.last, _find_own(case, case.last, begin)[0], case.message))
    if plain:
        return Fault("dropped", describe_dropped(plain, has_calls=case.has_calls))
    prompt, last = case.prompt.text, case.last.text
    position = count_common(prompt, last)
    around = slice(max(position - 10, 0), position + 30)
    return Fault("two_forms", f"the prompt has {prompt[around]!r}, the turn has {last[around]!r}")
