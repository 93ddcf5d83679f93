"""Paged blocks: the order in which they are reused, and what a prefix finds."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.simulate.blocks import BlockPool, BlockTable, block_keys


def keys(stream: int, tokens: int) -> list[int]:
    return block_keys([Segment(stream, 0, tokens)], block_size=4)


def test_never_cached_blocks_are_reused_first_then_the_least_recently_used_from_its_end() -> None:
    pool = BlockPool(num_blocks=9, block_size=4)
    one, two = pool.allocate([], tokens=12), pool.allocate([], tokens=8)
    pool.hash_blocks(one, keys(1, 8))
    pool.hash_blocks(two, keys(2, 8))
    assert (one.blocks, two.blocks) == ([1, 2, 3], [4, 5])
    pool.deallocate(one)
    pool.deallocate(two)
    assert pool.free_order() == (3, 6, 7, 8, 2, 1, 5, 4)


def test_a_block_that_is_taken_again_is_found_no_more() -> None:
    pool = BlockPool(num_blocks=4, block_size=4)
    table = pool.allocate([], tokens=12)
    pool.hash_blocks(table, keys(1, 12))
    pool.deallocate(table)
    assert pool.find_prefix(keys(1, 12)) == [1, 2, 3]
    pool.allocate([], tokens=4)
    assert pool.find_prefix(keys(1, 12)) == [1, 2]
    assert pool.cached == 2


def test_a_hit_takes_the_copy_that_was_registered_first() -> None:
    pool = BlockPool(num_blocks=5, block_size=4)
    one, two = pool.allocate([], tokens=4), pool.allocate([], tokens=4)
    pool.hash_blocks(two, keys(1, 4))
    pool.hash_blocks(one, keys(1, 4))
    assert pool.find_prefix(keys(1, 4)) == two.blocks


def test_an_unowned_hit_counts_against_the_free_blocks() -> None:
    pool = BlockPool(num_blocks=4, block_size=4)
    table = pool.allocate([], tokens=8)
    pool.hash_blocks(table, keys(1, 8))
    hit = pool.find_prefix(keys(1, 8))
    assert pool.can_allocate(hit, tokens=12)
    assert not pool.can_allocate(hit, tokens=16)
    pool.deallocate(table)
    assert pool.can_allocate(hit, tokens=12)
    assert not pool.can_allocate(hit, tokens=12, spare=1)


def test_a_shared_block_is_free_when_its_last_owner_leaves() -> None:
    pool = BlockPool(num_blocks=6, block_size=4)
    one = pool.allocate([], tokens=4)
    pool.hash_blocks(one, keys(1, 4))
    two = pool.allocate(pool.find_prefix(keys(1, 4)), tokens=8)
    assert pool.owners(1) == 2
    assert pool.deallocate(one) == 0
    assert pool.deallocate(two) == 2


def test_keys_depend_on_all_tokens_before() -> None:
    assert keys(1, 8) == block_keys([Segment(1, 0, 3), Segment(1, 3, 5)], block_size=4)
    assert keys(1, 8)[1] != block_keys([Segment(2, 0, 4), Segment(1, 4, 4)], block_size=4)[1]
    assert block_keys([Segment(1, 0, 3)], block_size=4) == []


def test_what_cannot_be() -> None:
    with pytest.raises(InputError, match="a cache of 1 blocks"):
        BlockPool(num_blocks=1, block_size=16)
    pool = BlockPool(num_blocks=3, block_size=4)
    with pytest.raises(InputError, match="3 blocks are asked for, and 2 are free"):
        pool.append(BlockTable(), tokens=12)
