"""Tables and charts of reports, a module for each question.

A module offers ``sentence(report)``, the answer in one sentence, ``parts(report)``, what is printed below it, and where
there is a chart ``spec(report)``, a plain mapping in Vega-Lite, which `kvcalc.render.charts.picture` turns into a file
and a page can draw. A report with methods of these names needs no module.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["shown_by"]

# The module of each report and, where a module prints several, the word before its functions' names.
_MODULES = {
    "kvcalc.bench": "bench",
    "kvcalc.calibrate": "calibrate",
    "kvcalc.check": "check",
    "kvcalc.check_measured": "check.measured",
    "kvcalc.compare": "compare",
    "kvcalc.crosscheck": "crosscheck",
    "kvcalc.decode": "speed",
    "kvcalc.devices": "machine",
    "kvcalc.fit": "fit",
    "kvcalc.fit_devices": "local",
    "kvcalc.gpus": "catalogue.gpus",
    "kvcalc.layers": "layers",
    "kvcalc.levers": "levers",
    "kvcalc.models_fit": "local.models",
    "kvcalc.plan": "plan",
    "kvcalc.models": "catalogue.models",
    "kvcalc.prefill": "speed",
    "kvcalc.quants": "size.quants",
    "kvcalc.reconcile": "reconcile",
    "kvcalc.reconcile_measured": "calibrate.measured",
    "kvcalc.roofline": "roofline",
    "kvcalc.simulate": "simulate",
    "kvcalc.size": "size",
    "kvcalc.solve": "solve",
    "kvcalc.speculate": "speculative",
    "kvcalc.steps": "simulate.steps",
    "kvcalc.sweep": "sweep",
    "kvcalc.traffic": "traffic",
    "kvcalc.validate": "validate",
}


def shown_by(report: Any, what: str) -> Callable[[], Any] | None:
    """Return the function that makes a report's table or chart; none where there is none.

    Args:
        report: a report.
        what: ``sentence`` for its answer, ``parts`` for its table, ``spec`` or ``memory_spec`` for a chart.
    """
    if hasattr(report, what):
        method: Callable[[], Any] = getattr(report, what)
        return method
    module, _, word = _MODULES.get(report.schema.partition("/")[0], "").partition(".")
    if not module:
        return None
    function = getattr(import_module(f"{__name__}.{module}"), f"{word}_{what}" if word else what, None)
    return None if function is None else lambda: function(report)
