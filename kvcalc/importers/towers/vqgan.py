"""Vector-quantised autoencoders that turn images into codes and back, and what Janus writes its codes with.

Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.importers.towers.bricks import linear, norm

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["CODES", "janus"]

_SQUARE = 9


def _convolution(inputs: int, outputs: int) -> int:
    return linear(_SQUARE * inputs, outputs)


def _residual(inputs: int, outputs: int) -> int:
    """Return the parameters of two convolutions with norms, and of a map beside them where the width changes."""
    beside = linear(inputs, outputs) if inputs != outputs else 0
    return norm(inputs) + _convolution(inputs, outputs) + norm(outputs) + _convolution(outputs, outputs) + beside


def _attention(width: int) -> int:
    return norm(width) + 4 * linear(width, width)


def _widths(config: Config) -> list[int]:
    return [config.integer("base_channels") * times for times in config.integers("channel_multiplier")]


def _middle(width: int) -> int:
    return 2 * _residual(width, width) + _attention(width)


def _encoder(config: Config, *, attended: int) -> int:
    """Return the parameters from pixels to latent channels.

    Args:
        config: the autoencoder's.
        attended: levels, counted from the last, whose blocks have attention.
    """
    widths, blocks = _widths(config), config.integer("num_res_blocks")
    latent = config.integer("latent_channels") * (2 if config.flag("double_latent", default=False) else 1)
    total = _convolution(config.integer("in_channels"), config.integer("base_channels"))
    for level, (before, after) in enumerate(pairwise([config.integer("base_channels"), *widths])):
        total += _residual(before, after) + (blocks - 1) * _residual(after, after)
        last = level == len(widths) - 1
        total += blocks * _attention(after) if level >= len(widths) - attended else 0
        total += 0 if last else _convolution(after, after)
    return total + _middle(widths[-1]) + norm(widths[-1]) + _convolution(widths[-1], latent)


def _decoder(config: Config) -> int:
    """Return the parameters from latent channels to pixels; the last level of the encoder is the first here."""
    widths, blocks = _widths(config)[::-1], config.integer("num_res_blocks") + 1
    total = _convolution(config.integer("latent_channels"), widths[0]) + _middle(widths[0])
    for level, (before, after) in enumerate(pairwise([widths[0], *widths])):
        total += _residual(before, after) + (blocks - 1) * _residual(after, after)
        total += blocks * _attention(after) if level == 0 else 0
        total += 0 if level == len(widths) - 1 else _convolution(after, after)
    return total + norm(widths[-1]) + _convolution(widths[-1], config.integer("out_channels"))


def _codes(config: Config) -> int:
    """Return the parameters of the table of codes, and of the maps before and behind it."""
    width, latent = config.integer("embed_dim"), config.integer("latent_channels")
    before = latent * (2 if config.flag("double_latent", default=False) else 1)
    return config.integer("num_embeddings") * width + linear(before, width) + linear(width, latent)


def _chameleon(config: Config) -> int:
    """Chameleon's encoder and codes; attention stands in the middle alone."""
    if config.sequence("attn_resolutions", default=None) or config.text("attn_type", default="vanilla") != "vanilla":
        raise config.bad("attn_resolutions", config.raw("attn_resolutions"), "null: attention in the middle alone")
    return _encoder(config, attended=0) + _codes(config)


def _janus(config: Config) -> int:
    """Janus' encoder, codes and decoder; the narrowest level has attention too."""
    return _encoder(config, attended=1) + _codes(config) + _decoder(config)


def janus(_top: Config, codes: Config, _text: int) -> int:
    """Janus' table, maps and head for the codes of images that it writes."""
    width, count, rows = codes.integer("embed_dim"), codes.integer("num_hidden_layers"), codes.integer("num_embeddings")
    inner = codes.integer("projection_dim")
    aligner = linear(width, inner) + (count - 1) * linear(inner, inner)
    head = linear(codes.integer("image_token_embed_dim"), inner) + linear(inner, rows)
    return rows * width + aligner + head


CODES: dict[str, Callable[[Config], int]] = {
    "chameleon_vqgan": _chameleon,
    "janus_vqgan": _janus,
}
