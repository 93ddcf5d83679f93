"""Books of measurements: those a fit used, those that kvcalc ships, and those that are new.

A measurement is its numbers and its setting, not where it was printed: the same run is found again under any source.
"""

from __future__ import annotations

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import KvcalcError
from kvcalc.evidence.campaigns import engine_of
from kvcalc.evidence.names import find_hardware, find_model
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.reports.validate import Book
    from kvcalc.evidence.record import Record

__all__ = ["book_of", "fitted_lines", "group_of", "judges", "setting_of"]

# Values that are printed with fewer digits elsewhere are the same measurement.
_MAX_APART = 0.001
_FITTED = Path(__file__).with_name("fitted.txt")
_STEPS = {"decode": "step", "tpot": "step"}


def book_of(record: Record) -> Book:
    """Return whether a fit of the shipped calibrations used this measurement, or kvcalc ships it, or neither."""
    setting, value = setting_of(record), _value(record)
    if value is None:
        return "unseen"
    if _is_among(_fitted(), setting, value):
        return "fitted"
    return "shipped" if _is_among(_shipped(), setting, value) else "unseen"


def setting_of(record: Record) -> str:
    """Return a digest of what was measured, where, in which engine and with how many tokens."""
    hardware = find_hardware(record.hardware)
    model = find_model(record.model) if record.model else None
    parts = (
        _STEPS.get(record.phase, record.phase),
        hardware[0].name if hardware else record.hardware.strip().lower(),
        _layers(model.name) if model is not None else record.model.strip().lower(),
        engine_of(record),
        record.prompt_tokens or 0,
        record.depth_tokens,
        record.output_tokens or 0,
        record.batch or 0,
        sorted(record.shape.items()),
    )
    return sha256(repr(parts).encode()).hexdigest()[:10]


def _value(record: Record) -> float | None:
    """Return the seconds that a record prints: of a rate over all sequences, for each token of one."""
    try:
        seconds = record.seconds_per_token
    except KvcalcError:
        # kernels are printed as FLOP/s too
        return record.value if record.value > 0 else None
    return seconds if record.is_time else seconds * (record.batch or 1)


def _is_among(known: dict[str, list[float]], setting: str, value: float) -> bool:
    return any(abs(value / other - 1) <= _MAX_APART for other in known.get(setting, ()))


@cache
def _fitted() -> dict[str, list[float]]:
    values_by_setting: dict[str, list[float]] = {}
    for line in _FITTED.read_text(encoding="utf-8").splitlines() if _FITTED.exists() else ():
        setting, *values = line.split()
        values_by_setting.setdefault(setting, []).extend(map(float, values))
    return values_by_setting


@cache
def _shipped() -> dict[str, list[float]]:
    from kvcalc.evidence.read import shipped_records

    return _by_setting(shipped_records())


def _by_setting(records: Iterable[Record]) -> dict[str, list[float]]:
    values_by_setting: dict[str, list[float]] = {}
    for record in records:
        value = _value(record)
        if value is not None:
            values_by_setting.setdefault(setting_of(record), []).append(value)
    return values_by_setting


def fitted_lines(records: Iterable[Record]) -> str:
    """Return the text of the file that says which measurements were fitted to: a setting and its values a line."""
    values_by_setting = _by_setting(records)
    lines = (
        f"{key} {' '.join(sorted({f'{value:.4g}' for value in values_by_setting[key]}))}"
        for key in sorted(values_by_setting)
    )
    return "".join(f"{line}\n" for line in lines)


@cache
def _splits() -> dict[str, Any]:
    return read_yaml_file(Path(__file__).with_name("splits.yaml")).data


def _layers(model: str) -> str:
    return str(_splits()["same_layers"].get(model, model))


def group_of(record: Record) -> str:
    """Return the group of a record: model, accelerator and engine, models with the same layers as one."""
    hardware, model = find_hardware(record.hardware), find_model(record.model)
    accelerator = hardware[0].name if hardware else record.hardware.strip().lower()
    layers = _layers(model.name) if model is not None else record.model.strip().lower()
    return f"{layers} {accelerator} {engine_of(record)}"


def judges(group: str) -> bool:
    """Whether a group of served runs judges: no parameter is fitted to it."""
    splits = _splits()
    model, accelerator, _ = group.split(" ", 2)
    return (
        model in splits["judging_models"]
        or accelerator in splits["judging_accelerators"]
        or group in splits["judging_groups"]
    )
