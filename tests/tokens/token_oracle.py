"""A second way to the mask that shares nothing with ours: transformers' renders, and placeholders substituted back.

A turn starts where the render of the prompt before it, with the generation prompt, ends. To see where it ends, its
text is replaced by placeholders: what comes after its stop token is as long as before, so the end is counted from the
end of the text. The stop tokens are written down by hand for each family.
"""

import copy
import re
from typing import Any

import numpy as np


class Inexact(Exception):
    """By definition there is no exact mask for this conversation as one sequence."""


def oracle(hf: Any, chat: list[Any], tools: Any, stops: tuple[str, ...]) -> tuple[list[int], list[bool]]:
    """Ids and mask."""
    text = hf.apply_chat_template(chat, tools=tools, tokenize=False)
    regions = [turn_region(hf, chat, tools, stops, i, text) for i, m in enumerate(chat) if m["role"] == "assistant"]
    encoded = hf(text, add_special_tokens=False, return_offsets_mapping=True)
    assert encoded["input_ids"] == hf.apply_chat_template(chat, tools=tools)["input_ids"]
    return encoded["input_ids"], mask_of(hf, encoded, regions)


def mask_of(hf: Any, encoded: Any, regions: list[tuple[int, int]]) -> list[bool]:
    added = set(hf.backend_tokenizer.get_added_tokens_decoder())
    mask = np.zeros(len(encoded["input_ids"]), dtype=bool)
    for start, end in regions:
        for number, (low, high) in enumerate(encoded["offset_mapping"]):
            high = max(high, low + 1)
            swallowed = low < start and encoded["input_ids"][number] in added
            mask[number] |= low < end and high > start and not swallowed
    return mask.tolist()


def turn_region(hf: Any, chat: list[Any], tools: Any, stops: tuple[str, ...], turn: int, text: str) -> tuple[int, int]:
    given = hf.apply_chat_template(chat[:turn], tools=tools, tokenize=False, add_generation_prompt=True)
    if not text.startswith(given):
        raise Inexact(f"turn {turn}: the prompt is not a prefix")
    after, token = _after_stop(hf, chat, tools, stops, turn, len(chat))
    _, token_as_last = _after_stop(hf, chat, tools, stops, turn, turn + 1)
    if token_as_last and token != token_as_last:
        raise Inexact(f"turn {turn}: stops with {token_as_last} when it is last, with {token} in the conversation")
    if _texts_kept(hf, chat, tools, turn, turn + 1) != _texts_kept(hf, chat, tools, turn, len(chat)):
        raise Inexact(f"turn {turn}: rendered differently once turns follow")
    return len(given), len(text) - after


def _marked(chat: list[Any], turn: int) -> list[Any]:
    """The turn's strings replaced by placeholders; the rest as it is."""
    result = copy.deepcopy(chat)
    message = result[turn]
    for key in ("content", "reasoning_content"):
        if isinstance(message.get(key), str) and message[key].strip():
            think = "</think>" in message[key]
            message[key] = "<think>\nQZ0QZ\n</think>\n\nQZ1QZ" if think else f"QZ{key[0]}QZ"
    for number, call in enumerate(message.get("tool_calls") or []):
        arguments = call["function"]["arguments"]
        if isinstance(arguments, dict) and arguments:
            *others, last = arguments
            call["function"]["arguments"] = dict.fromkeys(others, "QZ") | {last: f"QZa{number}QZ"}
        elif isinstance(arguments, str):
            call["function"]["arguments"] = f"QZa{number}QZ"
    return result


def _after_stop(hf: Any, chat: list[Any], tools: Any, stops: tuple[str, ...], turn: int, size: int) -> tuple[int, str]:
    """How many characters come after the turn's stop token, and which token it is."""
    marked = _marked(chat, turn)
    text = hf.apply_chat_template(marked[:size], tools=tools, tokenize=False)
    given = hf.apply_chat_template(chat[:turn], tools=tools, tokenize=False, add_generation_prompt=True)
    if not text.startswith(given):
        raise Inexact(f"turn {turn}: the prompt is not a prefix")
    position = len(given)
    for match in re.finditer(r"QZ\w*QZ", text):
        position = max(position, match.end())
    limit = position + _before_next(hf, marked[:size], tools, turn, position)
    found = re.search("|".join(map(re.escape, stops)) or r"(?!)", text[position:limit])
    if found is None:
        if turn == len(chat) - 1 or size == turn + 1:
            return 0, ""
        raise Inexact(f"turn {turn}: no stop token")
    return len(text) - position - found.end(), found.group()


def _before_next(hf: Any, marked: list[Any], tools: Any, turn: int, position: int) -> int:
    """How many characters there are between the turn's text and the next message's."""
    if turn + 1 < len(marked):
        marked = copy.deepcopy(marked)
        marked[turn + 1]["content"] = "XZNEXTZX"
        found = hf.apply_chat_template(marked, tools=tools, tokenize=False).find("XZNEXTZX", position)
        if found >= 0:
            return found - position
    return 10**9


def _texts_kept(hf: Any, chat: list[Any], tools: Any, turn: int, size: int) -> list[str]:
    marked = _marked(chat, turn)
    return re.findall(r"QZ\w*QZ", hf.apply_chat_template(marked[:size], tools=tools, tokenize=False))
