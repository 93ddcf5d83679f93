"""Words that tables and charts share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from kvcalc.core.units import number_text

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats

__all__ = ["expected_text", "figure_text", "formats_text", "gpus_text"]


class _Placed(Protocol):
    @property
    def gpu(self) -> str: ...

    @property
    def gpus(self) -> int: ...


def formats_text(formats: RunFormats) -> str:
    """Return the formats a report was computed with."""
    return f"weights {formats.weights}, KV {formats.kv}, activations {formats.activations}"


def gpus_text(report: _Placed) -> str:
    """Name the accelerators of a report's model: ``h100-sxm``, or ``2 x h100-sxm``."""
    return f"{report.gpus} x {report.gpu}" if report.gpus > 1 else report.gpu


def figure_text(value: Any) -> str:
    """Return a figure of any report: a number, a word, true or false as files of checks write them, or ``-``.

    >>> figure_text(131072), figure_text(True), figure_text(None), figure_text(["memory", "compute"])
    ('131,072', 'true', '-', 'memory or compute')
    """
    if isinstance(value, list):
        return " or ".join(figure_text(each) for each in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return number_text(value)


def expected_text(expected: Any) -> str:
    """Return a check's expectation of a figure, in the words of its file; nothing where it has none.

    >>> expected_text({"min": 30, "max": "4e1"}), expected_text(True), expected_text(None)
    ('min 30, max 4e1', 'true', '')
    """
    if isinstance(expected, dict):
        return ", ".join(f"{key} {figure_text(value)}" for key, value in expected.items())
    return "" if expected is None else figure_text(expected)
