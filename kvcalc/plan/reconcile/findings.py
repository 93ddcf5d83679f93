"""A printed number beside the interval it is predicted to lie in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.reports.reconcile import ReconcileRow
from kvcalc.core.units import GIB

if TYPE_CHECKING:
    from kvcalc.core.reports.reconcile import Number
    from kvcalc.engines.logs import Printed, StartUp

__all__ = ["Finding", "bytes_of_gib", "row_of", "start_up_name"]

# Room for the rounding of floating-point numbers, far below any printed digit.
_ROUNDING = 2e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A printed number and its prediction, both in the unit that the quantity names.

    Args:
        quantity: what it is.
        printed: the number.
        least: the smallest predicted.
        most: the largest predicted.
        reason: how the prediction was made.
        value: what is computed from the printed digits as they stand; the middle of the interval where left out.
        impossible: why the number cannot occur, though it lies in the interval: of blocks there are whole ones only.
    """

    quantity: str
    printed: Printed
    least: float
    most: float
    reason: str = ""
    value: float | None = None
    impossible: str = ""

    @property
    def agrees(self) -> bool:
        """Whether the two intervals meet, in a number that can occur."""
        return self.meets and not self.impossible

    @property
    def meets(self) -> bool:
        """Whether the two intervals meet."""
        room = _ROUNDING * max(1.0, abs(self.printed.value))
        return self.printed.least <= self.most + room and self.least <= self.printed.most + room


def bytes_of_gib(printed: Printed) -> tuple[int, int]:
    """Return the fewest and the most bytes that are printed like this.

    >>> from kvcalc.engines.logs import Printed
    >>> bytes_of_gib(Printed(value=1.0, half_step=0.25, line=1))
    (805306368, 1342177280)
    """
    return max(0, int(printed.least * GIB)), max(0, int(printed.most * GIB))


def start_up_name(start_up: StartUp) -> str:
    """Name a start-up in a report."""
    name = " ".join(part for part in (start_up.engine, start_up.source, start_up.replica) if part)
    return f"{name}, line {start_up.line}"


def row_of(finding: Finding, start_up: StartUp, reason: str = "") -> ReconcileRow:
    """Return the row of a finding."""
    value = (finding.least + finding.most) / 2 if finding.value is None else finding.value
    predicted = min(max(value, finding.least), finding.most)
    # a number beyond the interval differs from its nearer end
    nearer = predicted if finding.meets else min(max(finding.printed.value, finding.least), finding.most)
    return ReconcileRow(
        start_up=start_up_name(start_up),
        quantity=finding.quantity,
        printed=_tidy(finding.printed.value),
        predicted=_tidy(predicted),
        predicted_least=_tidy(finding.least),
        predicted_most=_tidy(finding.most),
        difference=0 if finding.agrees else _tidy(finding.printed.value - nearer),
        agrees=finding.agrees,
        reason="; ".join(text for text in (finding.impossible, reason or finding.reason) if text),
    )


def _tidy(value: float) -> Number:
    return int(value) if value == int(value) else round(value, 6)
