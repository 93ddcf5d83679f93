"""The fast timer says what `forward_cost` and `step_time` say of any mixed batch."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import api
from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.workload import TokenGroup
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import step_time
from kvcalc.simulate.ticks import TICKS_PER_S
from kvcalc.simulate.timer import EstimateTimer, RooflineTimer, StepTimer, sums_of

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.maxima import AffineRun

# dense, experts, latent attention with an index, windows, chunks, states beside attention, shared caches
MODELS = (
    "llama3.1-8b",
    "qwen3-30b-a3b",
    "deepseek-v3.2",
    "gpt-oss-20b",
    "llama4-scout",
    "qwen3-next-80b-a3b",
    "gemma-3n-e4b",
)
_LONGEST = 10**6
SHAPES = ((1, 1), (2, 1), (1, 2))
CALIBRATION = Calibration(
    name="some",
    engine="any",
    applies_to=("any",),
    reach={
        "matrix": Reach(bandwidth_share=0.8, flop_share=0.7, call_s=1e-6, sum_share=0.8),
        "attention": Reach(bandwidth_share=0.6, flop_share=0.4, call_s=2e-6, sum_share=0.65),
    },
    memory_interval=Interval(low=0.9, high=1.2),
    compute_interval=Interval(low=0.9, high=1.2),
    step_s=1e-4,
    layer_s=3e-6,
    collective_s=5e-6,
    link_share=0.7,
    direct_share=0.3,
    staged_s=2e-5,
    measured=Measured(device="some"),
)


@cache
def timers(name: str, tensor: int, pipeline: int) -> tuple[Deployment, dict[str, StepTimer]]:
    deployment = api.deployment(name, gpu="h100-sxm", tensor_parallel=tensor, pipeline_parallel=pipeline)
    made: dict[str, StepTimer] = {kind: RooflineTimer(deployment, kind=kind) for kind in ("ideal", "serial")}
    return deployment, made | {"estimate": EstimateTimer(deployment, CALIBRATION)}


CASES = sorted((name, *shape) for name in MODELS for shape in SHAPES)
CONTEXTS = st.one_of(st.integers(1, 300), st.integers(1, 20_000))
CHUNKS = st.tuples(st.integers(2, 3000), st.one_of(st.just(0), st.integers(1, 9000)), st.integers(0, 1))


@settings(max_examples=150, deadline=None)
@given(case=st.sampled_from(CASES), contexts=st.lists(CONTEXTS, max_size=40), chunks=st.lists(CHUNKS, max_size=3))
def test_equal_to_the_one_formula(
    case: tuple[str, int, int], contexts: list[int], chunks: list[tuple[int, int, int]]
) -> None:
    if not contexts and not chunks:
        return
    deployment, made = timers(*case)
    groups = [TokenGroup(sequences=1, query_tokens=1, past_tokens=context - 1) for context in contexts]
    groups += [
        TokenGroup(sequences=1, query_tokens=tokens, past_tokens=past, logit_tokens=logits)
        for tokens, past, logits in chunks
    ]
    cost = forward_cost(deployment.model, groups, deployment.formats, parallel=deployment.parallel)
    expected = step_time(cost, deployment.hardware)
    tokens = len(contexts) + sum(chunk[0] for chunk in chunks)
    logits = len(contexts) + sum(chunk[2] for chunk in chunks)
    estimate = estimate_time(cost, deployment.hardware, CALIBRATION)
    times = {"ideal": expected.latency_s, "serial": expected.serial_s, "estimate": estimate.estimate_s}
    for kind, seconds in times.items():
        timer = made[kind]
        sums = sums_of(contexts, timer)
        level = (0,) * len(sums)
        first, _, _, limiter = timer.line(tokens, logits, sums, level, [(new, past) for new, past, _ in chunks])
        assert first / TICKS_PER_S == pytest.approx(seconds, rel=1e-9)
        if kind == "ideal" and case[2] == 1:
            shares = sorted(expected.shares.values())
            assert limiter == expected.limiter or shares[-1] - shares[-2] < 1e-9


@settings(max_examples=60, deadline=None)
@given(case=st.sampled_from(CASES), contexts=st.lists(CONTEXTS, min_size=1, max_size=30))
def test_a_line_holds_as_long_as_it_says(case: tuple[str, int, int], contexts: list[int]) -> None:
    _, made = timers(*case)
    for timer in made.values():
        count = len(contexts)
        sums = sums_of(contexts, timer)
        after = sums_of([context + 1 for context in contexts], timer)
        slopes = tuple(later - now for now, later in zip(sums, after, strict=True))
        first, slope, steps, _ = timer.line(count, count, sums, slopes, ())
        for step in (1, 2, 7, 50):
            held = [timer.caps, timer.periods]
            crossed = any(context <= cap < context + step for context in contexts for cap in held[0])
            crossed |= any(
                (context - 1) // period != (context + step - 1) // period for context in contexts for period in held[1]
            )
            if step < steps and not crossed:
                later = sums_of([context + step for context in contexts], timer)
                assert timer.line(count, count, later, slopes, ())[0] == first + slope * step


@given(count=st.integers(1, 1024), context=st.integers(1, 4000), kind=st.sampled_from(["ideal", "serial"]))
def test_a_line_ends_with_the_step_before_another_term_takes_longer(count: int, context: int, kind: str) -> None:
    timer = timers("llama3.1-8b", 1, 1)[1][kind]

    def line(step: int) -> AffineRun:
        return timer.line(count, count, (count, count * (context + step)), (0, count), ())

    first, slope, steps, _ = line(0)
    assert line(steps - 1)[0] == first + slope * (steps - 1)
    assert line(steps)[0] > first + slope * steps or steps > _LONGEST
