"""Profiles as documents: the mappings that YAML files hold, to and from the types of `core`.

The classes of `core` are the one definition; here is only how their layers are spelled compactly: named ``blocks``, and
``layers`` that repeat patterns of their names.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import MIXERS, MLPS, Block, Encoder, Head, Indexer, Lookup, ModelProfile, Table, Tower
from kvcalc.core.provenance import Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile

__all__ = [
    "calibration_from_document",
    "calibration_to_document",
    "hardware_from_document",
    "hardware_to_document",
    "model_from_document",
    "model_to_document",
]

_MAX_LAYERS = 10_000


def model_from_document(document: Mapping[str, Any]) -> ModelProfile:
    """Return the model that a document describes; its keys are taken to be valid.

    Raises:
        ProfileError: the layers name a block that is not there.
        KeyError, TypeError, ValueError: a document that the schema would refuse.
    """
    data = dict(document)
    encoder = data.pop("encoder", None)
    head = data.pop("head", None)
    return ModelProfile(
        blocks=_blocks(data.pop("blocks"), data.pop("layers")),
        embeddings=_tables(data.pop("embeddings")),
        head=None if head is None else Head(**head),
        encoder=None if encoder is None else _encoder(encoder),
        towers=tuple(Tower(**tower) for tower in data.pop("towers", ())),
        **_common(data),
    )


def hardware_from_document(document: Mapping[str, Any]) -> HardwareProfile:
    """Return the accelerator that a document describes; its keys are taken to be valid.

    Raises:
        KeyError, TypeError, ValueError: a document that the schema would refuse.
    """
    from kvcalc.core.hardware import HardwareProfile, Link, MemoryShare

    data = dict(document)
    links = {name: Link(**link) for name, link in data.pop("links", {}).items()}
    shares = tuple(MemoryShare(**share) for share in data.pop("runtime_memory_shares", ()))
    return HardwareProfile(links=links, runtime_memory_shares=shares, **_common(data))


def calibration_from_document(document: Mapping[str, Any]) -> Calibration:
    """Return the calibration that a document describes; its keys are taken to be valid.

    Raises:
        KeyError, TypeError, ValueError: a document that the schema would refuse.
    """
    from kvcalc.core.calibration import Calibration, Interval, Measured, Reach

    data = dict(document)
    measured = dict(data.pop("measured"))
    for name in ("trained_on", "held_out", "operators", "notes"):
        measured[name] = tuple(measured.pop(name, ()))
    return Calibration(
        applies_to=tuple(data.pop("applies_to")),
        reach={kind: Reach(**reach) for kind, reach in data.pop("reach").items()},
        memory_interval=Interval(**data.pop("memory_interval")),
        compute_interval=Interval(**data.pop("compute_interval")),
        intervals={kind: Interval(**interval) for kind, interval in data.pop("intervals", {}).items()},
        measured=Measured(**measured),
        **data,
    )


def _common(data: dict[str, Any]) -> dict[str, Any]:
    data["aliases"] = tuple(data.pop("aliases", ()))
    data["notes"] = tuple(data.pop("notes", ()))
    data["sources"] = {name: Source(**source) for name, source in data.pop("sources", {}).items()}
    return data


def _tables(entries: Iterable[Mapping[str, Any]]) -> tuple[Table, ...]:
    return tuple(Table(**entry) for entry in entries)


def _blocks(blocks: Mapping[str, Mapping[str, Any]], layers: Iterable[Any]) -> tuple[Block, ...]:
    named = {name: _block(name, spec) for name, spec in blocks.items()}
    expanded: list[Block] = []
    for entry in layers:
        pattern, repeat = ([entry], 1) if isinstance(entry, str) else (entry["pattern"], entry.get("repeat", 1))
        missing = [name for name in pattern if name not in named]
        if missing:
            known = f"blocks: {', '.join(named)}"
            raise ProfileError(f"layers name the block {missing[0]!r}, which is not described", hint=known)
        if repeat * len(pattern) + len(expanded) > _MAX_LAYERS:
            raise ProfileError(f"more than {_MAX_LAYERS} layers")
        expanded += [named[name] for name in pattern] * repeat
    return tuple(expanded)


def _block(name: str, spec: Mapping[str, Any]) -> Block:
    data = dict(spec)
    mixers = tuple(_mixer(mixer) for mixer in data.pop("mixers", ()))
    mlp, lookup = data.pop("mlp", None), data.pop("lookup", None)
    return Block(
        name=name,
        mixers=mixers,
        mlp=None if mlp is None else MLPS[mlp["kind"]](**mlp),
        lookup=None if lookup is None else Lookup(**lookup),
        **data,
    )


def _mixer(spec: Mapping[str, Any]) -> Any:
    data = dict(spec)
    if data.get("indexer") is not None:
        data["indexer"] = Indexer(**data["indexer"])
    return MIXERS[data["kind"]](**data)


def _encoder(spec: Mapping[str, Any]) -> Encoder:
    data = dict(spec)
    return Encoder(
        blocks=_blocks(data.pop("blocks"), data.pop("layers")), embeddings=_tables(data.pop("embeddings", ())), **data
    )


def model_to_document(model: ModelProfile) -> dict[str, Any]:
    """Return the document of a model: fields at their defaults left out, layers as runs of named blocks."""
    document = _plain(model, skip=("blocks", "encoder"))
    document |= _layers(model.blocks)
    if model.encoder is not None:
        document["encoder"] = _plain(model.encoder, skip=("blocks",)) | _layers(model.encoder.blocks)
    if model.head is None:
        document.pop("head", None)
    order = ("name", "architecture", "aliases", "alias_fields", "hidden_size", "context_limit", "dtype", "kv_dtype",
             "activation_dtype", "weight_formats", "embeddings", "head", "blocks", "layers")  # fmt: skip
    last = ("rotary_positions", "encoder", "towers", "matrix_parameters", "vector_parameters", "rotary_factors",
            "prediction_layers", "held_weight_bytes", "notes", "sources", "provenance")  # fmt: skip
    return {key: document[key] for key in (*order, *last) if key in document}


def hardware_to_document(hardware: HardwareProfile) -> dict[str, Any]:
    """Return the document of an accelerator, fields at their defaults left out."""
    return _plain(hardware)


def calibration_to_document(calibration: Calibration) -> dict[str, Any]:
    """Return the document of a calibration, fields at their defaults left out."""
    return _plain(calibration)


def _plain(value: Any, *, skip: tuple[str, ...] = ()) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in fields(value):
        content = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if field.name not in skip and (content != default or field.name == "kind"):
            plain[field.name] = _value(content)
    return plain


def _value(content: Any) -> Any:
    if hasattr(content, "__dataclass_fields__"):
        plain = _plain(content)
        return {"kind": plain.pop("kind"), **plain} if "kind" in plain else plain
    if isinstance(content, tuple | list):
        return [_value(entry) for entry in content]
    if isinstance(content, dict):
        return {key: _value(entry) for key, entry in content.items()}
    return content


def _layers(blocks: tuple[Block, ...]) -> dict[str, Any]:
    names: dict[Block, str] = {}
    for block in blocks:
        if block not in names:
            names[block] = _free_name(block.name or "layer", names.values())
    described = {}
    for block, name in names.items():
        described[name] = _plain(block, skip=("name",))
    return {"blocks": described, "layers": _runs([names[block] for block in blocks])}


def _free_name(wanted: str, taken: Iterable[str]) -> str:
    used = set(taken)
    return next(name for name in (wanted, *(f"{wanted}_{i}" for i in range(2, 9999))) if name not in used)


def _runs(names: list[str]) -> list[Any]:
    """Spell a list of names as repeated patterns: at each place the one that covers most, the shortest of equals."""
    runs: list[Any] = []
    start = 0
    while start < len(names):
        length, repeat = max(_candidates(names, start), key=lambda run: (run[0] * run[1], -run[0]))
        pattern = names[start : start + length]
        runs.append(pattern[0] if length * repeat == 1 else {"repeat": repeat, "pattern": pattern})
        start += length * repeat
    return runs


def _candidates(names: list[str], start: int, count: int = 16) -> Iterable[tuple[int, int]]:
    yield 1, _repeats(names, start, 1)
    for length in range(2, min(count, (len(names) - start) // 2) + 1):
        repeat = _repeats(names, start, length)
        if repeat > 1:
            yield length, repeat


def _repeats(names: list[str], start: int, length: int) -> int:
    pattern, repeat = names[start : start + length], 1
    while names[start + repeat * length : start + (repeat + 1) * length] == pattern:
        repeat += 1
    return repeat
