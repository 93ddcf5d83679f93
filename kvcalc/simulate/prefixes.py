"""Prefixes that a cache holds: a radix tree of runs of blocks, so that a long prompt costs no more than a short one.

A node is a run of blocks that hold consecutive tokens of one stream (or one block that holds tokens of several) after
all that its parents hold. Sequences that computed the same blocks side by side have a copy each. A copy is owned, found
and given up as a whole; where that ends inside of a run, the run is split there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.requests import Segment

__all__ = ["ContentRun", "Copy", "Left", "Part", "PrefixTree", "Reading", "content_runs"]


class ContentRun(NamedTuple):
    """Full blocks of a sequence.

    Args:
        content: stream and place of the first token; of a single block that holds several stretches of tokens, stream,
            place and tokens of each.
        blocks: how many.
    """

    content: tuple[int, ...]
    blocks: int


def content_runs(segments: Iterable[Segment], *, block_size: int) -> tuple[ContentRun, ...]:
    """Return the contents of a sequence's full blocks; sequences that begin with equal runs begin with equal tokens.

    >>> from kvcalc.core.requests import Segment
    >>> content_runs([Segment(1, 0, 40), Segment(1, 40, 8), Segment(2, 0, 40)], block_size=16)
    (ContentRun(content=(1, 0), blocks=3), ContentRun(content=(2, 0), blocks=2))
    >>> content_runs([Segment(1, 0, 40), Segment(2, 0, 24)], block_size=16)[1:]
    (ContentRun(content=(1, 32, 8, 2, 0, 8), blocks=1), ContentRun(content=(2, 8), blocks=1))
    """
    runs: list[ContentRun] = []
    mixed: list[int] = []
    room = block_size
    for stream, start, tokens in _joined(segments):
        first, left = start, tokens
        if mixed:
            taken = min(left, room)
            mixed += (stream, first, taken)
            first, left, room = first + taken, left - taken, room - taken
            if room:
                continue
            runs.append(ContentRun(tuple(mixed), 1))
            mixed, room = [], block_size
        blocks, rest = divmod(left, block_size)
        if blocks:
            runs.append(ContentRun((stream, first), blocks))
        if rest:
            mixed, room = [stream, first + blocks * block_size, rest], block_size - rest
    return tuple(runs)


def _joined(segments: Iterable[Segment]) -> list[tuple[int, int, int]]:
    """Return segments as (stream, start, tokens), those that go on where the one before ends joined to it."""
    joined: list[tuple[int, int, int]] = []
    for stream, start, tokens in segments:
        if joined and joined[-1][0] == stream and joined[-1][1] + joined[-1][2] == start:
            joined[-1] = (stream, joined[-1][1], joined[-1][2] + tokens)
        elif tokens:
            joined.append((stream, start, tokens))
    return joined


class _Node:
    """A run of blocks, and the copies of it in the order in which they were registered."""

    __slots__ = ("blocks", "children", "content", "copies", "parent")

    def __init__(self, parent: _Node | None, content: tuple[int, ...], blocks: int) -> None:
        self.parent = parent
        self.content = content
        self.blocks = blocks
        self.children: dict[tuple[int, ...], _Node] = {}
        self.copies: list[Copy] = []


class Copy:
    """The blocks of a run that one sequence has computed.

    Attributes:
        node: its run.
        owners: sequences that own it.
        left: where it lies while it has no owner.
        rest: what was split off at its end, for owners from before that.
    """

    __slots__ = ("left", "node", "owners", "rest")

    def __init__(self, node: _Node, owners: int, rest: Copy | None = None) -> None:
        self.node = node
        self.owners = owners
        self.left: Left | None = None
        self.rest = rest


class Left:
    """The copies without an owner that a sequence left together, in order; they are given up from the end."""

    __slots__ = ("copies",)

    def __init__(self) -> None:
        self.copies: list[Copy] = []


# Some of the blocks of a copy, from its first on; a sequence that owns more than the copy has what was split off too.
Part = tuple[Copy, int]


class Reading:
    """The registered beginning of a sequence's content.

    Args:
        runs: its content.
        parts: what it found in the tree, from the beginning on.

    Attributes:
        blocks: registered blocks.
    """

    __slots__ = ("_index", "_offset", "blocks", "parts", "runs")

    def __init__(self, runs: Sequence[ContentRun], parts: Iterable[Part] = ()) -> None:
        self.runs = runs
        self.parts = list(parts)
        self.blocks = self._index = self._offset = 0
        for _, blocks in self.parts:
            self.move(blocks)

    def move(self, blocks: int) -> None:
        """Go on by some blocks of the run that it is in."""
        self.blocks += blocks
        self._offset += blocks
        if self._offset == self.runs[self._index].blocks:
            self._index, self._offset = self._index + 1, 0

    def next_run(self, block_size: int) -> tuple[tuple[int, ...], int, bool]:
        """Return the next block's content, the blocks left of its run, and whether some of the run came before."""
        content, blocks = self.runs[self._index]
        if not self._offset:
            return content, blocks, False
        return (content[0], content[1] + self._offset * block_size), blocks - self._offset, True

    def end(self) -> Copy | None:
        """Return the copy that ends where it is; nothing at the beginning."""
        if not self.parts:
            return None
        copy, blocks = self.parts[-1]
        while blocks > copy.node.blocks:
            blocks -= copy.node.blocks
            assert copy.rest is not None
            copy = copy.rest
        return copy


class PrefixTree:
    """Runs of blocks that later prompts can find.

    Args:
        block_size: tokens of a block.
    """

    def __init__(self, *, block_size: int) -> None:
        self._size = block_size
        self._root = _Node(None, (), 0)

    def find(self, runs: Sequence[ContentRun], max_blocks: int) -> tuple[list[Part], int]:
        """Return the longest cached prefix of at most some blocks: the first copy of each run, and the blocks found."""
        parts: list[Part] = []
        matched_blocks = offset = index = 0
        children = self._root.children
        while matched_blocks < max_blocks:
            content, blocks = runs[index]
            node = children.get((content[0], content[1] + offset * self._size) if offset else content)
            if node is None:
                break
            shared = min(node.blocks, blocks - offset, max_blocks - matched_blocks)
            parts.append((node.copies[0], shared))
            matched_blocks += shared
            if shared < node.blocks:
                break
            offset += shared
            if offset == blocks:
                index, offset = index + 1, 0
            children = node.children
        return parts, matched_blocks

    def own(self, part: Part) -> Left | None:
        """Let one more sequence own a part of a copy, and return where it lay if it had no owner before."""
        copy, blocks = part
        if blocks < copy.node.blocks:
            self._split(copy.node, blocks)
        copy.owners += 1
        left, copy.left = copy.left, None
        if left is not None:
            left.copies.remove(copy)
        return left

    def register(self, reading: Reading, blocks: int) -> None:
        """Register a sequence's blocks up to so many; they are its own."""
        while reading.blocks < blocks:
            content, left, goes_on = reading.next_run(self._size)
            more = min(left, blocks - reading.blocks)
            last = reading.end()
            parent = self._root if last is None else last.node
            node = parent.children.get(content)
            if node is None and last is not None and goes_on and last.owners == 1 and _is_alone(parent):
                parent.blocks += more
                reading.parts[-1] = (reading.parts[-1][0], reading.parts[-1][1] + more)
                reading.move(more)
                continue
            if node is None:
                node = parent.children[content] = _Node(parent, content, more)
            elif node.blocks > more:
                node = self._split(node, more)
            copy = Copy(node, owners=1)
            node.copies.append(copy)
            reading.parts.append((copy, node.blocks))
            reading.move(node.blocks)

    def release(self, reading: Reading) -> tuple[Left, int]:
        """Take a sequence's blocks, and return the copies without an owner now, and the number of their blocks."""
        left, freed = Left(), 0
        for part, blocks in reading.parts:
            copy, rest = part, blocks
            while True:
                size = copy.node.blocks
                copy.owners -= 1
                if not copy.owners:
                    copy.left = left
                    left.copies.append(copy)
                    freed += size
                rest -= size
                if not rest:
                    break
                assert copy.rest is not None
                copy = copy.rest
        return left, freed

    def evict(self, left: Left, blocks: int) -> int:
        """Give up a number of blocks, or all, that a sequence left, the last first; return the number given up."""
        evicted = 0
        while left.copies and evicted < blocks:
            node, wanted = left.copies[-1].node, blocks - evicted
            if node.blocks > wanted:
                if len(node.copies) == 1:
                    node.blocks -= wanted
                    return blocks
                self._split(node, node.blocks - wanted)
            copy = left.copies.pop()
            node = copy.node
            evicted += node.blocks
            node.copies.remove(copy)
            if not node.copies and node.parent is not None:
                del node.parent.children[node.content]
        return evicted

    def _split(self, node: _Node, blocks: int) -> _Node:
        """Split a run after some blocks, and return its beginning; copies stay those of the beginning."""
        assert node.parent is not None
        head = _Node(node.parent, node.content, blocks)
        node.parent.children[node.content] = head
        node.parent, node.blocks = head, node.blocks - blocks
        node.content = (node.content[0], node.content[1] + blocks * self._size)
        head.children[node.content] = node
        head.copies, node.copies = node.copies, []
        for copy in head.copies:
            copy.node = head
            copy.rest = rest = Copy(node, copy.owners, copy.rest)
            node.copies.append(rest)
            if copy.left is not None:
                copy.left.copies.insert(copy.left.copies.index(copy) + 1, rest)
                rest.left = copy.left
        return head


def _is_alone(node: _Node) -> bool:
    """Whether a run has one copy, and nothing comes after it."""
    return len(node.copies) == 1 and not node.children
