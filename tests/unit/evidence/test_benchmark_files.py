"""Files that the benchmark tools themselves wrote, against a stub or on a CPU, and files that are none.

`tests/tools/benchmark_stub.py` is the stub; vLLM 0.33, AIPerf 0.13, GuideLLM 0.8 and llama-bench of llama.cpp 0c1e57098bba wrote
the files; InferenceMAX's is vLLM's after the arithmetic of its `utils/process_result.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcalc.core.errors import KvcalcError
from kvcalc.evidence.benchmarks.read import benchmark_of, read_benchmark

FILES = Path(__file__).parents[2] / "measurements" / "benchmarks"


def records(name):
    return {record.phase: record for record in read_benchmark(FILES / name).records}


def test_vllm_bench_serve_says_model_card_and_load():
    found = records("vllm_serve_c8.json")
    raw = json.loads((FILES / "vllm_serve_c8.json").read_text())
    assert set(found) == {"ttft", "tpot"}
    tpot = found["tpot"]
    assert (tpot.model, tpot.hardware, tpot.engine) == ("meta-llama/Llama-3.1-8B-Instruct", "h100-sxm", "vllm")
    assert (tpot.batch, tpot.prompt_tokens, tpot.output_tokens, tpot.tensor) == (8, 256, 32, 1)
    assert tpot.value == pytest.approx(raw["mean_tpot_ms"] / 1e3)
    assert tpot.ttft_s == found["ttft"].value == pytest.approx(raw["mean_ttft_ms"] / 1e3)


def test_aiperf_calls_the_time_of_a_token_inter_token_latency():
    found = records("aiperf.json")
    raw = json.loads((FILES / "aiperf.json").read_text())
    assert (found["tpot"].batch, found["tpot"].prompt_tokens, found["tpot"].output_tokens) == (4, 256, 32)
    assert found["tpot"].value == pytest.approx(raw["inter_token_latency"]["avg"] / 1e3)


def test_guidellm_says_streams_and_means_of_requests_that_succeeded():
    found = records("guidellm.json")
    metrics = json.loads((FILES / "guidellm.json").read_text())["benchmarks"][0]["metrics"]
    assert (found["tpot"].model, found["tpot"].batch) == ("meta-llama/Llama-3.1-8B-Instruct", 4)
    assert found["tpot"].output_tokens == metrics["output_token_count"]["successful"]["mean"]
    assert found["tpot"].value == pytest.approx(metrics["inter_token_latency_ms"]["successful"]["mean"] / 1e3)
    assert found["ttft"].value == pytest.approx(metrics["time_to_first_token_ms"]["successful"]["mean"] / 1e3)


def test_inferencemax_prints_seconds():
    found = records("inferencemax_agg.json")
    served = records("vllm_serve_c8.json")
    assert (found["tpot"].hardware, found["tpot"].engine, found["tpot"].weights, found["tpot"].batch) == (
        "h100",
        "vllm",
        "bf16",
        8,
    )
    assert all(found[phase].value == pytest.approx(served[phase].value) for phase in ("ttft", "tpot"))


@pytest.mark.parametrize("name", ["llama_bench.md", "llama_bench.csv", "llama_bench.jsonl", "llama_bench.sql"])
def test_llama_bench_in_each_form(name):
    tests = read_benchmark(FILES / name).records
    assert [(test.phase, test.prompt_tokens, test.output_tokens, test.depth_tokens) for test in tests][:2] == [
        ("prefill", 128, None, 0), ("decode", None, 8, 0)]  # fmt: skip
    assert all(test.engine == "llama.cpp CPU" and test.unit == "tok/s" and test.value > 0 for test in tests)
    if len(tests) > 2:
        assert tests[2].depth_tokens == 256


def test_a_llama_bench_list_is_read_as_its_lines_are():
    lines = (FILES / "llama_bench.jsonl").read_text()
    listed = json.dumps([json.loads(line) for line in lines.splitlines()])
    assert [each.value for each in benchmark_of(listed, "x").records] == [
        each.value for each in benchmark_of(lines, "x").records]  # fmt: skip


def test_a_file_that_was_cut_while_it_was_written_says_so():
    with pytest.raises(KvcalcError, match="no JSON") as told:
        read_benchmark(FILES / "llama_bench_cut.json")
    assert "cut" in told.value.hint


# Forms whose tools could not be run here: the names of fields are those of their own code, the numbers are made up.
FROM_SOURCE = {
    "latency": ('{"model_id": "m", "avg_latency": 1.5, "latencies": [1.5], "percentiles": {}}', {"end_to_end": 1.5}),
    "throughput": (
        ('{"model_id": "m", "elapsed_time": 2.0, "num_requests": 4, "total_num_tokens": 4000, "requests_per_second": 2.0, '
        '"tokens_per_second": 2000.0}'), {"end_to_end": 2000.0}),
    "inferencemax": (
        ('{"hw": "h200", "tp": 8, "ep": 1, "conc": 64, "dp_attention": "false", "model": "m", "framework": "vllm", '
        '"precision": "fp8", "mean_ttft": 0.2, "mean_tpot": 0.02, "mean_intvty": 50}'), {"ttft": 0.2, "tpot": 0.02}),
    "sglang": (
        ('{"backend": "sglang", "max_concurrency": 8, "server_info": {"model_path": "m", "tp_size": 2, "version": "0.5.23"}, '
        '"completed": 10, "total_input_tokens": 1000, "total_output_tokens": 500, "mean_ttft_ms": 100.0, '
        '"mean_tpot_ms": 10.0}'), {"ttft": 0.1, "tpot": 0.01}),
    "guidellm": (
        ('{"benchmarks": [{"metrics": {"request_concurrency": {"successful": {"mean": 3.9}}, "prompt_token_count": '
        '{"successful": {"mean": 256}}, "output_token_count": {"successful": {"mean": 32}}, "time_to_first_token_ms": '
        '{"successful": {"mean": 60}}, "inter_token_latency_ms": {"successful": {"mean": 12}}}}]}'),
        {"ttft": 0.06, "tpot": 0.012}),
    "vllm metrics": (
        ('vllm:time_to_first_token_seconds_sum{model_name="m"} 6.0\nvllm:time_to_first_token_seconds_count{model_name="m"} 60\n'
        'vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 30\n'
        'vllm:request_time_per_output_token_seconds_sum{model_name="m"} 1.2\n'
        'vllm:request_time_per_output_token_seconds_count{model_name="m"} 60\n'), {"ttft": 0.1, "tpot": 0.02}),
    "csv": ("batch,prompt,output,ttft_ms,tpot_ms\n4,100,50,80,9\n", {"ttft": 0.08, "tpot": 0.009}),
}  # fmt: skip


@pytest.mark.parametrize("name", FROM_SOURCE)
def test_fields_by_the_names_that_the_tools_give_them(name):
    text, times = FROM_SOURCE[name]
    found = {record.phase: record.value for record in benchmark_of(text, name).records}
    assert found == pytest.approx(times)


BAD = {
    "empty": "",
    "blank": " \n \n",
    "a log": "INFO 12:00 engine started\n",
    "other JSON": '{"a": 1}',
    "a number": "17",
    "cut": '{"model_id": "m", "mean_tpot_ms": 1',
    "NaN": '{"model_id": "m", "mean_tpot_ms": NaN, "mean_ttft_ms": 1, "total_input_tokens": 5, "completed": 1}',
    "negative": '{"model_id": "m", "mean_tpot_ms": -3, "mean_ttft_ms": 1, "total_input_tokens": 5, "completed": 1}',
    "a word": '{"model_id": "m", "mean_tpot_ms": "fast", "mean_ttft_ms": 1, "total_input_tokens": 5, "completed": 1}',
    "no time": '{"model_id": "m", "mean_tpot_ms": 0, "mean_ttft_ms": 0, "total_input_tokens": 5, "completed": 1}',
    "huge number": '{"model_id": "m", "mean_tpot_ms": 1e999, "mean_ttft_ms": 1, "total_input_tokens": 5, "completed": 1}',
    "CSV of words": "batch,prompt,output,tpot_ms\n4,many,50,9\n",
    "negative CSV": "batch,prompt,output,tpot_ms\n4,100,50,-9\n",
    "metrics of words": 'vllm:time_to_first_token_seconds_sum{model_name="m"} soon\n',
    "deep": "[" * 100_000,
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_measurement_is_refused_with_the_file_named(name):
    with pytest.raises(KvcalcError) as told:
        benchmark_of(BAD[name], "x.json")
    assert told.value.message.startswith("x.json")
    assert "\n" not in told.value.message
