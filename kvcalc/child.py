"""A function that answers in a process of its own, which can be ended in the middle of an answer."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager, suppress
from multiprocessing import connection, get_context, parent_process, resource_tracker
from threading import Thread
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Child", "ChildEndedError", "end_with_parent", "started_apart"]

_Question = TypeVar("_Question")
_Reply = TypeVar("_Reply")


class ChildEndedError(Exception):
    """The process ended before it answered: it was killed, or what it computed ended it."""


class Child(Generic[_Question, _Reply]):
    """A process that answers one question after the other, with what it remembers from one to the next.

    It ends with the process that made it, and takes no Ctrl-C: who made it decides when it ends.

    Args:
        function: answers a question; a function of a module, not the main one, which takes and returns what can be
            pickled.
        tells: whether it is also given a function that tells something before the answer is there.
    """

    def __init__(self, function: Callable[..., _Reply], *, tells: bool = False) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_answer_all, args=(function, theirs), kwargs={"tells": tells}, daemon=True
        )
        with started_apart():
            self._process.start()
        theirs.close()

    def ask(self, question: _Question, tell: Callable[[Any], object] | None = None) -> _Reply:
        """Return the answer; blocks until it is there.

        Args:
            question: what is asked.
            tell: is told what the function tells before it answers.

        Raises:
            ChildEndedError: there will be none. The process is of no more use.
        """
        try:
            self._connection.send(question)
            while True:
                is_answer, value = self._connection.recv()
                if is_answer:
                    reply: _Reply = value
                    return reply
                if tell is not None:
                    tell(value)
        except (EOFError, OSError):
            raise ChildEndedError from None

    def kill(self) -> None:
        """End the process, whatever it is doing; a thread that waits in `ask` gets its error."""
        self._process.kill()
        self._process.join()


@contextmanager
def started_apart() -> Iterator[None]:
    """Have processes that are started inside run for themselves, from their first instruction on.

    They take no SIGINT or SIGHUP of the terminal; one that comes to this process meanwhile comes after. And they do not
    run the main module, so that a script needs no guard: their functions are of other modules.
    """
    with _interrupts_held_back(), _main_module_hidden():
        yield


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    resource_tracker.ensure_running()  # it takes no SIGINT by itself, and its start ends the block of one
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Leave multiprocessing nothing by which a new process would find the main module."""
    own = vars(sys.modules["__main__"])
    kept: dict[str, Any] = {name: own.pop(name) for name in ("__spec__", "__file__") if name in own}
    own["__spec__"] = None
    try:
        yield
    finally:
        own.update(kept)


def _answer_all(function: Callable[..., Any], pipe: connection.Connection[Any, Any], *, tells: bool) -> None:
    end_with_parent()
    also = ((lambda value: pipe.send((False, value))),) if tells else ()
    with suppress(EOFError, OSError):
        while True:
            pipe.send((True, function(pipe.recv(), *also)))


def end_with_parent() -> None:
    """Have this process end as soon as the one that started it has ended, however that ends."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            connection.wait([parent.sentinel])
            os._exit(1)

    Thread(target=watch, daemon=True).start()
