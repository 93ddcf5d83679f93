"""Models, formats, accelerators and calibrations whose numbers have names, so that `kvcalc.cost` spells itself."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc.core.formats import Format
from kvcalc.core.layers import Attention
from kvcalc.core.mlps import Mixture
from kvcalc.core.model import Block, Encoder, Head, Indexer, ModelProfile
from kvcalc.core.traced import named

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import OpCost
    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.core.workload import Formats, Parallel

__all__ = [
    "named_calibration",
    "named_formats",
    "named_hardware",
    "named_link",
    "named_model",
    "named_op",
    "named_parallel",
]

_Sized = TypeVar("_Sized")
# What a size is called where its field's own name says too little; elsewhere it is the field's name.
_NAMES: Mapping[type, Mapping[str, str]] = {
    Indexer: {"heads": "index_heads", "head_dim": "index_head_dim", "stored_dim": "index_dim"},
    Mixture: {"experts": "E", "experts_per_token": "k"},
    Head: {"rows": "vocabulary"},
    Block: {"vector_parameters": "vectors", "matrix_parameters": "other"},
    ModelProfile: {"hidden_size": "hidden", "vector_parameters": "final_vectors", "matrix_parameters": "other"},
    Encoder: {"hidden_size": "hidden", "tokens": "encoder_tokens", "vector_parameters": "final_vectors"},
}
_CALIBRATED = ("step_s", "sample_s", "layer_s", "collective_s", "link_share", "direct_share", "staged_s")


def _sized(value: Any, name: str, known: dict[int, Any]) -> Any:
    """Name a number, or every number inside of it; one object stays one object. Zeros stay digits, which drop out."""
    if isinstance(value, tuple):
        return tuple(_sized(each, name, known) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        if id(value) not in known:
            known[id(value)] = _with_names(value, known)
        return known[id(value)]
    return named(value, name) if type(value) in (int, float) and value else value


def _with_names(value: _Sized, known: dict[int, Any]) -> _Sized:
    names = _NAMES.get(type(value), {})
    sizes = {field.name: getattr(value, field.name) for field in fields(value)}  # type: ignore[arg-type]
    if isinstance(value, Attention):
        sizes["value_head_dim"] = value.value_dim
    changed = {field: _sized(size, names.get(field, field), known) for field, size in sizes.items()}
    return replace(value, **changed)  # type: ignore[type-var]


def named_model(model: ModelProfile) -> ModelProfile:
    """Return a model whose sizes carry their names."""
    known: dict[int, Any] = {}
    names = _NAMES[ModelProfile]
    parts = (*names, "blocks", "embeddings", "head", "encoder", "towers")
    return replace(model, **{part: _sized(getattr(model, part), names.get(part, part), known) for part in parts})


def named_formats(formats: Formats) -> Formats:
    """Return formats whose bytes carry their names: b of a plain one, those of a block else."""
    sides = ("weights", "key", "value", "state", "activations", "hidden")
    changed: dict[str, Any] = {side: _named_format(getattr(formats, side)) for side in sides}
    return replace(formats, **changed, parts={part: _named_format(each) for part, each in formats.parts.items()})


def _named_format(fmt: Format) -> Format:
    plain = fmt.block_elements == 1
    return replace(
        fmt,
        block_bytes=named(fmt.block_bytes, f"{'b' if plain else 'block_bytes'} ({fmt.name})"),
        block_elements=fmt.block_elements if plain else named(fmt.block_elements, "block_elements"),
        per_head=named(fmt.per_head, "scale_bytes") if fmt.per_head else 0,
    )


def named_parallel(parallel: Parallel) -> Parallel:
    """Return parallel sizes that carry their names; the number of stages is part of no formula."""
    sizes = {"tensor": "ranks", "expert": "expert_ranks", "data": "copies"}
    many = {field: name for field, name in sizes.items() if getattr(parallel, field) > 1}
    return replace(parallel, **{field: named(getattr(parallel, field), name) for field, name in many.items()})


def named_hardware(hardware: HardwareProfile) -> HardwareProfile:
    """Return an accelerator whose rates carry their names."""
    return replace(
        hardware,
        memory_bandwidth_bytes_per_s=named(hardware.memory_bandwidth_bytes_per_s, "bandwidth"),
        peak_flop_per_s={
            unit: named(peak, f"peak_flop_per_s.{unit}") for unit, peak in hardware.peak_flop_per_s.items()
        },
    )


def named_link(link: Link | None) -> Link | None:
    """Return a link whose rate and latency carry their names."""
    if link is None:
        return None
    latency_s = named(link.latency_s, "latency") if link.latency_s else None
    return replace(link, bytes_per_s=named(link.bytes_per_s, f"rate of {link.name}"), latency_s=latency_s)


def named_op(op: OpCost) -> OpCost:
    """Return an operator whose FLOP, bytes and calls carry the names of their fields."""
    return _with_names(op, {})


def named_calibration(calibration: Calibration) -> Calibration:
    """Return a calibration whose shares and times carry the names of their fields."""
    reach = {kind: _with_names(each, {}) for kind, each in calibration.reach.items()}
    times = {name: _sized(getattr(calibration, name), name, {}) for name in _CALIBRATED}
    return replace(calibration, reach=reach, **times)
