"""Ways to shrink the cache: the answer of ``kvcalc levers``."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from kvcalc.core.reports.common import RunFormats

__all__ = ["HeadlineRow", "LeverRow", "LeversReport"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeverRow:
    """The cache with one lever, or with several.

    Args:
        lever: what was changed; ``none`` for the model as it is.
        cuts: the terms it makes smaller.
        applies: whether the model has anything that it acts on; if not, the bytes are those without it.
        kv_total_bytes: logical bytes of the batch's cache on the accelerators.
        host_bytes: logical bytes of it in the host's memory.
        reserved_bytes: what is set aside for it there: whole blocks with paging, else each sequence's longest length.
        read_total_bytes: cache read by one decode step over the batch; a hierarchy's mean over a chunk.
        kv_factor: bytes without levers over bytes with them.
        read_factor: the same of the reads; none where nothing is read.
        retrofit: ``yes``, ``fine-tuning`` or ``no``: whether weights trained without it can take it.
        quality: what it may cost, with the source.
        tokens_per_s: bound on decoding, with an accelerator; none where the weights would be another model's.
        tokens_per_s_per_gib: the same over all memory that weights and cache take.
        memory_needed_bytes: what weights and cache take of the fullest accelerator; none for another model's weights.
        fits: whether it has that much.
        remark: why it does not apply.
    """

    lever: str = field(metadata=figure("lever"))
    cuts: str = field(metadata=figure("cuts"))
    applies: bool
    kv_total_bytes: int = field(metadata=figure("held", "lower"))
    host_bytes: int = field(metadata=figure("held by the host", "lower"))
    reserved_bytes: int = field(metadata=figure("reserved", "lower", rank=2))
    read_total_bytes: float = field(metadata=figure("read per step", "lower"))
    kv_factor: float = field(metadata=figure("less held", "higher", column="less"))
    read_factor: float | None = field(metadata=figure("less read", "higher", column="less"))
    retrofit: str = field(metadata=figure("retrofit"))
    quality: str
    tokens_per_s: float | None = field(
        default=None, metadata=figure("tokens/s (upper bound)", "higher", column="tokens/s")
    )
    tokens_per_s_per_gib: float | None = field(
        default=None, metadata=figure("tokens/s per GiB used", "higher", column="tok/s/GiB", rank=3)
    )
    memory_needed_bytes: int | None = field(default=None, metadata=figure("memory per GPU", "lower"))
    fits: bool | None = field(default=None, metadata=figure("fits", "higher"))
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadlineRow:
    """A published factor of throughput over memory, taken apart.

    Args:
        claim: whose, and for which model and way of generating.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens generated.
        published_factor: throughput over the memory of a sample's cache, against a Transformer of the same size.
        memory_factor: what follows from the architecture: bytes of a Transformer's cache over the hierarchy's.
        throughput_factor: what remains to be explained by speed.
    """

    claim: str
    prompt_tokens: int
    output_tokens: int
    published_factor: float
    memory_factor: float
    throughput_factor: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LeversReport(Report):
    """Every known way to shrink a model's cache, or chosen ones together."""

    schema: str = "kvcalc.levers/1"
    model: str
    formats: RunFormats
    context: int
    batch: int
    longest_tokens: int
    gpu: str | None
    gpus: int
    memory_bytes: int | None
    rows: tuple[LeverRow, ...]
    headlines: tuple[HeadlineRow, ...] = ()
    notes: tuple[str, ...] = ()
