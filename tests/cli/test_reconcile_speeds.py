"""``kvcalc reconcile`` on measured speeds: files of benchmarks, and metrics of a server on this machine."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kvcalc.cli.main import main
from kvcalc.questions import gaps

SERVED = Path(__file__).parents[1] / "measurements" / "benchmarks"
LOG = Path(__file__).parents[2] / "docs" / "examples" / "vllm-llama31-8b.log"


def run(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main([*map(str, words)])
    out = capsys.readouterr()
    return done.value.code, out.out, out.err


def test_a_benchmark_is_held_against_bound_and_estimate(capsys):
    code, out, _ = run(capsys, "reconcile", SERVED / "vllm_serve_c8.json", "--json")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "kvcalc.reconcile_measured/1"
    for row in told["rows"]:
        assert row["bound_s"] < row["low_s"] <= row["estimate_s"] <= row["high_s"]
        assert row["bound_s"] < row["measured_s"]
        assert 0 < row["mbu_share"] < 1
        assert 0 < row["mfu_share"] < 1
        assert sum(row["terms_s"].values()) == pytest.approx(row["estimate_s"], rel=0.01)
    step = next(row for row in told["rows"] if row["quantity"] == "tpot")
    # 16 GB of weights and the cache in 14 ms, of 3.35 TB/s
    assert step["mbu_share"] == pytest.approx(16.1e9 / 3.35e12 / step["measured_s"], rel=0.2)


def test_a_calibration_of_ones_own_brings_estimate_and_measurement_together(capsys, tmp_path):
    files = (SERVED / "vllm_serve_c1.json", SERVED / "vllm_serve_c8.json")
    mine = tmp_path / "mine.yaml"
    assert run(capsys, "calibrate", *files, "--write-calibration", mine)[0] == 0
    for file in files:
        rows = json.loads(run(capsys, "reconcile", file, "--calibration", mine, "--json")[1])["rows"]
        assert all(row["estimate_s"] == pytest.approx(row["measured_s"], rel=0.1) for row in rows)
        assert all(row["reason"].startswith("within") for row in rows)


def test_options_of_speeds_are_refused_with_a_log(capsys):
    code, _, err = run(capsys, "reconcile", LOG, "--batch", "3")
    assert code == 2
    assert "--batch is for files of measurements" in err


def metrics(requests):
    labels = 'model_name="meta-llama/Llama-3.1-8B-Instruct"'
    return "".join(f"vllm:{name}{{{labels}}} {value}\n" for name, value in {
        "time_to_first_token_seconds_sum": 0.08 * requests, "time_to_first_token_seconds_count": requests,
        "request_time_per_output_token_seconds_sum": 0.012 * requests,
        "request_time_per_output_token_seconds_count": requests,
        "request_prompt_tokens_sum": 500 * requests, "request_prompt_tokens_count": requests,
        "request_generation_tokens_sum": 100 * requests, "request_generation_tokens_count": requests,
        "e2e_request_latency_seconds_sum": 1.3 * requests, "e2e_request_latency_seconds_count": requests,
        "num_requests_running": 8, "estimated_flops_per_gpu_total": 1e13 * requests,
        "estimated_read_bytes_per_gpu_total": 1e11 * requests, "estimated_write_bytes_per_gpu_total": 0,
    }.items())  # fmt: skip


@pytest.fixture
def address():
    """Serve metrics of a server that answers ten requests between two readings."""

    class Server(BaseHTTPRequestHandler):
        asked = 0

        def log_message(self, *_):
            pass

        def do_GET(self):
            Server.asked += 1
            content = metrics(10 * Server.asked).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_metrics_of_a_server_on_this_machine_are_read_with_its_own_counters(capsys, address, monkeypatch):
    monkeypatch.setattr(gaps, "_BETWEEN_S", 0.5)
    code, out, err = run(capsys, "reconcile", address, "--gpu", "h100-sxm", "--json")
    assert code == 0, err
    told = json.loads(out)
    step = next(row for row in told["rows"] if row["quantity"] == "tpot")
    assert (step["batch"], step["prompt_tokens"], step["output_tokens"]) == (8, 500, 100)
    assert step["measured_s"] == pytest.approx(0.012)
    # ten requests of 1e11 bytes in half a second or a little more
    assert 0.1 < told["engine_mbu_share"] <= 1e12 / 0.5 / 3.35e12
    assert told["engine_mfu_share"] == pytest.approx(told["engine_mbu_share"] * 100 * 3.35e12 / 989.4e12, rel=0.01)


@pytest.mark.parametrize("address", ["http://10.1.2.3:8000/metrics", "http://example.com/metrics", "http://127.0.0.1:9/metrics",
                                     "http://", "http://[::1"])  # fmt: skip
def test_servers_elsewhere_are_not_asked(capsys, address):
    code, out, err = run(capsys, "reconcile", address)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("content", [b"", b"{", b'{"model_id": "m", "mean_tpot_ms": NaN, "total_input_tokens": 4}', b"\xff\xff",
                                     b"vllm:time_to_first_token_seconds_sum{} NaN\n"])  # fmt: skip
def test_what_is_neither_log_nor_measurement_is_one_line(capsys, tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    code, out, err = run(capsys, "reconcile", path)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


def test_a_beaten_bound_is_the_first_thing_said(capsys):
    code, out, _ = run(capsys, "reconcile", SERVED / "vllm_serve_c8.json", "--gpu", "rtx-3060")
    assert code == 0
    assert "cannot be of this deployment as it is taken" in out.splitlines()[0]
    assert "cannot be" not in run(capsys, "reconcile", SERVED / "vllm_serve_c8.json")[1].splitlines()[0]


def test_a_benchmark_is_read_from_standard_input(capsys, monkeypatch):
    file = SERVED / "vllm_serve_c8.json"
    with file.open(encoding="utf-8") as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        piped = json.loads(run(capsys, "reconcile", "-", "--json")[1])
    alone = json.loads(run(capsys, "reconcile", file, "--json")[1])
    assert [row["measured_s"] for row in piped["rows"]] == [row["measured_s"] for row in alone["rows"]]
