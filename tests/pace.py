"""How fast this machine is at Python, so that a limit on time is one of work and holds on slower machines too."""

from __future__ import annotations

import time

_ADDITIONS = 2_000_000
# CPU seconds of so many additions on a machine of 2024 with nothing else to do.
_USUAL_S = 0.1


def usual_s(seconds: float) -> float:
    """Return what this machine needs, busy as it is now, for work of so many CPU seconds on a usual one."""
    start, total = time.process_time(), 0
    for number in range(_ADDITIONS):
        total += number
    return seconds * max(1.0, (time.process_time() - start) / _USUAL_S)
