"""Files that are written whole or not at all, by however many at once, whatever ends the writing."""

import errno
import os
import resource
import signal
import threading

import pytest

from kvcalc.core.errors import InputError
from kvcalc.files import check_writable, whole_file, write_whole
from kvcalc.render.perfetto import open_trace
from kvcalc.render.rows import row_file


@pytest.fixture
def narrow():
    """Let no file grow beyond 64 KiB, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    was = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65_536, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, was)


def _names(folder):
    return [path.name for path in folder.iterdir()]


def test_of_two_that_write_one_file_the_last_to_end_wins_and_is_whole(tmp_path):
    path = tmp_path / "rows.csv"
    with row_file(path, {"run": str}) as add_first:
        with row_file(path, {"run": str}) as add_second:
            for _ in range(1000):
                add_first(("first",))
                add_second(("second",))
        assert path.read_text() == "run\n" + "second\n" * 1000
    assert path.read_text() == "run\n" + "first\n" * 1000
    assert _names(tmp_path) == ["rows.csv"]


def test_whoever_reads_while_others_write_finds_one_of_the_files_whole(tmp_path):
    path = tmp_path / "x.bin"
    contents = [bytes([number]) * 300_000 for number in range(4)]
    write_whole(path, contents[0])
    writers = [
        threading.Thread(target=lambda each=each: [write_whole(path, each) for _ in range(5)]) for each in contents
    ]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in contents
    assert _names(tmp_path) == ["x.bin"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError, ValueError])
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "trace.json"])
def test_whatever_ends_the_writing_leaves_the_old_file_and_nothing_else(tmp_path, name, error):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    path.write_text("old")
    writer = open_trace(path) if name == "trace.json" else row_file(path, {"n": int})
    with pytest.raises(error), writer:
        raise error
    assert path.read_text() == "old"
    assert _names(tmp_path) == [name]


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet", "trace.json"])
def test_a_full_disk_is_told_with_the_name_that_was_asked_for(tmp_path, name):
    if name.endswith("parquet"):
        pytest.importorskip("pyarrow")
    path = tmp_path / name
    with pytest.raises(OSError, match="File too large") as error:  # noqa: PT012  whichever write is the first too many
        if name == "trace.json":
            with open_trace(path) as trace:
                for number in range(10_000):
                    trace.process(number, "x")
        else:
            with row_file(path, {"n": int, "text": str}) as add:
                for number in range(200_000):
                    add((number, f"{number * 7919 % 104_729:x}"))
    assert (error.value.errno, error.value.filename) == (errno.EFBIG, str(path))
    assert _names(tmp_path) == []


def test_a_file_that_is_replaced_keeps_its_mode_and_a_new_one_takes_the_usual(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.touch(mode=0o600)
    mask = os.umask(0o027)
    try:
        write_whole(old, b"x")
        write_whole(new, b"x")
    finally:
        os.umask(mask)
    assert [path.stat().st_mode & 0o777 for path in (old, new)] == [0o600, 0o640]


def test_a_link_stays_one_and_its_file_is_written(tmp_path):
    (tmp_path / "link").symlink_to("file")
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"x"


def test_a_pipe_is_written_into_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    write_whole(pipe, b"chart")
    reader.join(timeout=10)
    assert read == [b"chart"]
    assert pipe.is_fifo()


def test_a_full_device_is_an_error_of_the_disk():
    with pytest.raises(OSError, match="No space left"):
        write_whole("/dev/full", b"x" * 100_000)


def test_a_name_as_long_as_names_may_be_is_written(tmp_path):
    path = tmp_path / ("ü" * 125 + ".csv")
    write_whole(path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize(("name", "why"), [("no/such.csv", "no such folder"), (".", "is a folder")])
def test_what_cannot_be_written_is_refused_before_the_work(tmp_path, name, why):
    with pytest.raises(InputError, match=why):
        check_writable([None, tmp_path / name])


def test_a_file_that_may_not_be_written_is_refused_before_the_work(tmp_path, monkeypatch):
    fixed = tmp_path / "fixed.csv"
    fixed.touch()
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (fixed, os.W_OK))
    with pytest.raises(InputError, match=r"fixed\.csv: it cannot be written to"):
        check_writable([fixed])
    check_writable([tmp_path / "new.csv", "/dev/null"])


def test_an_unfinished_file_has_a_name_of_its_own_in_the_same_folder(tmp_path):
    with whole_file(tmp_path / "rows.csv") as file:
        file.write(b"x")
        (name,) = _names(tmp_path)
    assert name.startswith(".rows.csv.")
    assert name.endswith(".part")
