"""What a sequence keeps in each kind of group, block by block, and what a prefix may be found of."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.simulate.cache import BlockGroup, GroupedCache, PagedCache
from kvcalc.simulate.sequences import ServedSequence


def _sequence(tokens: int, *, stream: int = 1) -> ServedSequence:
    return ServedSequence(
        name="a", order=0, prompt_tokens=tokens, output_tokens=5, content=(Segment(stream, 0, tokens),)
    )


@pytest.mark.parametrize(("tokens", "cached"), [(31, 16), (32, 16), (33, 32), (48, 32), (16, 0)])
def test_one_token_at_least_is_computed_though_all_of_them_are_cached(tokens: int, cached: int) -> None:
    """The last token's output chooses the next one: a prompt of exactly two full blocks finds one of them."""
    cache = PagedCache(num_blocks=20, block_size=16, prefix_caching=True)
    first = _sequence(64)
    cache.allocate(first, (), tokens=64)
    cache.hash_blocks(first, tokens=64)
    hit, found = cache.find_prefix(_sequence(tokens))
    assert (len(hit) * 16, found) == (cached, cached)
    assert cache.find_prefix(_sequence(tokens, stream=2)) == ([], 0)


def test_only_full_blocks_are_kept_and_only_where_it_is_asked_for() -> None:
    for caching, kept in ((True, 1), (False, 0)):
        cache = PagedCache(num_blocks=20, block_size=16, prefix_caching=caching)
        first = _sequence(64)
        cache.allocate(first, (), tokens=31)
        cache.hash_blocks(first, tokens=31)
        assert cache.pool.cached == kept
        assert cache.find_prefix(_sequence(64))[1] == 16 * kept


@pytest.mark.parametrize(
    ("group", "computed", "tokens", "blocks"),
    [
        (BlockGroup(block_size=16), 100, 100, 7),
        (BlockGroup(block_size=16), 100, 112, 7),
        (BlockGroup(block_size=16), 100, 113, 8),
        # a window of 20 and 35 computed: the next token sees from token 16 on, so the first block is free
        (BlockGroup(block_size=16, window=20), 34, 35, 3),
        (BlockGroup(block_size=16, window=20), 35, 36, 2),
        (BlockGroup(block_size=16, window=20), 51, 52, 2),
        (BlockGroup(block_size=16, window=1), 16, 17, 1),
        # a chunk of 32: what came before it is free once it begins
        (BlockGroup(block_size=16, chunk=32), 31, 32, 2),
        (BlockGroup(block_size=16, chunk=32), 32, 33, 1),
        (BlockGroup(block_size=16, chunk=32), 63, 64, 2),
        (BlockGroup(block_size=16, constant=3), 1, 2, 3),
        (BlockGroup(block_size=16, constant=3), 1000, 1001, 3),
    ],
)
def test_a_sequence_keeps_what_its_next_token_sees(group: BlockGroup, computed: int, tokens: int, blocks: int) -> None:
    assert group.held(computed=computed, tokens=tokens) == blocks
    assert group.grows is (group.window is None and group.chunk is None and group.constant is None)


@pytest.mark.parametrize("window", [1, 16, 17, 20, 40])
def test_a_window_first_gives_a_block_back_when_it_has_left_it(window: int) -> None:
    group = BlockGroup(block_size=16, window=window)
    first = group.first_release
    assert (group.first_kept(first - 1), group.first_kept(first)) == (0, 1)


@pytest.mark.parametrize(
    ("admission", "tokens", "blocks"),
    [(None, 200, 13), (48, 200, 4), (48, 33, 3), (48, 16, 1), (64, 64, 4), (63, 200, 5)],
)
def test_an_admission_counts_on_a_window_and_a_block_that_it_touches(
    admission: int | None, tokens: int, blocks: int
) -> None:
    group = BlockGroup(block_size=16, window=32, admission_tokens=admission)
    assert group.admitted(tokens) == blocks


def test_groups_draw_from_one_pool_and_give_back_what_a_window_left() -> None:
    cache = GroupedCache(num_blocks=21, groups=[BlockGroup(block_size=16), BlockGroup(block_size=16, window=16)])
    sequence = _sequence(40)
    assert cache.usable == cache.free == 20
    cache.allocate(sequence, (), tokens=40)
    assert (cache.held_by(sequence), cache.free) == (6, 14)
    sequence.computed = 40
    # three blocks of all tokens; of the window tokens 25 to 40, so two blocks
    assert cache.missing(sequence, tokens=41) == -1
    cache.append(sequence, tokens=41)
    assert (cache.held_by(sequence), cache.free) == (5, 15)
    cache.deallocate(sequence)
    assert cache.free == 20


@pytest.mark.parametrize(
    ("tokens", "spare", "fits"), [(160, 0, True), (161, 0, False), (144, 1, True), (145, 1, False)]
)
def test_a_new_sequence_fits_with_its_blocks_and_those_to_spare(tokens: int, spare: int, *, fits: bool) -> None:
    for groups in ([BlockGroup(block_size=16)], [BlockGroup(block_size=16, constant=0), BlockGroup(block_size=16)]):
        cache = GroupedCache(num_blocks=11, groups=groups)
        assert cache.can_allocate((), tokens=tokens, spare=spare) is fits


@pytest.mark.parametrize(("blocks", "groups"), [(1, 1), (2, 0)])
def test_a_cache_of_nothing_is_refused(blocks: int, groups: int) -> None:
    with pytest.raises(InputError, match=f"a cache of {blocks} blocks in {groups} groups"):
        GroupedCache(num_blocks=blocks, groups=[BlockGroup(block_size=16)] * groups)
    assert GroupedCache(num_blocks=2, groups=[BlockGroup(block_size=16)]).usable == 1
