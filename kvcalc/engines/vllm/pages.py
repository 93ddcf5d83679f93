"""One layer's part of vLLM's cache: what it keeps, its block, and the bytes of a page."""

from __future__ import annotations

from typing import Literal

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.records import dataclass

__all__ = ["Kind", "Spec", "not_modelled"]

Kind = Literal["full", "latent", "index", "sliding", "chunked", "cross", "state", "ring"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One layer's part of the cache; layers with equal specs can share a group.

    Args:
        kind: what the layer keeps.
        block_size: tokens of a block.
        page_bytes: bytes of the layer's page in a block, padding included.
        reach: tokens of the window or chunk, or of the encoder's output.
        held_blocks: blocks of a request that do not depend on its length (states, rings).
        shape: heads and widths on this rank, which must be equal within a group.
        packed: whether blocks are outermost, so that a block holds pages of several sizes (DeepSeek-V4).
        stride: bytes that a block must be a multiple of for the layer.
    """

    kind: Kind
    block_size: int
    page_bytes: int
    reach: int = 0
    held_blocks: int = 0
    shape: tuple[int, ...] = ()
    packed: bool = False
    stride: int = 1

    @property
    def family(self) -> tuple[str, int]:
        """Return the properties that layers must share to form one group without further ado."""
        if self.kind in {"full", "latent", "index"}:
            return "full", 0
        return self.kind, self.page_bytes if self.kind == "state" else self.reach


def not_modelled(what: str) -> UnsupportedError:
    """Return the error of a layer whose layout is not known."""
    return UnsupportedError(f"how vLLM lays out {what} is not modelled", hint="--engine ideal counts the KV cache only")
