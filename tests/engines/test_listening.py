"""Connections are bounded, whichever HTTP parser uvicorn takes."""

import asyncio
import importlib.util
import logging
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from pairwright.engines import listening
from pairwright.engines.listening import _AcceptErrors, is_foreign

pytestmark = pytest.mark.stress

SERVER = """
import sys
from pairwright.engines import listening

listening.HEAD_SECONDS, listening.WRITE_SECONDS, listening.MAX_CONNECTIONS = float(sys.argv[2]), float(sys.argv[3]), 40
ended = []

async def app(scope, receive, send):
    is_large = scope["path"] == "/large"
    body = b"x" * 20_000_000 if is_large else b"%d ended" % len(ended)
    length = b"%d" % len(body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    # The second piece waits until the client has taken the first one, or is gone.
    await send({"type": "http.response.body", "body": body[:-1], "more_body": True})
    await send({"type": "http.response.body", "body": body[-1:]})
    if is_large:
        ended.append(scope["path"])

listener = listening.listen("127.0.0.1", 0)
print(listening.url_of(listener), flush=True)
listening.serve_app(app, listener, http=sys.argv[1], timeout_keep_alive=1, lifespan="off")
"""
PARSERS = [
    "h11",
    pytest.param(
        "httptools",
        marks=pytest.mark.skipif(importlib.util.find_spec("httptools") is None, reason="httptools is not installed"),
    ),
]


@pytest.fixture(params=PARSERS)
def address(request):
    yield from serve(request.param, head_seconds=1)


@pytest.fixture(params=PARSERS)
def strict_address(request):
    """A server that waits a second for clients to read."""
    yield from serve(request.param, head_seconds=600, write_seconds=1)


@pytest.fixture(params=PARSERS)
def patient_address(request):
    """A server that does not end a connection for its slow head."""
    yield from serve(request.param, head_seconds=600)


def serve(parser: str, *, head_seconds: float, write_seconds: float = 600):
    words = [sys.executable, "-c", SERVER, parser, str(head_seconds), str(write_seconds)]
    server = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    host, port = re.fullmatch(r"http://(.*):(\d+)\n", server.stdout.readline()).groups()
    yield host, int(port)
    server.terminate()
    server.communicate()


class Transport:
    """What the protocols use of a transport; `unread` bytes wait for the client."""

    written, is_closed, unread = b"", False, 0

    def __init__(self, address="127.0.0.1"):
        self.address = address

    def write(self, data):
        self.written += data

    def close(self):
        self.is_closed = True

    abort = close

    def is_closing(self):
        return self.is_closed

    def get_extra_info(self, name):
        return (self.address, 1) if name == "peername" else None

    def get_write_buffer_size(self):
        return self.unread

    def set_write_buffer_limits(self, high):
        assert high == 0


def read_to_end(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    connection.settimeout(120)  # no measure: it ends a test that would hang
    answer = b""
    try:
        while piece := connection.recv(65536):
            answer += piece
    except ConnectionResetError:
        pass
    return answer


def ask(address) -> bytes:
    with socket.create_connection(address, timeout=120) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        return read_to_end(connection)


def test_half_sent_headers_and_idle_connections_time_out(address):
    silent, half, idle = (socket.create_connection(address) for _ in range(3))
    half.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n")
    idle.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    answers = []
    for connection in (silent, half, idle):
        with connection:
            answers.append(read_to_end(connection))
    assert [answer[:15] for answer in answers] == [b"", b"", b"HTTP/1.1 200 OK"]


def test_a_head_that_drips_does_not_begin_anew_with_each_byte(address):
    with socket.create_connection(address) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        deadline = time.monotonic() + 120
        with pytest.raises(OSError):
            while time.monotonic() < deadline:
                connection.sendall(b"x")
                time.sleep(0.1)


@pytest.mark.parametrize("piece", [1_000, 1_000_000])
def test_a_head_is_bounded_in_one_piece_or_in_many(address, piece):
    head = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: %s\r\n" % (n, b"v" * 1000) for n in range(100)) + b"\r\n"
    with socket.create_connection(address) as connection:
        try:
            for start in range(0, len(head), piece):
                connection.sendall(head[start : start + piece])
        except OSError:
            pass
        answer = read_to_end(connection)
    # h11 returns 400 if it detects that a head does not end.
    assert answer[:12] in (b"HTTP/1.1 431", b"HTTP/1.1 400", b"")
    assert ask(address).startswith(b"HTTP/1.1 200")


def test_a_head_without_an_end_is_bounded_whatever_the_parser_does(monkeypatch):
    class Parser:
        """A parser that waits forever for the end of a head."""

        cycle = None

        def connection_made(self, transport):
            self.transport = transport

        def data_received(self, data):
            pass

    monkeypatch.setattr(listening, "_protocol", lambda http: Parser)
    connection, transport = listening._bounded("any", 10)(), Transport()
    connection.loop = asyncio.new_event_loop()
    connection.connection_made(transport)
    for _ in range(60):
        connection.data_received(b"x" * 1000)
    assert not transport.is_closed
    for _ in range(10):
        connection.data_received(b"x" * 1000)
    assert transport.written.startswith(b"HTTP/1.1 431")
    assert transport.written.count(b"431") == 1
    assert transport.is_closed
    connection._stop_waiting()
    connection.loop.close()


def test_more_connections_than_fit_drop_the_oldest_that_is_idle(patient_address):
    idle = []
    for _ in range(120):
        idle.append(socket.create_connection(patient_address))
        idle[-1].sendall(b"GET / HTTP/1.1\r\n")
    assert ask(patient_address).startswith(b"HTTP/1.1 200")
    assert read_to_end(idle[0]) == b""
    for connection in idle:
        connection.close()


def open_deaf(address):
    """A connection whose client takes little before it has to read, whatever the system's largest buffer is."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
    connection.connect(address)
    return connection


def test_a_client_that_does_not_read_is_ended(strict_address):
    with open_deaf(strict_address) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        deadline = time.monotonic() + 120
        while b"1 ended" not in ask(strict_address):
            assert time.monotonic() < deadline, "the answer still waits for its client"
            time.sleep(0.05)
        assert len(read_to_end(deaf)) < 20_000_000


def test_clients_that_send_requests_and_read_nothing_give_way_to_others(patient_address):
    deaf = []
    for _ in range(60):
        deaf.append(open_deaf(patient_address))
        deaf[-1].sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n" * 3)
    assert ask(patient_address).startswith(b"HTTP/1.1 200")
    for connection in deaf:
        connection.close()


@pytest.fixture
def connect(monkeypatch):
    """Make connections of a server that takes four, each with its address; `is_busy` ones are being answered."""

    class Parser:
        def connection_made(self, transport):
            self.transport = transport

        def pause_writing(self):
            pass

    loop = asyncio.new_event_loop()
    monkeypatch.setattr(listening, "_protocol", lambda http: Parser)
    protocol, made = listening._bounded("any", 4), []

    def connect(address, *, is_busy=False):
        connection = protocol()
        connection.loop, connection.cycle = loop, None
        connection.connection_made(Transport(address))
        if is_busy and not connection.transport.is_closed:
            connection.cycle = SimpleNamespace(response_complete=False)
            connection._stop_waiting()
        made.append(connection)
        return connection

    yield connect
    for connection in made:
        connection._forget()
    loop.close()


def test_an_address_has_half_of_the_connections(connect):
    first, second, third = (connect("10.0.0.1") for _ in range(3))
    assert [one.transport.is_closed for one in (first, second, third)] == [True, False, False]
    other = connect("10.0.0.2", is_busy=True)
    busy = [connect("10.0.0.1", is_busy=True) for _ in range(2)]
    assert (second.transport.is_closed, third.transport.is_closed) == (True, True)
    refused = connect("10.0.0.1")
    assert refused.transport.written.startswith(b"HTTP/1.1 503")
    assert refused.transport.is_closed
    assert not any(one.transport.is_closed for one in (other, *busy))
    assert not connect("10.0.0.3").transport.is_closed


def test_proxies_have_all_of_the_connections(monkeypatch, connect):
    local = [connect("127.0.0.1", is_busy=True) for _ in range(4)]
    assert not any(one.transport.is_closed for one in local)
    assert connect("10.0.0.1").transport.written.startswith(b"HTTP/1.1 503")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.1.0.0/16, 10.2.0.1, localhost")
    is_proxy = listening._proxies()
    addresses = ("127.0.0.1", "::1", "::ffff:127.0.0.1", "", "10.1.2.3", "10.2.0.1", "10.2.0.2", "2001:db8::1")
    assert [is_proxy(address) for address in addresses] == [True] * 6 + [False] * 2
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    assert listening._proxies()("10.2.0.2")


def test_a_client_that_reads_slowly_keeps_its_connection(connect):
    connection = connect("10.0.0.1", is_busy=True)
    connection.transport.unread = 100_000
    connection.pause_writing()
    for unread, is_closed in ((80_000, False), (60_000, False), (59_000, True)):
        connection.transport.unread = unread
        connection._check_reading()
        assert connection.transport.is_closed == is_closed


def test_a_request_that_says_two_lengths_is_refused(address):
    body = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: %d\r\n\r\n" % len(body)
    with socket.create_connection(address) as connection:
        connection.sendall(head + body)
        answer = read_to_end(connection)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1


def test_accept_errors_are_logged_once_a_minute(caplog):
    clock = [0.0]
    handler = _AcceptErrors(lambda: clock[0])
    with caplog.at_level(logging.ERROR):
        for second in range(100):
            clock[0] = float(second)
            context = {"message": "socket.accept() out of system resource", "exception": OSError(24, "Too many")}
            handler.handle(None, context)
    assert len(caplog.records) == 2
    assert "(59 earlier not logged)" in caplog.text


def test_another_host_or_origin_is_foreign():
    assert not is_foreign("localhost:80", "http://127.0.0.1:3000")
    for host, origin in (("evil.example", None), ("", None), ("127.0.0.1", "null"), ("127.0.0.1", "http://[bad")):
        assert is_foreign(host, origin), (host, origin)
