"""A function in a process of its own: it remembers, ends when it is told to, and with the process that made it."""

import os
import signal
import subprocess
import sys
import time
from threading import Timer

import pytest

from kvcalc.child import Child, ChildEndedError


@pytest.fixture
def child_of():
    made = []

    def make(function, **given):
        made.append(Child(function, **given))
        return made[-1]

    yield make
    for child in made:
        child.kill()


def test_questions_are_answered_one_after_the_other_by_one_process(child_of):
    child = child_of(eval)
    assert [child.ask(question) for question in ("1 + 1", "len('x' * 3_000_000)")] == [2, 3_000_000]
    pid = child.ask("__import__('os').getpid()")
    assert pid == child.ask("__import__('os').getpid()") != os.getpid()


def test_what_is_told_before_an_answer_comes_before_it(child_of):
    told = []
    child = child_of(map_and_tell, tells=True)
    assert child.ask([1, 2, 3], told.append) == 3
    assert told == [1, 2, 3]
    assert child.ask([4]) == 1
    assert told == [1, 2, 3]


def map_and_tell(values, tell):
    for value in values:
        tell(value)
    return len(values)


def test_one_that_is_killed_while_it_computes_answers_no_more(child_of):
    child = child_of(time.sleep)
    child.ask(0)
    start = time.monotonic()
    Timer(0.2, child.kill).start()
    with pytest.raises(ChildEndedError):
        child.ask(60)
    assert time.monotonic() - start < 10
    with pytest.raises(ChildEndedError):
        child.ask(0)


def test_one_that_dies_is_told(child_of):
    with pytest.raises(ChildEndedError):
        child_of(os._exit).ask(3)


def test_it_takes_no_interrupt_be_it_the_first_one_or_not():
    script = (
        "from kvcalc.child import Child; import os\n"
        "for _ in range(2):\n"
        " child = Child(eval); os.kill(child.ask('__import__(\"os\").getpid()'), 2); print(child.ask('1 + 1'))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "2\n2\n", "")


def test_it_ends_with_the_process_that_made_it_whatever_it_does():
    script = (
        "from kvcalc.child import Child; import os, threading, time\n"
        "child = Child(eval); print(child.ask('__import__(\"os\").getpid()'), flush=True)\n"
        "threading.Timer(0.3, os.kill, (os.getpid(), 9)).start(); child.ask('__import__(\"time\").sleep(60)')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert not done.stderr
    end = time.monotonic() + 10
    while _runs(int(done.stdout)):
        assert time.monotonic() < end
        time.sleep(0.05)


def _runs(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
