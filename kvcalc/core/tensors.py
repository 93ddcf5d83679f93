"""A tensor of a weight file, as its header describes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of a file.

    Args:
        dtype: the file's own name of the format.
        shape: sizes, as the file orders them.
        size: bytes it takes in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    size: int

    @property
    def elements(self) -> int:
        """Product of the sizes (of packed formats: of the stored words)."""
        return math.prod(self.shape)
