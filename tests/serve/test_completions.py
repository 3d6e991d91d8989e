"""The older endpoint: plain text and token ids, several prompts at once."""

import openai
import pytest

from serve.served_models import served, tiny_engine


@pytest.fixture(scope="module")
def place():
    with served(tiny_engine()) as running:
        yield running


@pytest.fixture(scope="module")
def client(place):
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


def test_a_text_is_continued_by_sixteen_tokens_by_default(client):
    made = client.completions.create(model="tiny", prompt="the cat sat", seed=1)
    assert made.object == "text_completion"
    assert made.usage.completion_tokens <= 16
    assert made.choices[0].text


def test_prompts_are_numbered_through_and_token_ids_mean_the_same_as_their_text(client, place):
    ids = place.server.engine.text_ids("the dog").tolist()
    options = {"model": "tiny", "max_tokens": 8, "seed": 7, "n": 2}
    both = client.completions.create(prompt=["the dog", "the log"], **options)
    assert [choice.index for choice in both.choices] == [0, 1, 2, 3]
    by_ids = client.completions.create(prompt=ids, **options)
    assert [choice.text for choice in by_ids.choices] == [choice.text for choice in both.choices[:2]]
    lists = client.completions.create(prompt=[ids, ids], **options)
    assert [choice.text for choice in lists.choices] == [choice.text for choice in by_ids.choices] * 2


def test_logprobs_are_aligned_with_their_tokens(client):
    made = client.completions.create(model="tiny", prompt="the", max_tokens=6, seed=1, logprobs=2)
    found = made.choices[0].logprobs
    assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs) == len(found.text_offset)
    assert found.text_offset[0] == 0
    assert all(len(top) <= 2 for top in found.top_logprobs)
    assert client.completions.create(model="tiny", prompt="the", seed=1).choices[0].logprobs is None


def test_a_stream_of_two_prompts_gives_the_same_as_an_answer_at_once(client):
    options = {"model": "tiny", "prompt": ["the cat", "on the"], "max_tokens": 9, "seed": 2, "n": 2, "logprobs": 1}
    whole = client.completions.create(**options)
    texts, reasons, tokens = [""] * 4, [None] * 4, [[] for _ in range(4)]
    for chunk in client.completions.create(**options, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
    assert texts == [choice.text for choice in whole.choices]
    assert reasons == [choice.finish_reason for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]


@pytest.mark.parametrize("option", [{"echo": True}, {"suffix": "x"}, {"best_of": 3}, {"logit_bias": {"1": 5}}])
def test_what_we_cannot_do_is_refused_by_name(client, option):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="the", **option)
    assert refused.value.param == next(iter(option))
    assert refused.value.code == "unsupported_parameter"
