"""A cache that keeps prefixes, for a replica that jumps: blocks that nobody else can ask for are kept as stretches.

It decides as `kvcalc.simulate.blocks.BlockPool` does. What it does without: numbers for blocks, an order among those
that hold nothing reusable, and an entry for each block that only its own sequence could ask for again. A sequence that
lost its blocks leaves one stretch of those in the order of reuse, eaten up from its end.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.simulate.jobs import Job

__all__ = ["Hit", "Stretch", "StretchCache"]


class _Block:
    """A block that later prompts can find."""

    __slots__ = ("key", "owners")

    def __init__(self, key: int) -> None:
        self.key = key
        self.owners = 1


class Stretch:
    """Blocks without an owner that only one sequence could ask for; the last of them is taken first."""

    __slots__ = ("blocks",)

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks


class _Table:
    """What a sequence holds.

    Attributes:
        held: blocks.
        registered: how many of them are registered for later.
        findable: blocks at its beginning that others could ask for; the rest are its own.
        found: those of the findable ones that are registered.
    """

    __slots__ = ("findable", "found", "held", "registered")

    def __init__(self, found: Sequence[_Block], *, registered: int, findable: int) -> None:
        self.found = list(found)
        self.held = self.registered = registered
        self.findable = findable


class Hit(NamedTuple):
    """What a waiting sequence could take up: findable blocks, and blocks of the stretch that it left."""

    blocks: Sequence[_Block] = ()
    own: int = 0


class StretchCache:
    """A cache of one group of layers that keeps prefixes.

    Args:
        num_blocks: blocks, the null block included.
        block_size: tokens of a block.
        before_lookup: brings up to date what a sequence might find.
    """

    def __init__(self, *, num_blocks: int, block_size: int, before_lookup: Callable[[Job], None]) -> None:
        self.usable = self.free = self._fresh = num_blocks - 1
        self._size = block_size
        self._before_lookup = before_lookup
        self._tables: dict[Job, _Table] = {}
        # blocks without an owner that are kept, the first to be taken in front
        self._kept: OrderedDict[_Block | Stretch, None] = OrderedDict()
        self._cached: dict[int, dict[_Block, None]] = {}

    def find_prefix(self, sequence: Job) -> tuple[Hit, int]:
        """Return what a waiting sequence could take up, and how many tokens that is."""
        self._before_lookup(sequence)
        full = (sequence.known - 1) // self._size
        keys = sequence.keys(full, self._size)
        blocks = []
        for key in keys:
            cached = self._cached.get(key)
            if not cached:
                break
            blocks.append(next(iter(cached)))
        own = 0
        if sequence.left is not None and len(blocks) == len(keys):
            own = min(sequence.left.blocks, full - len(keys))
        return Hit(blocks, own), (len(blocks) + own) * self._size

    def can_allocate(self, hit: Hit, *, tokens: int, spare: int) -> bool:
        """Whether a waiting sequence that takes up a hit would fit, with some blocks to spare."""
        owned = sum([block.owners > 0 for block in hit.blocks])
        return -(-tokens // self._size) - owned + spare <= self.free

    def allocate(self, sequence: Job, hit: Hit, *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""
        for block in hit.blocks:
            if not block.owners:
                del self._kept[block]
                self.free -= 1
            block.owners += 1
        left = sequence.left
        if left is not None and hit.own:
            left.blocks -= hit.own
            self.free -= hit.own
            if not left.blocks:
                del self._kept[left]
        sequence.left = None
        registered = len(hit.blocks) + hit.own
        findable = len(sequence.keys(self.usable, self._size))
        self._tables[sequence] = _Table(hit.blocks, registered=registered, findable=findable)
        self.append(sequence, tokens=tokens)

    def can_append(self, sequence: Job, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens."""
        return self.missing(sequence, tokens=tokens) <= self.free

    def missing(self, sequence: Job, *, tokens: int) -> int:
        """Return the blocks a sequence lacks."""
        return max(-(-tokens // self._size) - self._tables[sequence].held, 0)

    def append(self, sequence: Job, *, tokens: int) -> None:
        """Give a sequence the blocks it lacks."""
        self.give(sequence, self.missing(sequence, tokens=tokens))

    def give(self, sequence: Job, blocks: int) -> None:
        """Give a sequence blocks."""
        self._tables[sequence].held += blocks
        self.take(blocks)

    def take(self, blocks: int) -> None:
        """Take blocks for sequences that are caught up later: those that hold nothing, then those kept longest."""
        self.free -= blocks
        if blocks <= self._fresh:
            self._fresh -= blocks
            return
        kept, self._fresh = blocks - self._fresh, 0
        while kept:
            first = next(iter(self._kept))
            if isinstance(first, Stretch):
                if first.blocks > kept:
                    first.blocks -= kept
                    return
                kept -= first.blocks
                first.blocks = 0
            else:
                kept -= 1
                self._forget(first)
            del self._kept[first]

    def hash_blocks(self, sequence: Job, *, tokens: int) -> None:
        """Keep the full blocks among its first tokens for later prompts."""
        table, full = self._tables[sequence], tokens // self._size
        if full <= table.registered:
            return
        if len(table.found) < table.findable:
            for key in sequence.keys(full, self._size)[len(table.found) :]:
                block = _Block(key)
                self._cached.setdefault(key, {})[block] = None
                table.found.append(block)
        table.registered = full

    def deallocate(self, sequence: Job) -> None:
        """Take all its blocks, the last one first."""
        table = self._tables.pop(sequence)
        own = table.registered - len(table.found)
        self._fresh += table.held - table.registered
        self.free += table.held - len(table.found)
        if own:
            sequence.left = Stretch(own)
            self._kept[sequence.left] = None
        for block in reversed(table.found):
            block.owners -= 1
            if not block.owners:
                self._kept[block] = None
                self.free += 1

    def held_by(self, sequence: Job) -> int:
        """Return the blocks of a sequence."""
        return self._tables[sequence].held

    def catch_up(self, sequence: Job) -> None:
        """Note the blocks of a sequence that has computed its tokens one by one while only their sum was kept."""
        self._tables[sequence].held = ceil_div(sequence.computed, self._size)
        self.hash_blocks(sequence, tokens=sequence.computed)

    def _forget(self, block: _Block) -> None:
        blocks = self._cached[block.key]
        del blocks[block]
        if not blocks:
            del self._cached[block.key]
