"""Stationary runs: how long they are, what of them counts, and that a longer run agrees with their capacity."""

import math

import pytest

from kvcalc import api
from kvcalc.core.requests import Request
from kvcalc.engines.options import EngineOptions
from kvcalc.simulate.metrics import Metrics, parse_slo
from kvcalc.simulate.observers import Served
from kvcalc.simulate.stationary import BrokenOffError, RunLength, StationaryPart, run_length

SLO = "ttft_p95=1s"
METRICS = Metrics(usable_blocks=1, block_size=None)


def served(number, arrival_s, *, queue_s=0.0, ttft_s=0.1, e2e_s=1.0):
    request = Request(str(number), arrival_s, 10, 5)
    return Served(request, arrival_s + queue_s, arrival_s + ttft_s, arrival_s + e2e_s, 5, 0, 0)


def part_of(rows, *, slo=SLO, length=None, rate=None):
    part = StationaryPart(parse_slo(slo), length=length, rate_per_s=rate)
    for row in sorted(rows, key=lambda row: row.finish_s):
        part.finished(row)
    return part


def test_the_requests_that_fill_the_server_do_not_count():
    rows = [served(place, float(place), ttft_s=0.1 if place < 200 else 0.5) for place in range(1000)]
    found = part_of(rows, length=RunLength(warm_up=200, measured=800)).measured(METRICS)
    assert found.requests == 800
    assert found.latencies_s["ttft"]["mean"] == pytest.approx(0.5)
    assert found.pressure == pytest.approx(0.5)
    whole = part_of(rows).measured(METRICS)
    assert whole.latencies_s["ttft"]["mean"] == pytest.approx(0.42)


def test_requests_in_the_server_are_rate_times_residence():
    rows = [served(place, place / 10, e2e_s=4.0) for place in range(2000)]
    found = part_of(rows, length=RunLength(warm_up=400, measured=1600)).measured(METRICS)
    assert found.running == pytest.approx(40, abs=1)  # Little: 10 a second for 4 s
    assert found.piled_share == 0


@pytest.mark.parametrize(("served_share", "grows"), [(1.0, False), (0.99, False), (0.9, True), (0.5, True)])
def test_a_queue_that_grows_breaks_the_served_rate(served_share, grows):
    # one server that takes 1 / served_share of the time between arrivals
    rows = [
        served(place, float(place), queue_s=place * (1 / served_share - 1), ttft_s=0.1, e2e_s=place / served_share + 1)
        for place in range(3000)
    ]
    found = part_of(rows, length=RunLength(warm_up=500, measured=2500)).measured(METRICS)
    assert found.piled_share == pytest.approx(1 - served_share, abs=0.005)
    assert ("served_rate" in found.broken) is grows
    assert math.isinf(found.pressure) is grows


def test_many_requests_at_once_make_a_run_longer():
    assert run_length(10) == run_length() == RunLength(warm_up=1000, measured=5000)
    long = run_length(3000)
    assert long.measured >= 5 * 3000
    assert long.warm_up >= 2 * 3000


def test_a_run_that_cannot_keep_its_limit_is_broken_off_and_one_that_can_is_not():
    length = RunLength(warm_up=200, measured=800)
    slow = [served(place, float(place), ttft_s=2.0 if place >= 300 and place % 10 == 0 else 0.1, e2e_s=3) for place in range(1000)]  # fmt: skip
    with pytest.raises(BrokenOffError) as ended:
        part_of(slow, length=length, rate=1.0)
    assert ended.value.broken == "ttft_p95"
    fine = [served(place, float(place), ttft_s=2.0 if place % 25 == 0 else 0.1, e2e_s=3) for place in range(1000)]
    assert part_of(fine, length=length, rate=1.0).measured(METRICS).broken == ()


def test_a_run_shorter_than_its_answers_take_is_not_taken_for_a_queue_that_grows():
    length = RunLength(warm_up=500, measured=2500)
    steady = [served(place, place / 400, e2e_s=4.4) for place in range(3000)]  # 400 a second, 1,760 in the server
    found = part_of(steady, length=length, rate=400.0).measured(METRICS)
    assert found.broken == ()
    piled = [served(place, place / 400, queue_s=place / 200, ttft_s=place / 200, e2e_s=place / 200 + 0.4) for place in range(3000)]  # fmt: skip
    with pytest.raises(BrokenOffError) as ended:
        part_of(piled, slo="tpot_p95=1s", length=length, rate=400.0)
    assert ended.value.broken == "served_rate"


def test_answers_of_one_token_have_no_time_per_token_to_limit():
    rows = [served(place, float(place)) for place in range(1000)]
    single = [row._replace(output_tokens=1) for row in rows]
    assert part_of(single, slo="tpot_p95=40ms").measured(METRICS).broken == ()


def test_the_upper_end_of_a_statistic_is_wider_where_requests_resemble_their_neighbours():
    spread = [0.1 + 0.8 * (place * 7 % 100) / 100 for place in range(2000)]
    bunched = sorted(spread[:1000]) + sorted(spread[1000:])
    likely = []
    for values in (spread, bunched):
        rows = [served(place, float(place), ttft_s=value) for place, value in enumerate(values)]
        found = part_of(rows).measured(METRICS)
        assert found.pressure == pytest.approx(0.85, abs=0.02)
        likely.append(found.likely_pressure)
    assert found.pressure <= likely[0] < likely[1]


CASES = {
    "README": ({"gpu": "h100-sxm"}, "tpot_p95=40ms"),
    "two H100": ({"gpu": "h100-sxm", "gpus": 2}, "ttft_p95=1s,tpot_p95=40ms"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_capacity_is_that_of_a_long_run(name):
    where, slo = CASES[name]
    deployment = api.deployment("llama3.1-8b", engine="vllm", **where)
    serving = api.Serving(options=EngineOptions(), step_times="estimate", slo=slo)
    load = api.Load(rate=30, prompt="1k", output_tokens="300")
    found = api.find_capacity(deployment, load, serving=serving, tolerance=0.02)
    assert found.requests >= 12_000
    for share, held in ((0.965, True), (1.035, False)):
        long = api.Load(rate=found.requests_per_s * share, prompt="1k", output_tokens="300", requests=30_000, seed=5)
        summary = api.simulate_serving(deployment, long, serving=serving).summary
        limits = parse_slo(slo)
        kept = [getattr(summary, f"{each.latency}_s")[each.statistic] <= each.most_s for each in limits]
        # a queue without end is served at less than the rate at which requests come
        assert (all(kept) and summary.requests_per_s > 0.985 * long.rate) is held
