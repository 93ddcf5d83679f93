"""The steady state of a replica agrees with the simulator, and copies that are alike with one pass over all of them."""

import pytest

from kvcalc import api
from kvcalc.core.workload import TokenGroup
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.roofline import step_time
from kvcalc.engines.options import EngineOptions
from kvcalc.plan.planner.traffic import traffic_of
from kvcalc.simulate.metrics import parse_slo
from kvcalc.simulate.planner.steady import Drafts, Steady, Steps
from kvcalc.simulate.ticks import TICKS_PER_S
from kvcalc.simulate.timer import RooflineTimer, sums_of

SLO = "ttft_p95=1s,tpot_p95=30ms"


def steady_of(deployment, load, pass_tokens, **more):
    traffic = traffic_of(load.kept_bodies(), rate_per_s=1.0)
    timer = RooflineTimer(deployment, kind="serial", alike=True)
    return Steady(Steps(timer, traffic.context), traffic, pass_tokens, **more)


@pytest.mark.parametrize(
    ("model", "prompt", "output"),
    [("llama3.1-8b", "1024", "300"), ("gpt-oss-20b", "lognormal:1020,0.9", "200"), ("qwen3-30b-a3b", "400", "100")],
)
def test_the_busiest_state_is_the_capacity_that_the_simulator_finds(model, prompt, output):
    deployment = api.deployment(model, gpu="h100-sxm", engine="vllm")
    load = api.Load(rate=5, prompt=prompt, output_tokens=output, requests=2000)
    state = steady_of(deployment, load, 8192).highest(parse_slo(SLO), slots=1024, cache_requests=2000)
    options = EngineOptions(max_num_batched_tokens=8192, max_num_seqs=1024, max_model_len=16384)
    serving = api.Serving(options=options, step_times="serial", slo=SLO, num_blocks=200_000)
    found = api.find_capacity(deployment, load.at_rate(state.rate_per_s), serving=serving, tolerance=0.03)
    assert state.rate_per_s == pytest.approx(found.requests_per_s, rel=0.15)


def test_fewer_slots_and_less_room_carry_less():
    deployment = api.deployment("llama3.1-8b", gpu="h100-sxm")
    load = api.Load(rate=5, prompt="1024", output_tokens="300", requests=50)
    steady, limits = steady_of(deployment, load, 8192), parse_slo(SLO)
    most = steady.highest(limits, slots=1024, cache_requests=2000)
    assert steady.highest(limits, slots=16, cache_requests=2000).rate_per_s < most.rate_per_s
    assert steady.highest(limits, slots=1024, cache_requests=10).rate_per_s < most.rate_per_s
    assert steady.highest(parse_slo("tpot_p95=1ms"), slots=1024, cache_requests=2000) is None
    assert steady.breaks(most, limits, slots=1024) == "tpot_p95"
    busier = [steady.latency(most, "ttft", name, slots=1024) for name in ("p50", "p95", "p99")]
    assert busier == sorted(busier)


@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("slo", [SLO, "e2e_p99=20s", "ttft_p95=200ms,inter_token_p99=60ms"])
def test_a_state_is_found_from_any_rate_that_is_a_hundredth_below_its_own(model, slo):
    """Near saturation the rate falls by less than a thousandth again while more requests run."""
    deployment = api.deployment(model, gpu="h100-sxm")
    load = api.Load(rate=5, prompt="1024", output_tokens="300", requests=50)
    limits = parse_slo(slo)
    for pass_tokens in (1024, 8192):
        for slots, held in ((1024, 2000), (64, 2000), (1024, 40)):
            steady = steady_of(deployment, load, pass_tokens)
            highest = steady.highest(limits, slots=slots, cache_requests=held)
            for share in (0.01, 0.5, 0.9, 0.99):
                rate = share * highest.rate_per_s
                assert steady.highest(limits, slots=slots, cache_requests=held, least_per_s=rate) == highest
            above = steady.highest(limits, slots=slots, cache_requests=held, least_per_s=1.01 * highest.rate_per_s)
            assert above is None


def test_drafts_that_are_accepted_shorten_steps_of_few():
    deployment = api.deployment("llama3.1-70b", gpu="h200", tensor_parallel=8)
    load = api.Load(rate=5, prompt="1024", output_tokens="300", requests=50)
    plain = steady_of(deployment, load, 8192).state(4)
    drafted = steady_of(deployment, load, 8192, drafts=Drafts(gamma=3, tokens_per_pass=2.5, steps=None)).state(4)
    assert drafted.decode_s < plain.decode_s / 2


def test_a_copy_among_alike_ones_takes_the_time_of_the_whole_pass():
    deployment = api.deployment("deepseek-v3", gpu="h200", data_parallel=8, expert_parallel=8)
    timer = RooflineTimer(deployment, kind="ideal", alike=True)
    contexts = [900, 1700, 300]
    groups = [TokenGroup(sequences=8, query_tokens=1, past_tokens=context - 1) for context in contexts]
    groups.append(TokenGroup(sequences=8, query_tokens=512, past_tokens=100))
    cost = forward_cost(deployment.model, groups, deployment.formats, parallel=deployment.parallel)
    sums = sums_of(contexts, timer)
    slopes = [0, 3, *(0 for _ in timer.caps), *(3 for _ in timer.periods)]
    first, _, _, _ = timer.line(3 + 512, 4, sums, slopes, [(512, 100)])
    assert first / TICKS_PER_S == pytest.approx(step_time(cost, deployment.hardware).latency_s, rel=1e-9)
