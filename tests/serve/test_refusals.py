"""What the server does not answer: OpenAI's error JSON, the right status, and never a body beyond its limit."""

import json
import socket

import httpx
import openai
import pytest

from serve.served_models import served, tiny_engine

MESSAGES = [{"role": "user", "content": "the cat"}]


@pytest.fixture(scope="module")
def place():
    with served(tiny_engine(context=64), max_body_bytes=100_000) as running:
        yield running


@pytest.fixture(scope="module")
def client(place):
    with openai.OpenAI(base_url=f"{place.url}/v1", api_key="unused", max_retries=0) as made:
        yield made


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"n": 0}, "n"),
        ({"n": 100_000}, "n"),
        ({"stop": ["a", ""]}, "stop[1]"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"extra_body": {"chat_template_kwargs": {"chat_template": "{{ 'mine' }}"}}}, "chat_template_kwargs"),
        ({"extra_body": {"chat_template_kwargs": {"no_such": 1}}}, "chat_template_kwargs"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "wizard", "content": "x"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0]"),
    ],
)  # fmt: skip
def test_a_bad_parameter_is_named(client, options, param):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, **options})
    assert refused.value.param == param
    assert refused.value.type == "invalid_request_error"


def test_neutral_values_of_what_is_not_supported_are_taken(client):
    made = client.chat.completions.create(
        model="tiny", messages=MESSAGES, max_tokens=1, frequency_penalty=0, presence_penalty=0, logit_bias={},
        response_format={"type": "text"}, tool_choice="auto", user="me",
    )  # fmt: skip
    assert made.choices


def test_another_model_is_not_found_and_the_known_ones_are_listed(client, place):
    with pytest.raises(openai.NotFoundError, match="this server has tiny") as refused:
        client.chat.completions.create(model="gpt-9", messages=MESSAGES)
    assert refused.value.code == "model_not_found"
    assert [card.id for card in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    assert httpx.get(f"{place.url}/v1/models/other").status_code == 404


@pytest.mark.parametrize("limit", [None, 60])
def test_what_does_not_fit_the_context_is_refused(client, limit):
    text = "the cat sat on the mat " * (20 if limit is None else 1)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": text}], max_tokens=limit)
    assert refused.value.code == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"{", b"[]", b'"x"', b"\xff", b"[" * 50_000, b'{"model": "tiny"}', b""])
def test_an_invalid_body_is_refused(place, body):
    answer = httpx.post(f"{place.url}/v1/chat/completions", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 400
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_claim_of_ten_gigabytes_is_refused_before_anything_is_read(place):
    with socket.create_connection(("127.0.0.1", place.port), timeout=10) as raw:
        raw.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10000000000\r\n\r\n{")
        assert b" 413 " in raw.recv(4096).split(b"\r\n")[0]


def test_a_body_that_grows_beyond_the_limit_is_refused(place):
    def endless():
        for _ in range(10_000):
            yield b" " * 1000

    try:
        answer = httpx.post(f"{place.url}/v1/chat/completions", content=endless())
    except httpx.TransportError:
        return  # the server closed the connection while we were still sending
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_compressed_bodies_and_wrong_paths_and_methods_are_refused(place):
    packed = httpx.post(f"{place.url}/v1/chat/completions", content=b"x", headers={"content-encoding": "gzip"})
    assert (packed.status_code, packed.json()["error"]["code"]) == (415, "unsupported_encoding")
    assert httpx.get(f"{place.url}/v1/nothing").json()["error"]["code"] == "not_found"
    assert httpx.get(f"{place.url}/v1/chat/completions").json()["error"]["code"] == "method_not_allowed"


def test_a_template_that_refuses_a_conversation_is_a_bad_request():
    strict = "{{ raise_exception('no system messages') if messages[0].role == 'system' }}x"
    with served(tiny_engine(template=strict)) as place:
        answer = httpx.post(
            f"{place.url}/v1/chat/completions",
            json={"model": "tiny", "messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "x"}]},
        )
    assert answer.status_code == 400
    assert "no system messages" in answer.json()["error"]["message"]


def test_with_a_token_only_those_who_have_it_are_answered_but_health_is_open():
    with served(tiny_engine(), token="secret") as place:
        base = f"{place.url}/v1"
        with (
            openai.OpenAI(base_url=base, api_key="wrong", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()
        with openai.OpenAI(base_url=base, api_key="secret", max_retries=0) as client:
            assert client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=1).choices
        assert httpx.get(f"{place.url}/v1/models").status_code == 401
        assert httpx.get(f"{place.url}/health").json()["status"] == "ok"


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_breaks_is_a_server_error_and_the_next_request_is_answered(stream, caplog):
    engine = tiny_engine()
    forward = engine.model.forward
    with served(engine) as place, openai.OpenAI(base_url=f"{place.url}/v1", api_key="x", max_retries=0) as client:

        def ask():
            made = client.chat.completions.create(model="tiny", messages=MESSAGES, max_tokens=2, stream=stream)
            return list(made) if stream else made

        def fail(*_, **__):
            raise OSError("CUDA: /secret/path out of memory")

        ask()
        engine.model.forward = fail
        with pytest.raises(openai.APIError) as refused:
            ask()
        assert refused.value.type == "server_error"
        assert "secret" not in str(refused.value)
        assert "/secret/path out of memory" in caplog.text
        engine.model.forward = forward
        assert ask()


def test_too_many_open_requests_are_refused_with_a_retry(place):
    with served(tiny_engine(), max_requests=0) as full:
        answer = httpx.get(f"{full.url}/v1/models")
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "1"
    assert json.loads(answer.content)["error"]["type"] == "rate_limit_error"
