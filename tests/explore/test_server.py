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
from contextlib import ExitStack, suppress
from functools import partial

import pytest

pytest.importorskip("uvicorn", reason="the explorer's libraries are an extra: kvcalc[explore]")

SIZE = "/api/size?model=llama2-7b&batch="
# Takes longer than any limit here, on any machine: every step of half a billion tokens is simulated.
ENDLESS = "/api/simulate?model=deepseek-v3&gpu=h200&gpus=8&rate=50&requests=5000&prompt=1000&output-tokens=100000&exact-steps=true&seed="
TOLD = {"Accept": "application/x-ndjson"}
NOTE = "note: Ctrl+C ends it\n"
# The limits, so short that tests are quick.
SHORT = {
    "connections._CHECK_S": 0.1,
    "connections._LIMITS_S": {"request": 1.0, "answer": float("inf"), "reading": 1.0},
    "endpoints._BODY_S": 2.0,
}
_NEVER = float("inf")
# None that ends within a test, so that what ends is ended by what the test does.
LONG = {
    "connections._LIMITS_S": {"request": _NEVER, "answer": _NEVER, "reading": _NEVER},
    "endpoints._BODY_S": 3600.0,
}
# As long as an answer may take at all.
_PATIENT = ("--seconds-per-question", "3600")
# A server that never answers is noticed after so long; no answer is expected to be quicker.
_AT_LAST_S = 120


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
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  no threads there
        )  # fmt: skip
        self.address = self.process.stdout.readline().strip()
        self.port = int(re.search(r":(\d+)/", self.address)[1])

    def connect(self, sent, source="127.0.0.1"):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=_AT_LAST_S, source_address=(source, 0))
        connection.sendall(sent)
        return connection

    def head(self, address, method="GET", **headers):
        lines = [f"{method} {address} HTTP/1.1", f"Host: 127.0.0.1:{self.port}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode()

    def get(self, address, source="127.0.0.1", **headers):
        with self.connect(self.head(address, Connection="close", **headers), source) as connection:
            return _answer(connection)

    def begin(self, address):
        """Ask a question that tells what it has come to, and return once it has begun to do so."""
        connection, read = self.connect(self.head(address, **TOLD)), b""
        while b"so_far" not in read:
            piece = connection.recv(65_536)
            assert piece, read
            read += piece
        return connection

    def end(self):
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=_AT_LAST_S)
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
    running = Server("--seconds-per-question", "3", **SHORT)
    yield running
    code, said = running.end()
    assert (code, said) == (130, NOTE)  # whatever the tests did


@pytest.fixture(scope="module")
def patient():
    """A server that waits for whatever it waits for, so that only what the test does can let anybody in."""
    running = Server(*_PATIENT, **LONG)
    yield running
    code, said = running.end()
    assert (code, said) == (130, NOTE)


def test_half_open_connections_keep_nobody_out(patient):
    with ExitStack() as opened:
        for _ in range(205):
            opened.enter_context(patient.connect(b"GET / HTTP/1.1\r\nHost:"))
        assert patient.get(f"{SIZE}1")[0] == 200
        assert patient.get(f"{SIZE}2", source="127.0.0.2")[0] == 200


def test_connections_of_many_clients_keep_nobody_out(patient):
    with ExitStack() as opened:
        for last in range(2, 9):
            for _ in range(60):
                opened.enter_context(patient.connect(b"GET / HTTP/1.1\r\nHost:", source=f"127.0.0.{last}"))
        assert patient.get(f"{SIZE}3", source="127.0.0.9")[0] == 200


def test_who_is_busy_on_as_many_connections_as_one_may_have_gets_no_more(patient):
    with ExitStack() as opened:
        head = patient.head(f"{SIZE}4", "POST", Content_Length=9, Expect="100-continue")
        busy = [opened.enter_context(patient.connect(head)) for _ in range(64)]
        assert all(connection.recv(100).startswith(b"HTTP/1.1 100") for connection in busy)
        assert patient.get(f"{SIZE}4")[0] == 503
        assert patient.get(f"{SIZE}4", source="127.0.0.2")[0] == 200


@pytest.mark.parametrize("begun", [b"", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n"])
def test_a_request_that_comes_too_slowly_is_cut_off(server, begun):
    end_s = time.monotonic() + _AT_LAST_S
    with server.connect(begun) as connection, suppress(ConnectionError):
        connection.settimeout(0.1)
        while True:
            assert time.monotonic() < end_s
            if begun:
                connection.sendall(b"a: b\r\n")
            with suppress(TimeoutError):
                if not connection.recv(1000):
                    break


def test_a_body_that_comes_too_slowly_is_told_so(server):
    with server.connect(server.head("/api/size", "POST", Content_Length=1000)) as connection:
        while not select.select([connection], [], [], 0.1)[0]:
            connection.sendall(b"x")
        status, answer = _answer(connection)
    assert status == 408
    assert b"must arrive within 2 s" in answer


def test_an_answer_that_nobody_reads_is_given_up(server):
    size = len(server.get("/static/vega.js")[1])
    # a busy server looks later whether anybody reads
    assert any(_read_after(server, "/static/vega.js", pause_s) < 7 * size for pause_s in (2, 8, 32))


def _read_after(server, address, pause_s):
    """Ask for a file eight times, read nothing for a while, and return how many bytes come then."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.settimeout(_AT_LAST_S)
        connection.sendall(server.head(address) * 8)
        time.sleep(pause_s)
        return len(_answer(connection)[1])


def test_a_slow_question_holds_up_no_other(patient):
    with ExitStack() as opened:
        for seed in range(2):
            opened.enter_context(patient.begin(f"{ENDLESS}{seed}"))
        for seed in (2, 3):  # these wait
            opened.enter_context(patient.connect(patient.head(f"{ENDLESS}{seed}")))
        for batch in range(5, 15):
            assert patient.get(f"{SIZE}{batch}")[0] == 200


def test_who_leaves_is_computed_for_no_longer(patient):
    """Else those who left would take all the room that there is for slow questions, for ever."""
    for seed in range(10, 16):
        patient.connect(patient.head(f"{ENDLESS}{seed}")).close()
    assert patient.get("/api/demo/paging")[0] == 200


def test_who_leaves_while_being_told_is_computed_for_no_longer(patient):
    for seed in range(20, 22):
        patient.begin(f"{ENDLESS}{seed}").close()
    assert patient.get("/api/demo/paging")[0] == 200


@pytest.mark.parametrize("headers", [{}, TOLD], ids=["at once", "while it is told"])
def test_what_takes_too_long_is_told_so_in_the_last_line(server, headers):
    status, answer = server.get(f"{ENDLESS}30", **headers)
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


def test_the_interrupt_ends_it_while_it_computes():
    """It waits neither for questions that never end nor for clients that send and read nothing."""
    server = Server(*_PATIENT, **LONG)
    with ExitStack() as opened:
        opened.enter_context(server.begin(f"{ENDLESS}0"))
        for sent in (
            *(server.head(f"{ENDLESS}{seed}") for seed in range(1, 3)),
            *(server.head("/static/vega.js"), server.head("/api/size", "POST", Content_Length=9), b"GET /"),
        ):
            opened.enter_context(server.connect(sent))
        assert server.get(f"{SIZE}1", source="127.0.0.2")[0] == 200  # what came before has been taken in
        code, said = server.end()
    assert (code, said) == (130, NOTE)


def test_an_interrupt_from_the_terminal_reaches_all_processes_and_prints_nothing():
    server = Server()
    server.get(f"{SIZE}1")
    os.killpg(server.process.pid, signal.SIGINT)
    _, said = server.process.communicate(timeout=_AT_LAST_S)
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
