"""Pairs as the options of the stage have them: with the template variables of their records, their tools as text, their
selected turns. What encodes them is handed in; it gives a pair or its refusal for each item.
"""

from collections.abc import Callable, Iterable

import msgspec

from pairwright.config.sections import TokensConfig
from pairwright.records.tool_texts import write_tools_as_text
from pairwright.tokens.encode_pairs import EncodedPair
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.stage.items import Item, pair_variables
from pairwright.tokens.tokenizer import ChatTokenizer
from pairwright.tokens.train_turns import select_in_sides

Result = EncodedPair | TokensError
Encode = Callable[[ChatTokenizer, list[Item], TokensConfig], Iterable[Result]]
Origins = tuple[int, ...]  # number of a message as it is encoded -> its number in the pair


def encode_pair_items(
    tokenizer: ChatTokenizer, items: list[Item], options: TokensConfig, encode: Encode
) -> list[Result]:
    """Pairs in the order of their items. Those with the same template variables are encoded together."""
    results: dict[int, Result] = {}
    groups: dict[ChatTokenizer, list[int]] = {}
    for number, item in enumerate(items):
        try:
            ready = tokenizer.with_variables(pair_variables(item)) if options.record_kwargs == "use" else tokenizer
            groups.setdefault(ready, []).append(number)
        except TokensError as error:
            results[number] = error
    for ready, numbers in groups.items():
        ready_items, origins = zip(*(_write_tools(items[number], options) for number in numbers), strict=True)
        for number, result, sides in zip(numbers, encode(ready, list(ready_items), options), origins, strict=True):
            results[number] = _finish(result, items[number], sides, options)
    return [results[number] for number in range(len(items))]


def _write_tools(item: Item, options: TokensConfig) -> tuple[Item, tuple[Origins, Origins] | None]:
    """The item with its tools as text, and where its messages come from. Recorded ids are taken as they are."""
    is_recorded = options.recorded == "use" and any(s is not None and s.tokens is not None for s in item.sources)
    if options.tools_as_text == "off" or is_recorded:
        return item, None
    prompt = write_tools_as_text(item.prompt, item.tools)
    sides = [write_tools_as_text(side) for side in (item.chosen, item.rejected)]
    first, second = ((*prompt.origins, *(len(item.prompt) + n for n in side.origins)) for side in sides)
    written = msgspec.structs.replace(
        item, prompt=prompt.messages, tools=(), chosen=sides[0].messages, rejected=sides[1].messages
    )
    return written, (first, second)


def _finish(result: Result, item: Item, origins: tuple[Origins, Origins] | None, options: TokensConfig) -> Result:
    """The pair with the numbers of its own messages, compared by its selected turns."""
    if isinstance(result, Refusal) and origins is not None and result.message is not None:
        return Refusal(result.reason, result.detail, message=origins[0][min(result.message, len(origins[0]) - 1)])
    if isinstance(result, TokensError):
        return result
    chosen, rejected = result.chosen, result.rejected
    if origins is not None:
        chosen, rejected = chosen.renumber(origins[0]), rejected.renumber(origins[1])
    try:
        if options.train_turns != "all":
            sides = (item.chosen, item.rejected)
            chosen, rejected = select_in_sides(item.prompt, sides, (chosen, rejected), options.train_turns)
    except TokensError as error:
        return error
    return msgspec.structs.replace(result, chosen=chosen, rejected=rejected)
