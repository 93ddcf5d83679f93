"""Metrics: each figure by its definition, on runs that can be counted by hand."""

import math

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Request
from kvcalc.simulate.metrics import LATENCIES, Metrics, latencies, parse_slo
from kvcalc.simulate.observers import Run, Served
from kvcalc.simulate.series import Series


def _request(name="a", arrival_s=1.0, prompt=100, output=3):
    return Request(name=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)


def _served(request=None, admitted_s=1.5, first_s=2.0, finish_s=4.0, output=3, preemptions=0, cached=0):
    return Served(request or _request(), admitted_s, first_s, finish_s, output, preemptions, cached)


def _run(start_s=1.0, end_s=3.0, steps=2, first_s=1.0, slope_s=0.0, **changed):
    fields = {"decodes": 2, "prefill_tokens": 0, "output_tokens": 2, "running": 2, "waiting": 1, "blocks": 4,
              "end_blocks": 6, "held_tokens": 50, "limiter": "memory"}  # fmt: skip
    return Run(start_s, end_s, steps, first_s, slope_s, **(fields | changed))


def _metrics(**options):
    return Metrics(usable_blocks=10, block_size=16, **options)


def test_latencies_are_those_of_the_definitions():
    assert latencies(_served()) == (1.0, 1.0, 3.0, 0.5)
    assert math.isnan(latencies(_served(output=1))[1])


def test_the_summary_of_two_requests():
    metrics = _metrics()
    metrics.finished(_served())
    metrics.finished(_served(_request("b", arrival_s=2.0, prompt=300), 2.5, 5.0, 9.0, output=5, cached=64))
    metrics.runs([_run(), _run(3.0, 9.0, steps=1, first_s=6.0, decodes=0, limiter="compute", running=1)])
    metrics.preempted(_request(), 3.0)
    found = metrics.summary(gpus=2, memory_bytes=2 * 2**30)
    assert (found.requests, found.makespan_s, found.prompt_tokens, found.output_tokens) == (2, 8.0, 400, 8)
    assert found.ttft_s == {"p50": 1.0, "p90": 3.0, "p95": 3.0, "p99": 3.0, "mean": 2.0}
    assert found.output_tokens_per_s == found.output_tokens_per_s_per_gpu * 2 == 1.0
    assert found.output_tokens_per_s_per_gib == 0.5
    assert found.total_tokens_per_s == 51.0
    assert found.requests_per_s == 0.25
    assert found.prefix_hit_ratio == 64 / 400
    assert found.preemptions == 1
    assert found.busy_share == 1.0
    assert found.mean_running_requests == (2 * 2 + 1 * 6) / 8
    assert found.cache_used_share == pytest.approx(5 / 10)
    assert found.cache_peak_share == 0.6
    assert found.limiter_shares == {"compute": 0.75, "memory": 0.25}
    assert found.inter_token_s["mean"] == 1.0
    assert (found.goodput_requests_per_s, found.slo_share) == (None, None)


def test_waste_is_the_places_without_a_token():
    metrics = _metrics()
    metrics.runs([_run(blocks=4, end_blocks=4, held_tokens=47, decodes=2)])  # 47, then 49 tokens in 4 blocks of 16
    assert metrics.summary(gpus=1, memory_bytes=1).cache_waste_share == pytest.approx(1 - 48 / 64)


def test_waste_is_not_told_where_blocks_are_of_several_kinds():
    metrics = Metrics(usable_blocks=10, block_size=None)
    metrics.runs([_run()])
    assert metrics.summary(gpus=1, memory_bytes=1).cache_waste_share is None


def test_the_token_after_a_gap_is_not_computed_again():
    metrics = _metrics()
    metrics.finished(_served())  # a prompt of 100, and one resumed with 102 known tokens, of which one is new
    metrics.gap(_request(), 1.0)
    metrics.runs([_run(prefill_tokens=101, steps=2)])
    assert metrics.summary(gpus=1, memory_bytes=1).recomputed_tokens == 101


def test_a_gap_counts_between_tokens():
    metrics = _metrics()
    metrics.runs([_run(decodes=1, steps=1)])
    metrics.gap(_request(), 7.0)
    assert metrics.statistics("inter_token") == {"p50": 1.0, "p90": 7.0, "p95": 7.0, "p99": 7.0, "mean": 4.0}


def test_goodput_counts_the_requests_that_met_every_limit():
    metrics = _metrics(slo=parse_slo("ttft_p95=2s,tpot_mean=900ms,inter_token_p99=1ms"))
    metrics.finished(_served())
    metrics.finished(_served(first_s=2.5, finish_s=3.5))
    metrics.finished(_served(first_s=3.5, finish_s=4.0))
    metrics.finished(_served(finish_s=2.0, output=1))
    found = metrics.summary(gpus=1, memory_bytes=1)
    assert found.slo_share == 0.5
    assert found.goodput_requests_per_s == 2 / found.makespan_s


def test_nothing_is_not_a_number_and_no_error():
    found = _metrics().summary(gpus=1, memory_bytes=0)
    assert found.requests == 0
    assert math.isnan(found.ttft_s["p95"])
    assert found.cache_used_share == found.output_tokens_per_s == 0


def test_limits_hold_or_break_by_their_statistic():
    metrics = _metrics()
    for number in range(20):
        metrics.finished(_served(first_s=2.0 if number else 9.0, finish_s=9.5))
    assert [metrics.kept(limit) for limit in parse_slo("ttft_p95=1s,ttft_p99=1s,ttft_mean=1.5s")] == [True, False, True]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "is not a limit"),
        ("ttft=1s", "is not a limit"),
        ("ttft_p42=1s", "is not a limit"),
        ("ttft_p95", "is not a limit"),
        ("ttft_p95=1s,ttft_p95=2s", "given twice"),
        ("ttft_p95=0s", "nothing takes no time"),
        ("ttft_p95=-1s", "not a duration"),
        ("ttft_p95=soon", "not a duration"),
        ("ttft_p95=1parsec", "unknown unit"),
    ],
)
def test_limits_that_cannot_be_are_refused(text, what):
    with pytest.raises(InputError, match=what):
        parse_slo(text)


def test_a_mistyped_limit_is_hinted_at():
    with pytest.raises(InputError) as error:
        parse_slo("tfft_p95=1s")
    assert "ttft_p95" in error.value.hint


def test_every_latency_can_be_a_limit():
    assert len(parse_slo(",".join(f"{name}_p50=1ms" for name in LATENCIES))) == len(LATENCIES)


def test_time_is_cut_into_slices_that_add_up():
    series = Series(usable_blocks=10)
    runs = [_run(float(second), second + 1.0, steps=1, output_tokens=2) for second in range(2000)]
    series.runs(runs)
    series.finished(_served(first_s=1500.25, finish_s=1999.0))
    rows = series.rows(2000.0)
    assert 120 <= len(rows) <= 240
    assert rows[0].start_s == 0.0
    assert rows[-1].end_s == 2000.0
    assert sum((row.end_s - row.start_s) * row.output_tokens_per_s for row in rows) == pytest.approx(4000)
    assert {round(row.running_requests, 9) for row in rows} == {2.0}
    assert {round(row.cache_used_share, 9) for row in rows} == {0.5}
    assert [row.ttft_s for row in rows if row.start_s <= 1500.25 < row.end_s] == [1499.25]


def test_a_long_run_is_spread_over_its_slices():
    series = Series(usable_blocks=10)
    series.runs([_run(0.0, 1000.0, steps=100, first_s=10.0)])
    rows = series.rows(1000.0)
    assert sum((row.end_s - row.start_s) * row.output_tokens_per_s for row in rows) == pytest.approx(200)
    assert {round(row.running_requests, 9) for row in rows} == {2.0}


def test_the_queue_over_time_is_the_time_that_requests_spent_in_it():
    series = Series(usable_blocks=10)
    waits = [(0.25, 0.25), (1.0, 3.0), (1.5, 900.0), (890.0, 2000.0), (1999.0, 1999.5)]
    for number, (start_s, end_s) in enumerate(waits):
        request = _request(str(number), arrival_s=start_s)
        if number == 2:  # waits a second time, after a preemption
            series.admitted(request, 1.75, 0)
            series.preempted(request, 2.0)
        series.admitted(request, end_s, 0)
    rows = series.rows(2000.0)
    for row in rows:
        spent_s = [min(row.end_s, end_s) - max(row.start_s, start_s) for start_s, end_s in waits]
        again_s = max(0.0, min(row.end_s, 2.0) - max(row.start_s, 1.75))
        expected_s = sum(spent for spent in spent_s if spent > 0) - again_s
        assert row.waiting_requests * (row.end_s - row.start_s) == pytest.approx(expected_s, abs=1e-9)


def test_of_several_replicas_the_figures_are_the_mean_of_one():
    """From 1 s to 4 s one of two replicas ran two sequences in five blocks for 2 s."""
    metrics = _metrics(replicas=2)
    metrics.finished(_served())
    metrics.runs([_run()])
    found = metrics.summary(gpus=2, memory_bytes=2**30)
    assert found.busy_share == pytest.approx(2 / 6)
    assert found.mean_running_requests == pytest.approx(2 * 2 / 6)
    assert found.cache_used_share == pytest.approx(5 * 2 / (10 * 6))
