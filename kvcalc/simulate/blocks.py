"""A paged cache: blocks with reference counts, the free list, and blocks kept for later prompts.

The order in which blocks are reused is that of vLLM 0.32 (v1/core/block_pool.py): blocks are taken from the front of
the free list; a sequence gives its last block back first; blocks that hold nothing reusable go to the front, blocks
kept for later prompts to the back. So never-cached blocks go first, then the least recently used, the end of a
sequence before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.requests import Segment

__all__ = ["BlockPool", "BlockTable", "block_keys"]

# Block 0 stands for "no block" and is never handed out.
_NULL_BLOCKS = 1


class BlockTable:
    """The blocks of one sequence, in order, and how many of them are registered for later prompts."""

    __slots__ = ("blocks", "registered")

    def __init__(self) -> None:
        self.blocks: list[int] = []
        self.registered = 0

    def __len__(self) -> int:
        return len(self.blocks)


class BlockPool:
    """A pool of blocks of ``block_size`` tokens, numbered from 1 (block 0 is the null block).

    Args:
        num_blocks: blocks, the null block included.
        block_size: tokens of a block.

    >>> pool = BlockPool(num_blocks=5, block_size=16)
    >>> table = BlockTable()
    >>> pool.can_append(table, tokens=33), pool.append(table, tokens=33), table.blocks, pool.free
    (True, 3, [1, 2, 3], 1)
    >>> pool.deallocate(table), pool.free
    (3, 4)
    """

    def __init__(self, *, num_blocks: int, block_size: int) -> None:
        if num_blocks <= _NULL_BLOCKS or block_size < 1:
            raise InputError(
                f"a cache of {num_blocks} blocks of {block_size} tokens", hint="it needs 2 blocks of 1 token at least"
            )
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(_NULL_BLOCKS, num_blocks))
        self._owners = [0] * num_blocks
        self._key: list[int | None] = [None] * num_blocks
        # blocks of each key, the one registered first in front
        self._cached: dict[int, dict[int, None]] = {}

    @property
    def free(self) -> int:
        """Blocks without an owner; those kept for later prompts count."""
        return len(self._free)

    @property
    def usable(self) -> int:
        """Blocks that can have an owner."""
        return self.num_blocks - _NULL_BLOCKS

    @property
    def cached(self) -> int:
        """Blocks that a later prompt could find, owned or not."""
        return sum(len(blocks) for blocks in self._cached.values())

    def free_order(self) -> tuple[int, ...]:
        """Return the blocks without an owner in the order in which they would be taken."""
        return tuple(self._free)

    def owners(self, block: int) -> int:
        """Count the sequences that own a block."""
        return self._owners[block]

    def find_prefix(self, keys: Iterable[int]) -> list[int]:
        """Return the blocks that hold the longest cached prefix of a sequence with those keys."""
        cached: list[int] = []
        for key in keys:
            blocks = self._cached.get(key)
            if not blocks:
                break
            cached.append(next(iter(blocks)))
        return cached

    def missing(self, table: BlockTable, *, tokens: int) -> int:
        """Return the blocks that a sequence lacks to hold so many tokens."""
        return max(ceil_div(tokens, self.block_size) - len(table.blocks), 0)

    def can_append(self, table: BlockTable, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens."""
        return self.missing(table, tokens=tokens) <= len(self._free)

    def append(self, table: BlockTable, *, tokens: int) -> int:
        """Give a sequence the blocks it lacks to hold so many tokens, and return how many these are.

        Raises:
            InputError: the pool has fewer; ask `can_append` first.
        """
        missing = self.missing(table, tokens=tokens)
        if missing > len(self._free):
            raise InputError(f"{missing} blocks are asked for, and {len(self._free)} are free")
        for _ in range(missing):
            table.blocks.append(self._take())
        return missing

    def can_allocate(self, hit: Sequence[int], *, tokens: int, spare: int = 0) -> bool:
        """Whether a new sequence can hold so many tokens.

        Args:
            hit: blocks it would share; those without an owner leave the free list too.
            tokens: tokens it shall hold.
            spare: blocks that must stay free.
        """
        unowned = sum(not self._owners[block] for block in hit)
        return ceil_div(tokens, self.block_size) - len(hit) + unowned + spare <= len(self._free)

    def allocate(self, hit: Sequence[int], *, tokens: int) -> BlockTable:
        """Return the table of a new sequence that shares the blocks of a hit and takes what else it needs."""
        table = BlockTable()
        for block in hit:
            if not self._owners[block]:
                del self._free[block]
            self._owners[block] += 1
        table.blocks.extend(hit)
        table.registered = len(hit)
        self.append(table, tokens=tokens)
        return table

    def hash_blocks(self, table: BlockTable, keys: Sequence[int]) -> None:
        """Register a sequence's blocks under their keys, one for each full block; those registered before stay."""
        for index in range(table.registered, len(keys)):
            block, key = table.blocks[index], keys[index]
            self._key[block] = key
            self._cached.setdefault(key, {})[block] = None
        table.registered = max(table.registered, len(keys))

    def deallocate(self, table: BlockTable) -> int:
        """Take all blocks from a sequence, the last one first, and return how many have no owner now."""
        unkept = []
        released = 0
        for block in reversed(table.blocks):
            self._owners[block] -= 1
            if self._owners[block]:
                continue
            released += 1
            if self._key[block] is None:
                unkept.append(block)
            else:
                self._free[block] = None
        for block in reversed(unkept):
            self._free[block] = None
            self._free.move_to_end(block, last=False)
        table.blocks.clear()
        table.registered = 0
        return released

    def _take(self) -> int:
        """Take the first free block; what it held for later prompts is lost."""
        block, _ = self._free.popitem(last=False)
        key = self._key[block]
        if key is not None:
            self._key[block] = None
            blocks = self._cached[key]
            del blocks[block]
            if not blocks:
                del self._cached[key]
        self._owners[block] = 1
        return block


def block_keys(segments: Iterable[Segment], *, block_size: int, parent: int = 0) -> list[int]:
    """Return a key for each full block of a sequence; equal keys mean equal tokens up to the end of the block.

    Args:
        segments: what the sequence is made of, in order; streams are numbers of 0 or more.
        block_size: tokens of a block.
        parent: key of the block before the first.

    A key is a 64-bit digest of the block's tokens and of the key before it, as engines have it.

    Source: vLLM 0.32, v1/core/kv_cache_utils.hash_block_tokens (a hash chained over all earlier blocks).

    >>> from kvcalc.core.requests import Segment
    >>> one = block_keys([Segment(1, 0, 40)], block_size=16)
    >>> other = block_keys([Segment(1, 0, 16), Segment(1, 16, 8), Segment(2, 0, 16)], block_size=16)
    >>> len(one), len(other), one[0] == other[0], one[1] == other[1]
    (2, 2, True, False)
    """
    keys: list[int] = []
    pending: list[int] = []
    room = block_size
    for stream, first, tokens in segments:
        start, left = first, tokens
        while left:
            taken = min(left, room)
            if pending and pending[-3] == stream and pending[-2] + pending[-1] == start:
                pending[-1] += taken
            else:
                pending += (stream, start, taken)
            start, left, room = start + taken, left - taken, room - taken
            if not room:
                parent = hash((parent, *pending))
                keys.append(parent)
                pending, room = [], block_size
    return keys
