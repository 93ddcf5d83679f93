"""The chart of ``kvcalc speculate``: the speed-up over batch and acceptance, turning where it stops paying."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.charts.pieces import Axis, chart, heat_map
from kvcalc.render.words import formats_text, gpus_text

if TYPE_CHECKING:
    from kvcalc.core.reports.speculative import SpeculativeReport
    from kvcalc.render.charts.pieces import Spec

__all__ = ["spec"]


def spec(report: SpeculativeReport) -> Spec:
    """Return a cell for each batch and rate of acceptance, at the report's first context; a dash where none fits."""
    held, beyond = (
        [
            {
                "batch": f"{cell.batch:,}",
                "acceptance": f"{cell.acceptance:g}",
                "speedup": cell.speedup,
                "gamma": cell.gamma,
            }
            for cell in report.map
            if cell.fits is fits
        ]
        for fits in (True, False)
    )
    field = heat_map(
        held,
        x=Axis(field="acceptance", title="acceptance of a drafted token", scale="names"),
        y=Axis(field="batch", title="batch, sequences", scale="names"),
        value=Axis(field="speedup", title="speed-up", format=".2f"),
        middle=1.0,
        without=beyond,
    )
    drafted = f"{report.method}, draft {report.draft}" if report.draft else report.method
    gammas = {cell.gamma for cell in report.map}
    told = [
        f"{drafted}; gamma {gammas.pop() if len(gammas) == 1 else 'the best of each cell'}; context {report.context:,}",
        f"{formats_text(report.formats)}; ideal times, over plain decoding: below 1, beyond the line, it does not pay",
        *(["–: does not fit into memory"] if beyond else []),  # noqa: RUF001
        f"source: kvcalc, profiles {report.model}{f', {report.draft}' if report.draft else ''} and {report.gpu}",
    ]
    return chart([field], title=f"Speculation: {report.model} on {gpus_text(report)}", subtitle=told)
