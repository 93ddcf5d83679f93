"""Many replicas cost what one does, and long prompts what short ones do: a bar on work counted, and a wide one on CPU time."""

from __future__ import annotations

import time

import pytest

from kvcalc import api
from kvcalc.core.requests import Request, Segment
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.cluster import Cluster, Pending, serve
from kvcalc.simulate.fast.cache import PrefixCache
from kvcalc.simulate.fast.forward import FastForwardReplica
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.sequences import Job
from kvcalc.simulate.serving import ServingSetup
from kvcalc.simulate.timer import RooflineTimer

REQUESTS = 1500
TIMER = RooflineTimer(api.deployment("llama3.1-8b", gpu="h100-sxm"))
SETUP = ServingSetup(
    limits=Limits(max_num_batched_tokens=2048, max_num_seqs=256, max_model_len=8192),
    num_blocks=20_000,
    groups=(BlockGroup(block_size=16),),
    timer=TIMER,
)


class Counted(Observer):
    """How many runs of steps there were."""

    def __init__(self):
        self.count = 0

    def runs(self, runs):
        self.count += len(runs)


def _served(number, routing):
    """Serve the same requests at the same load of each replica; return CPU time and runs of steps."""
    load = [
        Request(
            name=str(index),
            arrival_s=index / (8 * number),
            prompt_tokens=300 + index * 7919 % 900,
            output_tokens=100 + index * 104729 % 200,
        )
        for index in range(REQUESTS)
    ]
    counted = Counted()
    cluster = Cluster([FastForwardReplica(SETUP, counted) for _ in range(number)], routing=routing)
    before_s = time.process_time()
    serve(cluster, Pending(load))
    return time.process_time() - before_s, counted.count


@pytest.mark.parametrize("routing", ["round-robin", "least-loaded"])
def test_replicas_are_not_asked_about_requests_that_go_elsewhere(routing):
    """Where every arrival interrupts every replica, 32 replicas take 8.6 times the runs of steps of one."""
    assert _served(32, routing)[1] < 1.3 * _served(1, routing)[1]


def test_32_replicas_take_little_more_time_than_one():
    """The least of three on either side: 1.1 as measured, and 5 where every arrival interrupts every replica."""
    alone_s, together_s = (min(_served(number, "least-loaded")[0] for _ in range(3)) for number in (1, 32))
    assert together_s < 2.5 * alone_s


def _lookups_s(tokens):
    """Return the CPU time of prompts that share their first half, found, held and left again."""
    cache = PrefixCache(num_blocks=20 * tokens, block_size=16, before_lookup=lambda _: None)
    before_s = time.process_time()
    for number in range(300):
        prompt = (Segment(1, 0, tokens // 2), Segment(2 + number, 0, tokens // 2))
        request = Request(name=str(number), arrival_s=0.0, prompt_tokens=tokens, output_tokens=2, prompt=prompt)
        job = Job(request, order=number, content=prompt)
        hit, found = cache.find_prefix(job)
        assert found == (tokens // 2 if number else 0)
        cache.allocate(job, hit, tokens=tokens)
        cache.hash_blocks(job, tokens=tokens)
        job.computed, job.known, job.end = tokens, tokens + 2, tokens + 2
        cache.deallocate(job)
    return time.process_time() - before_s


def test_a_shared_prompt_a_hundred_times_as_long_takes_no_more_time():
    """Counted block by block it takes a hundred times as long."""
    short_s, long_s = (min(_lookups_s(tokens) for _ in range(3)) for tokens in (1024, 102_400))
    assert long_s < 4 * short_s
