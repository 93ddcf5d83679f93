"""The policy at its edges: the last free block, the watermark, slots for drafts, and steps padded to a verification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.simulate.cache import PagedCache
from kvcalc.simulate.scheduler import Limits, Scheduler, Step
from kvcalc.simulate.sequences import ServedSequence

LIMITS = Limits(max_num_batched_tokens=1000, max_num_seqs=8, max_model_len=1000)
BLOCK = 16


def _scheduler(blocks: int, **limits: Any) -> Scheduler[ServedSequence]:
    """A scheduler with so many blocks that can have an owner."""
    cache = PagedCache(num_blocks=blocks + 1, block_size=BLOCK, prefix_caching=limits.get("prefix_caching", False))
    return Scheduler(replace(LIMITS, **limits), cache)


def _asked(name: str, prompt: int, output: int = 10, **keys: Any) -> ServedSequence:
    return ServedSequence(name=name, order=ord(name), prompt_tokens=prompt, output_tokens=output, **keys)


def _submit(scheduler: Scheduler[ServedSequence], *sequences: ServedSequence) -> Step[ServedSequence]:
    for sequence in sequences:
        scheduler.submit(sequence)
    return scheduler.schedule()


def _tokens(step: Step[ServedSequence]) -> dict[str, int]:
    return {sequence.name: tokens for sequence, tokens in step.scheduled.items()}


@pytest.mark.parametrize(("prompt", "admitted"), [(3 * BLOCK, True), (3 * BLOCK + 1, False)])
def test_the_last_free_block_is_given_out_and_no_block_more(prompt: int, *, admitted: bool) -> None:
    step = _submit(_scheduler(3), _asked("a", prompt))
    assert bool(step.new) is admitted


@pytest.mark.parametrize("name", ["max_num_batched_tokens", "max_num_seqs", "max_model_len", "in_flight_batches"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    assert getattr(replace(LIMITS, **{name: 1}), name) == 1
    with pytest.raises(InputError, match="must be 1 or more, not 0"):
        replace(LIMITS, **{name: 0})


@pytest.mark.parametrize(
    "name", ["long_prefill_token_threshold", "watermark_blocks", "speculative_tokens", "lookahead_tokens"]
)
def test_less_than_nothing_is_refused(name: str) -> None:
    assert getattr(replace(LIMITS, **{name: 0}), name) == 0
    with pytest.raises(InputError, match="must be 0 or more, not -1"):
        replace(LIMITS, **{name: -1})


@pytest.mark.parametrize(("watermark", "admitted"), [(2, ["a", "b"]), (3, ["a"])])
def test_an_admission_leaves_the_watermark_free_while_others_run(watermark: int, admitted: list[str]) -> None:
    """Of six blocks two run and two are asked for: two stay free, so a watermark of three is crossed."""
    step = _submit(_scheduler(6, watermark_blocks=watermark), _asked("a", 2 * BLOCK), _asked("b", 2 * BLOCK))
    assert [sequence.name for sequence in step.new] == admitted


def test_the_watermark_keeps_nobody_out_of_an_empty_engine() -> None:
    assert _submit(_scheduler(4, watermark_blocks=2), _asked("a", 4 * BLOCK)).new


@pytest.mark.parametrize(("reserve", "admitted"), [(True, ["a"]), (False, ["a", "b"])])
def test_a_prompt_that_runs_in_chunks_is_admitted_whole_or_chunk_by_chunk(
    *, reserve: bool, admitted: list[str]
) -> None:
    limits = {"max_num_batched_tokens": BLOCK + BLOCK // 2, "reserve_full_prompt": reserve}
    step = _submit(_scheduler(3, **limits), _asked("a", BLOCK), _asked("b", 3 * BLOCK))
    assert [sequence.name for sequence in step.new] == admitted
    assert _tokens(step).get("b", BLOCK // 2) == BLOCK // 2


@pytest.mark.parametrize(("lookahead", "blocks"), [(0, 1), (4, 1), (5, 2), (21, 3)])
def test_a_drafter_gets_its_slots_beyond_the_tokens_of_the_step(lookahead: int, blocks: int) -> None:
    """12 tokens and 4 slots fill a block of 16; the fifth slot takes a second block, at admission and later alike."""
    scheduler = _scheduler(10, lookahead_tokens=lookahead)
    _submit(scheduler, _asked("a", 12))
    assert 10 - scheduler.cache.free == blocks


def test_slots_of_a_running_sequence_are_taken_ahead_and_end_at_the_longest_length() -> None:
    scheduler = _scheduler(10, lookahead_tokens=4)
    step = _submit(scheduler, _asked("a", 12))
    scheduler.process(step, {})
    scheduler.schedule()  # the 13th token, and slots up to 17
    assert 10 - scheduler.cache.free == 2
    short = _scheduler(10, lookahead_tokens=100, max_model_len=2 * BLOCK)
    _submit(short, _asked("a", 12))
    assert 10 - short.cache.free == 2


def _cached_prompt(
    scheduler: Scheduler[ServedSequence], first: str = "z", tokens: int = 2 * BLOCK
) -> Step[ServedSequence]:
    """Let a first request fill the cache, and return a step in which it runs."""
    step = _submit(scheduler, _asked(first, tokens, content=(Segment(1, 0, tokens),)))
    scheduler.process(step, {})
    return step


def _again(name: str, tokens: int) -> ServedSequence:
    """A request that finds all of its prompt but the last token in the cache."""
    return _asked(name, tokens, content=(Segment(1, 0, tokens),))


@pytest.mark.parametrize(
    ("limits", "tokens"),
    [
        ({}, 4),  # one token, and three drafts as the others have
        ({"speculative_tokens": 0}, 1),
        ({"max_model_len": 2 * BLOCK + 5}, 4),
        ({"max_model_len": 2 * BLOCK + 4}, 1),  # the verification would pass the longest length
        ({"max_num_batched_tokens": 8}, 4),
        ({"max_num_batched_tokens": 7}, None),  # four for the first; the padded one waits
    ],
)
def test_a_sequence_that_lacks_one_token_runs_as_wide_as_a_verification(
    limits: dict[str, int], tokens: int | None
) -> None:
    """vLLM keeps the shape of a uniform decode step; one that does not fit is not admitted with fewer."""
    scheduler = _scheduler(
        20, **{"prefix_caching": True, "speculative_tokens": 3, "max_num_batched_tokens": 1000} | limits
    )
    if limits.get("max_num_batched_tokens"):
        scheduler.limits = replace(scheduler.limits, max_num_batched_tokens=1000)
        _cached_prompt(scheduler)
        scheduler.limits = replace(scheduler.limits, **limits)
    else:
        _cached_prompt(scheduler)
    step = _submit(scheduler, _again("b", 2 * BLOCK + 1))
    assert _tokens(step).get("b") == tokens


@pytest.mark.parametrize(("prompt", "tokens"), [(81, 1), (80, 4)])
def test_beside_a_prompt_that_is_not_done_nothing_is_padded(prompt: int, tokens: int) -> None:
    """Chunks of 40 tokens: after the second a prompt of 80 is done, and one of 81 is not."""
    scheduler = _scheduler(40, prefix_caching=True, speculative_tokens=3, long_prefill_token_threshold=40)
    _cached_prompt(scheduler)
    scheduler.process(_submit(scheduler, _asked("l", prompt)), {})
    step = _submit(scheduler, _again("b", 2 * BLOCK + 1))
    assert _tokens(step)["l"] == 40
    assert _tokens(step)["b"] == tokens


def test_a_prompt_of_one_token_in_an_empty_step_is_not_padded() -> None:
    assert _tokens(_submit(_scheduler(4, speculative_tokens=3), _asked("a", 1))) == {"a": 1}
    both = _submit(_scheduler(4, speculative_tokens=3), _asked("a", 5), _asked("b", 1))
    assert _tokens(both) == {"a": 5, "b": 4}


@pytest.mark.parametrize(("sequences", "running"), [(2, 2), (3, 2)])
def test_as_many_run_as_may(sequences: int, running: int) -> None:
    scheduler = _scheduler(20, max_num_seqs=2)
    _submit(scheduler, *(_asked(name, 4) for name in "abc"[:sequences]))
    assert len(scheduler.running) == running


def test_accepted_drafts_are_kept_and_the_others_computed_again() -> None:
    scheduler = _scheduler(20, speculative_tokens=3)
    sequence = _asked("a", 10, output=20)
    scheduler.process(_submit(scheduler, sequence), {})
    step = scheduler.schedule()
    assert (_tokens(step), step.drafts) == ({"a": 4}, {sequence: 3})
    assert scheduler.process(step, {sequence: 2}) == [(sequence, 3, False)]
    assert (sequence.known, sequence.computed) == (14, 13)


def test_an_answer_ends_with_its_last_token_whatever_was_accepted() -> None:
    scheduler = _scheduler(20, speculative_tokens=3)
    sequence = _asked("a", 10, output=3)
    scheduler.process(_submit(scheduler, sequence), {})
    assert scheduler.process(scheduler.schedule(), {sequence: 3}) == [(sequence, 2, True)]
    assert (len(scheduler.running), scheduler.cache.free) == (0, 20)


@pytest.mark.parametrize(("policy", "victim"), [("fcfs", "c"), ("priority", "b")])
def test_the_last_admitted_or_the_least_urgent_loses_its_blocks(policy: str, victim: str) -> None:
    scheduler = _scheduler(3, policy=policy)
    first = [_asked("a", BLOCK, priority=1), _asked("b", BLOCK, priority=2), _asked("c", BLOCK, priority=0)]
    scheduler.process(_submit(scheduler, *first), {})
    step = scheduler.schedule()
    assert [sequence.name for sequence in step.preempted][:1] == [victim]
    assert step.preempted[0].computed == 0


def test_a_swapped_sequence_finds_its_tokens_again() -> None:
    scheduler = _scheduler(2, preemption="swap")
    one, two = _asked("a", BLOCK, output=2), _asked("b", BLOCK, output=2)
    scheduler.process(_submit(scheduler, one, two), {})
    step = scheduler.schedule()
    assert step.preempted == [two]
    scheduler.process(step, {})
    back = scheduler.schedule()
    assert (back.resumed, back.swapped_in, _tokens(back)) == ([two], {two: BLOCK}, {"b": 1})
