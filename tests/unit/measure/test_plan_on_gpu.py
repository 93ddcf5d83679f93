"""The whole plan of a measuring run on a GPU, with its one command, on a GPU that is the CPU and models that are small."""

import signal
import sys

import pytest
import torch

from kvcalc.measure import correctness, decoder, kernels, steps

from .test_cuda import gpu_of  # noqa: F401  a fixture
from .test_measure_machine import rows_of, small_models, tool  # noqa: F401  fixtures

MIB = 2**20
right = kernels.kernels_of


class FusedByName(kernels.Sdpa):
    """What the plan does with the fused variant, without Triton's interpreter, which would take minutes over it.

    Triton's kernels are replayed on this GPU in test_cuda, and held to the plain ones in test_fused.
    """

    name = "fused"


def variant(name, device):
    return FusedByName() if name == "fused" else right(name, device)


@pytest.fixture
def planned(tool, gpu_of, small_models, small_working_sets, monkeypatch, tmp_path, capsys):  # noqa: F811, ARG001
    """Run the plan, each part in this process, and give back the exit code, the rows, the page and the GPU."""

    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    gpu, _ = gpu_of(free=256 * MIB)
    for user in (kernels, correctness, steps, decoder):
        monkeypatch.setattr(user, "kernels_of", variant)
    monkeypatch.setattr(tool, "child", lambda part, asked, _: tool.run_part(part, asked))

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["x", str(tmp_path), "--device", "cuda", "--gpu", "h200", *options])
        handler = signal.getsignal(signal.SIGTERM)
        (tmp_path / "log").write_text("")
        try:
            code = tool.main()
        finally:
            signal.signal(signal.SIGTERM, handler)
        return code, rows_of(tmp_path), capsys.readouterr(), gpu

    return run


def test_the_whole_plan_runs_through_its_one_command(planned, tool):  # noqa: F811
    """Every part, every check, every kind of row; what a graph may not hold, this GPU refuses."""
    code, rows, said, gpu = planned("--rehearse")
    assert code == 0, said.err
    names = [part.name for part in tool.PLANS["cuda"].parts]
    assert list(dict.fromkeys(row["part"] for row in rows if "part" in row)) == names
    of_kind = {kind: [row for row in rows if row["kind"] == kind] for kind in {row["kind"] for row in rows}}
    assert [row for row in of_kind["check"] if not row["passed"]] == []
    assert all(row["in_graph"] and row["read_bound_s"] > 0 for row in of_kind["step"] if row["part"] != "smoke")
    assert {row["kernels"] for row in of_kind["step"]} == {"plain", "sdpa", "fused"}
    assert all(row["in_graph"] and row["identical"] for row in of_kind["loop"] + of_kind["speculation"])
    assert {row["gamma_tokens"] for row in of_kind["speculation"]} == {2, 4, 8}
    assert all(row["in_graph"] for row in of_kind["prefill"])
    assert all(row["fits"] and row["beyond_fails"] for row in of_kind["capacity"])
    assert {row["format"] for row in of_kind["bench"]} == {"bf16", "fp16", "fp32", "fp8"}
    assert of_kind["compiled"][0]["in_graph"]
    assert len(gpu.streams) == 1
    page = said.out.splitlines()
    assert [line.partition(":")[0] for line in page[-3:]] == ["met", "met", "NOT MET"]


def test_a_wrong_replay_ends_the_run_at_its_smoke_test(planned, monkeypatch):
    monkeypatch.setattr("kvcalc.measure.clock._replay", lambda *recording: recording[-1])
    code, rows, said, _ = planned("--rehearse")
    assert code == 1
    assert {row["part"] for row in rows if "part" in row} == {"smoke"}
    assert "llama3.1-8b: a check failed" in said.err
