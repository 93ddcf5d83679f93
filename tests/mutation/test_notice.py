"""The judge of random faults: what a process that ran the tests of a fault says by the way it ended."""

import os
import signal

import pytest

from .notice import in_child, verdict_of


def _for_ever():
    while True:
        pass


def _raises():
    raise SystemExit("whatever it is")


@pytest.mark.parametrize(
    ("function", "verdict"),
    [
        (lambda: False, "SURVIVED"),
        (lambda: True, "noticed"),
        (_raises, "noticed"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "noticed"),
        (_for_ever, "noticed (endless)"),
    ],
    ids=["passes", "fails", "raises", "ended", "endless"],
)
def test_whatever_does_not_pass_is_noticed_and_what_computes_for_ever_too(function, verdict):
    assert in_child(function, endless_s=1) == verdict


def test_a_process_that_its_limit_of_cpu_ended_was_endless():
    assert verdict_of(-signal.SIGXCPU) == verdict_of(-signal.SIGKILL) == "noticed (endless)"
    assert (verdict_of(0), verdict_of(1), verdict_of(-signal.SIGSEGV)) == ("SURVIVED", "noticed", "noticed")
