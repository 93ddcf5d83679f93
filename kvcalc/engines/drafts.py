"""Layers that draft for a model, as an engine holds them beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import rank_cache, rank_weight_bytes, splits_evenly

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.cost.cache import CacheBytes

__all__ = ["Draft"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A way to draft, and what it holds beside the model that verifies.

    Args:
        method: its name, a key of `kvcalc.plan.speculative.METHODS`.
        tokens: drafted tokens of a verification.
        loaded: layers whose weights are held; none where nothing is.
        cached: layers that keep a cache of their own; none where nothing does.
        formats: formats of weights and cache; those of the model that verifies where left out.
        tensor: tensor-parallel ranks that share the layers; as many of the model's as share the heads where left out.
        notes: of what was taken for granted.
    """

    method: str
    tokens: int
    loaded: ModelProfile | None = None
    cached: ModelProfile | None = None
    formats: Formats | None = None
    tensor: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def is_head(self) -> bool:
        """Whether its layers read the model's own hidden states: an MTP layer, or an EAGLE head."""
        return self.method in ("mtp", "eagle")

    def ranks(self, model: ModelProfile, tensor: int) -> int:
        """Return the tensor-parallel ranks that share a profile's layers."""
        shared = (size for size in range(min(self.tensor or tensor, tensor), 0, -1) if splits_evenly(model, size))
        return next(shared, 1)

    def weight_bytes(self, formats: Formats, parallel: Parallel) -> int:
        """Return the bytes of its weights on a rank; ``formats`` are those of the model that verifies."""
        if self.loaded is None:
            return 0
        return rank_weight_bytes(self.loaded, self.formats or formats, self._spread(self.loaded, parallel))

    def cache(self, formats: Formats, parallel: Parallel, *, tokens: int, batch: int) -> CacheBytes | None:
        """Return the bytes that its layers need on a rank for a batch of so many tokens each; none for nothing."""
        if self.cached is None:
            return None
        spread = self._spread(self.cached, parallel)
        return rank_cache(self.cached, self.formats or formats, spread, tokens=tokens, batch=batch)

    def _spread(self, model: ModelProfile, parallel: Parallel) -> Parallel:
        return Parallel(tensor=self.ranks(model, parallel.tensor), data=parallel.data)
