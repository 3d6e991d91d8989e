"""A turn in a sequence of its own: exactly what inference is given, then what the model wrote.

Where a template renders the history differently once a turn follows, or shows a turn otherwise than its generation
prompt begins it, the two are rendered apart and joined: the prompt before the turn with the generation prompt, and the
turn's own text as the template shows it when it is last. A thinking block that the prompt leaves open is closed after
the reasoning, or at once where there is none; one that the prompt has closed is not written again.

    prompt   <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\n<think>\\n
    shown    <|im_start|>user\\nhi<|im_end|>\\n<|im_start|>assistant\\nhello<|im_end|>\\n
    trained  because\\n</think>\\n\\nhello<|im_end|>
"""

from typing import NamedTuple

from pairwright.records.messages import Json
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.spans.probes import (
    SYSTEM_ROLES,
    Unfit,
    align_tail,
    describe_difference,
    find_inner_stop,
    find_tail,
    render_continuations,
)
from pairwright.tokens.spans.stops import Stop, control_pattern, find_stop, split_symbols
from pairwright.tokens.spans.thoughts import (
    Grammar,
    Thought,
    close_empty,
    close_reasoning,
    find_empty_block,
    find_thought,
    learn_grammar,
    move_thought,
    reasoning_of,
    without_reasoning,
)
from pairwright.tokens.template.render import Piece, Rendered
from pairwright.tokens.template.tracked_str import CONTENT, REASONING, Chat
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer

_MAX_SHAPES = 20_000  # of turns whose stops are kept


class Spoken(NamedTuple):
    """A prompt with the turn that continues it: its text, where the turn starts and ends, its stop token, and whether
    that had to be added. `message` is the turn, with its reasoning in a field of its own where the prompt closed the
    thinking block: there it has no place in the text."""

    rendered: Rendered
    start: int
    end: int
    stop: str | None
    is_stop_added: bool
    message: Json


class _Parts(NamedTuple):
    """What the model writes before the rest of the shown turn, by field, and where in the shown text that rest begins.
    Field -1 is text of the template."""

    written: list[tuple[str, int]]
    rest: int


def speak_turn(
    tokenizer: ChatTokenizer,
    renderer: Renderer,
    chat: Chat,
    tools: list[Json] | None,
    *,
    shape: tuple[object, ...] | None = None,
) -> Spoken | Unfit:
    """The last message after exactly what inference is given. Turns of one `shape` are compared with the plain render,
    and followed by other messages, once."""
    turn = len(chat) - 1
    known = tokenizer.learnt.setdefault(("spoken", renderer.hash), {})
    is_new = shape is None or shape not in known
    try:
        prompt = renderer.render(chat[:turn], tools, prompt=True)
        if is_new and prompt.text != renderer.text(chat[:turn], tools, prompt=True):
            return Unfit("text_differs", "the template depends on the type of its strings")
        grammar = learn_grammar(tokenizer, renderer)
        thought = find_thought(grammar, prompt.text)
        message = chat[turn]
        if thought is not None and not thought.is_open:
            message = move_thought(message, thought.tags)
            chat = [*chat[:turn], without_reasoning(message) if reasoning_of(message) else message]
        shown, last = chat, renderer.render(chat, tools)
        if is_new and last.text != renderer.text(chat, tools):
            return Unfit("text_differs", "the template depends on the type of its strings")
        begin = _find_begin(tokenizer, renderer, prompt, chat[:turn], tools, last, thought)
        own_last = [piece for piece in last.pieces if piece.message == turn]
        if not own_last:
            return Unfit("not_located", "the template renders nothing of the turn")
        if begin is None:
            # Shown without a header: DeepSeek R1 counts calls in the whole conversation, and takes later ones for more
            # of the first. After a question alone, the turn is shown as it is spoken.
            difference = describe_difference(prompt.text, last.text[: own_last[0].start], "the prompt", "the turn")
            shown = _after_question(chat)
            last = renderer.render(shown, tools)
            own_last = [piece for piece in last.pieces if piece.message == len(shown) - 1]
            begin = _find_header(tokenizer, renderer, prompt, last, own_last, thought)
            if begin is None or last.text != renderer.text(shown, tools):
                return Unfit("prompt_not_continued", difference)
    except TemplateError as error:
        return Unfit("template_error", str(error))
    parts = _write_lead(grammar, thought, chat[turn], last, own_last, begin)
    if parts is None:
        return Unfit("prompt_not_continued", "the thinking block that the prompt opens cannot be told from the turn")
    turn_end = own_last[-1].end
    inner = find_inner_stop(tokenizer, renderer, last, parts.rest, turn_end)
    if inner is not None:  # what the template shows after it, the model did not write in this turn
        own_last = [piece for piece in own_last if piece.end <= inner[0]]
        end = inner[0] - own_last[-1].end if own_last else inner[0] - parts.rest
        return _join(prompt, parts, last, own_last, turn, Stop(end, inner[1]), message)
    tail = last.text[turn_end:]
    if is_new or known[shape][0] != tail:
        at = len(shown) - 1
        others = [
            find_tail(item, last, own_last, at, begin) for item in render_continuations(renderer, shown, tools, at)
        ]
        tails = [align_tail(tail, text) for text in others if text is not None]
        has_calls = bool(chat[turn].get("tool_calls"))
        stop = find_stop(tokenizer, renderer, tail, tail, tails, has_calls=has_calls)
        if shape is not None and len(known) < _MAX_SHAPES:
            known[shape] = (tail, stop)
    else:
        stop = known[shape][1]
    return _join(prompt, parts, last, own_last, turn, stop, message)


def _after_question(chat: Chat) -> Chat:
    """The system messages at the start, the user's last message, and the turn."""
    start = next((number for number, message in enumerate(chat) if message.get("role") not in SYSTEM_ROLES), 0)
    users = [message for message in chat[start:-1] if message.get("role") == "user"]
    return [*chat[:start], *users[-1:], chat[-1]]


def _find_header(
    tokenizer: ChatTokenizer,
    renderer: Renderer,
    prompt: Rendered,
    last: Rendered,
    own: list[Piece],
    thought: Thought | None,
) -> int | None:
    """Where the turn begins in the render that shows it, if the usual header stands before it and ends the prompt."""
    header = _usual_header(tokenizer, renderer)
    prompt_end = thought.start if thought is not None else len(prompt.text)
    if not own or not header.strip() or not prompt.text.endswith(header, 0, prompt_end):
        return None
    position = last.text.rfind(header, 0, own[0].start)
    return position + len(header) if position >= 0 else None


def _join(
    prompt: Rendered,
    parts: _Parts,
    last: Rendered,
    own: list[Piece],
    turn: int,
    stop: Stop,
    message: Json,
) -> Spoken:
    """The prompt, what the model writes first, and the rest of the shown turn up to its stop."""
    start = position = len(prompt.text)
    pieces = list(prompt.pieces)
    for text, field in parts.written:
        if field >= 0:
            pieces.append(Piece(position, position + len(text), turn, field))
        position += len(text)
    # Pieces of the shown turn move with it.
    shift, end = position - parts.rest, (own[-1].end if own else parts.rest) + stop.end
    pieces += [Piece(p.start + shift, p.end + shift, turn, p.field) for p in own if p.start >= parts.rest]
    text = prompt.text + "".join(text for text, _ in parts.written) + last.text[parts.rest : end] + stop.added
    return Spoken(Rendered(text, pieces), start, len(text), stop.token, bool(stop.added), message)


def _find_begin(
    tokenizer: ChatTokenizer,
    renderer: Renderer,
    prompt: Rendered,
    history: Chat,
    tools: list[Json] | None,
    last: Rendered,
    thought: Thought | None,
) -> int | None:
    """Where the turn begins in the render that shows it: after the header that the generation prompt has as well."""
    first = next((number for number, piece in enumerate(last.pieces) if piece.message == len(history)), None)
    if first is None:
        return None
    before = last.pieces[first - 1] if first else None
    low, high = before.end if before is not None else 0, last.pieces[first].start
    lead = last.text[low:high]
    # The end of the prompt, from its last piece of a message to its thinking block.
    prompt_end = thought.start if thought is not None else len(prompt.text)
    prompt_low = prompt.pieces[-1].end if prompt.pieces else 0
    is_same = (
        before is not None
        and prompt.pieces != []
        and _field_text(last, before) == _field_text(prompt, prompt.pieces[-1])
    )
    ending = prompt.text[prompt_low:prompt_end]
    if is_same and lead.startswith(ending):
        return low + len(ending)
    # The turn goes on after a result without a header, which the prompt has: it begins with its own text.
    header = _usual_header(tokenizer, renderer).strip()
    if is_same and header and ending.startswith(lead) and ending[len(lead) :].strip() == header:
        return high
    # The history is rendered otherwise: look for the header alone, what the generation prompt adds.
    bare = renderer.text(history, tools)
    headers = [prompt.text[len(bare) : prompt_end]] if prompt.text.startswith(bare) else []
    if not "".join(headers).strip():
        headers = [_usual_header(tokenizer, renderer)]
    for header in headers:
        for text in (header, header.rstrip(), header.lstrip(), header.strip()):
            if text.strip() and (position := lead.rfind(text)) >= 0:
                return low + position + len(text)
    # No header is shown: the model goes on where the message before it ends.
    if is_same and prompt.text == bare:
        symbols = zip(split_symbols(tokenizer, lead), split_symbols(tokenizer, ending), strict=False)
        common = 0
        for ours, theirs in symbols:
            if ours != theirs:
                break
            common += len(ours)
        # A token that the prompt has as well, elsewhere among its white space, was not generated.
        again = [match.end() for match in control_pattern(tokenizer).finditer(lead, common) if match.group() in ending]
        return low + max([common, *again])
    return None


def _usual_header(tokenizer: ChatTokenizer, renderer: Renderer) -> str:
    """What the generation prompt adds after a user's message, without a thinking block."""
    key = ("header", renderer.hash)
    if key not in tokenizer.learnt:
        tokenizer.learnt[key] = ""
        chat: Chat = [{"role": "user", "content": "zqu"}]
        try:
            bare, prompt = renderer.text(chat), renderer.text(chat, prompt=True)
            thought = find_thought(learn_grammar(tokenizer, renderer), prompt)
            if prompt.startswith(bare):
                tokenizer.learnt[key] = prompt[len(bare) : thought.start if thought is not None else len(prompt)]
        except TemplateError:
            pass  # a template that takes no such conversation teaches nothing
    return str(tokenizer.learnt[key])


def _write_lead(
    grammar: Grammar, thought: Thought | None, message: Json, last: Rendered, own: list[Piece], begin: int
) -> _Parts | None:
    """What the model writes before the part of the shown turn that is taken as it is."""
    if thought is None:
        reasoning = reasoning_of(message)
        block = find_empty_block(grammar, last.text, begin) if reasoning else None
        if block is None or block[1] > own[0].start or any(piece.field == REASONING for piece in own):
            return _Parts([], begin)
        # The template empties the thinking block of this turn: the model wrote its reasoning there.
        return _Parts([(last.text[begin : block[0]], -1), (reasoning, REASONING)], block[1])
    tags, space = thought.tags, thought.space
    # Text of the template between the header and the turn's own text may hold a thinking block.
    lead = last.text[begin : own[0].start]
    closing = lead.find(tags.closing)
    if not thought.is_open:
        if closing < 0:
            return _Parts([], begin)
        rest = begin + closing + len(tags.closing)
        return _Parts([], rest + len(space) if last.text.startswith(space, rest) else rest)
    opening = lead.find(tags.opening)
    inside = begin + opening + len(tags.opening) if opening >= 0 else begin
    if opening >= 0:
        # White space that the prompt has after the tag is not written again; the turn may show less of it.
        sizes = range(len(space), 0, -1)
        inside += next((size for size in sizes if last.text.startswith(space[:size], inside)), 0)
    reasoning = reasoning_of(message)
    if own[0].field == REASONING and opening >= 0:
        return _Parts([], inside)  # shown as it was written
    if own[0].field == REASONING and tags.closing in last.text[own[0].end : own[-1].end]:
        return _Parts([], begin)  # shown without the opening, which only the prompt has
    raw = _raw_content(grammar, thought, message, last, own)
    if raw is not None:
        return raw
    if closing >= 0 and not reasoning:
        # An empty block, as the template writes it.
        after_opening = inside if opening >= 0 and opening < closing else begin + closing
        return _Parts([], after_opening)
    if own[0].field == REASONING:
        return None
    # After a block that the template closes, or inside one that it opens and never closes.
    rest = begin + closing + len(tags.closing) if closing >= 0 else inside
    rest += len(last.text[rest : own[0].start]) - len(last.text[rest : own[0].start].lstrip())
    if not reasoning:
        return _Parts([(close_empty(grammar, thought), -1)], rest)
    text = reasoning.strip("\n") if "\n" in space else reasoning
    return _Parts([(text, REASONING), (grammar.closer or close_reasoning(thought), -1)], rest)


def _raw_content(grammar: Grammar, thought: Thought, message: Json, last: Rendered, own: list[Piece]) -> _Parts | None:
    """The content as the model wrote it, where it holds the thinking block and the template shows what follows, or the
    block as text."""
    content = message.get("content")
    if not isinstance(content, str) or thought.tags.closing not in content or own[0].field != CONTENT:
        return None
    shown = last.text[own[0].start : own[0].end]
    answer = content.rpartition(thought.tags.closing)[2]
    if shown.strip() not in (answer.strip(), content.strip()):
        return None
    written = content.lstrip()
    if written.startswith(thought.tags.opening):
        written = written.removeprefix(thought.tags.opening).removeprefix(thought.space)
    return _Parts([(written.rstrip(), CONTENT)], own[0].end)


def _field_text(rendered: Rendered, piece: Piece) -> tuple[int, str]:
    return piece.field, rendered.text[piece.start : piece.end]
