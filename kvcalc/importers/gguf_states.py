"""Recurrent layers of GGUF files: what the ``ssm.*`` keys mean for states and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.families import states

if TYPE_CHECKING:
    from kvcalc.core.model import State
    from kvcalc.importers.config_reader import Config

__all__ = ["gated_delta", "kimi_delta", "mamba", "mamba2", "short_convolution"]


def mamba(keys: Config, hidden: int) -> State:
    """Mamba-1 (also Jamba's): a state for each channel."""
    inner, size, rank = (keys.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    kernel = keys.integer("ssm.conv_kernel")
    return states.mamba_mixer(hidden, inner, states=size, kernel=kernel, rank=rank, conv_bias=False, bias=False)[0]


def mamba2(keys: Config, hidden: int) -> State:
    """Mamba-2: a state for each head; ``time_step_rank`` is the number of heads."""
    inner, size, heads = (keys.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    if inner % heads:
        raise keys.bad("ssm.inner_size", inner, f"a multiple of ssm.time_step_rank = {heads}")
    return states.mamba2_mixer(
        hidden,
        state_heads=heads,
        head_dim=inner // heads,
        groups=keys.integer("ssm.group_count"),
        states=size,
        kernel=keys.integer("ssm.conv_kernel"),
        conv_bias=False,
    )[0]


def gated_delta(keys: Config, hidden: int) -> State:
    """Qwen3-Next's gated delta rule: ``group_count`` key heads, ``time_step_rank`` value heads."""
    size, heads, groups = (keys.integer(f"ssm.{key}") for key in ("state_size", "time_step_rank", "group_count"))
    kernel = keys.integer("ssm.conv_kernel")
    return states.delta_net(hidden, key_heads=groups, value_heads=heads, key_dim=size, value_dim=size, kernel=kernel)[0]


def kimi_delta(keys: Config, hidden: int, heads: int) -> State:
    """Kimi-Linear's delta attention, its decay and gate of low rank."""
    width, kernel = keys.integer("kda.head_dim"), keys.integer("ssm.conv_kernel")
    return states.kimi_delta(hidden, count=heads, width=width, kernel=kernel, full_forget=False, full_gate=False)[0]


def short_convolution(keys: Config, hidden: int) -> State:
    """LFM2's gated short convolution."""
    return states.short_conv_mixer(hidden, keys.integer("shortconv.l_cache"))
