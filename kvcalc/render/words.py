"""Words that tables and charts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats

__all__ = ["formats_text", "gpus_text"]


class _Placed(Protocol):
    @property
    def gpu(self) -> str: ...

    @property
    def gpus(self) -> int: ...


def formats_text(formats: RunFormats) -> str:
    """Return the formats a report was computed with."""
    return f"weights {formats.weights}, KV {formats.kv}, activations {formats.activations}"


def gpus_text(report: _Placed) -> str:
    """Return what a report's model runs on: ``h100-sxm``, or ``2 x h100-sxm``."""
    return f"{report.gpus} x {report.gpu}" if report.gpus > 1 else report.gpu
