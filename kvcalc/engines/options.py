"""The options of all engines in one place, as a user gives them; each engine takes what it knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from kvcalc.core.formats import Format

__all__ = ["STATE_FORMATS", "EngineOptions"]

_COUNTS = (
    "max_model_len",
    "block_size",
    "max_num_batched_tokens",
    "max_in_flight_batches",
    "max_num_seqs",
    "max_total_tokens",
    "max_mamba_cache_size",
)
# SGLang's names of formats for recurrent states.
STATE_FORMATS = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
# Options that take one of a few words.
_WORDS = {
    "mamba_ssm_dtype": tuple(STATE_FORMATS),
    "mamba_radix_cache_strategy": ("auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"),
    "gdn_prefill_backend": ("auto", "flashinfer", "triton"),
    "flash_attn": ("auto", "on", "off"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Options of an engine, as the user gives them.

    Args:
        version: its version; the one its model describes where left out.
        max_model_len: longest sequence it is started for; the model's limit where left out.
        block_size: tokens of a block.
        max_num_batched_tokens: tokens of one pass at most; those that the engine takes on that card where left out.
        max_in_flight_batches: passes under way at once; the engine's own where left out.
        max_num_seqs: sequences of one pass at most.
        prefix_caching: whether blocks are kept for later prompts; as the engine does by itself where left out.
        decode_context_parallel: vLLM: tensor-parallel ranks that share the tokens of a request.
        gdn_prefill_backend: vLLM: kernel of gated delta nets' prefill.
        engram_cpu_offload: vLLM: whether tables of n-grams are kept in host memory.
        generation: generation of the accelerator, which a start fills in: some kernels are built for few.
        utilization: share of the GPU's memory it may use.
        platform: whether it runs on GPUs or on a CPU.
        parallel: llama.cpp: sequences.
        kv_unified: llama.cpp: whether they share one buffer.
        cache_type_k: llama.cpp: type of cached keys; f16 where left out.
        cache_type_v: llama.cpp: type of cached values; f16 where left out.
        swa_full: llama.cpp: whether windowed layers get the whole context.
        ctx_size: llama.cpp: context of all sequences together (``n_ctx``), 0 for what the model was trained with.
        batch_size: llama.cpp: tokens of a batch at most (``n_batch``).
        ubatch: llama.cpp: tokens computed at once; no more than a batch (``n_ubatch``).
        n_rs_seq: llama.cpp: past tokens for which recurrent states are kept too, as drafts of a head ask for them.
        flash_attn: llama.cpp: flash attention.
        swa_full_tokens_ratio: SGLang: tokens of the windowed layers' pool for each of the others'.
        mamba_full_memory_ratio: SGLang: memory of recurrent states for that of tokens.
        max_total_tokens: SGLang: tokens that the pool is capped at.
        max_mamba_cache_size: SGLang: slots of recurrent states.
        mamba_radix_cache_strategy: SGLang: how states are kept for prefixes.
        mamba_ssm_dtype: SGLang: format of recurrent states.
        overlap_schedule: SGLang: whether the next step is scheduled while one runs.
        hybrid_swa_memory: SGLang: whether windowed layers have a pool of their own.
        front: llama.cpp: program that starts it with defaults of its own: ``ollama``, ``lm-studio``, or none.
        front_notes: what that program took where nothing was said, which a start fills in.
        mmproj: llama.cpp: whether the file of towers and projector is loaded too.
        imatrix: llama.cpp: whether a recipe's file was made with an importance matrix.
    """

    version: str | None = None
    max_model_len: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_in_flight_batches: int | None = None
    max_num_seqs: int | None = None
    prefix_caching: bool | None = None
    decode_context_parallel: int = 1
    gdn_prefill_backend: Literal["auto", "flashinfer", "triton"] = "auto"
    engram_cpu_offload: bool = True
    generation: str = ""
    utilization: float | None = None
    platform: Literal["gpu", "cpu"] = "gpu"
    parallel: int = 1
    kv_unified: bool = False
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    swa_full: bool = False
    ctx_size: int | None = None
    batch_size: int = 2048
    ubatch: int = 512
    n_rs_seq: int = 0
    flash_attn: Literal["auto", "on", "off"] = "auto"
    front: Literal["", "ollama", "lm-studio"] = ""
    front_notes: tuple[str, ...] = ()
    mmproj: bool = False
    imatrix: bool = False
    swa_full_tokens_ratio: float | None = None
    mamba_full_memory_ratio: float | None = None
    max_total_tokens: int | None = None
    max_mamba_cache_size: int | None = None
    mamba_radix_cache_strategy: str | None = None
    mamba_ssm_dtype: str | None = None
    overlap_schedule: bool = True
    hybrid_swa_memory: bool = True

    def __post_init__(self) -> None:
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                option = name.replace("_", "-")
                raise InputError(f"{option} takes a whole number, not {value!r:.60}", parameter=option)
            if value is not None and value < 1:
                option = name.replace("_", "-")
                raise InputError(f"{option} must be 1 or more, not {value}", parameter=option)
        if self.utilization is not None and not 0 < self.utilization <= 1:
            raise InputError(
                f"utilization must be above 0 and at most 1, not {self.utilization:g}",
                hint="0.9 is 90% of a GPU's memory",
                parameter="utilization",
            )
        for name in ("swa_full_tokens_ratio", "mamba_full_memory_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not 0 < ratio < float("inf"):
                raise InputError(f"{name.replace('_', '-')} must be above 0, not {ratio}")
        for name, words in _WORDS.items():
            word = getattr(self, name)
            if word is not None and word not in words:
                raise InputError(f"{name.replace('_', '-')} is one of {', '.join(words)}, not {word!r}")

    @property
    def state_format(self) -> Format | None:
        """The format of recurrent states that was asked for; none where none was."""
        return None if self.mamba_ssm_dtype is None else FORMATS[STATE_FORMATS[self.mamba_ssm_dtype]]
