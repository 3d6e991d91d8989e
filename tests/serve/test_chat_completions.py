"""The chat endpoint as the real `openai` client sees it."""

import math

import openai
import pytest

from serve.served_models import served, tiny_engine

MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def place():
    with served(tiny_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def client(place):
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_an_answer_has_text_a_reason_and_counts_that_add_up(client, place):
    answer = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=7, seed=1)
    (choice,) = answer.choices
    assert choice.finish_reason in ("stop", "length")
    assert choice.message.role == "assistant"
    prompt = place.server.engine.prompt_ids([_message("the cat")])
    assert answer.usage.prompt_tokens == len(prompt)
    assert 1 <= answer.usage.completion_tokens <= 7
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.object == "chat.completion"
    assert answer.model == "tiny"


def test_the_same_seed_gives_the_same_answers_and_another_seed_others(client):
    def texts(seed):
        made = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20, seed=seed, n=3)
        return [choice.message.content for choice in made.choices]

    assert texts(5) == texts(5)
    assert texts(5) != texts(6)
    assert texts(-5) == texts(-5)
    assert len(set(texts(5))) > 1, "the choices of one seed differ"


def test_without_a_seed_answers_differ(client):
    made = [client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=20) for _ in range(2)]
    assert made[0].choices[0].message.content != made[1].choices[0].message.content


def test_temperature_zero_takes_the_most_likely(client):
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3
    )
    for item in made.choices[0].logprobs.content:
        assert item.logprob == pytest.approx(item.top_logprobs[0].logprob)
        assert item.token == item.top_logprobs[0].token
        assert len(item.top_logprobs) == 3


def test_logprobs_are_those_of_the_model_and_their_bytes_make_the_text(client, place):
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=30, seed=3, logprobs=True, extra_body={"return_token_ids": True}
    )
    (choice,) = made.choices
    tokens, prompt = choice.token_ids, made.prompt_token_ids
    assert len(tokens) == len(choice.logprobs.content) == made.usage.completion_tokens
    expected = _logprobs(place.server.engine, prompt, tokens)
    assert [item.logprob for item in choice.logprobs.content] == pytest.approx(expected, abs=1e-4)
    spelled = b"".join(bytes(item.bytes) for item in choice.logprobs.content)
    if choice.finish_reason == "stop":
        spelled = spelled.removesuffix(b"<|end|>")
    shown = place.server.engine.text(tokens)
    assert shown == choice.message.content
    assert _without_special(spelled).decode("utf-8", "replace") == shown


def test_n_choices_come_in_order(client):
    made = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=3, n=5, seed=0)
    assert [choice.index for choice in made.choices] == [0, 1, 2, 3, 4]
    assert made.usage.completion_tokens <= 15


def test_stop_ends_the_text_before_it(client):
    free = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=40, seed=2, temperature=0.7)
    text = free.choices[0].message.content
    assert len(text) > 6
    stop = text[3:5]
    held = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=40, seed=2, temperature=0.7, stop=[stop]
    )
    assert held.choices[0].message.content == text[: text.index(stop)]
    assert held.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stop", [None, ["a", "zz"]])
def test_a_stream_gives_the_same_as_an_answer_at_once(client, stop):
    options = {"model": "tiny", "messages": MESSAGES, "max_tokens": 30, "seed": 4, "n": 2, "stop": stop,
               "logprobs": True, "top_logprobs": 2}  # fmt: skip
    whole = client.chat.completions.create(**options)
    texts, reasons, logprobs, roles, usage = ["", ""], [None, None], [[], []], [], None
    with client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True}) as stream:
        for chunk in stream:
            assert chunk.object == "chat.completion.chunk"
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                roles += [choice.delta.role] if choice.delta.role else []
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                logprobs[choice.index] += choice.logprobs.content if choice.logprobs else []
    assert texts == [choice.message.content for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert roles == ["assistant", "assistant"]
    assert usage == whole.usage
    for mine, theirs in zip(logprobs, whole.choices, strict=True):
        assert [item.token for item in mine] == [item.token for item in theirs.logprobs.content]
        assert all(
            math.isclose(a.logprob, b.logprob, abs_tol=1e-4) for a, b in zip(mine, theirs.logprobs.content, strict=True)
        )


def test_a_stream_tells_the_same_token_ids_as_an_answer_at_once(client):
    options = {"model": "tiny", "max_tokens": 12, "seed": 9, "n": 2, "extra_body": {"return_token_ids": True}}
    whole = client.chat.completions.create(messages=MESSAGES, **options)
    ids, prompt = [[], []], None
    for chunk in client.chat.completions.create(messages=MESSAGES, stream=True, **options):
        prompt = getattr(chunk, "prompt_token_ids", None) or prompt
        for choice in chunk.choices:
            ids[choice.index] += getattr(choice, "token_ids", None) or []
    assert prompt == whole.prompt_token_ids
    assert ids == [choice.token_ids for choice in whole.choices]
    text = client.completions.create(prompt=["the", "cat"], **options)
    ids, prompts = [[] for _ in range(4)], {}
    for chunk in client.completions.create(prompt=["the", "cat"], stream=True, **options):
        for choice in chunk.choices:
            ids[choice.index] += choice.token_ids
            prompts.setdefault(choice.index, choice.prompt_token_ids) if hasattr(choice, "prompt_token_ids") else None
    assert ids == [choice.token_ids for choice in text.choices]
    assert [prompts[number] for number in range(4)] == [choice.prompt_token_ids for choice in text.choices]


def test_a_conversation_with_parts_system_and_tool_results_reaches_the_template(client, place):
    made = client.chat.completions.create(
        model="tiny",
        max_tokens=1,
        messages=[
            {"role": "system", "content": "sat"},
            {"role": "user", "content": [{"type": "text", "text": "the "}, {"type": "text", "text": "mat"}]},
            {"role": "assistant", "content": None, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": "log"}'}}]},
            {"role": "tool", "tool_call_id": "1", "content": "a dog"},
        ],
        tools=[{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    text = place.server.engine.text(made.prompt_token_ids, skip_special_tokens=False)
    assert text.startswith('<|tools|>[{"type": "function", "function": {"name": "look"')
    assert '<|system|>sat<|end|><|user|>the mat<|end|><|assistant|><call>look {"at": "log"}<|end|>' in text
    assert text.endswith("<|tool|>a dog<|end|><|assistant|>")


def test_tool_choice_none_leaves_the_tools_out(client, place):
    tools = [{"type": "function", "function": {"name": "look"}}]
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, tools=tools, tool_choice="none",
        extra_body={"return_token_ids": True},
    )  # fmt: skip
    assert "look" not in place.server.engine.text(made.prompt_token_ids, skip_special_tokens=False)


def _message(text):
    from pairwright.records.messages import Message

    return Message("user", text)


def _logprobs(engine, prompt, tokens):
    import torch

    with torch.no_grad():
        logits = engine.model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)].tolist()


def _without_special(spelled):
    from generate.tiny_models import SPECIAL

    for token in SPECIAL:
        spelled = spelled.replace(token.encode(), b"")
    return spelled
