"""Prefill on one kind of engine, decode on another: what a run gives, and which pairs a plan tries."""

import pytest

import kvcalc
from kvcalc.plan.formats import format_names
from kvcalc.plan.planner.prices import Price
from kvcalc.plan.planner.traffic import traffic_of
from kvcalc.questions.planning import priced_cards, variants_of
from kvcalc.questions.written import write_plan
from kvcalc.simulate.metrics import parse_slo
from kvcalc.simulate.planner.apart import pairs_of, replicas_apart
from kvcalc.simulate.planner.candidates import Demand
from kvcalc.simulate.planner.confirmed import confirm_apart
from kvcalc.simulate.planner.explained import explain_plan
from kvcalc.simulate.planner.options import option_of
from kvcalc.simulate.planner.ranked import rank
from kvcalc.simulate.planner.runs import Bodies
from kvcalc.simulate.run import Serving, ServingRun
from kvcalc.simulate.timer import step_timer

PROMPT, ANSWER = 1000, 50


def _served(decode, prefill, rate=0.05):
    load = kvcalc.Load(prompt=str(PROMPT), output_tokens=str(ANSWER), rate=rate, requests=20, arrival="constant")
    serving = Serving(prefill_replicas=1, routing="least-loaded", transfer_bytes_per_s=1e15)
    timers = [step_timer(each, "serial", None, alike=True) for each in (decode, prefill)]
    run = ServingRun(decode, serving, timer=timers[0], prefill=prefill, prefill_timer=timers[1])
    run.serve(load.source(), ())
    return run


def test_first_tokens_are_those_of_the_card_that_prefills_and_the_others_of_the_one_that_decodes():
    cards = {name: kvcalc.deployment("llama3.1-8b", gpu=name, engine="vllm") for name in ("l4", "h100-sxm")}
    alone = {name: _served(card, card).summary() for name, card in cards.items()}
    assert alone["l4"].ttft_s["p50"] > 5 * alone["h100-sxm"].ttft_s["p50"]
    for decode, prefill in (("h100-sxm", "l4"), ("l4", "h100-sxm")):
        run = _served(cards[decode], cards[prefill])
        both = run.summary()
        assert both.ttft_s == pytest.approx(alone[prefill].ttft_s)
        # the first of the other tokens is the decoding engine's, too
        assert both.tpot_s == pytest.approx(alone[decode].tpot_s, rel=1e-3)
        memory_bytes = sum(card.memory_bytes for card in cards.values())
        assert both.output_tokens_per_s_per_gib == pytest.approx(both.output_tokens_per_s / (memory_bytes / 2**30))


def test_each_role_has_a_cache_and_sizes_of_its_own():
    small = kvcalc.deployment("llama3.1-8b", gpu="l4", engine="vllm")
    large = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", engine="vllm", tensor_parallel=2)
    run = _served(large, small)
    first, second = run.report("").replicas
    assert (first.role, second.role) == ("prefill", "decode")
    # as full as where both roles have such engines
    assert run.each[0].cache_used_share(1.0) == pytest.approx(_served(small, small).each[0].cache_used_share(1.0))
    assert run.each[1].cache_used_share(1.0) == pytest.approx(_served(large, large).each[1].cache_used_share(1.0))
    whole = run.summary().cache_used_share
    assert (
        min(first.cache_used_share, second.cache_used_share)
        < whole
        < max(first.cache_used_share, second.cache_used_share)
    )


def _load(rate):
    return kvcalc.Load(prompt="4096", output_tokens="100", rate=rate)


def _ranked(slo, prices, rate=30):
    cards = priced_cards(tuple(prices), {name: Price(usd_per_hour=usd) for name, usd in prices.items()}, nodes_of=None)
    variants, _ = variants_of(
        kvcalc.load_model("llama3.1-8b"), cards, engines=("vllm",), weights=(None, "fp8"), kv_dtypes=(None,),
        options={}, calibration=None, drafting=None,
    )  # fmt: skip
    traffic = traffic_of(_load(rate).kept_bodies(), rate_per_s=rate)
    demand = Demand(traffic=traffic, limits=parse_slo(slo), load_share=0.8, spare=0, max_gpus=64)
    ranking = rank(variants, demand).candidates
    return demand, ranking, {name: [one for one in ranking if one.deployment.hardware.name == name] for name in prices}


def test_pairs_are_the_cheapest_of_all_cards_and_layouts_in_the_same_formats():
    demand, pool, own = _ranked("ttft_p95=1s,tpot_p95=40ms", {"h100-sxm": 2.0, "h200": 9.0})
    pairs = pairs_of(own["h200"], pool, (), demand)
    assert {pair.decode.deployment.hardware.name for pair in pairs} == {"h200"}
    assert {pair.prefill.deployment.hardware.name for pair in pairs} == {"h100-sxm"}

    def usd(decode, prefill):
        prefills, decodes = replicas_apart(type(pairs[0])(decode, prefill), demand)
        return decode.cost(decodes)[0] + prefill.cost(prefills)[0]

    def formats(one):
        names = format_names(one.deployment.formats)
        return names.weights, names.kv

    every = sorted(
        usd(decode, prefill)
        for decode in own["h200"]
        for prefill in pool
        if formats(decode) == formats(prefill) and decode.copies == prefill.copies == 1
    )
    assert [usd(*pair) for pair in pairs] == pytest.approx(every[: len(pairs)])
    # a layout that holds without a split is tried as both parts
    alone = next(one for one in own["h200"] if one.copies == 1)
    (kept,) = (pair for pair in pairs_of(own["h200"], pool, [alone], demand) if pair.decode is pair.prefill)
    assert kept.decode is alone


def test_a_card_too_slow_for_the_first_token_prefills_nothing():
    prices = {"h100-sxm": 2.0, "l40s": 0.1}
    demand, pool, own = _ranked("ttft_p95=1s,tpot_p95=40ms", prices)
    assert {pair.prefill.deployment.hardware.name for pair in pairs_of(own["h100-sxm"], pool, (), demand)} == {"l40s"}
    strict, _, _ = _ranked("ttft_p95=100ms,tpot_p95=40ms", prices)
    pairs = pairs_of(own["h100-sxm"], pool, (), strict)
    assert pairs
    assert {pair.prefill.deployment.hardware.name for pair in pairs} == {"h100-sxm"}


def test_a_pair_on_two_cards_is_rented_and_started_as_such(tmp_path):
    slo = "ttft_p95=2s,tpot_p95=40ms"
    demand, pool, own = _ranked(slo, {"h100-sxm": 2.0, "l40s": 0.1}, rate=2)
    confirmed = confirm_apart(
        pairs_of(own["h100-sxm"], pool, (), demand)[0], demand, Bodies(_load(2), prefix_share=0.0), slo=slo
    )
    option = option_of(confirmed, demand)
    prefill, gpus = option.prefill, option.replicas * option.tensor_parallel * option.pipeline_parallel
    assert (option.gpu, prefill.gpu) == ("h100-sxm", "l40s")
    assert prefill.gpus == prefill.replicas * prefill.tensor_parallel * prefill.pipeline_parallel
    assert option.gpus == gpus + prefill.gpus
    assert option.rented == f"{gpus} x h100-sxm + {prefill.gpus} x l40s"
    assert option.usd_per_hour == pytest.approx(2.0 * gpus + 0.1 * prefill.gpus)
    assert option.usd_per_million_tokens.input_usd * 2 * 4096 * 3600 / 1e6 == pytest.approx(0.1 * prefill.gpus)
    assert option.ttft_p95_s <= 2
    assert [step.value for step in explain_plan(confirmed, demand) if step.quantity == "gpus"] == [option.gpus]
    write_plan(str(tmp_path), confirmed)
    script = (tmp_path / "start.sh").read_text()
    assert f"prefill: {prefill.replicas} x vllm, {prefill.gpus // prefill.replicas} x l40s each" in script
    assert f"decode: {option.replicas} x vllm, {gpus // option.replicas} x h100-sxm each" in script
    assert "kv_producer" in prefill.command
    assert "kv_consumer" in option.command
