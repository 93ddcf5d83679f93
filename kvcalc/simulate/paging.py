"""The same requests served twice: with the longest length set aside for each, and with paged blocks.

A step makes one token for every running request; prompts are computed at once when a request is let in. Requests come
all at the beginning and are served in order, so that the memory is the limit and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.lessons import PagingReport, PagingScheme, PagingStep, SharingEvent
from kvcalc.core.requests import Segment
from kvcalc.core.units import ceil_div
from kvcalc.simulate.blocks import BlockPool, BlockTable, block_keys

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["copy_on_write", "paging_report", "sharing_events"]

_MOST_MEMORY = 10**7
_MOST_REQUESTS = 2000
_MOST_SHOWN = 100


@dataclass(slots=True, eq=False)
class _Running:
    """A request: tokens it has, and tokens it will have."""

    tokens: int
    final: int
    table: BlockTable


class _Memory(Protocol):
    """A way to hand out memory."""

    def admit(self, request: _Running) -> bool: ...
    def grow(self, request: _Running) -> bool: ...
    def release(self, request: _Running) -> None: ...
    def reserved(self, running: Sequence[_Running]) -> int: ...


class _Contiguous:
    """Each request gets the longest length in one piece."""

    def __init__(self, memory_tokens: int, longest: int) -> None:
        self.places, self.longest, self.taken = memory_tokens // longest, longest, 0

    def admit(self, request: _Running) -> bool:
        del request
        if self.taken == self.places:
            return False
        self.taken += 1
        return True

    def grow(self, request: _Running) -> bool:
        del request
        return True

    def release(self, request: _Running) -> None:
        del request
        self.taken -= 1

    def reserved(self, running: Sequence[_Running]) -> int:
        return len(running) * self.longest


class _Paged:
    """Each request gets a block when its last one is full."""

    def __init__(self, memory_tokens: int, block_tokens: int) -> None:
        self.pool = BlockPool(num_blocks=memory_tokens // block_tokens + 1, block_size=block_tokens)

    def admit(self, request: _Running) -> bool:
        if not self.pool.can_allocate((), tokens=request.tokens + 1):
            return False
        request.table = self.pool.allocate((), tokens=request.tokens)
        return True

    def grow(self, request: _Running) -> bool:
        if not self.pool.can_append(request.table, tokens=request.tokens):
            return False
        self.pool.append(request.table, tokens=request.tokens)
        return True

    def release(self, request: _Running) -> None:
        self.pool.deallocate(request.table)

    def reserved(self, running: Sequence[_Running]) -> int:
        del running
        return (self.pool.usable - self.pool.free) * self.pool.block_size


def _serve(name: str, memory: _Memory, requests: Sequence[tuple[int, int]]) -> tuple[list[PagingStep], int]:
    """Return the memory after each step, and how many requests were thrown out on the way."""
    waiting = [_Running(prompt, prompt + output, BlockTable()) for prompt, output in requests]
    running: list[_Running] = []
    steps: list[PagingStep] = []
    preempted = 0
    while waiting or running:
        while waiting and memory.admit(waiting[0]):
            running.append(waiting.pop(0))
        steps.append(
            PagingStep(
                scheme=name,
                place=len(steps),
                running_requests=len(running),
                waiting_requests=len(waiting),
                used_tokens=sum(request.tokens for request in running),
                reserved_tokens=memory.reserved(running),
            )
        )
        for request in list(running):
            if request not in running:
                continue
            request.tokens += 1
            while not memory.grow(request):
                # the latest to come gives its blocks back and is computed again, with what it has made so far
                last = running.pop()
                last.tokens -= last is request
                memory.release(last)
                waiting.insert(0, last)
                preempted += 1
                if last is request:
                    break
            if request in running and request.tokens >= request.final:
                memory.release(request)
                running.remove(request)
    return steps, preempted


def _scheme(name: str, steps: Sequence[PagingStep], preempted: int, memory_tokens: int) -> PagingScheme:
    pressed = [step for step in steps if step.waiting_requests] or list(steps)
    running = sum(step.running_requests for step in pressed)
    used = sum(step.used_tokens for step in pressed)
    reserved = sum(step.reserved_tokens for step in pressed)
    whole = memory_tokens * len(pressed)
    return PagingScheme(
        name=name,
        decode_steps=len(steps),
        mean_running_requests=running / len(pressed),
        most_running_requests=max(step.running_requests for step in steps),
        useful_share=used / whole,
        inside_share=(reserved - used) / whole,
        between_share=1 - reserved / whole,
        useful_share_of_reserved=used / reserved,
        mean_wasted_tokens=(reserved - used) / running,
        preempted_requests=preempted,
    )


def paging_report(
    lengths: Sequence[tuple[int, int]],
    *,
    memory_tokens: int = 32_768,
    block_tokens: int = 16,
    longest_tokens: int = 4096,
) -> PagingReport:
    """Serve requests twice, with memory set aside in one piece for each and in blocks.

    Args:
        lengths: prompt and output tokens of each request.
        memory_tokens: tokens that the memory holds.
        block_tokens: tokens of a block.
        longest_tokens: the longest length served, which the first way sets aside for each request.

    Raises:
        InputError: no requests, a memory that holds not even one, or a block longer than the longest length.
    """
    check_between("memory-tokens", memory_tokens, 1, _MOST_MEMORY)
    check_between("max-model-len", longest_tokens, 1, memory_tokens)
    check_between("block-size", block_tokens, 1, longest_tokens)
    if ceil_div(longest_tokens, block_tokens) > memory_tokens // block_tokens:
        raise InputError(
            f"blocks of {block_tokens:,} tokens, requests of up to {longest_tokens:,}, memory for {memory_tokens:,}",
            hint="the memory must hold one request in whole blocks",
        )
    if any(prompt < 1 or output < 1 for prompt, output in lengths):
        raise InputError("a request has at least one prompt token and makes at least one")
    served = [(prompt, output) for prompt, output in lengths if prompt + output <= longest_tokens]
    if len(served) > _MOST_REQUESTS:
        raise InputError(f"{len(served):,} requests are more than {_MOST_REQUESTS:,}")
    if not served:
        least = f"the shortest has {min(map(sum, lengths)):,}" if lengths else "there is none"
        raise InputError(f"no request has {longest_tokens:,} tokens or fewer: {least}")
    found: list[PagingScheme] = []
    shown: list[PagingStep] = []
    for name, memory in (("reserved", _Contiguous(memory_tokens, longest_tokens)),
                         ("paged", _Paged(memory_tokens, block_tokens))):  # fmt: skip
        steps, preempted = _serve(name, memory, served)
        found.append(_scheme(name, steps, preempted, memory_tokens))
        shown += steps[:: ceil_div(len(steps), _MOST_SHOWN)]
    reserved, paged = found
    return PagingReport(
        memory_tokens=memory_tokens,
        block_tokens=block_tokens,
        longest_tokens=longest_tokens,
        requests=len(served),
        refused_requests=len(lengths) - len(served),
        reserved=reserved,
        paged=paged,
        more_requests=paged.mean_running_requests / reserved.mean_running_requests,
        sharing=sharing_events(block_tokens=block_tokens),
        steps=tuple(shown),
    )


def copy_on_write(pool: BlockPool, table: BlockTable, place: int) -> int | None:
    """Give a sequence a block of its own in place of one that others own too, before it writes there.

    Returns:
        The new block; none where the sequence owns the block alone and may write to it.

    Source: Kwon et al. 2023, arXiv 2309.06180, section 4.4 (copy-on-write at the granularity of a block).
    """
    shared = table.blocks[place]
    if pool.owners(shared) == 1:
        return None
    own, given_up = BlockTable(), BlockTable()
    pool.append(own, tokens=1)
    given_up.blocks.append(shared)
    pool.deallocate(given_up)
    table.blocks[place] = own.blocks[0]
    return own.blocks[0]


def sharing_events(*, block_tokens: int = 16, samples: int = 3) -> tuple[SharingEvent, ...]:
    """Return what happens to blocks that several sequences share: samples of one prompt, and a prefix found again.

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
        held = tuple(tuple(table.blocks) for table in tables)
        alone = sum(map(len, held))
        events.append(SharingEvent(what=what, tables=held, blocks=pool.usable - pool.free, unshared_blocks=alone))

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
    found = f"a later request begins alike and finds {len(hit)} of its 3 blocks, {', '.join(map(str, hit))}"
    tell(f"all samples end; {found}")
    return tuple(events)
