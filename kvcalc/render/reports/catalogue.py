"""The tables of ``kvcalc models`` and ``kvcalc gpus``."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import counted
from kvcalc.render.tables import differs, figure_grid

if TYPE_CHECKING:
    from kvcalc.core.reports.catalogue import GpusReport, ModelEntry, ModelsReport
    from kvcalc.render.layout import Part

__all__ = ["gpus_parts", "gpus_sentence", "models_parts", "models_sentence"]


def models_sentence(report: ModelsReport) -> str:
    """Count the models listed."""
    return _counted(len(report.rows), report.of, "model")


def gpus_sentence(report: GpusReport) -> str:
    """Count the accelerators listed."""
    return _counted(len(report.rows), report.of, "accelerator")


def _counted(listed: int, of: int, what: str) -> str:
    return f"{counted(of, what)}." if listed == of else f"{listed:,} of {counted(of, what)}."


def models_parts(report: ModelsReport) -> list[Part]:
    """Return a row for each model."""
    return [figure_grid(report.rows, _names(report.rows), left=2, shown=_cell)]


def gpus_parts(report: GpusReport) -> list[Part]:
    """Return a row for each accelerator."""
    return [figure_grid(report.rows, _names(report.rows), left=2)]


def _names(rows: tuple[Any, ...]) -> list[str]:
    return [each.name for each in fields(rows[0])]


def _cell(row: ModelEntry, name: str, text: str) -> str:
    """Leave out the active parameters of dense models."""
    is_dense = name == "active_parameters" and not differs(row.active_parameters, row.parameters)
    return "" if is_dense else text
