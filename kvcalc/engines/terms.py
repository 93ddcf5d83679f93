"""Terms of a memory budget that only the running engine knows, as intervals, and the tensors that they are made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Dense, Gated, Mixture
from kvcalc.core.records import dataclass
from kvcalc.core.units import MIB, ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import Mlp, ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["NOTHING", "Interval", "PassTensors", "activation_peak", "pass_tensors", "runtime_overhead"]

# Copies of tensors in the peak of an engine whose memory was not fitted: the logits while they are sampled from, and
# hidden states beside the MLP's.
_SAMPLED_COPIES = 4
_HIDDEN_COPIES = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """The least and the most that a term is expected to take.

    >>> Interval(least=1, most=2).plus(Interval(least=3, most=5))
    Interval(least=4, most=7)
    """

    least: int
    most: int

    def plus(self, other: Interval) -> Interval:
        """Return the sum of two terms."""
        return Interval(least=self.least + other.least, most=self.most + other.most)


NOTHING = Interval(least=0, most=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTensors:
    """Bytes of the large tensors of an engine's largest pass on one tensor-parallel rank.

    Args:
        logits: one copy of the logits of the sampled rows, in 32 bits; all ranks hold the whole vocabulary.
        hidden: one copy of the hidden states.
        inner: what stands between the first and the last matrix of the widest MLP, routed experts with it.
        mlp: the same without routed experts.
        experts: the same of the routed experts alone, and the output of each.
    """

    logits: int
    hidden: int
    inner: int
    mlp: int
    experts: int


def pass_tensors(model: ModelProfile, formats: Formats, *, tokens: int, sequences: int, tensor: int = 1) -> PassTensors:
    """Return the large tensors of a pass.

    Args:
        model: the model.
        formats: its formats.
        tokens: tokens of the pass.
        sequences: sequences that are sampled from at once.
        tensor: tensor-parallel ranks.
    """
    mlps = [block.mlp for block in model.block_counts if block.mlp is not None]

    def held(elements: Callable[[Mlp], int], shared_among: int = tensor) -> int:
        widest = max(map(elements, mlps), default=0)
        return int(formats.hidden.bytes(tokens * ceil_div(widest, shared_among)))

    return PassTensors(
        logits=4 * min(tokens, sequences) * (model.head.rows if model.head is not None else 0),
        hidden=int(formats.hidden.bytes(tokens * model.hidden_size)),
        inner=held(lambda mlp: _shared_elements(mlp) + _routed_elements(mlp)),
        mlp=held(_shared_elements),
        experts=held(_routed_elements) + held(lambda mlp: _experts_per_token(mlp) * model.hidden_size, shared_among=1),
    )


def _shared_elements(mlp: Mlp) -> int:
    """Elements of one token between the first and the last matrix of an MLP, its routed experts left out."""
    if isinstance(mlp, Dense):
        return 2 * mlp.width
    if isinstance(mlp, Gated):
        return 3 * mlp.width
    return (1 + mlp.branches) * mlp.shared_width


def _routed_elements(mlp: Mlp) -> int:
    return (1 + mlp.branches) * mlp.experts_per_token * mlp.width if isinstance(mlp, Mixture) else 0


def _experts_per_token(mlp: Mlp) -> int:
    return mlp.experts_per_token if isinstance(mlp, Mixture) else 0


def activation_peak(model: ModelProfile, formats: Formats, *, tokens: int, sequences: int, tensor: int = 1) -> Interval:
    """Return the peak of activations of an engine whose memory was not fitted.

    The widest MLP of ``tokens`` tokens stands beside the logits of ``sequences`` of them in 32 bits: once at least;
    with sampling's copies of the logits and some hidden states at most.
    """
    tensors = pass_tensors(model, formats, tokens=tokens, sequences=sequences, tensor=tensor)
    return Interval(
        least=tensors.inner + tensors.logits,
        most=tensors.inner + _SAMPLED_COPIES * tensors.logits + _HIDDEN_COPIES * tensors.hidden,
    )


def runtime_overhead(*, ranks: int) -> Interval:
    """Return the bytes of a CUDA context, libraries, graphs and links of an engine whose memory was not fitted."""
    if ranks == 1:
        return Interval(least=200 * MIB, most=1536 * MIB)
    return Interval(least=512 * MIB, most=3584 * MIB)
