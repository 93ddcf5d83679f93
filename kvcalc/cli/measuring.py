"""Options that ``bench`` and ``crosscheck`` share, and what both do with a report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Exit, Option

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile

__all__ = [
    "Ceilings",
    "Device",
    "Rounds",
    "WriteCalibration",
    "WriteGpu",
    "check_folders",
    "leave",
    "listed",
    "tell",
    "write_profiles",
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


def check_folders(paths: Iterable[str | None]) -> None:
    """Refuse a file whose folder is not there before minutes are spent on what it would hold.

    Raises:
        InputError: the first such file.
    """
    for path in paths:
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise InputError(f"{path}: there is no such folder", hint="the report is written there when it is done")


def tell(step: str) -> None:
    """Say on standard error what is done next."""
    sys.stderr.write(f"measuring: {step}\n")
    sys.stderr.flush()


def write_profiles(hardware: HardwareProfile, calibration: Calibration | None, files: dict[str, str | None]) -> None:
    """Write ceilings and calibration to the files that were asked for.

    Args:
        hardware: the ceilings.
        calibration: what operators reach, where it is known.
        files: for ``gpu`` and ``calibration`` the file, or none.
    """
    from kvcalc import api

    profiles: dict[str, Any] = {"gpu": hardware, "calibration": calibration}
    for kind, path in files.items():
        if path is not None and profiles[kind] is not None:
            api.write_profile(profiles[kind], path)
            sys.stderr.write(f"wrote {path}\n")


def leave(*, interrupted: bool, passed: bool = True) -> None:
    """End with the exit code of what was measured: 130 interrupted, 1 a check failed."""
    if interrupted:
        raise Exit(_INTERRUPTED)
    if not passed:
        raise Exit(1)
