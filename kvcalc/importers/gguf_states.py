"""Recurrent layers of GGUF files: what the ``ssm.*`` keys mean for states and matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import State
from kvcalc.importers.families import states
from kvcalc.importers.gguf_parts import part_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.importers.checkpoint import Tensor
    from kvcalc.importers.config_reader import Config

__all__ = [
    "gated_delta",
    "kimi_delta",
    "lightning",
    "mamba",
    "mamba2",
    "rwkv",
    "selective_heads",
    "short_convolution",
]


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


def kimi_delta(keys: Config, hidden: int, heads: int, *, full_forget: bool, full_gate: bool) -> State:
    """Kimi's delta attention, whose gates are of low or of full rank."""
    width, kernel = keys.integer("kda.head_dim"), keys.integer("ssm.conv_kernel")
    return states.kimi_delta(
        hidden, count=heads, width=width, kernel=kernel, full_forget=full_forget, full_gate=full_gate
    )[0]


def short_convolution(keys: Config, hidden: int) -> State:
    """LFM2's gated short convolution."""
    return states.short_conv_mixer(hidden, keys.integer("shortconv.l_cache"))


def selective_heads(keys: Config, tensors: Mapping[str, Tensor]) -> State:
    """PLaMo-2's selective heads: Mamba-2's state, of which the convolution is that of the inner width alone."""
    inner, size, heads = (keys.integer(f"ssm.{key}") for key in ("inner_size", "state_size", "time_step_rank"))
    if inner % heads:
        raise keys.bad("ssm.inner_size", inner, f"a multiple of ssm.time_step_rank = {heads}")
    kernel = keys.integer("ssm.conv_kernel")
    return State(
        variant="mamba2",
        heads=heads,
        key_dim=size,
        value_dim=inner // heads,
        conv_channels=inner + 2 * keys.integer("ssm.group_count", default=0, least=0) * size,
        conv_window=kernel - 1,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=_matrices(tensors),
    )


def rwkv(keys: Config, hidden: int, tensors: Mapping[str, Tensor], *, shifts: int) -> State:
    """RWKV 6 and 7: a matrix a head, and the last token's hidden state before each of its ``shifts`` mixes."""
    width, shifts = keys.integer("wkv.head_size"), keys.integer("token_shift_count", default=shifts)
    if hidden % width:
        raise keys.bad("wkv.head_size", width, f"a divisor of embedding_length = {hidden}")
    return State(
        variant="rwkv",
        heads=hidden // width,
        key_dim=width,
        value_dim=width,
        conv_channels=hidden,
        conv_window=shifts,
        conv_kernel=shifts + 1,
        recurrent_format="fp32",
        matrix_parameters=_matrices(tensors),
    )


def lightning(keys: Config, hidden: int, heads: int, tensors: Mapping[str, Tensor]) -> State:
    """MiniMax-01's linear attention: a matrix a head, no convolution; queries, keys, values, a gate and the output."""
    width = keys.integer("attention.key_length", default=hidden // max(1, heads))
    return State(
        variant="linear",
        heads=heads,
        key_dim=width,
        value_dim=width,
        recurrent_format="fp32",
        matrix_parameters=_matrices(tensors) or 5 * hidden * heads * width,
    )


def _matrices(tensors: Mapping[str, Tensor]) -> int:
    """Return the elements of a layer's matrices that mix tokens."""
    return sum(tensor.elements for key, tensor in tensors.items() if part_of(key, tensor) == "attention")
