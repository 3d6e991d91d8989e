"""The regions of a conversation: for each turn that is trained, from the end of what inference was given to its stop.

Linear in the number of turns: one render with provenance, literals learnt from skeletons that are kept, and renders of
the prompts of four turns, the first and the last among them. A template that turns out to count turns has all of them
rendered. Every step fails closed: what does not match is probed on the conversation itself, and what is still not exact
is a Refusal that names the turn.
"""

import itertools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Reason, Refusal, TemplateError
from pairwright.tokens.spans.dropped import Fields, find_left_out
from pairwright.tokens.spans.probes import Shapes, Turn, Unfit, build_skeleton, find_constants, probe
from pairwright.tokens.spans.thoughts import (
    MissingReasoning,
    explain_broken_thought,
    find_empty_block,
    has_missing_reasoning,
    learn_grammar,
    reasoning_of,
)
from pairwright.tokens.template.render import Rendered, Template
from pairwright.tokens.template.tested_words import find_tested_words
from pairwright.tokens.template.tracked_str import CALL, REASONING, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

_SHORT = 6  # messages up to which the plain render is compared as a whole
_VERIFIED = 4  # turns of a conversation whose prompts are rendered, the first and the last among them
_MAX_LEARNT = 20_000  # shapes of turns
_EXCHANGES = 20  # of the conversation on which a template is tried at every turn


Verify = Literal["quick", "all"]


class Region(NamedTuple):
    """What the model generated in one turn, in characters of the rendered text; `end` is after the stop token."""

    message: int
    start: int
    end: int
    stop: str | None


class Shared(NamedTuple):
    """How much of a rendered conversation is that of the group of turns before it: characters and pieces."""

    chars: int = 0
    pieces: int = 0


class Located(NamedTuple):
    """A rendered conversation with the regions of its trained turns."""

    rendered: Rendered
    regions: list[Region]
    dropped: Fields
    rewritten: tuple[int, ...]
    probed: int
    prompt_dropped: Fields = ()
    num_images: int = 0
    stop_added: tuple[int, ...] = ()
    rewritten_ids: int = 0
    is_spoken: bool = False  # the turn is joined to its prompt, not rendered with it
    shared: Shared = Shared()


def locate(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: Sequence[int],
    *,
    require_stop: bool = True,
    verify: Verify = "quick",
) -> Located:
    """Render once and find every turn, or raise a Refusal. `verify="all"` renders the prompt of every turn, which takes
    time that grows with the square of their number."""
    renderer = tokenizer.renderer(tools)
    try:
        rendered = renderer.render(chat, tools)
        # In longer conversations the prompt of the last turn is rendered plainly below: the same check, once.
        plain = renderer.text(chat, tools) if len(chat) <= _SHORT or not turns else rendered.text
    except TemplateError as error:
        raise _template_refusal(renderer, chat, tools, error) from None
    if plain != rendered.text:
        raise Refusal("text_differs", "the template depends on the type of its strings")
    finder = Finder(tokenizer, renderer, rendered, chat, tools)
    regions: list[Region] = []
    for turn in turns:
        region = finder.find(turn, require_stop=require_stop)
        if isinstance(region, Unfit):
            raise Refusal(region.reason, region.detail, message=turn)
        regions.append(region)
    return finder.verify_regions(regions, verify=verify)


class Finder:
    """Finds turns in one rendered conversation.

    A turn is learnt from the skeleton of its neighbourhood, once for each shape; what is learnt is kept with the
    tokenizer.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        renderer: Renderer,
        rendered: Rendered | None,
        chat: Chat,
        tools: list[Json] | None,
        *,
        shapes: dict[int, Any] | None = None,
    ) -> None:
        """`rendered`: the conversation; where it is None, it is rendered when it is needed. `shapes`: those of messages
        that are known, for excerpts of one conversation; a shape that did not fit in one is not tried in another."""
        self._tokenizer = tokenizer
        self._is_excerpt = shapes is not None
        self._renderer = renderer
        self._known_render = rendered
        self._chat = chat
        self._tools = tools
        # What was learnt about turns, by the shape of their neighbourhood; it lives as long as the tokenizer.
        learnt = tokenizer.learnt
        if len(learnt) > _MAX_LEARNT:
            learnt.clear()
        tools_key = None if tools is None else msgspec.json.encode(tools)
        self._learnt: dict[Any, Turn | Unfit] = learnt.setdefault((renderer.hash, tools_key), {})
        if len(self._learnt) > _MAX_LEARNT:
            self._learnt.clear()
        # Shapes that fit neither as a skeleton nor in a conversation.
        self._unfit: set[Any] = learnt.setdefault(("unfit", renderer.hash, tools_key), set())
        # What the shapes of messages depend on is tried once for each template.
        constants_key, whole_key = ("constants", renderer.hash), ("whole_arguments", renderer.hash)
        if constants_key not in learnt:
            learnt[constants_key] = find_constants(renderer.source if isinstance(renderer, Template) else "")
        if whole_key not in learnt:
            learnt[whole_key] = _writes_arguments_whole(renderer)
        self._shapes = Shapes(chat, learnt[constants_key], whole_arguments=bool(learnt[whole_key]), known=shapes)
        self._known_pieces: dict[int, list[int]] | None = None
        self._grammar = learn_grammar(tokenizer, renderer)
        self._rewritten: list[int] = []
        self._added = ""  # the stop of the last turn, where the template does not write it
        self._probed = 0

    def find(self, turn: int, *, require_stop: bool) -> Region | Unfit:
        """By what was learnt from a skeleton; where that does not match, by probing the conversation."""
        key = self.shape_of(turn)
        if key not in self._learnt:
            *keys, target = key
            self._learnt[key] = probe(self._tokenizer, self._renderer, build_skeleton(keys), self._tools, target)
        learnt = self._learnt[key]
        if self._is_excerpt and isinstance(learnt, Unfit) and key in self._unfit:
            return learnt
        own = self._own.get(turn, [])
        region = _place_turn(self._rendered, own, turn, learnt) if isinstance(learnt, Turn) else None
        if region is None:  # not what the skeleton says: probe the conversation itself
            self._probed += 1
            learnt = probe(self._tokenizer, self._renderer, self._chat, self._tools, turn)
            if isinstance(learnt, Unfit):
                if isinstance(self._learnt[key], Unfit):
                    self._unfit.add(key)
                return learnt
            region = _place_turn(self._rendered, own, turn, learnt)
        if region is None or not isinstance(learnt, Turn):
            return Unfit("not_located", "its text was not found where the template puts it")
        if learnt.added and require_stop and turn == len(self._chat) - 1:
            self._added = learnt.added
        elif learnt.added:
            region = region._replace(stop=None)
        if region.stop is None and require_stop:
            return Unfit("no_stop", "no stop token follows the turn")
        # An answer that was cut short may end inside its thought.
        if require_stop and (
            fault := explain_broken_thought(self._grammar, self._rendered.text, region.start, region.end)
        ):
            return Unfit("prompt_not_continued", fault)
        if (
            reasoning_of(self._chat[turn])
            and all(self._rendered.pieces[number].field != REASONING for number in own)
            and find_empty_block(self._grammar, self._rendered.text, region.start)
        ):
            return Unfit("history_rewritten", "the template empties the thinking block of this turn")
        if learnt.literals_rewritten:
            self._rewritten.append(turn)
        return region

    @property
    def _rendered(self) -> Rendered:
        if self._known_render is None:
            self._known_render = self._renderer.render(self._chat, self._tools)
        return self._known_render

    @property
    def _own(self) -> dict[int, list[int]]:
        """Message -> numbers of its pieces in the rendered text, ascending."""
        if self._known_pieces is None:
            self._known_pieces = {}
            for number, piece in enumerate(self._rendered.pieces):
                self._known_pieces.setdefault(piece.message, []).append(number)
        return self._known_pieces

    def is_known_unfit(self, turn: int) -> bool:
        """Whether turns of this shape were tried before, as a skeleton and in a conversation, and did not fit."""
        return self.shape_of(turn) in self._unfit

    def shape_of(self, turn: int) -> tuple[Any, ...]:
        """The shapes of the messages around a turn, and its place among them."""
        window = self._shapes.window(turn)
        return (*(self._shapes.keys[number] for number in window), window.index(turn))

    def verify_regions(self, regions: list[Region], *, verify: Verify = "quick") -> Located:
        """The found regions, verified: in order, and each after what inference is given."""
        for left, right in itertools.pairwise(regions):
            if right.start < left.end:
                raise Refusal("not_located", "it overlaps the turn before it", message=right.message)
        is_long = len(regions) > _VERIFIED
        every = verify == "all" or (is_long and has_tested_word(self._renderer, self._rendered.text))
        every = every or (is_long and not is_regular(self._tokenizer, self._renderer))
        checked = regions if every else sample_regions(regions)
        verify_prompts(self._renderer, self._chat, self._tools, self._rendered.text, checked)
        turns = {region.message: region.end for region in regions}
        left_out = find_left_out(self._rendered, self._chat, self._tools, turns)
        rendered = self._rendered
        added: tuple[int, ...] = ()
        if self._added and regions and regions[-1].message == len(self._chat) - 1:
            rendered, regions = add_stop(rendered, regions, self._added)
            added = (regions[-1].message,)
        return Located(
            rendered,
            regions,
            left_out.dropped,
            tuple(turn for turn in self._rewritten if turn in turns),
            self._probed,
            left_out.prompt_dropped,
            left_out.num_images,
            added,
        )


def has_tested_word(renderer: Renderer, text: str) -> bool:
    """Does a conversation hold a plain word that the template tests text for? Skeletons do not have it."""
    words = find_tested_words(renderer.source) if isinstance(renderer, Template) else None
    return words is not None and words.search(text) is not None


def add_stop(rendered: Rendered, regions: list[Region], added: str) -> tuple[Rendered, list[Region]]:
    """The conversation up to the end of its last turn, followed by a stop that the template does not write there."""
    last = regions[-1]._replace(end=regions[-1].end + len(added))
    return Rendered(rendered.text[: regions[-1].end] + added, rendered.pieces), [*regions[:-1], last]


def refuse_missing_reasoning(
    tokenizer: ChatTokenizer, chat: Chat, tools: list[Json] | None, located: Located, rule: MissingReasoning
) -> None:
    """Raise a Refusal where a turn without reasoning follows a prompt that opens a thinking block, by that rule."""
    if rule == "close":
        return
    grammar = learn_grammar(tokenizer, tokenizer.renderer(tools))
    for message, start, *_ in located.regions:
        if has_missing_reasoning(grammar, located.rendered.text[:start], chat[message]):
            detail = "the prompt opens a thinking block, and the turn has no reasoning"
            raise Refusal("missing_reasoning", detail, message=message)


def _place_turn(rendered: Rendered, own: list[int], turn: int, learnt: Turn) -> Region | None:
    """Find the turn's literals in the conversation; None where they differ from what was learnt."""
    pieces, text = rendered.pieces, rendered.text
    # Pieces of the turn itself; later ones repeat its text (a call's name in the header of the result).
    size = len(own) - learnt.later
    if size < 0 or bool(size) != bool(learnt.fields):
        return None
    if not size:  # a turn without text stands between the pieces of its neighbours
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
    return Region(turn, before + learnt.start, tail_start + learnt.end, learnt.stop)


def verify_prompts(renderer: Renderer, chat: Chat, tools: list[Json] | None, text: str, regions: list[Region]) -> None:
    """Render what inference is given at these turns, the last one first: it must stand before them."""
    for region in reversed(regions):
        try:
            prompt = renderer.text(chat[: region.message], tools, prompt=True)
        except TemplateError as error:
            detail = f"the prompt before this turn cannot be rendered: {error}"
            raise Refusal("template_error", detail, message=region.message) from None
        if prompt != text[: region.start]:
            reason: Reason = "not_located" if text.startswith(prompt) else "context_differs"
            raise Refusal(reason, "inference would have been given another prompt", message=region.message)


def sample_regions(regions: list[Region]) -> list[Region]:
    """The first, the last, and some between; the others are vouched for by their skeletons."""
    size = len(regions)
    if size <= _VERIFIED:
        return regions
    return [regions[number * (size - 1) // (_VERIFIED - 1)] for number in range(_VERIFIED)]


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
    try:
        rendered = renderer.render(chat, None)
    except TemplateError:
        return True  # not a conversation of this template
    finder = Finder(tokenizer, renderer, rendered, chat, None)
    located = [finder.find(turn, require_stop=False) for turn in turns]
    regions = [region for region in located if isinstance(region, Region)]
    if len(regions) < len(located):
        return True  # it rewrites history, which is noticed at the turns themselves
    try:
        verify_prompts(renderer, chat, None, rendered.text, regions)
    except Refusal:
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
    return Refusal("template_error", str(error), message=low if low < len(chat) else None)


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
