"""The options of vLLM that decide how its cache is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from kvcalc.engines.drafts import Draft

__all__ = ["VllmOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of vLLM that decide how it lays its cache out.

    Args:
        max_model_len: tokens of the longest request.
        block_size: tokens of a block; the engine's own default where left out.
        max_num_batched_tokens: tokens of one pass.
        max_in_flight_batches: passes under way at once; 2 on a GPU (asynchronous scheduling) and 1 on a CPU where
            left out.
        prefix_caching: whether blocks are kept for later requests; it also decides what state layers hold.
        platform: what the engine runs on; a CPU's kernels want larger blocks and 32-bit recurrent states.
        speculative_tokens: draft tokens of each verification.
        draft: what drafts them, whose layers are laid out on the last pipeline stage.
        version: its version; the one that is described where left out.
    """

    max_model_len: int
    block_size: int | None = None
    max_num_batched_tokens: int = 8192
    max_in_flight_batches: int | None = None
    prefix_caching: bool = True
    platform: Literal["gpu", "cpu"] = "gpu"
    speculative_tokens: int = 0
    draft: Draft | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if self.platform not in {"gpu", "cpu"}:
            raise InputError(f"vLLM runs on a gpu or a cpu here, not {self.platform!r}")
        for name in ("max_model_len", "max_num_batched_tokens", "block_size", "max_in_flight_batches"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be 1 or more, not {value}")
        if self.speculative_tokens < 0:
            raise InputError(f"speculative_tokens must be 0 or more, not {self.speculative_tokens}")

    @property
    def in_flight_tokens(self) -> int:
        """Tokens of all passes that may be under way at once."""
        batches = self.max_in_flight_batches or (1 if self.platform == "cpu" else 2)
        return batches * self.max_num_batched_tokens
