"""The options of vLLM that decide how its cache is laid out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass
from kvcalc.engines.vllm.defaults import PASS_TOKENS, passes_ahead

if TYPE_CHECKING:
    from kvcalc.engines.drafts import Draft

__all__ = ["GdnPrefillBackend", "VllmOptions"]

GdnPrefillBackend = Literal["auto", "flashinfer", "triton"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmOptions:
    """The options of vLLM that decide how it lays its cache out.

    Args:
        max_model_len: tokens of the longest request.
        block_size: tokens of a block; the engine's own default where left out.
        max_num_batched_tokens: tokens of one pass.
        max_in_flight_batches: passes under way at once; where left out the one that runs and those scheduled ahead.
        prefix_caching: whether blocks are kept for later requests; it also decides what state layers hold.
        platform: what the engine runs on; a CPU's kernels want larger blocks and 32-bit recurrent states.
        speculative_tokens: draft tokens of each verification.
        draft: what drafts them, whose layers are laid out on the last pipeline stage.
        version: its version; the one that is described where left out.
        generation: generation of the card, as its maker names it; where left out, one without newer cards' kernels.
        decode_context_parallel: tensor-parallel ranks that share the tokens of a request among them.
        gdn_prefill_backend: kernel of gated delta nets' prefill; ``auto`` takes FlashInfer's where it is built.
    """

    max_model_len: int
    block_size: int | None = None
    max_num_batched_tokens: int = PASS_TOKENS
    max_in_flight_batches: int | None = None
    prefix_caching: bool = True
    platform: Literal["gpu", "cpu"] = "gpu"
    speculative_tokens: int = 0
    draft: Draft | None = None
    version: str | None = None
    generation: str = ""
    decode_context_parallel: int = 1
    gdn_prefill_backend: GdnPrefillBackend = "auto"

    def __post_init__(self) -> None:
        if self.platform not in {"gpu", "cpu"}:
            raise InputError(f"vLLM runs on a gpu or a cpu here, not {self.platform!r}")
        backends = get_args(GdnPrefillBackend)
        if self.gdn_prefill_backend not in backends:
            raise InputError(f"gdn-prefill-backend is {', '.join(backends)}, not {self.gdn_prefill_backend!r}")
        counts = ("max_model_len", "max_num_batched_tokens", "block_size", "max_in_flight_batches")
        for name in (*counts, "decode_context_parallel"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be 1 or more, not {value}")
        if self.speculative_tokens < 0:
            raise InputError(f"speculative_tokens must be 0 or more, not {self.speculative_tokens}")

    @property
    def in_flight_tokens(self) -> int:
        """Tokens of all passes that may be under way at once."""
        batches = self.max_in_flight_batches or 1 + passes_ahead(self.platform)
        return batches * self.max_num_batched_tokens
