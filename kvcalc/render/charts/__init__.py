"""Charts as Vega-Lite specifications: one module for each report, and what they share in `pieces`.

A module offers ``spec(report)``: a plain mapping, which `picture` turns into a file and a web page can draw. A report
with a method ``spec`` needs none.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from kvcalc.render.charts.pieces import Spec

__all__ = ["chart_spec", "picture", "require_drawing", "runtime"]

_MODULES = {
    "kvcalc.simulate": "simulate",
    "kvcalc.bench": "bench",
    "kvcalc.crosscheck": "crosscheck",
    "kvcalc.decode": "speed",
    "kvcalc.decode/memory": "memory",
    "kvcalc.fit": "fit",
    "kvcalc.prefill": "speed",
    "kvcalc.roofline": "roofline",
    "kvcalc.roofline/intensity": "intensity",
    "kvcalc.speculate": "speculative",
    "kvcalc.traffic": "traffic",
    "kvcalc.levers": "levers",
    "kvcalc.validate": "validate",
}
_PNG_SCALE = 2.0


def chart_spec(report: Any, *, view: str = "") -> Spec:
    """Return the chart of a report as a Vega-Lite specification.

    Args:
        report: a report.
        view: which of its charts, where it has several; the first where left out.

    Raises:
        InputError: a report that has no such chart.
    """
    kind = report.schema.partition("/")[0]
    name = f"{kind}/{view}" if view else kind
    spec: Spec
    if hasattr(report, "spec") and not view:
        spec = report.spec()
    elif name in _MODULES:
        spec = import_module(f"{__name__}.{_MODULES[name]}").spec(report)
    else:
        raise InputError(f"{name} has no chart", hint=f"charts: {', '.join(_MODULES)}")
    return spec


def require_drawing() -> None:
    """Refuse to draw where the library that does it is not installed.

    Raises:
        InputError: it is not.
    """
    if find_spec("vl_convert") is None:
        raise InputError("charts are drawn by vl-convert, which is not installed", hint='pip install "kvcalc[charts]"')


def runtime() -> str:
    """Return the JavaScript that draws specifications, as one module without imports; it takes seconds to put together.

    It sets ``window.vegaEmbed``, whose option ``ast`` draws without ``eval``.

    Raises:
        InputError: the library that it comes from is not installed.
    """
    require_drawing()
    import vl_convert

    return str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;"))


def picture(spec: Spec, kind: str) -> bytes:
    """Return a chart as the content of a file: ``svg``, ``png``, or ``html``, a page that needs no network.

    The JavaScript engine that draws ends the process where it gets too little memory.

    Raises:
        InputError: it is not installed.
    """
    require_drawing()
    import vl_convert

    if kind == "svg":
        return str(vl_convert.vegalite_to_svg(spec)).encode()
    if kind == "png":
        return bytes(vl_convert.vegalite_to_png(spec, scale=_PNG_SCALE))
    return str(vl_convert.vegalite_to_html(spec, bundle=True)).encode()
