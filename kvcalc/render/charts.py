"""Charts as Vega-Lite specifications: those of reports, their files, and the pieces that they are made of.

One look for all of them: series differ in colour *and* in dash or shape, so that a print in grey can be read; every
axis says its unit; the subtitle says what the figures are and where they come from.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError
from kvcalc.render.reports import shown_by

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "WITHOUT",
    "Axis",
    "Spec",
    "bar_layer",
    "chart",
    "chart_spec",
    "heat_map",
    "label_layer",
    "limit_layer",
    "line_layer",
    "picture",
    "point_layer",
    "range_layer",
    "require_drawing",
    "runtime",
]

Spec = dict[str, Any]

_SCHEMA = "https://vega.github.io/schema/vega-lite/v6.json"
_WIDTH, _HEIGHT = 640, 400
# From this share of the way to an end of a scheme on, black is not read on it.
_DARK = 0.6
# Okabe and Ito's colours, told apart by every kind of eye: Wong 2011, doi 10.1038/nmeth.1618.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_LIMIT = "#444444"
_DASHES = ([1, 0], [8, 4], [2, 3], [8, 3, 2, 3], [12, 4], [4, 4], [1, 4])
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "stroke")
_PNG_SCALE = 2.0
# The fill of cells without a value; the page hatches it.
WITHOUT = "#e6e6e7"


def chart_spec(report: Any, *, view: str = "") -> Spec:
    """Return the chart of a report as a Vega-Lite specification.

    Args:
        report: a report.
        view: which of its charts, where it has several; the first where left out.

    Raises:
        InputError: a report that has no such chart.
    """
    spec = shown_by(report, f"{view}_spec" if view else "spec")
    if spec is None:
        kind = report.schema.partition("/")[0]
        raise InputError(f"{kind}/{view} has no chart" if view else f"{kind} has no chart")
    made: Spec = spec()
    return made


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One direction of a chart.

    Args:
        field: the key of the rows.
        title: the quantity with its unit: ``tokens/s``, ``context, tokens``.
        scale: ``linear`` or ``log`` for numbers, ``names`` for words, which keep the order of the rows.
        format: how numbers are printed, in d3's notation; SI prefixes unless said otherwise.
        whole: whether it counts things, so that no tick stands between two of them.
    """

    field: str
    title: str
    scale: Literal["linear", "log", "names"] = "linear"
    format: str = "~s"
    whole: bool = False

    def encoding(self) -> Spec:
        """Return the axis as a channel of a specification."""
        if self.scale == "names":
            return {
                "field": self.field,
                "type": "nominal",
                "title": self.title,
                "sort": None,
                "axis": {"labelAngle": 0},
            }
        shown: Spec = {"format": self.format, "labelOverlap": True}
        if self.whole:
            shown["tickMinStep"] = 1
        channel: Spec = {"field": self.field, "type": "quantitative", "title": self.title, "axis": shown}
        return channel | {"scale": {"type": "log", "nice": False}} if self.scale == "log" else channel


def chart(
    layers: Sequence[Spec], *, title: str, subtitle: Sequence[str] = (), width: int = _WIDTH, height: int = _HEIGHT
) -> Spec:
    """Return a whole chart of layers that share their axes.

    Args:
        layers: specifications as the other functions of this module return them.
        title: what is shown.
        subtitle: lines that say of what, in which formats, and from which source.
        width: of the plot, in pixels.
        height: of the plot, in pixels.
    """
    return {
        "$schema": _SCHEMA,
        "title": {"text": title, "subtitle": list(subtitle), "anchor": "start", "subtitleColor": "#555"},
        "width": width,
        "height": height,
        "layer": list(layers),
        "config": {
            "background": "white",
            "font": "sans-serif",
            "axis": {"gridColor": "#e4e4e4", "labelFontSize": 12, "titleFontSize": 12},
            "legend": {"labelFontSize": 12, "titleFontSize": 12, "symbolStrokeWidth": 2, "labelLimit": 320},
            "view": {"stroke": "#bbb"},
        },
    }


def line_layer(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: Axis,
    y: Axis,
    series: str | None = None,
    title: str = "",
    points: bool = True,
) -> Spec:
    """Return lines over rows, one for each value of the field ``series``, whose legend is headed ``title``."""
    mark: Spec = {"type": "line", "strokeWidth": 2}
    if points:
        mark["point"] = {"size": 36}
    return _layer(rows, mark, x, y, _told_apart(rows, series, title, by="strokeDash", values=_DASHES, symbol="stroke"))


def point_layer(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: Axis,
    y: Axis,
    series: str | None = None,
    title: str = "",
    size: int = 60,
    colour: str | None = None,
) -> Spec:
    """Return a point for each row, told apart by the field ``series``, whose legend is headed ``title``.

    A ``colour`` of their own leaves shapes alone to tell them apart, over lines that use the colours.
    """
    mark = {"type": "point", "filled": True, "size": size, "opacity": 0.8}
    apart = _told_apart(rows, series, title, by="shape", values=_SHAPES)
    if colour is not None:
        apart["color"] = {"value": colour}
    return _layer(rows, mark, x, y, apart)


def label_layer(rows: Sequence[Mapping[str, Any]], *, x: Axis, y: Axis, text: str) -> Spec:
    """Return a field of each row as text beside its point."""
    mark = {"type": "text", "dx": -7, "dy": -8, "fontSize": 11, "color": "#333"}
    return _layer(rows, mark, x, y, {"text": {"field": text, "type": "quantitative", "format": ","}})


def range_layer(rows: Sequence[Mapping[str, Any]], *, x: Axis, y: Axis, to: str, colour: str) -> Spec:
    """Return a vertical stroke for each row, from the field of ``y`` to the field ``to``."""
    layer = _layer(rows, {"type": "rule", "strokeWidth": 1.5}, x, y, {"color": {"value": colour}})
    layer["encoding"]["y2"] = {"field": to}
    return layer


def limit_layer(value: float, *, along: Axis, across: bool = True) -> Spec:
    """Return a dashed line at a value of an axis: across the chart where the axis goes up, else upright."""
    direction = "y" if across else "x"
    encoding = {direction: along.encoding(), "tooltip": [{"field": along.field}]}
    mark = {"type": "rule", "strokeDash": [6, 3], "strokeWidth": 2, "color": _LIMIT}
    return {"data": {"values": [{along.field: value}]}, "mark": mark, "encoding": encoding}


def bar_layer(rows: Sequence[Mapping[str, Any]], *, x: Axis, series: str, title: str) -> Spec:
    """Return one bar of parts beside each other, in the order of the rows; light edges part them in grey too."""
    shades = {"domain": [row[series] for row in rows], "range": _COLOURS}
    encoding = {
        "x": x.encoding() | {"stack": "zero"},
        "color": {"field": series, "type": "nominal", "title": title, "scale": shades, "sort": None},
        "order": {"field": "place", "type": "quantitative"},
        "tooltip": [{"field": series}, {"field": x.field}],
    }
    placed = [{**row, "place": index} for index, row in enumerate(rows)]
    return {"data": {"values": placed}, "mark": {"type": "bar", "stroke": "white", "height": 36}, "encoding": encoding}


def heat_map(
    rows: Sequence[Mapping[str, Any]],
    *,
    x: Axis,
    y: Axis,
    value: Axis,
    middle: float | None = None,
    without: Sequence[Mapping[str, Any]] = (),
) -> Spec:
    """Return a field of cells with their numbers printed in them.

    Colours stand for values from 0 on, so that a field that never reaches the middle is all of one side.

    Args:
        rows: one for each cell.
        x: a direction of names.
        y: the other.
        value: what the colour stands for.
        middle: the value at which the colour turns, where there is one (a speed-up of 1).
        without: cells that have no value, shown by a dash.
    """
    highest = max((row[value.field] for row in rows), default=0.0)
    turn, highest = (0.0, highest) if middle is None else (middle, max(highest, 2 * middle))
    scheme: Spec = {"scheme": "greys"} if middle is None else {"scheme": "purpleorange", "reverse": True}
    scheme["domain"] = [0, highest] if middle is None else [0, middle, highest]
    dark = f"datum.{value.field} > {turn + _DARK * (highest - turn)} || datum.{value.field} < {turn - _DARK * turn}"
    ink = {"condition": {"test": dark, "value": "white"}, "value": "black"}
    where = {"x": x.encoding(), "y": y.encoding()}
    shade = {"field": value.field, "type": "quantitative", "title": value.title, "scale": scheme}
    written = {"field": value.field, "type": "quantitative", "format": value.format}
    return {
        "data": {"values": _values(rows)},
        "encoding": where,
        "layer": [
            {"mark": {"type": "rect", "stroke": "white"}, "encoding": {"color": shade}},
            {"mark": {"type": "text", "fontSize": 10}, "encoding": {"text": written, "color": ink}},
            *([] if middle is None else _edges(rows, x=x, y=y, field=value.field, middle=middle)),
            *([_empty(without)] if without else []),
        ],
    }


def _empty(cells: Sequence[Mapping[str, Any]]) -> Spec:
    """Return grey cells with a dash, where there is no value."""
    dash = {"type": "text", "text": "–", "color": "#555"}  # noqa: RUF001
    return {
        "data": {"values": _values(cells)},
        "layer": [{"mark": {"type": "rect", "stroke": "white", "fill": WITHOUT}}, {"mark": dash}],
    }


def _edges(rows: Sequence[Mapping[str, Any]], *, x: Axis, y: Axis, field: str, middle: float) -> list[Spec]:
    """Return the line between the cells below and those at or above a value: the edges that they share."""
    above = {(row[x.field], row[y.field]): row[field] >= middle for row in rows}
    names = [list(dict.fromkeys(row[axis.field] for row in rows)) for axis in (x, y)]
    upright = [{x.field: right, y.field: up} for up in names[1] for left, right in pairwise(names[0])
               if {above.get((left, up)), above.get((right, up))} == {True, False}]  # fmt: skip
    level = [{x.field: across, y.field: low} for across in names[0] for high, low in pairwise(names[1])
             if {above.get((across, high)), above.get((across, low))} == {True, False}]  # fmt: skip
    return [_edge(upright, x=x, y=y, along="y"), _edge(level, x=x, y=y, along="x")]


def _edge(cells: list[dict[str, Any]], *, x: Axis, y: Axis, along: Literal["x", "y"]) -> Spec:
    """Return strokes that begin at the upper left corner of cells and go along one of their sides."""
    encoding = {name: axis.encoding() | {"bandPosition": 0} for name, axis in (("x", x), ("y", y))}
    encoding[f"{along}2"] = {"field": (x if along == "x" else y).field, "bandPosition": 1}
    return {"data": {"values": cells}, "mark": {"type": "rule", "strokeWidth": 2.5}, "encoding": encoding}


def _layer(rows: Sequence[Mapping[str, Any]], mark: Spec, x: Axis, y: Axis, apart: Spec) -> Spec:
    tooltip = [{"field": name} for name in dict.fromkeys(name for row in rows for name in row)]
    encoding = {"x": x.encoding(), "y": y.encoding(), "tooltip": tooltip, **apart}
    return {"data": {"values": _values(rows)}, "mark": mark, "encoding": encoding}


def _told_apart(
    rows: Sequence[Mapping[str, Any]],
    series: str | None,
    title: str,
    *,
    by: str,
    values: Sequence[object],
    symbol: str | None = None,
) -> Spec:
    """Return the channels that tell series apart, by colour and by a second sign; they come round after seven."""
    if series is None:
        return {}
    names = list(dict.fromkeys(row[series] for row in rows))
    signs = [values[index % len(values)] for index in range(len(names))]
    colours = [_COLOURS[index % len(_COLOURS)] for index in range(len(names))]
    named: Spec = {"field": series, "type": "nominal", "title": title or None}
    if symbol is not None:
        named["legend"] = {"symbolType": symbol}
    return {
        "color": named | {"scale": {"domain": names, "range": colours}},
        by: named | {"scale": {"domain": names, "range": signs}},
    }


def _values(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(row) for row in rows]
