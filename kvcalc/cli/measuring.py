"""Options that ``bench`` and ``crosscheck`` share, and what both do with a report."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile

__all__ = [
    "Ceilings",
    "Device",
    "Rounds",
    "WriteCalibration",
    "WriteGpu",
    "hand_over",
    "leave",
    "listed",
    "tell",
]

Device = Annotated[str, Option("--device", help="cpu, cuda, or auto for a GPU where there is one.")]
Rounds = Annotated[int, Option("--rounds", help="Repetitions, made in turn.")]
Ceilings = Annotated[
    str | None, Option("--gpu", help="Ceilings that bounds stand on; those measured here where left out.")
]
WriteGpu = Annotated[
    str | None, Option("--write-gpu", metavar="FILE", help="Write the ceilings as a profile for --gpu.")
]
WriteCalibration = Annotated[
    str | None, Option("--write-calibration", metavar="FILE", help="Write what operators reach, for --calibration.")
]

_INTERRUPTED = 130


def listed(text: str) -> tuple[str, ...]:
    """Return the names of a list separated by commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def tell(step: str) -> None:
    """Say on standard error what is done next."""
    sys.stderr.write(f"measuring: {step}\n")
    sys.stderr.flush()


def hand_over(
    report: Any,
    shown: str,
    profiles: Sequence[tuple[HardwareProfile | Calibration | None, str | None]],
    charts: Mapping[str, str | None],
) -> None:
    """Write the files that were asked for and print the report; what cannot be written holds up nothing else.

    Args:
        report: what was measured.
        shown: how it is printed.
        profiles: ceilings and calibration, each with its file; a calibration that was not fitted is none.
        charts: for each kind of chart its file, or none.

    Raises:
        Exception: what came of the first file that could not be written, once the report is printed.
    """
    from kvcalc.cli.shared import draw, emit

    failed: list[Exception] = []
    steps = (
        *(partial(_write, *pair) for pair in profiles),
        *(partial(draw, report, {kind: path}) for kind, path in charts.items()),
    )
    for step in steps:
        try:
            step()
        except Exception as error:  # noqa: BLE001  raised below, when nothing is lost any more
            failed.append(error)
    emit(report, shown)
    if failed:
        raise failed[0]


def _write(profile: HardwareProfile | Calibration | None, path: str | None) -> None:
    from kvcalc import api

    if path is None:
        return
    if profile is None:
        sys.stderr.write(f"nothing was written to {path}: no calibration was fitted\n")
        return
    api.write_profile(profile, path)
    sys.stderr.write(f"wrote {path}\n")


def leave(*, interrupted: bool, passed: bool = True) -> None:
    """End with the exit code of what was measured: 130 interrupted, 1 a check failed."""
    if interrupted:
        raise Exit(_INTERRUPTED)
    if not passed:
        raise Exit(1)
