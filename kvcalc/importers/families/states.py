"""State mixers that several families and file formats build: Mamba, delta nets, short convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import State
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config

__all__ = [
    "delta_net",
    "kimi_delta",
    "mamba2_mixer",
    "mamba_mixer",
    "requested_format",
    "short_conv_mixer",
    "step_rank",
]


def mamba_mixer(
    hidden: int, inner: int, *, states: int, kernel: int, rank: int, conv_bias: bool, bias: bool
) -> tuple[State, int]:
    """Return a Mamba-1 mixer and its vectors; each of its ``inner`` channels has a state of its own.

    Source: Gu and Dao 2023, arXiv 2312.00752, section 3.4.
    """
    state = State(
        variant="mamba",
        heads=inner,
        key_dim=states,
        value_dim=1,
        conv_channels=inner,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=3 * hidden * inner + inner * (rank + 2 * states) + rank * inner,
    )
    vectors = inner * (states + kernel + 2)
    vectors += inner if conv_bias else 0
    vectors += 2 * inner + hidden if bias else 0
    return state, vectors


def mamba2_mixer(
    hidden: int,
    *,
    state_heads: int,
    head_dim: int,
    groups: int,
    states: int,
    kernel: int,
    conv_bias: bool,
    in_bias: bool = False,
    out_bias: bool = False,
    norm: bool = True,
) -> tuple[State, int]:
    """Return a Mamba-2 mixer and its vectors; the convolution also covers the input and output vectors of each group.

    Source: Dao and Gu 2024, arXiv 2405.21060, section 8.
    """
    inner = state_heads * head_dim
    channels = inner + 2 * groups * states
    projected = inner + channels + state_heads
    state = State(
        variant="mamba2",
        heads=state_heads,
        key_dim=states,
        value_dim=head_dim,
        conv_channels=channels,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=hidden * projected + inner * hidden,
        groups=groups,
    )
    vectors = channels * kernel + 3 * state_heads
    vectors += channels if conv_bias else 0
    vectors += projected if in_bias else 0
    vectors += hidden if out_bias else 0
    vectors += inner if norm else 0
    return state, vectors


def delta_net(
    hidden: int,
    *,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
    kernel: int,
    requested: str | None = None,
) -> tuple[State, int]:
    """Return a gated delta net and its vectors: one state for each value head, a convolution over all of q, k and v.

    Source: Yang et al. 2024, arXiv 2412.06464.
    """
    keys, values = key_heads * key_dim, value_heads * value_dim
    channels = 2 * keys + values
    state = State(
        variant="gated_delta",
        heads=value_heads,
        key_dim=key_dim,
        value_dim=value_dim,
        conv_channels=channels,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        requested_format=requested,
        matrix_parameters=hidden * (channels + values + 2 * value_heads) + values * hidden,
    )
    return state, channels * kernel + 2 * value_heads + value_dim


def kimi_delta(
    hidden: int, *, count: int, width: int, kernel: int, full_forget: bool, full_gate: bool
) -> tuple[State, int]:
    """Return Kimi delta attention and its vectors; forget and output gates are low-rank (``width``) or full.

    Source: Kimi Linear, arXiv 2510.26692, section 4.
    """
    inner = count * width
    low_rank = hidden * width + width * inner
    gates = sum(hidden * inner if full else low_rank for full in (full_forget, full_gate))
    state = State(
        variant="gated_delta",
        heads=count,
        key_dim=width,
        value_dim=width,
        conv_channels=3 * inner,
        conv_window=kernel,
        conv_kernel=kernel,
        recurrent_format="fp32",
        matrix_parameters=4 * hidden * inner + hidden * count + gates,
    )
    return state, 3 * inner * kernel + inner + count + width


def short_conv_mixer(hidden: int, kernel: int) -> State:
    """Return a gated short convolution: two gates and an input projected together, one output.

    Source: Liquid AI, LFM2 (arXiv 2511.23404), section 2.
    """
    return State(
        variant="short_conv",
        conv_channels=hidden,
        conv_window=kernel,
        conv_kernel=kernel,
        matrix_parameters=4 * hidden * hidden,
    )


def requested_format(config: Config, key: str) -> str | None:
    """Return the format that the config asks engines to keep recurrent states in; none where it leaves that to them."""
    named = config.text(key, default="")
    if named in {"", "auto"}:
        return None
    name = parse_format(named.removeprefix("torch.")).name
    if name not in FORMATS:
        raise config.bad(key, named, "a format without groups")
    return name


def step_rank(config: Config, key: str, hidden: int) -> int:
    """Return the rank of the time-step projection; ``auto`` is a sixteenth of the hidden size."""
    value = config.raw(key, default="auto")
    return ceil_div(hidden, 16) if value == "auto" else config.integer(key)
