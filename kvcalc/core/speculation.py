"""The shape of a draft, which drafted token follows which, and the terms of a round besides its passes."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Interval

__all__ = ["MAX_NODES", "DraftTree", "RoundTerms", "chain"]

MAX_NODES = 1024
_ROOT = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTree:
    """The tokens drafted for one verification, as a tree; a plain draft is a chain.

    Args:
        parents: for each node the place of the node it follows, always an earlier one; -1 where it follows the context
            itself. Children of a node stand in the order of the draft's preference.
    """

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.parents) > MAX_NODES:
            raise InputError(f"a draft of {len(self.parents):,} tokens is more than {MAX_NODES:,}")
        for node, parent in enumerate(self.parents):
            if not _ROOT <= parent < node:
                raise InputError(
                    f"node {node} of a draft tree follows {parent}", hint="a node follows an earlier one, or -1"
                )

    @classmethod
    def branching(cls, widths: Sequence[int]) -> DraftTree:
        """Return the tree whose nodes of level i each have ``widths[i]`` children.

        Raises:
            InputError: a width below 1, or more nodes than a verification can hold.

        >>> DraftTree.branching((2, 1)).parents
        (-1, -1, 0, 1)
        """
        parents: list[int] = []
        level = [_ROOT]
        for width in widths:
            if width < 1:
                raise InputError(f"a level of a draft tree has {width} children a node", hint="1 or more")
            if len(parents) + len(level) * width > MAX_NODES:
                raise InputError(f"a draft tree of {tuple(widths)} has more than {MAX_NODES:,} nodes")
            start = len(parents)
            parents += [node for node in level for _ in range(width)]
            level = list(range(start, len(parents)))
        return cls(parents=tuple(parents))

    @property
    def nodes(self) -> int:
        """Drafted tokens."""
        return len(self.parents)

    @property
    def is_chain(self) -> bool:
        """Whether each token has at most one successor."""
        return self.parents == tuple(range(_ROOT, self.nodes - 1))

    @property
    def depths(self) -> tuple[int, ...]:
        """For each node how many tokens lead to it, itself included."""
        return _depths(self.parents)

    @property
    def level_widths(self) -> tuple[int, ...]:
        """Count the nodes of each level; the draft takes one step a level.

        >>> DraftTree.branching((3, 2)).level_widths, chain(3).level_widths
        ((3, 6), (1, 1, 1))
        """
        return _level_widths(self.parents)

    @property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Children of the context, then those of each node."""
        children: list[list[int]] = [[] for _ in range(self.nodes + 1)]
        for node, parent in enumerate(self.parents):
            children[parent + 1].append(node)
        return tuple(tuple(nodes) for nodes in children)

    @property
    def ranks(self) -> tuple[int, ...]:
        """For each node its place among the children of its parent, counted from 0."""
        seen: dict[int, int] = {}
        ranks = []
        for parent in self.parents:
            ranks.append(seen.get(parent, 0))
            seen[parent] = ranks[-1] + 1
        return tuple(ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTerms:
    """Terms of a round of speculation in an engine, besides its passes: the host, and the spread of measured speed-ups.

    Args:
        engine: the engine and its versions, in words.
        round_s: time of the host that no pass hides: acceptance is read, blocks are handed back, the next round is
            put together. None where the host schedules a round ahead.
        sequence_s: the same for each sequence of the round.
        alone: measured over estimated speed-up of one sequence, of four of five measurements.
        batched: the same of several sequences.
        is_measured: whether rounds of this engine were measured; else these are the terms and intervals of others.
    """

    engine: str
    round_s: float
    sequence_s: float
    alone: Interval
    batched: Interval
    is_measured: bool = True

    def spread(self, batch: int) -> Interval:
        """Return measured over estimated speed-up at a batch."""
        return self.alone if batch == 1 else self.batched


@lru_cache(maxsize=256)
def _depths(parents: tuple[int, ...]) -> tuple[int, ...]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent == _ROOT else depths[parent] + 1)
    return tuple(depths)


@lru_cache(maxsize=256)
def _level_widths(parents: tuple[int, ...]) -> tuple[int, ...]:
    nodes = Counter(_depths(parents))
    return tuple(nodes[level] for level in range(1, len(nodes) + 1))


@lru_cache(maxsize=256)
def chain(tokens: int) -> DraftTree:
    """Return the draft of so many tokens one after another; none for 0.

    Raises:
        InputError: less than 0, or more than a verification can hold.

    >>> chain(3).parents, chain(0).parents
    ((-1, 0, 1), ())
    """
    if tokens < 0:
        raise InputError(f"gamma must be 0 or more, not {tokens}", hint="0 is plain decoding", parameter="gamma")
    if tokens > MAX_NODES:
        raise InputError(f"a draft of {tokens:,} tokens is more than {MAX_NODES:,}", parameter="gamma")
    return DraftTree(parents=tuple(range(_ROOT, tokens - 1)))
