"""How an engine divides a GPU's memory: its defaults, and terms that only the running engine knows, as intervals.

The intervals' ends were fitted to eight start-up logs of vLLM 0.19 (see the tests); they are estimates, never exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.model import Dense, Gated
from kvcalc.core.units import MIB, ceil_div
from kvcalc.engines import vllm

if TYPE_CHECKING:
    from kvcalc.core.model import Mlp, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "BudgetDefaults",
    "Interval",
    "activation_peak",
    "budget_defaults",
    "runtime_overhead",
]

# SGLang computes its share (mem_fraction_static) from the model and the GPU; this is the usual outcome.
_SGLANG_SHARE = 0.88
_SAMPLED_COPIES = 4
_HIDDEN_COPIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The least and the most that a term is expected to take."""

    least: int
    most: int

    def plus(self, other: Interval) -> Interval:
        """Return the sum of two terms."""
        return Interval(least=self.least + other.least, most=self.most + other.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetDefaults:
    """How an engine divides a GPU's memory where the user does not say.

    Args:
        utilization: the share of the memory that it divides.
        pass_tokens: tokens of the largest pass, whose activations come out of that share; none where they are left
            outside, or where there are none.
        has_runtime: whether context, buffers and graphs come out of it.
    """

    utilization: float
    pass_tokens: int | None
    has_runtime: bool = True


def budget_defaults(engine: str, options: EngineOptions) -> BudgetDefaults:
    """Return how an engine of `kvcalc.engines.pools.ENGINES` divides a GPU's memory.

    Source: vLLM, ``CacheConfig.gpu_memory_utilization``; SGLang, ``mem_fraction_static``, which covers weights and
    cache alone; llama.cpp and transformers take what there is.

    Raises:
        InputError: an engine whose memory is not modelled, or not a version of it.
    """
    match engine:
        case "ideal":
            return BudgetDefaults(utilization=1.0, pass_tokens=None, has_runtime=False)
        case "vllm":
            utilization = vllm.default_utilization(options.version)
            return BudgetDefaults(utilization=utilization, pass_tokens=options.max_num_batched_tokens)
        case "llama.cpp":
            return BudgetDefaults(
                utilization=1.0, pass_tokens=min(options.ubatch or options.batch_size, options.batch_size)
            )
        case "sglang":
            return BudgetDefaults(utilization=_SGLANG_SHARE, pass_tokens=None)
        case "transformers":
            return BudgetDefaults(utilization=1.0, pass_tokens=options.max_num_batched_tokens)
    raise InputError(f"the budget of engine {engine!r} is not modelled")


def activation_peak(model: ModelProfile, formats: Formats, *, tokens: int, sequences: int, tensor: int = 1) -> Interval:
    """Return the peak of activations while an engine profiles itself with its largest batch.

    The MLP's input and output of ``tokens`` tokens stand beside the logits of ``sequences`` of them in 32 bits: once
    at least; with sampling's copies of the logits and some hidden states at most.

    Args:
        model: the model.
        formats: its formats.
        tokens: tokens of the largest pass.
        sequences: sequences that are sampled from at once.
        tensor: tensor-parallel ranks.
    """
    width = max((_mlp_elements(block.mlp) for block in model.block_counts if block.mlp is not None), default=0)
    inner = int(formats.hidden.bytes(tokens * ceil_div(width, tensor)))
    hidden = int(formats.hidden.bytes(tokens * model.hidden_size))
    logits = 4 * min(tokens, sequences) * (model.head.rows if model.head is not None else 0)
    return Interval(least=inner + logits, most=inner + _SAMPLED_COPIES * logits + _HIDDEN_COPIES * hidden)


def _mlp_elements(mlp: Mlp) -> int:
    """Elements that stand for one token between the first and the last matrix of an MLP."""
    if isinstance(mlp, Dense):
        return 2 * mlp.width
    if isinstance(mlp, Gated):
        return 3 * mlp.width
    branches = 3 if mlp.gated else 2
    return branches * (mlp.experts_per_token * mlp.width + mlp.shared_width)


def runtime_overhead(*, ranks: int) -> Interval:
    """Return what the CUDA context, communication buffers and captured graphs take.

    With one rank, logs show 0.24 to 0.46 GiB before graphs; with several, about 2.1 GiB of communication buffers.
    Captured graphs, up to about 1 GiB, are in the upper end.

    Args:
        ranks: GPUs that one engine runs on.
    """
    if ranks == 1:
        return Interval(least=200 * MIB, most=1536 * MIB)
    return Interval(least=512 * MIB, most=3584 * MIB)
