"""Painted tokens: nothing is lost, trained tokens are marked."""

import io
import re

from rich.console import Console
from token_cases import TOOLS, assistant, call, tool, user
from token_families import small_tokenizer

from pairwright.tokens.encode import encode_chat
from pairwright.tokens.sequence import Report, Sequence
from pairwright.tokens.stage.paint import describe_report, legend, paint_text, token_texts

CHAT = [user("hi <b>&"), assistant("", calls=[call()]), tool("sun 你好😀"), assistant("so <script>alert(1)</script> é")]


def test_token_texts_join_to_the_whole_text() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    sequence = encode_chat(tokenizer, CHAT, TOOLS)
    texts = token_texts(tokenizer, sequence.ids)
    assert len(texts) == len(sequence)
    assert "".join(texts) == tokenizer.decode(sequence.ids)
    assert not any("\ufffd" in text for text in texts)


def test_trained_tokens_are_underlined_and_no_others() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    sequence = encode_chat(tokenizer, CHAT, TOOLS)
    text = paint_text(tokenizer, sequence)
    underlined = "".join(text.plain[span.start : span.end] for span in text.spans if "underline" in str(span.style))
    assert underlined.replace("⏎", "") == tokenizer.decode(sequence.ids[sequence.mask])
    console = Console(record=True, width=200, force_terminal=True, file=io.StringIO())
    console.print(text, legend())
    assert "\x1b[" in console.export_text(styles=True)


def test_without_colours_trained_tokens_stand_in_double_brackets() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    sequence = encode_chat(tokenizer, CHAT, TOOLS)
    plain = paint_text(tokenizer, sequence, colours=False).plain.replace("⏎", "")
    assert "".join(re.findall("⟦([^⟧]*)⟧", plain)) == tokenizer.decode(sequence.ids[sequence.mask])
    assert plain.count("⟦") == 2  # one run for each turn
    assert re.sub("[⟦⟧]", "", plain) == tokenizer.decode(sequence.ids)


def test_the_report_of_a_sequence_is_said_in_words() -> None:
    report = Report(
        dropped=((1, "reasoning"),),
        prompt_dropped=((-1, "tools"),),
        unstopped=(3,),
        declared=(1, 3),
        added_tokens=4,
        truncated=1200,
    )
    sequence = Sequence(ids=[1], mask=[1], message_index=[1], paint=[5], report=report)
    assert describe_report(sequence) == [
        "not rendered (generated): reasoning of message 1",
        "not rendered (prompt): tools",
        "no stop token after message 3",
        "by a declared row: messages 1, 3",
        "4 tokens added that nobody generated",
        "1,200 tokens cut off",
    ]
