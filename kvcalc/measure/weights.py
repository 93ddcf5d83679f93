"""Weights of a decoder: random but the same in every run, counted as allocated, in the order that products take."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from kvcalc.measure.products import LINEAR, Products, packed, usual_products

if TYPE_CHECKING:
    from kvcalc.measure.library import Device

__all__ = ["Linear", "WeightMaker"]

# Random numbers are drawn once and dealt out from a pool of prime length, so that no two rows are alike.
_POOL = 4_194_301


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A matrix of ``outputs`` x ``inputs``, as it stands or packed for the CPU's kernels.

    Args:
        weight: the matrix, in the order that its products take.
        bias: one number for each output, or none.
        products: how it is multiplied.
    """

    weight: Any
    bias: Any = None
    products: Products = LINEAR

    def __call__(self, vectors: Any) -> Any:
        """Multiply vectors (… x inputs) and return them (… x outputs)."""
        if self.products is LINEAR:
            return F.linear(vectors, self.weight, self.bias)
        flat = vectors.reshape(-1, vectors.shape[-1])
        return self.products(flat, self.weight, self.bias).view(*vectors.shape[:-1], -1)


class WeightMaker:
    """Makes weights from a seed and counts their bytes.

    Args:
        dtype: torch's type of all weights.
        device: where they are.
        seed: same seed, same weights.
        products: how matrices are multiplied, and in what order they are held; torch's usual way where left out.
    """

    def __init__(self, dtype: Any, device: Device, *, seed: int = 0, products: Products | None = None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._pool = torch.randn(_POOL, generator=generator).to(device.kind)
        self._place = 0
        self._dtype = dtype
        self._device = device
        self.products = products or usual_products(dtype, device)
        self.held_bytes = 0

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
        values = torch.empty(shape, dtype=self._dtype, device=self._device.kind)
        self.fill(values, scale=scale)
        self.held_bytes += values.untyped_storage().nbytes()
        return values

    def linear(self, inputs: int, outputs: int, bias: Any = None) -> Linear:
        """Return a matrix whose products keep the size of what they multiply."""
        return self.held(self.tensor(outputs, inputs, scale=1 / math.sqrt(inputs)), bias)

    def held(self, weight: Any, bias: Any = None) -> Linear:
        """Return a matrix that has been counted already, in the order that its products take."""
        return Linear(weight=packed(weight) if self.products.packs else weight, bias=bias, products=self.products)
