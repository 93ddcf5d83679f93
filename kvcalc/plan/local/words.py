"""A placement in one line, as one person tells another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.units import counted
from kvcalc.plan.local.sections import experts_home

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.local_speed import LocalSpeed
    from kvcalc.engines.llama_cpp.placement import Placement
    from kvcalc.plan.local.setup import LocalSetup

__all__ = ["headline", "layers_note", "placement_words", "published_note", "rate_text"]

_SLOW = 10


def headline(setup: LocalSetup, placement: Placement, *, context: int, parallel: int, speed: LocalSpeed | None) -> str:
    """Return the answer in one line: the file, where its layers stand, the context and the speed of one sequence."""
    parts = [
        f"{setup.format}: {placement_words(setup, placement)}",
        f"{parallel} x " * (parallel > 1) + f"{context:,}-token context",
    ]
    if speed is not None:
        bound = rate_text(speed.tokens_per_s)
        if speed.estimated_tokens_per_s is None:
            parts.append(f"at most {bound} tokens/s")
        else:
            parts.append(f"about {rate_text(speed.estimated_tokens_per_s)} tokens/s (bound {bound})")
    return "; ".join(parts)


def rate_text(tokens_per_s: float) -> str:
    """Return a speed without more digits than matter: ``8.4``, ``1,250``."""
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= _SLOW else f"{tokens_per_s:.2g}"


def layers_note(setup: LocalSetup, placement: Placement) -> list[str]:
    """Return a note on how llama.cpp counts layers, where a command with ``-ngl`` counts more than the model has."""
    count = placement.gpu_layers
    if not count or placement.output is None:
        return []
    on_devices = [home is not None for home in placement.layers]
    own = setup.model.layers
    parts = [counted(sum(on_devices[:own]), "layer"), *["MTP"] * sum(on_devices[own:]), "output"]
    return [f"-ngl {count} is {' + '.join(parts)}: llama.cpp counts the output as a layer"]


def published_note(model: ModelProfile, weights: str) -> str:
    """Return a note on smaller files, for a model that is asked for as it was published."""
    listing = f"kvcalc models quants {model.name} lists all"
    return f"weights in {weights}, as published: --weights q4_k_m takes a quantised file ({listing})"


def placement_words(setup: LocalSetup, placement: Placement) -> str:
    """Return the places of a model's own layers, in words.

    Args:
        setup: the model and the machine: where one memory is all there is, what no device holds is on the CPU.
        placement: the places of its layers.
    """
    model, device_names = setup.model, [device.name for device in setup.devices]
    host = "on the CPU" if any(device.is_unified for device in setup.devices) else "in RAM"
    layers = range(model.layers)
    homes = [placement.of_layer(layer) for layer in layers]
    mixtures = [layer for layer in layers if isinstance(model.blocks[layer].mlp, Mixture)]
    moved = [layer for layer in mixtures if homes[layer] is not None and experts_home(placement, layer) is None]
    there = homes.count(None)
    if there == model.layers:
        return f"all {model.layers} layers {host}"
    whole = [(name, sum(home == device for home in homes)) for device, name in enumerate(device_names)]
    whole = [(name, count) for name, count in whole if count]
    if moved and len(moved) == len(mixtures) and not there:
        return f"all attention on {_listed(name for name, _ in whole)}, all experts {host}"
    rest = f", {there} {host}" if there else ""
    if not moved:
        return _spread(whole, model.layers) + rest
    names = _listed(name for name, _ in whole)
    kept = sum(home is not None for home in homes) - len(moved)
    attention = "all attention" if not there else f"attention of {model.layers - there}"
    return (
        f"{kept} of {model.layers} layers and {attention} on {names}, experts of {counted(len(moved), 'layer')} {host}"
    )


def _spread(whole: Sequence[tuple[str, int]], layers: int) -> str:
    (first, count), *others = whole
    start = f"all {layers} layers on {first}" if count == layers else f"{count} of {layers} layers on {first}"
    return ", ".join([start, *(f"{more} on {name}" for name, more in others)])


def _listed(names: Iterable[str]) -> str:
    each = list(names)
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
