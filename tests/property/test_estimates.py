"""Estimates: never below the bound, never shorter for more work or more overhead, and their interval is in order."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.cost_types import OpCost, StepCost
from kvcalc.core.hardware import Link
from kvcalc.core.workload import Parallel, TokenGroup, decode_step
from kvcalc.cost.collectives import all_reduce
from kvcalc.cost.estimate import estimate_time, pass_terms, reached_seconds
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import step_time

from .strategies import MIXER_KINDS, accelerators, calibrations, formats, groups, models, parallels

GROWING = tuple(kind for kind in MIXER_KINDS if kind != "chunked")
ROUNDING = 1 + 1e-9
PEAKS = Calibration(
    name="peaks",
    engine="any",
    applies_to=("any",),
    reach={"matrix": Reach(bandwidth_share=1, flop_share=1)},
    memory_interval=Interval(low=1, high=1),
    compute_interval=Interval(low=1, high=1),
    measured=Measured(device="any"),
)


@given(models(), groups, formats(), parallels(stages=2), accelerators(), calibrations())
def test_an_estimate_is_never_below_the_bound(model, group, formats, parallel, hardware, calibration):
    cost = forward_cost(model, [group], formats, parallel=parallel)
    found, bound = estimate_time(cost, hardware, calibration), step_time(cost, hardware)
    assert min(found.estimate_s, found.low_s) >= bound.latency_s >= bound.ideal_s
    assert found.low_s <= found.estimate_s <= found.high_s


@given(models(), groups, formats(), accelerators())
def test_an_interval_stops_at_the_bound(model, group, formats, hardware):
    cost = forward_cost(model, [group], formats)
    wide = Interval(low=1e-9, high=1)
    found = estimate_time(cost, hardware, replace(PEAKS, memory_interval=wide, compute_interval=wide))
    assert found.low_s == step_time(cost, hardware).latency_s


@given(models(), groups, formats(), accelerators())
def test_at_the_peak_rates_operators_take_what_the_serial_bound_says(model, group, formats, hardware):
    cost = forward_cost(model, [group], formats)
    assert estimate_time(cost, hardware, PEAKS).estimate_s == pytest.approx(step_time(cost, hardware).serial_s)


@given(models(*GROWING), groups, formats(), parallels(), accelerators(), calibrations(), st.integers(0, 40))
def test_more_sequences_never_take_less(model, group, formats, parallel, hardware, calibration, added):
    larger = replace(group, sequences=group.sequences + added)
    small, large = (
        reached_seconds(pass_terms(forward_cost(model, [one], formats, parallel=parallel), hardware), calibration)
        for one in (group, larger)
    )
    assert small <= large * ROUNDING


@given(models(*GROWING), st.integers(1, 500), st.integers(0, 500), formats(), accelerators(), calibrations())
def test_a_longer_context_never_takes_less(model, context, longer, formats, hardware, calibration):
    small, large = (
        estimate_time(forward_cost(model, [decode_step(batch=2, context=tokens)], formats), hardware, calibration)
        for tokens in (context, context + longer)
    )
    assert small.estimate_s <= large.estimate_s * ROUNDING


@given(models(), groups, formats(), parallels(), accelerators(), calibrations(), st.floats(1, 50))
def test_more_overhead_and_lower_shares_never_take_less(model, group, formats, parallel, hardware, calibration, factor):
    terms = pass_terms(forward_cost(model, [group], formats, parallel=parallel), hardware)
    before = reached_seconds(terms, calibration)
    worse = {
        field.name: value * (1 / factor if field.name.endswith("share") else factor)
        for field in fields(calibration)
        if field.name in ("step_s", "layer_s", "collective_s", "link_share", "direct_share", "staged_s")
        if (value := getattr(calibration, field.name)) is not None
    }
    reach = {
        kind: Reach(
            bandwidth_share=found.bandwidth_share / factor,
            flop_share=found.flop_share / factor,
            call_s=found.call_s * factor,
        )
        for kind, found in calibration.reach.items()
    }
    for changes in ({name: value} for name, value in worse.items()):
        assert reached_seconds(terms, replace(calibration, **changes)) * ROUNDING >= before
    assert reached_seconds(terms, replace(calibration, reach=reach)) * ROUNDING >= before


def test_each_kind_of_operator_has_its_own_rates():
    reach = {
        "matrix": Reach(bandwidth_share=0.5, flop_share=0.5),
        "matrix:fp8": Reach(bandwidth_share=0.25, flop_share=0.5),
        "attention": Reach(bandwidth_share=0.2, flop_share=0.5),
        "experts": Reach(bandwidth_share=0.1, flop_share=0.5),
    }
    calibration = replace(PEAKS, reach=reach)
    shares = {("matrix", "bf16"): 0.5, ("matrix", "fp8"): 0.25, ("attention", "fp8"): 0.2, ("experts", "bf16"): 0.1}
    for (kind, unit), share in shares.items():
        assert calibration.reach_of(kind, unit).bandwidth_share == share
    assert replace(PEAKS, reach={"matrix": reach["matrix"]}).reach_of("experts", "fp8").bandwidth_share == 0.5


@given(accelerators())
def test_collectives_take_their_start_and_their_bytes(hardware):
    hardware = replace(hardware, links={"scale_up": Link(name="wire", bytes_per_s=100)})
    op = OpCost(name="all_reduce", part="interconnect", collective_bytes=50, collective_steps=6, calls=3)
    cost = StepCost(rank_kinds=((2, ((op,),)),), tokens=1, exchange_gpus=2)
    calibration = replace(PEAKS, collective_s=2, link_share=0.5)
    assert reached_seconds(pass_terms(cost, hardware), calibration) == pytest.approx(3 * 2 + 50 / (0.5 * 100))


@given(accelerators())
def test_sums_over_ranks_are_made_in_the_faster_of_two_ways(hardware):
    hardware = replace(hardware, links={"scale_up": Link(name="wire", bytes_per_s=100)})
    calibration = replace(PEAKS, collective_s=2, link_share=0.5, direct_share=0.25, staged_s=10)
    for size, each_s in ((1, 3 / 25), (1000, 10 + 1500 / 50)):
        sums = all_reduce(size, 4)
        op = OpCost(name="all_reduce", part="interconnect", collective_bytes=7 * sums.bytes, collective_steps=42,
                    direct_bytes=7 * sums.direct_bytes, calls=7)  # fmt: skip
        cost = StepCost(rank_kinds=((4, ((op,),)),), tokens=1, exchange_gpus=4)
        assert reached_seconds(pass_terms(cost, hardware), calibration) == pytest.approx(7 * (2 + each_s))


@given(accelerators())
def test_layers_and_calls_are_counted(hardware):
    op = OpCost(name="m", part="mlp", calls=7)
    cost = StepCost(rank_kinds=((1, ((op,),)),), tokens=1, layers=5)
    reach = {"matrix": Reach(bandwidth_share=1, flop_share=1, call_s=2)}
    calibration = replace(PEAKS, reach=reach, layer_s=0.5, step_s=0.25)
    assert reached_seconds(pass_terms(cost, hardware), calibration) == 0.25 + 5 * 0.5 + 7 * 2


@given(models(encoder=False), formats())
def test_a_pass_counts_its_layers_and_their_operators(model, formats):
    cost = forward_cost(model, [TokenGroup(sequences=1, query_tokens=1)], formats, parallel=Parallel())
    assert cost.layers == model.layers
    assert all(1 <= op.calls <= model.layers for op in cost.ops)
