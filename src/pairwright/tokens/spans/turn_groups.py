"""Turns that share a context: as few renders as are exact for all turns of a conversation.

Turns go together as long as one render is exact for all of them. Where the history is rewritten, a long conversation is
not rendered once for every group: each group is found in an excerpt, the beginning of the conversation and the last few
steps, and takes over from the group before it what comes earlier. Both must have the same text where they overlap. A
template is tried once at every turn of small conversations, and of each conversation the prompts of some groups are
rendered whole; where one differs, every group is rendered whole.
"""

from bisect import bisect_left, bisect_right
from typing import Any, NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.spans.dropped import WHOLE, Fields, find_dropped_context, find_left_out
from pairwright.tokens.spans.excerpt_patterns import ExcerptPatterns
from pairwright.tokens.spans.probes import SYSTEM_ROLES, Unfit
from pairwright.tokens.spans.regions import (
    Finder,
    Located,
    Region,
    Shared,
    Verify,
    has_tested_word,
    locate,
    verify_prompts,
)
from pairwright.tokens.spans.thoughts import advise_mode, explain_broken_thought, learn_grammar
from pairwright.tokens.spans.turn_grammar import speak_turn
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

Group = tuple[Chat, Located]  # the conversation up to the group's last turn, and the regions of its turns

# Reasons against one sequence for all turns that go away where groups of turns have sequences of their own.
_PER_TURN = ("context_differs", "history_rewritten", "prompt_not_continued", "no_stop")
_MANY = 8  # turns from which on excerpts pay
# Messages of the model or a user before a turn that its excerpt begins with: as many as a template turns out to need.
_STEPS, _MAX_STEPS = 2, 6
_REPEATED = 16  # messages after which none repeats another


def locate_groups(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    *,
    require_stop: bool,
    verify: Verify = "quick",
) -> list[Group]:
    """The conversation up to the last turn of each group, with the regions of the group's turns."""
    renderer = tokenizer.renderer(tools)
    shapes: dict[int, Any] = {}
    is_long = len(turns) >= _MANY and verify == "quick"
    # A turn of a shape that never fitted into one sequence with others is not tried once more.
    finder = Finder(tokenizer, renderer, None, chat, tools, shapes=shapes) if is_long else None
    if finder is None or not any(map(finder.is_known_unfit, turns)):
        try:
            return [(chat, locate(tokenizer, chat, tools, turns, require_stop=require_stop, verify=verify))]
        except Refusal as refusal:
            if refusal.reason not in _PER_TURN:
                raise
    if is_long and _has_local_history(tokenizer, renderer, tools):
        try:
            groups = _locate_by_excerpts(tokenizer, chat, tools, turns, shapes, require_stop=require_stop)
            if _is_verified(tokenizer, renderer, chat, tools, groups):
                return groups
        except (Refusal, _UnlikeBefore):
            pass  # the whole conversation says which message, and why
    return _locate_whole(tokenizer, chat, tools, turns, require_stop=require_stop, verify=verify)


def _locate_whole(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    *,
    require_stop: bool,
    verify: Verify,
) -> list[Group]:
    """Groups from the end, each as large as one render allows."""
    groups: list[Group] = []
    left = list(turns)
    while left:
        # What follows the group's last turn goes: inference had not seen it.
        part = chat[: left[-1] + 1]
        located = last_group(tokenizer, part, tools, left, require_stop=require_stop, verify=verify)
        left = left[: len(left) - len(located.regions)]
        groups.append((part, located))
    return groups[::-1]


def last_group(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    *,
    require_stop: bool,
    verify: Verify = "quick",
    shapes: dict[int, Any] | None = None,
) -> Located:
    """As many of the last turns as one render of the conversation is exact for; at least one. `shapes` are those of
    messages that are known, where it is an excerpt: what another one taught is not tried again."""
    renderer = tokenizer.renderer(tools)
    try:
        finder = Finder(tokenizer, renderer, None, chat, tools, shapes=shapes)
        regions: list[Region] = []
        for turn in reversed(turns):
            region = finder.find(turn, require_stop=require_stop)
            if isinstance(region, Unfit):
                break
            regions.insert(0, region)
        # Verification may fail for the earliest turns only: drop them one by one until the rest is exact.
        while regions:
            try:
                return finder.verify_regions(regions, verify=verify)
            except Refusal:
                regions = regions[1:]
    except TemplateError as error:
        raise Refusal("template_error", str(error), message=turns[-1]) from None
    # Not even the last turn alone: join the rendered prompt and the rendered turn.
    shape = finder.shape_of(len(chat) - 1) if shapes is not None else None
    return _locate_spoken(tokenizer, chat, tools, shape=shape, require_stop=require_stop)


def _locate_spoken(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    *,
    shape: tuple[object, ...] | None,
    require_stop: bool,
) -> Located:
    """The last turn alone, after exactly what inference is given."""
    turn = len(chat) - 1
    result = speak_turn(tokenizer, tokenizer.renderer(tools), chat, tools, shape=shape)
    if isinstance(result, Unfit):
        advice = advise_mode(tokenizer.renderer(tools)) if result.reason == "prompt_not_continued" else ""
        raise Refusal(result.reason, result.detail + advice, message=turn)
    if result.stop is None and require_stop:
        raise Refusal("no_stop", "no stop token follows the turn", message=turn)
    grammar = learn_grammar(tokenizer, tokenizer.renderer(tools))
    if require_stop and (fault := explain_broken_thought(grammar, result.rendered.text, result.start, result.end)):
        raise Refusal("prompt_not_continued", fault, message=turn)
    left_out = find_left_out(result.rendered, [*chat[:turn], result.message], tools, {turn: result.end})
    return Located(
        result.rendered,
        [Region(turn, result.start, result.end, result.stop)],
        left_out.dropped,
        (),
        1,
        left_out.prompt_dropped,
        left_out.num_images,
        (turn,) if result.is_stop_added else (),
        is_spoken=True,
    )


# Groups of a long conversation, each found in an excerpt of it.


class _UnlikeBefore(Exception):
    """An excerpt shows messages otherwise than the group before it, however many steps it has."""


class _Excerpt(NamedTuple):
    """A few messages of a conversation: `origins` are their positions in it, `tail` is where the last steps begin."""

    chat: Chat
    origins: list[int]
    tail: int

    @property
    def is_whole(self) -> bool:
        return self.origins[-1] + 1 == len(self.origins)


def _locate_by_excerpts(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    shapes: dict[int, Any],
    *,
    require_stop: bool,
    may_grow: bool = True,
) -> list[Group]:
    """As `_locate_whole`; raises `_UnlikeBefore` where an excerpt does not join the group before it. `shapes`: those of
    the messages. `may_grow`: an excerpt of the usual size that does not join is taken larger."""
    outline = _Outline(chat)
    patterns = ExcerptPatterns(tokenizer, tokenizer.renderer(tools), chat[: turns[-1] + 1], tools, shapes)
    key = ("excerpt_steps", tokenizer.renderer(tools).hash)
    first_size = tokenizer.learnt.setdefault(key, _STEPS)

    def find(left: list[int], size: int) -> tuple[_Excerpt, Located]:
        excerpt = outline.take_excerpt(left[-1], size)
        inside = left if excerpt.is_whole else left[bisect_right(left, excerpt.origins[excerpt.tail]) :]
        shift = 0 if excerpt.is_whole else excerpt.origins[-1] + 1 - len(excerpt.origins)
        sub_turns = [turn - shift for turn in inside]
        key = patterns.key_of(excerpt.chat, sub_turns, require_stop=require_stop)
        located = patterns.predict(key, excerpt.chat, excerpt.origins)
        if located is None:
            located = last_group(tokenizer, excerpt.chat, tools, sub_turns, require_stop=require_stop, shapes=shapes)
            patterns.learn(key, excerpt.chat, excerpt.origins, located)
        return excerpt, located

    items: list[tuple[list[int], int, _Excerpt, Located]] = []
    left = list(turns)
    while left:
        size = first_size
        while True:
            excerpt, located = find(left, size)
            rest = left[: len(left) - len(located.regions)]
            # The turn before the group must be inside, after a step in which both groups can be compared.
            if excerpt.is_whole or (rest and rest[-1] > excerpt.origins[excerpt.tail]):
                break
            size *= 2
        items.append((left, size, excerpt, located))
        left = rest
    groups: list[Group] = []
    dropped = _DroppedContext()
    for left, size, excerpt, located in reversed(items):
        before = groups[-1][1] if groups else None
        num_turns = len(located.regions)
        while (joined := _join_excerpt(excerpt, located, before, chat, dropped)) is None:
            if size == first_size < _MAX_STEPS:
                tokenizer.learnt[key] = first_size + 1
                return _locate_by_excerpts(
                    tokenizer, chat, tools, turns, shapes, require_stop=require_stop, may_grow=may_grow
                )
            size *= 2
            excerpt, located = find(left, size)
            if len(located.regions) != num_turns or not may_grow:
                raise _UnlikeBefore
        if joined.num_images:
            raise _UnlikeBefore
        groups.append((chat[: excerpt.origins[-1] + 1], joined))
    return groups


class _Outline:
    """Where the messages of the model and of users stand in a conversation."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._roles = [message.get("role") for message in chat]
        self._steps = [number for number, role in enumerate(self._roles) if role in ("assistant", "user")]
        self._users = [number for number, role in enumerate(self._roles) if role == "user"]
        self._systems = next((number for number, role in enumerate(self._roles) if role not in SYSTEM_ROLES), 0)

    def take_excerpt(self, end: int, size: int) -> _Excerpt:
        """The conversation up to message `end` without its middle: what a template may rewrite is inside. That is the
        steps right before the turn and, where a user's message is among them, the whole exchange before that one."""
        start = bisect_left(self._steps, end) - size
        last_user = bisect_left(self._users, end) - 1
        if last_user >= 0 and start >= 0 and self._users[last_user] >= self._steps[start]:
            earlier = self._users[last_user - 1] if last_user else 0
            start = min(start, bisect_left(self._steps, earlier) - 2)
        if start <= 1 or self._steps[start] <= self._systems + 1:
            return _Excerpt(self._chat[: end + 1], list(range(end + 1)), 0)
        first = self._steps[start]
        head = list(range(self._systems))
        if self._roles[first] != "user":
            # An assistant's message follows the user's message that it belongs to.
            head += self._users[: bisect_left(self._users, first)][-1:]
        origins = [*head, *range(first, end + 1)]
        return _Excerpt([self._chat[number] for number in origins], origins, len(head))


class _DroppedContext:
    """What is not rendered of the messages before a group of turns; each message is looked at once."""

    def __init__(self) -> None:
        self.fields: list[tuple[int, str]] = []  # by message
        self._size = 0  # messages that were looked at

    def note(self, fields: Fields, size: int) -> None:
        """A whole render says it of its first messages."""
        self.fields = [item for item in fields if 0 <= item[0] < size]
        self._size = size

    def look(self, rendered: Rendered, chat: Chat, size: int) -> None:
        """At the messages up to a number that were not looked at before."""
        if self._size >= size:
            return
        own = _pieces_by_message(rendered.pieces, self._size)
        for message in range(self._size, size):
            self.fields += find_dropped_context(rendered, own.get(message, []), message, chat[message])
        self._size = size


def _pieces_by_message(pieces: list[Piece], start: int) -> dict[int, list[int]]:
    """Message -> numbers of its pieces, ascending, of the messages from `start` on; looked for from the end, since a
    message may be repeated shortly after it (a call's name in the header of its result)."""
    own: dict[int, list[int]] = {}
    for number in range(len(pieces) - 1, -1, -1):
        message = pieces[number].message
        if message < start - _REPEATED:
            break
        if message >= start:
            own.setdefault(message, []).insert(0, number)
    return own


def _join_excerpt(
    excerpt: _Excerpt, located: Located, before: Located | None, chat: Chat, dropped: _DroppedContext
) -> Located | None:
    """The group in the whole conversation: the beginning as the group before it has it, then the excerpt. None where
    the two differ in the steps that both have."""
    origins = excerpt.origins
    if excerpt.is_whole:
        dropped.note(located.prompt_dropped, min((region.message for region in located.regions), default=len(origins)))
        return located
    if before is None:
        return None
    cut = _find_cut(excerpt, located.rendered, before, chat)
    if cut is None:
        return None
    mine, theirs = cut
    text = before.rendered.text[: before.rendered.pieces[theirs].start]
    shift = len(text) - located.rendered.pieces[mine].start
    text += located.rendered.text[located.rendered.pieces[mine].start :]
    moved = [
        Piece(piece.start + shift, piece.end + shift, origins[piece.message], piece.field)
        for piece in located.rendered.pieces[mine:]
    ]
    rendered = Rendered(text, before.rendered.pieces[:theirs] + moved)
    regions = [
        Region(origins[region.message], region.start + shift, region.end + shift, region.stop)
        for region in located.regions
    ]
    first = origins[located.rendered.pieces[mine].message]
    own = tuple((origins[message], field) for message, field in located.prompt_dropped if message != WHOLE)
    dropped.look(rendered, chat, first)
    whole = tuple(item for item in located.prompt_dropped if item[0] == WHOLE)
    earlier = tuple(item for item in dropped.fields if item[0] < first)
    return located._replace(
        rendered=rendered,
        regions=regions,
        dropped=tuple((origins[message], field) for message, field in located.dropped),
        rewritten=tuple(origins[message] for message in located.rewritten),
        prompt_dropped=whole + earlier + tuple(item for item in own if item[0] >= first),
        stop_added=tuple(origins[message] for message in located.stop_added),
        shared=Shared(len(rendered.text) - len(located.rendered.text) + located.rendered.pieces[mine].start, theirs),
    )


def _find_cut(excerpt: _Excerpt, rendered: Rendered, before: Located, chat: Chat) -> tuple[int, int] | None:
    """Numbers of the pieces at which the excerpt goes on from the group before it; the steps from there to that group's
    first turn have the same text in both."""
    last = before.regions[-1].message  # the turn before the group, which may be shown otherwise by now
    start = excerpt.origins[excerpt.tail]
    mine = _first_pieces(rendered.pieces, excerpt.origins, start)
    theirs = _first_pieces(before.rendered.pieces, None, start)
    shared = [message for message in sorted(mine) if start <= message < last and message in theirs]
    # The first message of the tail may look different, since it does not follow what it followed.
    later = [message for message in shared if message > start]
    for messages in (shared, later):
        if not any(chat[message].get("role") in ("assistant", "user") for message in messages):
            return None
        first, end = messages[0], messages[-1]
        left, right = rendered.pieces[mine[first]].start, before.rendered.pieces[theirs[first]].start
        size = rendered.pieces[mine[end]].end - left
        if rendered.text[left : left + size] == before.rendered.text[right : right + size]:
            return mine[first], theirs[first]
    return None


def _first_pieces(pieces: list[Piece], origins: list[int] | None, start: int) -> dict[int, int]:
    """Message -> number of its first piece, of the messages from `start` on; looked for from the end."""
    first: dict[int, int] = {}
    for number in range(len(pieces) - 1, -1, -1):
        message = pieces[number].message if origins is None else origins[pieces[number].message]
        if message < start:
            break
        first[message] = number
    return first


def _is_verified(
    tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat, tools: list[Json] | None, groups: list[Group]
) -> bool:
    """Are the prompts of some groups what inference is given? No, where the conversation has a word that the template
    tests text for: excerpts may not have it."""
    if has_tested_word(renderer, groups[-1][1].rendered.text):
        return False
    # The last prompt has every message in it; of the others early ones are as good as later ones, and render faster.
    size = len(groups) - 1
    sample = {0, size // 6, size // 3, size}
    try:
        for _, located in (groups[number] for number in sorted(sample)):
            verify_prompts(renderer, chat, tools, located.rendered.text, located.regions[-1:])
    except Refusal:
        return False
    return True


def _has_local_history(tokenizer: ChatTokenizer, renderer: Renderer, tools: list[Json] | None) -> bool:
    """Does a template rewrite only what excerpts have in them? Tried once, at every turn of small conversations."""
    key = ("local_history", renderer.hash, tools is not None)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = all(
            _is_local_on(tokenizer, renderer, chat, tools, may_grow=name not in _EVEN)
            for name, chat in _small_chats().items()
        )
    return bool(tokenizer.learnt[key])


def _is_local_on(
    tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat, tools: list[Json] | None, *, may_grow: bool
) -> bool:
    turns = [number for number, message in enumerate(chat) if message["role"] == "assistant"]
    shapes: dict[int, Any] = {}
    Finder(tokenizer, renderer, None, chat, tools, shapes=shapes)
    try:
        groups = _locate_by_excerpts(tokenizer, chat, tools, turns, shapes, require_stop=False, may_grow=may_grow)
    except Refusal:
        return True  # not a conversation of this template
    except _UnlikeBefore:
        return False
    try:
        for _, located in groups:
            verify_prompts(renderer, chat, tools, located.rendered.text, located.regions)
    except Refusal:
        return False
    return True


# Small conversations of which every step is like the one before it: an excerpt of the usual size has to do. One that
# joins only as the whole conversation is of a template that counts (Command R7B numbers the calls).
_EVEN = ("talk", "run")


def _small_chats() -> dict[str, Chat]:
    """Questions and answers, a run of calls, and exchanges of several calls, with reasoning in fields and in text."""

    def turn(number: int, **fields: object) -> Json:
        return {"role": "assistant", "content": f"zqa{number}", "reasoning_content": f"zqr{number}", **fields}

    def step(number: int, *, content: str) -> Chat:
        function = {"name": "zqf", "arguments": {"zqk": f"zqv{number}"}}
        call = {"id": f"zq{number:07d}", "type": "function", "function": function}
        result = {"role": "tool", "content": f"zqt{number}", "tool_call_id": call["id"], "name": "zqf"}
        return [turn(number, content=content, tool_calls=[call]), result]

    def user(number: int) -> Json:
        return {"role": "user", "content": f"zqu{number}"}

    talk = [message for number in range(12) for message in (user(number), turn(number))]
    thoughts = [
        {**message, "content": f"<think>\nzqr{number}\n</think>\n\nzqa{number}"} if number % 2 else message
        for number, message in enumerate(talk)
    ]
    run = [user(0), *(message for number in range(11) for message in step(number, content=f"zqa{number}")), turn(11)]
    exchanges: Chat = [{"role": "system", "content": "zqs"}]
    for number in range(4):
        exchanges.append(user(number))
        for place in range(3):
            exchanges += step(10 * number + place, content="" if place == 1 else f"zqa{number}")
        exchanges.append(turn(number))
    return {"talk": talk, "thoughts": thoughts, "run": run, "exchanges": exchanges}
