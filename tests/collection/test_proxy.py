"""The recording proxy before a real server, used by the real `openai` client."""

import asyncio
import gzip
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import httpx
import openai
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from collection.upstream import Upstream, serving
from pairwright import Message, Table
from pairwright.collection.proxy.exchange import Exchanges, NotRecorded, Place, decompress
from pairwright.collection.proxy.proxy import Proxy
from pairwright.errors import TableError

pytestmark = pytest.mark.stress


class Recording:
    """A proxy before an upstream; `records` after it has ended."""

    def __init__(self, folder, upstream_app=None, **options):
        self.upstream = Upstream()
        self._app, self._folder, self._options = upstream_app, folder, options

    def __enter__(self):
        self._upstream = serving(self._app or self.upstream.app())
        self.upstream_url = self._upstream.__enter__()
        self.proxy = Proxy(f"{self.upstream_url}/v1", self._folder, **self._options)
        self._serving = serving(self.proxy.app())
        self.url = self._serving.__enter__()
        return self

    def __exit__(self, *details):
        self._serving.__exit__(*details)
        self._upstream.__exit__(*details)

    def client(self, path="/v1", **headers):
        return openai.OpenAI(
            base_url=self.url + path, api_key="sk-very-secret", max_retries=0, default_headers=headers or None
        )

    def feedback(self, value):
        return httpx.post(f"{self.url}/feedback", json=value)

    @property
    def records(self):
        return list(Table(self._folder).records())


ASK = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]


def test_an_openai_client_notices_nothing_and_everything_is_recorded(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        answer = client.chat.completions.create(model="m", messages=ASK, n=2, logprobs=True, tools=TOOLS)
        models = client.models.with_raw_response.list()
        assert [choice.message.content for choice in answer.choices] == ["Hello 0", "Hello 1"]
        assert models.headers["x-upstream"] == "yes"
        path, headers, _ = recording.upstream.requests[0]
        assert (path, headers["authorization"]) == ("/v1/chat/completions", "Bearer sk-very-secret")
        assert recording.proxy.counts.experiences == 2
    first, second = recording.records
    assert first.prompt == (Message("system", "Be brief."), Message("user", "hello"))
    assert first.tools == tuple(TOOLS)
    assert second.completion == (Message("assistant", "Hello 1"),)
    assert (first.tokens.tolist(), first.prompt_length, first.logprobs.tolist()) == ([1, 2, 3, 7, 8], 3, [-0.5, -0.5])
    assert (first.model_version, first.eid.suffix, first.reward) == ("m-1", f"{answer.id}#0", None)
    everything = b"".join(path.read_bytes() for path in (tmp_path / "table").iterdir())
    assert b"very-secret" not in everything


def test_a_stream_passes_through_as_it_comes_and_is_recorded_whole(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        recording.upstream.gate = gate = asyncio.Event()
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True, logprobs=True)
        pieces = []
        for chunk in stream:
            pieces.append(chunk.choices[0].delta.content)
            if len(pieces) == 2:  # the upstream continues only after this chunk has arrived: nothing is buffered
                gate._loop.call_soon_threadsafe(gate.set)
        assert pieces == ["", "Hel", "lo ", "wörld", None]
        recording.upstream.gate = None
        called = list(client.chat.completions.create(model="m", messages=ASK, stream=True, tools=TOOLS))
        assert called[-1].choices[0].finish_reason == "tool_calls"
    said, call = recording.records
    assert said.completion == (Message("assistant", "Hello wörld"),)
    assert said.info["logprobs"] == {"tokens": ["Hel", "lo ", "wörld"], "logprobs": [0.0, -0.25, -0.5]}
    (made,) = call.completion[0].tool_calls
    assert (made.id, made.name, made.arguments) == ("call_9", "clock", '{"city": "Rome"}')


def test_not_a_byte_is_changed_on_the_way(tmp_path):
    with Recording(tmp_path / "table") as recording:
        body = b'{ "model": "m",  "messages": [{"role": "user", "content": "h\\u00f6"}] , "stream": false}'
        direct = httpx.post(f"{recording.upstream_url}/v1/chat/completions?a=1&b=%20", content=body)
        through = httpx.post(f"{recording.url}/v1/chat/completions?a=1&b=%20", content=body)
        assert recording.upstream.requests[0][2] == recording.upstream.requests[1][2] == body
        assert through.content == recording.upstream.sent[1]
        names = {"content-type", "content-length"}
        assert {k: direct.headers[k] for k in names} == {k: through.headers[k] for k in names}
        recording.upstream.sent.clear()
        streamed = httpx.post(
            f"{recording.url}/v1/chat/completions", json={"model": "m", "messages": ASK, "stream": True}
        )
        assert streamed.content == b"".join(recording.upstream.sent)


def test_the_responses_api_is_recorded_with_and_without_streaming(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        first = client.responses.create(model="m", input="hello", instructions="Be brief.")
        events = list(
            client.responses.create(
                model="m", input=[{"role": "user", "content": "and?"}], stream=True, previous_response_id=first.id
            )
        )
        assert (first.output_text, events[-1].type) == ("Hi there", "response.completed")
        client.responses.create(model="m", input="x", previous_response_id="resp_of_another_day")
        assert dict(recording.proxy.counts.not_recorded) == {"it continues a response that this proxy has not seen": 1}
    plain, streamed = recording.records
    assert plain.prompt == (Message("system", "Be brief."), Message("user", "hello"))
    assert plain.completion == (Message("assistant", "Hi there"),)
    assert streamed.prompt == (*plain.prompt, *plain.completion, Message("user", "and?"))
    assert streamed.completion == (Message("assistant", "Hi there"),)


def test_sessions_are_tasks_and_their_calls_are_steps(tmp_path):
    with Recording(tmp_path / "table") as recording:
        for run in (0, 1):
            headers = {"x-pairwright-session": f"s{run}", "x-pairwright-task": "t", "x-pairwright-run": str(run)}
            with recording.client(**headers) as client:
                for _ in range(2):
                    client.chat.completions.create(model="m", messages=ASK)
        with recording.client("/session/by-path/v1") as client:
            client.chat.completions.create(model="m", messages=ASK)
        with recording.client() as client:
            client.chat.completions.create(model="m", messages=ASK)
        assert not any("x-pairwright-session" in headers for _, headers, _ in recording.upstream.requests)
        assert {path for path, _, _ in recording.upstream.requests} == {"/v1/chat/completions"}
    places = [(record.eid.task, record.eid.run, record.eid.step) for record in recording.records]
    assert places[:5] == [("t", 0, 0), ("t", 0, 1), ("t", 1, 0), ("t", 1, 1), ("by-path", 0, 0)]
    assert len(places[5][0]) == 16


def test_feedback_counts_before_after_and_again(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        assert recording.feedback({"response_id": "chatcmpl-2", "reward": 0.25}).json() == {"accepted": 1}
        answers = [client.chat.completions.create(model="m", messages=ASK, n=2).id for _ in range(4)]
        assert answers[1] == "chatcmpl-2"
        table = Table(recording.proxy.table.path)
        assert [record.reward for record in table.records()] == [None, None, 0.25, 0.25] + [None] * 4
        recording.feedback([{"response_id": answers[0], "choice": 1, "score": 1.0, "components": {"style": 2}}])
        recording.feedback({"response_id": answers[2], "reward": 0.5})
        recording.feedback({"response_id": answers[2], "reward": 0.75})
        recording.feedback({"response_id": "of-tomorrow", "reward": 1})
    by_id = {record.eid.suffix: record for record in recording.records}
    assert len(by_id) == len(recording.records) == 8
    rewards = {suffix.removeprefix("chatcmpl-"): record.reward for suffix, record in by_id.items()}
    assert rewards == {"1#0": None, "1#1": 1.0, "2#0": 0.25, "2#1": 0.25, "3#0": 0.75, "3#1": 0.75, "4#0": None, "4#1": None}  # fmt: skip
    assert by_id["chatcmpl-1#1"].reward_components == {"style": 2}
    assert b"of-tomorrow" in (tmp_path / "table" / "feedback.jsonl").read_bytes()
    with Recording(tmp_path / "table") as recording:  # another day: the rest gets its rewards
        recording.feedback({"response_id": "chatcmpl-4", "reward": -1.0})
        recording.feedback({"response_id": "chatcmpl-3", "choice": 0, "reward": 0.0})
    again = {record.eid.suffix: record.reward for record in recording.records}
    assert len(recording.records) == 8
    assert (again["chatcmpl-4#0"], again["chatcmpl-3#0"], again["chatcmpl-3#1"]) == (-1.0, 0.0, 0.75)


def test_feedback_of_a_web_page_is_refused(tmp_path):
    with Recording(tmp_path / "table") as recording:
        url, body = f"{recording.url}/feedback", b'{"response_id": "chatcmpl-2", "reward": 1}'
        assert httpx.post(url, content=body, headers={"content-type": "text/plain"}).status_code == 415
        assert httpx.post(url, content=body).status_code == 415
        evil = {"content-type": "application/json", "origin": "https://evil.example"}
        assert httpx.post(url, content=body, headers=evil).status_code == 403
        rebound = {"content-type": "application/json", "host": "evil.example:8002"}
        assert httpx.post(url, content=body, headers=rebound).status_code == 403
        own = {"content-type": "application/json; charset=utf-8", "origin": "http://127.0.0.1:3000"}
        assert httpx.post(url, content=body, headers=own).json() == {"accepted": 1}


def test_feedback_of_a_session_applies_to_rows_without_a_reward(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client("/session/s/v1") as client:
        first, _ = (client.chat.completions.create(model="m", messages=ASK).id for _ in range(2))
        recording.feedback({"response_id": first, "reward": 0.1})
        recording.feedback({"session": "s", "reward": 1.0})
        with recording.client("/session/other/v1") as other:
            other.chat.completions.create(model="m", messages=ASK)
    assert sorted(str(record.reward) for record in recording.records) == ["0.1", "1.0", "None"]


def test_a_crash_between_the_new_row_and_the_removal_of_the_old_one_is_finished_later(tmp_path, monkeypatch):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        name = client.chat.completions.create(model="m", messages=ASK).id
        recording.feedback({"response_id": name, "reward": 0.5})
        monkeypatch.setattr(
            recording.proxy.table, "delete", lambda where: (_ for _ in ()).throw(OSError("killed here"))
        )
        with pytest.raises(OSError, match="killed"):
            recording.proxy._feedback.apply()
        assert sorted(str(r.reward) for r in Table(recording.proxy.table.path).records()) == ["0.5", "None"]
        monkeypatch.undo()
    assert [record.reward for record in recording.records] == [0.5]


@pytest.mark.parametrize(
    "value", [{}, {"reward": 1}, {"response_id": "r"}, {"response_id": "r", "session": "s", "reward": 1}, {"response_id": "r", "reward": "good"}, {"response_id": "r", "reward": 1, "more": 2}, [1], "x"]
)  # fmt: skip
def test_invalid_feedback_is_refused_with_the_reason(tmp_path, value):
    with Recording(tmp_path / "table") as recording:
        refused = recording.feedback(value)
        assert refused.status_code == 422
        assert refused.json()["error"]["message"].startswith("feedback: ")


def test_errors_of_the_upstream_pass_through_and_are_counted(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        with pytest.raises(openai.InternalServerError, match="overloaded") as caught:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "fail"}])
        assert (caught.value.status_code, caught.value.response.headers["retry-after"]) == (503, "7")
        with pytest.raises(openai.NotFoundError):
            client.embeddings.create(model="m", input="x", encoding_format="float")
        with pytest.raises((openai.APIConnectionError, httpx.RemoteProtocolError)):
            list(
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "break"}], stream=True)
            )
        status = httpx.get(f"{recording.url}/pairwright/status").json()
        assert status["upstream_errors"] == {"503": 1, "404": 1, "502": 1}
        assert status["not_recorded"] == {"the stream broke off": 1}
    assert recording.records == []


def test_an_upstream_that_is_not_there_is_a_502(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        proxy = Proxy(f"http://127.0.0.1:{free.getsockname()[1]}", tmp_path / "table")
        free.close()
    with serving(proxy.app()) as url:
        answer = httpx.post(f"{url}/v1/chat/completions", json={})
        assert answer.status_code == 502
        assert "cannot be reached" in answer.json()["error"]["message"]


def test_a_client_that_leaves_takes_nothing_down_and_is_not_half_recorded(tmp_path):
    with Recording(tmp_path / "table") as recording, recording.client() as client:
        recording.upstream.gate = gate = asyncio.Event()
        stream = client.chat.completions.create(model="m", messages=ASK, stream=True)
        next(iter(stream))
        stream.close()
        while not recording.proxy.counts.not_recorded:
            time.sleep(0.01)
        assert dict(recording.proxy.counts.not_recorded) == {"the stream broke off": 1}
        gate._loop.call_soon_threadsafe(gate.set)
        recording.upstream.gate = None
        assert client.chat.completions.create(model="m", messages=ASK).choices
    assert len(recording.records) == 1


def test_an_answer_that_is_too_large_passes_through_unrecorded(tmp_path):
    with Recording(tmp_path / "table", max_response_bytes=100) as recording, recording.client() as client:
        assert client.chat.completions.create(model="m", messages=ASK).choices
        assert dict(recording.proxy.counts.not_recorded) == {"too large": 1}
        assert recording.proxy._held == 0
    assert recording.records == []


def test_a_table_that_cannot_be_written_is_reported_and_does_not_affect_the_client(tmp_path, monkeypatch, caplog):
    def full(experiences):
        raise TableError("No space left on device")

    with Recording(tmp_path / "table") as recording, recording.client() as client:
        monkeypatch.setattr(recording.proxy.table, "append", full)
        assert client.chat.completions.create(model="m", messages=ASK).choices
        assert list(client.chat.completions.create(model="m", messages=ASK, stream=True))
        assert dict(recording.proxy.counts.not_recorded) == {"not written: TableError: No space left on device": 2}
    assert "No space left" in caplog.text


def test_a_compressed_answer_stays_compressed_and_is_read(tmp_path):
    sent = gzip.compress(
        json.dumps(
            {"id": "z", "choices": [{"message": {"role": "assistant", "content": "packed"}, "finish_reason": "stop"}]}
        ).encode()
    )
    asked = []

    async def chat(request):
        asked.append(request.headers.get("accept-encoding"))
        return Response(sent, media_type="application/json", headers={"content-encoding": "gzip"})

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    with Recording(tmp_path / "table", app) as recording:
        request = urllib.request.Request(
            f"{recording.url}/v1/chat/completions",
            data=json.dumps({"messages": ASK}).encode(),
            headers={"accept-encoding": "br, gzip;q=0.5", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:
            assert (answer.read(), answer.headers["content-encoding"]) == (sent, "gzip")
        assert asked == ["gzip;q=0.5"]
    assert recording.records[0].completion[0].text == "packed"


def test_what_cannot_be_read_is_refused_with_a_reason_and_bombs_do_not_unpack():
    for data, encoding in [(b"\0" * 40, "gzip"), (b"x", "zstd"), (b"x", "br"), (gzip.compress(b"\0" * 2**27), "gzip")]:
        with pytest.raises(NotRecorded):
            decompress(data, encoding)
    exchanges, headers = Exchanges(), {"content-type": "application/json"}
    good = b'{"choices": [{"message": {"content": "x"}}]}'
    for request, response in [(b"no", good), (b"[]", good), (b'{"messages": 5}', good), (b'{"messages": []}', b"{}"), (b'{"messages": [1]}', good)]:  # fmt: skip
        with pytest.raises(NotRecorded):
            exchanges.experiences("chat", Place(), request, response, headers)


def test_failed_tool_results_and_unknown_tools_are_error_sites():
    history = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: the clock has stopped"},
    ]  # fmt: skip
    call = {"id": "c2", "type": "function", "function": {"name": "watch", "arguments": "{}"}}
    request = json.dumps({"model": "m", "messages": history, "tools": TOOLS}).encode()
    answer = json.dumps({"choices": [{"message": {"content": None, "tool_calls": [call]}}]}).encode()
    (row,) = Exchanges().experiences("chat", Place(), request, answer, {"content-type": "application/json"})
    assert [(site.index, site.kind, site.tool) for site in row.errors] == [
        (3, "tool_error", "clock"),
        (4, "unknown_tool", "watch"),
    ]


def test_many_clients_at_once_are_all_recorded_once(tmp_path):
    with Recording(tmp_path / "table") as recording:

        def use(number):
            with recording.client(f"/session/s{number}/v1") as client:
                for turn in range(5):
                    asked = [{"role": "user", "content": f"{number}.{turn}"}]
                    list(client.chat.completions.create(model="m", messages=asked, stream=turn % 2 == 0))

        threads = [threading.Thread(target=use, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    places = sorted((record.eid.task, record.eid.step, record.prompt[0].text) for record in recording.records)
    assert places == sorted((f"s{n}", turn, f"{n}.{turn}") for n in range(12) for turn in range(5))


def test_the_command_records_until_it_is_interrupted_and_kill_loses_nothing_that_ended(tmp_path):
    with serving(Upstream().app()) as upstream:
        command = [sys.executable, "-m", "pairwright.cli", "record", "--upstream", f"{upstream}/v1", "-o", str(tmp_path / "t"), "--port", "0"]  # fmt: skip
        counts = []
        for how in (signal.SIGKILL, signal.SIGINT):
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)
            url = process.stderr.readline().split()[1]
            with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
                name = client.chat.completions.create(model="m", messages=ASK).id
                list(client.chat.completions.create(model="m", messages=ASK, stream=True))
            httpx.post(url.replace("/v1", "/feedback"), json={"response_id": name, "reward": 1.0}).raise_for_status()
            process.send_signal(how)
            told = process.communicate()[1]
            counts.append((process.returncode, Table(tmp_path / "t").count()))
        assert counts == [(-signal.SIGKILL, 2), (0, 4)]
        assert "2 experiences of 2 requests" in told
    assert sorted(str(record.reward) for record in Table(tmp_path / "t").records()) == ["1.0", "1.0", "None", "None"]
