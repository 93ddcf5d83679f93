"""Profiles from files: read, override fields, validate where it is not one of kvcalc's own, build."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc.core.errors import InputError, KvcalcError, ProfileError, did_you_mean
from kvcalc.core.formats import parse_format
from kvcalc.core.units import parse_bytes, parse_count, parse_rate
from kvcalc.profiles.document import (
    calibration_from_document,
    hardware_from_document,
    hardware_to_document,
    model_from_document,
    model_to_document,
)
from kvcalc.profiles.reader import Document, read_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.profiles.catalog import Kind

T = TypeVar("T")

# Fields of tokens, which may be written as 128k.
_COUNTS = ("context_limit", "window", "chunk")
# What `--set` itself writes: that fields were set.
_WRITTEN = ("sources", "provenance", "notes")

__all__ = ["load_calibration_file", "load_hardware_file", "load_model_file", "override_hardware", "override_model"]


def load_model_file(path: Path, *, trusted: bool = False) -> ModelProfile:
    """Return the model that a YAML file describes.

    Args:
        path: the file.
        trusted: whether it is one that the tests have validated; the schema is then consulted only to explain a fault.

    Raises:
        ProfileError: with file, line and field.
    """
    return _build(read_profile(path), "model", model_from_document, trusted=trusted)


def load_hardware_file(path: Path, *, trusted: bool = False) -> HardwareProfile:
    """Return the accelerator that a YAML file describes; arguments and errors as `load_model_file`."""
    return _build(read_profile(path), "hardware", hardware_from_document, trusted=trusted)


def load_calibration_file(path: Path, *, trusted: bool = False) -> Calibration:
    """Return the calibration that a YAML file describes; arguments and errors as `load_model_file`."""
    return _build(read_profile(path), "calibration", calibration_from_document, trusted=trusted)


def override_model(model: ModelProfile, settings: Sequence[str]) -> ModelProfile:
    """Return a model with fields replaced, each given as ``path=value``.

    A path is dotted (``blocks.decoder.mixers.0.window=2048``, ``head.tied=true``), or the bare name of a field, which
    is then set wherever a layer has it (``kv_heads=64``).

    Raises:
        InputError: no such field, not of the form ``path=value``, or a field that is set to two values.
        ProfileError: the result is not a valid profile.
    """
    return _override(model_to_document(model), settings, "model", model_from_document) if settings else model


def override_hardware(hardware: HardwareProfile, settings: Sequence[str]) -> HardwareProfile:
    """Return an accelerator with fields replaced, as `override_model` does (``memory_bandwidth_bytes_per_s=4e12``)."""
    if not settings:
        return hardware
    return _override(hardware_to_document(hardware), settings, "hardware", hardware_from_document)


def _build(document: Document, kind: Kind, build: Callable[[Any], T], *, trusted: bool) -> T:
    if not trusted:
        _validate(document, kind)
    try:
        return build(document.data)
    except KvcalcError as error:
        raise ProfileError(error.what, where=error.where or document.where, hint=error.hint) from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _validate(document, kind)
        raise ProfileError(f"not a usable {kind} profile: {error}", where=document.where) from error


def _validate(document: Document, kind: Kind) -> None:
    from kvcalc.profiles.schema import DOCUMENTS, validate

    validate(document, DOCUMENTS[kind])
    if kind == "model":
        for field in ("dtype", "kv_dtype", "activation_dtype"):
            _check_format(document, field, document.data.get(field))
        for alias, own in document.data.get("alias_fields", {}).items():
            for field in ("dtype", "kv_dtype"):
                _check_format(document, f"alias_fields.{alias}.{field}", own.get(field))
        for part, name in document.data.get("weight_formats", {}).items():
            _check_format(document, f"weight_formats.{part}", name)
        for block, spec in document.data["blocks"].items():
            for index, mixer in enumerate(spec.get("mixers", ())):
                path = f"blocks.{block}.mixers.{index}.recurrent_format"
                _check_format(document, path, mixer.get("recurrent_format"))


def _check_format(document: Document, path: str, name: str | None) -> None:
    if name is None:
        return
    try:
        parse_format(name)
    except KvcalcError as error:
        raise ProfileError(error.what, where=document.place(path), hint=error.hint) from None


def _override(data: dict[str, Any], settings: Sequence[str], kind: Kind, build: Callable[[Any], T]) -> T:
    from kvcalc.profiles.reader import read_yaml

    changed = copy.deepcopy(data)
    values: dict[str, Any] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path.strip():
            raise InputError(f"--set {setting!r} is not of the form path=value", hint="for example --set kv_heads=8")
        if path.strip().partition(".")[0] in _WRITTEN:
            raise InputError(f"--set {path.strip()} is no number of the profile", hint="write a profile file for it")
        value = _with_unit(path, read_yaml(f"value: {text}", where=f"--set {path}").data["value"])
        _refuse_twice(values, path.strip(), value)
        for path_in_profile in _assign(changed, path.strip(), value):
            changed.setdefault("provenance", {})[path_in_profile] = "set"
    note = f"--set {' '.join(settings)}"
    changed.setdefault("sources", {})["set"] = {"kind": "derived", "note": note, "verified": False}
    changed["notes"] = [*changed.get("notes", ()), f"fields were overridden: {note}"]
    return _build(Document(changed, f"--set {' '.join(settings)}", {}), kind, build, trusted=False)


def _refuse_twice(values: dict[str, Any], path: str, value: Any) -> None:
    """Refuse a field whose value, or that of a single layer's field of its name, another setting already gave."""
    for earlier, other in values.items():
        if (earlier == path or earlier.endswith(f".{path}")) and other != value:
            raise InputError(f"--set {path} is {value}, but --set {earlier} is {other}", hint="give each field once")
    values[path] = value


def _with_unit(path: str, value: Any) -> Any:
    """Return a value whose unit is written, ``4TB/s`` or ``80GB``, in the field's own unit."""
    if not isinstance(value, str):
        return value
    parts = path.strip().split(".")
    if any(part.endswith("_per_s") for part in parts):
        return parse_rate(value)
    if parts[-1].endswith("_bytes"):
        return parse_bytes(value)
    return parse_count(value) if parts[-1] in _COUNTS else value


def _assign(data: dict[str, Any], path: str, value: Any) -> list[str]:
    """Set a field wherever the path says, and return what provenance calls the places that changed."""
    parts = path.split(".")
    if len(parts) == 1 and parts[0] not in data:
        places = list(_places(data, parts[0])) or list(_optional_places(data, parts[0]))
        if not places:
            hint = did_you_mean(path, _names(data)) or f"fields: {', '.join(sorted(_names(data)))}"
            raise InputError(f"--set: there is no field {path!r}", hint=hint[:300])
        for holder in places:
            holder[parts[0]] = value
        return ["blocks", *(f"blocks.{name}" for name in data.get("blocks", {})), path]
    target: Any = data
    for step in parts[:-1]:
        target = _step(target, step, path)
    if isinstance(target, list):
        index = _index(target, parts[-1], path)
        target[index] = value
    elif isinstance(target, dict):
        target[parts[-1]] = value
    else:
        raise InputError(f"--set: {path!r} leads into a plain value", hint="shorten the path by its last part")
    return [".".join(parts[:2])]


def _step(target: Any, step: str, path: str) -> Any:
    if isinstance(target, list):
        return target[_index(target, step, path)]
    if isinstance(target, dict) and step in target:
        return target[step]
    known = list(target) if isinstance(target, dict) else []
    raise InputError(
        f"--set: {path!r} has no part {step!r}", hint=did_you_mean(step, known) or f"parts: {', '.join(known)}"
    )


def _index(target: list[Any], step: str, path: str) -> int:
    if not step.isdigit() or int(step) >= len(target):
        raise InputError(f"--set: {path!r} needs a number below {len(target)} in place of {step!r}")
    return int(step)


def _places(value: Any, name: str) -> Any:
    """Yield the mappings inside blocks, tables and heads that hold a field of that name."""
    if isinstance(value, dict):
        if name in value:
            yield value
        for key, entry in value.items():
            if key not in ("sources", "provenance"):
                yield from _places(entry, name)
    elif isinstance(value, list):
        for entry in value:
            yield from _places(entry, name)


def _optional_places(data: dict[str, Any], name: str) -> Any:
    """Yield the mixers and MLPs whose class has an optional field of that name, or the top level where it has one."""
    from dataclasses import fields

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import MIXERS, MLPS, ModelProfile

    top = ModelProfile if "blocks" in data else HardwareProfile
    if name in {field.name for field in fields(top)}:
        yield data
        return
    for block in data.get("blocks", {}).values():
        for spec in (*block.get("mixers", ()), *([block["mlp"]] if block.get("mlp") else ())):
            kind = MIXERS.get(spec["kind"]) or MLPS[spec["kind"]]
            if name in {field.name for field in fields(kind)}:
                yield spec


def _names(value: Any) -> set[str]:
    names: set[str] = set()
    if isinstance(value, dict):
        for key, entry in value.items():
            if key not in ("sources", "provenance"):
                names |= {key} | _names(entry)
    elif isinstance(value, list):
        for entry in value:
            names |= _names(entry)
    return names
