"""``kvcalc plan``: what it recommends fits, holds and can be started."""

import json
import re
from dataclasses import replace

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.questions import ask, question
from kvcalc.render.layout import laid_out
from kvcalc.render.tables import table_parts
from kvcalc.simulate.planner.options import ranked_options

ASKED = {
    "model": "llama3.1-8b",
    "gpu": "h100-sxm",
    "prompt": "512",
    "output_tokens": "100",
    "rate": "30",
    "slo": "ttft_p95=500ms,tpot_p95=30ms",
    "confirm": "2",
}


@pytest.fixture(scope="module")
def report():
    return ask("plan", {**ASKED, "price": "h100-sxm=2.5"})


def run(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main(["plan", *words])
    return done.value.code, capsys.readouterr()


def _words(**changed):
    asked = {**ASKED, **changed}
    return [word for name, text in asked.items() for word in (f"--{name.replace('_', '-')}", text)]


def test_the_first_option_is_the_cheapest_and_all_keep_the_limits(report):
    first = report.options[0]
    assert [option.rank for option in report.options] == list(range(1, len(report.options) + 1))
    assert first.usd_per_hour == min(option.usd_per_hour for option in report.options)
    for option in report.options:
        assert option.ttft_p95_s <= 0.5
        assert option.tpot_p95_s <= 0.03
        assert option.confirmed
        assert option.usd_per_hour == 2.5 * option.gpus
        assert option.usd_per_million_output_tokens == pytest.approx(option.usd_per_hour / 3600 / 3000 * 1e6)
        assert 0.2 <= option.margin < 1
        assert option.command.startswith("vllm serve meta-llama/")
    prices = first.usd_per_million_tokens
    spent = 30 * 3600 * (512 * prices.input_usd + 100 * prices.output_usd) / 1e6
    assert spent == pytest.approx(first.usd_per_hour)
    assert first.usd_per_month == pytest.approx(first.usd_per_hour * 730)
    assert str(first.gpus) in report.answer
    assert "a month" in report.answer


def test_no_option_is_refused_by_the_memory_model(report):
    for option in report.options:
        deployment = kvcalc.deployment("llama3.1-8b", gpu=option.gpu, engine=option.engine, kv_dtype=option.kv_dtype,
                                       tensor_parallel=option.tensor_parallel, pipeline_parallel=option.pipeline_parallel)  # fmt: skip
        options = kvcalc.api.engine_options(option.engine, option.options)
        assert kvcalc.fit(deployment, options=options, context=612).fits


def test_a_plan_keeps_its_limits_with_other_requests(report):
    for option in report.options:
        deployment = kvcalc.deployment("llama3.1-8b", gpu=option.gpu, engine="vllm",
                                       tensor_parallel=option.tensor_parallel, pipeline_parallel=option.pipeline_parallel)  # fmt: skip
        options = kvcalc.api.engine_options("vllm", option.options)
        serving = kvcalc.Serving(options=options, replicas=option.replicas, routing="least-loaded",
                                 step_times="estimate", slo=ASKED["slo"])  # fmt: skip
        load = kvcalc.Load(rate=30, prompt="512", output_tokens="100", requests=5000, seed=11)
        summary = kvcalc.simulate_serving(deployment, load, serving=serving).summary
        assert summary.ttft_s["p95"] <= 0.5
        assert summary.tpot_s["p95"] <= 0.03


def test_without_a_price_gpus_are_counted():
    found = ask("plan", {**ASKED, "confirm": "1"})
    assert found.options[0].usd_per_hour is None
    assert any("no price" in note for note in found.notes)


def test_prices_of_cards_that_are_not_asked_for_are_noted(tmp_path):
    asked = {**ASKED, "confirm": "1", "slo": "tpot_p95=1us"}  # which no card can: nothing is simulated
    noted = "h200, h100-sxn are priced and not among the cards of --gpu"
    assert noted in ask("plan", {**asked, "price": "H100=2.5,h200=3.2,h100-sxn=1"}).notes
    prices = tmp_path / "prices.yaml"
    rows = "  - {gpu: h100-sxm, usd_per_gpu_hour: 2}\n  - {gpu: h200, usd_per_gpu_hour: 3}\n"
    prices.write_text(f"date: 2026-12-01\nprices:\n{rows}")
    assert not any("priced" in note for note in ask("plan", {**asked, "price": str(prices)}).notes)


def test_growth_margin_and_spares_ask_for_more():
    base = ask("plan", {**ASKED, "confirm": "1", "rate": "100"}).options[0]
    grown = ask("plan", {**ASKED, "confirm": "1", "rate": "100", "growth": "3"}).options[0]
    assert grown.gpus > base.gpus
    assert grown.load_requests_per_s == 300
    spare = ask("plan", {**ASKED, "confirm": "1", "rate": "100", "availability": "n+1"}).options[0]
    assert spare.replicas == base.replicas + 1
    tight = ask("plan", {**ASKED, "confirm": "1", "rate": "100", "margin": "40%"}).options[0]
    assert tight.margin >= 0.6
    assert tight.gpus > base.gpus


def test_limits_below_the_bound_are_no_plan(capsys):
    code, printed = run(capsys, *_words(slo="tpot_p95=100us"))
    assert code == 1
    assert printed.out.startswith("NO PLAN: no h100-sxm can: TPOT is at least ")
    assert " for this model at TP " in printed.out
    assert len(printed.out.splitlines()) == 1
    code, printed = run(capsys, *_words(slo="tpot_p95=100us"), "--json")
    assert code == 1
    assert json.loads(printed.out)["options"] == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"price": "h200=3"}, "no price of h100-sxm"),
        ({"gpu": "h100-sxm,h200,l4", "price": "h200=3"}, "no price of h100-sxm, l4 is given"),
        ({"gpu": "h100-sxm,h200,l4", "price": "h200=3"}, "add h100-sxm=2.5,l4=2.5 to --price"),
        ({"price": "cheap"}, "names no card"),
        ({"availability": "always"}, "availability"),
        ({"margin": "0"}, "margin"),
        ({"engine": "triton"}, "triton"),
        ({"slo": "fast"}, "slo"),
        ({"slo": "tpot_p95=40"}, "tpot_p95=40 has no unit"),
        ({"prompt": "500k"}, "was made for"),
        ({"arrival": "closed"}, "closed"),
        ({"why": "b200"}, "b200"),
        ({"day": "missing.csv"}, "missing.csv"),
        ({"day": "README.md"}, "is no slice of a day"),
        ({"gpu": "h1000"}, "h1000"),
        ({"gpu": "8xh200"}, "--gpu h200 --gpus 8, and in plan --gpus-at-most 8"),
        ({"gpus": "8"}, "plan chooses how many: --gpus-at-most 8"),
        ({"draft": "ngram"}, "acceptance"),
        ({"growth": "0"}, "growth"),
        ({"api_price": "0"}, "api-price"),
        ({"calibration": "none-such"}, "none-such"),
    ],
)
def test_bad_input_is_one_line(capsys, changed, said):
    code, printed = run(capsys, *_words(**{"confirm": "1", **changed}))
    assert code == 2
    assert said in printed.err
    assert "Traceback" not in printed.err
    assert not printed.out


def test_files_that_start_it_are_written(capsys, tmp_path):
    code, printed = run(capsys, *_words(confirm="1"), "--write", str(tmp_path / "out"), "--json")
    assert code == 0
    report = json.loads(printed.out)
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert set(files) == {"start.sh", "compose.yaml", "kubernetes.yaml"}
    assert report["options"][0]["command"] in files["start.sh"]
    assert sorted(report["files"]) == sorted(str(tmp_path / "out" / name) for name in files)


def test_weights_of_another_checkpoint_are_never_those_of_the_model(tmp_path):
    asked = {**ASKED, "confirm": "1", "weights": "nvfp4", "gpu": "b200", "write": str(tmp_path)}
    option = ask("plan", asked).options[0]
    assert "meta-llama" not in option.command
    assert "./llama3.1-8b-nvfp4" in option.command
    assert any("stands for a checkpoint of meta-llama/Meta-Llama-3.1-8B in nvfp4" in note for note in option.notes)
    assert "'/models/llama3.1-8b-nvfp4'" in (tmp_path / "compose.yaml").read_text()


def test_tokens_cost_by_the_time_they_take_at_the_load():
    # at a tenth of the load steps hold a tenth of the requests, and a generated token is dearer beside a prompt's
    busy = ask("plan", {**ASKED, "confirm": "1", "price": "h100-sxm=2"}).options[0].usd_per_million_tokens
    idle = ask("plan", {**ASKED, "confirm": "1", "price": "h100-sxm=2", "rate": "3"}).options[0].usd_per_million_tokens
    assert idle.output_usd / idle.input_usd > 1.5 * busy.output_usd / busy.input_usd


def test_a_break_even_is_a_load_that_the_replicas_carry():
    asked = {**ASKED, "confirm": "1", "price": "h100-sxm=2", "rate": "5"}
    dear = ask("plan", {**asked, "api_price": "50"}).options[0]
    assert 0 < dear.cheaper_than_api_from_requests_per_s < 0.8 * dear.capacity_requests_per_s
    cheap = ask("plan", {**asked, "api_price": "0.001"}).options[0]
    assert cheap.cheaper_than_api_from_requests_per_s is None
    assert any(note.startswith("the API is cheaper at every load") for note in cheap.notes)


def test_a_day_is_served_by_the_hour(tmp_path):
    day = tmp_path / "day.csv"
    day.write_text("start,rate\n00:00,10\n12:00,200\n")
    found = ask("plan", {**ASKED, "confirm": "1", "rate": "200", "day": str(day), "cold_start": "10min"})
    first, peak = found.day.rows
    assert first.replicas < peak.replicas
    assert found.day.peak_gpus == peak.gpus
    assert 0 < found.day.saved_share < 1
    assert not any("the day's peak" in note for note in found.notes)
    beyond = ask("plan", {**ASKED, "confirm": "1", "rate": "50", "day": str(day), "cold_start": "10min"})
    assert any("the day's peak of 200 requests/s is above the 50" in note for note in beyond.notes)
    # twelve hours of each, and the start of those that come at noon
    hours = 12 * (beyond.day.rows[0].gpus + beyond.day.rows[1].gpus)
    started = beyond.day.rows[1].gpus - beyond.day.rows[0].gpus
    assert beyond.day.gpu_hours == pytest.approx(hours + started * 600 / 3600)


def _trace(path, header="TIMESTAMP,ContextTokens,GeneratedTokens"):
    """Write two hours of requests from 08:00 on, of 400 tokens every 72 s, then of 600 tokens every 18 s."""
    rows = [(f"2026-03-02 08:{second // 60:02d}:{second % 60:02d}", 400, 20) for second in range(0, 3600, 72)]
    rows += [(f"2026-03-02 09:{second // 60:02d}:{second % 60:02d}", 600, 20) for second in range(0, 3600, 18)]
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


OF_A_DAY = {name: text for name, text in ASKED.items() if name not in ("prompt", "output_tokens", "rate")}


def test_a_trace_of_a_day_is_the_load_and_its_hours(tmp_path):
    asked = {**OF_A_DAY, "confirm": "1", "day": _trace(tmp_path / "log.csv")}
    found = ask("plan", asked)
    early, late = found.day.rows
    assert (early.start_s, late.start_s) == (8 * 3600, 9 * 3600)
    assert early.requests_per_s == pytest.approx(1 / 72)
    assert late.requests_per_s == pytest.approx(200 / 3582)
    assert found.day.fixed_gpu_hours == pytest.approx(late.gpus * 7182 / 3600)
    # planned for is the second hour: its lengths, at its rate
    assert "trace log.csv, minute 60 to 120" in found.workload
    assert found.options[0].command.endswith("--max-model-len 768 --port 8000")
    assert any("of a day; GPU-hours and savings" in note for note in found.notes)
    assert not any("is above the" in note for note in found.notes)
    named = {"columns": "time=ts,prompt=in,output=out", "day": _trace(tmp_path / "other.csv", "ts,in,out")}
    assert ask("plan", {**asked, **named}).day == found.day
    few = ask("plan", {**asked, "requests": "150"})
    assert any("the first 150 of 200 requests of the busiest hour" in note for note in few.notes)


def test_a_day_gives_the_rate_of_requests_that_are_described(tmp_path):
    lengths = {"prompt": "512", "output_tokens": "100", "confirm": "1"}
    (tmp_path / "day.csv").write_text("start,rate\n00:00,1\n12:00,2.5\n")
    assert "at 2.50 requests/s" in ask("plan", {**OF_A_DAY, **lengths, "day": str(tmp_path / "day.csv")}).workload
    named = {"columns": "time=ts,prompt=in,output=out", "day": _trace(tmp_path / "log.csv", "ts,in,out")}
    assert "512 in, 100 out" in ask("plan", {**OF_A_DAY, **lengths, **named}).workload
    with pytest.raises(kvcalc.InputError, match="no slice of a day") as error:
        ask("plan", {**OF_A_DAY, **lengths, "day": named["day"]})  # columns that nobody named
    assert "--columns" in error.value.hint


def test_why_a_card_is_not_the_first_is_said():
    found = ask("plan", {**ASKED, "gpu": "h100-sxm,h200", "price": "h100-sxm=2,h200=9", "confirm": "1", "why": "h200"})
    assert found.options[0].gpu == "h100-sxm"
    assert any("more than h100-sxm" in line for line in found.why)


def test_a_shared_prefix_and_drafts_are_served():
    shared = ask("plan", {**ASKED, "confirm": "1", "prefix_share": "0.5", "price": "h100-sxm=2"}).options[0]
    plain = ask("plan", {**ASKED, "confirm": "1", "price": "h100-sxm=2"}).options[0]
    assert shared.ttft_p95_s < plain.ttft_p95_s
    assert shared.usd_per_million_tokens.cached_usd is not None
    drafted = ask("plan", {**ASKED, "confirm": "4", "draft": "ngram", "acceptance": "0.7", "rate": "2"})
    assert any(option.gamma == 3 and "--speculative-config" in option.command for option in drafted.options)


def test_a_node_is_rented_whole_by_its_price(tmp_path):
    prices = tmp_path / "prices.yaml"
    prices.write_text("prices:\n  - {gpu: h100-sxm, usd_per_node_hour: 20, gpus_per_node: 8, cloud: some}\n")
    assert ask("plan", {**ASKED, "confirm": "1", "price": str(prices)}).options[0].usd_per_hour == 20
    prices.write_text("prices:\n  - {gpu: h100-sxm, usd: 20}\n")
    with pytest.raises(kvcalc.ProfileError, match="no field"):
        ask("plan", {**ASKED, "price": str(prices)})


def test_formulas_of_the_first_option_can_be_evaluated(report):
    del report
    answer = question("plan")(**{**ASKED, "price": "h100-sxm=2.5", "confirm": "1"}).answer()
    steps = answer.explained()
    assert {step.quantity for step in steps} >= {"tpot_s", "replicas", "gpus", "usd_per_million_output_tokens"}
    for step in steps:
        assert eval(step.expression, {"__builtins__": {}}) == pytest.approx(step.value)  # noqa: S307  our own text


def test_python_asks_the_same(report):
    found = kvcalc.plan_serving("llama3.1-8b", gpu="h100-sxm", slo=ASKED["slo"], rate=30, prompt="512",
                                output_tokens="100", price="h100-sxm=2.5", confirm=2)  # fmt: skip
    assert found.options == report.options
    assert replace(found, notes=()) == replace(report, notes=())


def test_prefill_and_decode_apart_are_a_pair_of_commands():
    asked = {**ASKED, "confirm": "1", "disaggregate": "true", "price": "h100-sxm=2"}
    found = ask("plan", asked)
    (pair,) = (option for option in found.options if option.prefill is not None)
    assert pair.gpus == pair.prefill.gpus + pair.replicas * pair.tensor_parallel * pair.pipeline_parallel
    assert pair.usd_per_hour == 2 * pair.gpus
    assert '"kv_consumer"' in pair.command
    assert '"kv_producer"' in pair.prefill.command
    assert pair.ttft_p95_s <= 0.5
    assert 0.2 <= pair.margin < 1
    prices, prefill = pair.usd_per_million_tokens, pair.prefill
    assert prefill.gpu == "h100-sxm"
    assert pair.rented == f"{pair.gpus} x h100-sxm"
    # engines that prefill are the price of prompts, the others of what is generated
    assert prices.input_usd * 30 * 512 * 3600 / 1e6 == pytest.approx(2 * prefill.gpus)
    assert prices.output_usd * 30 * 100 * 3600 / 1e6 == pytest.approx(2 * (pair.gpus - prefill.gpus))


def test_what_a_plan_carries_is_served_as_fast_as_it_comes():
    asked = {"model": "llama3.1-8b", "gpu": "l4", "prompt": "4096", "output_tokens": "300"}
    first = ask("plan", {**asked, "rate": "2", "slo": "tpot_p95=100ms", "confirm": "1"}).options[0]
    each = first.capacity_requests_per_s / first.replicas
    served = kvcalc.simulate_serving(
        kvcalc.deployment("llama3.1-8b", gpu="l4", engine="vllm", tensor_parallel=first.tensor_parallel),
        kvcalc.Load(rate=each, prompt="4096", output_tokens="300", requests=1000),
        serving=kvcalc.Serving(step_times="estimate"),
    ).summary
    assert served.requests_per_s > 0.9 * each


@pytest.mark.parametrize("asked", [{"engine": "llama.cpp"}, {"gpu": "m1-max-32"}])
def test_llama_cpp_is_planned_and_is_the_engine_of_apple(asked):
    words = {**ASKED, "rate": "0.2", "slo": "tpot_p95=200ms", "confirm": "1", **asked}
    assert {option.engine for option in ask("plan", words).options} == {"llama.cpp"}


def test_a_capacity_beyond_the_search_is_a_least_one_and_names_no_limit(capsys):
    _, printed = run(capsys, *_words(rate="1", confirm="1"))
    assert "It carries at least 3.75 requests/s" in printed.out
    assert "_p95\n" not in printed.out.split("margin")[1].split("load")[0]


def test_one_output_token_has_no_tpot(capsys):
    _, printed = run(capsys, *_words(output_tokens="1", rate="5", slo="ttft_p95=500ms", confirm="1"))
    assert "nan" not in printed.out
    assert "Rent 1 x h100-sxm" in printed.out


def test_too_few_gpus_are_named_as_the_cause():
    reasons = ask("plan", {**ASKED, "rate": "500", "gpus_at_most": "2"}).reasons
    assert "--gpus-at-most allows 2" in reasons[0]


def test_the_reason_is_the_fewest_gpus_that_the_load_needs():
    asked = {"model": "llama3.1-8b", "gpu": "h100-sxm", "slo": "tpot_p95=40ms", "prompt": "1k", "output_tokens": "300"}
    few = ask("plan", {**asked, "rate": "100", "gpus_at_most": "4"})
    said = r"h100-sxm: the load needs at least (\d+) GPUs by the estimate, at TP 1, and --gpus-at-most allows 4"
    needed = int(re.fullmatch(said, few.reasons[0])[1])
    assert needed > 4
    assert not few.counts.simulated
    # with so many the estimate leaves a layout for the simulator, with one fewer none
    assert ask("plan", {**asked, "rate": "100", "gpus_at_most": str(needed), "confirm": "1"}).counts.simulated
    assert not ask("plan", {**asked, "rate": "100", "gpus_at_most": str(needed - 1), "confirm": "1"}).counts.simulated
    (reason,) = ask("plan", {**asked, "rate": "100000", "gpus_at_most": "1024"}).reasons
    assert re.search(r"needs at least \d,\d{3} GPUs by the estimate, at .*, and --gpus-at-most allows 1,024$", reason)


def test_a_bound_is_no_reason_where_a_layout_is_not_below_it():
    asked = {"model": "llama3.3-70b", "gpu": "l40s", "prompt": "2k", "output_tokens": "500", "rate": "5"}
    found = ask("plan", {**asked, "slo": "ttft_p95=2s,tpot_p95=50ms"})
    assert found.counts.pruned
    assert found.counts.ranked
    assert re.fullmatch(r"l40s: the load needs at least \d+ GPUs by .*, and --gpus-at-most allows 64", found.reasons[0])


def test_the_bound_that_is_named_is_that_of_the_closest_layout():
    # both limits are below the bound of every layout: the one that is missed by more is the reason
    (reason,) = ask("plan", {**ASKED, "slo": "ttft_p95=1ms,tpot_p95=10us", "gpus_at_most": "2"}).reasons
    (other,) = ask("plan", {**ASKED, "slo": "tpot_p95=10us", "gpus_at_most": "2"}).reasons
    assert reason == other
    assert "TPOT is at least" in reason
    assert " at TP 2" in reason


def test_limits_that_no_load_keeps_are_said_of_every_layout():
    # above the bound of one request alone, below any estimate
    bound = ask("plan", {**ASKED, "slo": "tpot_p95=10us", "gpus_at_most": "1"}).reasons[0]
    least_ms = float(bound.split("at least ")[1].split(" ms")[0])
    (reason,) = ask("plan", {**ASKED, "slo": f"tpot_p95={least_ms + 0.02:.2f}ms", "gpus_at_most": "1"}).reasons
    assert reason == "h100-sxm: no layout of at most 1 GPU keeps the limits at any load, by the estimate"


def _table(shown):
    return laid_out(table_parts(shown), width=200, styled=False)


def test_bounds_are_marked_beside_estimates_and_beat_none(report):
    first = report.options[0]
    faster = replace(first, gpu="mi300x", calibration="", ttft_p95_s=first.ttft_p95_s / 2)
    slower = replace(first, gpu="mi300x", calibration="", ttft_p95_s=first.ttft_p95_s * 2)
    ranked = ranked_options([faster, slower, first])
    assert [bool(option.calibration) for option in ranked] == [True, False, False]
    assert [option.pareto for option in ranked] == [True, True, False]
    shown = _table(replace(report, options=ranked))
    rows = [line for line in shown.splitlines() if line[:1].isdigit()]
    assert [row.split()[-1] for row in rows] == ["estimate", "bound", "bound"]
    assert "; a bound is not taken to be better than an estimate" in shown
    assert "bound: the card has no calibration" in shown
    alone = _table(replace(report, options=ranked_options([faster, slower]))).split("\nload ")[0]
    assert "bound: the card has no calibration" in alone
    assert "estimate" not in alone
    assert "bound:" not in _table(report)
    assert "estimate\n" not in _table(report).split("\nload ")[0]


def test_a_card_that_is_not_simulated_any_more_is_said_to_be_so(monkeypatch):
    monkeypatch.setattr("kvcalc.simulate.planner.planned.MAX_SIMULATED", 1)
    found = ask("plan", {**ASKED, "gpu": "h100-sxm,h200", "confirm": "1"})
    assert [option.gpu for option in found.options] == ["h100-sxm"]
    assert found.reasons == ("h200: none of its layouts was simulated: a plan simulates 1 at most",)
