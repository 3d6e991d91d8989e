"""Tokens, scopes, loopback, and limits on what a request may send."""

import asyncio
import base64
import gzip
import socket

import pytest
from asked_app import application, commit, with_dataset
from service_process import Service, job_body

from pairwright.errors import ConfigError
from pairwright.service.access import check_binding
from pairwright.service.rows.api_tokens import create_token, list_tokens, revoke_token

pytestmark = pytest.mark.stress


@pytest.fixture
def app(tmp_path):
    with application(tmp_path) as (client, context):
        yield client, context


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    """What clients make of an address such as http://user:password@host."""
    return {"authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def code(answer) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def test_a_token_is_kept_as_a_hash(app):
    _, context = app
    token = create_token(context.database, "ada", ["shop", "lab:read"])
    assert len(token) > 40
    files = b"".join(path.read_bytes() for path in context.settings.data.glob("state.sqlite3*"))
    assert token.encode() not in files
    assert b"ada" in files
    (listed,) = list_tokens(context.database)
    assert listed["scopes"] == ["lab:read", "shop"]
    for name, scopes in (("ada", ["shop"]), ("bob", ["shop:write"]), ("bob", [])):
        with pytest.raises(ConfigError):
            create_token(context.database, name, scopes)


def test_without_a_token_nothing_is_answered_once_there_is_one(app):
    client, context = app
    assert client.get("/v1/namespaces").status_code == 200
    token = create_token(context.database, "ada", ["*"])
    for headers in ({}, bearer("wrong"), bearer(""), {"authorization": f"Basic {token}"}, basic("x", "wrong")):
        for path in ("/v1/namespaces", "/v1/customization/jobs", "/metrics", "/v1/hf/api/whoami-v2", "/v1/models"):
            assert code(client.get(path, headers=headers)) == (401, "bad_token"), path
        assert code(client.post("/v1/customization/jobs", json=job_body(), headers=headers)) == (401, "bad_token")
    for headers in (bearer(token), basic("x", token), basic(token, "")):
        assert client.get("/v1/namespaces", headers=headers).status_code == 200
    for path in ("/health", "/", "/docs", "/openapi.json", "/page/jobs.js"):
        assert client.get(path).status_code == 200
    revoke_token(context.database, "ada")
    create_token(context.database, "bob", ["*"])
    assert code(client.get("/v1/namespaces", headers=bearer(token))) == (401, "bad_token")


def test_a_namespace_of_somebody_else_is_closed(app):
    client, context = app
    root = bearer(create_token(context.database, "root", ["*"]))
    mine = bearer(create_token(context.database, "ada", ["shop", "lab:read"]))
    for namespace in ("shop", "lab", "vault"):
        client.post("/v1/namespaces", json={"id": namespace}, headers=root)
        with_dataset(client, f"{namespace}/pairs", headers=root)
        body = {"name": "d", "namespace": namespace, "files_url": f"hf://datasets/{namespace}/pairs"}
        assert client.post("/v1/datasets", json=body, headers=root).status_code == 200
    secret = client.post("/v1/customization/jobs", json=job_body(dataset="vault/pairs"), headers=root).json()["id"]
    closed = [
        client.get("/v1/namespaces/vault", headers=mine),
        client.get("/v1/datasets/vault/d", headers=mine),
        client.get("/v1/hf/api/datasets/vault/pairs", headers=mine),
        client.get("/v1/hf/datasets/vault/pairs/resolve/main/training/training_file.jsonl", headers=mine),
        client.get(f"/v1/customization/jobs/{secret}", headers=mine),
        client.get(f"/v1/customization/jobs/{secret}/status", headers=mine),
        client.get(f"/v1/customization/jobs/{secret}/container-logs", headers=mine),
        client.post(f"/v1/customization/jobs/{secret}/cancel", headers=mine),
        client.post("/v1/customization/jobs", json=job_body(dataset="vault/pairs"), headers=mine),
        client.post("/v1/customization/jobs", json=job_body(dataset="vault/pairs", namespace="shop"), headers=mine),
        client.post("/v1/customization/jobs", json=job_body(dataset="lab/pairs"), headers=mine),
        client.post("/v1/customization/jobs", json=job_body(dataset="hf://datasets/vault/pairs", namespace="shop"), headers=mine),
        client.post("/v1/namespaces", json={"id": "new"}, headers=mine),
        client.post("/v1/datasets", json={"name": "x", "namespace": "shop", "files_url": "hf://datasets/vault/pairs"}, headers=mine),
        client.delete("/v1/datasets/lab/d", headers=mine),
        commit(client, [], "lab/pairs", headers=mine),
        client.get("/deployments/vault/d/v1/models", headers=mine),
    ]  # fmt: skip
    assert [code(answer) for answer in closed] == [(403, "forbidden_namespace")] * len(closed)
    assert {item["id"] for item in client.get("/v1/namespaces", headers=mine).json()["data"]} == {"shop", "lab"}
    assert {item["namespace"] for item in client.get("/v1/datasets", headers=mine).json()["data"]} == {"shop", "lab"}
    assert client.get("/v1/customization/jobs", headers=mine).json()["data"] == []
    allowed = client.post("/v1/customization/jobs", json=job_body(dataset="lab/pairs", namespace="shop"), headers=mine)
    assert allowed.status_code == 200
    for filters in ({}, {"filter[training_type]": "dpo"}, {"filter[status]": "created", "sort": "name"}):
        answer = client.get("/v1/customization/jobs", headers=mine, params=filters).json()
        assert [job["id"] for job in answer["data"]] == [allowed.json()["id"]]
        assert answer["pagination"]["total_results"] == 1


def test_without_a_token_only_loopback_is_bound():
    with pytest.raises(ConfigError, match="serve token create"):
        check_binding("0.0.0.0", 0)
    check_binding("0.0.0.0", 1)
    for host in ("127.0.0.1", "localhost", "::1"):
        check_binding(host, 0)


def test_without_a_token_a_web_page_cannot_ask(app):
    client, _ = app
    for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}, {"host": "127.0.0.1.evil.example"}):
        assert code(client.post("/v1/namespaces", json={"id": "x"}, headers=headers)) == (403, "foreign_host")
    assert (
        client.post("/v1/namespaces", json={"id": "x"}, headers={"origin": "http://localhost:8000"}).status_code == 200
    )


def test_a_body_is_refused_by_what_its_header_claims(service: Service):
    host, port = service.url.removeprefix("http://").split(":")
    for path in ("/v1/namespaces", "/v1/hf/api/datasets/default/pairs/commit/main"):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 10737418240\r\n\r\n"
            connection.sendall(head.encode())
            answer = b""
            while piece := connection.recv(65536):
                answer += piece
        assert answer.startswith(b"HTTP/1.1 413")
        assert b"body_too_large" in answer


def test_a_body_without_a_claim_is_counted(tmp_path):
    with application(tmp_path, max_body_bytes=1000) as (client, _):
        pieces = iter([b'{"id": "x", "description": "', *[b"y" * 100] * 20, b'"}'])
        assert code(client.post("/v1/namespaces", content=pieces)) == (413, "body_too_large")
        assert client.post("/v1/namespaces", json={"id": "x"}).status_code == 200


def test_a_compressed_body_is_never_unpacked(app):
    client, _ = app
    bomb = gzip.compress(b"0" * 10_000_000)
    answer = client.post("/v1/namespaces", content=bomb, headers={"content-encoding": "gzip"})
    assert code(answer) == (415, "compressed_body")
    assert code(client.get("/v1/namespaces?" + "a" * 9000)) == (414, "long_url")


def test_nothing_of_a_body_is_read_before_the_token_is_checked(app):
    client, context = app
    create_token(context.database, "ada", ["*"])
    num_read = 0

    def pieces():
        nonlocal num_read
        for _ in range(20):
            num_read += 1
            yield b"[" * 100_000

    answer = client.post("/v1/namespaces", content=pieces())
    assert code(answer) == (401, "bad_token")
    assert answer.headers["connection"] == "close"
    scope = {"type": "http", "path": "/v1/chat/completions", "method": "POST", "headers": [], "query_string": b""}
    answers: list = []

    async def receive():
        raise AssertionError("the body was read")

    async def send(message):
        answers.append(message)

    asyncio.run(client.app(scope, receive, send))
    assert answers[0]["status"] == 401


def test_a_body_that_drips_is_given_up(tmp_path):
    with application(tmp_path, read_timeout_seconds=0.2) as (client, _):
        sent = 0

        async def receive():
            nonlocal sent
            sent += 1
            await asyncio.sleep(0.05)
            return {"type": "http.request", "body": b"x", "more_body": sent < 200}

        answers: list = []

        async def send(message):
            answers.append(message)

        headers = [(b"host", b"127.0.0.1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "path": "/v1/namespaces", "method": "POST", "headers": headers, "query_string": b""}
        asyncio.run(client.app(scope, receive, send))
        assert answers[0]["status"] == 408
        assert sent < 20
