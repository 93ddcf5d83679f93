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
    from kvcalc.cli.measuring import hand_over, leave, listed, tell
    from kvcalc.cli.shared import command_output
    from kvcalc.render.files import check_writable

    shown = command_output(output, json=json)
    check_writable((write_gpu, write_calibration))
    report = api.bench(device=device, formats=listed(weights), gpu=gpu, rounds=rounds, progress=tell)
    profiles = ((report.hardware, write_gpu), (report.calibration, write_calibration))
    hand_over(report, shown, profiles, chart_files)
    leave(interrupted=report.interrupted)
