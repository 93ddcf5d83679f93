"""A replica that jumps takes the decisions of one that is stepped, at the same times, whatever it is asked."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.core.requests import Request, Segment
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.fast.forward import FastForwardReplica
from kvcalc.simulate.observers import Observer, Run, Served
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.serving import Replica, ServingSetup
from kvcalc.simulate.timer import ConstantTimer, RooflineTimer

if TYPE_CHECKING:
    from collections.abc import Sequence

FULL = BlockGroup(block_size=16)
WINDOW = BlockGroup(block_size=16, window=100, admission_tokens=400)
CHUNK = BlockGroup(block_size=16, chunk=128, admission_tokens=400)
STATE = BlockGroup(block_size=16, constant=1)
LAYOUTS = {
    "full": (FULL,),
    "large blocks": (BlockGroup(block_size=128),),
    "windows": (FULL, WINDOW, WINDOW),
    "chunks": (FULL, CHUNK),
    "states": (BlockGroup(block_size=80), STATE, STATE),
}
TIMERS = {
    "constant": ConstantTimer(step_s=0.01),
    **{
        f"{name} {kind}": RooflineTimer(api.deployment(name, gpu="a100-80gb"), kind=kind)
        for name, kind in (
            ("llama3.1-8b", "ideal"),
            ("llama3.1-8b", "serial"),
            ("gpt-oss-20b", "ideal"),
            ("llama4-scout", "serial"),
        )
    },
}


@dataclass
class Kept(Observer):
    """Everything that a replica told."""

    steps: list[Run] = field(default_factory=list)
    served: list[Served] = field(default_factory=list)
    events: list[tuple[Any, ...]] = field(default_factory=list)

    def runs(self, runs: Sequence[Run]) -> None:
        self.steps += runs

    def finished(self, served: Served) -> None:
        self.served.append(served)

    def admitted(self, request: Request, at_s: float, cached_tokens: int) -> None:
        self.events.append(("admitted", request.name, at_s, cached_tokens))

    def preempted(self, request: Request, at_s: float) -> None:
        self.events.append(("preempted", request.name, at_s))

    def gap(self, request: Request, seconds: float) -> None:
        self.events.append(("gap", request.name, seconds))

    def refused(self, request: Request, at_s: float, reason: str) -> None:
        self.events.append(("refused", request.name, at_s, reason))


def requests(seed: int, *, count: int, rate: float, shared: bool, even: bool) -> list[Request]:
    """A load: prompts of their own, or conversations with a common beginning; arrivals at random, or on a grid."""
    draw = random.Random(seed)  # noqa: S311  a load
    now, made = 0.0, []
    talks: dict[int, tuple[Segment, ...]] = {}
    for index in range(count):
        now = index * 0.05 if even else now + draw.expovariate(rate)
        output = draw.choice([1, draw.randint(1, 20), draw.randint(1, 150)])
        prompt: tuple[Segment, ...] = ()
        tokens = draw.choice([draw.randint(1, 40), draw.randint(1, 700)])
        stream = None
        if shared and draw.random() < 0.8:
            talk = draw.randint(0, 6)
            told = talks.get(talk, (Segment(1, 0, 90), Segment(10 + talk, 0, draw.randint(1, 60))))
            prompt = (*told, Segment(1000 + index, 0, draw.randint(1, 50)))
            tokens = sum(segment.tokens for segment in prompt)
            stream = 5000 + index if draw.random() < 0.8 else None
            if stream is not None and tokens < 700:
                talks[talk] = (*prompt, Segment(stream, 3, output))
        made.append(
            Request(
                name=f"r{index}", arrival_s=now, prompt_tokens=tokens, output_tokens=output, prompt=prompt,
                output_stream=stream, output_start=3, priority=draw.randint(0, 2),
            )
        )  # fmt: skip
    return made


def served_by(kind: type[Replica], setup: ServingSetup, load: list[Request]) -> Kept:
    kept = Kept()
    kind(setup, kept).serve(load)
    return kept


def held_equal(setup: ServingSetup, load: list[Request]) -> Kept:
    stepped, jumped = served_by(Replica, setup, load), served_by(FastForwardReplica, setup, load)
    assert jumped.served == stepped.served
    assert jumped.events == stepped.events
    assert sum(run.steps for run in jumped.steps) == len(stepped.steps)
    place = 0
    for run in jumped.steps:
        steps = stepped.steps[place : place + run.steps]
        place += run.steps
        first, last = steps[0], steps[-1]
        assert (run.start_s, run.end_s, run.first_s) == (first.start_s, last.end_s, first.first_s)
        assert run.first_s + run.slope_s * (run.steps - 1) == pytest.approx(last.first_s, rel=1e-9)
        assert (run.blocks, run.end_blocks, run.waiting) == (first.blocks, last.end_blocks, first.waiting)
        assert run.held_tokens == first.held_tokens
        for step in steps:
            assert step[5:9] == run[5:9]
            assert step.limiter == run.limiter
    return stepped


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    timer=st.sampled_from(sorted(TIMERS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    budget=st.sampled_from([20, 64, 512, 2048]),
    num_blocks=st.integers(110, 500),
    max_num_seqs=st.sampled_from([3, 20]),
    policy=st.sampled_from(["fcfs", "priority"]),
    preemption=st.sampled_from(["recompute", "swap"]),
    threshold=st.sampled_from([0, 0, 30]),
    reserve=st.booleans(),
    watermark=st.sampled_from([0, 0, 5]),
    rate=st.sampled_from([4.0, 40.0]),
    shared=st.booleans(),
    even=st.booleans(),
)
def test_every_decision_and_time(
    *, seed: int, timer: str, layout: str, budget: int, num_blocks: int, max_num_seqs: int, policy: Any, preemption: Any,
    threshold: int, reserve: bool, watermark: int, rate: float, shared: bool, even: bool,
) -> None:  # fmt: skip
    groups = LAYOUTS[layout]
    limits = Limits(
        max_num_batched_tokens=budget, max_num_seqs=min(max_num_seqs, budget), max_model_len=900, policy=policy,
        preemption=preemption, prefix_caching=shared and len(groups) == 1, long_prefill_token_threshold=threshold,
        reserve_full_prompt=reserve, watermark_blocks=watermark,
    )  # fmt: skip
    setup = ServingSetup(
        limits=limits, num_blocks=num_blocks, groups=groups, timer=TIMERS[timer], swap_s_per_block=1e-4
    )
    held_equal(setup, requests(seed, count=40, rate=rate, shared=shared, even=even))


def test_under_a_thousand_preemptions() -> None:
    limits = Limits(max_num_batched_tokens=512, max_num_seqs=64, max_model_len=4096, reserve_full_prompt=False)
    setup = ServingSetup(limits=limits, num_blocks=250, groups=(FULL,), timer=TIMERS["llama3.1-8b ideal"])
    load = [
        Request(
            name=f"r{index}",
            arrival_s=index / 100,
            prompt_tokens=20 + index * 37 % 400,
            output_tokens=50 + index * 53 % 300,
        )
        for index in range(1100)
    ]
    told = held_equal(setup, load)
    assert sum(event[0] == "preempted" for event in told.events) >= 1000
    assert len(told.served) == len(load)


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("reserve", [False, True])
def test_a_prompt_comes_when_the_last_blocks_are_asked_for(*, prefix_caching: bool, reserve: bool) -> None:
    """Over arrivals and sizes of a small cache, a prompt fits beside what others take in its step, or does not."""
    limits = Limits(
        max_num_batched_tokens=64, max_num_seqs=4, max_model_len=400, prefix_caching=prefix_caching,
        reserve_full_prompt=reserve,
    )  # fmt: skip
    preempted = 0
    for num_blocks in range(9, 15):
        setup = ServingSetup(limits=limits, num_blocks=num_blocks, groups=(FULL,), timer=TIMERS["constant"])
        for prompt in (17, 48, 64, 96):
            for step in range(1, 36):
                first = Request(name="first", arrival_s=0.0, prompt_tokens=30, output_tokens=50)
                then = [
                    Request(name=name, arrival_s=step * 0.01, prompt_tokens=tokens, output_tokens=20)
                    for name, tokens in (("second", prompt), ("third", 20))
                ]
                for load in ([first, then[0]], [first, *then]):
                    events = held_equal(setup, load).events
                    preempted += any(event[0] == "preempted" for event in events)
    assert preempted > 10
