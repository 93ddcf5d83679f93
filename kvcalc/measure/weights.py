"""Weights of a decoder: random but the same in every run, counted as they are allocated, prepacked where torch can."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

if TYPE_CHECKING:
    from kvcalc.measure.library import Device

__all__ = ["Linear", "WeightMaker", "can_pack"]

# Random numbers are drawn once and dealt out from a pool of prime length, so that no two rows are alike.
_POOL = 4_194_301


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix of ``outputs`` x ``inputs``, as it stands or packed for the CPU's kernels.

    Args:
        weight: the matrix.
        bias: one number for each output, or none.
        packed: whether ``weight`` is in oneDNN's order.
    """

    weight: Any
    bias: Any = None
    packed: bool = False

    def __call__(self, vectors: Any) -> Any:
        """Multiply vectors (… x inputs) and return them (… x outputs)."""
        if not self.packed:
            return F.linear(vectors, self.weight, self.bias)
        flat = vectors.reshape(-1, vectors.shape[-1])
        found = torch.ops.mkldnn._linear_pointwise(flat, self.weight, self.bias, "none", [], "")  # noqa: SLF001
        return found.reshape(*vectors.shape[:-1], -1)


def can_pack(dtype: Any, device: Device) -> bool:
    """Whether torch offers prepacked linear weights of a type on a device."""
    if device.kind != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    try:
        packed = _pack(torch.ones(16, 16, dtype=dtype))
        vector = torch.ones(1, 16, dtype=dtype)
        found = Linear(weight=packed, packed=True)(vector)
    except (AttributeError, RuntimeError):
        return False
    return bool((found == F.linear(vector, torch.ones(16, 16, dtype=dtype))).all())


def _pack(weight: Any) -> Any:
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001  torch's inductor uses it so


class WeightMaker:
    """Makes weights from a seed and counts their bytes.

    Args:
        dtype: torch's type of all weights.
        device: where they are.
        seed: same seed, same weights.
        pack: whether matrices are prepacked where torch can.
    """

    def __init__(self, dtype: Any, device: Device, *, seed: int = 0, pack: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(_POOL, generator=generator).to(device.kind)
        self._place = 0
        self._dtype = dtype
        self._device = device
        self._packs = pack and can_pack(dtype, device)
        self.held_bytes = 0
        self.packed_bytes = 0

    @property
    def pool_bytes(self) -> int:
        """Bytes of the random numbers themselves, held beside the weights."""
        return int(self._pool.nbytes)

    def fill(self, tensor: Any, *, scale: float = 1.0) -> None:
        """Fill a tensor with normal numbers of a standard deviation."""
        flat, done = tensor.view(-1), 0
        while done < flat.numel():
            count = min(_POOL - self._place, flat.numel() - done)
            torch.mul(self._pool[self._place : self._place + count], scale, out=flat[done : done + count])
            done += count
            self._place = (self._place + count) % _POOL

    def tensor(self, *shape: int, scale: float) -> Any:
        """Return normal numbers of a standard deviation, counted as weights."""
        found = torch.empty(shape, dtype=self._dtype, device=self._device.kind)
        self.fill(found, scale=scale)
        self.held_bytes += found.untyped_storage().nbytes()
        return found

    def linear(self, inputs: int, outputs: int, bias: Any = None) -> Linear:
        """Return a matrix whose products keep the size of what they multiply."""
        return self.packed(self.tensor(outputs, inputs, scale=1 / math.sqrt(inputs)), bias)

    def packed(self, weight: Any, bias: Any = None) -> Linear:
        """Return a matrix that has been counted already, prepacked where torch can."""
        if not self._packs:
            return Linear(weight=weight, bias=bias)
        packed = _pack(weight)
        self.packed_bytes += torch.ops.mkldnn._nbytes(packed)  # noqa: SLF001
        return Linear(weight=packed, bias=bias, packed=True)
