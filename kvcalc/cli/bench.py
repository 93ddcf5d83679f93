"""``kvcalc bench``."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from kvcalc.cli.measuring import Ceilings, Device, Rounds, WriteCalibration, WriteGpu
from kvcalc.cli.options import Json, Output, takes_charts

Weights = Annotated[str, Option("--weights", help="Formats that are measured, of bf16, fp16 and fp32.")]


@takes_charts
def command(
    device: Device = "auto",
    weights: Weights = "bf16,fp32",
    gpu: Ceilings = None,
    rounds: Rounds = 20,
    write_gpu: WriteGpu = None,
    write_calibration: WriteCalibration = None,
    json: Json = False,
    output: Output = "table",
    *,
    chart_files: dict[str, str | None],
) -> None:
    """What this machine reaches: bandwidth, rates of matrices and attention, overheads. Needs PyTorch.

    Example: kvcalc bench --device cpu --weights fp32 --rounds 3
    """
    from kvcalc import api
    from kvcalc.cli.measuring import check_folders, leave, listed, tell, write_profiles
    from kvcalc.cli.shared import command_output, draw, emit

    shown = command_output(output, json=json)
    check_folders((write_gpu, write_calibration, *chart_files.values()))
    report = api.bench(device=device, formats=listed(weights), gpu=gpu, rounds=rounds, progress=tell)
    emit(report, shown)
    write_profiles(report.hardware, report.calibration, {"gpu": write_gpu, "calibration": write_calibration})
    draw(report, chart_files)
    leave(interrupted=report.interrupted)
