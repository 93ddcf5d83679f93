"""The paging demonstration: published ranges that come out of the simulation, and shared blocks."""

import pytest

import kvcalc
from kvcalc.demo.paging import CONVERSATIONS
from kvcalc.demo.sharing import copy_on_write, sharing_events
from kvcalc.simulate.blocks import BlockPool, BlockTable


@pytest.mark.parametrize("memory", [16_384, 32_768])
def test_real_lengths_give_the_published_ranges(memory):
    report = kvcalc.demo_paging(memory_tokens=memory)
    assert 0.2 < report.reserved.useful_share_of_reserved < 0.4
    assert report.paged.useful_share > 0.9
    assert report.paged.mean_wasted_tokens < report.block_tokens
    assert 2 <= report.more_requests <= 4
    assert report.paged.decode_steps < report.reserved.decode_steps / 2


def test_memory_is_useful_wasted_inside_or_between():
    report = kvcalc.demo_paging(memory_tokens=30_000)
    for scheme in (report.reserved, report.paged):
        assert scheme.useful_share + scheme.inside_share + scheme.between_share == pytest.approx(1)
        assert min(scheme.useful_share, scheme.inside_share, scheme.between_share) >= 0
    # seven requests of 4,096 leave 1,328 of 30,000 tokens that no eighth fits into
    assert report.reserved.most_running_requests == 7
    assert report.reserved.between_share == pytest.approx(1328 / 30_000)


def test_every_step_adds_up():
    report = kvcalc.demo_paging(memory_tokens=20_000)
    for step in report.steps:
        assert step.used_tokens <= step.reserved_tokens <= report.memory_tokens
        slack = step.reserved_tokens - step.used_tokens
        if step.scheme == "paged":
            assert slack < report.block_tokens * max(1, step.running_requests)
        else:
            assert step.reserved_tokens == step.running_requests * report.longest_tokens


def test_one_request_at_a_time_takes_a_step_a_token():
    report = kvcalc.demo_paging(lengths=[(10, 6), (10, 4)], memory_tokens=16, block_tokens=4, longest_tokens=16)
    assert report.reserved.decode_steps == 6 + 4
    assert report.paged.decode_steps == 6 + 4
    assert report.reserved.most_running_requests == report.paged.most_running_requests == 1


def test_all_at_once_take_the_steps_of_the_longest():
    report = kvcalc.demo_paging(lengths=[(10, 6), (3, 4)], memory_tokens=64, block_tokens=4, longest_tokens=16)
    assert report.reserved.decode_steps == report.paged.decode_steps == 6
    assert report.more_requests == 1


def test_who_is_thrown_out_is_served_in_the_end():
    report = kvcalc.demo_paging(lengths=[(8, 8), (8, 8)], memory_tokens=20, block_tokens=4, longest_tokens=16)
    assert report.paged.preempted_requests == 1
    # there is no block for the second one's first token: it waits until the other is done
    assert report.paged.decode_steps == 8 + 8
    assert report.steps[-1].waiting_requests == 0


def test_a_sample_that_writes_into_a_shared_block_gets_a_copy():
    pool = BlockPool(num_blocks=10, block_size=4)
    one = pool.allocate((), tokens=6)
    other = pool.allocate(one.blocks, tokens=6)
    assert other.blocks == one.blocks
    assert pool.usable - pool.free == 2
    shared = one.blocks[1]
    copied = copy_on_write(pool, one, 1)
    assert copied not in (None, shared)
    assert one.blocks == [other.blocks[0], copied]
    assert (pool.owners(shared), pool.owners(copied)) == (1, 1)
    assert copy_on_write(pool, other, 1) is None
    assert other.blocks[1] == shared
    pool.deallocate(one)
    pool.deallocate(other)
    assert pool.free == pool.usable


def test_a_copy_needs_a_free_block():
    pool = BlockPool(num_blocks=3, block_size=4)
    one = pool.allocate((), tokens=8)
    pool.allocate(one.blocks, tokens=8)
    with pytest.raises(kvcalc.InputError, match="are free"):
        copy_on_write(pool, one, 1)


def test_samples_share_all_but_the_last_block_and_a_later_prompt_finds_the_full_ones():
    events = sharing_events(block_tokens=16, samples=3)
    assert [event.blocks for event in events] == [3, 3, 4, 5, 5, 3]
    assert events[-2].unshared_blocks == 9
    last = events[-2].tables
    assert len({table[:2] for table in last}) == 1
    assert len({table[2] for table in last}) == 3
    assert "finds 2 of its 3 blocks" in events[-1].what
    assert events[-1].tables[0][:2] == events[0].tables[0][:2]


def test_an_empty_table_has_nothing_to_copy():
    with pytest.raises(IndexError):
        copy_on_write(BlockPool(num_blocks=3, block_size=4), BlockTable(), 0)


@pytest.mark.parametrize(
    "asked",
    [
        {"block_tokens": 0},
        {"longest_tokens": 8, "block_tokens": 16},
        {"memory_tokens": 100},
        {"memory_tokens": 10**9},
        {"lengths": []},
        {"lengths": [(5000, 1)]},
        {"longest_tokens": 16},
        {"lengths": [(10, 4)], "memory_tokens": 20, "longest_tokens": 20},
        {"lengths": [(10, 0)]},
        {"lengths": [(0, 4)]},
    ],
)
def test_what_holds_no_request_is_refused(asked):
    with pytest.raises(kvcalc.InputError):
        kvcalc.demo_paging(**asked)


def test_requests_longer_than_the_longest_are_refused_and_counted():
    report = kvcalc.demo_paging()
    assert report.requests + report.refused_requests == len(CONVERSATIONS) == 80
    assert report.refused_requests == sum(prompt + output > 4096 for prompt, output in CONVERSATIONS)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"block_tokens": 0}, "block-size must be from 1 to 4,096, not 0"),
        ({"longest_tokens": 1}, "block-size must be from 1 to 1, not 16"),
        ({"longest_tokens": 16}, "no request has 16 tokens or fewer: the shortest has 132"),
        ({"memory_tokens": 100}, "max-model-len must be from 1 to 100, not 4,096"),
        ({"memory_tokens": 10**8}, "memory-tokens must be from 1 to 10,000,000"),
        ({"memory_tokens": 4097, "block_tokens": 4000}, "blocks of 4,000 tokens"),
        ({"lengths": []}, "there is none"),
    ],
)
def test_a_refusal_names_what_is_wrong(asked, says):
    with pytest.raises(kvcalc.InputError, match=says):
        kvcalc.demo_paging(**asked)


@pytest.mark.parametrize("block", [1, 2, 3, 16])
def test_only_a_block_with_room_is_copied(block):
    events = sharing_events(block_tokens=block, samples=3)
    first = events[0]
    prompt = 2 * block + block // 2
    assert first.what.startswith(f"a prompt of {prompt} tokens takes {first.blocks} blocks of {block}")
    assert first.blocks == -(-prompt // block)
    assert any("copied" in event.what for event in events) == (block > 1)
    written = events[-2]
    assert len({table[-1] for table in written.tables}) == 3
    assert {table[:2] for table in written.tables} == {first.tables[0][:2]}


def test_the_shipped_lengths_stay_what_they_were_in_the_trace():
    """Sums of 80 conversations of the trace, and a third that tells which number stands where."""
    prompts, outputs = zip(*CONVERSATIONS, strict=True)
    assert (len(prompts), sum(prompts), sum(outputs)) == (80, 97_892, 19_848)
    assert sum(index * prompt + output for index, (prompt, output) in enumerate(CONVERSATIONS)) == 3_735_253
