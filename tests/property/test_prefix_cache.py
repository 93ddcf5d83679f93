"""A cache that counts blocks in runs finds, holds and gives up what one that numbers them does, whatever is asked."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.requests import Request, Segment
from kvcalc.simulate.cache import PagedCache
from kvcalc.simulate.fast.cache import PrefixCache
from kvcalc.simulate.prefixes import content_runs
from kvcalc.simulate.sequences import Job

SIZE = 4
PRIVATE = 1000


def content(draw: random.Random) -> tuple[Segment, ...]:
    """Beginnings that many share, of lengths at odds with blocks, and streams that go on where another part ended."""
    parts = [Segment(draw.choice([1, 1, 2]), 0, draw.randint(1, 30))]
    for _ in range(draw.randint(0, 3)):
        goes_on = draw.random() < 0.4
        start = parts[-1].start + parts[-1].tokens if goes_on else draw.choice([0, 0, 8])
        parts.append(Segment(parts[-1].stream if goes_on else draw.randint(2, 4), start, draw.randint(1, 25)))
    return tuple(parts)


class Both:
    """One sequence in the two caches."""

    def __init__(self, number: int, prompt: tuple[Segment, ...]) -> None:
        tokens = sum(part.tokens for part in prompt)
        request = Request(name=str(number), arrival_s=0.0, prompt_tokens=tokens, output_tokens=12, prompt=prompt)
        output = Segment(PRIVATE + number, 0, 12)
        self.jobs = (Job(request, order=number, content=(*prompt, output)), Job(request, order=number, content=prompt))
        for job in self.jobs:
            job.end = job.last_known

    def grow(self, tokens: int) -> None:
        for job in self.jobs:
            job.computed = tokens
            job.known = max(job.known, tokens)


class Caches:
    """The two caches, and the sequences that wait for blocks or have some."""

    def __init__(self, num_blocks: int, draw: random.Random) -> None:
        self.numbered = PagedCache(num_blocks=num_blocks, block_size=SIZE, prefix_caching=True)
        self.counted = PrefixCache(num_blocks=num_blocks, block_size=SIZE, before_lookup=lambda _: None)
        self.draw = draw
        self.waiting: list[Both] = []
        self.running: list[Both] = []

    def admit(self) -> None:
        both = self.draw.choice(self.waiting)
        one, other = both.jobs
        (hit, found), (runs, as_many) = self.numbered.find_prefix(one), self.counted.find_prefix(other)
        assert found == as_many
        tokens = self.draw.randint(found + 1, one.known)
        fits = self.numbered.can_allocate(hit, tokens=tokens, spare=0)
        assert self.counted.can_allocate(runs, tokens=tokens, spare=0) == fits
        if fits:
            self.numbered.allocate(one, hit, tokens=tokens)
            self.counted.allocate(other, runs, tokens=tokens)
            self.waiting.remove(both)
            self.running.append(both)
            self._fill(both, tokens)

    def append(self) -> None:
        both = self.draw.choice(self.running)
        one, other = both.jobs
        tokens = min(one.computed + self.draw.randint(1, 9), one.end - 1)
        fits = self.numbered.can_append(one, tokens=tokens)
        assert self.counted.can_append(other, tokens=tokens) == fits
        if fits and tokens > one.computed:
            self.numbered.append(one, tokens=tokens)
            self.counted.append(other, tokens=tokens)
            self._fill(both, tokens)

    def leave(self, both: Both, *, comes_back: bool) -> None:
        self.running.remove(both)
        for job in both.jobs:
            job.known = min(job.known, job.end - 1) if comes_back else job.end
        self.numbered.deallocate(both.jobs[0])
        self.counted.deallocate(both.jobs[1])
        if comes_back:
            both.grow(0)
            self.waiting.append(both)

    def _fill(self, both: Both, tokens: int) -> None:
        both.grow(tokens)
        self.numbered.hash_blocks(both.jobs[0], tokens=tokens)
        self.counted.hash_blocks(both.jobs[1], tokens=tokens)


@settings(max_examples=400, deadline=None)
@given(seed=st.integers(0, 10**9), num_blocks=st.integers(12, 60), steps=st.integers(50, 250))
def test_what_is_found_and_what_is_free(*, seed: int, num_blocks: int, steps: int) -> None:
    draw = random.Random(seed)  # noqa: S311  a load
    caches = Caches(num_blocks, draw)
    for number in range(steps):
        choice = draw.random()
        if choice < 0.35:
            caches.waiting.append(Both(number, content(draw)))
        if choice < 0.6 and caches.waiting:
            caches.admit()
        elif choice < 0.8 and caches.running:
            caches.append()
        elif caches.running:
            caches.leave(draw.choice(caches.running), comes_back=draw.random() < 0.3)
        assert caches.counted.free == caches.numbered.free
    for both in list(caches.running):
        caches.leave(both, comes_back=False)
    assert caches.counted.free == caches.numbered.free == num_blocks - 1


@given(seed=st.integers(0, 10**9), size=st.integers(1, 9))
def test_runs_are_equal_where_all_tokens_up_to_their_end_are(*, seed: int, size: int) -> None:
    """Runs, taken apart into blocks, and the blocks' tokens are equal at the same places."""
    draw = random.Random(seed)  # noqa: S311  a load
    blocks, tokens = [], []
    for _ in range(2):
        made = content(draw)
        blocks.append(
            [
                (run[0] if len(run) > 2 else (run[0], run[1] + place * size))
                for run, count in content_runs(made, block_size=size)
                for place in range(count)
            ]
        )
        flat = [(part.stream, part.start + place) for part in made for place in range(part.tokens)]
        tokens.append([tuple(flat[end - size : end]) for end in range(size, len(flat) + 1, size)])
    assert [len(each) for each in blocks] == [len(each) for each in tokens]
    assert [one == other for one, other in zip(*blocks, strict=False)] == [
        one == other for one, other in zip(*tokens, strict=False)
    ]
