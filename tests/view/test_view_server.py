"""Access to the server, and its responses: token, cookie, host, origin, policy, errors."""

import asyncio
import re
import threading

import pytest
from starlette.testclient import TestClient
from viewed_run import ask_all, make_viewed_run

from pairwright.view.row_queries import RowQueries
from pairwright.view.view_server import BUILT, ViewServer

pytestmark = pytest.mark.stress

TOKEN = "s3cret-token"


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return ask_all(make_viewed_run(tmp_path_factory.mktemp("runs") / "support"))


@pytest.fixture
def client(answers):
    server = ViewServer(answers, token=TOKEN, port=8010)
    return TestClient(server.app, base_url="http://127.0.0.1:8010", follow_redirects=False)


def test_the_link_sets_a_cookie_and_leads_to_the_page_without_the_token(client):
    answer = client.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    page = client.get("/")
    assert page.status_code == 200
    assert "built/view.js" in page.text
    assert client.get("/api/library").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/built/view.js", "/api/library", "/?token=wrong", "/api/library?token=" + TOKEN]
)
def test_nothing_is_sent_without_the_token(client, path):
    answer = client.get(path)
    assert answer.status_code == 403
    assert "pairwright view" in answer.text
    assert "support" not in answer.text


def test_a_program_may_send_the_token_in_a_header(client):
    assert client.get("/api/library", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/api/library", headers={"authorization": "Bearer wrong"}).status_code == 403


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"origin": "http://127.0.0.1:3000"},
        {"origin": "null"},
    ],
)
def test_other_hosts_and_other_pages_are_refused(client, headers):
    answer = client.get("/api/library", headers={"authorization": f"Bearer {TOKEN}", **headers})
    assert answer.status_code == 403


def test_the_cookie_of_one_port_is_no_token_and_opens_no_other_port(answers):
    first, second = (
        TestClient(ViewServer(answers, token=TOKEN, port=port).app, base_url=f"http://127.0.0.1:{port}")
        for port in (8010, 8011)
    )
    first.get("/", params={"token": TOKEN}, follow_redirects=False)
    (value,) = first.cookies.values()
    assert second.get("/api/library", headers={"authorization": f"Bearer {value}"}).status_code == 403
    second.cookies.set("pairwright-view-8011", value)
    assert second.get("/api/library").status_code == 403
    assert first.get("/api/library").status_code == 200


def test_beyond_loopback_only_the_page_itself_may_ask(answers):
    server = ViewServer(answers, token=TOKEN, host="0.0.0.0", port=8010)
    client = TestClient(server.app, base_url="http://machine.example:8010")
    bearer = {"authorization": f"Bearer {TOKEN}"}
    assert client.get("/api/library", headers=bearer).status_code == 200
    own = {**bearer, "origin": "http://machine.example:8010"}
    assert client.get("/api/library", headers=own).status_code == 200
    assert client.get("/api/library", headers={**bearer, "origin": "http://evil.example"}).status_code == 403
    assert client.get("/api/library").status_code == 403


def test_every_answer_forbids_what_the_page_does_not_need(client):
    client.get("/", params={"token": TOKEN})
    for path in ("/", "/built/view.js", "/api/library", "/api/nothing"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"


def test_the_page_has_no_inline_script_and_names_no_other_host():
    page = (BUILT / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)", page)
    assert not re.search(r"<style|style=|onclick|https?://", page)


@pytest.mark.parametrize("name", ["..%2f..%2fview_server.py", "index.html", "view_server.py", "%2e%2e"])
def test_only_the_built_files_are_served(client, name):
    client.get("/", params={"token": TOKEN})
    assert client.get(f"/built/{name}").status_code == 404


def test_an_error_says_what_and_a_question_that_is_none_is_not_found(client):
    client.get("/", params={"token": TOKEN})
    answer = client.get("/api/experiences.rows", params={"source": "support/experience", "w": "nothing > 1"})
    assert answer.status_code == 400
    assert "no column 'nothing'" in answer.json()["error"]
    assert client.get("/api/experiences.rows", params={"source": "nowhere"}).status_code == 400
    assert client.get("/api/decide.vote").status_code == 404, "a decision is no question"


def test_a_decision_is_a_json_object_of_bounded_size(client):
    client.get("/", params={"token": TOKEN})
    as_form = client.post("/api/decide.vote", data={"source": "support/pairs"})
    assert as_form.status_code == 400
    assert "application/json" in as_form.json()["error"]
    large = client.post("/api/decide.vote", json={"source": "x" * 100_000})
    assert (large.status_code, "bytes" in large.json()["error"]) == (400, True)
    assert client.post("/api/library", json={}).status_code == 404


def test_an_unexpected_error_is_logged_and_not_told(client, answers, monkeypatch, caplog):
    client.get("/", params={"token": TOKEN})
    monkeypatch.setitem(answers.questions, "library", lambda asked: 1 / 0)
    answer = client.get("/api/library")
    assert answer.status_code == 500
    assert "division" not in answer.text
    assert "division" in caplog.text


def test_a_search_ends_when_its_client_has_gone(answers, monkeypatch):
    started, num_batches = threading.Event(), 0
    batches = RowQueries._batches

    def endless(self, piece, columns, num_rows=None):
        nonlocal num_batches
        (batch,) = batches(self, piece, columns, num_rows)
        for _ in range(20_000):
            num_batches += 1
            started.set()
            yield batch

    monkeypatch.setattr(RowQueries, "_batches", endless)

    async def receive():
        while not started.is_set():
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    sent: list = []
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/experiences.rows",
        "query_string": b"source=support/experience&q=a%20text%20that%20no%20row%20has",
        "headers": [(b"host", b"127.0.0.1:8010"), (b"authorization", f"Bearer {TOKEN}".encode())],
    }
    asyncio.run(ViewServer(answers, token=TOKEN, port=8010).app(scope, receive, send))
    assert num_batches < 20_000, "the search ran to its end"
    assert sent[0]["status"] == 499
