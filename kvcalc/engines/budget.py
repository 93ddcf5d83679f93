"""What an engine needs beside weights and cache: terms that only the running engine knows, as intervals.

The ends were set from first principles and hold nine start-up logs of vLLM 0.19 (see the tests); they are estimates,
never exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.model import Dense, Gated
from kvcalc.core.units import GIB, MIB

if TYPE_CHECKING:
    from kvcalc.core.model import Mlp, ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["Interval", "activation_peak", "default_sequences", "runtime_overhead"]

# From this memory on, vLLM's defaults are those of its large accelerators.
_LARGE_GPU_BYTES = 70 * GIB
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


def default_sequences(memory_bytes: int) -> int:
    """Return vLLM's default ``max_num_seqs``: 1,024 on GPUs of 70 GiB and more, else 256.

    Source: vLLM 0.19 and later, ``EngineArgs.get_batch_defaults``.
    """
    return 1024 if memory_bytes >= _LARGE_GPU_BYTES else 256


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
    inner = int(formats.hidden.bytes(tokens * -(-width // tensor)))
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


def runtime_overhead(*, tensor: int) -> Interval:
    """Return what the CUDA context, communication buffers and captured graphs take.

    With one rank, logs show 0.24 to 0.46 GiB before graphs; with several, about 2.1 GiB of communication buffers.
    Captured graphs, up to about 1 GiB, are in the upper end.
    """
    if tensor == 1:
        return Interval(least=200 * MIB, most=1536 * MIB)
    return Interval(least=512 * MIB, most=3584 * MIB)
