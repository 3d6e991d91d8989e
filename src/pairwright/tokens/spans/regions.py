"""Locate the region of each trained turn: from the end of the inference prompt to the stop token.

Linear in the number of turns: the law judges each turn on a skeleton, once for each shape, and the literals around the
turn locate it in one render of the conversation. The prompts of a few turns, including the first and the last, are
rendered and compared, or all prompts if the template counts turns. A turn that this render does not show is judged on
an excerpt, the messages around it. Turns that do not match are judged on the whole conversation.

Turns with the prefix property (rule 1) share a sequence. A turn of another rule is the last of its sequence.
"""

import itertools
from typing import Any, Literal, NamedTuple

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.spans.dropped import Fields, Missing, find_left_out
from pairwright.tokens.spans.grammar import try_render
from pairwright.tokens.spans.law import Case, Fault, Shown, Terms, Verdict, judge
from pairwright.tokens.spans.skeletons import SMALL, Shapes, build_skeleton, find_constants
from pairwright.tokens.template.render import Piece, Rendered, Template
from pairwright.tokens.template.tested_words import find_tested_words
from pairwright.tokens.template.tracked_str import CALL, Chat
from pairwright.tokens.tokenizer import ChatTokenizer

_VERIFIED = 4  # turns whose prompts are rendered and compared, including the first and the last
_MAX_LEARNT = 20_000  # shapes of turns
_MAX_NAMED = 5  # turns that a refusal names
_EXCHANGES = 20  # exchanges in each conversation that tests a template at every turn


Verify = Literal["quick", "all"]


class Region(NamedTuple):
    """The generated text of one turn, in character positions of the rendered text."""

    message: int
    prompt: int  # end of the inference prompt; from there to `start` the template closed a thought
    start: int
    end: int  # after the stop token
    stop: str | None
    rule: int = 1  # of the law: 1, 2 or 3
    end_added: bool = False  # no render shows the stop token
    is_declared: bool = False  # the text comes from a row that no render shows


class Located(NamedTuple):
    """A rendered conversation with the regions of its trained turns."""

    rendered: Rendered
    regions: list[Region]
    dropped: Fields = ()
    probed: int = 0
    prompt_dropped: Fields = ()
    num_images: int = 0
    is_joined: bool = False  # the last turn is joined to its prompt, not rendered with it


Group = tuple[Chat, Located]  # the conversation up to the group's last turn, and the regions of its turns


def only_group(groups: list[Group]) -> Located:
    """Return the only group; raise a Refusal if the turns need several sequences."""
    if len(groups) > 1:
        first = groups[0][1].regions[-1].message
        raise Refusal("context_differs", f"{len(groups)} sequences are needed", message=first)
    return groups[0][1]


def locate_groups(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    terms: Terms,
    *,
    verify: Verify = "quick",
) -> list[Group]:
    """Locate turns in the fewest sequences that the law allows. `verify="all"` renders the prompt of every turn,
    which takes time quadratic in the number of turns."""
    renderer = tokenizer.renderer(tools)
    finder = Finder(tokenizer, renderer, chat, tools, terms)
    if not turns:
        return [(chat, finder.finish(finder.render(len(chat)), [], len(chat)))]
    try:
        return finder.locate_by_shapes(turns, verify=verify)
    except _UnlikeShape:
        return finder.locate_by_definition(turns)


class _UnlikeShape(Exception):
    """The conversation contradicts the skeletons of its turns."""


class _History(NamedTuple):
    """The longest prompt of a conversation, before `turn`, rendered once. In most templates, shorter prompts are its
    prefixes: their text, provenance and missing fields (`missing`, by message) are taken from it."""

    turn: int
    rendered: Rendered
    missing: dict[int, list[str]]

    @classmethod
    def of(cls, rendered: Rendered, chat: Chat, tools: list[Json] | None) -> "_History":
        missing: dict[int, list[str]] = {number: [] for number in range(len(chat))}
        for number, name in find_left_out(rendered, chat, tools, {}).prompt_dropped:
            missing.setdefault(number, []).append(name)
        return cls(len(chat), rendered, missing)

    def find_prompt(self, turn: int, ending: str) -> Rendered | None:
        """Return the prompt before a turn; `ending` is the template text after its last message. None if text of later
        messages precedes it."""
        pieces = [piece for piece in self.rendered.pieces if piece.message < turn]
        end = pieces[-1].end if pieces else 0
        if pieces != self.rendered.pieces[: len(pieces)]:
            return None
        return Rendered(self.rendered.text[:end] + ending, pieces)

    def missing_before(self, turn: int) -> Missing:
        """Return the missing fields of messages before a turn, except the last: its fields depend on what follows."""
        last = next((piece.message for piece in reversed(self.rendered.pieces) if piece.message < turn), None)
        return {number: names for number, names in self.missing.items() if number != last}


class _Literals(NamedTuple):
    """The literals around a turn's text, and where in them its region starts and ends. For a turn without pieces, lead
    and tail are the same literal."""

    lead: str  # template text from the previous piece to the turn's first piece
    prompt: int  # end of the prompt, counted from the start of lead
    start: int  # start of the trained text, counted likewise
    opening: str  # the turn's first characters, if the generation prompt supplies them (a <think> in the content)
    tail: str  # template text from the turn's last piece to the next message's
    end: int  # the region ends at tail[end]
    later: int  # pieces that repeat the turn's text after its end (a call's name in the result's header)
    fields: frozenset[int]  # the rendered fields of the turn
    stop: str | None


class _Plan(NamedTuple):
    """What a skeleton shows: the verdict, and the literals of a turn that is last (`outer`) or not (`inner`)."""

    verdict: Verdict
    outer: _Literals
    inner: _Literals | None


class Finder:
    """Finds turns in one conversation; plans of shapes are cached on the tokenizer."""

    def __init__(
        self, tokenizer: ChatTokenizer, renderer: Template, chat: Chat, tools: list[Json] | None, terms: Terms
    ) -> None:
        self._tokenizer, self._renderer, self._chat, self._tools = tokenizer, renderer, chat, tools
        self._terms = terms
        learnt = tokenizer.learnt
        if len(learnt) > _MAX_LEARNT:
            learnt.clear()
        tools_key = None if tools is None else msgspec.json.encode(tools)
        self._learnt: dict[Any, _Plan | Fault] = learnt.setdefault((renderer.hash, tools_key, terms), {})
        if len(self._learnt) > _MAX_LEARNT:
            self._learnt.clear()
        key = ("shapes", renderer.hash)
        if key not in learnt:
            learnt[key] = find_constants(renderer.source), _writes_arguments_whole(renderer)
        constants, whole_arguments = learnt[key]
        self._shapes = Shapes(chat, constants, whole_arguments=whole_arguments)
        self._probed = 0

    def plan(self, turn: int) -> _Plan | Fault:
        """Judge a turn on its skeleton; cached by shape."""
        window = self._shapes.window(turn)
        key = (*(self._shapes.keys[number] for number in window), window.index(turn))
        if key not in self._learnt:
            *keys, target = key
            case = Case(self._tokenizer, self._renderer, build_skeleton(keys), self._tools, target)
            verdict = judge(case, self._terms)
            self._learnt[key] = verdict if isinstance(verdict, Fault) else _describe(verdict, target)
        return self._learnt[key]

    def judge(self, turn: int) -> Verdict:
        """Judge a turn on the whole conversation; raise a Refusal if the law has no verdict."""
        self._probed += 1
        verdict = judge(Case(self._tokenizer, self._renderer, self._chat, self._tools, turn), self._terms)
        if isinstance(verdict, Fault):
            raise Refusal(verdict.reason, verdict.detail, message=turn)
        return verdict

    def render(self, size: int, *, prompt: bool = False) -> Rendered:
        try:
            return self._renderer.render(self._chat[:size], self._tools, prompt=prompt)
        except TemplateError as error:
            raise _template_refusal(self._renderer, self._chat, self._tools, error) from None

    def locate_by_shapes(self, turns: list[int], *, verify: Verify) -> list[Group]:
        """Locate turns by skeletons; raise _UnlikeShape if the conversation contradicts them."""
        plans: dict[int, _Plan] = {}
        for number, turn in enumerate(turns):
            plan = self.plan(turn)
            if isinstance(plan, Fault):
                self.render(len(self._chat))  # if the template rejects the conversation, that is the refusal
                try:
                    plan = _describe(self.judge(turn), turn)  # the whole conversation gives the exact reason
                except Refusal as refusal:
                    raise self._name_others(refusal, turns[number + 1 :]) from None
            plans[turn] = plan
        groups: list[Group] = []
        parts = self._split(turns, {turn: plan.verdict for turn, plan in plans.items()})
        apart = [part[-1] for part in parts if not _is_rendered(plans[part[-1]].verdict)]
        history = self._find_history(apart, verify=verify)
        for members in parts:
            last = members[-1]
            verdict = plans[last].verdict
            if not _is_rendered(verdict):
                groups.append((self._chat[: last + 1], self._locate_judged(members, plans, history)))
                continue
            # Keep messages after the last turn if the render of the whole conversation can be used.
            size = len(self._chat) if last == turns[-1] and verdict.continues else last + 1
            rendered = self.render(size)
            own = rendered.pieces_by_message()
            regions = [
                self._place(rendered, own, turn, plans[turn], is_inner=turn < last or size > last + 1)
                for turn in members
            ]
            groups.append((self._chat[:size], self.finish(rendered, regions, size)))
        self._verify(groups, verify=verify, joined=history is not None)
        return groups

    def _name_others(self, refusal: Refusal, turns: list[int]) -> Refusal:
        """Add the later turns with the same reason to a refusal."""
        plans = ((turn, self.plan(turn)) for turn in turns)
        others = [turn for turn, plan in plans if isinstance(plan, Fault) and plan.reason == refusal.reason]
        if not others:
            return refusal
        more = ", ".join(map(str, others[:_MAX_NAMED])) + (", ..." if len(others) > _MAX_NAMED else "")
        return Refusal(refusal.reason, f"{refusal.detail}; the same in message {more}", message=refusal.message)

    def _split(self, turns: list[int], verdicts: dict[int, Verdict]) -> list[list[int]]:
        """Group turns that share a sequence: each has the prefix property, except the last of a group."""
        groups: list[list[int]] = [[]]
        for turn, following in itertools.zip_longest(turns, turns[1:]):
            groups[-1].append(turn)
            if following is not None and not (verdicts[turn].continues and self._is_chain(turn, following)):
                groups.append([])
        return groups

    def _is_chain(self, turn: int, following: int) -> bool:
        """Return whether untrained assistant turns between two trained turns also have the prefix property."""
        between = [number for number in range(turn + 1, following) if self._chat[number].get("role") == "assistant"]
        if not between:
            return True
        prompts = [
            self._renderer.text(self._chat[:number], self._tools, prompt=True) for number in (*between, following)
        ]
        return all(right.startswith(left) for left, right in itertools.pairwise(prompts))

    def _place(
        self, rendered: Rendered, own: dict[int, list[int]], turn: int, plan: _Plan, *, is_inner: bool
    ) -> Region:
        """Locate a turn in the render of its sequence; `is_inner`: others follow it."""
        literals = plan.inner if is_inner else plan.outer
        region = _place_turn(rendered, own.get(turn, []), turn, literals) if literals is not None else None
        if region is not None:
            verdict = plan.verdict
            return region._replace(rule=verdict.rule, end_added=verdict.end_added, is_declared=verdict.is_declared)
        verdict = self.judge(turn)
        shown = verdict.following if is_inner else verdict.shown
        if verdict.is_joined or shown is None or not rendered.text.startswith(shown.rendered.text[: shown.end]):
            raise _UnlikeShape
        return _region_of(turn, shown, verdict)

    def _locate_judged(self, members: list[int], plans: dict[int, _Plan], history: _History | None) -> Located:
        """Locate a sequence whose last turn is not shown by the render of the conversation up to it."""
        last = members[-1]
        verdict = self._judge_excerpt(last, plans[last].verdict, history) if history is not None else None
        known = history.missing_before(last) if history is not None and verdict is not None else None
        verdict = verdict or self.judge(last)
        rendered = verdict.shown.rendered
        own = rendered.pieces_by_message()
        regions = [self._place(rendered, own, turn, plans[turn], is_inner=True) for turn in members[:-1]]
        return self._finish_shown(verdict, last, regions, known)

    def _find_history(self, turns: list[int], *, verify: Verify) -> _History | None:
        """Return the prompt before the last of these turns; None if excerpts cannot replace the conversation."""
        if verify == "all" or len(self._chat) <= SMALL or len(turns) < 2:
            return None
        try:
            chat = self._chat[: turns[-1]]
            history = _History.of(self._renderer.render(chat, self._tools, prompt=True), chat, self._tools)
        except (TemplateError, Refusal):
            return None
        text = history.rendered.text
        is_alike = is_regular(self._tokenizer, self._renderer) and not has_tested_word(self._renderer, text)
        return history if is_alike else None

    def _judge_excerpt(self, turn: int, expected: Verdict, history: _History) -> Verdict | None:
        """Judge a turn on the messages around it; None if skeleton or history show the turn differently."""
        window = self._shapes.window(turn)
        place, chat = window.index(turn), [self._chat[number] for number in window]
        case = Case(self._tokenizer, self._renderer, chat, self._tools, place, is_excerpt=True)
        verdict = judge(case, self._terms)
        if turn == history.turn or isinstance(verdict, Fault) or _forget_renders(verdict) != expected:
            return None
        before = [self._chat[number] for number in window if number < history.turn]
        last = try_render(self._renderer, before, self._tools, prompt=True)
        text, end = case.prompt.text, max((piece.end for piece in case.prompt.pieces), default=0)
        if last is None or not last.text.startswith(text[:end]):
            return None
        if _text_around(last, place) != _text_around(history.rendered, turn):
            return None
        prompt = history.find_prompt(turn, text[end:])
        return verdict._replace(shown=_move_turn(verdict.shown, prompt, turn), following=None) if prompt else None

    def _finish_shown(
        self, verdict: Verdict, last: int, regions: list[Region], known: Missing | None = None
    ) -> Located:
        """Build a sequence that ends with a turn, from the render in its verdict."""
        shown, rendered = verdict.shown, verdict.shown.rendered
        if verdict.source == "next" and not verdict.is_joined:  # cut off the probe or next message after the turn
            pieces = [piece for piece in rendered.pieces if piece.end <= shown.end and piece.message <= last]
            rendered = Rendered(rendered.text[: shown.end], pieces)
        located = self.finish(rendered, [*regions, _region_of(last, shown, verdict)], last + 1, known)
        return located._replace(is_joined=verdict.is_joined)

    def locate_by_definition(self, turns: list[int]) -> list[Group]:
        """Locate turns by judging each on the whole conversation: slow, but always right."""
        verdicts = {turn: self.judge(turn) for turn in turns}
        groups: list[Group] = []
        for *members, last in self._split(turns, verdicts):
            regions = []
            for number in members:
                shown = verdicts[number].following
                text = verdicts[last].shown.rendered.text
                if shown is None or not text.startswith(shown.rendered.text[: shown.end]):
                    raise Refusal("context_differs", "later prompts do not continue this turn", message=number)
                regions.append(_region_of(number, shown, verdicts[number]))
            groups.append((self._chat[: last + 1], self._finish_shown(verdicts[last], last, regions)))
        return groups

    def finish(self, rendered: Rendered, regions: list[Region], size: int, known: Missing | None = None) -> Located:
        """Check that regions are in order, and find what the template does not render of the first `size` messages."""
        for left, right in itertools.pairwise(regions):
            if right.prompt < left.end:
                raise _UnlikeShape
        turns = {region.message: region.end for region in regions}
        left_out = find_left_out(rendered, self._chat[:size], self._tools, turns, known)
        return Located(rendered, regions, left_out.dropped, self._probed, left_out.prompt_dropped, left_out.num_images)

    def _verify(self, groups: list[Group], *, verify: Verify, joined: bool) -> None:
        """Compare prompts with those of inference; `joined`: also of turns that are joined to their prompts."""
        compared = [located for _, located in groups if joined or not located.is_joined]
        regions = [(located, region) for located in compared for region in located.regions]
        is_long = len(regions) > _VERIFIED
        every = verify == "all" or (is_long and has_tested_word(self._renderer, groups[-1][1].rendered.text))
        every = every or (is_long and not is_regular(self._tokenizer, self._renderer))
        # Not only the last turn was judged on the whole conversation.
        every = every or (joined and self._probed > 1)
        if is_long and not every:  # the first, the last, and some between
            regions = [regions[number * (len(regions) - 1) // (_VERIFIED - 1)] for number in range(_VERIFIED)]
        for located, region in reversed(regions):
            try:
                prompt = self._renderer.text(self._chat[: region.message], self._tools, prompt=True)
            except TemplateError as error:
                detail = f"the prompt before this turn cannot be rendered: {error}"
                raise Refusal("template_error", detail, message=region.message) from None
            if len(prompt) != region.prompt or not located.rendered.text.startswith(prompt):
                raise _UnlikeShape


def _text_around(rendered: Rendered, turn: int) -> str:
    """Return the text between the messages before a turn and the messages after it."""
    first = next((number for number, piece in enumerate(rendered.pieces) if piece.message >= turn), 0)
    start = rendered.pieces[first - 1].end if first else 0
    return rendered.text[start : next((p.start for p in rendered.pieces[first:] if p.message > turn), None)]


def _move_turn(shown: Shown, prompt: Rendered, turn: int) -> Shown:
    """Append a turn, shown by the render of a shorter conversation, to its prompt in this conversation."""
    shift = len(prompt.text) - shown.prompt
    own = tuple(Piece(piece.start + shift, piece.end + shift, turn, piece.field) for piece in shown.own)
    rendered = Rendered(prompt.text + shown.written, [*prompt.pieces, *own])
    return shown._replace(
        rendered=rendered, prompt=len(prompt.text), start=shown.start + shift, end=shown.end + shift, own=own
    )


def _is_rendered(verdict: Verdict) -> bool:
    """Return whether the render of the conversation up to a turn shows its trained text."""
    return verdict.source == "last" and not verdict.is_joined


def _region_of(turn: int, shown: Shown, verdict: Verdict) -> Region:
    noted = verdict.rule, verdict.end_added, verdict.is_declared
    return Region(turn, shown.prompt, shown.start, shown.end, shown.stop, *noted)


def _describe(verdict: Verdict, turn: int) -> _Plan:
    inner = None if verdict.following is None else _read_literals(verdict.following, turn)
    return _Plan(_forget_renders(verdict), _read_literals(verdict.shown, turn), inner)


def _forget_renders(verdict: Verdict) -> Verdict:
    empty = Shown(Rendered("", []), 0, 0, 0, None, ())
    return verdict._replace(shown=empty, following=None)


def _read_literals(shown: Shown, turn: int) -> _Literals:
    pieces, text = shown.rendered.pieces, shown.rendered.text
    own = [number for number, piece in enumerate(pieces) if piece.message == turn]
    size = len(shown.own)
    if size:
        first, beyond = own[0], own[0] + size
    else:
        first = next((number for number, piece in enumerate(pieces) if piece.end > shown.prompt), len(pieces))
        beyond = first
    before = pieces[first - 1].end if first else 0
    after = pieces[beyond].start if beyond < len(pieces) else len(text)
    lead_end = pieces[first].start if size else after
    text_end = pieces[beyond - 1].end if size else before
    return _Literals(
        lead=text[before:lead_end],
        prompt=shown.prompt - before,
        start=shown.start - before,
        opening=text[lead_end : shown.prompt],
        tail=text[text_end:after],
        end=shown.end - text_end,
        later=len(own) - size,
        fields=frozenset(piece.field for piece in shown.own),
        stop=shown.stop,
    )


def _place_turn(rendered: Rendered, own: list[int], turn: int, learnt: _Literals) -> Region | None:
    """Find the turn's literals in the conversation; None if they differ from those of the skeleton."""
    pieces, text = rendered.pieces, rendered.text
    size = len(own) - learnt.later
    if size < 0 or bool(size) != bool(learnt.fields):
        return None
    if not size:  # a turn without text is between the pieces of its neighbours
        first = next((number for number, piece in enumerate(pieces) if piece.message > turn), len(pieces))
        beyond = first
    else:
        first, beyond = own[0], own[size - 1] + 1
        if beyond - first != size or not learnt.fields <= {pieces[number].field for number in own[:size]}:
            return None
    before = pieces[first - 1].end if first else 0
    after = pieces[beyond].start if beyond < len(pieces) else len(text)
    lead_end = pieces[first].start if size else after
    if text[before:lead_end] != learnt.lead:
        return None
    if learnt.opening and (
        not text.startswith(learnt.opening, lead_end) or pieces[first].end - lead_end < len(learnt.opening)
    ):
        return None
    tail_start = pieces[beyond - 1].end if size else before
    if text[tail_start:after] != learnt.tail:
        return None
    return Region(turn, before + learnt.prompt, before + learnt.start, tail_start + learnt.end, learnt.stop)


def has_tested_word(renderer: Template, text: str) -> bool:
    """Return whether a conversation contains a plain word that the template tests for; skeletons do not contain it."""
    words = find_tested_words(renderer.source)
    return words is not None and words.search(text) is not None


def is_regular(tokenizer: ChatTokenizer, renderer: Template) -> bool:
    """Return whether prompts in the middle of a conversation match their skeletons. Tested once, at every turn of long
    synthetic conversations; a template that counts turns fails, and is then verified at every turn."""
    key = ("regular", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = True  # avoids recursion during the test
        tokenizer.learnt[key] = all(_is_regular_on(tokenizer, renderer, chat) for chat in _long_chats())
    return bool(tokenizer.learnt[key])


def _is_regular_on(tokenizer: ChatTokenizer, renderer: Template, chat: Chat) -> bool:
    turns = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    finder = Finder(tokenizer, renderer, chat, None, Terms(require_stop=False, is_recorded=True))
    try:
        finder.locate_by_shapes(turns, verify="all")
    except Refusal:
        return True  # the template refuses this conversation
    except _UnlikeShape:
        return False
    return True


def _long_chats() -> list[Chat]:
    """Build two long conversations of one-word messages: questions and answers, calls and results."""
    plain: Chat = []
    calls: Chat = [{"role": "user", "content": "zqu"}]
    for number in range(_EXCHANGES):
        plain += [{"role": "user", "content": f"zqu{number}"}, {"role": "assistant", "content": f"zqa{number}"}]
        function = {"name": "zqf", "arguments": {"zqk": f"zqv{number}"}}
        call = {"id": f"zq{number:07d}", "type": "function", "function": function}
        calls += [
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"zqr{number}", "tool_call_id": call["id"], "name": "zqf"},
        ]
    return [plain, calls]


def _template_refusal(renderer: Template, chat: Chat, tools: list[Json] | None, error: TemplateError) -> Refusal:
    """Name the first message that the template rejects, found by bisection, with the error of a plain render."""
    # The first `low` messages render; the first `high` + 1 do not.
    low, high = 0, len(chat)
    while low < high:
        middle = (low + high) // 2
        try:
            renderer.text(chat[: middle + 1], tools)
            low = middle + 1
        except TemplateError as plain:
            high, error = middle, plain
    detail = str(error)
    if any(message.get("tool_calls") or message.get("role") == "tool" for message in chat):
        detail += "; calls and results can be written as text: tokens.tools_as_text=hermes, --tools-as-text hermes"
    return Refusal("template_error", detail, message=low if low < len(chat) else None)


def _writes_arguments_whole(renderer: Template) -> bool:
    function = {"name": "zqf", "arguments": {"zqa": "zqx", "zqb": 5, "zqc": ["zqy"]}}
    call = {"id": "zq0000000", "type": "function", "function": function}
    for content in ("", None):
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        rendered = try_render(renderer, [{"role": "user", "content": "zqu"}, turn])
        pieces = [] if rendered is None else [piece for piece in rendered.pieces if piece.field == CALL]
        if rendered is not None and pieces:
            texts = [rendered.text[piece.start : piece.end] for piece in pieces]
            return any("zqa" in text and "zqy" in text for text in texts)
    return False
