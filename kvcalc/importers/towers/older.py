"""Towers of the first models that see, and what leads from them to the text model.

Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.towers.bricks import attention, layers, linear, mlp, norm
from kvcalc.importers.towers.vision import clip, hidden_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

__all__ = ["VISION", "florence", "git", "kosmos"]


def flattened(config: Config) -> int:
    """Pix2Struct's and Kosmos-2.5's towers: tables of rows and columns, gated MLPs, no biases but the patches'."""
    hidden, pixels = hidden_of(config), config.integer("patch_embed_hidden_size")
    rows = config.integer("seq_len", "max_num_patches")
    inner = config.integer("d_ff", "intermediate_size")
    each = attention(hidden, bias=False) + mlp(hidden, inner, bias=False, gated=True) + norm(hidden, 2, bias=False)
    return linear(pixels, hidden) + 2 * rows * hidden + layers(config, each) + norm(hidden, bias=False)


def davit(config: Config) -> int:
    """Florence-2's DaViT: stages of blocks that attend over windows, then over channels, with convolutions beside."""
    widths = config.integers("embed_dim")
    kernels = config.integers("patch_size", length=len(widths))
    depths, before = config.integers("depths", length=len(widths)), config.integer("in_channels", default=3)
    ratio, bias, total = config.number("mlp_ratio"), config.flag("qkv_bias"), 0
    normed_first = config.sequence("patch_prenorm", length=len(widths))
    for width, kernel, depth, first in zip(widths, kernels, depths, normed_first, strict=True):
        block = 2 * linear(9, width) + norm(width, 2) + linear(width, 3 * width, bias=bias) + linear(width, width)
        block += mlp(width, int(ratio * width))
        total += linear(before * kernel**2, width) + norm(before if first else width) + 2 * depth * block
        before = width
    return total


def florence(_top: Config, tower: Config, _text: int) -> int:
    """Florence-2's positions of rows and columns, a map and a norm."""
    width = tower.integers("embed_dim")[-1]
    places = tower.integer("max_position_embeddings")
    out = tower.integer("projection_dim")
    return 2 * places * (width // 2) + width * out + norm(out)


def kosmos(top: Config, tower: Config, text: int) -> int:
    """Kosmos' queries, which attend to the tower's output in the text model's width."""
    return top.integer("latent_query_num") * text + linear(hidden_of(tower), text) + attention(text)


def git(top: Config, tower: Config, text: int) -> int:
    """GIT's map with a norm, and a vector for each frame where there are several."""
    frames = top.integer_or(0, "num_image_with_embedding", least=0)
    return linear(hidden_of(tower), text) + norm(text) + frames * hidden_of(tower)


VISION: dict[str, Callable[[Config], int]] = {
    "florence_vision": davit,
    "git_vision_model": clip,
    "idefics_vision": clip,
    "kosmos_2_5_vision_model": flattened,
    "kosmos_2_vision_model": clip,
    "pix2struct_vision_model": flattened,
}
