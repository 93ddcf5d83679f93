"""``kvcalc bench``: the rates that this machine reaches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.formats import parse_format
from kvcalc.core.readers import names, whole
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.sources import load_hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.measure import BenchReport
    from kvcalc.measure.library import Device

__all__ = ["Bench", "Measured", "bench", "check_rounds", "format_names", "found_device", "write_profile"]

_MIN_ROUNDS, _MAX_ROUNDS = 1, 1000


class Measured(Question):
    """Device and repetitions of a measurement, and the files it is written to."""

    device: str = param("--device", help="cpu, cuda, or auto for a GPU where there is one.", default="auto")
    gpu: str | None = param("--gpu", help="Ceilings for the bounds.", otherwise="those measured here")
    rounds: int = param("--rounds", help="Repetitions of each measurement.", read=whole, default=20)
    write_gpu: str | None = param(
        "--write-gpu",
        heading="Output",
        help="Write the ceilings as a profile for --gpu.",
        metavar="FILE",
        on_page=False,
    )
    write_calibration: str | None = param(
        "--write-calibration",
        heading="Output",
        help="Write the measured efficiencies, for --calibration.",
        metavar="FILE",
        on_page=False,
    )


class Bench(Measured):
    """Measure this machine: bandwidth, matrix multiplication, attention, overheads. Needs PyTorch.

    Example: kvcalc bench --device cpu --weights fp32 --rounds 3
    """

    weights: tuple[str, ...] = param(
        "--weights", help="Formats to measure: bf16, fp16, fp32.", read=names, default="bf16,fp32"
    )
    has_chart = True

    def answer(self) -> Answer:
        """Return the rates."""
        report = bench(
            device=self.device, formats=self.weights, gpu=self.gpu, rounds=self.rounds, progress=self.progress
        )
        profiles = ((report.hardware, self.write_gpu), (report.calibration, self.write_calibration))
        return Answer(report, profiles=profiles)


def bench(
    *,
    device: str = "auto",
    formats: Sequence[str] = ("bf16", "fp32"),
    gpu: str | Path | HardwareProfile | None = None,
    rounds: int = 20,
    small_sets: bool = True,
    progress: Callable[[str], None] = lambda _: None,
) -> BenchReport:
    """Measure this machine: bandwidth, rates of matrices and attention, and the time of calls and layers.

    Args:
        device: ``cpu``, ``cuda``, or ``auto`` for a GPU where there is one.
        formats: of bf16, fp16 and fp32.
        gpu: ceilings that bounds and calibration stand on; those reached here where left out.
        rounds: repetitions of each benchmark; a third of them for matrices and attention.
        small_sets: whether working sets that caches may hold are measured as well.
        progress: told what is measured next.

    Raises:
        InputError: torch is not installed, the device is not there, or too little memory is free.
    """
    check_rounds(rounds)
    against = None if gpu is None else load_hardware(gpu)
    measured_device = found_device(device)
    from kvcalc.measure.bench import bench_report
    from kvcalc.measure.library import torch_dtype
    from kvcalc.measure.probes import Plan

    names = format_names(formats)
    if not names:
        raise InputError("no format is given", hint="give --weights bf16,fp32")
    for name in names:
        torch_dtype(name)
    plan = Plan.asked(names, rounds, small_sets=small_sets)
    return bench_report(measured_device, plan, progress=progress, against=against)


def found_device(name: str) -> Device:
    """Return a device of PyTorch by its name."""
    from kvcalc.measure.library import find_device

    return find_device(name)


def format_names(formats: Sequence[str]) -> tuple[str, ...]:
    """Return the full names of formats, each once."""
    return tuple(dict.fromkeys(parse_format(name).name for name in formats))


def check_rounds(rounds: int) -> None:
    """Refuse too many repetitions, or none.

    Raises:
        InputError: either.
    """
    if not _MIN_ROUNDS <= rounds <= _MAX_ROUNDS:
        raise InputError(f"--rounds must be from {_MIN_ROUNDS} to {_MAX_ROUNDS:,}, not {rounds}")


def write_profile(profile: HardwareProfile | Calibration, path: str | Path) -> None:
    """Write ceilings or a calibration as a profile file, whole or not at all.

    Raises:
        OSError: a folder that does not exist or cannot be written to.
    """
    from kvcalc.files import write_whole
    from kvcalc.profiles.writer import profile_yaml

    write_whole(path, profile_yaml(profile).encode())
