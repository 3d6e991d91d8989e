"""Raw text: encoded as TRL encodes its standard rows, never put into a chat template, trained from the prompt's end."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pairwright import EID, Experience, Message, Side
from pairwright.records.messages import ErrorSite
from pairwright.tokens import (
    ChatTokenizer,
    EncodeOptions,
    Refusal,
    encode_chat,
    encode_experience,
    encode_pair,
    encode_turns,
)
from pairwright.tokens.hints import Hint
from pairwright.tokens.sequence import Paint
from pairwright.tokens.teacher_sequences import encode_distillations
from pairwright.tokens.tokenizer import chat_tokenizer

DATA = Path(__file__).parents[2].parent / "shared" / "data"
TOKENIZERS = DATA / "tokenizers"
ROWS = DATA / "traces" / "trl_preference" / "standard_preference.jsonl"
WORDS = {word: number for number, word in enumerate(["<unk>", "sea", "is", "wet", "dry", "the", "."])}


def made_tokenizer(*, bos: bool = True, eos: str | None = "</s>", template: str | None = None) -> ChatTokenizer:
    backend = Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>", "</s>", "<user>"])  # 7, 8, 9
    if bos:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 7)])
    special = {"bos_token": "<s>"} | ({} if eos is None else {"eos_token": eos})
    return ChatTokenizer(backend, template or {}, special_tokens=special)


def text(value, **more):
    return Message("text", value, **more)


def answer(value, **more):
    return Message("text", value, generated=True, **more)


def test_a_pair_of_text_is_prompt_completion_and_eos_with_one_bos():
    pair = encode_pair(made_tokenizer(), [text("the sea is")], [answer("wet .")], [answer("dry")])
    assert pair.prompt_length == 4
    assert pair.chosen.ids.tolist() == [7, 5, 1, 2, 3, 6, 8]
    assert pair.chosen.mask.tolist() == [False] * 4 + [True] * 3
    assert pair.chosen.message_index.tolist() == [-1, 0, 0, 0, 1, 1, 1]
    assert [Paint(paint).name for paint in pair.chosen.paint] == [
        "TEMPLATE", "TEXT", "TEXT", "TEXT", "GENERATED", "GENERATED", "STOP",
    ]  # fmt: skip
    assert pair.rejected.ids.tolist() == [7, 5, 1, 2, 4, 8]
    assert (pair.chosen.report.source, pair.chosen.report.stops) == ("text", ("</s>",))
    assert not pair.chosen.report.unstopped


def test_text_that_begins_with_bos_or_ends_with_eos_gets_no_second_one():
    pair = encode_pair(made_tokenizer(), [text("<s> <user> sea")], [answer("wet </s>")], [answer("dry")])
    assert pair.chosen.ids.tolist() == [7, 9, 1, 3, 8]
    assert pair.rejected.ids.tolist() == [7, 9, 1, 4, 8]


def test_text_that_was_cut_has_no_eos():
    pair = encode_pair(made_tokenizer(), [text("sea is")], [answer("wet")], [answer("dry")], cut=(True, False))
    assert (pair.chosen.ids.tolist(), pair.rejected.ids.tolist()) == ([7, 1, 2, 3], [7, 1, 2, 4, 8])
    assert pair.chosen.report.unstopped == (1,)
    for experience in (
        Experience(kind="single_turn", prompt=[text("sea is")], completion=[text("wet")], truncate_status="response_truncated"),
        Experience(kind="single_turn", prompt_text="sea is", response_text="wet", truncate_status="response_truncated"),
    ):  # fmt: skip
        (sequence,) = encode_experience(made_tokenizer(), experience)
        assert sequence.ids.tolist() == [7, 1, 2, 3]


def test_experiences_of_plain_text_are_encoded_as_text_with_or_without_messages():
    expected = [7, 5, 1, 2, 3, 8]
    template = "{% for m in messages %}<user>{{ m.content }}</s>{% endfor %}"
    for experience in (
        Experience(kind="single_turn", prompt=[text("the sea is")], completion=[text("wet")]),
        Experience(kind="single_turn", prompt_text="the sea is", response_text="wet"),
    ):
        for tokenizer in (made_tokenizer(), made_tokenizer(template=template)):
            (sequence,) = encode_experience(tokenizer, experience)
            assert (sequence.ids.tolist(), sequence.mask.tolist()) == (expected, [False] * 4 + [True] * 2)


def test_recorded_ids_of_plain_text_come_first():
    def recorded(ids, response, run):
        return Experience(
            eid=EID("b", "t", run, 0, "s"), kind="single_turn", prompt_text="the sea is", response_text=response,
            tokens=ids, prompt_length=3, logprobs=np.zeros(len(ids) - 3, np.float32),
        )  # fmt: skip

    left, right = recorded([5, 1, 2, 0, 3], "wet", 0), recorded([5, 1, 2, 4], "dry", 1)
    (sequence,) = encode_experience(made_tokenizer(), left)
    assert sequence.ids.tolist() == [5, 1, 2, 0, 3]
    assert sequence.message_index.tolist() == [-1, -1, -1, 1, 1]
    sides = [text("the sea is")], [answer("wet")], [answer("dry")]
    pair = encode_pair(made_tokenizer(), *sides, sources=(left, right))
    assert (pair.chosen.report.source, pair.prompt_length) == ("recorded", 3)
    assert (pair.chosen.ids.tolist(), pair.rejected.ids.tolist()) == ([5, 1, 2, 0, 3], [5, 1, 2, 4])
    with pytest.raises(Refusal, match="recorded ids of other messages"):
        encode_pair(made_tokenizer(), [text("another sea")], *sides[1:], sources=(left, right))
    preference = Experience(
        kind="preference", prompt_text="the sea is", tokens=[5, 1, 2], chosen=Side(text="wet", tokens=[0, 3]),
        rejected=Side(text="dry", tokens=[4]),
    )  # fmt: skip
    pair = encode_pair(made_tokenizer(), *sides, sources=(preference, preference))
    assert (pair.chosen.report.source, pair.chosen.ids.tolist()) == ("recorded", [5, 1, 2, 0, 3])


def test_a_tokenizer_without_a_template_refuses_chats_and_names_the_way_out():
    chat = [Message("user", "sea"), Message("assistant", "wet")]
    for encode in (encode_chat, encode_turns):
        with pytest.raises(Refusal, match=r"no_template: .*--chat-template FILE"):
            encode(made_tokenizer(), chat)
    assert not made_tokenizer().has_template


def test_text_beside_messages_of_a_chat_is_refused():
    tokenizer = made_tokenizer(template="{% for m in messages %}<user>{{ m.content }}</s>{% endfor %}")
    mixed = [Message("user", "sea"), answer("wet")]
    for call in (
        lambda: encode_chat(tokenizer, mixed),
        lambda: encode_turns(tokenizer, mixed),
        lambda: encode_pair(tokenizer, mixed[:1], mixed[1:], [Message("assistant", "dry")]),
        lambda: encode_distillations(
            tokenizer, [text("sea"), answer("wet")], [Hint(ErrorSite(0, "k"), 1, "h", "template")]
        ),
    ):
        with pytest.raises(Refusal, match="text_in_chat"):
            call()


def test_what_cannot_be_trained_as_text_is_refused():
    with pytest.raises(Refusal, match="no_stop"):
        encode_pair(made_tokenizer(eos=None), [text("sea")], [answer("wet")], [answer("dry")])
    pair = encode_pair(
        made_tokenizer(eos=None),
        [text("sea")],
        [answer("wet")],
        [answer("dry")],
        options=EncodeOptions(require_stop=False),
    )
    assert pair.chosen.ids.tolist() == [7, 1, 3]
    with pytest.raises(Refusal, match="nothing is before"):
        encode_pair(made_tokenizer(bos=False), [text("")], [answer("wet")], [answer("dry")])
    with pytest.raises(Refusal, match="not_generated"):
        encode_pair(made_tokenizer(), [text("sea")], [text("wet", generated=False)], [answer("dry")])
    with pytest.raises(Refusal, match="control_tokens"):
        encode_pair(
            made_tokenizer(),
            [text("<user> sea")],
            [answer("wet")],
            [answer("dry")],
            options=EncodeOptions(control_tokens="refuse"),
        )


def test_control_tokens_of_a_prompt_are_escaped_where_that_is_asked_for():
    sides = [text("<user> sea")], [answer("wet")], [answer("dry")]
    assert encode_pair(made_tokenizer(), *sides).chosen.ids.tolist() == [7, 9, 1, 3, 8]
    escaped = encode_pair(made_tokenizer(), *sides, options=EncodeOptions(control_tokens="escape"))
    assert 9 not in escaped.chosen.ids.tolist()


def test_a_cut_prompt_keeps_both_completions_whole():
    pair = encode_pair(
        made_tokenizer(), [text("the sea is")], [answer("wet .")], [answer("dry")], options=EncodeOptions(max_length=5)
    )
    assert (pair.prompt_length, pair.chosen.ids.tolist()) == (2, [1, 2, 3, 6, 8])


def test_several_texts_are_one_sequence_and_what_is_not_generated_is_context():
    messages = [text("the"), text(" sea"), answer("is"), text("wet", generated=False), answer("dry")]
    sequence = encode_chat(made_tokenizer(), messages)
    assert sequence.ids.tolist() == [7, 5, 1, 2, 3, 4, 8]
    assert sequence.message_index.tolist() == [-1, 0, 1, 2, 3, 4, 4]
    assert sequence.mask.tolist() == [False, False, False, True, False, True, True]


def test_a_transformers_tokenizer_without_a_template_encodes_text():
    transformers = pytest.importorskip("transformers")
    hf = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made_tokenizer().backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )
    pair = encode_pair(hf, [text("sea")], [answer("wet")], [answer("dry")])
    assert pair.chosen.ids.tolist() == [7, 1, 3, 8]
    assert not chat_tokenizer(hf).has_template


def tokenized_by_trl(hf, rows):
    """What TRL's DPOTrainer makes of rows, with its own code."""
    trl = pytest.importorskip("trl", reason="TRL is not installed")
    datasets = pytest.importorskip("datasets")
    settings = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    trainer = SimpleNamespace(_tokenizer=hf)
    dataset = datasets.Dataset.from_list(rows).to_iterable_dataset()  # its cache would hash the whole tokenizer
    return trl.DPOTrainer._prepare_dataset(trainer, dataset, hf, settings, "train")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", sorted(path.name for path in TOKENIZERS.iterdir()) if TOKENIZERS.is_dir() else ["none"]
)
def test_ids_equal_those_of_trl_on_its_standard_rows(name):
    if not ROWS.is_file() or not TOKENIZERS.is_dir():
        pytest.skip("the sample traces and tokenizers are not on this machine")
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / name)
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    rows.append({"prompt": "Ends here.", "chosen": f"{hf.eos_token}", "rejected": " Not."})
    ready = ChatTokenizer.from_folder(TOKENIZERS / name)
    for row, theirs in zip(rows, tokenized_by_trl(hf, rows), strict=True):
        pair = encode_pair(ready, [text(row["prompt"])], [answer(row["chosen"])], [answer(row["rejected"])])
        cut = pair.prompt_length
        assert pair.chosen.ids[:cut].tolist() == theirs["prompt_ids"]
        assert pair.chosen.ids[cut:].tolist() == theirs["chosen_ids"]
        assert pair.rejected.ids[cut:].tolist() == theirs["rejected_ids"]
        assert pair.chosen.mask.tolist() == [False] * cut + [True] * len(theirs["chosen_ids"])


@pytest.mark.filterwarnings("ignore")
def test_where_trl_leaves_out_the_end_of_a_prompt_it_stays_what_inference_is_given():
    if not TOKENIZERS.is_dir():
        pytest.skip("the sample tokenizers are not on this machine")
    transformers = pytest.importorskip("transformers")
    hf = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / "qwen3")
    (theirs,) = tokenized_by_trl(hf, [{"prompt": "Ends with space ", "chosen": "word", "rejected": "other"}])
    pair = encode_pair(TOKENIZERS / "qwen3", [text("Ends with space ")], [answer("word")], [answer("other")])
    prompt = hf("Ends with space ")["input_ids"]
    assert pair.chosen.ids[: pair.prompt_length].tolist() == prompt
    assert theirs["prompt_ids"] == prompt[:-1]
