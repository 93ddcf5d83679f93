"""How engines lay the cache out: what they reserve, beside what the tokens need."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.engines import ideal, transformers

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.size import Reserved
    from kvcalc.core.workload import Formats

__all__ = ["ENGINES", "reserve"]

ENGINES: dict[str, Callable[..., Reserved]] = {"ideal": ideal.reserve, "transformers": transformers.reserve}


def reserve(engine: str, model: ModelProfile, formats: Formats, *, tokens: int, batch: int) -> Reserved:
    """Return what an engine allocates for a batch of sequences.

    Raises:
        InputError: an engine whose memory is not modelled.
    """
    if engine not in ENGINES:
        hint = did_you_mean(engine, ENGINES) or f"engines: {', '.join(ENGINES)}"
        raise InputError(f"the memory of engine {engine!r} is not modelled", hint=hint)
    return ENGINES[engine](model, formats, tokens=tokens, batch=batch)
