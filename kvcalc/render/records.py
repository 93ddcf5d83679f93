"""Reports as plain data: nested for JSON, flat records for CSV, Markdown and JSON lines."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.figures import derived_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["plain", "records", "report_data"]

# The field that each schema lists row by row; a report's class may name it as ``listed``; others are one record.
_ROWS = {
    "kvcalc.bench": "rows",
    "kvcalc.crosscheck": "rows",
    "kvcalc.decode": "rows",
    "kvcalc.plan": "options",
    "kvcalc.prefill": "rows",
    "kvcalc.roofline": "points",
    "kvcalc.reconcile": "rows",
    "kvcalc.solve": "rows",
    "kvcalc.speculate": "rows",
    "kvcalc.check": "checks",
    "kvcalc.traffic": "rows",
    "kvcalc.levers": "rows",
    "kvcalc.sweep": "rows",
    "kvcalc.steps": "steps",
    "kvcalc.validate": "outcomes",
    "kvcalc.quants": "rows",
    "kvcalc.models_fit": "rows",
    "kvcalc.check_measured": "checks",
}


def plain(value: Any) -> Any:
    """Return a report as mappings, lists and numbers: what is absent is null, whole numbers are integers."""
    if is_dataclass(value) and not isinstance(value, type):
        names = (*(field.name for field in fields(value)), *derived_of(type(value)))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, dict):
        return {str(key): plain(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value == int(value) and abs(value) < 2**53 else value
    return value


def report_data(
    report: Any, explained: Sequence[ExplainedStep] = (), source: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return a report as one JSON object, with the formulas and the source of its profiles where they are given."""
    data: dict[str, Any] = plain(report)
    if source is not None:
        data["source"] = plain(source)
    return data | {"explain": plain(tuple(explained))} if explained else data


def records(report: Any) -> list[dict[str, Any]]:
    """Return a report as flat records, one for each row; nested fields get dotted names, lists are left out."""
    data = plain(report)
    if data["schema"].startswith("kvcalc.compare/"):
        return [_side_by_side(data, row) for row in data["rows"]]
    if data["schema"].startswith("kvcalc.fit_devices/"):
        return [{"model": data["model"], **_flat(device)} for device in (*data["devices"], data["host"])]
    rows = data.get(getattr(report, "listed", "") or _ROWS.get(data["schema"].partition("/")[0], ""))
    if data["schema"].startswith("kvcalc.roofline/") and not rows:
        rows = _ceilings(data)
    if rows is None:
        return [_flat(data)]
    shared = {name: data[name] for name in ("model", "draft", "method", "gpu", "gpus") if name in data}
    return [{**shared, **_flat(row)} for row in rows]


def _ceilings(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return an accelerator's formats, for a roofline without models."""
    return [
        {
            "format": unit,
            "peak_flop_per_s": rate,
            "memory_bandwidth_bytes_per_s": data["memory_bandwidth_bytes_per_s"],
            "ridge_flop_per_byte": data["ridge_flop_per_byte"][unit],
        }
        for unit, rate in data["peak_flop_per_s"].items()
    ]


def _side_by_side(data: dict[str, Any], row: dict[str, Any]) -> dict[str, Any]:
    """Return one quantity with a column for each side, and one for each ratio to the first."""
    labels = [side["label"] for side in data["sides"]]
    return {
        "quantity": row["quantity"],
        "better": row["better"],
        **dict(zip(labels, row["values"], strict=True)),
        **{f"{label} / {labels[0]}": row["ratios"][index] for index, label in enumerate(labels) if index},
        **{f"{label} - {labels[0]}": row["differences"][index] for index, label in enumerate(labels) if index},
        "best": ", ".join(labels[index] for index in row["best"]),
    }


def _flat(data: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in data.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            flat[prefix + name] = value
    return flat
