"""encode_chat: literal masks, properties, refusals, and every kind of tokenizer."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from token_cases import TOOLS, assistant, call, system, tool, user
from token_families import CHATML, FAMILIES, SHARED, small_backend, small_tokenizer

from pairwright.records.messages import Message, ToolCall
from pairwright.tokens import EncodeOptions, encode_turns
from pairwright.tokens.encode import encode_chat
from pairwright.tokens.refusals import Refusal, TokensError
from pairwright.tokens.sequence import Paint, Sequence
from pairwright.tokens.template.render import Template
from pairwright.tokens.tokenizer import ChatTokenizer


def spans(tokenizer: ChatTokenizer, sequence: Sequence) -> list[str]:
    """The text of each run of trained tokens."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], sequence.mask.astype(int), [0]]))).reshape(-1, 2)
    return [tokenizer.decode(sequence.ids[start:stop]) for start, stop in edges]


def test_the_mask_token_by_token() -> None:
    tokenizer = small_tokenizer("chatml")
    sequence = encode_chat(tokenizer, [user("ok"), assistant("ok")])
    told = [
        (tokenizer.decode([i]), bool(m), int(n))
        for i, m, n in zip(sequence.ids, sequence.mask, sequence.message_index, strict=True)
    ]
    assert told == [
        ("<|im_start|>", False, -1), ("user", False, -1), ("\n", False, -1), ("ok", False, 0), ("<|im_end|>", False, -1),
        ("\n", False, -1), ("<|im_start|>", False, -1), ("assistant", False, -1), ("\n", False, -1),
        ("ok", True, 1), ("<|im_end|>", True, 1), ("\n", False, -1),
    ]  # fmt: skip
    assert sequence.paint.tolist()[-3:] == [Paint.GENERATED, Paint.STOP, Paint.TEMPLATE]
    assert sequence.report.stops == ("<|im_end|>",)
    assert not sequence.report.unstopped


def test_calls_and_reasoning_are_trained_and_tool_output_is_not() -> None:
    tokenizer = small_tokenizer("drops old reasoning")
    chat = [
        user("hi"),
        assistant("", reasoning="why", calls=[call(0, {"city": "Rome"})]),
        tool("sun"),
        assistant("hot"),
    ]
    sequence = encode_chat(tokenizer, chat, TOOLS)
    assert spans(tokenizer, sequence) == [
        '<think>\nwhy\n</think>\n\n\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>',
        "hot<|im_end|>",
    ]
    assert set(sequence.paint.tolist()) >= {Paint.REASONING, Paint.CALL, Paint.TOOL, Paint.STOP, Paint.USER}


def test_train_from_makes_earlier_turns_context() -> None:
    tokenizer = small_tokenizer("chatml")
    sequence = encode_chat(tokenizer, [user("a"), assistant("b"), user("c"), assistant("d")], train_from=2)
    assert spans(tokenizer, sequence) == ["d<|im_end|>"]


def test_a_turn_that_the_model_did_not_write_here_is_context() -> None:
    tokenizer = small_tokenizer("chatml")
    chat = [
        Message("user", "a"),
        Message("assistant", "b", generated=False),
        Message("user", "c"),
        Message("assistant", "d"),
    ]
    assert spans(tokenizer, encode_chat(tokenizer, chat)) == ["d<|im_end|>"]


def test_records_take_the_form_that_the_template_wants() -> None:
    record = Message("assistant", None, tool_calls=(ToolCall("f", '{"a": 1}', "x"),))
    for name in ("chatml with calls", "arguments as tags", "channels, return becomes end"):
        tokenizer = small_tokenizer(name)
        text = spans(tokenizer, encode_chat(tokenizer, [Message("user", "q"), record]))[0]
        assert "f" in text
        assert "1" in text
        assert "\\" not in text
    wants_text = ChatTokenizer(
        small_backend(),
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.tool_calls %}{% if m.content is none %}"
        "{{ 'CALL ' + m.tool_calls[0].function.arguments }}{% endif %}{% else %}{{ m.content }}{% endif %}"
        "{{ m.tool_calls[0].function.name if m.tool_calls }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        special_tokens={"eos_token": "<|im_end|>"},
    )
    assert spans(wants_text, encode_chat(wants_text, [Message("user", "q"), record])) == ['CALL {"a": 1}f<|im_end|>']


def test_dropped_content_is_reported() -> None:
    tokenizer = small_tokenizer("results in groups, content dropped beside calls")
    chat = [user("hi"), assistant("Let me see.", reasoning="why", calls=[call()]), tool("sun")]
    assert encode_chat(
        tokenizer, chat, options=EncodeOptions(boundaries="whole", allow_dropped=True)
    ).report.dropped == ((1, "content"), (1, "reasoning"))
    only_first = small_tokenizer("channels, return becomes end")
    two = [user("hi"), assistant("", calls=[call(0), call(1, name="other")])]
    assert encode_chat(
        only_first, two, options=EncodeOptions(boundaries="whole", allow_dropped=True)
    ).report.dropped == ((1, "tool_calls"),)


def test_a_message_that_is_not_rendered_is_reported() -> None:
    template = "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    tokenizer = ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})
    report = encode_chat(tokenizer, [user("hi"), assistant("x"), tool("sun"), assistant("y")]).report
    assert (report.dropped, report.prompt_dropped) == ((), ((2, "content"),))


def test_split_boundaries_encode_as_inference_did() -> None:
    tokenizer = small_tokenizer("chatml")
    chat = [user("hi"), assistant("\n\nhello")]
    whole, split = encode_chat(tokenizer, chat), encode_chat(tokenizer, chat, options=EncodeOptions(boundaries="split"))
    assert (whole.report.merged, split.report.merged) == (1, 0)
    assert spans(tokenizer, whole) == ["\n\n\nhello<|im_end|>"]
    assert spans(tokenizer, split) == ["\n\nhello<|im_end|>"]
    assert split.report.split
    assert not whole.report.split
    assert tokenizer.decode(whole.ids) == tokenizer.decode(split.ids)


def test_control_tokens_in_text() -> None:
    tokenizer = small_tokenizer("chatml")
    chat = [user("a<|im_end|>b"), assistant("c")]
    stop = tokenizer.added["<|im_end|>"]
    assert encode_chat(tokenizer, chat).ids.tolist().count(stop) == 3
    escaped = encode_chat(tokenizer, chat, options=EncodeOptions(boundaries="whole", control_tokens="escape"))
    assert escaped.ids.tolist().count(stop) == 2
    assert tokenizer.decode(escaped.ids) == tokenizer.decode(encode_chat(tokenizer, chat).ids)
    assert escaped.report.control_tokens == 1
    assert spans(tokenizer, escaped) == ["c<|im_end|>"]
    with pytest.raises(Refusal, match="message 0: control_tokens"):
        encode_chat(tokenizer, chat, options=EncodeOptions(boundaries="whole", control_tokens="refuse"))


def test_refusals_name_the_turn_and_the_reason() -> None:
    cases = [
        ("the prompt opens the reasoning", [user("a"), assistant("b")], "no_reasoning", 1),
        ("no stop at all", [user("a"), assistant("b"), user("c"), assistant("d")], "context_differs", 1),
        (
            "channels, return becomes end",
            [user("a"), assistant("b"), user("c"), assistant("d")],
            "context_differs",
            1,
        ),
        ("no header, system in the first user", [user("a"), assistant("b"), assistant("c")], "template_error", 2),
        ("no header, system in the first user", [assistant("b")], "template_error", 0),
    ]
    for name, chat, reason, message in cases:
        with pytest.raises(Refusal) as caught:
            encode_chat(small_tokenizer(name), chat)
        assert (caught.value.reason, caught.value.message) == (reason, message)


def test_a_token_with_text_of_two_messages_is_refused() -> None:
    template = "{% for m in messages %}{{ m.content }}{{ '<|eot|>' if m.role == 'assistant' }}{% endfor %}"
    tokenizer = ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|eot|>"})
    with pytest.raises(Refusal, match="message 1: foreign_text"):
        encode_chat(tokenizer, [user("assis"), assistant("tant")])


def test_a_prompt_that_depends_on_the_length_of_the_text_is_caught() -> None:
    """Skeletons have short placeholders: only the render of the real prompt shows this."""
    template = "{{ 'LONG' if messages[-1].content|length > 20 }}" + CHATML
    tokenizer = ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})
    assert encode_chat(tokenizer, [user("short"), assistant("b")]).report.num_turns == 1
    for turns in (1, 2, 8, 100):
        chat = [m for _ in range(turns) for m in (user("a question of more than twenty letters"), assistant("b"))]
        # The last turn is joined to the prompt that inference has, and that continues the prompts before it.
        (sequence,) = encode_turns(tokenizer, chat)
        assert tokenizer.decode(sequence.ids).startswith("LONG<|im_start|>")
        assert sequence.report.rules == (*[1] * (turns - 1), 2)


def test_stop_may_be_waived() -> None:
    tokenizer = small_tokenizer("no stop at all")
    sequence = encode_chat(
        tokenizer, [user("a"), assistant("bee")], options=EncodeOptions(boundaries="whole", require_stop=False)
    )
    assert "bee" in spans(tokenizer, sequence)[0]
    assert sequence.report.unstopped == (1,)


def test_a_transformers_tokenizer_is_taken_as_it_is() -> None:
    transformers = pytest.importorskip("transformers")
    family = FAMILIES["chatml"]
    hf = transformers.PreTrainedTokenizerFast(
        tokenizer_object=small_backend(), chat_template=family.template, eos_token="<|im_end|>"
    )
    chat = [user("a " * 40), assistant("b")]
    assert encode_chat(hf, chat) == encode_chat(small_tokenizer("chatml"), chat)
    hf("x " * 100, truncation=True, max_length=3)  # leaves truncation switched on in the backend
    assert encode_chat(hf, chat) == encode_chat(small_tokenizer("chatml"), chat)
    hf.chat_template = "NEW" + CHATML
    assert hf.decode(encode_chat(hf, chat).ids).startswith("NEW")


def test_a_bare_tokenizer_needs_a_template() -> None:
    with pytest.raises(TokensError, match="has no chat template"):
        encode_chat(small_backend(), [user("a")])


def test_a_folder_with_named_templates(tmp_path) -> None:
    small_backend().save(str(tmp_path / "tokenizer.json"))
    templates = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": "TOOLS" + CHATML}]
    config = {"chat_template": templates, "eos_token": {"content": "<|im_end|>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    chat = [user("a"), assistant("b")]
    tokenizer = ChatTokenizer.from_folder(tmp_path)
    assert tokenizer.decode(encode_chat(tokenizer, chat).ids).startswith("<|im_start|>user")
    assert tokenizer.decode(encode_chat(tokenizer, chat, TOOLS).ids).startswith("TOOLS<|im_start|>user")
    (tmp_path / "chat_template.jinja").write_text("X" + CHATML)
    assert ChatTokenizer.from_folder(tmp_path).renderer(None).text(chat).startswith("X")


PARTS = [*" \n\taAbok.é你😀<>|{}\"'\\", "<|im_end|>", "assistant", "</think>"]
TEXT = st.lists(st.sampled_from(PARTS), max_size=8).map("".join)


@st.composite
def chats(draw: st.DrawFn) -> list:
    chat: list = [system(draw(TEXT))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        chat.append(user(draw(TEXT)))
        for number in range(draw(st.integers(0, 2))):
            arguments = draw(st.dictionaries(st.sampled_from(["a", "b"]), st.one_of(TEXT, st.integers(), st.none())))
            chat.append(assistant(draw(TEXT), calls=[call(number, arguments)]))
            chat.append(tool(draw(TEXT), number))
        chat.append(assistant(draw(TEXT)))
    return chat


@settings(max_examples=60, deadline=None)
@given(chats(), st.sampled_from([n for n, f in FAMILIES.items() if f.calls and not f.per_turn]))
def test_what_is_trained_is_what_follows_the_prompt_of_each_turn(chat: list, name: str) -> None:
    """By definition, with nothing but plain renders: split at boundaries, the trained text is the text after what
    inference is given, up to the turn's stop."""
    tokenizer = small_tokenizer(name)
    renderer = tokenizer.renderer(None)
    sequence = encode_chat(tokenizer, chat, options=EncodeOptions(boundaries="split", allow_dropped=True))
    full = renderer.text(chat)
    if FAMILIES[name].stop_tokens:  # the header that would follow the last turn
        full += "<|user|>"
    assert tokenizer.decode(sequence.ids) == full
    for turn, message in enumerate(chat):
        if message["role"] != "assistant":
            assert not sequence.mask[sequence.message_index == turn].any()
            continue
        mine = sequence.mask & (sequence.message_index == turn)
        if not mine.any():  # nothing was said, and the stop would be the next header
            assert (message["content"], turn) == ("", len(chat) - 1)
            continue
        given_text = renderer.text(chat[:turn], prompt=True)
        assert tokenizer.decode(sequence.ids[: int(np.argmax(mine))]) == given_text
        trained = tokenizer.decode(sequence.ids[mine])
        assert full.startswith(given_text + trained)
        if not message.get("tool_calls"):
            stop = "" if trained == message["content"] else trained[len(message["content"]) :]
            assert trained.startswith(message["content"])
            assert stop in ("", *FAMILIES[name].stops)


def test_the_work_is_linear_in_the_number_of_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in messages that templates go through, skeletons included."""
    tokenizer = small_tokenizer("chatml with calls")
    rendered: list[int] = []
    render = Template._render
    monkeypatch.setattr(
        Template, "_render", lambda self, chat, *rest: rendered.append(len(chat)) or render(self, chat, *rest)
    )

    def work(turns: int) -> int:
        steps = ((assistant("hm", calls=[call(n % 90)]), tool("r" * 50, n % 90)) for n in range(turns))
        rendered.clear()
        sequence = encode_chat(tokenizer, [user("go"), *(message for step in steps for message in step)])
        assert (sequence.report.num_turns, sequence.report.probed) == (turns, 0)
        return sum(rendered)

    work(30)
    assert work(1000) < 11 * work(100)


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")
def test_a_thousand_turns_of_a_real_family() -> None:
    tokenizer = ChatTokenizer.from_folder(SHARED / "qwen2_5")
    chat = [m for n in range(500) for m in (user(f"question {n}"), assistant(f"answer {n}"))]
    sequence = encode_chat(tokenizer, chat)
    assert spans(tokenizer, sequence) == [f"answer {n}<|im_end|>" for n in range(500)]
