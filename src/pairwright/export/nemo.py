"""NVIDIA NeMo: preference datasets of NeMo RL, and rows for NeMo Customizer and NeMo Platform.

    nemo-rl-preference   {context: [...], completions: [{rank: 0, reward, completion: [...]}, {rank: 1, ...}], tools}
    nemo-rl-binary       {prompt: [...], chosen: text, rejected: text, tools, reward_gap, chosen_reward,
                         rejected_reward}
    customizer           {prompt: text, chosen_response: text, rejected_response: text}
    customizer --history {prompt: [...], chosen_response: text, rejected_response: text, tools}
    customizer-sft       {prompt: text, completion: text}: the chosen side; --history {messages: [...], tools}
    nemo-platform        {prompt: [{role, content: text}], chosen: text, rejected: text, reward_gap, chosen_reward,
                         rejected_reward}
    nemo-platform-text   the same, with tool calls, results and schemas as text

Pairs with several messages are cut at the divergence point (`Cut`) if answers are text, and refused if an answer is
then a tool call. NeMo does not render tools in preference data: rows with messages have them as JSON text, noted as
`tools_not_rendered`; targets with a text prompt and nemo-platform refuse them. nemo-platform-text writes both as text.
"""

from collections.abc import Sequence

from pairwright.export.chat_lines import (
    Content,
    Context,
    any_message,
    note_extra,
    note_extra_and_reasoning,
    note_if,
    note_tools,
    refuse_if,
    refuse_tools,
    side_text,
    text_of,
    write_chat,
    write_history,
    write_prompt_text,
    write_side_text,
    write_tools,
)
from pairwright.export.exporter import (
    CHAT_CHECKS,
    CUT_AT_DIVERGENCE,
    SIDE_CHECKS,
    Check,
    Fields,
    Layout,
    Part,
    json_line,
    json_object,
)
from pairwright.pairs.candidates.candidates import decimal_gap
from pairwright.records.json_text import decode, encode
from pairwright.records.messages import Message
from pairwright.records.tool_texts import write_tools_as_text


def preference_lines(context: Context) -> Layout:
    """NeMo RL PreferenceDataset. It trains only the last message of a side; several messages per side are noted."""
    chosen, rejected = (
        json_object({"rank": [rank], "reward": Part(encode, f"{side}_reward"), "completion": Part(write_chat, side)})
        for rank, side in ((b"0", "chosen"), (b"1", "rejected"))
    )
    fields: Fields = {"context": Part(write_chat, "prompt"), "completions": [b"[", *chosen, b",", *rejected, b"]"]}
    return [*CHAT_CHECKS, *json_line(fields | _tools(context)), *SIDE_CHECKS]


def binary_lines(context: Context) -> Layout:
    """NeMo RL BinaryPreferenceDataset, which reads the prompt as messages and both answers as text. Rewards are added
    under the names of NeMo Gym's guide."""
    checks = [Part(_check_text, side) for side in _SIDES]
    prompt: Fields = {"prompt": Part(write_history, "prompt")}
    return [*_CUT, *checks, *json_line(prompt | _SIDES | _tools(context) | _REWARDS)]


def platform_lines(context: Context) -> Layout:
    """NeMo Platform: messages with a role and a text only. Pairs with tools or tool calls are refused."""
    checks = Check(refuse_tools, "tools"), Check(_refuse_calls, "prompt")
    prompt: Fields = {"prompt": Part(_write_roles_and_texts, "prompt")}
    return [*_CUT, *checks, *json_line(prompt | _SIDES | _REWARDS)]


def platform_text_lines(context: Context) -> Layout:
    """NeMo Platform, with tool calls, results and schemas as text, in the tags that Hermes uses."""
    notes = [Check(_note_calls_as_text, name) for name in ("prompt", *_SIDES)]
    prompt: Fields = {"prompt": Part(_write_prompt_with_tools, "prompt", "tools")}
    sides = {side: Part(_write_side_with_tools, side) for side in _SIDES}
    return [*_CUT, Check(_note_tools_as_text, "tools"), *notes, *json_line(prompt | sides | _REWARDS)]


def customizer_lines(context: Context) -> Layout:
    """NeMo Customizer: a single user message as text, or with `history` any prompt as messages."""
    fields: Fields = {
        "prompt": Part(write_history, "prompt") if context.history else Part(write_prompt_text, "prompt", "tools"),
        "chosen_response": Part(write_side_text, "chosen"),
        "rejected_response": Part(write_side_text, "rejected"),
    }
    return [*_CUT, *json_line(fields | (_tools(context) if context.history else {}))]


def customizer_sft_lines(context: Context) -> Layout:
    """NeMo Customizer, supervised: each pair's prompt and its chosen side, as text or with `history` as messages."""
    fields: Fields = {
        "prompt": Part(write_prompt_text, "prompt", "tools"),
        "completion": Part(write_side_text, "chosen"),
    }
    if context.history:
        fields = {"messages": Part(_write_conversation, "prompt", "chosen"), **_tools(context)}
    return [*_CUT, *json_line(fields)]


def _write_conversation(prompt: Content, side: Content) -> bytes:
    return write_history(prompt)[:-1] + b',{"role":"assistant","content":' + write_side_text(side) + b"}]"


_CUT: Layout = (
    *CHAT_CHECKS,
    *CUT_AT_DIVERGENCE,
    Check(note_extra, "prompt"),
    Check(note_extra_and_reasoning, "chosen"),
    Check(note_extra_and_reasoning, "rejected"),
)
_SIDES: Fields = {side: Part(write_side_text, side) for side in ("chosen", "rejected")}
# The end of a line: the rewards, under the names of NeMo Gym's guide.
_REWARDS: Fields = {
    "reward_gap": Part(lambda *rewards: encode(decimal_gap(*rewards)), "chosen_reward", "rejected_reward"),
    "chosen_reward": Part(encode, "chosen_reward"),
    "rejected_reward": Part(encode, "rejected_reward"),
}


def _tools(context: Context) -> Fields:
    return {"tools": [Check(note_tools, "tools"), Part(write_tools, "tools")]} if context.has_tools else {}


def _check_text(side: Content) -> bytes:
    """Refuse a side without text before the prompt is checked; writes nothing."""
    write_side_text(side)
    return b""


def _uses_tools(content: Content) -> bool:
    has_calls = any_message(content, lambda message: message.tool_calls)
    return has_calls or "tool" in content.roles or "function" in content.roles


_refuse_calls = refuse_if(_uses_tools, "tool_calls_in_the_prompt")
_note_tools_as_text = note_if(lambda tools: tools and decode(tools), "tools_as_text")
_note_calls_as_text = note_if(_uses_tools, "tools_as_text")


def _write_roles_and_texts(prompt: Content) -> bytes:
    return prompt.json if prompt.is_plain else _encode_texts(prompt.messages)


def _write_prompt_with_tools(prompt: Content, tools: str | None) -> bytes:
    if not tools and not _uses_tools(prompt):
        return _write_roles_and_texts(prompt)
    return _encode_texts(write_tools_as_text(prompt.messages, decode(tools) if tools else []).messages)


def _write_side_with_tools(side: Content) -> bytes:
    if not _uses_tools(side):
        return write_side_text(side)
    return encode(side_text(write_tools_as_text(side.messages).messages[0]))


def _encode_texts(messages: Sequence[Message]) -> bytes:
    return encode([{"role": message.role, "content": text_of(message)} for message in messages])
