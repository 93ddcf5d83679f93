"""From what a user calls a model or an accelerator to its profile: names, files, folders, hub ids."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, ProfileError, UnknownNameError
from kvcalc.core.model import ModelProfile
from kvcalc.core.units import label_bytes
from kvcalc.profiles.origins import note_origin
from kvcalc.profiles.reader import expanded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.plan.deployment import Deployment
    from kvcalc.profiles.catalog import Entry, Kind
    from kvcalc.profiles.resolve import Match

__all__ = [
    "calibrations",
    "catalogue_hardware",
    "catalogue_model",
    "engine_calibrations",
    "find_calibration",
    "load_calibration",
    "load_hardware",
    "load_model",
    "shipped_calibrations",
    "typed_recipe",
]

_MAX_KEPT = 256
_PROFILE_SUFFIXES = (".yaml", ".yml")
_CHECKPOINT_SUFFIXES = (".json", ".gguf", ".safetensors")
# A file on the web: ``hf:owner/repo/file.gguf`` or ``https://…/file.gguf``; other schemes are refused by name.
_ADDRESS = re.compile(r"hf:|[a-z][a-z0-9+.-]*://[^?#]*\.(?:gguf|json|safetensors|ya?ml)(?:[?#]|$)", re.IGNORECASE)


def load_model(
    source: str | Path | ModelProfile, *, settings: Sequence[str] = (), weights: str | None = None
) -> ModelProfile:
    """Return a model.

    Args:
        source: a catalogue name or alias (the Hugging Face id), a profile file, a Hugging Face ``config.json``, a
            ``.gguf`` or ``.safetensors`` file, a folder that holds a checkpoint, a ``.gguf`` file on the web
            (``hf:owner/repo/file.gguf``, ``https://…``); or a profile, which is passed through.
        settings: fields to replace, as ``path=value``.
        weights: the weights that are asked for: they count, not those that a catalogue name says.

    Raises:
        UnknownNameError: no such model.
        UnsupportedError: an architecture that is not known, or a name whose mixture only its file tells.
        ProfileError: a file that cannot be read.
    """
    if not isinstance(source, str | Path | ModelProfile):
        raise InputError(f"a model is a name, a file or a profile, not {type(source).__name__} {source!r:.60}")
    model = source if isinstance(source, ModelProfile) else _read_model(source, weights)
    if not settings:
        return model
    from kvcalc.profiles.loader import override_model

    return override_model(model, settings)


def load_hardware(
    source: str | Path | HardwareProfile, *, settings: Sequence[str] = (), memory_bytes: int | None = None
) -> HardwareProfile:
    """Return an accelerator: by catalogue name, alias or profile file; arguments and errors as `load_model`.

    Args:
        source: the accelerator.
        settings: fields to replace, as ``path=value``.
        memory_bytes: its memory, where it is another than the profile's.
    """
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.profiles.loader import load_hardware_file, override_hardware

    if isinstance(source, str | Path):
        path = _as_path(source, _PROFILE_SUFFIXES)
        if path is None:
            source = catalogue_hardware(str(source))
        else:
            _note_path("hardware", source, path)
            source = load_hardware_file(path)
    if not isinstance(source, HardwareProfile):
        raise InputError(f"an accelerator is a name, a file or a profile, not {type(source).__name__} {source!r:.60}")
    hardware = override_hardware(source, settings)
    return hardware if memory_bytes is None else hardware.with_memory(memory_bytes)


def catalogue_model(name: str, *, is_base: bool = False, weights: str | None = None) -> ModelProfile:
    """Return a model of the catalogue, by its name, another spelling or an alias: nothing is fetched.

    A name that says how the weights are stored gives the model with weights of that format, and a note.

    Args:
        name: the name.
        is_base: the model as its own checkpoint has it, whatever format the name says.
        weights: the weights that are asked for, as for `load_model`.

    Raises:
        UnknownNameError: no such model.
        UnsupportedError: a name that gives a publisher's own mixture, and no weights are asked for.
    """
    from kvcalc.profiles.loader import load_model_file
    from kvcalc.profiles.typed import as_typed, under

    match = _find(name, "model")
    entry = match.entry
    model = _shipped_model(entry.path) if entry.shipped else load_model_file(entry.path)
    if match.alias.lower() != entry.path.stem:
        model = under(model, match.alias)
    return model if is_base else as_typed(model, name.strip(), match, weights)


def typed_recipe(source: object) -> str | None:
    """Return the recipe of llama.cpp that a model's name ends with, as Qwen3-8B-Q4_K_M does; none for a file.

    >>> typed_recipe("Qwen3-8B-Q4_K_M"), typed_recipe("qwen3-8b"), typed_recipe("Qwen/Qwen3-8B-FP8")
    ('q4_k_m', None, None)
    """
    if not isinstance(source, str) or "_" not in source or _as_path(source, _PROFILE_SUFFIXES + _CHECKPOINT_SUFFIXES):
        return None
    from kvcalc.engines.llama_cpp.recipes import find_recipe  # few names have one
    from kvcalc.profiles.resolve import resolve

    match = resolve(source, "model")
    return find_recipe(match.reading.weights) if match is not None and "_" in match.reading.weights else None


def catalogue_hardware(name: str) -> HardwareProfile:
    """Return an accelerator of the catalogue, by any spelling of its name or an alias.

    Raises:
        UnknownNameError: no such accelerator.
    """
    from kvcalc.profiles.loader import load_hardware_file

    match = _find(name, "hardware")
    entry = match.entry
    card = _shipped_hardware(entry.path) if entry.shipped else load_hardware_file(entry.path)
    is_apple = card.vendor == "apple" and match.memory_gb is not None
    return card.with_memory(label_bytes(float(f"{match.memory_gb}e9"))) if is_apple else card


def _find(name: str, kind: Kind) -> Match:
    from kvcalc.profiles.resolve import find

    match = find(name, kind)
    entry = match.entry
    others = f"{name.strip()} is taken for {entry.path.stem}; others of that name: {', '.join(match.variants)}"
    note = others if match.variants else ""
    note_origin(kind, name, str(entry.path), shipped=entry.shipped, shadows=entry.shadows, note=note)
    return match


def _note_path(kind: Kind, source: str | Path, path: Path) -> None:
    """Note a file that was given by its path; a Hugging Face id may be the path of a folder too."""
    from kvcalc.profiles.catalog import is_shipped_name

    name = str(source)
    shadows = isinstance(source, str) and _is_hub_id(name) and not path.suffix and is_shipped_name(name, kind)
    note_origin(kind, name, str(path), shadows=shadows)


# Shipped files don't change while kvcalc runs: what is asked about over and over is read once.
@lru_cache(maxsize=_MAX_KEPT)
def _shipped_model(path: Path) -> ModelProfile:
    from kvcalc.profiles.loader import load_model_file

    return load_model_file(path, trusted=True)


@lru_cache(maxsize=_MAX_KEPT)
def _shipped_hardware(path: Path) -> HardwareProfile:
    from kvcalc.profiles.loader import load_hardware_file

    return load_hardware_file(path, trusted=True)


@lru_cache(maxsize=_MAX_KEPT)
def _shipped_calibration(path: Path) -> Calibration:
    from kvcalc.profiles.loader import load_calibration_file

    return load_calibration_file(path, trusted=True)


def load_calibration(source: str | Path | Calibration) -> Calibration:
    """Return a calibration: by catalogue name or file; arguments and errors as `load_model`."""
    if not isinstance(source, str | Path):
        return source
    from kvcalc.profiles.loader import load_calibration_file

    path = _as_path(source, _PROFILE_SUFFIXES)
    if path is not None:
        _note_path("calibration", source, path)
        return load_calibration_file(path)
    return _calibration_of(_find(str(source), "calibration").entry)


def _calibration_of(entry: Entry) -> Calibration:
    from kvcalc.profiles.loader import load_calibration_file

    return _shipped_calibration(entry.path) if entry.shipped else load_calibration_file(entry.path)


def find_calibration(deployment: Deployment) -> Calibration | None:
    """Return the calibration of the catalogue that a deployment is estimated with, or none where none applies."""
    from kvcalc.plan.estimates import best_calibration, likely_engines
    from kvcalc.profiles.catalog import entries

    if deployment.hardware is None:
        return None
    listed = [(entry, _calibration_of(entry)) for _, entry in sorted(entries("calibration").items())]
    best = best_calibration([known for _, known in listed], deployment.hardware, likely_engines(deployment))
    for entry, known in listed:
        if known is best:
            note_origin("calibration", known.name, str(entry.path), shipped=entry.shipped, shadows=entry.shadows)
    return best


def calibrations() -> dict[str, Calibration]:
    """Return all calibrations that can be found, by name."""
    from kvcalc.profiles.catalog import entries

    return {name: _calibration_of(entry) for name, entry in entries("calibration").items()}


def engine_calibrations(engine: str) -> list[Calibration]:
    """Return kvcalc's own calibrations whose name begins with an engine's, and all others that can be found."""
    from kvcalc.profiles.catalog import entries

    listed = entries("calibration").items()
    return [_calibration_of(entry) for name, entry in listed if name.startswith(engine) or not entry.shipped]


def shipped_calibrations() -> list[Calibration]:
    """Return kvcalc's own calibrations."""
    from kvcalc.profiles.catalog import shipped_folder
    from kvcalc.profiles.loader import load_calibration_file

    return [load_calibration_file(path, trusted=True) for path in sorted(shipped_folder("calibration").glob("*.yaml"))]


def _read_model(source: str | Path, weights: str | None) -> ModelProfile:
    if isinstance(source, str) and _ADDRESS.match(source.strip()):
        return _read_address(source.strip())
    path = _as_path(source, _PROFILE_SUFFIXES + _CHECKPOINT_SUFFIXES)
    if path is not None:
        _note_path("model", source, path)
        return _read_model_file(path)
    name = str(source)
    try:
        return catalogue_model(name, weights=weights)
    except UnknownNameError as unknown:
        folder = expanded(name)
        if name.strip() and _exists(folder / "config.json"):
            _note_path("model", name, folder)
            return _read_model_file(folder)
        error = _unlisted(name, unknown)
        if not _is_hub_id(name):
            raise error from None
        from kvcalc.importers.hub import fetch_config

        config = fetch_config(name, error)
        note_origin("model", name, f"https://huggingface.co/{name}")
        return _read_as(config, _profile_name(Path(name) / "config.json"))


def _unlisted(name: str, unknown: UnknownNameError) -> UnknownNameError:
    from kvcalc.importers.named import unlisted
    from kvcalc.profiles.name_index import spellings

    return unlisted(name, unknown, (each.alias for each in spellings("model").values()))


def _read_address(address: str) -> ModelProfile:
    from kvcalc.importers.gguf_remote import import_address

    note_origin("model", address, address.partition("?")[0])
    return import_address(address, _profile_name(Path(address.partition("?")[0])))


def _is_hub_id(source: str) -> bool:
    owner, slash, name = source.partition("/")
    return bool(slash and owner and name) and "/" not in name and not source.startswith((".", "~"))


def _as_path(source: str | Path, suffixes: tuple[str, ...]) -> Path | None:
    """Return the path that a source names, or none where it is a name to look up."""
    if not str(source).strip():
        return None
    path = expanded(source)
    if isinstance(source, Path) or path.suffix.lower() in suffixes:
        return path
    is_path = "/" in str(source) or "\\" in str(source) or str(source).startswith((".", "~"))
    return path if is_path and _exists(path) else None


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_model_file(path: Path) -> ModelProfile:
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        from kvcalc.profiles.resolve import resolve

        is_known = path.suffix.lower() == ".gguf" and resolve(path.stem, "model") is not None
        hint = f"without the file: --model {path.stem}" if is_known else ""
        raise ProfileError("no such file", where=str(path), hint=hint)
    return _read_as(path, _profile_name(path))


def _read_as(path: Path, name: str) -> ModelProfile:
    suffix = path.suffix.lower()
    if suffix == ".gguf":
        from kvcalc.importers.gguf import import_gguf

        return import_gguf(path, name)
    if suffix == ".safetensors" or path.name.endswith(".safetensors.index.json"):
        from kvcalc.importers.safetensors import import_safetensors

        return import_safetensors(path, name)
    if suffix == ".json":
        from kvcalc.importers.hugging_face import import_config, read_config_file

        return import_config(read_config_file(path), name=name, where=str(path))[0]
    from kvcalc.profiles.loader import load_model_file

    return load_model_file(path)


def _in_folder(folder: Path) -> ModelProfile:
    from kvcalc.importers.folders import find_checkpoint

    checkpoint = find_checkpoint(folder)
    named = checkpoint.path if checkpoint.path.suffix == ".gguf" else folder / "config.json"
    model = _read_as(checkpoint.path, _profile_name(named))
    return replace(model, notes=(*model.notes, *checkpoint.notes))


def _profile_name(path: Path) -> str:
    stem = path.absolute().parent.name if path.name == "config.json" else path.name.removesuffix(path.suffix)
    kept = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in stem.lower()).strip("._-")
    return kept or "model"
