"""Bricks of towers, as counts of parameters: linear maps, norms, transformer layers."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config

__all__ = ["attention", "layers", "linear", "mlp", "norm", "patches", "perceptron", "side"]


def linear(inputs: int, outputs: int, *, bias: bool = True) -> int:
    """Return the parameters of a linear map.

    >>> linear(4, 3), linear(4, 3, bias=False)
    (15, 12)
    """
    return inputs * outputs + (outputs if bias else 0)


def norm(width: int, count: int = 1, *, bias: bool = True) -> int:
    """Return the parameters of norms: a weight for each element, and a bias where they have one."""
    return count * width * (2 if bias else 1)


def attention(hidden: int, *, bias: bool = True, key_bias: bool = True, output_bias: bool | None = None) -> int:
    """Return the parameters of self-attention whose heads together are as wide as the hidden state.

    Args:
        hidden: width of the hidden state.
        bias: whether queries and values have biases.
        key_bias: whether keys have them too.
        output_bias: whether the output has one; as the queries where left out.
    """
    out = bias if output_bias is None else output_bias
    return 4 * hidden * hidden + hidden * ((2 + key_bias if bias else 0) + out)


def mlp(hidden: int, inner: int, *, bias: bool = True, gated: bool = False) -> int:
    """Return the parameters of an MLP of two matrices, or of three with a gate."""
    branches = 2 if gated else 1
    return branches * linear(hidden, inner, bias=bias) + linear(inner, hidden, bias=bias)


def layers(config: Config, each: int, *keys: str) -> int:
    """Return the parameters of a stack of equal layers; ``keys`` are the spellings of how many there are."""
    return config.integer(*(keys or ("num_hidden_layers",))) * each


def perceptron(*widths: int, bias: bool = True) -> int:
    """Return the parameters of linear maps one after another, by the widths between them.

    >>> perceptron(4, 3, 2)
    23
    """
    return sum(linear(inputs, outputs, bias=bias) for inputs, outputs in pairwise(widths))


def side(config: Config, key: str) -> int:
    """Return the side of a square that a config gives as one number or as two equal ones."""
    value = config.raw(key)
    if isinstance(value, list) and value and isinstance(value[0], int) and value == [value[0]] * len(value):
        return value[0]
    return config.integer(key)


def patches(config: Config, hidden: int, *, bias: bool = True, frames: int = 1) -> int:
    """Return the parameters of the convolution from pixels to hidden states.

    Args:
        config: the tower's.
        hidden: width of the hidden state.
        bias: whether the convolution has one.
        frames: frames of a video that one patch spans.
    """
    pixels = (
        config.integer("num_channels", "in_channels", "in_chans", default=3) * frames * side(config, "patch_size") ** 2
    )
    return linear(pixels, hidden, bias=bias)
