"""State mixers that several families build: Mamba-1 and Mamba-2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import State

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config

__all__ = ["mamba2_mixer", "mamba_mixer", "requested_format", "step_rank"]


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
    return -(-hidden // 16) if value == "auto" else config.integer(key)
