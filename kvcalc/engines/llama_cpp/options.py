"""The options of a llama.cpp context, and the sizes that follow from them before any layer is looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.formats import parse_format
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import Formats

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "CACHE_TYPES",
    "MAX_SEQUENCES",
    "VERSION",
    "VERSION_MONTH",
    "ContextSizes",
    "LlamaCppOptions",
    "asked_options",
    "context_sizes",
    "padded",
]

VERSION = "0c1e57098bba"
# Month of that commit, for readers.
VERSION_MONTH = "Nov 2026"

# The types that llama.cpp's tools take for a cache.
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_FORMATS = frozenset(parse_format(name).name for name in CACHE_TYPES)
MAX_SEQUENCES = 256
_PADDING = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
    """The options of a context that decide its memory; the defaults are those of llama.cpp's tools.

    Source: llama.cpp commit 0c1e57098bba, ``llama_context_params``.

    Args:
        context: ``n_ctx``, tokens of all sequences together; 0 for the context the model was trained with.
        parallel: ``n_seq_max``, sequences.
        kv_unified: whether the sequences share one buffer; else each has a stream of its own.
        cache_type_k: type of cached keys, one of `CACHE_TYPES`.
        cache_type_v: type of cached values.
        swa_full: whether layers with a window get cells for the whole context. The C API's default is true.
        batch: ``n_batch``, the most tokens of a batch.
        ubatch: ``n_ubatch``, the most tokens computed at once; 0 for ``batch``.
        flash_attn: flash attention; ``auto`` counts as on.
        rollback_tokens: ``n_rs_seq``, past tokens for which recurrent states are kept too (for speculative decoding).
        legacy_latent: whether the GGUF file is an old conversion of a latent model, without the ``*_mla`` keys.

    Raises:
        InputError: a value that llama.cpp does not take.
    """

    context: int = 0
    parallel: int = 1
    kv_unified: bool = False
    cache_type_k: str = "f16"
    cache_type_v: str = "f16"
    swa_full: bool = False
    batch: int = 2048
    ubatch: int = 512
    flash_attn: Literal["auto", "on", "off"] = "auto"
    rollback_tokens: int = 0
    legacy_latent: bool = False

    def __post_init__(self) -> None:
        for name, minimum in (("context", 0), ("parallel", 1), ("batch", 1), ("ubatch", 0), ("rollback_tokens", 0)):
            value = getattr(self, name)
            if value < minimum:
                raise InputError(f"{name} is {value} for llama.cpp", hint=f"a whole number from {minimum}")
        if self.parallel > MAX_SEQUENCES:
            raise InputError(f"llama.cpp takes at most {MAX_SEQUENCES} sequences, not {self.parallel}")
        if self.flash_attn not in ("auto", "on", "off"):
            raise InputError(f"flash attention is {self.flash_attn!r}", hint="auto, on or off")
        for name in (self.cache_type_k, self.cache_type_v):
            if parse_format(name).name not in _FORMATS:
                raise InputError(f"llama.cpp has no cache of type {name!r}", hint=f"types: {', '.join(CACHE_TYPES)}")

    @property
    def key(self) -> Format:
        """Format of cached keys."""
        return parse_format(self.cache_type_k)

    @property
    def value(self) -> Format:
        """Format of cached values."""
        return parse_format(self.cache_type_v)

    @property
    def formats(self) -> Formats:
        """Formats of the whole memory: states are kept in 32 bits whatever the cache's types."""
        return Formats(key=self.key, value=self.value, state=parse_format("fp32"))

    @property
    def flash(self) -> bool:
        """Whether flash attention counts as on when the cache is laid out."""
        return self.flash_attn != "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSizes:
    """Sizes that llama.cpp derives from the context asked for.

    Args:
        n_ctx: tokens of all sequences together.
        n_ctx_seq: tokens of one sequence.
        n_ubatch: tokens computed at once.
        streams: buffers with cells of their own.
    """

    n_ctx: int
    n_ctx_seq: int
    n_ubatch: int
    streams: int


def asked_options(formats: Formats, options: EngineOptions, draft: Draft | None = None) -> LlamaCppOptions:
    """Return the options of a context but for its length, as a user gives them.

    Args:
        formats: formats that it runs in.
        options: what the user says of the engine.
        draft: layers that draft for the model.
    """
    return LlamaCppOptions(
        parallel=options.parallel,
        kv_unified=options.kv_unified,
        cache_type_k=options.cache_type_k or formats.key.name,
        cache_type_v=options.cache_type_v or formats.value.name,
        swa_full=options.swa_full,
        batch=options.batch_size,
        ubatch=options.ubatch,
        flash_attn=options.flash_attn,
        # a head's rejected tokens are taken back from the states; those of a model or of n-grams are computed again
        rollback_tokens=max(options.n_rs_seq, draft.tokens if draft is not None and draft.is_head else 0),
    )


def padded(size: int) -> int:
    """Return a number of cells rounded up to a multiple of 256.

    Source: llama.cpp commit 0c1e57098bba, ``GGML_PAD(n, 256)``.

    >>> padded(5000), padded(256)
    (5120, 256)
    """
    return ceil_div(size, _PADDING) * _PADDING


def context_sizes(options: LlamaCppOptions, *, trained: int | None) -> ContextSizes:
    """Return the sizes of a context.

    The context is rounded up to 256; separate streams divide it and round each part up again, so that it can grow. The
    batch is at most the context as asked for, the micro-batch at most the batch.

    Source: llama.cpp commit 0c1e57098bba, ``llama_context::llama_context``.

    Args:
        options: the options.
        trained: tokens the model was trained with.

    Raises:
        InputError: no context given, and the model has no limit.

    >>> context_sizes(LlamaCppOptions(context=1000, parallel=3), trained=None)
    ContextSizes(n_ctx=1536, n_ctx_seq=512, n_ubatch=512, streams=3)
    """
    asked = options.context or trained or 0
    if asked < 1:
        raise InputError("the model has no limit on its context", hint="say how many tokens, as --context 32768")
    whole = padded(asked)
    batch = min(asked, options.batch)
    ubatch = min(batch, options.ubatch or options.batch)
    if options.kv_unified:
        return ContextSizes(n_ctx=whole, n_ctx_seq=whole, n_ubatch=ubatch, streams=1)
    each = padded(whole // options.parallel)
    return ContextSizes(n_ctx=each * options.parallel, n_ctx_seq=each, n_ubatch=ubatch, streams=options.parallel)
