"""The size of a cache as vLLM prints it: blocks, tokens and requests, from the memory or from each other."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from kvcalc.engines.vllm.releases import printed_tokens
from kvcalc.plan.reconcile.findings import Finding, bytes_of_gib
from kvcalc.plan.reconcile.layouts import setup_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcalc.engines.logs import Printed, StartUp
    from kvcalc.engines.vllm import Layout
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["blocks_of", "concurrency", "memory_range", "pool_findings", "tokens_bytes"]

# Steps from a quotient to the block count that floating-point numbers make of it.
_MAX_STEPS = 16
# Room for the rounding of floating-point numbers, as a share of a block.
_SLACK = 2e-6


def memory_range(start_up: StartUp) -> tuple[int, int] | None:
    """Return the fewest and the most bytes of the rank that decides, where its memory was printed."""
    printed = start_up.smallest("available_kv_gib")
    return None if printed is None else bytes_of_gib(printed)


def tokens_bytes(setup: Setup, tokens: int) -> int:
    """Return the fewest bytes of a rank's cache for which the engine prints so many tokens."""
    placed = setup_layout(setup, stage=True)
    return blocks_of(setup, placed, tokens)[0] * placed.bytes_per_block


def pool_findings(setup: Setup, placed: Layout, start_up: StartUp) -> Iterator[Finding]:
    """Yield blocks, tokens and concurrency, from the memory or from each other."""
    memory = memory_range(start_up)
    blocks, tokens = start_up.smallest("gpu_blocks"), start_up.smallest("kv_cache_tokens")
    block_range: tuple[int, int] | None = None
    if memory is not None:
        block_range = memory[0] // placed.bytes_per_block, memory[1] // placed.bytes_per_block
        if blocks is not None:
            reason = f"memory // {placed.bytes_per_block:,} B of a block"
            yield Finding(
                quantity="gpu_blocks",
                printed=blocks,
                least=block_range[0],
                most=block_range[1],
                value=sum(block_range) // 2,
                reason=reason,
            )
    overridden = start_up.count("num_gpu_blocks_override")
    if overridden is not None:
        block_range = overridden, overridden
    elif blocks is not None:
        block_range = _narrowed(block_range, (int(blocks.value), int(blocks.value)))
    if tokens is not None:
        if block_range is not None:
            yield _tokens(setup, placed, tokens, block_range)
        block_range = _narrowed(block_range, blocks_of(setup, placed, int(tokens.value)))
    requests = start_up.smallest("max_concurrency")
    if requests is not None and block_range is not None:
        yield _requests(setup, placed, requests, block_range)


def _tokens(setup: Setup, placed: Layout, printed: Printed, block_range: tuple[int, int]) -> Finding:
    """Return the tokens of so many blocks; blocks are whole, so that only some counts can be printed."""
    count = partial(printed_tokens, placed, by_concurrency=setup.by_concurrency)
    low, high = map(count, block_range)
    number, (fewest, _) = int(printed.value), blocks_of(setup, placed, int(printed.value))
    impossible = ""
    if count(fewest) != number:
        step = -1 if setup.by_concurrency else len(placed.groups)
        below, above = sorted((count(max(0, fewest)), count(max(0, fewest + step))))
        impossible = f"no whole number of blocks gives {number:,} tokens; nearest: {below:,} and {above:,}"
    return Finding(
        quantity="kv_cache_tokens",
        printed=printed,
        least=low,
        most=high,
        value=count(sum(block_range) // 2),
        reason=_token_reason(setup, placed),
        impossible=impossible,
    )


def _requests(setup: Setup, placed: Layout, printed: Printed, block_range: tuple[int, int]) -> Finding:
    """Return the requests of the longest length that so many blocks hold."""
    fewest, middle, largest = (
        concurrency(setup, placed, count) for count in (block_range[0], sum(block_range) // 2, block_range[1])
    )
    each = concurrency(setup, placed, 1)
    # whole blocks between the ends of the printed digits
    inside = (
        max(block_range[0], math.ceil(printed.least / each - _SLACK)),
        min(block_range[1], int(printed.most / each + _SLACK)),
    )
    meets = fewest <= printed.most and printed.least <= largest
    return Finding(
        quantity="max_concurrency",
        printed=printed,
        least=fewest,
        most=largest,
        value=middle,
        reason=f"blocks / {placed.needed_blocks:,} of a request of {placed.max_model_len:,} tokens",
        impossible=f"no whole number of blocks gives {printed.value} requests"
        if meets and inside[0] > inside[1]
        else "",
    )


def _narrowed(known: tuple[int, int] | None, other: tuple[int, int]) -> tuple[int, int]:
    """Intersect two intervals; the first where they have nothing in common."""
    if known is None:
        return other
    low, high = max(known[0], other[0]), min(known[1], other[1])
    return (low, high) if low <= high else known


def _token_reason(setup: Setup, placed: Layout) -> str:
    if setup.by_concurrency:
        return f"concurrency x {placed.max_model_len:,}; {placed.bytes_per_block:,} B a block"
    groups = f" // {len(placed.groups)} groups" if len(placed.groups) > 1 else ""
    return f"blocks of {placed.bytes_per_block:,} B{groups} x {placed.block_size:,} tokens"


def blocks_of(setup: Setup, placed: Layout, tokens: int) -> tuple[int, int]:
    """Return the fewest and the most blocks for which so many tokens are printed."""
    if not setup.by_concurrency:
        groups = len(placed.groups)
        low = tokens // placed.block_size * groups
        return low, low + groups - 1
    near = tokens * placed.needed_blocks // placed.max_model_len
    count = partial(printed_tokens, placed, by_concurrency=True)
    low, high = _edge(count, near, tokens), _edge(count, near, tokens + 1) - 1
    return low, max(low, high)


def _edge(count: Callable[[int], int], near: int, tokens: int) -> int:
    """Return the fewest blocks that give at least so many tokens."""
    start = max(0, near - 2)
    return next((blocks for blocks in range(start, start + _MAX_STEPS) if count(blocks) >= tokens), start)


def concurrency(setup: Setup, placed: Layout, blocks: int) -> float:
    """Return the requests of the longest length that so many blocks hold, as the engine counts them."""
    if setup.first_engine:
        return blocks * placed.block_size / placed.max_model_len
    return blocks / placed.needed_blocks
