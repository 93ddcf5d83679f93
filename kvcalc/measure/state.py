"""Layers with a recurrent state of constant size: Mamba-2 and the gated delta rule."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from kvcalc.core.errors import UnsupportedError
from kvcalc.measure.kernels import normalised

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import State
    from kvcalc.measure.attention import Pass
    from kvcalc.measure.weights import WeightMaker

__all__ = ["StateCache", "StateLayer", "check_state"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCache:
    """States of one layer.

    Args:
        recurrent: sequences x heads x key width x value width.
        conv: sequences x channels x columns, the latest last.
    """

    recurrent: Any
    conv: Any

    @property
    def tensors(self) -> tuple[Any, ...]:
        """Return the allocated tensors."""
        return (self.recurrent, self.conv)


def check_state(mixer: State, hidden: int, *, name: str) -> None:
    """Refuse recurrences and projections that the decoder does not build.

    Raises:
        UnsupportedError: another recurrence than the two, or projections of other sizes than theirs.
    """
    if mixer.variant not in ("mamba2", "gated_delta"):
        raise UnsupportedError(
            f"{name}: the decoder builds no {mixer.variant} state layer", hint="it builds mamba2 and gated_delta"
        )
    inputs, outputs = _projections(mixer)
    if (sum(inputs) + outputs) * hidden != mixer.matrix_parameters or mixer.extra_state_bytes:
        raise UnsupportedError(
            f"{name}: the decoder builds no {mixer.variant} layer with {mixer.matrix_parameters:,} matrix parameters",
            hint=f"of these heads it builds the one with {(sum(inputs) + outputs) * hidden:,}",
        )


def _projections(mixer: State) -> tuple[tuple[int, ...], int]:
    """Widths of what the input is projected to (gate, convolved, per-head numbers), and of what is projected out."""
    values = mixer.heads * mixer.value_dim
    numbers = mixer.heads if mixer.variant == "mamba2" else 2 * mixer.heads
    return (values, mixer.conv_channels, numbers), values


class StateLayer:
    """A Mamba-2 (arXiv 2405.21060) or gated delta rule layer (arXiv 2412.06464), one token after another.

    Args:
        mixer: the layer's state.
        hidden: width of the hidden state.
        make: makes the weights.
        vectors: the layer's vectors by name.
    """

    def __init__(self, mixer: State, hidden: int, make: WeightMaker, vectors: Mapping[str, Any]) -> None:
        self.mixer, self.vectors = mixer, vectors
        self.widths, values = _projections(mixer)
        self.project = make.linear(hidden, sum(self.widths))
        self.output = make.linear(values, hidden)
        self.kernel = vectors["conv"].view(mixer.conv_channels, mixer.conv_kernel)

    def new_cache(self, batch: int, dtype: Any, recurrent: Any, device: str) -> StateCache:
        """Return empty states; ``recurrent`` is the type of the recurrent one."""
        mixer = self.mixer
        shape = (batch, mixer.heads, mixer.key_dim, mixer.value_dim)
        return StateCache(
            recurrent=torch.zeros(shape, dtype=recurrent, device=device),
            conv=torch.zeros(batch, mixer.conv_channels, mixer.conv_window, dtype=dtype, device=device),
        )

    def __call__(self, hidden: Any, cache: StateCache, run: Pass) -> Any:
        """Return the mixed hidden states of new tokens (sequences x tokens x width), and move the states on."""
        del run
        gate, channels, numbers = self.project(hidden).split(self.widths, dim=-1)
        convolved = self._convolve(channels.transpose(1, 2), cache.conv).transpose(1, 2)
        update = self._mamba if self.mixer.variant == "mamba2" else self._delta
        read = torch.stack(
            [update(convolved[:, at], numbers[:, at], cache.recurrent) for at in range(hidden.shape[1])], dim=1
        )
        gate, weight = F.silu(gate), self.vectors.get("state_norm")
        if self.mixer.variant == "mamba2":
            return self.output(normalised(read * gate, weight))
        heads = normalised(read.unflatten(-1, (self.mixer.heads, -1)), weight).flatten(-2)
        return self.output(heads * gate)

    def _convolve(self, channels: Any, columns: Any) -> Any:
        """Causal convolution over kept columns and new ones; the latest are kept."""
        mixer = self.mixer
        seen = torch.cat((columns, channels), dim=-1)
        columns.copy_(seen[..., -mixer.conv_window :])
        seen = seen[..., -(channels.shape[-1] + mixer.conv_kernel - 1) :]
        convolved = (seen.unfold(-1, mixer.conv_kernel, 1) * self.kernel[:, None]).sum(-1)
        bias = self.vectors.get("conv_bias")
        return F.silu(convolved if bias is None else convolved + bias[:, None])

    def _mamba(self, convolved: Any, numbers: Any, state: Any) -> Any:
        """State decays and takes in an outer product; the output reads it: h = a h + dt B x, y = C h + D x."""
        mixer, vectors = self.mixer, self.vectors
        shared = mixer.groups * mixer.key_dim
        inputs, take, read = convolved.float().split((mixer.heads * mixer.value_dim, shared, shared), dim=-1)
        inputs = inputs.unflatten(-1, (mixer.heads, mixer.value_dim))
        take, read = (self._per_head(part, mixer.groups) for part in (take, read))
        step = F.softplus(numbers.float() + vectors["step_bias"].float())
        decay = torch.exp(-step * vectors["decay"].float().exp())
        taken = (take * step[..., None])[..., None] * inputs[:, :, None]
        state.mul_(decay[..., None, None]).add_(taken)
        outputs = torch.matmul(read[:, :, None].to(state.dtype), state)[:, :, 0]
        return (outputs + inputs * vectors["skip"].float()[:, None]).flatten(1).to(convolved.dtype)

    def _delta(self, convolved: Any, numbers: Any, state: Any) -> Any:
        """The old value under a key is replaced: S = a S + k (b (v - a k S)), y = q S."""
        mixer, vectors = self.mixer, self.vectors
        values = mixer.heads * mixer.value_dim
        keys = (mixer.conv_channels - values) // 2
        query, key, value = convolved.float().split((keys, keys, values), dim=-1)
        groups = keys // mixer.key_dim
        query, key = (F.normalize(self._per_head(part, groups), dim=-1) for part in (query, key))
        value = value.unflatten(-1, (mixer.heads, mixer.value_dim))
        share, step = numbers.float().chunk(2, dim=-1)
        rate = F.softplus(step + vectors["step_bias"].float())
        decay = torch.exp(-rate * vectors["decay"].float().exp())[..., None]
        query = query / math.sqrt(mixer.key_dim)
        both = torch.stack((key, query), dim=2).to(state.dtype)
        old, read_state = (torch.matmul(both, state) * decay[..., None]).unbind(2)
        change = (value - old) * torch.sigmoid(share)[..., None]
        state.mul_(decay[..., None]).add_(key[..., None] * change[:, :, None])
        read = read_state + (query * key).sum(-1, keepdim=True) * change
        return read.flatten(1).to(convolved.dtype)

    def _per_head(self, vectors: Any, groups: int) -> Any:
        """Return sequences x heads x width of vectors that groups of heads share."""
        apart = vectors.unflatten(-1, (groups, self.mixer.key_dim))
        return apart.repeat_interleave(self.mixer.heads // groups, dim=1)
