"""Inkling's towers: folds of pixels into wider and wider vectors, sums over a table of spectrum levels, and a ViT.

Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from math import log
from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm, patches

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["AUDIO", "VISION"]

_CHANNELS_ROUNDED_TO = 64


def _folds(number: int) -> list[int]:
    """Return the products of a number's prime factors, the largest factor first.

    >>> _folds(40)
    [5, 10, 20, 40]
    """
    factors, divisor = [], 2
    while number > 1:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor = divisor + 1 if divisor * divisor <= number else max(number, 2)
    folds = [1]
    for factor in reversed(factors):
        folds.append(folds[-1] * factor)
    return folds[1:]


def _scales(config: Config) -> list[tuple[int, int, int]]:
    """Return frames, side and channels before the first layer and after each: the steps nearest to even growth."""
    side, frames = config.integer("patch_size"), config.integer("temporal_patch_size")
    channels, count = config.integer("num_channels"), config.integer("num_hidden_layers", "n_layers")
    wide = side * side * channels
    steps = [(1, 1, channels)]
    unit = _CHANNELS_ROUNDED_TO
    steps += [(1, fold, ceil_div(fold**2 * channels, unit) * unit) for fold in _folds(side)]
    steps += [(fold, side, wide * fold * unit) for fold in _folds(frames)]
    reached = [log(step[0] * step[1] ** 2) for step in steps]
    ideal = [log(wide * frames) * index / count for index in range(count + 1)]
    if count >= len(steps):
        chosen = [min(range(len(steps)), key=lambda step: abs(reached[step] - goal)) for goal in ideal]
    else:
        # both rise, so that the best assignment keeps their order
        chosen = list(
            min(
                combinations(range(len(steps)), count + 1),
                key=lambda taken: sum(abs(reached[step] - goal) for step, goal in zip(taken, ideal, strict=True)),
            )
        )
    chosen[0], chosen[-1] = 0, len(steps) - 1
    return [steps[step] for step in chosen]


def folding(config: Config) -> int:
    """Inkling's vision tower: each layer folds neighbouring pixels and frames together, a norm behind all."""
    out, total = config.integer("text_hidden_size"), 0
    scales = _scales(config)
    for index, (before, after) in enumerate(pairwise(scales)):
        folded = before[2] * (after[0] // before[0]) * (after[1] // before[1]) ** 2
        last = index == len(scales) - 2
        total += folded * (out if last else after[2]) + (0 if last else after[2])
    return total + out


def vit(config: Config) -> int:
    """Inkling 2's vision tower: a class token with its position, scales of both residuals, a merger of two maps."""
    hidden, merged = config.integer("hidden_size"), config.integer("spatial_merge_size") ** 2
    inner, bias = config.integer("projection_hidden_dim"), config.flag("projector_bias")
    each = attention(hidden) + mlp(hidden, config.integer("intermediate_size")) + norm(hidden, 2) + 2 * hidden
    positions = (config.integer("posemb_grid_size") ** 2 + 2) * hidden
    merger = linear(merged * hidden, inner, bias=bias) + linear(inner, config.integer("text_hidden_size"), bias=bias)
    return patches(config, hidden, bias=False) + positions + norm(hidden) + layers(config, each) + merger


def levels(config: Config) -> int:
    """Inkling's audio tower: a row for each level of each bin of the spectrum, and a norm."""
    rows = config.integer("mel_vocab_size") * config.integer("n_mel_bins")
    return rows * config.integer("text_hidden_size") + config.integer("text_hidden_size")


VISION: dict[str, Callable[[Config], int]] = {
    "inkling2_loop_vision": vit,
    "inkling2_vision": vit,
    "inkling_vision": folding,
}

AUDIO: dict[str, Callable[[Config], int]] = {"inkling_audio": levels}
