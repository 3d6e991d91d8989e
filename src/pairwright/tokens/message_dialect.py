"""Records in the form that a template takes.

Templates disagree on two things. Arguments: most want an object (and write it as JSON), some want text. The content
beside tool calls: some want it null, some fail on null. Both are found out once, by rendering a call each way; the
form that inference servers use (an object, content as it is) is tried first.
"""

import itertools
from collections.abc import Sequence

from pairwright.records.messages import Json, Message, to_template_chat
from pairwright.tokens.refusals import TemplateError
from pairwright.tokens.template.render import Rendered
from pairwright.tokens.template.tracked_messages import Chat, plain_chat
from pairwright.tokens.template.tracked_str import CALL
from pairwright.tokens.tokenizer import ChatTokenizer, Renderer


def adapt_chat(tokenizer: ChatTokenizer, messages: Sequence[Message], tools: list[Json] | None) -> Chat:
    """Chat messages of records; arguments and empty content as this template takes them."""
    renderer = tokenizer.renderer(tools)
    arguments: str = "object"
    empty: str | None = None
    if any(message.tool_calls for message in messages):
        arguments, empty = find_call_forms(tokenizer, renderer)
    return plain_chat(to_template_chat(messages, arguments=arguments, empty=empty))


def find_call_forms(tokenizer: ChatTokenizer, renderer: Renderer) -> tuple[str, str | None]:
    """(arguments: object or text, empty content beside calls: None or "")."""
    key = ("forms", renderer.hash)
    if key not in tokenizer.learnt:
        # Four renders of a small call; the first form that shows name and arguments as JSON wins.
        forms = list(itertools.product(("object", "text"), (None, "")))
        renders = [(form, _render_call(renderer, *form)) for form in forms]
        whole = [form for form, text in renders if text is not None and _is_whole(text)]
        accepted = [form for form, text in renders if text is not None]
        tokenizer.learnt[key] = (whole or accepted or forms)[0]
    form: tuple[str, str | None] = tokenizer.learnt[key]
    return form


def _render_call(renderer: Renderer, arguments: str, content: str | None) -> Rendered | None:
    # Words that begin with zq are in no template, so finding one in the text means that it was rendered.
    value: object = {"zqa": "zqx"} if arguments == "object" else '{"zqa": "zqx"}'
    call = {"id": "zq0000000", "type": "function", "function": {"name": "zqf", "arguments": value}}
    chat: Chat = [{"role": "user", "content": "zqu"}, {"role": "assistant", "content": content, "tool_calls": [call]}]
    try:
        return renderer.render(chat, None)
    except TemplateError:
        return None


def _is_whole(rendered: Rendered) -> bool:
    """Are name and arguments in the text, the arguments as the JSON that they are?"""
    texts = [rendered.text[piece.start : piece.end] for piece in rendered.pieces if piece.field == CALL]
    has_both = any("zqf" in text for text in texts) and any("zqx" in text for text in texts)
    # An escaped quote before the key: the template wrote a string that was JSON already as JSON once more.
    return has_both and '\\"zqa' not in rendered.text
