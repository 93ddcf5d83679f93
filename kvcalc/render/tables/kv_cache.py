"""What ``kvcalc demo kv-cache`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text, number_text
from kvcalc.render.layout import Text
from kvcalc.render.tables.pieces import facts, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.lessons import KvCacheReport
    from kvcalc.render.layout import Part

__all__ = ["parts", "picture", "steps"]

_WHY = (
    "A query is multiplied with all keys once, when its token is new, and never again: only keys and values are kept.",
    "They can be kept because a token sees nothing that comes after it: its hidden states never change.",
    "An encoder that looks both ways cannot: from the second layer on, old keys and values depend on new tokens.",
)


def parts(report: KvCacheReport) -> list[Part]:
    """Return the comparison of the two runs."""
    shape = report.shape
    without, kept = report.projections_without, report.projections_with
    made = f"{report.prompt_tokens} prompt tokens, {report.output_tokens} new, batch {report.batch}"
    size = f"{shape.layers} layers, {shape.heads} query heads, {shape.kv_heads} key-value heads of {shape.head_dim}"
    wrong = report.both_ways_first_wrong
    rows = [
        ("projections without a cache", number_text(without), "a token's key and value, in each layer"),
        ("projections with a cache", number_text(kept), f"1/{without / kept:.1f} of that" if kept < without else ""),
        ("tokens", "identical" if report.same_tokens else "DIFFERENT"),
        ("attention outputs differ by", _difference(report.difference), "matrix by matrix: additions in another order"),
        ("", f"{report.by_row_difference:g}", "row by row: the same order"),
        ("cache at the end", bytes_text(report.cache_bytes), "keys and values as 64-bit numbers"),
        (
            "the same without a causal mask",
            f"off by {report.both_ways_difference:.2g}",
            "first wrong token: " + ("none so far" if wrong is None else number_text(wrong)),
        ),
    ]
    lines = [Text(line) for line in _WHY]
    return [heading(f"The KV cache: {made}"), Text(size), Text(), facts(rows), Text(), *lines]


def _difference(value: float) -> str:
    return f"{value:.1e}" if value else "0"


def steps(report: KvCacheReport) -> list[list[str]]:
    """Return the lines of each pass: its tokens, its work and its shapes."""
    return [
        [
            f"step {step.place}, {step.phase}: token {', '.join(map(str, step.tokens))}",
            f"  projected in each layer: {step.projections_without} without, {step.projections_with} with a cache",
            f"  with     {_shapes(step.shapes)}",
            f"  without  {_shapes(step.shapes_without)}",
            f"  attention outputs differ by {_difference(step.difference)}",
        ]
        for step in report.steps
    ]


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return "  ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def picture(report: KvCacheReport, *, plain: bool) -> str:
    """Return projections so far over tokens made."""
    without = with_cache = 0
    lines: dict[str, list[tuple[float, float]]] = {"without a cache": [], "with a cache": []}
    for step in report.steps:
        without += step.projections_without
        with_cache += step.projections_with
        lines["without a cache"].append((step.place, without))
        lines["with a cache"].append((step.place, with_cache))
    return line_chart(lines, x="tokens made", y="projections", plain=plain)
