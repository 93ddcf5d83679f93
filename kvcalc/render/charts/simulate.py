"""The charts of ``kvcalc simulate``: batch, cache and latencies over time, and the percentiles_s of latencies."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from kvcalc.render.charts.pieces import Axis, chart, line_layer
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.simulate import SimulateReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]

_TIME = Axis(field="time_s", title="time, s", format=",~r")
_NAMES = {"ttft": "to first token", "tpot": "per output token", "inter_token": "between tokens",
          "e2e": "to last token"}  # fmt: skip
_HEIGHT = 180
_LEAST_S = 1e-6


def spec(report: SimulateReport) -> Spec:
    """Return four charts, one below the other."""
    over_time = [
        (
            _series(report, {"running_requests": "running", "waiting_requests": "waiting"}),
            "requests",
            "Requests at once",
            "linear",
        ),
        (_series(report, {"cache_used_share": "cache"}), "share of the blocks", "Cache in use", "linear"),
        (_series(report, {"ttft_s": "to first token", "inter_token_s": "between tokens"}), "s", "Latency", "log"),
    ]
    told = [
        f"{report.workload}; {formats_text(report.formats)}; step times: {report.setup.step_times}",
        f"source: kvcalc simulate, profiles {report.model} and {report.gpu}",
    ]
    charts = [_panel(rows, _TIME, y, title, scale) for rows, y, title, scale in over_time]
    charts.append(_panel(_distribution(report), Axis(field="time_s", title="latency, s", scale="log", format=",~r"),
                         "percent of requests or tokens", "Latencies at most", "linear"))  # fmt: skip
    whole = chart([], title=f"Serving: {report.model} on {gpus_text(report)}", subtitle=told)
    for name in ("layer", "width", "height"):
        del whole[name]
    return whole | {"vconcat": charts, "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}}}


def _panel(rows: list[Mapping[str, Any]], x: Axis, y: str, title: str, scale: Any) -> Spec:
    up = Axis(field="value", title=y, scale=scale, format=",~r")
    panel = chart([line_layer(rows, x=x, y=up, series="what", title="", points=False)], title=title, height=_HEIGHT)
    del panel["$schema"], panel["config"]
    return panel


def _series(report: SimulateReport, fields: Mapping[str, str]) -> list[Mapping[str, Any]]:
    return [
        {"time_s": (row.start_s + row.end_s) / 2, "value": getattr(row, field), "what": name}
        for field, name in fields.items()
        for row in report.series
        if getattr(row, field) is not None
    ]


def _distribution(report: SimulateReport) -> list[Mapping[str, Any]]:
    return [
        {"time_s": value_s, "value": percent, "what": name}
        for field, name in _NAMES.items()
        for percent, value_s in enumerate(report.percentiles_s[field], 1)
        if not math.isnan(value_s) and value_s > _LEAST_S
    ]
