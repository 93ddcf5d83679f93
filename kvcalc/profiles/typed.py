"""Weights, cache and alias that the name of a model says beside the model itself."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.profiles.name_index import is_other_version
from kvcalc.profiles.spellings import words

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.profiles.resolve import Match

__all__ = ["as_typed", "under"]


def under(model: ModelProfile, alias: str) -> ModelProfile:
    """Return a model as the checkpoint of an alias has it, its weights included."""
    from kvcalc.plan.formats import stored_as

    own = next((own for name, own in model.alias_fields.items() if name.lower() == alias.lower()), {})
    model = model.under(alias)
    return stored_as(model, own["weights"])[0] if own.get("weights") else model


def as_typed(model: ModelProfile, name: str, match: Match, weights: str | None) -> ModelProfile:
    """Return a model as its name says that weights and cache are stored, with a note of what the name is taken for."""
    from kvcalc.plan.formats import stored_as
    from kvcalc.plan.weight_words import unknown_mixture

    reading, note = match.reading, f"{name} is taken for {model.name}"
    is_short = "/" not in name and reading.key in (words(match.alias), words(match.alias.rpartition("/")[2]))
    if name.lower() == match.alias.lower() or (is_short and ":" not in name and not reading.weights):
        note = f"{note}, which has its shape" if is_other_version(match.alias, model.name) else ""
    elif weights is None and reading.mixture:
        raise unknown_mixture(f"the size of {name!r}", reading.mixture, model.name)
    elif weights is None and reading.weights:
        model, stored = stored_as(model, reading.weights)
        note += f", {stored}"
    elif weights is None and reading.unsaid:
        note += f" with the weights of its checkpoint: --weights says which {reading.unsaid.upper()} it is"
    elif weights is None and _is_of_ollama(name):
        note += f" with the weights of its checkpoint{_ollama_weights(model, name)}"
    if reading.kv:
        model = replace(model, kv_dtype=reading.kv)
        note += f"; by its name its cache is in {reading.kv}, unless said otherwise"
    return replace(model, notes=(*model.notes, note)) if note else model


def _is_of_ollama(name: str) -> bool:
    """Whether a name has a tag, as Ollama's have."""
    return ":" in name and "://" not in name


def _ollama_weights(model: ModelProfile, name: str) -> str:
    """Say in which format Ollama's file of a tag is, where it is another than the checkpoint's."""
    if any(parse_format(own).unit == "fp4" for own in model.weight_formats.values()):
        return ", which Ollama's file has too"
    if "qat" in words(name).split():
        return "; files trained for it are Q4_0: --weights q4_0"
    return "; most of Ollama's files are Q4_K_M: --weights q4_k_m"
