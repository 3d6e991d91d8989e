"""Groups of turns of long conversations: found in excerpts, and the same as from renders of the whole."""

import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from test_template_faults import MARKS, answer, call, tokenizer_of, trained, user
from test_turn_grammar import CALLS, SPLIT, TAGS, thinker
from token_cases import assistant, tool
from token_families import FAMILIES, small_tokenizer

from pairwright.tokens import ChatTokenizer, Sequence, encode_turns
from pairwright.tokens.spans import turn_groups
from pairwright.tokens.spans.regions import Located
from pairwright.tokens.template.render import Template

Chat = list[dict[str, Any]]

THINKERS: dict[str, Callable[[], ChatTokenizer]] = {
    "an open thought that is never shown": lambda: thinker(SPLIT, "<think>\n"),
    "a closed thought": lambda: thinker("{{ m.content }}", "<think>\n\n</think>\n\n"),
}
WRITTEN = {name: lambda name=name: small_tokenizer(name) for name, family in FAMILIES.items() if family.per_turn}


def words(source: random.Random) -> str:
    return " ".join(source.choice(["alpha", "beta", "<b>", "ünï", "1 + 1"]) for _ in range(6))


def build_chat(users: int, steps: int, *, seed: int = 0) -> Chat:
    """Exchanges of calls and an answer; now and then a turn has no reasoning."""
    source = random.Random(seed)
    chat: Chat = [{"role": "system", "content": "Be brief."}]
    number = 0
    for _ in range(users):
        chat.append(user(words(source)))
        for _ in range(steps):
            number += 1
            thought = {"reasoning_content": words(source)} if source.random() < 0.8 else {}
            chat += [{**assistant(words(source), calls=[call({"k": words(source)}, f"call{number:05d}")]), **thought}]
            chat += [tool(words(source), number)]
        chat.append(answer(words(source), reasoning_content=words(source)))
    return chat


def compare(sequence: Sequence) -> tuple[list[int], list[bool], list[int], list[int], object]:
    report = msgspec.structs.replace(sequence.report, probed=0)
    arrays = (sequence.ids.tolist(), sequence.mask.tolist(), sequence.message_index.tolist(), sequence.paint.tolist())
    return (*arrays, report)


@pytest.mark.parametrize("shape", [(1, 12), (12, 0), (4, 3)])
@pytest.mark.parametrize("name", [*THINKERS, *WRITTEN])
def test_excerpts_give_the_sequences_of_whole_renders(
    name: str, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = build_chat(*shape)
    tokenizer = (THINKERS | WRITTEN)[name]()
    quick = encode_turns(tokenizer, chat, allow_dropped=True)
    monkeypatch.setattr(turn_groups, "_MANY", 10_000)
    whole = encode_turns(tokenizer, chat, allow_dropped=True)
    assert list(map(compare, quick)) == list(map(compare, whole))


def count_rendered(tokenizer: ChatTokenizer, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> int:
    """Messages of all renders that a conversation takes once its template is known."""
    encode_turns(tokenizer, chat[:40], allow_dropped=True)
    counts: list[int] = []
    for name in ("render", "text"):
        original = getattr(Template, name)

        def counting(self: Template, messages: Chat, *args: Any, original: Any = original, **options: Any) -> Any:
            counts.append(len(messages))
            return original(self, messages, *args, **options)

        monkeypatch.setattr(Template, name, counting)
    encode_turns(tokenizer, chat, allow_dropped=True)
    monkeypatch.undo()
    return sum(counts)


def test_what_is_rendered_grows_with_the_turns_and_not_with_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = thinker(SPLIT, "<think>\n")
    short = count_rendered(tokenizer, build_chat(1, 30), monkeypatch)
    long = count_rendered(tokenizer, build_chat(1, 90), monkeypatch)
    assert long < 4 * short  # 9 times as much where every turn renders its history


def test_a_history_that_is_rewritten_far_back_is_rendered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every message says how many there are: no group begins like the one before it.
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ loop.index }} of {{ messages | length }}\n{{ m.content }}"
        + CALLS
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS, TAGS)
    chat = build_chat(12, 0)
    sequences = encode_turns(tokenizer, chat, allow_dropped=True)
    for number, sequence in enumerate(sequences):
        prompt = tokenizer.decode(sequence.ids[: int(sequence.mask.argmax())])
        assert prompt == tokenizer.renderer(None).text(chat[: 2 * number + 2], prompt=True)


def test_a_prompt_that_is_not_what_the_excerpts_say_brings_the_whole_render_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer, chat = thinker(SPLIT, "<think>\n"), build_chat(1, 12)
    exact = encode_turns(tokenizer, chat, allow_dropped=True)
    original = turn_groups._join_excerpt

    def damage(*args: Any) -> Located | None:
        located = original(*args)
        if located is None or located.regions[-1].message < 5:
            return located
        text = located.rendered.text.replace("Be brief.", "Be blunt.")
        return located._replace(rendered=located.rendered._replace(text=text))

    monkeypatch.setattr(turn_groups, "_join_excerpt", damage)
    assert list(map(compare, encode_turns(tokenizer, chat, allow_dropped=True))) == list(map(compare, exact))


def test_only_the_last_turns_of_a_long_conversation_may_be_trained() -> None:
    tokenizer, chat = thinker(SPLIT, "<think>\n"), build_chat(1, 14)
    every = encode_turns(tokenizer, chat, allow_dropped=True)
    some = encode_turns(tokenizer, chat, allow_dropped=True, train_from=len(chat) - 20)
    assert [trained(tokenizer, sequence) for sequence in some] == [trained(tokenizer, one) for one in every[-10:]]


# Shows what stands in the history stripped, and the last turn as it is.
STRIPPED = (
    "{% for m in messages %}<|{{ m.role }}|>"
    "{% if loop.last %}{{ m.content }}{% else %}{{ m.content | trim }}{% endif %}"
    "{% if m.role == 'assistant' and loop.last %}<|eos|>{% else %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)

_MARKS = ("<|user|>", "<|assistant|>", "<|end|>", "<|eos|>")


def build_talk(turns: int) -> Chat:
    return [message for n in range(turns) for message in (user(f"question {n}"), answer(f"answer {n}"))]


def count_renders(tokenizer: ChatTokenizer, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> int:
    renders = []
    render = Template.render
    with monkeypatch.context() as patch:
        patch.setattr(
            Template, "render", lambda self, *args, **options: renders.append(1) or render(self, *args, **options)
        )
        encode_turns(tokenizer, chat)
    return len(renders)


def test_excerpts_of_one_shape_are_rendered_a_few_times_and_then_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(STRIPPED, "<|eos|>", _MARKS)
    first = count_renders(tokenizer, build_talk(40), monkeypatch)
    encode_turns(tokenizer, build_talk(40))  # compares what it learnt from one excerpt only with another
    # What was learnt serves other conversations: each of them is rendered once.
    assert first > 3
    assert [count_renders(tokenizer, build_talk(turns), monkeypatch) for turns in (80, 40)] == [1, 1]


@pytest.mark.parametrize("text", ["  padded", "padded\n", "\n\npadded ", "", "é <|end|> padded"])
def test_a_text_unlike_those_before_it_is_rendered(text: str) -> None:
    chat = build_talk(40)
    for turn in (5, 31, 32, 55):  # the last and the first in the order of their excerpts, and two in a row
        chat[turn] = {**chat[turn], "content": text + str(turn) if text else ""}
    tokenizer = tokenizer_of(STRIPPED, "<|eos|>", _MARKS)
    sequences = encode_turns(tokenizer, chat, allow_dropped=True)
    whole = encode_turns(tokenizer_of(STRIPPED, "<|eos|>", _MARKS), chat, allow_dropped=True, verify="all")
    assert list(map(compare, sequences)) == list(map(compare, whole))
    assert len(sequences) == 40


def test_a_template_that_numbers_the_calls_is_rendered_whole() -> None:
    # As Command R7B does: an excerpt of turns without calls joins, and the calls after them begin at the wrong number.
    template = (
        "{% set ns = namespace(calls=0) %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
        "{% for c in m.tool_calls or [] %}[{{ ns.calls }} {{ c.function.arguments | tojson }}]"
        "{% set ns.calls = ns.calls + 1 %}{% endfor %}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n\n</think>\n\n{% endif %}"
    )
    tokenizer = tokenizer_of(template, "<|im_end|>", MARKS, TAGS)
    for seed in (31, 49):
        source, chat = random.Random(seed), []
        for part in range(6):
            chat += build_chat(1, source.randrange(5), seed=seed * 10 + part)[1:]
            chat += build_talk(source.randrange(1, 4)) if source.random() < 0.5 else []
        quick = encode_turns(tokenizer, chat, allow_dropped=True)
        every = encode_turns(tokenizer, chat, allow_dropped=True, verify="all")
        assert list(map(compare, quick)) == list(map(compare, every))
