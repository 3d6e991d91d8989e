"""Painted tokens: nothing is lost, trained tokens stand out, text cannot break the page."""

import html
import io
import re

from rich.console import Console
from token_cases import TOOLS, assistant, call, tool, user
from token_families import small_tokenizer

from pairwright.tokens.encode import encode_chat
from pairwright.tokens.stage.preview import html_page, legend, paint_text, token_texts

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


def test_the_page_is_self_contained_and_escaped() -> None:
    tokenizer = small_tokenizer("chatml with calls")
    sequence = encode_chat(tokenizer, CHAT, TOOLS)
    page = html_page(tokenizer, [("one", sequence)], title="t<>")
    assert "<script" not in page
    assert not re.search(r"(src|href)=", page)
    spans = re.findall(r'<span class="p\d+( t)?" title="[^"]*">([^<]*)</span>', page)
    assert "".join(html.unescape(text) for _, text in spans).replace("⏎\n", "\n") == tokenizer.decode(sequence.ids)
    trained = "".join(html.unescape(text) for is_trained, text in spans if is_trained)
    assert trained.replace("⏎\n", "\n") == tokenizer.decode(sequence.ids[sequence.mask])
