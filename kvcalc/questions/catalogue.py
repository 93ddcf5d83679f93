"""Tables of the models and accelerators that can be found: filtered by words, sorted by a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError, did_you_mean
from kvcalc.core.reports.catalogue import GpuEntry, GpusReport, ModelEntry, ModelsReport
from kvcalc.profiles.catalog import names
from kvcalc.sources import catalogue_hardware, catalogue_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.profiles.catalog import Kind

__all__ = ["catalogue_table", "parameter_count"]

_NOUNS = {"model": "model", "hardware": "accelerator"}
_COMMANDS = {"model": "models", "hardware": "gpus"}


def catalogue_table(kind: Kind, words: Sequence[str] = (), *, sort: str = "name") -> ModelsReport | GpusReport:
    """Return the models or accelerators whose names or descriptions have all of some words.

    Args:
        kind: ``model`` or ``hardware``.
        words: each must occur in the name, an alias, the architecture or the product's name.
        sort: the column to sort by: names from a to z, numbers from the largest.

    Raises:
        UnknownNameError: nothing has all of the words.
        InputError: there is no such column.
    """
    columns = ModelEntry.sorts if kind == "model" else GpuEntry.sorts
    if sort not in columns:
        hint = did_you_mean(sort, columns) or f"columns: {', '.join(columns)}"
        raise InputError(f"--sort {sort!r} is not a column", hint=hint, parameter="sort")
    known = names(kind)
    wanted = [word.lower() for text in words for word in text.split()]
    load: Any = catalogue_model if kind == "model" else catalogue_hardware
    profiles = [profile for name in known if _matches(profile := load(name), wanted)]
    if not profiles:
        hint = did_you_mean(" ".join(words), known) or f"kvcalc {_COMMANDS[kind]} lists all"
        raise UnknownNameError(f"no {_NOUNS[kind]} matches {' '.join(words)!r}", hint=hint)
    rows: list[Any] = [_model(each) if kind == "model" else _gpu(each) for each in profiles]
    rows.sort(key=lambda row: _order(getattr(row, columns[sort])))
    listed = tuple(row.name for row in rows)
    if kind == "model":
        return ModelsReport(models=listed, rows=tuple(rows), of=len(known))
    return GpusReport(gpus=listed, rows=tuple(rows), of=len(known))


def parameter_count(model: ModelProfile) -> int:
    """Return the parameters of a model's whole checkpoint, without the rest of a size report.

    Raises:
        KvcalcError: a model that cannot be computed with.
    """
    from kvcalc.cost.parameters import parameters

    return sum(parameters(model).values())


def _matches(profile: ModelProfile | HardwareProfile, words: Sequence[str]) -> bool:
    described = (profile.name, profile.architecture, getattr(profile, "title", ""), *profile.aliases)
    text = " ".join(described).lower()
    return all(word in text for word in words)


def _order(value: Any) -> tuple[bool, Any]:
    """Return a key that sorts names upwards, numbers downwards, and what is not known last."""
    return (value is None, 0 if value is None else value if isinstance(value, str) else -value)


def _gpu(profile: HardwareProfile) -> GpuEntry:
    peaks = profile.peak_flop_per_s
    return GpuEntry(
        name=profile.name,
        title=profile.title,
        memory_bytes=profile.usable_memory_bytes,
        memory_bandwidth_bytes_per_s=profile.memory_bandwidth_bytes_per_s,
        bf16_flop_per_s=peaks.get("bf16", peaks.get("fp16")),
        fp8_flop_per_s=peaks.get("fp8"),
        board_power_w=profile.board_power_w,
    )


def _model(profile: ModelProfile) -> ModelEntry:
    from kvcalc.plan.deployment import deploy
    from kvcalc.plan.size import size_report

    try:
        size = size_report(deploy(profile))
    except KvcalcError as error:
        raise type(error)(f"{profile.name}: {error.what}", where=error.where, hint=error.hint) from None
    return ModelEntry(
        name=profile.name,
        architecture=profile.architecture,
        parameters=size.weights.parameters,
        active_parameters=size.weights.active_parameters,
        kv_bytes_per_token=size.kv.bytes_per_token,
        context_limit=profile.context_limit,
    )
