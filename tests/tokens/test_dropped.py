"""Content that a template does not render: refused if it is trained, counted if it is in the prompt; images."""

import json
from pathlib import Path

import numpy as np
import pytest
from token_cases import TOOLS, assistant, call, system, tool, user
from token_families import CHATML, SHARED, real_tokenizer, small_backend, small_tokenizer

from pairwright import EID, Experience, Message, Pair, Side, Table, ToolCall
from pairwright.config.sections import TokensConfig
from pairwright.pairs.pair_table import pair_id, pairs_to_batch, write_pairs
from pairwright.records.messages import ErrorSite
from pairwright.tokens import EncodeOptions
from pairwright.tokens.encode import encode_chat, encode_turns
from pairwright.tokens.encode_pairs import encode_pair
from pairwright.tokens.hints import find_hints
from pairwright.tokens.recorded import RecordedTurn, encode_experience, encode_recorded
from pairwright.tokens.refusals import Refusal
from pairwright.tokens.stage.cache import list_refusals
from pairwright.tokens.stage.preview import preview
from pairwright.tokens.stage.stage import encode_source
from pairwright.tokens.teacher_sequences import encode_distillations
from pairwright.tokens.tokenizer import ChatTokenizer

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the real tokenizers are not at {SHARED}")

NO_CALLS = small_tokenizer("chatml")
ASKED = Message("user", "hi")
CALLED = Message("assistant", "", tool_calls=(ToolCall("look", '{"word": "zebra"}', "call00000"),))
RESULT = Message("tool", "no such word", tool_call_id="call00000", name="look")
ANSWER = Message("assistant", "done")
DONE = [1, *NO_CALLS.encode("done<|im_end|>")[0].tolist()]  # a prompt of one id, then what was sampled
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAABBBB"}}


def made(template: str) -> ChatTokenizer:
    return ChatTokenizer(small_backend(), template, special_tokens={"eos_token": "<|im_end|>"})


def trained(tokenizer, sequence) -> str:
    return tokenizer.decode(sequence.ids[sequence.mask])


def folder_of(path: Path, template: str = CHATML) -> Path:
    path.mkdir()
    small_backend().save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<|im_end|>"}))
    return path


@pytest.mark.parametrize("encode", [encode_chat, encode_turns])
def test_a_call_that_is_not_rendered_is_refused_with_message_field_and_way_out(encode) -> None:
    chat = [ASKED, CALLED, RESULT, ANSWER]
    with pytest.raises(Refusal) as caught:
        encode(NO_CALLS, chat)
    assert (caught.value.reason, caught.value.message) == ("dropped", 1)
    assert "tool_calls" in str(caught.value)
    assert "--allow-dropped" in str(caught.value)
    found = encode(NO_CALLS, chat, None, EncodeOptions(allow_dropped=True))
    sequence = found[0] if isinstance(found, list) else found
    assert trained(NO_CALLS, sequence) == "<|im_end|>done<|im_end|>"
    assert sequence.report.dropped == ((1, "tool_calls"),)


def test_every_dropped_turn_is_named() -> None:
    chat = [user("hi"), *(m for n in range(8) for m in (assistant("", reasoning="why", calls=[call(n)]), tool("r", n)))]
    with pytest.raises(Refusal, match=r"reasoning and tool_calls of this turn.*the same in message 3, 5, 7"):
        encode_chat(NO_CALLS, chat)


def test_a_turn_before_the_trained_ones_is_prompt() -> None:
    report = encode_chat(NO_CALLS, [ASKED, CALLED, RESULT, ANSWER], train_from=3).report
    assert (report.dropped, report.prompt_dropped) == ((), ((1, "tool_calls"),))


def test_both_sides_of_a_pair_are_looked_at() -> None:
    for sides in (([CALLED], [ANSWER]), ([ANSWER], [CALLED])):
        with pytest.raises(
            Refusal, match=r"message 1: dropped: (chosen|rejected): the template does not render"
        ) as caught:
            encode_pair(NO_CALLS, [ASKED], *sides)
        assert ("chosen" in str(caught.value)) == (sides[0] == [CALLED])
        pair = encode_pair(NO_CALLS, [ASKED], *sides, options=EncodeOptions(allow_dropped=True))
        assert {pair.chosen.report.dropped, pair.rejected.report.dropped} == {(), ((1, "tool_calls"),)}


def test_a_hinted_turn_that_is_not_whole_is_refused_and_so_is_a_hint_that_nobody_reads() -> None:
    again = Message("assistant", "", tool_calls=(ToolCall("look", '{"word": "ant"}', "call00001"),))
    site = ErrorSite(index=2, kind="not_found", text="no such word", tool="look")
    for last, tokenizer in (
        (again, NO_CALLS),
        (ANSWER, made(CHATML.replace("messages %}", "messages if m.role != 'tool' %}", 1))),
    ):
        chat = [ASKED, CALLED, RESULT, last]
        hints, _ = find_hints(chat, [site])
        with pytest.raises(Refusal, match="dropped"):
            encode_distillations(tokenizer, chat, hints)
        assert encode_distillations(tokenizer, chat, hints, options=EncodeOptions(allow_dropped=True))
    (item,) = encode_distillations(NO_CALLS, [ASKED, CALLED, RESULT, ANSWER], hints)  # the call is only context
    assert (item.student.report.dropped, item.student.report.prompt_dropped) == ((), ((1, "tool_calls"),))


ONLY_MAPPINGS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<f={{ c.function.name }}>{% if c.function.arguments is mapping %}{{ c.function.arguments | tojson }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_arguments_that_a_template_drops_are_noticed() -> None:
    tokenizer = made(ONLY_MAPPINGS)
    text, value = '{"city": "Paris"}', {"city": "Paris"}
    with pytest.raises(Refusal, match="dropped: the template does not render tool_calls"):
        encode_chat(tokenizer, [user("q"), assistant("", calls=[call(0, "{city: Paris}")])])
    # JSON text is given to it as the object that it is.
    for arguments in (text, value):
        assert encode_chat(tokenizer, [user("q"), assistant("", calls=[call(0, arguments)])]).report.dropped == ()
    for nothing in ("{}", "", {}):
        assert encode_chat(tokenizer, [user("q"), assistant("", calls=[call(0, nothing)])]).report.dropped == ()


@pytest.mark.parametrize("name", ["chatml with calls", "arguments as tags", "special tokens close calls"])
def test_arguments_in_any_spelling_are_not_dropped(name: str) -> None:
    value = {"text": ' a "quoted"\n\tline é ', "list": [1, 2.5, {"deep": "x\\y"}], "none": None, "yes": True, "": "k"}
    chat = [user("q"), assistant("", calls=[call(0, value), call(1, {"n": -7})]), tool("r"), assistant("x")]
    assert encode_chat(small_tokenizer(name), chat).report.dropped == ()


def test_reasoning_in_the_content_is_there_if_the_template_writes_its_tags() -> None:
    keeps = made(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if '</think>' in m.content %}<think>\n"
        "{{ m.content.split('</think>')[0].split('<think>')[-1].strip('\n') }}\n</think>\n\n{% endif %}"
        "{{ m.content.split('</think>')[-1].lstrip('\n') }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    chat = [user("q"), assistant("<think>\nhm\n</think>\n\nhello")]
    assert trained(keeps, encode_chat(keeps, chat)) == "<think>\nhm\n</think>\n\nhello<|im_end|>"
    strips = small_tokenizer("drops old reasoning")
    # Where the template cuts it out, it is written as the template writes a thought.
    assert trained(strips, encode_chat(strips, chat)) == "<think>\nhm\n</think>\n\nhello<|im_end|>"


def test_reasoning_that_history_loses_by_design_is_neither_refused_nor_counted() -> None:
    tokenizer = small_tokenizer("drops old reasoning")
    chat = [user("hi"), assistant("one", reasoning="why"), user("go"), assistant("two", reasoning="how")]
    reports = [sequence.report for sequence in encode_turns(tokenizer, chat)]
    assert [(report.dropped, report.prompt_dropped) for report in reports] == [((), ()), ((), ())]
    with_tags = [user("hi"), assistant("<think>\nwhy\n</think>\n\none"), user("go"), assistant("two")]
    assert encode_chat(tokenizer, with_tags, train_from=2).report.prompt_dropped == ()


def test_tools_and_messages_of_the_prompt_that_are_not_rendered_are_reported() -> None:
    chat = [system("You have get_weather."), user("get_weather?"), assistant("ok")]
    assert encode_chat(NO_CALLS, chat, TOOLS).report.prompt_dropped == ((-1, "tools"),)
    assert encode_chat(small_tokenizer("chatml with calls"), chat, TOOLS).report.prompt_dropped == ()
    no_system = made(CHATML.replace("messages %}", "messages if m.role != 'system' %}", 1))
    pair = encode_pair(no_system, chat[:2], [assistant("a")], [assistant("b")])
    assert pair.chosen.report.prompt_dropped == pair.rejected.report.prompt_dropped == ((0, "content"),)
    recorded = {2: RecordedTurn((1, 2))}
    assert encode_recorded(no_system, chat, recorded).report.prompt_dropped == ((0, "content"),)


def experience(number: int, completion: list[Message], **fields) -> Experience:
    given = {"prompt": [ASKED], "completion": completion, "reward": float(number), "kind": "multi_turn"}
    return Experience(**({"eid": EID("b", "t", number, 0, f"s{number}")} | given | fields))


def test_the_stage_writes_refusals_and_counts_what_is_missing(tmp_path: Path) -> None:
    tokenizer = folder_of(tmp_path / "tokenizer", CHATML.replace("messages %}", "messages if m.role != 'tool' %}", 1))
    calls = [CALLED, RESULT, ANSWER]
    rows = [
        experience(0, [ANSWER]),
        experience(1, calls),
        experience(2, [ANSWER], prompt=[ASKED, RESULT]),
        experience(3, [ANSWER], prompt=[Message("user", [{"type": "text", "text": "x"}, IMAGE])]),
        experience(
            4,
            [ANSWER],
            kind="single_turn",
            tokens=DONE,
            prompt_length=1,
            multi_modal_inputs={"pixels": np.ones(3)},
        ),
    ]
    with Table(tmp_path / "experience") as table:
        table.append(rows)
    manifest = encode_source(table.path, tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)), num_workers=1)
    assert manifest["refused"] == {"dropped": 1, "multi_modal_inputs": 1, "multimodal": 1}
    assert (manifest["encoded"], manifest["exact"], manifest["with_dropped_prompt_content"]) == (2, 2, 1)
    refusals = {name: (reason, detail) for name, reason, detail in list_refusals(tmp_path / "tokens")}
    assert refusals[rows[1].eid.uid][0] == "dropped"
    assert "message 1: dropped: the template does not render tool_calls" in refusals[rows[1].eid.uid][1]
    assert "multi_modal_inputs: it has pixels" in refusals[rows[4].eid.uid][1]
    allowed = TokensConfig(tokenizer=str(tokenizer), allow_dropped=True, allow_images=True)
    manifest = encode_source(table.path, tmp_path / "tokens", allowed, num_workers=1)
    assert manifest["refused"] == {"template_error": 1}  # this template takes no list of parts
    counts = (
        manifest["encoded"],
        manifest["exact"],
        manifest["with_dropped_content"],
        manifest["with_images_left_out"],
    )
    assert counts == (4, 3, 1, 1)


def test_pairs_of_the_stage_are_refused_by_side(tmp_path: Path) -> None:
    tokenizer = folder_of(tmp_path / "tokenizer")
    sides = [([ANSWER], [CALLED]), ([ANSWER], [Message("assistant", "no")])]
    pairs = [
        Pair(
            id=pair_id([ASKED], (), chosen, rejected), prompt=[ASKED], chosen=chosen, rejected=rejected,
            chosen_reward=1.0, rejected_reward=0.0, chosen_eid=EID(task=number, suffix="a"),
            rejected_eid=EID(task=number, run=1, suffix="b"), gap=1.0, strategy="all",
        )
        for number, (chosen, rejected) in enumerate(sides)
    ]  # fmt: skip
    write_pairs(tmp_path / "pairs", [pairs_to_batch(pairs)])
    manifest = encode_source(
        tmp_path / "pairs", tmp_path / "tokens", TokensConfig(tokenizer=str(tokenizer)), num_workers=1
    )
    assert (manifest["refused"], manifest["sequences"]) == ({"dropped": 1}, 2)
    ((name, _, detail),) = list_refusals(tmp_path / "tokens")
    assert (name, "rejected: the template does not render tool_calls" in detail) == (pairs[0].id, True)
    told: list[str] = []
    painted = preview(
        tmp_path / "pairs", ChatTokenizer.from_folder(tokenizer), refused=lambda title, why: told.append(title)
    )
    assert (len(painted), told) == (2, [pairs[0].id])


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
def test_an_image_anywhere_is_refused(role: str) -> None:
    parts = [{"type": "text", "text": "see"}, IMAGE]
    chat = [Message("user", "hi"), Message(role, parts), Message("assistant", "ok")]
    tokenizer = made(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}{% else %}"
        "{% for p in m.content %}{{ p.text if p.type == 'text' else '[INST]' }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    for messages in (chat, [{"role": message.role, "content": message.content} for message in chat]):
        with pytest.raises(Refusal, match=r"message 1: multimodal: a content part of type 'image_url'.*--allow-images"):
            encode_chat(tokenizer, messages)
        assert (
            encode_chat(tokenizer, messages, options=EncodeOptions(boundaries="whole", allow_images=True)).report.images
            == 1
        )
    nested = [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]
    with pytest.raises(Refusal, match="multimodal"):
        encode_chat(tokenizer, [Message("user", nested), Message("assistant", "ok")])


def test_recorded_inputs_beside_the_tokens_are_refused_in_every_channel() -> None:
    inputs = {"tokens": DONE, "prompt_length": 1, "multi_modal_inputs": {"pixels": np.ones(3)}}
    run = experience(0, [ANSWER], kind="single_turn", **inputs)
    with pytest.raises(Refusal, match="multi_modal_inputs"):
        encode_experience(NO_CALLS, run)
    assert encode_experience(NO_CALLS, run, options=EncodeOptions(allow_images=True))[0].report.images == 1
    side = Side(messages=[ANSWER], tokens=DONE[1:])
    both = Experience(
        kind="preference", prompt=[ASKED], chosen=side, rejected=side, **(inputs | {"prompt_length": len(DONE)})
    )
    with pytest.raises(Refusal, match="multi_modal_inputs"):
        encode_pair(NO_CALLS, [ASKED], [ANSWER], [ANSWER], sources=(both, both))


@needs_shared
def test_a_python_list_is_no_prompt() -> None:
    """Llama 3.1's template prints non-text content as Python objects, including base64."""
    llama = real_tokenizer("llama3_1")
    for allow_images in (False, True):
        with pytest.raises(Refusal, match="multimodal" if not allow_images else "as a Python list"):
            encode_chat(
                llama,
                [Message("user", [IMAGE]), Message("assistant", "ok")],
                options=EncodeOptions(boundaries="whole", allow_images=allow_images),
            )
    with pytest.raises(Refusal, match="as a Python list"):
        encode_chat(llama, [Message("user", [{"type": "reference", "name": "x"}]), Message("assistant", "ok")])
    sequence = encode_chat(llama, [Message("user", [{"type": "text", "text": "zqx"}]), Message("assistant", "ok")])
    assert "zqx<|eot_id|>" in llama.decode(sequence.ids)


@needs_shared
def test_every_call_turn_of_a_real_file_is_refused_without_calls_in_the_template(tmp_path: Path) -> None:
    from pairwright.store.importing import import_files

    trace = SHARED.parent / "traces" / "nemo_gym" / "workplace_assistant__example_rollouts.jsonl"
    table = Table(tmp_path / "experience")
    import_files([str(trace)], table)
    options = {"num_workers": 1}
    found = encode_source(table.path, tmp_path / "none", TokensConfig(tokenizer=str(SHARED / "smollm2")), **options)
    assert (found["items"], found["refused"], found["sequences"]) == (5, {"dropped": 5}, 0)
    whole = encode_source(table.path, tmp_path / "all", TokensConfig(tokenizer=str(SHARED / "qwen2_5")), **options)
    assert (whole["exact"], whole["with_dropped_prompt_content"]) == (5, 0)


def test_arguments_that_a_template_indents_are_not_dropped() -> None:
    call = "m.tool_calls[0].function"
    text = f"({call}.name + {call}.arguments | tojson(indent=2) | indent(4) if m.tool_calls else m.content)"
    tokenizer = made(CHATML.replace("m.content", text))
    (sequence,) = encode_turns(tokenizer, [ASKED, CALLED])
    assert sequence.report.dropped == ()
    assert trained(tokenizer, sequence) == 'look{\n      "word": "zebra"\n    }<|im_end|>'


FIRST_CALL = (  # as gpt-oss has it: the first call alone, its name again before the result
    "{% for m in messages %}<|im_start|>{% if m.role == 'tool' %}{{ ns.name }}>{{ m.content }}"
    "{% elif m.tool_calls %}{% set ns.name = m.tool_calls[0].function.name %}"
    "{{ m.role }} to={{ ns.name }} {{ m.tool_calls[0].function.arguments | tojson }}"
    "{% else %}{{ m.role }} {{ m.content }}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)


@pytest.mark.parametrize("arguments", ['{"word": "zebra"}', "{}"])
@pytest.mark.parametrize("encode", [encode_chat, encode_turns])
def test_of_two_equal_calls_the_one_that_is_not_rendered_is_dropped(encode, arguments: str) -> None:
    tokenizer = made("{% set ns = namespace(name='') %}" + FIRST_CALL)
    calls = tuple(ToolCall("look", arguments, f"call0000{number}") for number in range(2))
    results = [Message("tool", "no such word", tool_call_id=call.id, name="look") for call in calls]
    one = [ASKED, Message("assistant", "", tool_calls=calls[:1]), results[0], ANSWER]
    encode(tokenizer, one)  # nothing is missing
    two = [ASKED, Message("assistant", "", tool_calls=calls), *results, ANSWER]
    with pytest.raises(Refusal, match=r"message 1: dropped: .*tool_calls"):
        encode(tokenizer, two)
    sequences = encode_turns(tokenizer, two, options=EncodeOptions(allow_dropped=True))
    assert [field for sequence in sequences for field in sequence.report.dropped] == [(1, "tool_calls")]
