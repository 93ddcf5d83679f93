"""Reports in Python and in notebooks: as text, HTML, plain data, data frames and charts."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from kvcalc.core.errors import InputError
from kvcalc.render.records import records, report_data
from kvcalc.render.reports import shown_by

__all__ = ["Chart", "chart", "data", "frame", "html", "json_text", "short", "text"]

_LIBRARIES = ("pandas", "polars")
_VEGA_LITE = "application/vnd.vegalite.v5+json"
_NOTEBOOK_WIDTH = 110


class Chart(dict[str, Any]):
    """A Vega-Lite specification that notebooks draw; a plain mapping for everything else."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return the specification under its own media type."""
        del include, exclude
        title = self.get("title", "")
        return {_VEGA_LITE: dict(self), "text/plain": f"<Vega-Lite chart: {title}>"}


def text(report: Any) -> str:
    """Return a report as its table, without colour."""
    return _laid_out(report, _NOTEBOOK_WIDTH)


def _laid_out(report: Any, width: int) -> str:
    from kvcalc.render.layout import laid_out
    from kvcalc.render.tables import table_parts

    return laid_out(table_parts(report), width=width, styled=False).rstrip("\n")


def short(report: Any) -> str:
    """Return a report in one line: its kind and its answer."""
    sentence = shown_by(report, "sentence")
    return f"<{type(report).__name__}{f': {sentence()}' if sentence is not None else ''}>"


def html(report: Any) -> str:
    """Return a report as HTML: lines of words as paragraphs, grids as tables, drawings as they are."""
    from html import escape

    from kvcalc.render.layout import Drawing, Grid
    from kvcalc.render.tables import table_parts

    shown = []
    for part in table_parts(report):
        if isinstance(part, Grid):
            head = "".join(f"<th>{escape(column.name)}</th>" for column in part.columns)
            rows = ("".join(f"<td style='text-align:{column.justify}'>{escape(cell)}</td>"
                            for column, cell in zip(part.columns, row, strict=True)) for row in part.rows)  # fmt: skip
            body = "".join(f"<tr>{row}</tr>" for row in rows)
            shown.append(f"<table>{f'<tr>{head}</tr>' if part.header else ''}{body}</table>")
        elif isinstance(part, Drawing):
            shown.append(f"<pre>{escape(part.draw(_NOTEBOOK_WIDTH, False))}</pre>")
        elif part.plain.strip():
            words = escape(part.plain).replace("\n", "<br>")
            shown.append(f"<p>{f'<b>{words}</b>' if 'bold' in part.style else words}</p>")
    return "".join(shown)


def data(report: Any) -> dict[str, Any]:
    """Return a report as mappings, lists and numbers."""
    return report_data(report)


def json_text(report: Any, indent: int | None) -> str:
    """Return a report as JSON text."""
    import json

    return json.dumps(report_data(report), indent=indent)


def frame(report: Any, library: str | None) -> Any:
    """Return a report's rows as a data frame.

    Raises:
        InputError: the library is not installed, or not one of those.
    """
    if library not in (None, *_LIBRARIES):
        raise InputError(f"to_frame knows {' and '.join(_LIBRARIES)}, not {library!r}")
    name = next((name for name in (_LIBRARIES if library is None else (library,)) if find_spec(name)), None)
    if name is None:
        wanted = library or " or ".join(_LIBRARIES)
        raise InputError(f"to_frame needs {wanted}", hint=f"pip install {library or _LIBRARIES[0]}")
    return import_module(name).DataFrame(records(report))


def chart(report: Any, view: str) -> Chart:
    """Return a report's chart.

    Raises:
        InputError: a report that has no such chart.
    """
    from kvcalc.render.charts import chart_spec

    return Chart(chart_spec(report, view=view))
