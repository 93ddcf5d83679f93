"""Meaning of printed names: models, accelerators, weight formats, engines; and the records that cannot be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import label_bytes
from kvcalc.engines.logs import model_names
from kvcalc.evidence.gguf_types import is_gguf_type
from kvcalc.profiles.catalog import lookup
from kvcalc.profiles.loader import load_hardware_file, load_model_file
from kvcalc.profiles.name_index import profile_names
from kvcalc.profiles.origins import note_origin
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.evidence.record import Record

__all__ = [
    "EngineRules",
    "engine_rules",
    "exclusion",
    "find_hardware",
    "find_model",
    "listed_rules",
    "slowness",
    "superseded",
    "weight_names",
    "weights_in_name",
]

_VENDORS = re.compile(r"^((nvidia|amd|apple|intel|google|aws|geforce|radeon|tesla) )+")
_STORED = re.compile(
    r"[-_.](fp8|nvfp4|fp4|mxfp4|awq|gptq|int[48]|w8a8|w[48]a16|iq4_(?:nl|xs)|q\d_(?:[01]|k(?:_[sml])?)|bf16|f16|fp16)"
    r"(?:[-.]gguf|-dynamic)?$"
)
_MEMORY = re.compile(r"[ -](\d+) ?gb?$")


@cache
def _data() -> dict[str, Any]:
    return read_yaml_file(Path(__file__).with_name("names.yaml")).data


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRules:
    """Freedoms of an engine that a record does not print.

    Args:
        name: the engine.
        like: engine whose kernels multiply (`as_multiplied`), where that is known.
        cache: narrowest cache format by weight format.
        splits_layers: whether several accelerators share out the layers, unless a tensor parallel size is printed.
        checkpoints: whether weights whose format is not printed are the checkpoint's own.
    """

    name: str
    like: str | None
    cache: dict[str, str]
    splits_layers: bool
    checkpoints: bool


def engine_rules(printed: str) -> EngineRules:
    """Return the rules of an engine by the beginning of its printed name; none are known of others."""
    key = printed.strip().lower()
    for name, rules in _data()["engines"].items():
        if key.startswith(name):
            return _rules(name, rules)
    return _rules(key, {})


def _rules(name: str, rules: dict[str, Any]) -> EngineRules:
    return EngineRules(
        name=name,
        like=rules.get("like"),
        cache=rules.get("cache", {}),
        splits_layers=rules.get("splits_layers", False),
        checkpoints=rules.get("checkpoints", False),
    )


def exclusion(record: Record) -> str | None:
    """Return why a record cannot be used, or none."""
    return _listed("excluded", record)


def superseded(record: Record) -> str | None:
    """Return why a record says nothing of what its engine reaches by now, or none."""
    return _listed("superseded", record)


def slowness(record: Record) -> str | None:
    """Return why a step of a single sequence takes far longer than its bound, where that is known."""
    return _listed("slow", record)


def listed_rules(name: str) -> tuple[tuple[str, str], ...]:
    """Return the rules ``excluded``, ``superseded`` or ``slow``: what they apply to, each with the reason."""
    rules = []
    for rule in _data()[name]:
        conditions = [f"engine or note says `{rule['text']}`"] if "text" in rule else [rule["ids"]]
        conditions += [f"{key} {rule[key]}" for key in ("phase", "source") if key in rule]
        rules.append((", ".join(conditions), rule["reason"]))
    return tuple(rules)


def _listed(name: str, record: Record) -> str | None:
    text = f"{record.engine} {record.note}".lower()
    for rule in _data()[name]:
        if (
            fnmatchcase(record.id, rule.get("ids", "*"))
            and rule.get("source", "") in record.source
            and record.phase == rule.get("phase", record.phase)
            and re.search(rule.get("text", ""), text)
        ):
            return str(rule["reason"])
    return None


@cache
def find_model(printed: str) -> ModelProfile | None:
    """Return the catalogue's model that a printed name means, or none: nothing is guessed."""
    named, listed = _data()["models"], _listed_models()
    for candidate in (printed.strip().lower(), *model_names(printed)):
        name = named.get(candidate, candidate)
        if name.strip().lower() not in listed:
            continue
        entry = lookup(name, "model")
        if entry is not None:
            if entry.shadows:
                note_origin("model", name, str(entry.path), shadows=True)
            return load_model_file(entry.path, trusted=entry.shipped)
    return None


@cache
def _listed_models() -> frozenset[str]:
    """Return the names and aliases of the catalogue: to ask it for one that it has not takes long."""
    known = profile_names("model")
    return frozenset(name.lower() for each in known for name in (each.name, *each.aliases))


@cache
def find_hardware(printed: str) -> tuple[HardwareProfile, ...]:
    """Return the accelerators that a printed name may mean, the usual one first; empty where it is not known."""
    for name, memory_gb in _spellings(printed):
        named = _data()["hardware"].get(name)
        if named is None:
            entry = lookup(name.replace(" ", "-").replace("_", "-"), "hardware")
            named = [] if entry is None else [entry.path.stem]
        variants = tuple(hardware for hardware in map(_hardware, named) if _may_have(hardware, memory_gb))
        if variants:
            return variants
    return ()


def _may_have(hardware: HardwareProfile, memory_gb: str | None) -> bool:
    """Whether an accelerator is sold with that memory; Apple's chips are with several."""
    if memory_gb is None or hardware.vendor == "apple":
        return True
    return label_bytes(hardware.memory_label_bytes) == label_bytes(float(f"{memory_gb}e9"))


def _spellings(printed: str) -> Iterator[tuple[str, str | None]]:
    """Yield ways to write an accelerator's name, each with the memory in GB that was cut from it.

    Without what a name often has beside it: how many, the vendor, remarks in brackets, the memory.
    """
    name = re.sub(r"^\d+ ?x ?", "", " ".join(printed.strip().lower().split()))
    chip = re.search(r"\bm\d( (pro|max|ultra))?\b", name)
    cores = re.search(r"\b(\d+)-core gpu|\b(\d+)c\b", name)
    if chip is not None and cores is not None:
        yield f"{chip[0]} {cores[1] or cores[2]}", None
    bare = re.sub(r"\s*\([^()]*\)", "", name).strip()
    for text in dict.fromkeys((name, bare, _VENDORS.sub("", bare))):
        yield text, None
        memory = _MEMORY.search(text)
        if memory is not None:
            yield text[: memory.start()], memory[1]


@cache
def _hardware(name: str) -> HardwareProfile:
    entry = lookup(name, "hardware")
    if entry is None:
        raise LookupError(name)
    if entry.shadows:
        note_origin("hardware", name, str(entry.path), shadows=True)
    return load_hardware_file(entry.path, trusted=entry.shipped)


def weights_in_name(model: str) -> str | None:
    """Return the weight format that a checkpoint's or a file's name ends with, or none.

    >>> weights_in_name("Qwen/Qwen3-32B-FP8"), weights_in_name("qwen2.5-7b-instruct-q4_k_m.gguf")
    ('fp8', 'q4_k_m')
    """
    match = _STORED.search(model.strip().lower())
    return match[1] if match else None


def weight_names(printed: str, model: str, rules: EngineRules) -> dict[str, str] | None:
    """Return ``weights`` and ``activations`` of a weight format, or none where it is none of `names.yaml`.

    Args:
        printed: the format as printed.
        model: the model as printed, whose files may follow a rule of their own.
        rules: of the engine; the names that llama.cpp gives its file types come first there.
    """
    data, key = _data(), printed.strip().lower()
    of_file: dict[str, str] | None = data["files"].get(model.lower())
    if of_file is not None or (rules.splits_layers and is_gguf_type(key)):
        return of_file
    names: dict[str, str] | None = data["weights"].get(key)
    return names
