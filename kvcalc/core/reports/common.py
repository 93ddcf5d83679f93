"""Parts that several reports have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ExplainedStep", "Report", "RunFormats", "present_with"]

# Gives the module that prints and converts reports: the facade's, since reports know nothing of tables.
_FACES: list[Callable[[], Any]] = []


def present_with(face: Callable[[], Any]) -> None:
    """Have reports printed and converted by a module that is loaded when it is first needed.

    Args:
        face: returns a module with the functions ``text``, ``short``, ``html``, ``data``, ``frame`` and ``chart``.
    """
    _FACES[:] = [face]


class Report:
    """An answer: prints as its table, and hands its figures on as a mapping, JSON, a data frame or a chart."""

    __slots__ = ()

    def __str__(self) -> str:
        return str(_FACES[0]().text(self)) if _FACES else object.__repr__(self)

    def __repr__(self) -> str:
        return str(_FACES[0]().short(self)) if _FACES else object.__repr__(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return str(_FACES[0]().html(self))

    def to_dict(self) -> dict[str, Any]:
        """Return the report as ``--json`` prints it: mappings, lists and numbers in base units."""
        data: dict[str, Any] = _FACES[0]().data(self)
        return data

    def to_json(self, *, indent: int | None = 2) -> str:
        """Return the report as JSON text."""
        return str(_FACES[0]().json_text(self, indent))

    def to_frame(self, library: str | None = None) -> Any:
        """Return the rows as a data frame of pandas or polars.

        Args:
            library: ``pandas`` or ``polars``; the one that is installed where left out, pandas first.

        Raises:
            InputError: none of them is installed, or another library.
        """
        return _FACES[0]().frame(self, library)

    def chart(self, view: str = "") -> Any:
        """Return the chart as a Vega-Lite specification, which notebooks show.

        Args:
            view: another than the first of its charts: ``memory`` of `kvcalc.decode`, ``intensity`` of
                `kvcalc.roofline`.

        Raises:
            InputError: a report that has no such chart.
        """
        return _FACES[0]().chart(self, view)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """One formula with its numbers put in.

    Args:
        quantity: what is computed.
        formula: the formula in words and symbols.
        expression: the same with numbers, as arithmetic that can be evaluated.
        value: the result.
        unit: its unit.
        sources: where the numbers come from.
    """

    quantity: str
    formula: str
    expression: str
    value: float
    unit: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormats:
    """Names of the formats a report was computed with."""

    weights: str
    kv: str
    activations: str
