"""Where a turn starts and ends, by definition: the prompt of inference, and the stop token (stops.py); and skeletons.

`probe` renders the conversation up to the turn with the generation prompt (what inference is given), up to and with
the turn (what was generated), and as a whole. It costs a few renders of the conversation; on skeletons of constant
size, kept, it is how `regions` learns literals; on the conversation itself it is the slow way that is always right.
"""

import re
from bisect import bisect_right
from typing import Any, NamedTuple

import msgspec

from pairwright.records.messages import Json
from pairwright.tokens.refusals import Reason, TemplateError
from pairwright.tokens.spans.stops import control_pattern, find_stop, learn_text_stop
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import CALL_ID, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer


class Turn(NamedTuple):
    """What was learnt about a turn: the literals around its text, and where in them its region starts and ends.

    lead    template text from the piece before the turn's first piece up to it
    start   where the region starts, counted from where lead starts
    opening the turn's own first characters where the generation prompt supplies them (a <think> in the content)
    tail    template text from the turn's last piece to the next message's; the region ends at tail[end]
    later   how many pieces of the turn's text are repeated after its end (a call's name in the result's header)
    fields  the fields that are rendered in the turn
    added   text with the stop token that the template does not write after the turn; there is room for it only where
            the turn is last
    A turn without any piece of its own has one literal, lead == tail, for both.
    """

    lead: str
    start: int
    opening: str
    tail: str
    end: int
    later: int
    fields: frozenset[int]
    stop: str | None
    literals_rewritten: bool
    added: str


class Unfit(NamedTuple):
    """Why a turn has no exact region."""

    reason: Reason
    detail: str


def probe(
    tokenizer: ChatTokenizer, renderer: Renderer, chat: Chat, tools: list[Json] | None, turn: int
) -> Turn | Unfit:
    """Locate message `turn` of a conversation."""
    try:
        full = renderer.render(chat, tools)
    except TemplateError as error:
        return Unfit("template_error", str(error))
    try:
        prompt = renderer.text(chat[:turn], tools, prompt=True)
        last = full if turn == len(chat) - 1 else renderer.render(chat[: turn + 1], tools)
    except TemplateError as error:
        return Unfit("template_error", f"the prompt before this turn cannot be rendered: {error}")
    if not last.text.startswith(prompt):
        return Unfit(
            "prompt_not_continued", describe_difference(prompt, last.text, "the generation prompt", "the turn")
        )
    if not full.text.startswith(prompt):
        return Unfit("context_differs", describe_difference(prompt, full.text, "inference", "the conversation"))
    start = len(prompt)
    # Pieces of the turn where it is last, and numbers of its pieces in the whole conversation.
    own_last = [piece for piece in last.pieces if piece.message == turn]
    if own_last and own_last[0].end < start:
        return Unfit("not_located", "its text is also rendered before the turn")
    own = [number for number, piece in enumerate(full.pieces) if piece.message == turn]
    unfit = _check_history(full, last, own, own_last)
    if unfit is not None:
        return unfit
    others = [
        find_tail(rendered, last, own_last, turn, start)
        for rendered in render_continuations(renderer, chat, tools, turn)
    ]
    tail_last = last.text[own_last[-1].end if own_last else start :]
    tails = [align_tail(tail_last, text) for text in others if text is not None]
    return _describe_turn(
        tokenizer, renderer, full, last, own, own_last, start, tails, has_calls=bool(chat[turn].get("tool_calls"))
    )


def _check_history(full: Rendered, last: Rendered, own: list[int], own_last: list[Piece]) -> Unfit | None:
    block = [full.pieces[number] for number in own[: len(own_last)]]
    rendered, generated = (
        [_field_text(full, piece) for piece in block],
        [_field_text(last, piece) for piece in own_last],
    )
    if rendered != generated:
        return Unfit(
            "history_rewritten", f"generated {_short(generated)}, rendered {_short(rendered)} once turns follow"
        )
    following = own[len(own_last) - 1] + 1 if own_last else -1
    if following in own and full.pieces[following].field == CALL_ID:
        return Unfit("history_rewritten", "the id of a call is written once turns follow")
    if own_last and own[len(own_last) - 1] - own[0] != len(own_last) - 1:
        return Unfit("not_located", "text of another message stands inside the turn")
    return None


def _describe_turn(
    tokenizer: ChatTokenizer,
    renderer: Renderer,
    full: Rendered,
    last: Rendered,
    own: list[int],
    own_last: list[Piece],
    start: int,
    others: list[str],
    *,
    has_calls: bool,
) -> Turn | Unfit:
    size = len(own_last)
    pieces = full.pieces
    # Where the turn's text ends in the whole conversation, and where it ends when it is last.
    turn_end = pieces[own[size - 1]].end if size else start
    last_end = own_last[-1].end if size else start
    before, after = _find_neighbours(full, own, size, start)
    if before > start:
        return Unfit("not_located", "text of another message stands after the generation prompt")
    tail_last = last.text[last_end:]
    tail = full.text[turn_end:after]
    stop = find_stop(tokenizer, renderer, tail, tail_last, others, has_calls=has_calls)
    stop_last = find_stop(tokenizer, renderer, tail_last, tail_last, others, has_calls=has_calls)
    if not stop.is_next_header and stop.token != stop_last.token:
        detail = f"the stop token {stop_last.token!r} becomes {stop.token!r} once turns follow"
        return Unfit("history_rewritten", detail)
    if find_inner_stop(tokenizer, renderer, full, start, turn_end) is not None:
        return Unfit("history_rewritten", "the template writes a stop token inside the turn")
    # Template text inside the region may differ from when the turn was generated; it is reported, not refused.
    rewritten = full.text[start : turn_end + stop.end] != last.text[start : last_end + stop_last.end]
    lead_end = pieces[own[0]].start if size else after
    return Turn(
        lead=full.text[before:lead_end],
        start=start - before,
        opening=full.text[lead_end:start],
        tail=tail if size else full.text[before:after],
        end=stop.end if size else start - before + stop.end,
        later=len(own) - size,
        fields=frozenset(piece.field for piece in own_last),
        stop=stop.token,
        literals_rewritten=rewritten and not stop.is_next_header,
        added=stop.added,
    )


def find_inner_stop(
    tokenizer: ChatTokenizer, renderer: Renderer, rendered: Rendered, start: int, end: int
) -> tuple[int, str] | None:
    """The first token that ends generation, or a turn of text, in what the template itself writes between two
    positions: where it ends, and the token. The model would have stopped there."""
    stops = tokenizer.eos | ({learn_text_stop(tokenizer, renderer)} - {""})
    if not any(token in rendered.text[start:end] for token in stops):
        return None
    for match in control_pattern(tokenizer).finditer(rendered.text, start, end):
        if match.group() in stops and not any(
            piece.start < match.end() and piece.end > match.start() for piece in rendered.pieces
        ):
            return match.end(), match.group()
    return None


def find_tail(rendered: Rendered, last: Rendered, own_last: list[Piece], turn: int, start: int) -> str | None:
    """What follows the turn's last piece in another continuation, in which the turn itself may be rewritten (its
    reasoning dropped); None where that piece is not there."""
    if not own_last:
        return rendered.text[start : _find_neighbours(rendered, [], 0, start)[1]]
    mine = [number for number, piece in enumerate(rendered.pieces) if piece.message == turn]
    expected = [_field_text(last, piece) for piece in own_last]
    if [_field_text(rendered, rendered.pieces[number]) for number in mine[: len(expected)]] == expected:
        ends = [mine[len(expected) - 1]]  # rendered as it was when last
    else:
        ends = [number for number in mine if _field_text(rendered, rendered.pieces[number]) == expected[-1]]
    if len(ends) != 1:
        return None
    # Ids of calls may be written only once a result follows: what they are part of ends after them.
    beyond = ends[0]
    while beyond + 1 in mine and rendered.pieces[beyond + 1].field == CALL_ID:
        beyond += 1
    return rendered.text[rendered.pieces[ends[0]].end : _find_neighbours(rendered, [beyond], 1, start)[1]]


def align_tail(tail: str, other: str) -> str:
    """What follows the turn in another continuation, without an id that is not written when the turn is last.

    >>> align_tail("}]</calls>", "}, id: 7]</calls><end>")
    '}]</calls><end>'
    """
    common = next((size for size in range(len(tail), 0, -1) if other.startswith(tail[:size])), 0)
    rest = tail[common:].strip()
    position = other.find(rest, common) if rest else -1
    return other if position < 0 else tail.rstrip() + other[position + len(rest) :]


def _find_neighbours(rendered: Rendered, own: list[int], size: int, start: int) -> tuple[int, int]:
    """The end of the piece before the turn's text and the start of the piece after it."""
    pieces = rendered.pieces
    if size:
        first, beyond = own[0], own[size - 1] + 1
    else:
        first = next((number for number, piece in enumerate(pieces) if piece.end > start), len(pieces))
        beyond = first
    before = pieces[first - 1].end if first else 0
    return before, pieces[beyond].start if beyond < len(pieces) else len(rendered.text)


def render_continuations(renderer: Renderer, chat: Chat, tools: list[Json] | None, turn: int) -> list[Rendered]:
    """The conversation up to the turn, followed by what may follow: results of its calls, or a user."""
    message = chat[turn]
    follow: list[Chat] = [[{"role": "user", "content": "zqu"}]]
    calls = message.get("tool_calls")
    if isinstance(calls, list) and calls:  # results, a user, or results and then a user
        follow.insert(0, [_result_of(call) for call in calls])
        follow.append([*follow[0], *follow[1]])
    rendered = []
    for messages in follow:
        try:
            rendered.append(renderer.render([*chat[: turn + 1], *messages], tools))
        except TemplateError:
            continue  # this template does not allow that continuation
    return rendered


def _result_of(call: Any) -> Json:
    function = call.get("function", call) if isinstance(call, dict) else {}
    result: Json = {"role": "tool", "content": "zqt"}
    if isinstance(call, dict) and call.get("id") is not None:
        result["tool_call_id"] = call["id"]
    if isinstance(function, dict) and "name" in function:
        result["name"] = function["name"]
    return result


def _field_text(rendered: Rendered, piece: Piece) -> tuple[int, str]:
    return piece.field, rendered.text[piece.start : piece.end]


def _short(pieces: list[tuple[int, str]]) -> str:
    text = repr(" … ".join(text for _, text in pieces))
    return text if len(text) < 60 else f"{text[:57]}…"


def describe_difference(left: str, right: str, left_name: str, right_name: str) -> str:
    """Where two texts part, in words."""
    position = next(
        (index for index, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]),
        min(len(left), len(right)),
    )
    low = max(position - 10, 0)
    return f"{left_name} has {left[low : position + 30]!r}, {right_name} has {right[low : position + 30]!r}"


# Small stand-ins for long conversations: the neighbourhood of a turn, with placeholders for text.
#
# What a template writes around a turn depends on roles, on which fields are there, on neighbours, on being first or
# last, and hardly ever on the text. So each turn is learnt from a skeleton of constant size, and skeletons repeat.
# Strings that the template itself looks for (`</think>`) stay in the placeholder. Where this guess is wrong the
# literals do not match the conversation, and `regions` probes the conversation itself.


_encode = msgspec.json.encode
_decode = msgspec.json.decode
_HOLE = "\ue000"  # where a placeholder goes
SMALL = 10  # conversations up to this length are their own window
_ROLE_ONLY = frozenset({"role", "content"})
SYSTEM_ROLES = ("system", "developer")


class Shapes:
    """The shape of every message of a conversation: what a skeleton needs to stand in for it."""

    def __init__(
        self,
        chat: Chat,
        constants: re.Pattern[str] | None,
        *,
        whole_arguments: bool,
        known: dict[int, Any] | None = None,
    ) -> None:
        """`known`: shapes of messages by their `id()`, for excerpts of one conversation."""
        self._constants = constants
        self._whole_arguments = whole_arguments
        self.roles = [message.get("role") for message in chat]
        self.keys: list[Any] = []
        calls: list[Any] = []
        for message in chat:
            if message.get("tool_calls"):
                calls = [call.get("id") for call in message["tool_calls"] if isinstance(call, dict)]
            if known is None:
                self.keys.append(self._shape(message, calls))
                continue
            if id(message) not in known:
                known[id(message)] = self._shape(message, calls)
            self.keys.append(known[id(message)])
        self.exchanges = [number for number, role in enumerate(self.roles) if role == "user"]
        self._known_ends: dict[tuple[int, int], set[int]] = {}
        self.steps = [number for number, role in enumerate(self.roles) if role in ("assistant", "user")]

    def window(self, turn: int) -> list[int]:
        """Positions of the messages that stand in for the whole conversation when `turn` is looked at."""
        size = len(self.keys)
        if size <= SMALL:
            return list(range(size))
        chosen: set[int] = {turn}
        for number in range(min(2, size)):
            if self.roles[number] in SYSTEM_ROLES:
                chosen.add(number)
        # Exchanges start at user messages: the first, the last, the turn's own and its neighbours are represented.
        here = bisect_right(self.exchanges, turn) - 1
        for exchange in {0, here - 1, here + 1, len(self.exchanges) - 1} - {here}:
            if 0 <= exchange < len(self.exchanges):
                chosen.update(self._ends(*self._span(exchange)))
        low, high = self._span(here) if here >= 0 else (0, self.exchanges[0] if self.exchanges else size)
        chosen.update(self._ends(low, high))
        # Of its own exchange also the steps next to the turn, with their tool results.
        for step in (self._step(turn, -1), turn, self._step(turn, 1)):
            if low <= step < high:
                chosen.update(self._step_span(step, high))
        return sorted(chosen)

    def _span(self, exchange: int) -> tuple[int, int]:
        more = exchange + 1 < len(self.exchanges)
        return self.exchanges[exchange], self.exchanges[exchange + 1] if more else len(self.keys)

    def _step(self, turn: int, by: int) -> int:
        index = bisect_right(self.steps, turn) - 1 + by
        return self.steps[index] if 0 <= index < len(self.steps) else -1

    def _step_span(self, step: int, high: int) -> range:
        index = bisect_right(self.steps, step)
        return range(step, min(high, self.steps[index] if index < len(self.steps) else len(self.keys)))

    def _ends(self, low: int, high: int) -> set[int]:
        """The user message, the first step and the last step of an exchange."""
        if (low, high) in self._known_ends:
            return self._known_ends[low, high]
        first = bisect_right(self.steps, low)
        last = bisect_right(self.steps, high - 1) - 1
        chosen = {low, *self._step_span(low, high)}
        for index in (first, last):
            if index < len(self.steps) and low < self.steps[index] < high:
                chosen.update(self._step_span(self.steps[index], high))
        self._known_ends[low, high] = chosen
        return chosen

    def _shape(self, message: Json, calls: list[Any]) -> Any:
        content = message.get("content")
        if message.keys() == _ROLE_ONLY and isinstance(content, str):
            return (message["role"], self._text(content))
        shape: Json = {}
        for key, value in message.items():
            if key == "tool_call_id":
                shape[key] = calls.index(value) if value in calls else -1
            elif key == "tool_calls" and isinstance(value, list):
                shape[key] = [self._call(call) for call in value]
            else:
                shape[key] = self._value(value) if key != "role" else value
        return _encode(shape).decode()

    def _text(self, text: str) -> str:
        """Empty and blank text stay; a placeholder for the rest, around what the template looks for."""
        if not text or text.isspace():
            return text[:2]
        if self._constants is None or not (matches := list(self._constants.finditer(text))):
            return _HOLE
        # Text between constants becomes a placeholder; eight constants are enough to tell shapes apart.
        parts, position = [], 0
        for match in matches[:8]:
            between = text[position : match.start()]
            parts += [_hollow(between), match.group()]
            position = match.end()
        return "".join([*parts, _hollow(text[position:])])

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            return {key: item if key == "type" else self._value(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._value(item) for item in value]
        if isinstance(value, bool) or value is None:
            return value
        return 7 if isinstance(value, int) else 7.5

    def _call(self, call: Any) -> Any:
        if not isinstance(call, dict):
            return self._value(call)
        shape: Json = {}
        for key, value in call.items():
            if key == "function":
                shape[key] = self._call(value)
            elif key == "id":
                shape[key] = len(value) if isinstance(value, str) else value  # of an id only the length counts
            elif key == "arguments":
                shape[key] = self._arguments(value)
            else:
                shape[key] = value if key == "type" else self._value(value)
        return shape

    def _arguments(self, value: Any) -> Any:
        if isinstance(value, dict) and self._whole_arguments:
            return {f"k{_HOLE}": _HOLE} if value else {}  # one key stands for all
        if isinstance(value, dict):
            return {f"k{number}{_HOLE}": self._value(item) for number, item in enumerate(value.values())}
        return self._value(value)


def build_skeleton(keys: list[Any]) -> Chat:
    """A conversation of these shapes, every placeholder different."""
    chat: Chat = []
    calls: list[str] = []
    for number, key in enumerate(keys):
        if isinstance(key, tuple):
            chat.append({"role": key[0], "content": _fill_holes(key[1], number)})
            continue
        message = _decode(_fill_holes(key, number))
        if isinstance(message.get("tool_calls"), list):
            calls = [_give_id(call, number, place) for place, call in enumerate(message["tool_calls"])]
        if "tool_call_id" in message:
            place = message["tool_call_id"]
            message["tool_call_id"] = calls[place] if 0 <= place < len(calls) else "zqid00000"
        chat.append(message)
    return chat


def _fill_holes(text: str, number: int) -> str:
    """A placeholder of its own for each hole."""
    first, *rest = text.split(_HOLE)
    return first + "".join(f"zq{number}z{place}z{part}" for place, part in enumerate(rest))


def _hollow(text: str) -> str:
    """White space at the ends stays."""
    inner = text.strip()
    if not inner:
        return text[:4]
    start = len(text) - len(text.lstrip())
    return text[:start][:4] + _HOLE + text[start + len(inner) :][:4]


def _give_id(call: Any, number: int, place: int) -> str:
    """An id of the length that it had: some templates insist on nine characters."""
    if not isinstance(call, dict) or not isinstance(call.get("id"), int):
        return "zqid00000"
    length = call["id"]
    call["id"] = f"{number:02d}{place:02d}".ljust(length, "z")[:length] if length else ""
    return str(call["id"])


# A string literal of Jinja, in single or double quotes; the text is in one of two groups.
_LITERAL = r"(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")"
# Literals that text is compared with: startswith(x), endswith(x), x in y, y == x.
_SOUGHT = re.compile(rf"\b(?:starts|ends)with\(\s*{_LITERAL}|{_LITERAL}\s+(?:not\s+)?in\b|==\s*{_LITERAL}")


def find_constants(source: str) -> re.Pattern[str] | None:
    """Matches the strings of a template that text may be searched for: those with a bracket or bar in them, and those
    that it tests for ('/no_think' in content), names of roles and keys apart."""
    literals = re.findall(_LITERAL, source)
    constants = set()
    for pair in literals:
        for text in re.split(r"\s+|\\.", pair[0] or pair[1]):
            if 3 <= len(text) <= 40 and re.search(r"[<>\[\]|`]", text):
                constants.add(text)
    for groups in _SOUGHT.findall(source):
        constants.update(text for text in groups if 3 <= len(text) <= 40 and re.search(r"[^\w\s\\]", text))
    constants.update(re.findall(r"</?\w+>", source))
    ordered = sorted(constants, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
