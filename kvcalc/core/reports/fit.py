"""Does it fit: the answer of ``kvcalc fit``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.common import RunFormats

__all__ = ["Budget", "FitReport", "FittingDeployment", "PoolBuffer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The memory of one GPU, term by term.

    Terms that only the running engine knows are intervals; the figures here are their pessimistic ends, so that what
    is said to fit does.

    Args:
        memory_bytes: the GPU's memory as the engine sees it: CUDA's, HIP's or Metal's total, at least.
        utilization: share of it that the engine may use.
        weight_bytes: weights on the fullest rank, those of a draft among them.
        activation_bytes: peak of activations while the engine profiles itself.
        overhead_bytes: CUDA context, communication buffers and captured graphs.
        kv_bytes_available: what is left for the cache.
        draft_weight_bytes: of the weights, those of layers that draft.
        outside_bytes: what the engine leaves outside of its share: room for graphs and other processes; for SGLang, for
            its activations too.
        intervals: least and most of ``memory_bytes``, ``activation_bytes``, ``overhead_bytes`` and
            ``kv_bytes_available``.
    """

    memory_bytes: int
    utilization: float
    weight_bytes: int = field(metadata=figure("weights", "lower"))
    activation_bytes: int = field(metadata=figure("activation peak", "lower"))
    overhead_bytes: int = field(metadata=figure("context, buffers, graphs", "lower"))
    kv_bytes_available: int = field(metadata=figure("for the KV cache", "higher"))
    outside_bytes: int = field(metadata=figure("left outside", "lower"))
    intervals: Mapping[str, tuple[int, int]]
    draft_weight_bytes: int = field(default=0, metadata=figure("the draft's weights", "lower"))


@dataclass(frozen=True, slots=True, kw_only=True)
class FittingDeployment:
    """A way to spread the model so that it fits, and the options that ask for it."""

    gpus: int
    tensor: int
    pipeline: int
    expert: int
    data: int
    flags: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolBuffer:
    """A buffer of an engine's pools, over all layers of the fullest rank: the engine's name of it and its bytes."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class FitReport(Report):
    """Whether a model, its cache and an engine's overhead fit, and what else would.

    Args:
        model: the model.
        engine: the engine and the version its model describes.
        gpu: the accelerator; empty where the cache's memory was given.
        gpus: how many.
        layout: how the model is spread over them, as the options that ask for it.
        formats: number formats.
        context: tokens of each sequence.
        batch: sequences.
        method: the way tokens are drafted; empty where they are not.
        gamma: drafted tokens of a verification; 0 where there are none.
        max_model_len: longest sequence the engine is started for.
        fits: whether the engine starts and holds the batch.
        reason: why not.
        budget: the memory of the fullest GPU, term by term; absent where the cache's memory was given.
        kv_bytes_available: memory for the cache on each GPU.
        logical_kv_bytes: bytes the batch's tokens need on the fullest GPU.
        reserved_kv_bytes: bytes the engine sets aside for them.
        kv_headroom: share of that memory that the batch leaves free; below 0 where they do not fit.
        kv_capacity_tokens: tokens the cache of one data-parallel copy holds, as the engine counts them; llama.cpp makes
            it for whole sequences of ``max_model_len``.
        max_concurrency: sequences of ``max_model_len`` tokens that it holds.
        num_blocks: blocks, for engines that page.
        block_size: tokens of a block.
        max_running_requests: requests that one copy runs at once, however short, for engines whose pools limit them.
        window_capacity_tokens: tokens of a pool for windowed layers alone.
        state_slots: slots of recurrent states.
        pool_buffers: the buffers of the fullest GPU, for engines that size several.
        request_table_bytes: a table that the engine allocates beside its pools, outside of the budget.
        max_batch: most sequences of ``context`` tokens, over all copies; none where the engine does not start.
        max_context: longest sequence at this batch, up to the model's limit or the max-model-len that was asked for; an
            engine that does not start for ``max_model_len`` tokens would for so many.
        min_gpus: fewest GPUs on which the batch fits; none where no arrangement tried does.
        smallest: how the model is spread over them.
        practical: the smallest way that people rent and start: 1, 2, 4 or 8 tensor ranks, or whole nodes of 8.
        min_gpus_reason: why no number of GPUs is given.
        assumed: defaults of the engine that move the capacity by more than 2 %, in one line.
        notes: what a user should know.
    """

    schema: str = "kvcalc.fit/1"
    model: str
    engine: str
    gpu: str
    gpus: int
    layout: str = ""
    formats: RunFormats
    context: int
    batch: int
    max_model_len: int
    fits: bool = field(metadata=figure("fits", "higher"))
    reason: str
    budget: Budget | None
    kv_bytes_available: int = field(metadata=figure("KV cache per GPU", "higher"))
    logical_kv_bytes: int = field(metadata=figure("needed, logical", "lower"))
    reserved_kv_bytes: int = field(metadata=figure("needed, reserved", "lower"))
    kv_headroom: float | None = field(metadata=figure("KV cache left free", "higher"))
    kv_capacity_tokens: int = field(metadata=figure("capacity", "higher"))
    max_concurrency: float = field(metadata=figure("sequences at once", "higher"))
    num_blocks: int | None = field(metadata=figure("blocks", "higher"))
    block_size: int | None
    max_batch: int = field(metadata=figure("largest batch", "higher"))
    max_context: int = field(metadata=figure("longest context", "higher"))
    min_gpus: int | None = field(default=None, metadata=figure("fewest GPUs", "lower"))
    smallest: FittingDeployment | None = None
    practical: FittingDeployment | None = None
    min_gpus_reason: str = ""
    assumed: str = ""
    method: str = ""
    gamma: int = 0
    max_running_requests: int | None = field(default=None, metadata=figure("requests at once", "higher"))
    window_capacity_tokens: int | None = field(default=None, metadata=figure("sliding-window tokens", "higher"))
    state_slots: int | None = field(default=None, metadata=figure("state slots", "higher"))
    pool_buffers: tuple[PoolBuffer, ...] = ()
    request_table_bytes: int | None = field(default=None, metadata=figure("request table", "lower"))
    notes: tuple[str, ...] = ()
