"""A placement in one line, as one person tells another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.local_speed import LocalSpeed
    from kvcalc.engines.llama_cpp.placement import Placement

__all__ = ["headline", "placement_words"]

_SLOW = 10


def headline(
    model: ModelProfile, placement: Placement, *, weights: str, device_names: Sequence[str], context: int,
    parallel: int, speed: LocalSpeed | None,
) -> str:  # fmt: skip
    """Return the answer in one line: the file, where its layers stand, the context and the speed of one sequence."""
    parts = [
        f"{weights}: {placement_words(model, placement, device_names)}",
        f"{parallel} x " * (parallel > 1) + f"{context:,}-token context",
    ]
    if speed is not None:
        bound = _speed(speed.tokens_per_s)
        if speed.estimated_tokens_per_s is None:
            parts.append(f"at most {bound} tokens/s")
        else:
            parts.append(f"about {_speed(speed.estimated_tokens_per_s)} tokens/s (bound {bound})")
    return "; ".join(parts)


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.0f}" if tokens_per_s >= _SLOW else f"{tokens_per_s:.2g}"


def placement_words(model: ModelProfile, placement: Placement, device_names: Sequence[str]) -> str:
    """Return the places of a model's layers, in words.

    Args:
        model: the model.
        placement: the places of its layers.
        device_names: what to call the devices.
    """
    layers = range(model.layers)
    homes = [placement.of_layer(layer) for layer in layers]
    mixtures = [layer for layer in layers if isinstance(model.blocks[layer].mlp, Mixture)]
    moved = [
        layer
        for layer in mixtures
        if homes[layer] is not None and placement.of_tensor(f"blk.{layer}.ffn_up_exps.weight", homes[layer]) is None
    ]
    there = homes.count(None)
    if there == model.layers:
        return f"all {model.layers} layers in RAM"
    whole = [(name, sum(home == device for home in homes)) for device, name in enumerate(device_names)]
    whole = [(name, count) for name, count in whole if count]
    if moved and len(moved) == len(mixtures) and not there:
        return f"all attention on {_listed(name for name, _ in whole)}, all experts in RAM"
    rest = f", {there} in RAM" if there else ""
    if not moved:
        return _spread(whole, model.layers) + rest
    names = _listed(name for name, _ in whole)
    kept = sum(home is not None for home in homes) - len(moved)
    attention = "all attention" if not there else f"attention of {model.layers - there}"
    return (
        f"{kept} of {model.layers} layers and {attention} on {names}, experts of {counted(len(moved), 'layer')} in RAM"
    )


def _spread(whole: Sequence[tuple[str, int]], layers: int) -> str:
    (first, count), *others = whole
    start = f"all {layers} layers on {first}" if count == layers else f"{count} of {layers} layers on {first}"
    return ", ".join([start, *(f"{more} on {name}" for name, more in others)])


def _listed(names: Iterable[str]) -> str:
    each = list(names)
    return each[0] if len(each) == 1 else f"{', '.join(each[:-1])} and {each[-1]}"
