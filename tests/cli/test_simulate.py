"""``kvcalc simulate`` and ``kvcalc sweep``: what is printed, what is written, and what a mistake is told."""

import csv
import json
from dataclasses import replace
from itertools import pairwise

import pytest

import kvcalc
from kvcalc.api import Load, Serving, find_capacity, simulate_serving
from kvcalc.cli.main import main
from kvcalc.core.requests import Request
from kvcalc.engines.options import EngineOptions
from kvcalc.sources import load_calibration

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:15:{second:02d}.5000000,{200 + 10 * second},{20 + second}\n" for second in range(30)
)
BASE = ["simulate", "--model", "llama3.1-8b", "--gpu", "h200"]
SMALL = [*BASE, "--prompt", "uniform:50-300", "--output-tokens", "20", "--rate", "20", "--requests", "60"]


def _last_of_each(arguments):
    """Leave out an option of `SMALL` that a test gives another value."""
    left = list(arguments)
    for option in ("--model", "--rate", "--requests"):
        while left.count(option) > 1:
            index = left.index(option)
            del left[index : index + 2]
    return left


def _run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(_last_of_each(arguments))
    printed = capsys.readouterr()
    return done.value.code, printed.out, printed.err


def _json(capsys, *arguments):
    code, out, err = _run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return str(path)


@pytest.fixture(scope="module")
def deployment():
    return kvcalc.deployment("llama3.1-8b", gpu="h200")


def test_the_json_has_the_fields_that_scripts_depend_on(capsys, trace):
    found = _json(capsys, *BASE, "--trace", trace, "--arrival", "poisson", "--rate", "6.45", "--seed", "0")
    assert found["schema"] == "kvcalc.simulate/1"
    summary = found["summary"]
    assert summary["requests"] == 30
    assert summary["output_tokens"] == sum(range(20, 50))
    assert {"makespan_s", "ttft_s", "tpot_s", "preemptions", "prefix_hit_ratio"} <= set(summary)
    for name in ("ttft_s", "tpot_s", "inter_token_s", "e2e_s", "queue_s"):
        assert list(summary[name]) == ["p50", "p90", "p95", "p99", "mean"]
        assert summary[name]["p50"] <= summary[name]["p90"] <= summary[name]["p95"] <= summary[name]["p99"]
    assert found["setup"]["max_num_batched_tokens"] == 8192


def test_the_same_seed_prints_the_same_bytes(capsys):
    first, again, other = (_run(capsys, *SMALL, "--seed", seed, "--json")[1] for seed in ("1", "1", "2"))
    assert first == again != other


def test_jumps_and_steps_come_to_the_same(capsys):
    jumped, stepped = _json(capsys, *SMALL), _json(capsys, *SMALL, "--exact-steps")
    assert jumped["summary"]["steps"] == stepped["summary"]["steps"]
    assert jumped["summary"]["ttft_s"] == pytest.approx(stepped["summary"]["ttft_s"], rel=1e-9)
    assert jumped["summary"]["makespan_s"] == pytest.approx(stepped["summary"]["makespan_s"], rel=1e-9)


def test_the_trace_keeps_its_own_times_or_is_stretched(capsys, trace):
    own = _json(capsys, *BASE, "--trace", trace)["summary"]["makespan_s"]
    fast = _json(capsys, *BASE, "--trace", trace, "--rate", "10")["summary"]["makespan_s"]
    assert own == pytest.approx(29.2, abs=0.3)
    assert fast == pytest.approx(3.2, abs=0.3)


def test_the_cache_is_what_fit_says(capsys, deployment):
    options = EngineOptions(max_model_len=8192, max_num_seqs=64)
    fits = kvcalc.fit(deployment, options=options)
    limits = ["--max-model-len", "8192", "--max-num-seqs", "64"]
    assert _json(capsys, *SMALL, *limits)["setup"]["num_blocks"] == fits.num_blocks
    assert _json(capsys, *SMALL, *limits, "--kv-memory", "2GiB")["setup"]["num_blocks"] == 1024


def test_the_table_says_what_matters(capsys):
    code, out, _ = _run(capsys, *SMALL, "--slo", "ttft_p95=1s", "--replicas", "2", "--routing", "least-loaded")
    assert code == 0
    for words in ("TTFT (first token)", "goodput, requests/s", "100.0% of requests", "least-loaded", "running"):
        assert words in out


def test_requests_are_written_row_by_row(capsys, tmp_path):
    paths = [tmp_path / "requests.csv", tmp_path / "requests.parquet"]
    for path in paths:
        assert _run(capsys, *SMALL, "--save-requests", str(path))[0] == 0
    with paths[0].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60
    for row in rows:
        assert float(row["ttft_s"]) == float(row["first_token_s"]) - float(row["arrival_s"])
        assert float(row["tpot_s"]) == pytest.approx((float(row["finish_s"]) - float(row["first_token_s"])) / 19)
    table = pytest.importorskip("pyarrow.parquet").read_table(paths[1])
    assert table.column("ttft_s").to_pylist() == [float(row["ttft_s"]) for row in rows]
    assert str(table.schema.field("prompt_tokens").type) == "int64"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)


def test_parquet_without_pyarrow_says_how_to_get_it(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    code, _, err = _run(capsys, *SMALL, "--save-requests", str(tmp_path / "requests.parquet"))
    assert code == 2
    assert "pip install 'kvcalc[parquet]'" in err
    assert not list(tmp_path.iterdir())


def test_a_trace_for_perfetto_holds_every_request(capsys, tmp_path):
    path = tmp_path / "trace.json"
    assert _run(capsys, *SMALL, "--save-trace", str(path))[0] == 0
    events = json.loads(path.read_text())["traceEvents"]
    decoded = [event for event in events if event["ph"] == "b" and event["name"] == "decode"]
    assert len({event["id"] for event in decoded}) == 60
    spans = [event for event in events if event["ph"] == "X"]
    assert all(event["dur"] > 0 for event in spans)
    assert sum(event["args"]["steps"] for event in spans) > 0
    assert {event["name"] for event in events if event["ph"] == "C"} == {"requests", "queue", "blocks"}


def test_each_engine_has_tracks_of_its_own_in_a_trace(capsys, tmp_path):
    path = tmp_path / "trace.json"
    apart = ["--replicas", "2", "--prefill-replicas", "1", "--rate", "500", "--save-trace", str(path)]
    assert _run(capsys, *SMALL, *apart)[0] == 0
    events = json.loads(path.read_text())["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert sorted(names.values()) == ["engine 0", "engine 1", "engine 2", "requests"]
    for process, name in names.items():
        spans = sorted(
            (event["ts"], event["dur"]) for event in events if event["ph"] == "X" and event["pid"] == process
        )
        assert bool(spans) == (name != "requests")
        assert all(start + took <= later + 1e-3 for (start, took), (later, _) in pairwise(spans))


def test_charts_are_written(capsys, tmp_path):
    svg = tmp_path / "run.svg"
    assert _run(capsys, *SMALL, "--svg", str(svg))[0] == 0
    text = svg.read_text()
    assert text.startswith("<svg")
    for title in ("Concurrent requests", "KV cache in use", "Latency", "Latency distribution"):
        assert title in text


def test_a_request_that_can_never_run_is_counted_and_told(deployment):
    requests = [
        Request(name="big", arrival_s=0.0, prompt_tokens=5000, output_tokens=5),
        Request(name="ok", arrival_s=1.0, prompt_tokens=50, output_tokens=5),
    ]
    report = simulate_serving(deployment, requests, serving=Serving(num_blocks=100))
    assert (report.summary.requests, report.summary.refused_requests) == (1, 1)
    assert report.notes[0] == "request big can never run: the cache does not hold its 5,004 tokens"


def test_the_capacity_keeps_the_limits_and_more_does_not(deployment):
    load = Load(prompt="1000", output_tokens="50", rate=5.0, requests=150)
    serving = Serving(slo="ttft_p95=200ms,tpot_p95=15ms")
    found = find_capacity(deployment, load, serving=serving, tolerance=0.05)
    assert found.requests_per_s < found.above_requests_per_s <= found.requests_per_s * 1.05
    kept = simulate_serving(deployment, load, serving=serving, capacity=found)
    assert kept.capacity == found
    assert kept.summary.ttft_s["p95"] <= 0.2
    assert kept.summary.tpot_s["p95"] <= 0.015
    above = simulate_serving(deployment, load.at_rate(found.above_requests_per_s), serving=serving).summary
    latency, _, statistic = found.broken.rpartition("_")
    assert getattr(above, f"{latency}_s")[statistic] > {"ttft": 0.2, "tpot": 0.015}[latency]


def test_limits_that_no_load_keeps_are_told(capsys):
    found = _json(capsys, *SMALL, "--find-capacity", "--slo", "ttft_p95=1us")
    assert found["capacity"]["requests_per_s"] == 0
    assert "no load keeps ttft_p95" in found["notes"][0]


def test_the_first_of_several_limits_that_break_is_named(capsys):
    slo = "tpot_p95=1us,ttft_p95=1us"
    found = _json(capsys, *SMALL, "--find-capacity", "--slo", slo)["capacity"]
    assert found["broken"] == "tpot_p95"


def test_prefill_and_decode_apart_take_the_network(capsys):
    found = _json(capsys, *SMALL, "--prefill-replicas", "1", "--transfer-rate", "50GB/s")
    assert [row["role"] for row in found["replicas"]] == ["prefill", "decode"]
    assert [row["output_tokens"] for row in found["replicas"]] == [60, 60 * 19]
    assert found["gpus"] == 2


def test_conversations_find_what_was_said_in_the_cache(capsys):
    talk = [
        *BASE,
        "--prompt",
        "64",
        "--output-tokens",
        "32",
        "--turns",
        "4",
        "--system-tokens",
        "256",
        "--think",
        "1s",
        "--rate",
        "2",
        "--requests",
        "40",
    ]
    assert _json(capsys, *talk)["summary"]["prefix_hit_ratio"] > 0.5
    assert _json(capsys, *talk, "--no-prefix-caching")["summary"]["prefix_hit_ratio"] == 0


def test_closed_loops_have_no_more_requests_than_users(capsys):
    found = _json(capsys, *BASE, "--prompt", "100", "--output-tokens", "10", "--users", "7", "--requests", "50")
    assert found["summary"]["most_running_requests"] == 7
    assert found["summary"]["requests"] == 50


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["simulate"], "--model is missing"),
        (["simulate", "--model", "llama3.1-8b"], "--gpu is missing"),
        (BASE, "lengths of requests are not known"),
        ([*BASE, "--prompt", "5"], "lengths of requests are not known"),
        ([*BASE, "--prompt", "5", "--output-tokens", "5"], "poisson arrivals need a rate"),
        ([*SMALL, "--rate", "-1"], "rate"),
        ([*SMALL, "--rate", "nan"], "rate"),
        ([*SMALL, "--arrival", "poison"], "arrival 'poison' is not known"),
        ([*SMALL, "--arrival", "trace"], "no trace"),
        ([*SMALL, "--users", "3"], "rate of a closed loop follows from its users"),
        ([*SMALL, "--users", "3", "--arrival", "gamma"], "users wait for answers in a closed loop"),
        ([*SMALL, "--trace", "x.csv"], "lengths of requests are the trace's"),
        ([*SMALL, "--columns", "prompt=a,output=b"], "columns are those of a trace"),
        ([*SMALL, "--think", "5s"], "nobody thinks"),
        ([*SMALL, "--requests", "0"], "requests must be"),
        ([*SMALL, "--replicas", "0"], "replicas must be"),
        ([*SMALL, "--replicas", "2", "--routing", "fastest"], "routing 'fastest' is not known"),
        ([*SMALL, "--calibration", "vllm-hopper"], "a calibration is for step times that are estimated"),
        ([*SMALL, "--step-times", "estimate", "--calibration", "quick"], "unknown calibration 'quick'"),
        ([*SMALL, "--step-times", "quick"], "step times 'quick' are not known"),
        ([*SMALL, "--step-times", "0s"], "a step must take some time"),
        ([*SMALL, "--policy", "lifo"], "policy 'lifo' is not known"),
        ([*SMALL, "--engine", "sglang"], "scheduler of engine 'sglang' is not modelled"),
        ([*BASE, "--prompt", "5", "--output-tokens", "5", "--users", "0"], "a closed loop of 0 users"),
        ([*SMALL, "--prefill-replicas", "-1"], "from 0 to 1,024, not -1"),
        ([*SMALL, "--transfer-rate", "1GB/s"], "nothing is sent"),
        ([*SMALL, "--preemption", "drop"], "preemption 'drop' is not known"),
        ([*SMALL, "--preemption", "swap"], "rate of the link to the host"),
        ([*SMALL, "--host-rate", "50GB/s"], "nothing goes to the host"),
        ([*SMALL, "--gamma", "3"], "needs an acceptance"),
        ([*SMALL, "--gamma", "-1", "--acceptance", "0.5"], "gamma must be"),
        ([*SMALL, "--acceptance", "0.5"], "acceptance is that of drafts"),
        ([*SMALL, "--draft", "llama3.2-1b"], "a draft model drafts"),
        ([*SMALL, "--gamma", "3", "--acceptance", "0.5,0.3,0.1"], "a list by position, which has two readings"),
        ([*SMALL, "--gamma", "3", "--acceptance-by-position", "0.5,0.3"], "given for 2 positions, and gamma is 3"),
        ([*SMALL, "--gamma", "3", "--acceptance", "1.5"], "acceptance must be from 0 to 1"),
        ([*SMALL, "--gamma", "3", "--acceptance", "1", "--max-num-batched-tokens", "3"], "no verification of 4 tokens fits"),
        ([*SMALL, "--tp", "3"], "not shared evenly by 3"),
        ([*SMALL, "--kv-dtype", "q8_0", "--kv-memory", "1GiB"], "vLLM keeps no cache in q8_0"),
        (["simulate", "--steps", "x.json", "--svg", "x.svg"], "a replay takes all it needs from its file"),
        (["simulate", "--steps", "x.json", "--rate", "3"], "a replay takes all it needs from its file"),
        ([*SMALL, "--find-capacity"], "needs limits"),
        ([*SMALL, "--find-capacity", "--slo", "ttft_p95=1s", "--tolerance", "0"], "tolerance"),
        ([*SMALL, "--slo", "ttft=1s"], "is not a limit"),
        ([*SMALL, "--kv-memory", "1KiB"], "vllm does not start: the cache does not hold one sequence"),
        ([*SMALL, "--save-requests", "requests.txt"], "written as .csv or .parquet"),
        ([*SMALL, "--save-trace", "trace.txt"], "written as .json"),
        ([*SMALL, "--save-requests", "nowhere/requests.csv"], "there is no such folder"),
        ([*BASE, "--trace", "nowhere.csv"], "No such file"),
        ([*BASE, "--prompt", "uniform:9-5", "--output-tokens", "5", "--rate", "1"], "not a distribution"),
        (["sweep", "--report", "simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--rate", "1,x"], "not a list of numbers"),
        (["sweep", "--model", "llama3.1-8b", "--gpu", "h200", "--rate", "1"], "--rate is an option of simulate"),
        (["sweep", "--model", "llama3.1-8b", "--gpu", "h200", "--resume"], "cannot be resumed"),
        (["sweep", "--model", "llama3.1-8b,", "--gpu", "h200"], "empty name"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line_and_a_hint(capsys, arguments, what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = _run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert what in err
    assert err.count("\n") <= 2
    assert not list(tmp_path.iterdir())


def test_a_bad_row_of_a_trace_is_told_with_its_line(capsys, tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(TRACE + "2023-11-16 18:16:00,-5,3\n")
    code, _, err = _run(capsys, *BASE, "--trace", str(path))
    assert code == 2
    assert f"{path}:32: ContextTokens must be from 1" in err


def test_a_sweep_of_simulations_has_a_row_for_each(capsys):
    found = _json(capsys, "sweep", "--report", "simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--prompt", "100",
                  "--output-tokens", "10", "--requests", "20", "--rate", "1,5", "--replicas", "1,2", "--workers", "1")  # fmt: skip
    assert [(row["rate"], row["replicas"]) for row in found["rows"]] == [(1, 1), (1, 2), (5, 1), (5, 2)]
    assert [row["summary.requests"] for row in found["rows"]] == [20] * 4
    assert [row["error"] for row in found["rows"]] == [None] * 4


def test_a_decode_sweep_prints_csv_as_it_stands(capsys):
    code, out, _ = _run(
        capsys,
        "sweep",
        "--model",
        "llama3.1-8b",
        "--gpu",
        "h100-sxm,h200,b200",
        "--batch",
        "1-64",
        "--context",
        "1024-33792+8192",
        "--output",
        "csv",
    )
    rows = list(csv.DictReader(out.splitlines()))
    assert code == 0
    assert len(rows) == 3 * 64 * 5
    assert [rows[0][name] for name in ("model", "gpu", "context", "batch")] == ["llama3.1-8b", "h100-sxm", "1024", "1"]


def test_swapping_computes_nothing_again(capsys):
    tight = [*SMALL, "--kv-memory", "200MiB", "--max-model-len", "600", "--rate", "500", "--no-prefix-caching"]
    again = _json(capsys, *tight)["summary"]
    swapped = _json(capsys, *tight, "--preemption", "swap", "--host-rate", "50GB/s")["summary"]
    assert again["preemptions"] > 0
    assert again["recomputed_tokens"] > 0
    assert swapped["preemptions"] > 0
    assert swapped["recomputed_tokens"] == 0


def test_estimated_steps_stand_on_the_calibration_that_is_given(capsys, tmp_path):
    own = load_calibration("vllm-hopper")
    kvcalc.api.write_profile(replace(own, name="own", step_s=1.0), tmp_path / "own.yaml")
    one = [
        *BASE,
        "--prompt",
        "100",
        "--output-tokens",
        "2",
        "--rate",
        "0.001",
        "--requests",
        "1",
        "--step-times",
        "estimate",
    ]
    known, given = (
        _json(capsys, *one, *more)["summary"]["tpot_s"]["p50"]
        for more in ((), ("--calibration", f"{tmp_path}/own.yaml"))
    )
    assert given - known == pytest.approx(1.0 - own.step_s)


def test_a_draft_model_takes_its_memory_from_the_cache(capsys):
    drafting = ("--gamma", "3", "--acceptance", "0.8")
    free, modelled = (_json(capsys, *SMALL, *drafting, *more)["setup"] for more in ((), ("--draft", "llama3.2-1b")))
    target = kvcalc.deployment("llama3.1-8b", gpu="h200")
    fitted = kvcalc.fit(kvcalc.with_draft(target, "llama3.2-1b", gamma=3), engine="vllm")
    assert modelled["num_blocks"] == fitted.num_blocks < free["num_blocks"]


def test_drafts_are_accepted_by_position_as_they_were_printed(capsys):
    run = (*SMALL, "--step-times", "20ms", "--gamma", "3")
    printed = _json(capsys, *run, "--acceptance-by-position", "0.543,0.357,0.264")
    conditional = _json(capsys, *run, "--acceptance-conditional", f"0.543,{0.357 / 0.543},{0.264 / 0.357}")
    assert printed == conditional
    assert printed["setup"]["acceptance"] == pytest.approx(0.5963, abs=1e-4)
    none_after_the_first = _json(capsys, *run, "--acceptance-by-position", "1,0,0")["summary"]["tpot_s"]["p50"]
    plain = _json(capsys, *SMALL, "--step-times", "20ms")["summary"]
    outputs = plain["output_tokens"] / plain["requests"]
    assert none_after_the_first == pytest.approx(0.02 * -(-(outputs - 1) // 2) / (outputs - 1))


def test_drafts_that_are_all_accepted_save_steps(capsys):
    plain = _json(capsys, *SMALL, "--step-times", "20ms")["summary"]
    drafted = _json(capsys, *SMALL, "--step-times", "20ms", "--gamma", "3", "--acceptance", "1")["summary"]
    outputs = plain["output_tokens"] / plain["requests"]
    assert drafted["tpot_s"]["p50"] == pytest.approx(0.02 * -(-(outputs - 1) // 4) / (outputs - 1))
    modelled = _json(capsys, *SMALL, "--gamma", "3", "--acceptance", "1", "--draft", "llama3.2-1b")["summary"]
    free = _json(capsys, *SMALL, "--gamma", "3", "--acceptance", "1")["summary"]
    assert modelled["tpot_s"]["p50"] > free["tpot_s"]["p50"]


@pytest.mark.parametrize("options", [(), ("--exact-steps",), ("--replicas", "2"), ("--policy", "priority")])
def test_the_queue_over_time_adds_up_to_the_times_in_it(capsys, options):
    """Little's law for the queue, also where arrivals are passed over while its head is blocked."""
    report = _json(capsys, *SMALL, "--rate", "500", "--max-num-seqs", "3", *options)
    area_s = sum((row["end_s"] - row["start_s"]) * row["waiting_requests"] for row in report["series"])
    waited_s = report["summary"]["queue_s"]["mean"] * report["summary"]["requests"]
    assert waited_s > 1
    assert area_s == pytest.approx(waited_s, rel=1e-9)


@pytest.mark.parametrize("model", ["gemma-3-4b", "falcon-h1-7b", "falcon-mamba-7b"])
def test_models_of_several_groups_have_the_block_size_of_fit_and_no_share_of_waste(capsys, model):
    report = _json(capsys, *SMALL, "--model", model)
    fitted = kvcalc.fit(kvcalc.deployment(model, gpu="h200"), engine="vllm")
    assert (report["setup"]["num_blocks"], report["setup"]["block_size"]) == (fitted.num_blocks, fitted.block_size)
    assert report["summary"]["cache_waste_share"] is None


@pytest.mark.parametrize(("model", "block"), [("qwen3.5-9b", 576), ("gemma-3-4b", 16)])
def test_hits_that_are_not_modelled_are_no_zeros(capsys, model, block):
    talk = (*SMALL, "--model", model, "--turns", "3", "--system-tokens", "2000", "--requests", "6")
    report = _json(capsys, *talk)
    assert report["summary"]["prefix_hit_ratio"] is None
    assert any(f"up to floor(shared tokens / {block}) x {block} of it" in note for note in report["notes"])
    off = _json(capsys, *talk, "--no-prefix-caching")
    assert off["summary"]["prefix_hit_ratio"] == 0
    assert not any("prefix cache" in note for note in off["notes"])


def test_a_model_of_states_alone_has_no_prefix_cache(capsys):
    report = _json(capsys, *SMALL, "--model", "falcon-mamba-7b", "--turns", "3", "--requests", "6")
    assert report["summary"]["prefix_hit_ratio"] == 0
    assert not any("prefix cache" in note for note in report["notes"])


def test_the_lowest_priority_goes_first(capsys, tmp_path):
    trace, rows = tmp_path / "trace.csv", tmp_path / "rows.csv"
    trace.write_text("t,in,out,class\n0,50,20,5\n0,50,20,3\n0,50,20,-1\n")
    columns = "time=t,prompt=in,output=out,priority=class"
    asked = [*BASE, "--trace", str(trace), "--columns", columns, "--max-num-seqs", "1", "--save-requests", str(rows)]
    for policy, order in (("fcfs", ["1", "2", "3"]), ("priority", ["3", "2", "1"])):
        assert _run(capsys, *asked, "--policy", policy)[0] == 0
        with rows.open(newline="") as file:
            assert [row["request"] for row in csv.DictReader(file)] == order


def test_a_request_that_is_refused_has_a_row_as_wide_as_the_others(tmp_path, capsys):
    trace, rows = tmp_path / "trace.csv", tmp_path / "rows.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,3\n1,5000,3\n2,10,3\n", encoding="utf-8")
    arguments = ["--model", "llama3.1-8b", "--gpu", "h100-sxm", "--trace", str(trace), "--max-model-len", "1000"]
    with pytest.raises(SystemExit) as done:
        main(["simulate", *arguments, "--save-requests", str(rows), "--json"])
    assert done.value.code == 0
    capsys.readouterr()
    header, *found = list(csv.reader(rows.read_text(encoding="utf-8").splitlines()))
    assert [len(row) for row in found] == [len(header)] * 3
    refused = [dict(zip(header, row, strict=True)) for row in found if "5000" in row]
    assert len(refused) == 1
    assert refused[0]["prompt_tokens"] == "5000"


def _report(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main(["simulate", "--model", "llama3.1-8b", "--gpu", "h200", "--prompt", "300", "--output-tokens", "20",
              "--requests", "200", *words, "--json"])  # fmt: skip
    printed = capsys.readouterr()
    assert done.value.code == 0, printed.err
    return json.loads(printed.out)


def test_tokens_cost_what_the_gpus_do_at_the_load(capsys):
    summary = _report(capsys, "--rate", "5", "--price", "3.6", "--replicas", "2")["summary"]
    expected = 2 * 3.6 / 3600 / summary["output_tokens_per_s"] * 1e6
    assert summary["usd_per_million_output_tokens"] == pytest.approx(expected)
    assert _report(capsys, "--rate", "5")["summary"]["usd_per_million_output_tokens"] is None


def test_a_capacity_is_found_without_a_rate(capsys):
    without = _report(capsys, "--find-capacity", "--slo", "ttft_p95=100ms", "--tolerance", "0.02")["capacity"]
    given = _report(capsys, "--find-capacity", "--slo", "ttft_p95=100ms", "--tolerance", "0.02", "--rate", "20")
    assert without["requests_per_s"] == pytest.approx(given["capacity"]["requests_per_s"], rel=0.05)


def run(capsys, words):
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    out, err = capsys.readouterr()
    return ended.value.code, out, err


LOOP = "simulate --model llama3.1-8b --gpu h100-sxm --users 16 --requests 96 --prompt 1024 --output-tokens 64"


def test_users_who_begin_together_wait_longer_for_a_first_token_than_those_who_begin_apart(capsys):
    both = json.loads(run(capsys, f"{LOOP} --json")[1])
    burst, staggered = (json.loads(run(capsys, f"{LOOP} --load {how} --json")[1]) for how in ("burst", "staggered"))
    assert [row["load"] for row in both["loads"]] == ["burst", "staggered"]
    assert [row["ttft_s"] for row in both["loads"]] == [
        each["summary"]["ttft_s"]["mean"] for each in (burst, staggered)
    ]
    assert both["summary"] == burst["summary"]
    assert burst["loads"] == staggered["loads"] == []
    assert burst["summary"]["ttft_s"]["mean"] > 2 * staggered["summary"]["ttft_s"]["mean"]
    assert any("--load says which" in note for note in both["notes"])


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ("--load bursts", "load 'bursts' is not known"),
        ("--load burst", "users begin together or apart in a closed loop"),
    ],
)
def test_a_load_that_cannot_be_is_refused(capsys, words, what):
    asked = LOOP if "bursts" in words else LOOP.replace("--users 16", "--rate 3")
    code, _, err = run(capsys, f"{asked} {words}")
    assert code == 2
    assert what in err
