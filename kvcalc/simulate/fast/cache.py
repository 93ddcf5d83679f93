"""A cache that keeps prefixes, for a replica that jumps: blocks that nobody else can ask for are counted together.

It decides as `kvcalc.simulate.blocks.BlockPool` does. What it does without: numbers for blocks, an order among those
that hold nothing reusable, and an entry for each block that only its own sequence could ask for again. A sequence that
lost its blocks leaves them as one entry in the order of reuse, eaten up from its end.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.simulate.sequences import PrivateBlocks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.simulate.sequences import Job

__all__ = ["Hit", "PrefixCache", "Writers"]


class _Block:
    """A block that later prompts can find."""

    __slots__ = ("key", "owners")

    def __init__(self, key: int) -> None:
        self.key = key
        self.owners = 1


class _Table:
    """The blocks of a sequence.

    Attributes:
        blocks: how many.
        findable: blocks at its beginning that others could ask for; the rest are its own.
        registered: those of the findable ones that are registered for later.
    """

    __slots__ = ("blocks", "findable", "registered")

    def __init__(self, registered: Sequence[_Block], blocks: int, findable: int) -> None:
        self.registered = list(registered)
        self.blocks = blocks
        self.findable = findable


class Hit(NamedTuple):
    """Blocks that a waiting sequence could take up: findable ones, and private ones that it left."""

    blocks: Sequence[_Block] = ()
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
        # blocks without an owner that are kept, the first to be taken in front
        self._kept: OrderedDict[_Block | PrivateBlocks, None] = OrderedDict()
        self._cached: dict[int, dict[_Block, None]] = {}
        # the private blocks at the end of that order, if nobody comes back for them
        self._last: PrivateBlocks | None = None

    def find_prefix(self, sequence: Job) -> tuple[Hit, int]:
        """Find the prefix that a waiting sequence could take up, and its tokens."""
        self._before_lookup(sequence)
        full = (sequence.known - 1) // self._size
        if sequence.left is None and not sequence.content:
            return _NOTHING, 0
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
        owned = sum([block.owners > 0 for block in hit.blocks]) if hit.blocks else 0
        return -(-tokens // self._size) - owned + spare <= self.free

    def allocate(self, sequence: Job, hit: Hit, *, tokens: int) -> None:
        """Give a waiting sequence its blocks."""
        if hit is not _NOTHING:
            self._take_up(sequence, hit)
        findable = len(sequence.keys(self.usable, self._size)) if sequence.content else 0
        blocks = -(-tokens // self._size)
        self._tables[sequence] = _Table(hit.blocks, blocks, findable)
        self.take(blocks - len(hit.blocks) - hit.own)

    def _take_up(self, sequence: Job, hit: Hit) -> None:
        """Take the blocks of a hit out of the order in which they would be taken."""
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

    def give(self, sequence: Job, blocks: int) -> None:
        """Give a sequence blocks."""
        self._tables[sequence].blocks += blocks
        self.take(blocks)

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
                kept -= 1
                self._forget(first)
            del self._kept[first]

    def hash_blocks(self, sequence: Job, *, tokens: int) -> None:
        """Keep the full blocks among its first tokens for later prompts, those that others could ask for."""
        table = self._tables[sequence]
        if len(table.registered) < table.findable:
            for key in sequence.keys(tokens // self._size, self._size)[len(table.registered) :]:
                block = _Block(key)
                self._cached.setdefault(key, {})[block] = None
                table.registered.append(block)

    def deallocate(self, sequence: Job) -> None:
        """Take all its blocks, the last one first, and keep those that it has filled."""
        table = self._tables.pop(sequence)
        others = table.blocks - len(table.registered)
        own = max(sequence.computed // self._size - len(table.registered), 0)
        self._fresh += others - own
        self.free += others
        if own:
            self._keep(sequence, own)
        for block in reversed(table.registered):
            block.owners -= 1
            if not block.owners:
                self._kept[block] = self._last = None
                self.free += 1

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

    def _forget(self, block: _Block) -> None:
        blocks = self._cached[block.key]
        del blocks[block]
        if not blocks:
            del self._cached[block.key]


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
