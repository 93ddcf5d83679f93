"""The server as it runs, over sockets: who is slow, who leaves, who floods it, and how it ends."""

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest

pytest.importorskip("uvicorn", reason="the explorer's libraries are an extra: kvcalc[explore]")

SIZE = "/api/size?model=llama2-7b&batch="
# Takes half a minute where nothing ends it.
ENDLESS = "/api/simulate?model=deepseek-v3&gpu=h200&gpus=8&rate=50&requests=5000&prompt=1000&output-tokens=2000&seed="
NOTE = "note: Ctrl+C ends it\n"
# The limits, so short that tests are quick.
SHORT = {
    "connections._CHECK_S": 0.1,
    "connections._LIMITS_S": {"request": 1.0, "answer": float("inf"), "reading": 1.0},
    "endpoints._BODY_S": 2.0,
    "turns.LIMIT_S": 3.0,
}


class Server:
    """A running server, asked with bytes."""

    def __init__(self, *options, **limits):
        changes = "".join(f"import kvcalc.explore.{name.partition('.')[0]} as module\n"
                          f"module.{name.partition('.')[2]} = eval({str(value)!r}, {{'inf': float('inf')}})\n"
                          for name, value in limits.items())  # fmt: skip
        arguments = ["explore", "--port", "0", "--no-browser", *options]
        script = f"{changes}from kvcalc.cli.main import main\nmain({arguments!r})"
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        self.address = self.process.stdout.readline().strip()
        self.port = int(re.search(r":(\d+)/", self.address)[1])

    def connect(self, sent, source="127.0.0.1"):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20, source_address=(source, 0))
        connection.sendall(sent)
        return connection

    def head(self, address, method="GET", **headers):
        lines = [f"{method} {address} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def get(self, address, source="127.0.0.1", **headers):
        with self.connect(self.head(address, Connection="close", **headers), source) as connection:
            return _answer(connection)

    def end(self):
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=20)
        return self.process.returncode, said


def _answer(connection):
    """Return the status and what follows, read until the connection is closed."""
    read = b""
    with suppress(ConnectionError):
        while piece := connection.recv(65_536):
            read += piece
    return int(read[9:12] or 0), read


@pytest.fixture(scope="module")
def server():
    running = Server(**SHORT)
    yield running
    code, said = running.end()
    assert (code, said) == (130, NOTE)  # whatever the tests did


def test_half_open_connections_keep_nobody_out(server):
    with ExitStack() as opened:
        for _ in range(205):
            opened.enter_context(server.connect(b"GET / HTTP/1.1\r\nHost:"))
        assert server.get(f"{SIZE}1")[0] == 200
        assert server.get(f"{SIZE}2", source="127.0.0.2")[0] == 200


def test_connections_of_many_clients_keep_nobody_out(server):
    with ExitStack() as opened:
        for last in range(2, 9):
            for _ in range(60):
                opened.enter_context(server.connect(b"GET / HTTP/1.1\r\nHost:", source=f"127.0.0.{last}"))
        assert server.get(f"{SIZE}3", source="127.0.0.9")[0] == 200


def test_who_is_busy_on_as_many_connections_as_one_may_have_gets_no_more(server):
    with ExitStack() as opened:
        head = server.head(f"{SIZE}4", "POST", Content_Length=9, Expect="100-continue")
        busy = [opened.enter_context(server.connect(head)) for _ in range(64)]
        assert all(connection.recv(100).startswith(b"HTTP/1.1 100") for connection in busy)
        assert server.get(f"{SIZE}4")[0] == 503
        assert server.get(f"{SIZE}4", source="127.0.0.2")[0] == 200
        assert _answer(busy[0])[0] == 408


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_request_that_comes_too_slowly_is_cut_off(server, begun):
    start = time.monotonic()
    with server.connect(begun) as connection, suppress(ConnectionError):
        connection.settimeout(0.1)
        while time.monotonic() < start + 20:
            if begun:
                connection.sendall(b"a: b\r\n")
            with suppress(TimeoutError):
                if not connection.recv(1000):
                    break
    assert time.monotonic() - start < 5


def test_a_body_that_comes_too_slowly_is_told_so(server):
    with server.connect(server.head("/api/size", "POST", Content_Length=1000)) as connection:
        while not select.select([connection], [], [], 0.1)[0]:
            connection.sendall(b"x")
        status, answer = _answer(connection)
    assert status == 408
    assert b"must arrive within 2 s" in answer


def test_an_answer_that_nobody_reads_is_given_up(server):
    size = len(server.get("/static/vega.js")[1])
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.settimeout(20)
        connection.sendall(server.head("/static/vega.js") * 8)
        time.sleep(2.5)
        _, read = _answer(connection)
    assert len(read) < 7 * size


def test_a_slow_question_holds_up_no_other(server):
    with ThreadPoolExecutor() as threads:
        slow = [threads.submit(server.get, f"{ENDLESS}{seed}") for seed in range(4)]
        time.sleep(0.5)
        for batch in range(5, 15):
            start = time.monotonic()
            assert server.get(f"{SIZE}{batch}")[0] == 200
            assert time.monotonic() - start < 2
        assert [asked.done() for asked in slow].count(False) >= 2
        answers = [asked.result() for asked in slow]
    assert all(status == 422 and b"takes longer than" in answer for status, answer in answers)


def test_who_leaves_is_computed_for_no_longer(server):
    for seed in range(10, 16):
        server.connect(server.head(f"{ENDLESS}{seed}")).close()
    start = time.monotonic()
    assert server.get("/api/demo/paging")[0] == 200
    assert time.monotonic() - start < 8


def test_who_leaves_while_being_told_is_computed_for_no_longer(server):
    with server.connect(server.head(f"{ENDLESS}20", Accept="application/x-ndjson")) as connection:
        read = b""
        while b"so_far" not in read:
            piece = connection.recv(65_536)
            assert piece, read
            read += piece
    start = time.monotonic()
    assert server.get("/api/demo/paging")[0] == 200
    assert time.monotonic() - start < 8


def test_what_takes_too_long_is_told_so_in_the_last_line(server):
    status, answer = server.get(f"{ENDLESS}30", Accept="application/x-ndjson")
    *told, last = re.findall(r"^{.*$", answer.decode(), re.MULTILINE)
    assert status == (200 if told else 422)
    assert all(line.startswith('{"so_far":') for line in told)
    assert "takes longer than" in last


def test_who_leaves_at_any_moment_leaves_no_trace(server):
    for number in range(60):
        sent = server.head(f"{SIZE}{number + 100}", "POST" if number % 3 else "GET", Content_Length=100) + b"{"
        with server.connect(sent[: len(sent) - number % 5]) as connection:
            if number % 2:  # a reset in place of an orderly end
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            time.sleep(0.001 * (number % 7))
    assert server.get(f"{SIZE}99")[0] == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n", 200),
        (b"GET / HTTP/1.0\r\n\r\n", 421),
        (b"GET /\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n", 421),
        (b"GET /%ff%00 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 404),
        (b"GET /api/size?model=%ff HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 422),
        (b"GET /static/../../../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 404),
        (b"GET http://evil.example/ HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n", 404),
        (b"POST /api/size HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n", 400),
        (b"POST /api/size HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n", 200),
        (b"GET /" + b"a" * 100_000, 400),
    ],
)
def test_whatever_is_sent_is_answered_by_http(server, sent, status):
    with server.connect(sent) as connection:
        assert _answer(connection)[0] == status


def test_requests_sent_at_once_are_answered_in_order(server):
    batches = range(30, 40)
    heads = [server.head(f"{SIZE}{batch}") for batch in batches]
    heads.append(server.head(f"{SIZE}40", Connection="close"))
    with server.connect(b"".join(heads)) as connection:
        _, answers = _answer(connection)
    assert [int(batch) for batch in re.findall(rb'"context":4096,"batch":(\d+),"formats"', answers)] == [*batches, 40]


def test_the_interrupt_ends_it_within_two_seconds_while_it_computes():
    server = Server()
    with ExitStack() as opened:
        for sent in (
            *(server.head(f"{ENDLESS}{seed}") for seed in range(3)),
            *(server.head("/static/vega.js"), server.head("/api/size", "POST", Content_Length=9), b"GET /"),
        ):
            opened.enter_context(server.connect(sent))
        time.sleep(2)
        start = time.monotonic()
        code, said = server.end()
        assert time.monotonic() - start < 2
    assert (code, said) == (130, NOTE)


def test_an_interrupt_from_the_terminal_reaches_all_processes_and_prints_nothing():
    server = Server()
    server.get(f"{SIZE}1")
    os.killpg(server.process.pid, signal.SIGINT)
    _, said = server.process.communicate(timeout=20)
    assert (server.process.returncode, said) == (130, NOTE)


def test_beyond_this_machine_it_warns_and_asks_for_a_token():
    server = Server("--host", "0.0.0.0")  # noqa: S104
    token = re.fullmatch(rf"http://0\.0\.0\.0:{server.port}/\?token=([\w-]{{20,}})", server.address)[1]
    try:
        for address in ("/", f"{SIZE}1", "/static/app.js", "/?token=wrong"):
            status, answer = server.get(address)
            assert status == 401
            assert b"a token is needed" in answer
        assert server.get(f"{SIZE}1", Authorization=f"Bearer {token}")[0] == 200
        status, answer = server.get(f"/?view=speed&token={token}&batch=2")
        assert status == 303
        assert b"location: /?view=speed&batch=2\r\n" in answer
        cookie = re.search(rb"set-cookie: ([^;]+); HttpOnly; Path=/; SameSite=lax\r\n", answer)[1].decode()
        for address in ("/", f"{SIZE}1", "/static/app.js"):
            assert server.get(address, Cookie=f"a=b; {cookie}")[0] == 200
            assert server.get(address, Cookie=cookie[:-1])[0] == 401
    finally:
        code, said = server.end()
    assert code == 130
    assert said.startswith("warning: 0.0.0.0 is open to the network")
    assert "Traceback" not in said
    assert token not in said


def test_a_token_of_ones_own_is_asked_for_on_this_machine_too_and_none_where_it_is_empty():
    own = Server("--token", "mine-and-long")
    try:
        assert own.get(f"{SIZE}1")[0] == 401
        assert own.get(f"{SIZE}1", Authorization="Bearer mine-and-long")[0] == 200
    finally:
        assert own.end()[1] == NOTE
    anybody = Server("--host", "0.0.0.0", "--token", "")  # noqa: S104
    try:
        assert anybody.get(f"{SIZE}1")[0] == 200
    finally:
        assert "there is no authentication" in anybody.end()[1]
    assert json.dumps(anybody.address) == f'"http://0.0.0.0:{anybody.port}/"'
