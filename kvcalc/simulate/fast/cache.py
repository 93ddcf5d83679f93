"""A cache that keeps prefixes, for a replica that jumps: blocks are counted in runs, not one by one.

It decides as `kvcalc.simulate.blocks.BlockPool` does. What it does without: numbers for blocks, an order among those
that hold nothing reusable, and an entry for each block that only its own sequence could ask for again. What a sequence
leaves when it ends or loses its blocks are two entries in the order of reuse, each eaten up from its end.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.simulate.prefixes import PrefixTree, Reading
from kvcalc.simulate.sequences import PrivateBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.simulate.prefixes import Left, Part
    from kvcalc.simulate.sequences import Job

__all__ = ["Hit", "PrefixCache", "Writers"]


class _Table:
    """The blocks of a sequence.

    Attributes:
        blocks: how many.
        findable: blocks at its beginning that others could ask for; the rest are its own.
        registered: those of the findable ones that are registered for later; nothing where there are none.
    """

    __slots__ = ("blocks", "findable", "registered")

    def __init__(self, registered: Reading | None, blocks: int, findable: int) -> None:
        self.registered = registered
        self.blocks = blocks
        self.findable = findable


class Hit(NamedTuple):
    """Blocks that a waiting sequence could take up: findable ones, and private ones that it left."""

    parts: Sequence[Part] = ()
    blocks: int = 0
    own: int = 0


_NOTHING = Hit()


class PrefixCache:
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
        self._tree = PrefixTree(block_size=block_size)
        # blocks without an owner that are kept, the first to be taken in front
        self._kept: OrderedDict[Left | PrivateBlocks, None] = OrderedDict()
        # the private blocks at the end of that order, if nobody comes back for them
        self._last: PrivateBlocks | None = None

    def find_prefix(self, sequence: Job) -> tuple[Hit, int]:
        """Find the prefix that a waiting sequence could take up, and its tokens."""
        if sequence.left is None and not sequence.content:
            return _NOTHING, 0
        self._before_lookup(sequence)
        full = (sequence.known - 1) // self._size
        findable = min(full, sequence.findable(self._size))
        parts, blocks = self._tree.find(sequence.runs(self._size), findable)
        own = 0
        if sequence.left is not None and blocks == findable:
            own = min(sequence.left.blocks, full - findable)
        return Hit(parts, blocks, own), (blocks + own) * self._size

    def can_allocate(self, hit: Hit, *, tokens: int, spare: int) -> bool:
        """Whether a waiting sequence that takes up a hit would fit, with some blocks to spare."""
        owned = sum([blocks for copy, blocks in hit.parts if copy.owners]) if hit.parts else 0
        return -(-tokens // self._size) - owned + spare <= self.free

    def allocate(self, sequence: Job, hit: Hit, *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""
        if hit is not _NOTHING:
            self._take_up(sequence, hit)
        findable = sequence.findable(self._size) if sequence.content else 0
        blocks = -(-tokens // self._size)
        registered = Reading(sequence.runs(self._size), hit.parts) if findable else None
        self._tables[sequence] = _Table(registered, blocks, findable)
        self.take(blocks - hit.blocks - hit.own)

    def _take_up(self, sequence: Job, hit: Hit) -> None:
        """Take the blocks of a hit out of the order in which they would be taken."""
        for part in hit.parts:
            own_part = self._tree.own(part)
            if own_part is not None:
                self.free -= part[1]
                if not own_part.copies:
                    del self._kept[own_part]
        left = sequence.left
        if left is not None and hit.own:
            left.blocks -= hit.own
            self.free -= hit.own
            if not left.blocks:
                del self._kept[left]
        sequence.left = None

    def can_append(self, sequence: Job, *, tokens: int) -> bool:
        """Whether a running sequence can hold so many tokens."""
        return self.missing(sequence, tokens=tokens) <= self.free

    def missing(self, sequence: Job, *, tokens: int) -> int:
        """Return the blocks a sequence lacks."""
        missing = -(-tokens // self._size) - self._tables[sequence].blocks
        return missing if missing > 0 else 0  # noqa: FURB136  the innermost loop

    def append(self, sequence: Job, *, tokens: int) -> None:
        """Give a sequence the blocks it lacks."""
        self.give(sequence, self.missing(sequence, tokens=tokens))

    def give(self, sequence: Job, blocks: int, *, beside: int = 0) -> None:
        """Give a sequence blocks; take others beside."""
        self._tables[sequence].blocks += blocks
        self.take(blocks + beside)

    def take(self, blocks: int) -> None:
        """Take blocks for sequences that are caught up later: those that hold nothing, then those kept longest."""
        self.free -= blocks
        self._fresh -= blocks
        if self._fresh < 0:
            self._take_kept()

    def _take_kept(self) -> None:
        """Evict cached blocks to make up for the missing free ones."""
        kept, self._fresh = -self._fresh, 0
        while kept:
            first = next(iter(self._kept))
            if isinstance(first, PrivateBlocks):
                if first.blocks > kept:
                    first.blocks -= kept
                    return
                kept -= first.blocks
                first.blocks = 0
            else:
                kept -= self._tree.evict(first, kept)
                if first.copies:
                    return
            del self._kept[first]

    def hash_blocks(self, sequence: Job, *, tokens: int) -> None:
        """Keep the full blocks among its first tokens for later prompts, those that others could ask for."""
        table = self._tables[sequence]
        if table.registered is not None and table.registered.blocks < table.findable:
            self._tree.register(table.registered, min(tokens // self._size, table.findable))

    def deallocate(self, sequence: Job) -> None:
        """Take all its blocks, the last one first, and keep those that it has filled."""
        table = self._tables.pop(sequence)
        registered = 0 if table.registered is None else table.registered.blocks
        others = table.blocks - registered
        own = max(sequence.computed // self._size - registered, 0)
        self._fresh += others - own
        self.free += others
        if own:
            self._keep(sequence, own)
        if table.registered is not None:
            left, freed = self._tree.release(table.registered)
            if freed:
                self._kept[left] = self._last = None
                self.free += freed

    def held_by(self, sequence: Job) -> int:
        """Return the blocks of a sequence."""
        return self._tables[sequence].blocks

    def catch_up(self, sequence: Job) -> None:
        """Note the blocks of a sequence that has computed its tokens one by one while only their sum was kept."""
        self._tables[sequence].blocks = -(-sequence.computed // self._size)
        if sequence.content:
            self.hash_blocks(sequence, tokens=sequence.computed)

    def _keep(self, sequence: Job, own: int) -> None:
        """Keep blocks of its own; those of sequences that do not come back are one entry."""
        if sequence.known < sequence.end:
            self._last = None
            sequence.left = PrivateBlocks(own)
            self._kept[sequence.left] = None
        elif not self._kept:
            # they are the next to be taken after those that hold nothing, and as good
            self._fresh += own
        elif self._last is not None and self._last.blocks:
            self._last.blocks += own
        else:
            self._last = PrivateBlocks(own)
            self._kept[self._last] = None


class Writers(dict[int, list["Job"]]):
    """Running sequences whose output later prompts may hold, by the stream that they generate."""

    def add(self, job: Job) -> None:
        """Put in a sequence that generates a stream."""
        assert job.request.output_stream is not None
        self.setdefault(job.request.output_stream, []).append(job)

    def remove(self, job: Job) -> None:
        """Take out a sequence, if it is there."""
        stream = job.request.output_stream
        if stream is not None and stream in self:
            self[stream].remove(job)
            if not self[stream]:
                del self[stream]

    def of(self, job: Job) -> list[Job]:
        """Return those who generate a stream of a sequence's prompt."""
        streams = dict.fromkeys(segment.stream for segment in job.request.prompt)
        return [other for stream in streams for other in self.get(stream, ())]
