"""Reading files of anybody: bounded, whatever a file says of its size, and nothing that has no end."""

from __future__ import annotations

import io
import os
import socket
import threading
from pathlib import Path

import pytest

from kvcalc.core.errors import ProfileError
from kvcalc.files import BoundedLines, open_text, read_bytes, read_json, read_stream, read_text


def test_no_byte_more_than_allowed_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_bytes(path, max_bytes=5, what="a profile") == b"12345"
    with pytest.raises(ProfileError, match="more than 4 bytes: not a profile"):
        read_bytes(path, max_bytes=4, what="a profile")


def test_an_endless_stream_ends_at_the_bound() -> None:
    class Endless(io.RawIOBase):
        read_so_far = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:
            self.read_so_far += len(buffer)
            return len(buffer)

    endless = Endless()
    with pytest.raises(ProfileError, match="more than 1,000 bytes"):
        read_stream(io.BufferedReader(endless), max_bytes=1000, what="a log", where="-")
    assert endless.read_so_far < 100_000


def test_pipes_sockets_and_devices_are_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "socket"))
        for path in (tmp_path / "pipe", tmp_path / "socket", Path("/dev/zero")):
            with pytest.raises(ProfileError, match="a pipe, a socket or a device"):
                read_bytes(path, max_bytes=10, what="a profile")


def test_a_pipe_that_the_shell_hands_over_is_read() -> None:
    reading, writing = os.pipe()
    threading.Thread(target=lambda: (os.write(writing, b"a: 1"), os.close(writing))).start()
    assert read_text(Path(f"/dev/fd/{reading}"), max_bytes=10, what="a profile") == "a: 1"
    os.close(reading)


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere", "No such file"), (".", "Is a directory"), ("a\0b", "zero byte")]
)
def test_what_cannot_be_opened_says_why(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        read_bytes(tmp_path / name, max_bytes=10, what="a profile")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "not JSON"), (b"[NaN]", "NaN is not a finite number"),
     (b"[-1e999]", "1e999 is not a finite number"), (b"[" * 100_000, "too deeply"), (b"\xff", "cannot be read"),
     (b"9" * 5000, "not JSON"), (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key 'c' stands twice")],
)  # fmt: skip
def test_what_is_not_json_says_why(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match=message):
        read_json(path, max_bytes=10**6, what="a scenario")


def test_lines_of_one_record_are_bounded_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("1234\n" * 4)
    with open_text(path) as text:
        lines = BoundedLines(text, max_characters=10, where="rows.csv")
        with pytest.raises(ProfileError, match="10 characters in one row") as caught:
            list(lines)
    assert caught.value.where == "rows.csv:3"
    with open_text(path) as text:
        lines = BoundedLines(text, max_characters=10, where="rows.csv")
        assert sum(1 for _ in iter(lines) if lines.next_record() is None) == 4
