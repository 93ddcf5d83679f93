"""Signals that end the program as Ctrl-C does: what is half done is cleared away before it goes."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["ended_by_signals"]

# A terminal that closes and a shell that goes may each send a signal: within this time they count as one, so that the
# second does not interrupt the clearing away.
_ONE_S = 1.0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Have SIGTERM, SIGHUP and SIGINT raise KeyboardInterrupt inside the block; those that are ignored stay so."""
    usual: dict[int, Any] = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
    if hasattr(signal, "SIGHUP"):
        usual[signal.SIGHUP] = signal.SIG_DFL
    is_main = threading.current_thread() is threading.main_thread()
    taken = [number for number, handler in usual.items() if is_main and signal.getsignal(number) == handler]
    last_s = float("-inf")

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal last_s
        del number, frame
        now_s = monotonic()
        if now_s - last_s >= _ONE_S:
            last_s = now_s
            raise KeyboardInterrupt

    for number in taken:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, usual[number])
