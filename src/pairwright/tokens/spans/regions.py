"""The regions of a conversation: for each turn that is trained, from the end of what inference was given to its stop.

Linear in the number of turns: each turn is judged by the law on a skeleton, once for each shape, and found in one
render of the conversation by the literals around it; of some turns, the first and the last among them, the prompts are
rendered and compared. A template that counts turns has all of them rendered. A turn that no such render shows is judged
on an excerpt, the messages around it. What does not match is judged on the conversation itself.

Turns whose next prompt continues theirs (rule 1) share a sequence. A turn of another rule is the last of its sequence.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.spans.dropped import Fields, Missing, find_left_out
from pairwright.tokens.spans.grammar import try_render
from pairwright.tokens.spans.history import History, move_turn, text_around
from pairwright.tokens.spans.law import Case, Fault, Shown, Terms, Verdict, judge
from pairwright.tokens.spans.skeletons import SMALL, Shapes, build_skeleton, find_constants
from pairwright.tokens.template.render import Rendered, Template
from pairwright.tokens.template.tested_words import find_tested_words
from pairwright.tokens.template.tracked_str import CALL, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

_VERIFIED = 4  # turns of a sequence whose prompts are rendered, the first and the last among them
_MAX_LEARNT = 20_000  # shapes of turns
_MAX_NAMED = 5  # turns that a refusal names
_EXCHANGES = 20  # of the conversation on which a template is tried at every turn


Verify = Literal["quick", "all"]


class Region(NamedTuple):
    """What the model generated in one turn, in characters of the rendered text.

    prompt       where what inference was given ends; up to `start` the template closed a thought
    end          after the stop token
    rule         of the law
    end_added    no render shows the stop token
    is_declared  by a row that no render shows
    """

    message: int
    prompt: int
    start: int
    end: int
    stop: str | None
    rule: int = 1
    end_added: bool = False
    is_declared: bool = False


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


def locate(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: Sequence[int],
    terms: Terms = Terms(),  # noqa: B008 - immutable
    *,
    verify: Verify = "quick",
) -> Located:
    """All turns in one render, or a Refusal."""
    groups = locate_groups(tokenizer, chat, tools, list(turns), terms, verify=verify)
    if len(groups) > 1:
        first = groups[0][1].regions[-1].message
        raise Refusal("context_differs", f"{len(groups)} sequences are needed", message=first)
    return groups[0][1]


def locate_groups(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    terms: Terms = Terms(),  # noqa: B008 - immutable
    *,
    verify: Verify = "quick",
) -> list[Group]:
    """As few sequences as the law allows. `verify="all"` renders the prompt of every turn, which takes time that grows
    with the square of their number."""
    renderer = tokenizer.renderer(tools)
    finder = Finder(tokenizer, renderer, chat, tools, terms)
    if not turns:
        return [(chat, finder.finish(finder.render(len(chat)), [], len(chat)))]
    try:
        return finder.locate_by_shapes(turns, verify=verify)
    except _UnlikeShape:
        return finder.locate_by_definition(turns)


class _UnlikeShape(Exception):
    """The conversation is not what the skeletons of its turns say."""


class _Literals(NamedTuple):
    """The literals around a turn's text, and where in them its region starts and ends.

    lead    template text from the piece before the turn's first piece up to it
    prompt  where the prompt ends, counted from where lead starts; `start`: where what is trained starts
    opening the turn's own first characters where the generation prompt supplies them (a <think> in the content)
    tail    template text from the turn's last piece to the next message's; the region ends at tail[end]
    later   how many pieces of the turn's text are repeated after its end (a call's name in the result's header)
    fields  the fields that are rendered in the turn
    A turn without any piece of its own has one literal, lead == tail, for both.
    """

    lead: str
    prompt: int
    start: int
    opening: str
    tail: str
    end: int
    later: int
    fields: frozenset[int]
    stop: str | None


class _Plan(NamedTuple):
    """What a skeleton says about a turn: the verdict, and the literals where it is last in its sequence (`outer`) and
    where turns follow (`inner`)."""

    verdict: Verdict
    outer: _Literals
    inner: _Literals | None


_Placed = tuple[Located, Region]


class Finder:
    """Finds turns in one conversation; what is learnt about shapes is kept with the tokenizer."""

    def __init__(
        self, tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat, tools: list[Json] | None, terms: Terms
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
        # What the shapes of messages depend on is tried once for each template.
        key = ("shapes", renderer.hash)
        if key not in learnt:
            source = renderer.source if isinstance(renderer, Template) else ""
            learnt[key] = find_constants(source), _writes_arguments_whole(renderer)
        constants, whole_arguments = learnt[key]
        self._shapes = Shapes(chat, constants, whole_arguments=whole_arguments)
        self._probed = 0

    def plan(self, turn: int) -> _Plan | Fault:
        """What the skeleton around a turn says about it."""
        window = self._shapes.window(turn)
        key = (*(self._shapes.keys[number] for number in window), window.index(turn))
        if key not in self._learnt:
            *keys, target = key
            case = Case(self._tokenizer, self._renderer, build_skeleton(keys), self._tools, target)
            verdict = judge(case, self._terms)
            self._learnt[key] = verdict if isinstance(verdict, Fault) else _describe(verdict, target)
        return self._learnt[key]

    def judge(self, turn: int) -> Verdict:
        """By the law, on the conversation itself; a Refusal where it has no place for the turn."""
        self._probed += 1
        verdict = judge(Case(self._tokenizer, self._renderer, self._chat, self._tools, turn), self._terms)
        if isinstance(verdict, Fault):
            raise Refusal(verdict.reason, verdict.detail, message=turn)
        return verdict

    def render(self, size: int, *, prompt: bool = False) -> Rendered:
        """The first `size` messages."""
        try:
            return self._renderer.render(self._chat[:size], self._tools, prompt=prompt)
        except TemplateError as error:
            raise _template_refusal(self._renderer, self._chat, self._tools, error) from None

    def locate_by_shapes(self, turns: list[int], *, verify: Verify) -> list[Group]:
        """Groups by what skeletons say; raises _UnlikeShape where the conversation says otherwise."""
        plans: dict[int, _Plan] = {}
        for number, turn in enumerate(turns):
            plan = self.plan(turn)
            if isinstance(plan, Fault):
                self.render(len(self._chat))  # a conversation that the template rejects is refused for that
                try:
                    plan = _describe(self.judge(turn), turn)  # the conversation itself says why not
                except Refusal as refusal:
                    raise self._name_others(refusal, turns[number + 1 :]) from None
            plans[turn] = plan
        groups: list[Group] = []
        parts = self._split(turns, plans)
        apart = [part[-1] for part in parts if not _is_rendered(plans[part[-1]].verdict)]
        history = self._find_history(apart, verify=verify)
        for members in parts:
            last = members[-1]
            verdict = plans[last].verdict
            if not _is_rendered(verdict):
                groups.append((self._chat[: last + 1], self._locate_judged(members, plans, history)))
                continue
            # What follows the last turn of all stays, where the render of the whole conversation serves.
            size = len(self._chat) if last == turns[-1] and verdict.continues else last + 1
            rendered = self.render(size)
            own = _pieces_by_message(rendered)
            regions = [
                self._place(rendered, own, turn, plans[turn], is_inner=turn < last or size > last + 1)
                for turn in members
            ]
            groups.append((self._chat[:size], self.finish(rendered, regions, size)))
        self._verify(groups, verify=verify, joined=history is not None)
        return groups

    def _name_others(self, refusal: Refusal, turns: list[int]) -> Refusal:
        """A refusal that names the later turns with the same reason."""
        plans = ((turn, self.plan(turn)) for turn in turns)
        others = [turn for turn, plan in plans if isinstance(plan, Fault) and plan.reason == refusal.reason]
        if not others:
            return refusal
        more = ", ".join(map(str, others[:_MAX_NAMED])) + (", ..." if len(others) > _MAX_NAMED else "")
        return Refusal(refusal.reason, f"{refusal.detail}; the same in message {more}", message=refusal.message)

    def _split(self, turns: list[int], plans: dict[int, _Plan]) -> list[list[int]]:
        """Turns that share a sequence: each but the last of them is continued by the next prompt."""
        groups: list[list[int]] = [[]]
        for turn, following in itertools.zip_longest(turns, turns[1:]):
            groups[-1].append(turn)
            if following is not None and not (plans[turn].verdict.continues and self._is_chain(turn, following)):
                groups.append([])
        return groups

    def _is_chain(self, turn: int, following: int) -> bool:
        """Whether turns of the model that are not trained, between two that are, keep the prompt as well."""
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
        """A turn in the render of its sequence; `is_inner`: others follow it there."""
        literals = plan.inner if is_inner else plan.outer
        region = _place_turn(rendered, own.get(turn, []), turn, literals) if literals is not None else None
        if region is not None:
            return _note(region, plan.verdict)
        # Not what the skeleton says: the conversation itself.
        verdict = self.judge(turn)
        shown = verdict.following if is_inner else verdict.shown
        if verdict.is_joined or shown is None or not rendered.text.startswith(shown.rendered.text[: shown.end]):
            raise _UnlikeShape
        return _note(Region(turn, shown.prompt, shown.start, shown.end, shown.stop), verdict)

    def _locate_judged(self, members: list[int], plans: dict[int, _Plan], history: History | None) -> Located:
        """A sequence whose last turn is not in the render of the conversation up to it."""
        last = members[-1]
        verdict = self._judge_excerpt(last, plans[last].verdict, history) if history is not None else None
        known = history.missing_before(last) if history is not None and verdict is not None else None
        verdict = verdict or self.judge(last)
        rendered = verdict.shown.rendered
        own = _pieces_by_message(rendered)
        regions = [self._place(rendered, own, turn, plans[turn], is_inner=True) for turn in members[:-1]]
        return self._finish_shown(verdict, last, regions, known)

    def _find_history(self, turns: list[int], *, verify: Verify) -> History | None:
        """The prompt before the last of these turns; None where excerpts may not stand in for the conversation."""
        if verify == "all" or len(self._chat) <= SMALL or len(turns) < 2:
            return None
        try:
            chat = self._chat[: turns[-1]]
            history = History.of(self._renderer.render(chat, self._tools, prompt=True), chat, self._tools)
        except (TemplateError, Refusal):
            return None
        text = history.rendered.text
        is_alike = is_regular(self._tokenizer, self._renderer) and not has_tested_word(self._renderer, text)
        return history if is_alike else None

    def _judge_excerpt(self, turn: int, expected: Verdict, history: History) -> Verdict | None:
        """By the law, on an excerpt: the messages around the turn. None where the verdict is not the expected one of
        the skeleton, or where the history does not show the turn, and what is before it, as the excerpt does."""
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
        if text_around(last, place) != text_around(history.rendered, turn):
            return None
        prompt = history.find_prompt(turn, text[end:])
        return verdict._replace(shown=move_turn(verdict.shown, prompt, turn), following=None) if prompt else None

    def _finish_shown(
        self, verdict: Verdict, last: int, regions: list[Region], known: Missing | None = None
    ) -> Located:
        """A sequence that ends with a turn whose text the verdict has."""
        shown = verdict.shown
        region = Region(last, shown.prompt, shown.start, shown.end, shown.stop)
        rendered = shown.rendered
        if verdict.source == "next" and not verdict.is_joined:  # what follows the turn there is a probe
            pieces = [piece for piece in rendered.pieces if piece.end <= shown.end and piece.message <= last]
            rendered = Rendered(rendered.text[: shown.end], pieces)
        located = self.finish(rendered, [*regions, _note(region, verdict)], last + 1, known)
        return located._replace(is_joined=verdict.is_joined)

    def locate_by_definition(self, turns: list[int]) -> list[Group]:
        """Every turn judged on the conversation itself: slow, and always right."""
        verdicts = {turn: self.judge(turn) for turn in turns}
        groups: list[Group] = []
        members: list[int] = []
        for turn, following in itertools.zip_longest(turns, turns[1:]):
            members.append(turn)
            verdict = verdicts[turn]
            if following is not None and verdict.continues and self._is_chain(turn, following):
                continue
            regions = []
            for number in members[:-1]:
                shown = verdicts[number].following
                if shown is None or not verdict.shown.rendered.text.startswith(shown.rendered.text[: shown.end]):
                    raise Refusal("context_differs", "later prompts do not continue this turn", message=number)
                region = Region(number, shown.prompt, shown.start, shown.end, shown.stop)
                regions.append(_note(region, verdicts[number]))
            groups.append((self._chat[: turn + 1], self._finish_shown(verdict, turn, regions)))
            members = []
        return groups

    def finish(self, rendered: Rendered, regions: list[Region], size: int, known: Missing | None = None) -> Located:
        """Regions in their order, with what the template leaves out of the first `size` messages."""
        for left, right in itertools.pairwise(regions):
            if right.prompt < left.end:
                raise _UnlikeShape
        turns = {region.message: region.end for region in regions}
        left_out = find_left_out(rendered, self._chat[:size], self._tools, turns, known)
        return Located(rendered, regions, left_out.dropped, self._probed, left_out.prompt_dropped, left_out.num_images)

    def _verify(self, groups: list[Group], *, verify: Verify, joined: bool) -> None:
        """Compare prompts with what inference is given: of all turns, or of some. `joined`: also of turns that are
        joined to their prompts."""
        compared = [located for _, located in groups if joined or not located.is_joined]
        regions = [(located, region) for located in compared for region in located.regions]
        is_long = len(regions) > _VERIFIED
        every = verify == "all" or (is_long and has_tested_word(self._renderer, groups[-1][1].rendered.text))
        every = every or (is_long and not is_regular(self._tokenizer, self._renderer))
        every = every or (joined and self._probed > 1)  # not only the last turn was unlike its excerpt
        for located, region in reversed(regions if every else _sample(regions)):
            try:
                prompt = self._renderer.text(self._chat[: region.message], self._tools, prompt=True)
            except TemplateError as error:
                detail = f"the prompt before this turn cannot be rendered: {error}"
                raise Refusal("template_error", detail, message=region.message) from None
            if len(prompt) != region.prompt or not located.rendered.text.startswith(prompt):
                raise _UnlikeShape


def _is_rendered(verdict: Verdict) -> bool:
    """Whether the render of the conversation up to a turn shows it as it is trained."""
    return verdict.source == "last" and not verdict.is_joined


def _note(region: Region, verdict: Verdict) -> Region:
    return region._replace(rule=verdict.rule, end_added=verdict.end_added, is_declared=verdict.is_declared)


def _sample(items: list[_Placed]) -> list[_Placed]:
    """The first, the last, and some between; the others are vouched for by their skeletons."""
    size = len(items)
    if size <= _VERIFIED:
        return items
    return [items[number * (size - 1) // (_VERIFIED - 1)] for number in range(_VERIFIED)]


def _pieces_by_message(rendered: Rendered) -> dict[int, list[int]]:
    """Message -> numbers of its pieces, ascending."""
    own: dict[int, list[int]] = {}
    for number, piece in enumerate(rendered.pieces):
        own.setdefault(piece.message, []).append(number)
    return own


def _describe(verdict: Verdict, turn: int) -> _Plan:
    """A verdict with the literals around the turn."""
    inner = None if verdict.following is None else _read_literals(verdict.following, turn)
    return _Plan(_forget_renders(verdict), _read_literals(verdict.shown, turn), inner)


def _forget_renders(verdict: Verdict) -> Verdict:
    """What is kept of a verdict about a skeleton."""
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
    """Find the turn's literals in the conversation; None where they differ from what was learnt."""
    pieces, text = rendered.pieces, rendered.text
    # Pieces of the turn itself; later ones repeat its text (a call's name in the header of the result).
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
    # Literals before the turn, at its beginning and after it, each compared as a whole.
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


def has_tested_word(renderer: Renderer, text: str) -> bool:
    """Does a conversation hold a plain word that the template tests text for? Skeletons do not have it."""
    words = find_tested_words(renderer.source) if isinstance(renderer, Template) else None
    return words is not None and words.search(text) is not None


# What a template does, tried once on small conversations, and how a conversation that it rejects is reported.


def is_regular(tokenizer: ChatTokenizer, renderer: Renderer) -> bool:
    """Is a template's prompt at a turn in the middle what its skeleton says? Tried once, at every turn of a long small
    conversation; a template that counts turns fails, and is then verified at every turn."""
    key = ("regular", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = True  # while it is found out
        tokenizer.learnt[key] = all(_is_regular_on(tokenizer, renderer, chat) for chat in _long_chats())
    return bool(tokenizer.learnt[key])


def _is_regular_on(tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat) -> bool:
    turns = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    finder = Finder(tokenizer, renderer, chat, None, Terms(require_stop=False, is_recorded=True))
    try:
        finder.locate_by_shapes(turns, verify="all")
    except Refusal:
        return True  # not a conversation of this template
    except _UnlikeShape:
        return False
    return True


def _long_chats() -> list[Chat]:
    """Questions and answers, and calls with results, with a word each."""
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


def _template_refusal(renderer: Renderer, chat: Chat, tools: list[Json] | None, error: TemplateError) -> Refusal:
    """Names the first message that the template does not accept, found by halving, in the words of a plain render."""
    # The first `low` messages render; with `high` + 1 of them the template raises.
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


def _writes_arguments_whole(renderer: Renderer) -> bool:
    """Whether the template writes a call's arguments in one piece, whatever they are."""
    function = {"name": "zqf", "arguments": {"zqa": "zqx", "zqb": 5, "zqc": ["zqy"]}}
    call = {"id": "zq0000000", "type": "function", "function": function}
    for content in ("", None):
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        try:
            rendered = renderer.render([{"role": "user", "content": "zqu"}, turn], None)
        except TemplateError:
            continue
        texts = [rendered.text[piece.start : piece.end] for piece in rendered.pieces if piece.field == CALL]
        if texts:
            return any("zqa" in text and "zqy" in text for text in texts)
    return False
