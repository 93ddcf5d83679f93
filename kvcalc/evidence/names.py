"""What printed names mean: models, accelerators, weight formats, engines; and which records cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import label_bytes
from kvcalc.profiles.catalog import lookup
from kvcalc.profiles.loader import load_hardware_file, load_model_file
from kvcalc.profiles.yaml_reader import read_yaml_file

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.evidence.record import Record

__all__ = ["EngineRules", "engine_rules", "exclusion", "find_hardware", "find_model", "weight_names"]

# Endings that say how a checkpoint was tuned, stored or packed: its layers are those of the name without them.
_ENDINGS = re.compile(
    r"[-_](gguf|hf|it|instruct|chat|base|qat|awq|gptq|dynamic|fp8|fp4|nvfp4|mxfp4|bf16|int4|int8|w8a8|w4a16|q\d_(0|1|k)(_[sml])?)$"
)
_VENDORS = re.compile(r"^(nvidia|amd|apple|intel|google|aws)-")
_MEMORY = re.compile(r"-(\d+)-?gb?$")


@cache
def _data() -> dict[str, Any]:
    return read_yaml_file(Path(__file__).with_name("names.yaml")).data


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """What an engine may do that a record does not print.

    Args:
        name: the engine.
        quantized: narrowest format in which weights of a quantised file are multiplied.
        attention: format in which attention works.
        cache: narrowest cache format by weight format.
    """

    name: str
    quantized: str | None
    attention: str | None
    cache: dict[str, str]


def engine_rules(printed: str) -> EngineRules:
    """Return the rules of an engine by the beginning of its printed name; none are known of others."""
    key = printed.strip().lower()
    for name, rules in _data()["engines"].items():
        if key.startswith(name):
            return EngineRules(
                name=name,
                quantized=rules.get("quantized"),
                attention=rules.get("attention"),
                cache=rules.get("cache", {}),
            )
    return EngineRules(name=key, quantized=None, attention=None, cache={})


def exclusion(record: Record) -> str | None:
    """Return why a record cannot be used, or none."""
    for rule in _data()["excluded"]:
        if fnmatchcase(record.id, rule["ids"]) and record.phase == rule.get("phase", record.phase):
            return str(rule["reason"])
    return None


@cache
def find_model(printed: str) -> ModelProfile | None:
    """Return the catalogue's model that a printed name means, or none: nothing is guessed."""
    key = printed.strip().lower()
    candidates = [key, key.rpartition("/")[2]]
    while (shorter := _ENDINGS.sub("", candidates[-1])) != candidates[-1]:
        candidates.append(shorter)
    for candidate in candidates:
        name = _data()["models"].get(candidate, candidate.replace(" ", "-"))
        entry = lookup(name, "model")
        if entry is not None:
            return load_model_file(entry.path, trusted=entry.shipped)
    return None


@cache
def find_hardware(printed: str) -> tuple[HardwareProfile, tuple[str, ...]] | None:
    """Return the accelerator that a printed name means, and the names of all that it may mean; none if unknown."""
    key = " ".join(printed.strip().lower().split())
    named = _data()["hardware"].get(key)
    if named is not None:
        return _hardware(named[0]), tuple(named)
    plain = re.sub(r"[ _()]+", "-", key.replace("-gpu)", ")").replace(" gpu)", ")")).strip("-")
    for candidate in dict.fromkeys((plain, _VENDORS.sub("", plain))):
        entry = lookup(candidate, "hardware")
        if entry is not None:
            hardware = load_hardware_file(entry.path, trusted=entry.shipped)
            return hardware, (hardware.name,)
        memory = _MEMORY.search(candidate)
        entry = lookup(candidate[: memory.start()], "hardware") if memory else None
        if entry is not None and memory is not None:
            hardware = load_hardware_file(entry.path, trusted=entry.shipped)
            if label_bytes(hardware.memory_label_bytes) == label_bytes(float(f"{memory[1]}e9")):
                return hardware, (hardware.name,)
    return None


def _hardware(name: str) -> HardwareProfile:
    entry = lookup(name, "hardware")
    if entry is None:
        raise LookupError(name)
    return load_hardware_file(entry.path, trusted=entry.shipped)


def weight_names(record: Record) -> dict[str, str] | None:
    """Return ``weights`` and ``activations`` of a record's weight format, or none where it is not a known one."""
    data = _data()
    of_file: dict[str, str] | None = data["files"].get(record.model.lower())
    found: dict[str, str] | None = data["weights"].get((record.weights or "").strip().lower())
    return of_file or found
