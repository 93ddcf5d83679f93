"""Charts as Vega-Lite specifications: one module for each report, and what they share in `pieces`.

A module offers ``spec(report)``: a plain mapping, which `write_chart` turns into a file and a web page can draw.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.render.charts.pieces import Spec

__all__ = ["chart_spec", "write_chart"]

_MODULES = {
    "kvcalc.simulate": "simulate",
    "kvcalc.bench": "bench",
    "kvcalc.crosscheck": "crosscheck",
    "kvcalc.decode": "speed",
    "kvcalc.prefill": "speed",
    "kvcalc.roofline": "roofline",
    "kvcalc.speculate": "speculative",
    "kvcalc.traffic": "traffic",
    "kvcalc.levers": "levers",
    "kvcalc.demo_kv_cache": "kv_cache",
    "kvcalc.demo_speculate": "speculation_rounds",
    "kvcalc.demo_paging": "paging",
    "kvcalc.demo_drift": "drift",
    "kvcalc.validate": "validate",
}
_PNG_SCALE = 2.0


def chart_spec(report: Any) -> Spec:
    """Return the chart of a report as a Vega-Lite specification.

    Raises:
        InputError: a report that has no chart.
    """
    kind = report.schema.partition("/")[0]
    if kind not in _MODULES:
        raise InputError(f"{kind} has no chart", hint=f"charts: {', '.join(_MODULES)}")
    spec: Spec = import_module(f"{__name__}.{_MODULES[kind]}").spec(report)
    return spec


def write_chart(spec: Spec, path: str | Path, kind: str) -> None:
    """Write a chart to a file: ``svg``, ``png``, or ``html``, a page that needs no network.

    Raises:
        OSError: a file that cannot be written.
    """
    import vl_convert

    from kvcalc.render.files import write_whole

    if kind == "svg":
        content = vl_convert.vegalite_to_svg(spec).encode()
    elif kind == "png":
        content = vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE)
    else:
        content = vl_convert.vegalite_to_html(spec, bundle=True).encode()
    write_whole(path, content)
