"""Traits that every kind of token mixer states: the entry of a token, the tokens held, where the cost of a step bends.

Whoever needs one of these facts asks the mixer for it, so that a new kind brings them along. Only what is a formula of
its own for each kind (`kvcalc.cost`) or an engine's rule (`kvcalc.engines`) is told apart by kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.core.records import dataclass
from kvcalc.core.traced import smaller

if TYPE_CHECKING:
    from collections.abc import Hashable

__all__ = ["STRAIGHT", "Bends", "Entry", "Indexer", "Traits"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer:
    """The index of a sparse-attention layer: small keys for every token, scored to choose which tokens are read.

    Args:
        heads: index query heads.
        head_dim: elements of one index key; one key a token, shared by the heads.
        top_k: tokens (or compressed entries) chosen for each query.
        query_inputs: width of the vector the index queries are projected from.
        head_weights: whether a projection hidden -> heads weighs the heads.
        stored: whether this layer scores an index of its own (false where it follows an earlier layer's choice).
        own_keys: whether it keeps the keys that it scores (false where they are an earlier layer's).
        candidates: entries that are scored at most, where an earlier layer's index has picked them; all where left out.
        matrix_parameters: further matrix elements of the indexer (a compressor's projections).
        stored_dim: elements kept for a token where they are more than an index key (what a later pooling needs).
        pool: tokens whose keys are pooled into one before queries are scored against it.
    """

    __pydantic_config__ = _STRICT
    heads: int
    head_dim: int
    top_k: int
    query_inputs: int = 0
    head_weights: bool = True
    stored: bool = True
    own_keys: bool = True
    candidates: int | None = None
    matrix_parameters: int = 0
    stored_dim: int | None = None
    pool: int = 1

    @property
    def kept_dim(self) -> int:
        """Elements kept for a token."""
        return self.head_dim if self.stored_dim is None else self.stored_dim

    @property
    def entry_dim(self) -> int:
        """Elements that the layer itself keeps for a token: none where it follows an earlier layer's choice or keys."""
        return self.kept_dim if self.stored and self.own_keys else 0


class Entry(NamedTuple):
    """Elements that one token leaves in the cache of a mixer.

    Args:
        kv_heads: heads that keep keys and values; tensor-parallel ranks share them, and each keeps one at least.
        key_dim: width of a key.
        value_dim: width of a value; 0 where the key stands for both.
        index_dim: width of the index key beside them, which every rank keeps.
    """

    kv_heads: int
    key_dim: int
    value_dim: int
    index_dim: int = 0


class Bends(NamedTuple):
    """Contexts at which the reads and FLOP of a decode step leave a straight line.

    Args:
        knees: contexts from which on they grow along another line.
        restart: tokens after which they begin anew (a chunk); none where they never do.
        group: tokens behind one entry: costs step up when a group of so many is whole.
        pool: entries behind one index key that is scored, likewise.
    """

    knees: tuple[int, ...] = ()
    restart: int | None = None
    group: int = 1
    pool: int = 1

    @property
    def period(self) -> int:
        """Tokens after which the pattern of reads comes again; 1 where there is none."""
        return self.restart or self.group

    def stretch(self, context: int) -> Hashable:
        """Name the stretch of contexts on which a decode step costs a straight line.

        >>> bends = Bends(knees=(100,), group=4)
        >>> [bends.stretch(context) == bends.stretch(8) for context in (7, 8, 11, 12)]
        [False, True, True, False]
        """
        restarts = 0 if self.restart is None else (context - 1) // self.restart
        step = self.group if self.group > 1 else self.pool
        return tuple(context >= knee for knee in self.knees), restarts, context // step if step > 1 else 0


STRAIGHT = Bends()


class Traits(ABC):
    """A kind of token mixer; one that leaves a trait unsaid cannot be made."""

    __slots__ = ()

    @property
    @abstractmethod
    def entry(self) -> Entry | None:
        """Elements that a token leaves in the cache; none for a mixer that keeps nothing for each token."""

    @property
    @abstractmethod
    def span(self) -> int | None:
        """Latest tokens that are attended to, and held, at most; none where there is no such limit."""

    @property
    @abstractmethod
    def bends(self) -> Bends:
        """Contexts at which the cost of a decode step bends."""

    @abstractmethod
    def splits_evenly(self, ranks: int) -> bool:
        """Whether tensor-parallel ranks share the heads evenly."""

    @property
    def indexer(self) -> Indexer | None:
        """The index that chooses which tokens are read, where there is one."""
        return None

    @property
    def cache_knees(self) -> tuple[int, ...]:
        """Contexts from which on the cache grows along another line."""
        return () if self.entry is None or self.span is None else (self.span,)

    def held_tokens(self, tokens: int) -> int:
        """Tokens whose entries are in the cache after ``tokens`` tokens.

        Source: Beltagy et al. 2020, arXiv 2004.05150 (a window of W keeps the last W).
        """
        if self.entry is None:
            return 0
        return tokens if self.span is None else smaller(tokens, self.span)
