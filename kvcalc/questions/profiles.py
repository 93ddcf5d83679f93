"""Profiles of models and accelerators: finding, printing and checking them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.profiles.origins import noting_origins
from kvcalc.sources import catalogue_hardware, catalogue_model, load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.catalogue import ModelsFitReport, QuantsReport
    from kvcalc.importers.config_reader import KeyUse
    from kvcalc.profiles.catalog import Kind

__all__ = [
    "catalogue",
    "catalogue_hardware",
    "catalogue_model",
    "catalogue_stamp",
    "config_model",
    "lint_config",
    "load_hardware",
    "load_model",
    "models_fit",
    "noting_origins",
    "packed_profiles",
    "profile_names",
    "profile_schema",
    "profile_text",
    "quants",
    "validate_profile",
]


def profile_names(kind: Kind) -> list[str]:
    """Return the names of the models or accelerators that can be found."""
    from kvcalc.profiles.catalog import names

    return names(kind)


def catalogue(kind: Kind) -> dict[str, tuple[str, ...]]:
    """Return the models or accelerators that can be found, each with its aliases."""
    load = catalogue_model if kind == "model" else catalogue_hardware
    return {name: load(name).aliases for name in profile_names(kind)}


def catalogue_stamp() -> tuple[object, ...]:
    """Return a key that changes when any profile that names lead to changes, for caches of answers."""
    from kvcalc.profiles.catalog import stamp

    return stamp()


def config_model(text: str, *, name: str = "config") -> ModelProfile:
    """Return the model that the text of a Hugging Face ``config.json`` describes.

    Raises:
        UnsupportedError: an architecture that is not known.
        ProfileError: not a config, or one with keys that are missing or make no sense.
    """
    from kvcalc.importers.hugging_face import import_config, read_config

    return import_config(read_config(text), name=name)[0]


def packed_profiles() -> dict[str, bytes]:
    """Pack kvcalc's own profiles for an archive of the package: files by their paths, each with its compiled form.

    Where the compiled form lies beside a profile it is read without the YAML library.
    """
    from kvcalc.profiles.catalog import profile_files, shipped_folder
    from kvcalc.profiles.reader import compiled_text

    places: dict[Kind, str] = {
        "model": "kvcalc/model_profiles",
        "hardware": "kvcalc/hardware_profiles",
        "calibration": "kvcalc/profiles/calibrations",
    }
    packed = {}
    for kind, folder in places.items():
        for path in profile_files(shipped_folder(kind)):
            packed[f"{folder}/{path.name}"] = path.read_bytes()
            packed[f"{folder}/{path.stem}.json"] = compiled_text(path).encode()
    return packed


def profile_text(profile: ModelProfile | HardwareProfile) -> str:
    """Return a profile as the YAML of a profile file."""
    from kvcalc.profiles.writer import profile_yaml

    return profile_yaml(profile)


def profile_schema(kind: Kind) -> dict[str, object]:
    """Return the JSON Schema of a kind of profile file."""
    from kvcalc.profiles.schema import DOCUMENTS, json_schema

    return json_schema(DOCUMENTS[kind])


def validate_profile(path: Path, kind: Kind) -> None:
    """Check a profile file against the schema.

    Raises:
        ProfileError: the first thing that is wrong.
    """
    from kvcalc.profiles.loader import load_hardware_file, load_model_file

    load_model_file(path) if kind == "model" else load_hardware_file(path)


def lint_config(path: Path) -> list[KeyUse]:
    """Return the use of each key of a Hugging Face config: used, defaulted or ignored.

    Args:
        path: a ``config.json``, its folder, or a ``.safetensors`` file beside it.

    Raises:
        UnsupportedError: an architecture that is not known.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.importers.folders import config_of
    from kvcalc.importers.hugging_face import lint

    return lint(config_of(path))


def quants(
    model: str | Path | ModelProfile,
    *,
    memory_bytes: int | None = None,
    context: int | None = None,
    imatrix: bool = False,
) -> QuantsReport:
    """Return the bytes of a model's file by every recipe of llama.cpp, and which of them a memory holds.

    Args:
        model: as for `load_model`; of a GGUF file, one in 16 bits.
        memory_bytes: a memory that weights and cache share.
        context: tokens of one sequence; 4,096 or the model's limit where left out.
        imatrix: whether the files are made with an importance matrix.

    Raises:
        InputError: less than one token.
        UnsupportedError: a model whose tensors are not known.
    """
    from kvcalc.plan.quants import quants_report

    return quants_report(load_model(model), memory_bytes=memory_bytes, context=context, imatrix=imatrix)


def models_fit(
    devices: Sequence[str | HardwareProfile],
    *,
    search: str = "",
    context: int = 4096,
    host_memory_bytes: int | None = None,
    host: str | None = None,
    used: Sequence[str | int] = (),
) -> ModelsFitReport:
    """Return the models of the catalogue that llama.cpp runs on a machine, each in the largest quantization that fits.

    Args:
        devices: names, memories (``24GiB``), profiles, ``this`` or ``cpu``, in llama.cpp's order.
        search: only models whose name has this text.
        context: tokens of one sequence.
        host_memory_bytes: the host's memory; without it nothing spills over.
        host: the host's memory modules, as ``ddr5-5600x2``, or a processor's name.
        used: memory that other programs take of each device.

    Raises:
        InputError: no device, or one that makes no sense.
        UnknownNameError: no such accelerator, or no model whose name has the text.
    """
    from kvcalc.plan.local.catalogue import models_fit as report
    from kvcalc.questions.machines import machine_of

    if not devices:
        raise InputError("which devices is missing", hint="give --device rtx-4090, or --device this")
    if context < 1:
        raise InputError(f"context must be 1 or more, not {context}", parameter="context")
    spots, made, notes = machine_of(devices, used=used, host=host, host_memory=host_memory_bytes)
    if not spots and made.memory_bytes is None:
        what = "the host's memory is missing: without a device, models are loaded into it"
        raise InputError(what, hint="give --host-memory 64GiB", parameter="host-memory")
    names = [name for name in profile_names("model") if search.lower() in name]
    if not names:
        raise UnknownNameError(f"no model matches {search!r}", hint="kvcalc models lists all")
    models = (catalogue_model(name) for name in names)
    return report(models, spots, made, context=context, notes=notes)
