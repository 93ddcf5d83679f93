"""An engine without overhead: it reserves what the tokens need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.size import Reserved
from kvcalc.cost.cache import cache_bytes

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["reserve"]


def reserve(model: ModelProfile, formats: Formats, *, tokens: int, batch: int) -> Reserved:
    """Return the logical bytes of a batch."""
    held = cache_bytes(model, tokens, formats)
    return Reserved(
        engine="ideal",
        kv_bytes=batch * held.growing,
        state_bytes=batch * held.state,
        total_bytes=batch * (held.growing + held.state),
    )
