"""The memory of a rank as the log of vLLM tells it, and what a changed start would leave of it for the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.units import GIB
from kvcalc.core.workload import Parallel
from kvcalc.engines.logs.refusals import PROFILING
from kvcalc.engines.vllm.defaults import batch_defaults
from kvcalc.engines.vllm.releases import VERSION, default_utilization, release_of
from kvcalc.plan.reconcile.findings import bytes_of_gib
from kvcalc.plan.reconcile.pool import tokens_bytes
from kvcalc.plan.reconcile.remedies.attempt import rounded_share

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.engines.logs import StartUp
    from kvcalc.plan.reconcile.remedies.attempt import Attempt
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["PrintedMemory", "printed_memory"]

# The most that is advised: what is left must do for the context of the driver, graphs and other processes.
_MAX_UTILIZATION = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedMemory:
    """The memory of a rank as the log tells it, in bytes.

    Args:
        total: of the GPU.
        free: that the engine could have at most, beside other processes.
        left: left for the cache at the utilization that was asked for.
        utilization: the one that was asked for.
        ranks: GPUs that it was spread over.
        used: bytes that were in use, or asked for in vain, when it profiled itself.
        loaded: bytes of the weights.
        pass_tokens: tokens of the pass that it profiled.
    """

    total: int | None
    free: int | None
    left: int | None
    utilization: float
    ranks: Parallel
    used: int | None = None
    loaded: int | None = None
    pass_tokens: int = 0

    @property
    def most_utilization(self) -> float:
        """The highest share that may be asked for."""
        if self.total is None or self.free is None:
            return _MAX_UTILIZATION
        return min(_MAX_UTILIZATION, rounded_share(self.free / self.total))

    def of(self, attempt: Attempt) -> int | None:
        """Return the bytes for the cache where they follow from what was printed; none where they must be computed."""
        share = attempt.options.utilization or self.utilization
        if self.used is not None and self.loaded is not None and attempt.parallel == self.ranks:
            return self._beside_the_pass(attempt, share)
        if self.left is None or attempt.parallel != self.ranks:
            return None
        if share == self.utilization:
            return self.left
        return None if self.total is None else self.left + int((share - self.utilization) * self.total)

    def _beside_the_pass(self, attempt: Attempt, share: float) -> int | None:
        """Return the memory that a smaller pass leaves: its activations are in proportion to its tokens."""
        if self.total is None or self.used is None or self.loaded is None:
            return None
        tokens = attempt.options.max_num_batched_tokens or self.pass_tokens
        peak = (self.used - self.loaded) * tokens // self.pass_tokens
        return int(share * self.total) - self.loaded - peak - attempt.overhead_bytes


def printed_memory(start_up: StartUp, setup: Setup, hardware: HardwareProfile | None) -> PrintedMemory:
    """Return the memory of a rank as a log tells it; the accelerator's, where it does not print the total."""
    refusal = start_up.refusal
    sizes = {} if refusal is None else {name: bytes_of_gib(size)[0] for name, size in refusal.sizes.items()}
    printed, requested = start_up.first("total_gpu_gib"), start_up.first("requested_gib")
    asked = start_up.options.get("gpu_memory_utilization")
    total = sizes.get("total_gib") or (bytes_of_gib(printed)[0] if printed else None)
    if total is None and requested is not None and isinstance(asked, float) and asked > 0:
        total = int(requested.least * GIB / asked)
    total = total or (hardware.usable_memory_bytes if hardware else None)
    free = sizes.get("free_gib")
    if refusal is not None and refusal.kind == "out_of_memory":
        # what this process has is its own again at the next start
        own = sizes.get("process_gib")
        free = free + own if free is not None and own is not None else None
    used = loaded = None
    if refusal is not None and refusal.stage == PROFILING and "process_gib" in sizes and "tried_gib" in sizes:
        used = sizes["process_gib"] + sizes["tried_gib"]
        weights = start_up.first("loaded_gib")
        loaded = None if weights is None else bytes_of_gib(weights)[0]
    version = start_up.version if release_of(start_up.version) else None
    defaults = batch_defaults(hardware, version=version or VERSION)
    tokens = start_up.count("max_num_batched_tokens") or defaults.max_num_batched_tokens
    share = start_up.options.get("gpu_memory_utilization")
    utilization = start_up.first("gpu_memory_utilization")
    if not isinstance(share, float) and utilization is not None:
        share = utilization.value
    if not isinstance(share, float):
        share = default_utilization(version)
    return PrintedMemory(
        total=total,
        free=free,
        left=_left(start_up, setup),
        utilization=share,
        ranks=Parallel(tensor=setup.tensor, pipeline=setup.pipeline),
        used=used,
        loaded=loaded,
        pass_tokens=tokens,
    )


def _left(start_up: StartUp, setup: Setup) -> int | None:
    """Return the bytes for the cache of a rank, as printed, or those of the tokens that were."""
    printed, tokens = start_up.smallest("available_kv_gib"), start_up.smallest("kv_cache_tokens")
    if printed is not None:
        return int(printed.least * GIB)
    return None if tokens is None else tokens_bytes(setup, int(tokens.value))
