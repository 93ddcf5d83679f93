"""Options of speculation: the way to draft, acceptance, and the shape of a draft."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass
from kvcalc.core.speculation import MAX_NODES, DraftTree, chain
from kvcalc.cost.speculation import best_tree, sibling_acceptance

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.plan.speculative.acceptance import Acceptance

__all__ = ["SpeculationOptions", "check_gamma"]

# Lengths that the best one is looked for among, where none are asked for.
_GAMMAS = tuple(range(1, 17))
_MAX_GAMMA = 256
_MAX_SIBLINGS = 64


def check_gamma(gamma: int) -> None:
    """Refuse a length that a draft cannot have.

    Raises:
        InputError: it cannot.
    """
    if not 1 <= gamma <= _MAX_GAMMA:
        raise InputError(f"gamma must be from 1 to {_MAX_GAMMA}, not {gamma}", hint="0 would be plain decoding")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """Options of speculation.

    Args:
        method: the way to draft; a draft model where left out.
        acceptance: how often drafted tokens are accepted.
        gammas: lengths of the draft; the best for each row where left out.
        widths: children of a node at each level, for a tree.
        nodes: budget of a tree, whose best shape is used for each length.
        draft_layers: layers that draft, of ``layer-skip``.
    """

    acceptance: Acceptance
    method: str | None = None
    gammas: tuple[int, ...] | None = None
    widths: tuple[int, ...] | None = None
    nodes: int | None = None
    draft_layers: int | None = None

    def __post_init__(self) -> None:
        for gamma in self.gammas or ():
            check_gamma(gamma)
        if self.nodes is not None and not 1 <= self.nodes <= MAX_NODES:
            raise InputError(f"tree-nodes must be from 1 to {MAX_NODES:,}, not {self.nodes}")
        if self.widths is not None and (self.nodes is not None or self.gammas not in (None, (len(self.widths),))):
            raise InputError(
                f"a tree of {len(self.widths)} levels has a gamma of {len(self.widths)} and its own number of nodes",
                hint="leave out --gamma and --tree-nodes",
            )

    def shape(self) -> Callable[[tuple[float, ...]], DraftTree]:
        """Return the function from the acceptance of each level to the draft's tree, which remembers its answers."""
        if self.widths is not None:
            tree = DraftTree.branching(self.widths)
            return lambda _: tree
        if self.nodes is None:
            return lambda by_depth: chain(len(by_depth))
        nodes, siblings = self.nodes, range(min(self.nodes, _MAX_SIBLINGS))
        return cache(
            lambda by_depth: best_tree(
                [[sibling_acceptance(rate, rank) for rank in siblings] for rate in by_depth], nodes=nodes
            )
        )

    def lengths(self) -> tuple[int, ...]:
        """Return the lengths of a draft to choose from.

        Raises:
            InputError: acceptance is not known for those that are asked for.
        """
        if self.widths is not None:
            self.acceptance.by_depth(len(self.widths))
            return (len(self.widths),)
        for gamma in self.gammas or ():
            self.acceptance.by_depth(gamma)
        known = self.acceptance.positions
        searched = _GAMMAS if known is None else tuple(range(1, known + 1))
        return tuple(sorted({*searched, *(self.gammas or ())}))
