"""Flags with which SGLang would start where it refused: each checked by its rules before it is named."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.units import GIB
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.options import STATE_FORMATS, EngineOptions
from kvcalc.engines.sglang.defaults import default_share
from kvcalc.engines.sglang.options import WINDOW_RATIOS
from kvcalc.plan.reconcile.findings import bytes_of_gib
from kvcalc.plan.reconcile.remedies.attempt import (
    NO_GPU,
    Attempt,
    Remedies,
    both,
    contradiction,
    loaded_weights,
    longest_length,
    rounded_length,
    rounded_share,
    tried,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.logs import StartUp
    from kvcalc.plan.reconcile.remedies.attempt import Change

__all__ = ["sglang_remedies"]

# What is left for activations and CUDA graphs at least.
_MIN_BESIDE_BYTES = 3 * GIB // 2
_MARGIN = 0.02
_RANKS = (2, 4, 8)


def sglang_remedies(start_up: StartUp, model: ModelProfile, hardware: HardwareProfile | None) -> Remedies:
    """Return flags with which a start that was refused would succeed, the gentlest first.

    Args:
        start_up: the start, with its refusal.
        model: the model it ran.
        hardware: the accelerator, where it is known.
    """
    first = _first(start_up, model, hardware)
    loaded, unknown = loaded_weights(start_up, model, first.parallel.gpus)
    first = replace(first, loaded=loaded, hardware=None if unknown else hardware)
    share = first.options.utilization
    if share is None:
        if first.hardware is None:
            return Remedies(why_none=unknown or NO_GPU)
        share = default_share(model, first.hardware, first.parallel, first.options)
    before, after = start_up.smallest("free_before_gib"), start_up.smallest("free_after_gib")

    def memory(attempt: Attempt) -> int | None:
        """Return free memory after loading less the share of the free memory before it that is not static."""
        if before is None or after is None or attempt.parallel != first.parallel:
            return None
        beside = (1 - (attempt.options.utilization or share)) * before.most
        return int((after.least - beside) * GIB)

    total = before.least * GIB if before else hardware.usable_memory_bytes if hardware else None
    max_share = 0.95 if total is None else min(0.95, 1 - _MIN_BESIDE_BYTES / total)
    shares = _shares(start_up, share, rounded_share(max_share), total)

    def shorter(one: Attempt) -> Attempt | None:
        longest = rounded_length(longest_length(one, memory(one)))
        return one.changed(f"--context-length {longest}", length=longest) if 0 < longest < one.length else None

    refuted = contradiction(first, memory(first))
    if refuted is not None:
        return refuted
    changes = [*shares, _fp8, *(both(each, _fp8) for each in shares), *(both(each, shorter) for each in shares[-1:])]
    return tried(first, [*changes, *_more_ranks(first)], memory)


def _first(start_up: StartUp, model: ModelProfile, hardware: HardwareProfile | None) -> Attempt:
    asked = start_up.text("kv_cache_dtype")
    share = start_up.options.get("mem_fraction_static")
    return Attempt(
        engine="sglang",
        model=model,
        length=start_up.count("context_length") or model.context_limit or 1,
        options=_options(start_up, share if isinstance(share, float) else None),
        parallel=Parallel(tensor=start_up.count("tp_size") or 1, pipeline=start_up.count("pp_size") or 1),
        kv="fp8" if asked and asked.startswith("fp8") else None,
        hardware=hardware,
    )


def _options(start_up: StartUp, share: float | None) -> EngineOptions:
    """Return the options that a start printed; its ratio of windows where it is none of its defaults."""
    ratio, states = start_up.options.get("swa_full_tokens_ratio"), start_up.options.get("mamba_full_memory_ratio")
    dtype = start_up.text("mamba_ssm_dtype")
    return EngineOptions(
        utilization=share,
        block_size=start_up.count("page_size"),
        max_num_seqs=start_up.count("max_running_requests"),
        max_total_tokens=start_up.count("max_total_tokens"),
        prefix_caching=not start_up.flag("disable_radix_cache"),
        overlap_schedule=not start_up.flag("disable_overlap_schedule"),
        hybrid_swa_memory=not start_up.flag("disable_hybrid_swa_memory"),
        swa_full_tokens_ratio=ratio if isinstance(ratio, float) and ratio not in WINDOW_RATIOS else None,
        mamba_full_memory_ratio=states if isinstance(states, float) else None,
        max_mamba_cache_size=start_up.count("max_mamba_cache_size"),
        mamba_radix_cache_strategy=start_up.text("mamba_radix_cache_strategy"),
        mamba_ssm_dtype=dtype if dtype in STATE_FORMATS else None,
    )


def _shares(start_up: StartUp, share: float, max_share: float, total: float | None) -> list[Change]:
    """Return other shares: higher where the pool had no room, lower where memory beside it ran out."""
    refusal = start_up.refusal
    if refusal is None or refusal.kind != "out_of_memory":
        return [_fraction(round(step / 100, 2)) for step in range(round(100 * share) + 1, round(100 * max_share) + 1)]
    missing, free = refusal.sizes.get("tried_gib"), refusal.sizes.get("free_gib")
    if missing is None or free is None or not total:
        return []
    lacking = max(0, bytes_of_gib(missing)[1] - bytes_of_gib(free)[0])
    lower = rounded_share(share - lacking / total - _MARGIN)
    return [_fraction(round(lower, 2))] if lower > 0 else []


def _fraction(share: float) -> Change:
    return lambda one: one.changed(f"--mem-fraction-static {share:g}", utilization=share)


def _fp8(one: Attempt) -> Attempt | None:
    return None if one.kv == "fp8" else one.changed("--kv-cache-dtype fp8_e4m3", kv="fp8")


def _more_ranks(first: Attempt) -> Iterator[Change]:
    for size in _RANKS:
        ranks = size * first.parallel.tensor
        if splits_evenly(first.model, ranks):
            yield _ranks(ranks)


def _ranks(size: int) -> Change:
    return lambda one: one.spread(f"--tp {size}", size)
