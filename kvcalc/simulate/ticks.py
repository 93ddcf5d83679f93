"""Time in a simulation: whole ticks of 2**-100 s.

Sums of whole numbers do not depend on their order, so a simulator that jumps over a thousand steps arrives at the very
tick of one that adds them one by one.
"""

from __future__ import annotations

__all__ = ["NEVER", "SECONDS_PER_TICK", "TICKS_PER_S", "ticks"]

TICKS_PER_S = 2**100
SECONDS_PER_TICK = 2.0**-100
# A tick that is never reached.
NEVER = 2**250


def ticks(seconds: float) -> int:
    """Return a time in ticks."""
    return round(seconds * TICKS_PER_S)
