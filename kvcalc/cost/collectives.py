"""Traffic over the links: collectives of tensor, expert and pipeline parallelism, in bytes and in steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.traced import smaller

if TYPE_CHECKING:
    from kvcalc.core.model import Block, Mixture
    from kvcalc.core.workload import Parallel

__all__ = ["Collective", "all_reduce", "all_reduces", "expert_exchange", "expert_spread", "stage_transfer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """Traffic of one rank in one direction.

    Args:
        least_bytes: what any algorithm must move, reduction inside the switch included.
        bytes: what the usual algorithm moves.
        steps: its messages that follow each other.
        direct_bytes: of a sum, what it moves if each rank sends all others its whole vector, in one step.
    """

    least_bytes: float
    bytes: float
    steps: int
    direct_bytes: float = 0


def all_reduce(size_bytes: float, ranks: int) -> Collective:
    """Return the traffic of summing a vector over ranks: a ring moves 2 (t-1)/t of it in 2 (t-1) steps.

    The least is the vector itself: each rank must receive the sum (which a switch may form) or as much of the others'.
    Small vectors go whole to all other ranks, in one step.

    Source: Patarasuk and Yuan 2009, doi 10.1016/j.jpdc.2008.09.002; Thakur et al. 2005, doi 10.1177/1094342005051521.

    >>> all_reduce(100, 4)
    Collective(least_bytes=100, bytes=150.0, steps=6, direct_bytes=300)
    """
    if ranks == 1:
        return Collective(least_bytes=0, bytes=0, steps=0)
    return Collective(
        least_bytes=size_bytes,
        bytes=2 * (ranks - 1) / ranks * size_bytes,
        steps=2 * (ranks - 1),
        direct_bytes=(ranks - 1) * size_bytes,
    )


def all_reduces(block: Block) -> int:
    """Count the sums over its ranks that one layer needs: one after its mixers, one after its MLP, or one for both.

    Source: Shoeybi et al. 2019, arXiv 1909.08053, section 3; Wang and Komatsuzaki 2021, GPT-J-6B (a parallel layer).

    >>> from kvcalc.core.model import Block, Dense
    >>> all_reduces(Block(mlp=Dense(width=4))), all_reduces(Block(mlp=Dense(width=4), parallel=True))
    (1, 1)
    """
    return 1 if block.parallel else bool(block.mixers) + (block.mlp is not None)


def expert_spread(parallel: Parallel) -> int:
    """Return over how many data-parallel ranks one set of experts is spread.

    Source: Rajbhandari et al. 2022, arXiv 2201.05596, section 5 (expert parallelism across data-parallel ranks).

    >>> from kvcalc.core.workload import Parallel
    >>> expert_spread(Parallel(tensor=2, data=4, expert=8)), expert_spread(Parallel(tensor=8, expert=4))
    (4, 1)
    """
    return max(1, parallel.expert // parallel.tensor)


def expert_exchange(token_bytes: float, tokens: int, mixture: Mixture, parallel: Parallel) -> Collective:
    """Return the traffic of sending tokens to their experts and back, where experts span several data-parallel ranks.

    A token goes once to every other rank that holds one of its k experts: (e-1) (1 - (1 - 1/e)^k) ranks expected, and
    comes back from each; the usual exchange sends it k times. A rank sends its own tokens out and others' results back.

    Source: Rajbhandari et al. 2022, arXiv 2201.05596, section 5 (all-to-all of expert parallelism).

    >>> from kvcalc.core.model import Mixture
    >>> from kvcalc.core.workload import Parallel
    >>> layer = Mixture(experts=8, experts_per_token=1, width=4)
    >>> expert_exchange(10, 4, layer, Parallel(data=2, expert=2))
    Collective(least_bytes=40.0, bytes=40.0, steps=2, direct_bytes=0)
    """
    spread = expert_spread(parallel)
    if spread == 1:
        return Collective(least_bytes=0, bytes=0, steps=0)
    others = (spread - 1) * (1 - (1 - 1 / spread) ** mixture.experts_per_token)
    each_way = tokens * token_bytes
    sent = mixture.experts_per_token * (spread - 1) / spread
    reached = smaller(others, sent)
    return Collective(least_bytes=2 * each_way * reached, bytes=2 * each_way * sent, steps=2 * (spread - 1))


def stage_transfer(token_bytes: float, tokens: int) -> Collective:
    """Return the traffic of handing the hidden states to the next pipeline stage.

    Source: Huang et al. 2018, arXiv 1811.06965, section 2.3 (only activations at the cut are passed on).

    >>> stage_transfer(8192, 2).bytes
    16384
    """
    return Collective(least_bytes=tokens * token_bytes, bytes=tokens * token_bytes, steps=1)
