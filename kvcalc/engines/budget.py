"""The share of a GPU's memory that an engine divides, and what it takes off it beside the weights, as intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.engines import vllm
from kvcalc.engines.checkpoint import check_engine
from kvcalc.engines.sglang.budget import taken_before
from kvcalc.engines.sglang.defaults import default_share, workspace_factor
from kvcalc.engines.terms import NOTHING, Interval, activation_peak, runtime_overhead
from kvcalc.engines.vllm import budget as vllm_budget
from kvcalc.engines.vllm.positions import position_tables

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.engines.start import EngineStart

__all__ = ["EngineBudget", "Interval", "engine_budget", "vllm_overhead"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineBudget:
    """The share of a GPU's memory that an engine uses, and what it sets aside from that.

    Args:
        utilization: the share of the memory that it divides.
        activations: the peak of activations that comes out of that share.
        overhead: context, buffers and graphs that come out of it.
    """

    utilization: float
    activations: Interval = NOTHING
    overhead: Interval = NOTHING


def engine_budget(start: EngineStart, hardware: HardwareProfile) -> EngineBudget:
    """Divide a GPU's memory as an engine does.

    vLLM measures activations and takes them, and an estimate of its graphs, out of its share; SGLang leaves both
    outside; llama.cpp and transformers take what there is.

    Args:
        start: the engine as it is started.
        hardware: the accelerator.

    Raises:
        InputError: an engine whose memory is not modelled or not a version of it.

    Source: vLLM, ``Worker.determine_available_memory``; SGLang, ``mem_fraction_static``.
    """
    engine, parallel, asked = start.engine, start.parallel, start.options.utilization
    if engine == "vllm":
        return _vllm(start, rocm=hardware.vendor == "amd")
    if engine == "sglang":
        share = default_share(start.model, hardware, parallel, start.options) if asked is None else asked
        share *= workspace_factor(start.model, hardware, parallel, start.options)
        taken = taken_before(
            start.model,
            share=share,
            ranks=parallel.tensor * parallel.data,
            generation=hardware.architecture,
        )
        return EngineBudget(utilization=share, overhead=taken)
    share = 1.0 if asked is None else asked
    if engine == "ideal":
        return EngineBudget(utilization=share)
    check_engine(engine)
    peak = activation_peak(
        start.model,
        start.formats,
        tokens=start.pass_tokens,
        sequences=start.pass_sequences,
        tensor=parallel.tensor,
    )
    return EngineBudget(utilization=share, activations=peak, overhead=runtime_overhead(ranks=parallel.gpus))


def _vllm(start: EngineStart, *, rocm: bool) -> EngineBudget:
    options, sequences = start.options, start.pass_sequences
    model, parallel, version = start.model, start.parallel, options.version or vllm.VERSION
    peak = vllm_budget.activation_peak(
        model, start.formats, tokens=start.pass_tokens, sequences=sequences, parallel=parallel, version=version
    )
    return EngineBudget(
        utilization=vllm.default_utilization(options.version) if options.utilization is None else options.utilization,
        activations=peak,
        overhead=vllm_overhead(start, rocm=rocm),
    )


def vllm_overhead(start: EngineStart, *, rocm: bool) -> Interval:
    """Return the bytes vLLM takes off its share beside weights and pass: libraries, graphs, tables of positions.

    Args:
        start: vLLM as it is started.
        rocm: whether it runs on ROCm.

    Raises:
        InputError: not a version.
    """
    model, parallel, version = start.model, start.parallel, start.options.version or vllm.VERSION
    outside = vllm_budget.outside_memory(model, parallel=parallel, version=version, rocm=rocm)
    graphs = vllm_budget.graph_memory(
        model, sequences=start.pass_sequences, parallel=parallel, version=version, rocm=rocm
    )
    return outside.plus(graphs).plus(position_tables(model, start.formats))
