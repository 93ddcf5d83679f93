"""The pieces of a plan: prices, layouts, bounds and a day."""

from dataclasses import replace

import pytest

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.core.requests import Request
from kvcalc.core.workload import Parallel
from kvcalc.plan.planner.bounds import least_times
from kvcalc.plan.planner.day import DayLoad, counted_by_hour, day_savings
from kvcalc.plan.planner.prices import Price, parse_prices, price_of
from kvcalc.plan.planner.space import across, domain_gpus, in_nodes_of, layouts, with_scale_out
from kvcalc.plan.planner.traffic import traffic_of
from kvcalc.simulate.metrics import parse_slo


def traffic(prompt=1000, output=200, rate=5.0, **more):
    return traffic_of([Request("1", 0.0, prompt, output)], rate_per_s=rate, **more)


@pytest.mark.parametrize("text", ["h100", "h100=", "h100=x", "=2", "h100=1,h100=2", "h100=0", "h100=-2", "h100=nan"])
def test_prices_that_are_none_are_refused(text):
    with pytest.raises(InputError):
        parse_prices(text)


def test_a_price_is_found_by_any_name_of_the_card():
    prices = parse_prices("H100=2.5")
    assert price_of(prices, ("h100-sxm", "h100")).usd_per_hour == 2.5
    assert price_of(prices, ("h200",)) is None


def test_nodes_are_rented_whole():
    assert [Price(usd_per_hour=20, gpus=8).of(gpus) for gpus in (1, 8, 9)] == [20, 20, 40]


def test_layouts_stay_in_link_domains_and_share_heads_evenly():
    card = api.load_hardware("h100-sxm")
    dense = api.load_model("llama3.1-70b")
    found = list(layouts(dense, card, "vllm", max_gpus=64))
    assert domain_gpus(card) == 8
    assert {each.tensor for each in found} == {1, 2, 4, 8, 16}
    assert all(each.data == each.expert == 1 for each in found)
    assert [each.gpus for each in found] == sorted(each.gpus for each in found)
    paired = in_nodes_of(card, 2)
    assert domain_gpus(paired) == 2
    assert {each.tensor for each in layouts(dense, paired, "vllm", max_gpus=64)} == {1, 2, 4}
    assert {each.gpus for each in layouts(dense, card, "vllm", max_gpus=4)} == {1, 2, 4}


def test_experts_are_shared_only_where_there_are_some():
    card = api.load_hardware("h200")
    found = list(layouts(api.load_model("deepseek-v3"), card, "vllm", max_gpus=64))
    assert any(each.data == 8 and each.expert == 8 for each in found)
    assert all(each.expert in (1, each.tensor * each.data) for each in found)
    assert all(each.tensor == 1 for each in layouts(api.load_model("llama3.1-8b"), card, "llama.cpp", max_gpus=8))


def test_sixteen_cards_are_not_one_fast_link():
    card = api.load_hardware("h100-sxm")
    inside = card.link(8).bytes_per_s
    tensor, experts = Parallel(tensor=16), Parallel(data=16, expert=16)
    assert across(card, Parallel(tensor=8)) is card
    assert across(card, tensor).link(16).bytes_per_s < inside
    assert across(card, experts).link(16).bytes_per_s < inside / 3
    assert across(in_nodes_of(card, 4), Parallel(tensor=8)).link(8).bytes_per_s < inside
    assert across(with_scale_out(card, 1e9), experts).link(16).bytes_per_s < 2e9
    with pytest.raises(InputError, match="rate"):
        with_scale_out(card, 0.0)


def test_the_bound_is_below_every_estimate_and_names_what_breaks():
    deployment = api.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=8)
    limits = parse_slo("ttft_p95=1s,tpot_p95=1ms")
    bound = least_times(deployment, traffic(), limits)
    row = api.decode(deployment, contexts=[1001]).rows[0]
    assert bound.tpot_s == pytest.approx(row.ideal_s)
    assert bound.broken("tpot", "p95", 0.001).startswith("TPOT is at least")
    assert not bound.broken("tpot", "p95", 1.0)
    drafted = least_times(deployment, traffic(), limits, tokens_per_pass=4.0)
    assert drafted.tpot_s == pytest.approx(bound.tpot_s / 4)


def test_shared_prefixes_are_not_computed():
    whole, shared = traffic(), traffic(prefix_share=0.5)
    assert shared.computed_tokens == whole.computed_tokens / 2
    assert shared.held_tokens == whole.held_tokens - 500
    with pytest.raises(InputError, match="prefix"):
        traffic(prefix_share=1.0)
    with pytest.raises(InputError, match="no request"):
        traffic_of([], rate_per_s=1)


def test_a_day_pays_for_replicas_while_they_start():
    slices = DayLoad(slices=((0.0, 1.0), (12 * 3600.0, 8.0)), end_s=86400.0)
    instant = day_savings(slices, capacity_per_s=2.0, gpus=2, spare=0, cold_start_s=0)
    assert [(row.replicas, row.gpus) for row in instant.rows] == [(1, 2), (4, 8)]
    assert instant.gpu_hours == pytest.approx(12 * 2 + 12 * 8)
    slow = day_savings(slices, capacity_per_s=2.0, gpus=2, spare=0, cold_start_s=3600)
    assert slow.gpu_hours == pytest.approx(instant.gpu_hours + 3 * 2)
    spare = day_savings(slices, capacity_per_s=2.0, gpus=2, spare=1, cold_start_s=0)
    assert spare.peak_gpus == 10
    assert instant.saved_share > slow.saved_share > 0
    with pytest.raises(InputError, match="cold start"):
        day_savings(slices, capacity_per_s=2.0, gpus=2, spare=0, cold_start_s=-1)


def _every(gap_s, begin_s, end_s):
    return [begin_s + gap_s * number for number in range(round((end_s - begin_s) / gap_s))]


def test_requests_of_a_trace_are_counted_by_the_hour_of_the_clock():
    day = counted_by_hour(
        [*_every(36, 8.5 * 3600, 9 * 3600), *_every(7.2, 9 * 3600, 10 * 3600), 11 * 3600, 11.75 * 3600]
    )
    assert [(begin_s / 3600, round(rate * 3600, 6)) for begin_s, rate in day.slices] == [
        (8.5, 100),  # 50 in half an hour
        (9, 500),
        (10, 0),
        (11, 2.666667),
    ]
    assert (day.end_s, day.peak_requests) == (11.75 * 3600, 500)
    assert day.busiest_s == (1800, 5400)


def test_a_few_minutes_at_an_end_of_a_trace_make_no_hour():
    burst = _every(0.1, 8.9 * 3600, 8.9 * 3600 + 10)
    day = counted_by_hour([*burst, *_every(36, 9 * 3600, 10 * 3600), *_every(36, 10 * 3600, 10.25 * 3600 + 36)])
    assert [begin_s for begin_s, _ in day.slices] == [8.9 * 3600]
    assert day.peak_per_s == pytest.approx((100 + 100 + 26) / (1.35 * 3600))


@pytest.mark.parametrize(
    ("busiest_h", "first_h", "last_h"),
    [(30, 0, 23), (6, 5, 23), (60, 13, 36), (50, 12, 35)],
)
def test_a_trace_of_days_is_the_day_of_its_busiest_hour(busiest_h, first_h, last_h):
    # from 5:00 of the first day to 12:00 of the third
    arrivals = sorted([*_every(600, 5 * 3600, 60 * 3600), *_every(60, busiest_h * 3600, (busiest_h + 1) * 3600)])
    day = counted_by_hour(arrivals)
    hours = [round(begin_s / 3600) for begin_s, _ in day.slices]
    assert (hours[0], hours[-1]) == (first_h, last_h)
    assert hours == list(range(first_h, last_h + 1))
    assert day.busiest_s[0] == (busiest_h - 5) * 3600


def test_requests_that_come_at_once_make_no_day():
    for arrivals in ([], [5.0], [5.0, 5.0]):
        with pytest.raises(InputError, match="no day"):
            counted_by_hour(arrivals)


@pytest.mark.parametrize("card", ["l4", "a100-80gb-pcie"])
def test_cards_of_a_node_share_tensors_without_a_fast_link(card):
    hardware, model = api.load_hardware(card), api.load_model("llama3.1-8b")
    assert {each.tensor for each in layouts(model, hardware, "vllm", max_gpus=64)} == {1, 2, 4, 8}
    small = in_nodes_of(hardware, 4)
    assert {each.tensor for each in layouts(model, small, "vllm", max_gpus=64)} == {1, 2, 4}
    assert with_scale_out(small, 1e9).links["scale_out"].gpus == 4


def test_a_card_without_a_link_is_alone():
    card = replace(api.load_hardware("h100-sxm"), links={})
    assert domain_gpus(card) == 1
    assert {each.tensor for each in layouts(api.load_model("llama3.1-8b"), card, "vllm", max_gpus=8)} == {1, 2}
