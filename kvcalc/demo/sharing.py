"""Blocks that several sequences share, and copies of those that one of them writes to."""

from __future__ import annotations

from dataclasses import dataclass

from kvcalc.core.requests import Segment
from kvcalc.simulate.blocks import BlockPool, BlockTable, block_keys

__all__ = ["SharingEvent", "copy_on_write", "sharing_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingEvent:
    """One thing that happens to shared blocks.

    Args:
        what: in words.
        tables: the block table of each sequence afterwards.
        blocks: blocks that have an owner.
        unshared_blocks: blocks that the same sequences would take without sharing.
    """

    what: str
    tables: tuple[tuple[int, ...], ...]
    blocks: int
    unshared_blocks: int

    def cells(self) -> list[str]:
        """Return the row of a table."""
        tables = "  ".join(f"[{' '.join(map(str, table))}]" for table in self.tables)
        return [self.what, f"{self.blocks} of {self.unshared_blocks}", tables]


def copy_on_write(pool: BlockPool, table: BlockTable, index: int) -> int | None:
    """Give a sequence a block of its own in place of one that others own too, before it writes there.

    Returns:
        The new block; none where the sequence owns the block alone and may write to it.

    Source: Kwon et al. 2023, arXiv 2309.06180, section 4.4 (copy-on-write at the granularity of a block).
    """
    shared = table.blocks[index]
    if pool.owners(shared) == 1:
        return None
    own, given_up = BlockTable(), BlockTable()
    pool.append(own, tokens=1)
    given_up.blocks.append(shared)
    pool.deallocate(given_up)
    table.blocks[index] = own.blocks[0]
    return own.blocks[0]


def sharing_events(*, block_tokens: int = 16, samples: int = 3) -> tuple[SharingEvent, ...]:
    """Trace the blocks that several sequences share: samples of one prompt, and a prefix found again.

    The prompt fills two blocks and half of a third. Its samples own all three; each that writes into the third gets a
    copy of it, until the last owns the original alone. Later a request with the same first two blocks finds them.
    Blocks of one token are full as soon as they are taken, so that a sample writes into a block of its own.
    """
    part = block_tokens // 2
    prompt = 2 * block_tokens + part
    pool = BlockPool(num_blocks=8 + 4 * samples, block_size=block_tokens)
    stream = Segment(0, 0, prompt)
    first = pool.allocate((), tokens=prompt)
    pool.hash_blocks(first, block_keys([stream], block_size=block_tokens))
    tables = [first]
    events: list[SharingEvent] = []

    def tell(what: str) -> None:
        copies = tuple(tuple(table.blocks) for table in tables)
        unshared = sum(map(len, copies))
        events.append(SharingEvent(what=what, tables=copies, blocks=pool.usable - pool.free, unshared_blocks=unshared))

    filled = f"{len(first.blocks)} blocks of {block_tokens}" + (f", with {part} tokens in the last" if part else "")
    tell(f"a prompt of {prompt} tokens takes {filled}")
    tables += [pool.allocate(first.blocks, tokens=prompt) for _ in range(samples - 1)]
    tell(f"{samples} samples of it own the same blocks")
    for number, table in enumerate(tables, 1):
        if not part:
            pool.append(table, tokens=prompt + 1)
            tell(f"sample {number} writes: the shared blocks are full, so it takes {table.blocks[-1]}")
            continue
        shared = table.blocks[2]
        copied = copy_on_write(pool, table, 2)
        tell(f"sample {number} writes: " + (f"it owns block {shared} alone by now" if copied is None
             else f"block {shared} has other owners, so it is copied to {copied}"))  # fmt: skip
    for table in tables:
        pool.deallocate(table)
    tables = []
    keys = block_keys([Segment(0, 0, 2 * block_tokens), Segment(1, 0, block_tokens)], block_size=block_tokens)
    hit = pool.find_prefix(keys)
    tables.append(pool.allocate(hit, tokens=3 * block_tokens))
    later = f"a later request begins alike and finds {len(hit)} of its 3 blocks, {', '.join(map(str, hit))}"
    tell(f"all samples end; {later}")
    return tuple(events)
