"""Bytes read to generate tokens: the answer of ``kvcalc traffic``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats

__all__ = ["TrafficReport", "TrafficRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRow:
    """Bytes read by the time that so many tokens have been generated.

    Args:
        output_tokens: tokens generated for each sequence.
        context: tokens of each sequence then.
        kv_bytes: the cache of the batch then.
        weight_bytes: weights read, once for each token of the batch together.
        kv_read_bytes: cache read, by all sequences.
        growth_exponent: d log(kv_read_bytes) / d log(output_tokens); none where nothing is read.
    """

    output_tokens: int = field(metadata=figure("tokens"))
    context: int = field(metadata=figure("context"))
    kv_bytes: int = field(metadata=figure("cache then", "lower"))
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_read_bytes: int = field(metadata=figure("cache read", "lower"))
    growth_exponent: float | None = field(metadata=figure("exponent", "lower", digits=2))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TrafficReport(Report):
    """Bytes read to generate tokens after a prompt; those of the prompt's own pass are not among them.

    Args:
        levers: what was changed about the cache.
        rows: the same figures at doublings of the output, the whole output last.
    """

    schema: str = "kvcalc.traffic/1"
    model: str
    formats: RunFormats
    batch: int
    prompt_tokens: int
    output_tokens: int
    levers: tuple[str, ...]
    weight_bytes: float = field(metadata=figure("weights read", "lower"))
    kv_read_bytes: int = field(metadata=figure("cache read", "lower"))
    growth_exponent: float | None = field(metadata=figure("exponent", "lower"))
    kv_bytes: int = field(metadata=figure("cache then", "lower"))
    rows: tuple[TrafficRow, ...]
    notes: tuple[str, ...] = ()
