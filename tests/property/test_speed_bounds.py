"""Time: more hardware is never slower, more work never faster, and the two bounds keep their order."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.cost_types import OpCost, StepCost
from kvcalc.core.workload import Parallel, TokenGroup, decode_step
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import ridge_flop_per_byte, step_time

from .strategies import MIXER_KINDS, accelerators, formats, groups, models, parallels

# Chunked attention is left out where contexts grow: with each new chunk it starts again from one token.
GROWING = tuple(kind for kind in MIXER_KINDS if kind != "chunked")
ROUNDING = 1 + 1e-9
faster = st.floats(1, 100)
more = st.integers(0, 40)


def _not_slower(quick, slow):
    assert quick.ideal_s <= slow.ideal_s * ROUNDING
    assert quick.serial_s <= slow.serial_s * ROUNDING


def _no_less_work(large, small, hardware):
    for field in ("flop", "compulsory_bytes", "weight_bytes", "moved_bytes"):
        assert small.total(field) <= large.total(field) * ROUNDING, field
    _not_slower(step_time(small, hardware), step_time(large, hardware))


@given(models(), groups, formats(), parallels(), accelerators(), faster)
def test_more_bandwidth_is_never_slower(model, group, formats, parallel, hardware, factor):
    cost = forward_cost(model, [group], formats, parallel=parallel)
    wide = replace(hardware, memory_bandwidth_bytes_per_s=factor * hardware.memory_bandwidth_bytes_per_s)
    _not_slower(step_time(cost, wide), step_time(cost, hardware))


@given(models(), groups, formats(), parallels(), accelerators(), faster, st.data())
def test_a_higher_peak_is_never_slower(model, group, formats, parallel, hardware, factor, data):
    cost = forward_cost(model, [group], formats, parallel=parallel)
    raised = data.draw(st.sets(st.sampled_from(sorted(hardware.peak_flop_per_s)), min_size=1))
    peaks = {unit: rate * (factor if unit in raised else 1) for unit, rate in hardware.peak_flop_per_s.items()}
    _not_slower(step_time(cost, replace(hardware, peak_flop_per_s=peaks)), step_time(cost, hardware))


@given(models(), groups, formats(), parallels(), accelerators(), faster)
def test_a_faster_link_is_never_slower(model, group, formats, parallel, hardware, factor):
    cost = forward_cost(model, [group], formats, parallel=parallel)
    links = {name: replace(link, bytes_per_s=factor * link.bytes_per_s) for name, link in hardware.links.items()}
    _not_slower(step_time(cost, replace(hardware, links=links)), step_time(cost, hardware))


@given(models(), groups, formats(), parallels(), accelerators(), more)
def test_more_sequences_are_never_less_work(model, group, formats, parallel, hardware, added):
    larger = replace(group, sequences=group.sequences + added)
    small, large = (forward_cost(model, [one], formats, parallel=parallel) for one in (group, larger))
    _no_less_work(large, small, hardware)


@given(models(*GROWING), formats(), accelerators(), st.integers(1, 9), st.integers(1, 300), more)
def test_a_longer_context_is_never_less_work(model, formats, hardware, batch, context, added):
    small, large = (
        forward_cost(model, [decode_step(batch=batch, context=length)], formats)
        for length in (context, context + added)
    )
    _no_less_work(large, small, hardware)


# From two new tokens on: a single one reads its own entry back by definition, and latent attention is then absorbed.
@given(models(), formats(), accelerators(), st.integers(2, 50), st.integers(0, 300), more)
def test_more_new_tokens_are_never_less_work(model, formats, hardware, query, past, added):
    small, large = (
        forward_cost(model, [TokenGroup(sequences=2, query_tokens=count, past_tokens=past)], formats)
        for count in (query, query + added)
    )
    _no_less_work(large, small, hardware)


@given(models(), formats(), accelerators(), st.integers(1, 50), st.integers(1, 300), more)
def test_a_larger_batch_never_lowers_tokens_per_second(model, formats, hardware, batch, context, added):
    def tokens_per_s(count):
        cost = forward_cost(model, [decode_step(batch=count, context=context)], formats)
        return count / step_time(cost, hardware).ideal_s

    assert tokens_per_s(batch) <= tokens_per_s(batch + added) * ROUNDING


@given(models(), groups, formats(), accelerators())
def test_operators_one_by_one_are_never_faster_than_all_at_once(model, group, formats, hardware):
    time = step_time(forward_cost(model, [group], formats), hardware)
    assert time.ideal_s <= time.serial_s * ROUNDING


@given(models(), groups, formats(), parallels(stages=1), accelerators())
def test_the_limiter_is_the_largest_share(model, group, formats, parallel, hardware):
    time = step_time(forward_cost(model, [group], formats, parallel=parallel), hardware)
    parts = {"memory": time.memory_s, "compute": time.compute_s, "interconnect": time.link_s}
    assert time.shares == {name: seconds / time.ideal_s for name, seconds in parts.items()}
    assert time.shares[time.limiter] == max(time.shares.values()) == 1


@given(models(), groups, formats(), accelerators())
def test_a_bound_is_a_rate_that_the_hardware_has(model, group, formats, hardware):
    cost = forward_cost(model, [group], formats)
    time = step_time(cost, hardware)
    assert time.memory_s == pytest.approx(cost.compulsory_bytes / hardware.memory_bandwidth_bytes_per_s)
    assert cost.flop <= time.compute_s * max(hardware.peak(op.unit) for op in cost.ops) * ROUNDING
    assert time.ideal_s in (time.memory_s, time.compute_s)


@given(models(), groups, formats(), accelerators(), st.integers(2, 4))
def test_a_ring_sends_at_least_what_must_cross_the_link(model, group, formats, hardware, ranks):
    cost = forward_cost(model, [group], formats, parallel=Parallel(tensor=ranks))
    assert all(op.link_bytes <= op.collective_bytes * ROUNDING for op in cost.ops)
    link = hardware.link(ranks)
    expected = 0 if link is None else sum(op.link_bytes for op in cost.ops) / link.bytes_per_s
    assert step_time(cost, hardware).link_s == pytest.approx(expected)


@given(models(), groups, formats(), accelerators(), st.data())
def test_a_pipeline_is_as_slow_as_its_slowest_stage(model, group, formats, hardware, data):
    stages = data.draw(st.integers(1, model.layers))
    cost = forward_cost(model, [group], formats, parallel=Parallel(pipeline=stages))
    alone = replace(hardware, links={})
    apart = [replace(cost, rank_kinds=((cost.ranks, (stage,)),)) for stage in cost.stages if any(_works(stage))]
    times = [step_time(stage, alone).ideal_s for stage in apart]
    time = step_time(cost, alone)
    assert time.ideal_s == max(times)
    slowest = replace(cost, rank_kinds=((cost.ranks, (cost.stages[time.slowest_stage],)),))
    assert time.ideal_s == step_time(slowest, alone).ideal_s


def _works(stage):
    return (op.flop or op.compulsory_bytes for op in stage)


@given(accelerators(), st.sampled_from(("bf16", "fp8", "int8", "fp32")), st.floats(1e-3, 1e6))
def test_peak_is_reached_at_the_ridge_and_not_before(hardware, unit, intensity):
    ridge = ridge_flop_per_byte(hardware.peak(unit), hardware.memory_bandwidth_bytes_per_s)
    moved = 2**30
    op = OpCost(name="alone", part="other", unit=unit, flop=intensity * moved, io_bytes=moved)
    attained = op.flop / step_time(StepCost(rank_kinds=((1, ((op,),)),), tokens=1), hardware).ideal_s
    assert attained == pytest.approx(min(hardware.peak(unit), hardware.memory_bandwidth_bytes_per_s * intensity))
    assert (attained >= hardware.peak(unit) / ROUNDING) == (intensity >= ridge / ROUNDING)
    assert ridge * hardware.memory_bandwidth_bytes_per_s == pytest.approx(hardware.peak(unit))
