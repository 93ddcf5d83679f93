"""Recurrent layers of GGUF files: what the ``ssm.*`` keys mean for states and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import State

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config

__all__ = ["gated_delta", "kimi_delta", "mamba", "mamba2", "short_convolution"]


def mamba(keys: Config, hidden: int) -> State:
    """Mamba-1 (also Jamba's): a state for each channel."""
    inner, size, rank = (keys.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    kernel = keys.integer("ssm.conv_kernel")
    return State(
        variant="mamba",
        heads=inner,
        key_dim=size,
        value_dim=1,
        conv_channels=inner,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=inner * (3 * hidden + 2 * rank + 2 * size),
    )


def mamba2(keys: Config, hidden: int) -> State:
    """Mamba-2: a state for each head; ``time_step_rank`` is the number of heads."""
    inner, size, heads = (keys.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    groups, kernel = keys.integer("ssm.group_count"), keys.integer("ssm.conv_kernel")
    if inner % heads:
        raise keys.bad("ssm.inner_size", inner, f"a multiple of ssm.time_step_rank = {heads}")
    return State(
        variant="mamba2",
        heads=heads,
        key_dim=size,
        value_dim=inner // heads,
        conv_channels=inner + 2 * groups * size,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=hidden * (3 * inner + 2 * groups * size + heads),
        groups=groups,
    )


def gated_delta(keys: Config, hidden: int) -> State:
    """Qwen3-Next's gated delta rule: ``group_count`` key heads, ``time_step_rank`` value heads."""
    size, heads, groups = (keys.integer(f"ssm.{key}") for key in ("state_size", "time_step_rank", "group_count"))
    kernel, inner = keys.integer("ssm.conv_kernel"), size * heads
    channels = inner + 2 * groups * size
    return State(
        variant="gated_delta",
        heads=heads,
        key_dim=size,
        value_dim=size,
        conv_channels=channels,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=hidden * (channels + 2 * inner + 2 * heads),
    )


def kimi_delta(keys: Config, hidden: int, heads: int) -> State:
    """Kimi-Linear's delta attention: query, key, value, output, a decay and a gate of low rank, and beta."""
    size = keys.integer("kda.head_dim")
    kernel, inner = keys.integer("ssm.conv_kernel"), heads * size
    return State(
        variant="gated_delta",
        heads=heads,
        key_dim=size,
        value_dim=size,
        conv_channels=3 * inner,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=hidden * (4 * inner + 2 * size + heads) + 2 * size * inner,
    )


def short_convolution(keys: Config, hidden: int) -> State:
    """LFM2's gated short convolution."""
    kernel = keys.integer("shortconv.l_cache")
    return State(
        variant="short_conv",
        conv_channels=hidden,
        conv_window=kernel,
        conv_kernel=kernel,
        matrix_parameters=4 * hidden * hidden,
    )
