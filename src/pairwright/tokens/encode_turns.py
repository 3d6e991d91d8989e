"""Templates that rewrite history: one sequence for each group of turns that share a context.

Each sequence holds what inference saw when its turns were generated, checked by rendering the prefix with the
generation prompt. Turns go together as long as one render is exact for all of them, so a template that keeps its
history gives one sequence, one that drops old reasoning gives one for each user message, and gpt-oss one for each turn.
"""

from collections.abc import Sequence as Items
from typing import Any

from pairwright.records.messages import Json
from pairwright.tokens.encode import Boundaries, ControlTokens, Messages, encode_chat, encode_located, prepare_chat
from pairwright.tokens.plain_text import is_raw_text
from pairwright.tokens.refusals import Refusal, TemplateError
from pairwright.tokens.sequence import Sequence
from pairwright.tokens.spans.dropped import find_left_out, refuse_dropped
from pairwright.tokens.spans.probes import Unfit
from pairwright.tokens.spans.regions import Finder, Located, Region, Verify, locate, refuse_missing_reasoning
from pairwright.tokens.spans.spelling import PrefixEncoder
from pairwright.tokens.spans.thoughts import MissingReasoning, advise_mode, explain_broken_thought, learn_grammar
from pairwright.tokens.spans.turn_grammar import speak_turn
from pairwright.tokens.template.tracked_messages import Chat
from pairwright.tokens.tokenizer import ChatTokenizer, chat_tokenizer

# Reasons against one sequence for all turns that go away where groups of turns have sequences of their own.
_PER_TURN = ("context_differs", "history_rewritten", "prompt_not_continued", "no_stop")


def encode_turns(
    tokenizer: Any,
    messages: Messages,
    tools: Items[Json] | None = None,
    *,
    train_from: int = 0,
    boundaries: Boundaries = "split",
    control_tokens: ControlTokens = "keep",
    require_stop: bool = True,
    verify: Verify = "quick",
    missing_reasoning: MissingReasoning = "close",
    allow_dropped: bool = False,
    allow_images: bool = False,
) -> list[Sequence]:
    """A conversation as as few sequences as are exact, in the order of their turns.

    Options are those of `encode_chat`. Tokens do not reach across the start of a turn ("split"): the prompt has the ids
    that inference had.
    """
    ready = chat_tokenizer(tokenizer)
    if is_raw_text(messages):
        options: Any = {"control_tokens": control_tokens, "require_stop": require_stop}
        return [encode_chat(ready, messages, train_from=train_from, **options)]
    schemas = ready.schemas(tools)
    chat, generated, rewritten_ids = prepare_chat(ready, messages, schemas, allow_images=allow_images)
    turns = [index for index in generated if index >= train_from]
    groups = locate_groups(ready, chat, schemas, turns, require_stop=require_stop, verify=verify)
    for part, located in groups:
        refuse_missing_reasoning(ready, part, schemas, located, missing_reasoning)
    dropped = tuple(item for _, located in groups for item in located.dropped)
    refuse_dropped(dropped, allow=allow_dropped, advice=advise_mode(ready.renderer(schemas), dropped))
    # Prompts of one run begin alike: what they share is encoded once.
    encoder = PrefixEncoder(ready) if len(groups) > 1 else None
    return [
        encode_located(
            ready,
            part,
            schemas,
            located._replace(rewritten_ids=rewritten_ids),
            boundaries=boundaries,
            control_tokens=control_tokens,
            encoder=encoder,
        )
        for part, located in groups
    ]


def locate_groups(
    tokenizer: ChatTokenizer,
    chat: Chat,
    tools: list[Json] | None,
    turns: list[int],
    *,
    require_stop: bool,
    verify: Verify = "quick",
) -> list[tuple[Chat, Located]]:
    """The conversation up to the last turn of each group, with the regions of the group's turns."""
    try:
        return [(chat, locate(tokenizer, chat, tools, turns, require_stop=require_stop, verify=verify))]
    except Refusal as refusal:
        if refusal.reason not in _PER_TURN:
            raise
    # One render is not exact for all turns: take groups from the end, each as large as one render allows.
    groups: list[tuple[Chat, Located]] = []
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
) -> Located:
    """As many of the last turns as one render of the conversation is exact for; at least one."""
    renderer = tokenizer.renderer(tools)
    try:
        rendered = renderer.render(chat, tools)
        finder = Finder(tokenizer, renderer, rendered, chat, tools)
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
    return _locate_spoken(tokenizer, chat, tools, require_stop=require_stop)


def _locate_spoken(tokenizer: ChatTokenizer, chat: Chat, tools: list[Json] | None, *, require_stop: bool) -> Located:
    """The last turn alone, after exactly what inference is given."""
    turn = len(chat) - 1
    result = speak_turn(tokenizer, tokenizer.renderer(tools), chat, tools)
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
