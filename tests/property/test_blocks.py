"""Whatever is asked of a pool of blocks, none is lost, none is owned by two who do not share it, and all come back."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvcalc.core.requests import Segment
from kvcalc.simulate.blocks import BlockPool, BlockTable, block_keys

SIZE = 4
BLOCKS = 14


class Pool(RuleBasedStateMachine):
    """Sequences that come, grow, share beginnings and go."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(num_blocks=BLOCKS, block_size=SIZE)
        self.held: list[tuple[BlockTable, list[int], int]] = []

    @rule(stream=st.integers(0, 2), tokens=st.integers(1, 20), prefix=st.integers(0, 12))
    def admit(self, stream: int, tokens: int, prefix: int) -> None:
        keys = block_keys([Segment(9, 0, prefix), Segment(stream, 0, 100)], block_size=SIZE)
        hit = self.pool.find_prefix(keys[: (tokens - 1) // SIZE])
        if not self.pool.can_allocate(hit, tokens=tokens):
            return
        free, unowned = self.pool.free, sum(not self.pool.owners(block) for block in hit)
        table = self.pool.allocate(hit, tokens=tokens)
        assert len(table) == -(-tokens // SIZE)
        assert free - self.pool.free == len(table) - len(hit) + unowned
        self.held.append((table, keys, tokens))

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100), tokens=st.integers(1, 6))
    def grow(self, index: int, tokens: int) -> None:
        index %= len(self.held)
        table, keys, before = self.held[index]
        if self.pool.can_append(table, tokens=before + tokens):
            self.pool.append(table, tokens=before + tokens)
            self.held[index] = (table, keys, before + tokens)

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100))
    def register(self, index: int) -> None:
        table, keys, tokens = self.held[index % len(self.held)]
        self.pool.hash_blocks(table, keys[: tokens // SIZE])
        assert len(self.pool.find_prefix(keys[: tokens // SIZE])) == len(keys[: tokens // SIZE])

    @precondition(lambda self: self.held)
    @rule(index=st.integers(0, 100))
    def leave(self, index: int) -> None:
        table, _, _ = self.held.pop(index % len(self.held))
        free, released = self.pool.free, self.pool.deallocate(table)
        assert self.pool.free == free + released
        assert not len(table)

    @invariant()
    def every_block_is_owned_as_often_as_it_is_held(self) -> None:
        owners = Counter(block for table, _, _ in self.held for block in table.blocks)
        assert all(self.pool.owners(block) == owners[block] for block in range(1, BLOCKS))
        assert 0 not in owners
        free = self.pool.free_order()
        assert len(set(free)) == len(free) == self.pool.free
        assert set(free) == set(range(1, BLOCKS)) - set(owners)

    @invariant()
    def sequences_hold_what_they_need(self) -> None:
        assert all(len(table) == -(-tokens // SIZE) for table, _, tokens in self.held)

    def teardown(self) -> None:
        while self.held:
            self.leave(0)
        assert self.pool.free == self.pool.usable


TestPool = Pool.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
