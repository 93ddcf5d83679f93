"""The table of ``kvcalc fit --device``: one sentence, then the bytes of each device and the host, and the command."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, count_text, counted, number_text
from kvcalc.plan.local.words import rate_text
from kvcalc.render.layout import Text
from kvcalc.render.tables import engine_text, grid, heading, note_lines

if TYPE_CHECKING:
    from kvcalc.core.reports.catalogue import ModelsFitReport, RunnableModel
    from kvcalc.core.reports.local import LocalReport, LocalSizeReport, PlaceBytes
    from kvcalc.core.reports.local_speed import EngineFit, LocalSpeed
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Grid, Part

__all__ = [
    "command_lines",
    "models_parts",
    "models_sentence",
    "parts",
    "places_grid",
    "sentence",
    "spec",
    "speed_lines",
]

# Tokens a second below which a digit after the point counts.
_BAR_HEIGHT = 60


def sentence(report: LocalReport) -> str:
    """Return the verdict, and the placement with its speed or what does not fit."""
    text = report.headline if report.headline and report.fits else _said(report)
    return f"{'FITS' if report.fits else 'DOES NOT FIT'}: {text}"


def parts(report: LocalReport) -> list[Part]:
    """Return the places, the speed and the command."""
    return [
        heading(f"{report.model}, {report.weights}, {engine_text(report.engine)}"),
        places_grid(report),
        *speed_lines(report),
        *(command_lines(report.command) if report.fits else [Text()]),
        *note_lines(report.notes),
    ]


def speed_lines(report: LocalReport) -> list[Part]:
    """Return lines on the speed of one sequence, and on the placement that the engine's own search would choose."""
    lines: list[Part] = []
    speed, other = report.speed, report.engine_fit
    if speed is not None:
        lines += [Text(), Text(_speed_words(speed))]
    if other is not None:
        rate = "" if other.tokens_per_s is None else f": at most {rate_text(other.tokens_per_s)} tokens/s"
        lines.append(Text(f"llama.cpp's own --fit takes {_fit_words(other)}{rate}"))
    return lines


def _speed_words(speed: LocalSpeed) -> str:
    """Return bounds and estimates of decode and prefill, in one line."""
    words = f"decode: at most {rate_text(speed.tokens_per_s)} tokens/s at {number_text(speed.context)} tokens"
    if speed.estimate_low_s and speed.estimate_high_s:
        words += f", estimated {rate_text(1 / speed.estimate_high_s)} to {rate_text(1 / speed.estimate_low_s)}"
    if speed.sequences > 1 and speed.all_tokens_per_s is not None:
        words += f" ({speed.sequences} sequences together at most {rate_text(speed.all_tokens_per_s)})"
    if speed.prefill_tokens_per_s is None:
        return words
    words += f"; prefill: at most {rate_text(speed.prefill_tokens_per_s)} in batches of {speed.micro_batch}"
    if speed.overlapping_micro_batches > 1:
        words += f", {speed.overlapping_micro_batches} of them on their way together"
    low, high = speed.prefill_estimate_low_tokens_per_s, speed.prefill_estimate_high_tokens_per_s
    return words if low is None or high is None else f"{words}, estimated {rate_text(low)} to {rate_text(high)}"


def _fit_words(other: EngineFit) -> str:
    words = [other.flags.partition(" -ot ")[0]]
    if other.overrides:
        words.append(f"and moves tensors of {counted(len(other.overrides), 'layer')}")
    return " ".join(words)


def _said(report: LocalReport) -> str:
    """Return the reason that nothing fits, and the placement of layers and experts in words."""
    times = f"{number_text(report.parallel)} x " * (report.parallel > 1)
    asked = f"{times}{number_text(report.context)}-token context"
    return f"{report.reason}; " * bool(report.reason) + f"{report.weights}: {report.placement.words}; {asked}"


def places_grid(report: LocalReport | LocalSizeReport) -> Grid:
    """Return a row for each device and the host."""
    columns = ["", "layers", "weights", "context", "compute", "total", "free", "fits"]
    return grid(columns, [_cells(device) for device in (*report.devices, report.host)], left=1)


def _cells(device: PlaceBytes) -> list[str]:
    weights = device.weight_bytes + device.repacked_bytes
    free = None if device.memory_bytes is None else device.memory_bytes - device.used_bytes - device.overhead_bytes
    return [
        device.name,
        number_text(device.layers - device.output_layers - device.mtp_layers),  # the model's own, as in the first line
        bytes_text(weights),
        bytes_text(device.context_bytes),
        "-" if device.compute_bytes is None else bytes_text(device.compute_bytes),
        bytes_text(device.reserved_bytes),
        "-" if free is None else bytes_text(max(0, free)),
        "-" if device.fits is None else "yes" if device.fits else "no",
    ]


def command_lines(command: str) -> list[Part]:
    """Return the command on a line of its own, which is never broken."""
    return [Text(), Text(command, wraps=False)]


def models_sentence(report: ModelsFitReport) -> str:
    """Count the models that run, and those of them on the devices alone."""
    alone = sum(row.stands == "devices" for row in report.rows)
    where = " and ".join(report.devices) or "the host"
    return (
        f"{counted(len(report.rows), 'model')} of the catalogue run here with {counted(report.context, 'token')} of "
        f"context, {alone} of them on {where} alone; {report.too_large_models} are too large"
    )


def models_parts(report: ModelsFitReport) -> list[Part]:
    """Return a row for each model, those on the devices alone first."""
    columns = ["model", "parameters", "weights", "file", "on", "tokens/s at most"]
    table = grid(columns, [_model_cells(row) for row in report.rows], left=1)
    unknown = (f"{counted(report.unknown_models, 'model')}: the tensors of their GGUF files are not known",)
    return [table, Text(), *note_lines([*(unknown if report.unknown_models else ()), *report.notes])]


def _model_cells(row: RunnableModel) -> list[str]:
    rate = "-" if row.tokens_per_s is None else rate_text(row.tokens_per_s)
    return [row.model, count_text(row.parameters), row.weights, bytes_text(row.total_bytes), row.stands, rate]


def spec(report: LocalReport) -> Spec:
    """Return a bar for each device and the host: what is taken of its memory, and what is left."""
    from kvcalc.render.charts import Axis, bar_layer, chart

    places = (*report.devices, report.host)
    parts = [(device, part, size) for device in places for part, size in _parts_of(device).items()]
    rows = [{"part": part, "bytes": size, "place_name": device.name} for device, part, size in parts]
    bars = bar_layer(rows, x=Axis(field="bytes", title="memory, bytes"), series="part", title="what takes it")
    bars["encoding"]["color"]["scale"]["domain"] = list(dict.fromkeys(part for _, part, _ in parts))
    bars["encoding"]["y"] = {"field": "place_name", "type": "nominal", "title": None, "sort": None}
    verdict = "fits" if report.fits else "does not fit"
    subtitle = [
        f"{engine_text(report.engine)}; {report.weights}; {report.parallel:,} x {report.context:,} tokens",
        "source: kvcalc fit",
    ]
    title = f"{report.model} on {counted(len(report.devices), 'device')} and the host: {verdict}"
    return chart([bars], height=_BAR_HEIGHT * len(places), subtitle=subtitle, title=title)


def _parts_of(device: PlaceBytes) -> dict[str, int]:
    """Return the parts of a place's memory, what is left last."""
    taken = {
        "weights": device.weight_bytes + device.repacked_bytes,
        "context": device.context_bytes,
        "compute": device.compute_bytes or 0,
        "other programs": device.used_bytes + device.overhead_bytes,
    }
    free = 0 if device.memory_bytes is None else max(0, device.memory_bytes - sum(taken.values()))
    return taken | {"free": free}
