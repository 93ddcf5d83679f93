"""The cache as the scheduler asks for it: one group of numbered blocks, or blocks counted over several groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from kvcalc.core.errors import InputError
from kvcalc.core.units import ceil_div
from kvcalc.simulate.blocks import BlockPool, BlockTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.simulate.sequences import ServedSequence

__all__ = ["BlockGroup", "Cache", "CountingCache", "GroupedCache", "PagedCache"]


class Cache(Protocol):
    """The scheduler's view of a cache.

    A hit is what a sequence could share, as `find_prefix` returned it; ``tokens`` are those a sequence shall hold.
    """

    @property
    def free(self) -> int:
        """Blocks without an owner."""

    @property
    def usable(self) -> int:
        """Blocks that can have an owner."""

    def find_prefix(self, sequence: Any) -> tuple[Any, int]:
        """Find the prefix that a waiting sequence could share, and its tokens."""

    def can_allocate(self, hit: Any, *, tokens: int, spare: int) -> bool:
        """Whether a waiting sequence that shares a hit would fit, with some blocks to spare."""

    def allocate(self, sequence: Any, hit: Any, *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""

    def can_append(self, sequence: Any, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens."""

    def append(self, sequence: Any, *, tokens: int) -> None:
        """Give a running sequence the blocks it lacks."""

    def hash_blocks(self, sequence: Any, *, tokens: int) -> None:
        """Keep the full blocks among its first tokens for later prompts."""

    def deallocate(self, sequence: Any) -> None:
        """Take all its blocks."""


class CountingCache(Cache, Protocol):
    """Further needs of a replica that jumps."""

    def missing(self, sequence: Any, *, tokens: int) -> int:
        """Return the blocks that a sequence lacks, less those it needs no more."""

    def give(self, sequence: Any, blocks: int, *, beside: int = 0) -> None:
        """Give a sequence blocks, or take some back where the number is negative; `take` others beside."""

    def take(self, blocks: int) -> None:
        """Take blocks for sequences that are caught up later; a negative number gives some back."""

    def held_by(self, sequence: Any) -> int:
        """Return the blocks of a sequence."""

    def catch_up(self, sequence: Any) -> None:
        """Note the blocks of a sequence that has computed its tokens one by one while only their sum was kept."""


class PagedCache:
    """One group of blocks, each with its number, so that prefixes can be shared.

    Args:
        num_blocks: blocks, the null block included.
        block_size: tokens of a block.
        prefix_caching: whether blocks are kept for later prompts.
    """

    def __init__(self, *, num_blocks: int, block_size: int, prefix_caching: bool) -> None:
        self.pool = BlockPool(num_blocks=num_blocks, block_size=block_size)
        self.block_size = block_size
        self.prefix_caching = prefix_caching
        self._tables: dict[ServedSequence, BlockTable] = {}

    @property
    def free(self) -> int:
        """Blocks without an owner."""
        return self.pool.free

    @property
    def usable(self) -> int:
        """Blocks that can have an owner."""
        return self.pool.usable

    def find_prefix(self, sequence: ServedSequence) -> tuple[Sequence[int], int]:
        """Return the blocks of the longest cached prefix, and its tokens; one token at least is always computed."""
        if not self.prefix_caching:
            return (), 0
        full = (sequence.known - 1) // self.block_size
        hit = self.pool.find_prefix(sequence.keys(full, self.block_size))
        return hit, len(hit) * self.block_size

    def can_allocate(self, hit: Sequence[int], *, tokens: int, spare: int) -> bool:
        """Whether a waiting sequence that shares a hit would fit, with some blocks to spare."""
        return self.pool.can_allocate(hit, tokens=tokens, spare=spare)

    def allocate(self, sequence: ServedSequence, hit: Sequence[int], *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""
        self._tables[sequence] = self.pool.allocate(hit, tokens=tokens)

    def can_append(self, sequence: ServedSequence, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens."""
        return self.pool.can_append(self._tables[sequence], tokens=tokens)

    def append(self, sequence: ServedSequence, *, tokens: int) -> None:
        """Give a running sequence the blocks it lacks."""
        self.pool.append(self._tables[sequence], tokens=tokens)

    def hash_blocks(self, sequence: ServedSequence, *, tokens: int) -> None:
        """Keep the full blocks among its first tokens for later prompts."""
        if self.prefix_caching:
            full = tokens // self.block_size
            table = self._tables[sequence]
            if full > table.registered:
                self.pool.hash_blocks(table, sequence.keys(full, self.block_size))

    def deallocate(self, sequence: ServedSequence) -> None:
        """Take all its blocks, the last one first."""
        self.pool.deallocate(self._tables.pop(sequence))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockGroup:
    """Layers that share a block table, and the blocks of a sequence in it.

    Args:
        block_size: tokens of a block.
        window: tokens that are kept at most; all of them where left out.
        chunk: tokens after which everything before is given back.
        constant: blocks of a sequence whatever its length; they take the place of the others.
        admission_tokens: tokens of a sequence at once at most, window and new ones: what an admission counts on.
    """

    block_size: int
    window: int | None = None
    chunk: int | None = None
    constant: int | None = None
    admission_tokens: int | None = None

    @property
    def grows(self) -> bool:
        """Whether a sequence keeps all its tokens in it."""
        return self.constant is None and not self.moves

    @property
    def moves(self) -> bool:
        """Whether a sequence gives blocks back while it goes on."""
        return self.window is not None or self.chunk is not None

    @property
    def first_release(self) -> int:
        """The computed tokens with which a sequence first gives back the block that its window has left."""
        return (self.window or 0) - 1 + self.block_size

    def first_kept(self, computed: int) -> int:
        """Return the first block that a sequence with so many computed tokens still needs."""
        if self.constant is not None:
            return 0
        if self.window is not None:
            return max(computed - self.window + 1, 0) // self.block_size
        if self.chunk is not None:
            return computed // self.chunk * self.chunk // self.block_size
        return 0

    def held(self, *, computed: int, tokens: int) -> int:
        """Return the blocks of a sequence that holds ``tokens``, of which ``computed`` were there before the step."""
        if self.constant is not None:
            return self.constant
        return ceil_div(tokens, self.block_size) - self.first_kept(computed)

    def admitted(self, tokens: int) -> int:
        """Return the blocks that an admission counts on for a sequence of so many tokens."""
        whole = self.held(computed=0, tokens=tokens)
        if self.admission_tokens is None:
            return whole
        return min(whole, ceil_div(min(self.admission_tokens, tokens), self.block_size) + 1)


class GroupedCache:
    """Several groups of layers that draw blocks from one pool: blocks are counted, and prefixes are not shared.

    Args:
        num_blocks: blocks, the null block included.
        groups: the groups.
    """

    def __init__(self, *, num_blocks: int, groups: Sequence[BlockGroup]) -> None:
        if num_blocks < 2 or not groups:  # noqa: PLR2004  the null block and one more
            raise InputError(f"a cache of {num_blocks} blocks in {len(groups)} groups")
        self.usable = num_blocks - 1
        self.groups = tuple(groups)
        self.free = self.usable
        self._size = groups[0].block_size if len(groups) == 1 and groups[0].grows else 0
        self._held: dict[ServedSequence, int] = {}

    def find_prefix(self, sequence: ServedSequence) -> tuple[Sequence[int], int]:
        """Return no hit."""
        del sequence
        return (), 0

    def can_allocate(self, hit: Sequence[int], *, tokens: int, spare: int) -> bool:
        """Whether a waiting sequence would fit, with some blocks to spare."""
        del hit
        admitted = -(-tokens // self._size) if self._size else sum(group.admitted(tokens) for group in self.groups)
        return admitted + spare <= self.free

    def allocate(self, sequence: ServedSequence, hit: Sequence[int], *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""
        del hit
        self._held[sequence] = holding = self._holding(sequence.computed, tokens)
        self.free -= holding

    def can_append(self, sequence: ServedSequence, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens, after giving back what it needs no more."""
        return self.missing(sequence, tokens=tokens) <= self.free

    def missing(self, sequence: ServedSequence, *, tokens: int) -> int:
        """Return the blocks it lacks, less those it needs no more."""
        return self._holding(sequence.computed, tokens) - self._held[sequence]

    def append(self, sequence: ServedSequence, *, tokens: int) -> None:
        """Take back the blocks that a sequence needs no more, and give it those it lacks."""
        self.give(sequence, self.missing(sequence, tokens=tokens))

    def give(self, sequence: ServedSequence, blocks: int, *, beside: int = 0) -> None:
        """Give a sequence blocks, or take some back where the number is negative; take others beside."""
        self.free -= blocks + beside
        self._held[sequence] += blocks

    def take(self, blocks: int) -> None:
        """Take blocks for sequences that are caught up later; a negative number gives some back."""
        self.free -= blocks

    def held_by(self, sequence: ServedSequence) -> int:
        """Return the blocks of a sequence."""
        return self._held[sequence]

    def catch_up(self, sequence: ServedSequence) -> None:
        """Note the blocks of a sequence that has computed its tokens one by one while only their sum was kept."""
        self._held[sequence] = self._holding(sequence.computed - 1, sequence.computed)

    def hash_blocks(self, sequence: ServedSequence, *, tokens: int) -> None:
        """Keep nothing."""

    def deallocate(self, sequence: ServedSequence) -> None:
        """Take all its blocks."""
        self.free += self._held.pop(sequence)

    def _holding(self, computed: int, tokens: int) -> int:
        if self._size:
            return -(-tokens // self._size)
        return sum(group.held(computed=computed, tokens=tokens) for group in self.groups)
