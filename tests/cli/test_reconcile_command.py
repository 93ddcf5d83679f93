"""``kvcalc reconcile``: files and standard input, formats, exit codes."""

import io
import json
import re
from pathlib import Path

import pytest

from kvcalc.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "vllm-llama31-8b.log"


@pytest.fixture
def run(capsys):
    def call(*arguments):
        with pytest.raises(SystemExit) as done:
            main(["reconcile", *map(str, arguments)])
        printed = capsys.readouterr()
        return done.value.code, printed.out, printed.err

    return call


def test_the_example_agrees(run):
    code, out, err = run(EXAMPLE, "--strict")
    assert (code, err) == (0, "")
    assert "all 4 numbers in the log agree with the prediction" in out
    assert "Memory per GPU" in out
    assert "--kv-cache-dtype fp8" in out


def test_json_has_what_scripts_rely_on(run):
    code, out, _ = run(EXAMPLE, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["schema"] == "kvcalc.reconcile/1"
    assert (report["engine"], report["model"], report["version"]) == ("vllm", "llama3.1-8b", "0.19.0")
    assert all({"quantity", "printed", "predicted", "agrees", "reason"} <= row.keys() for row in report["rows"])
    assert [row["printed"] for row in report["rows"]] == [14.99, 58.11, 476016, 29.05]


@pytest.mark.parametrize("output", ["csv", "jsonl", "md"])
def test_other_outputs_have_a_line_for_each_number(run, output):
    code, out, _ = run(EXAMPLE, "--output", output)
    assert code == 0
    assert sum("kv_cache_tokens" in line for line in out.splitlines()) == 1


class Input:
    """Standard input that holds bytes."""

    def __init__(self, content):
        self.buffer = io.BytesIO(content)


def test_standard_input_may_hold_any_bytes(run, monkeypatch):
    monkeypatch.setattr("sys.stdin", Input(b"\xff\xfe\x00\n" + EXAMPLE.read_bytes()))
    code, out, _ = run("-", "--json")
    assert code == 0
    assert json.loads(out)["model"] == "llama3.1-8b"


def test_strict_exits_with_1_where_a_number_differs(run, tmp_path):
    log = tmp_path / "a.log"
    log.write_text(EXAMPLE.read_text(encoding="utf-8").replace("476,016", "476,996"), encoding="utf-8")
    assert run(log)[0] == 0
    code, out, _ = run(log, "--strict")
    assert code == 1
    assert "DIFFERS" in out


@pytest.mark.parametrize(
    "log",
    [
        pytest.param("{}\nModel loading took 14.99 GiB memory", id="quantised: no number computed"),
        pytest.param("{}\nGraph capturing finished in 13 secs, took 0.58 GiB", id="nothing that is computed"),
    ],
)
def test_strict_exits_with_1_where_no_number_could_be_computed(run, tmp_path, log):
    path = tmp_path / "a.log"
    head = "Initializing a V1 LLM engine (v0.19.0) with config: model='x/Llama-3.1-8B-AWQ', quantization=awq"
    path.write_text(log.format(head), encoding="utf-8")
    assert run(path)[0] == 0
    code, out, _ = run(path, "--strict")
    assert (code, "no number of the log could be recomputed" in out) == (1, True)


def test_a_field_of_the_model_may_be_set(run):
    code, out, _ = run(EXAMPLE, "--set", "kv_heads=4", "--json")
    assert code == 0
    (row,) = [row for row in json.loads(out)["rows"] if row["quantity"] == "kv_cache_tokens"]
    assert (row["agrees"], row["predicted"] > 900_000) == (False, True)


def test_an_interval_is_shown_with_both_ends(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "475,984 to 476,064" in run(EXAMPLE)[1]


def test_another_model_may_be_given(run):
    code, out, _ = run(EXAMPLE, "--model", "llama2-70b", "--json")
    assert code == 0
    assert not all(row["agrees"] for row in json.loads(out)["rows"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.log"], "error: missing.log: cannot be read"),
        ([EXAMPLE, "--engine", "trtllm"], "error: the log of engine 'trtllm' cannot be read"),
        ([EXAMPLE, "--engine", "sglang"], "error: the log has no lines of sglang"),
        ([EXAMPLE, "--model", "nosuch"], "error: unknown model 'nosuch'"),
        ([EXAMPLE, "--json", "--output", "csv"], "error: --json and --output csv contradict each other"),
    ],
)
def test_bad_input_gets_one_line_and_2(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(message)
    assert "Traceback" not in err


PIPELINE = EXAMPLE.with_name("vllm-glm-4.7-pp8.log")
LLAMA_CPP = EXAMPLE.with_name("llama-cpp-out-of-memory.log")


def test_a_refusal_ends_with_one_line_of_flags(run):
    for log, flags in ((PIPELINE, "--max-model-len 80896"), (LLAMA_CPP, "-c 92160")):
        code, out, err = run(log)
        assert (code, err) == (0, "")
        assert "did not start: " in out.splitlines()[0]
        assert out.splitlines()[-1] == f"start it with: {flags}"


def test_sums_over_all_places_are_not_called_those_of_a_gpu(run):
    buffers = re.findall(r"(CPU_Mapped|CUDA0) model buffer size = +([\d.]+) MiB", LLAMA_CPP.read_text())
    assert [place for place, _ in buffers] == ["CPU_Mapped", "CUDA0"]
    out = run(LLAMA_CPP)[1]
    assert "Memory of all GPUs and the host" in out
    assert "Memory per GPU" not in out
    assert re.search(rf"weights +{sum(float(size) for _, size in buffers) / 1024:.2f} GiB", out)


def test_json_has_the_refusal(run):
    report = json.loads(run(PIPELINE, "--json")[1])
    assert report["start_with"] == "--max-model-len 80896"
    assert report["refusal"]["kind"] == "request_too_long"
    assert report["refusal"]["needed_bytes"] == round(71.16 * 2**30)
    assert report["refusal"]["available_bytes"] == round(28.57 * 2**30)
    assert {"part", "taken_bytes", "source"} <= report["memory"][0].keys()
    started = json.loads(run(EXAMPLE, "--json")[1])
    assert (started["refusal"], started["start_with"]) == (None, "")


def test_why_is_another_name(capsys):
    printed = []
    for name in ("why", "reconcile"):
        with pytest.raises(SystemExit) as done:
            main([name, str(PIPELINE)])
        assert done.value.code == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]


def test_the_gpu_is_taken_where_the_log_does_not_name_it(run, tmp_path):
    log = tmp_path / "a.log"
    log.write_text(
        "Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', max_seq_len=40960\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n",
        encoding="utf-8",
    )
    assert "note: the log does not give the GPU's memory" in run(log)[1]
    assert "start it with: " in run(log, "--gpu", "rtx-3090")[1]
    code, _, err = run(log, "--gpu", "nonesuch")
    assert code == 2
    assert "nonesuch" in err


def test_a_log_of_powershell_is_read(run, tmp_path):
    log = tmp_path / "a.log"
    log.write_text(EXAMPLE.read_text(encoding="utf-8"), encoding="utf-16", newline="\r\n")
    assert run(log, "--strict")[0] == 0


def test_two_numbers_that_agree_are_both(run, tmp_path):
    log = tmp_path / "engine.log"
    lines = [
        "Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', max_seq_len=32768, kv_cache_dtype=auto",
        "Available KV cache memory: 4.51 GiB",
        "GPU KV cache size: 32,832 tokens",
        "Maximum concurrency for 32,768 tokens per request: 1.00x",
    ]
    log.write_text("\n".join(lines))
    _, out, _ = run(log)
    assert ": both numbers in the log agree with the prediction for " in out


def test_pytorch_out_of_memory_alone_asks_for_the_engine_and_is_read_with_it(run, tmp_path):
    log = tmp_path / "oom.log"
    tail = "GPU 0 has a total capacity of 23.57 GiB of which 1.20 GiB is free."
    log.write_text(f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. {tail}\n")
    code, out, err = run(log)
    assert (code, out) == (2, "")
    assert "PyTorch ran out of memory" in err
    assert "hint: --engine vllm or sglang" in err
    _, out, _ = run(log, "--engine", "vllm", "--model", "llama3.1-8b", "--gpu", "rtx-4090")
    assert "2.00 GiB could not be allocated on GPU 0" in out
