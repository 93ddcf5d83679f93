"""The one command that measures a machine: parts, limits, rows as they are measured, what is said at the end."""

import argparse
import importlib
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from kvcalc import api, sources
from kvcalc.core.reports.measure import BenchReport, BenchRow
from kvcalc.core.units import GIB
from kvcalc.measure.decoder import check_supported
from kvcalc.measure.scale import all_in, fit_layers, run_bytes
from kvcalc.questions import crosscheck

from .models import shrunk
from .test_crosscheck import HALF
from .test_cuda import gpu_of  # noqa: F401  a fixture

pytestmark = pytest.mark.usefixtures("small_working_sets")
TOOLS = Path(__file__).parents[2] / "tools"
MEMORY = 139 * GIB


@pytest.fixture
def small_models(monkeypatch):
    """Give parts the models that they name in small sizes."""

    def load(model, **more):
        return shrunk(sources.load_model(model, **more))

    monkeypatch.setattr(api, "load_model", load, raising=False)
    monkeypatch.setattr(crosscheck, "load_model", load)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    monkeypatch.delitem(sys.modules, "measure_machine", raising=False)
    return importlib.import_module("measure_machine")


def asked(out, device="cpu", **more):
    names = {"out": out, "device": device, "plan": None, "gpu": "h200", "seconds": None, "only": None, "smoke": False,
             "rehearse": True, "part": None}  # fmt: skip
    return argparse.Namespace(**names | more)


def ended(tool, monkeypatch, tmp_path, codes, seconds=100):
    """Run parts that end with these codes; the code of all, and the parts that were begun."""
    begun = []
    left = iter(codes)

    def child(part, *_):
        begun.append(part.name)
        return next(left)

    monkeypatch.setattr(tool, "child", child)
    (tmp_path / "log").write_text("Traceback: it went wrong")
    parts = [tool.Part(name, 60, None) for name in ("smoke", "first", "second")]
    return tool.run_all(parts, asked(tmp_path), seconds), begun


@pytest.mark.parametrize(
    ("codes", "code", "begun"),
    [
        ((0, 0, 0), 0, ["smoke", "first", "second"]),
        ((0, 1, 0), 1, ["smoke", "first", "second"]),
        ((0, 3, 0), 3, ["smoke", "first", "second"]),
        ((0, -11, 0), 1, ["smoke", "first", "second"]),  # a signal ended it
        ((1,), 1, ["smoke"]),
        ((0, 130), 130, ["smoke", "first"]),
    ],
)
def test_a_part_that_fails_leaves_the_others_their_time(codes, code, begun, tool, monkeypatch, tmp_path):
    assert ended(tool, monkeypatch, tmp_path, codes) == (code, begun)


def test_a_smoke_test_that_fails_says_why(tool, monkeypatch, tmp_path, capsys):
    ended(tool, monkeypatch, tmp_path, (1,))
    assert "it went wrong" in capsys.readouterr().err


def test_nothing_is_begun_when_time_is_over(tool, monkeypatch, tmp_path):
    assert ended(tool, monkeypatch, tmp_path, (), seconds=0.5) == (3, [])


def test_a_part_beyond_its_limit_is_ended_and_its_rows_are_kept(tool, monkeypatch, tmp_path):
    script = tmp_path / "hangs.py"
    script.write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'results.jsonl')!r}).write_text('{{}}')\n"
        "print('begun', flush=True)\n"
        "time.sleep(100)\n"
    )
    monkeypatch.setattr(tool, "__file__", str(script))
    for seconds in (2, 8, 32):  # a busy machine begins it later
        assert tool.child(tool.Part("hangs", 60, None), asked(tmp_path), seconds) == 3
        if (tmp_path / "results.jsonl").exists() and "begun" in (tmp_path / "log").read_text():
            break
    assert (tmp_path / "results.jsonl").read_text() == "{}"
    assert (tmp_path / "log").read_text() == "begun\n"


def test_an_error_of_a_part_is_its_own(tool, tmp_path, capsys):
    def broken(_):
        raise RuntimeError("no such kernel")

    assert tool.run_part(tool.Part("broken", 60, broken), asked(tmp_path)) == 1
    assert "no such kernel" in capsys.readouterr().err
    assert tool.run_part(tool.Part("passed", 60, lambda _: True), asked(tmp_path)) == 0
    assert tool.run_part(tool.Part("failed", 60, lambda _: False), asked(tmp_path)) == 1


def rows_of(folder):
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


SHORT = {"batches": (1,), "contexts": (24,), "loops": (3,)}


@pytest.mark.usefixtures("small_models")
def test_rows_are_written_as_they_are_measured(tool, tmp_path):
    part = tool.steps("llama-8b", 60, "smollm2-135m", **SHORT, kernels=("plain", "sdpa"))
    assert tool.run_part(part, asked(tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert [row["kind"] for row in rows[:4]] == ["step", "step", "loop", "loop"]
    assert {row["part"] for row in rows} == {"llama-8b"}
    assert rows[-1]["kind"] == "report"
    page = sys.modules["machine_verdicts"].summary(rows)
    assert "smollm2-135m bf16 sdpa 1 x 24" in page[1]
    assert page[-1].startswith("NOT MET: speed")


def test_ceilings_are_handed_to_the_next_parts(tool, tmp_path, monkeypatch):
    parts = sys.modules["machine_parts"]
    row = BenchRow(kind="step", name="x", format="bf16", measured_s=1.0, median_s=1.0, samples_s=(1.0,))
    reached = replace(api.load_hardware("h200"), name="reached")
    report = BenchReport(
        device="cpu", title="x", threads=2, versions={}, date="x", hardware=reached, gpu="x", calibration=HALF, rows=(row,)
    )  # fmt: skip
    monkeypatch.setattr(api, "bench", lambda **_: report)
    assert tool.run_part(tool.Part("ceilings", 60, parts.ceilings), asked(tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert [found["kind"] for found in rows] == ["bench", "ceilings", "calibration"]
    assert rows[0]["benchmark"] == "step"
    later = parts.Run(asked(tmp_path, gpu=None), "next")
    assert (later.hardware(), later.calibration()) == (reached, HALF)
    assert len(sys.modules["machine_verdicts"].summary(rows)) == 4


@pytest.mark.usefixtures("small_models")
def test_a_part_runs_on_a_gpu(tool, tmp_path, gpu_of):  # noqa: F811
    gpu_of(free=20 * GIB)
    part = tool.steps("steps", 60, "smollm2-135m", **SHORT, kernels=("plain", "sdpa"), check=True, draft="smollm2-135m")
    assert tool.run_part(part, asked(tmp_path, "cuda")) == 0
    checks = {row["name"]: row["passed"] for row in rows_of(tmp_path) if row["kind"] == "check"}
    assert sum(name.startswith("graphs") for name in checks) == 3
    assert all(checks.values())


PARTS = [
    ("llama3.1-8b", 256, 1024, None), ("llama3.1-8b", 1024, 16, None), ("llama3.1-8b", 1, 131072, None),
    ("llama3.1-8b", 8, 32768, None), ("mixtral-8x7b", 16, 1024, None), ("qwen3-30b-a3b", 64, 1024, None),
    ("deepseek-v2-lite", 64, 8192, None), ("llama3.1-70b", 16, 1024, 120 * GIB),
]  # fmt: skip


@pytest.mark.parametrize(("model", "batch", "context", "fit"), PARTS)
def test_every_part_of_the_gpus_plan_fits_on_it(model, batch, context, fit):
    profile = api.load_model(model)
    check_supported(profile)
    if fit is not None:
        profile = fit_layers(profile, all_in("bf16"), batch=batch, context=context, memory_bytes=fit)
    assert run_bytes(profile, all_in("bf16"), batch=batch, context=context) < MEMORY


def test_the_plan_is_made_of_these_parts(tool):
    asked_for = [part.work.keywords for part in tool.PLANS["cuda"].parts if hasattr(part.work, "keywords")]
    most = {
        (words["models"][0], max(words["batches"]), max(words["contexts"])) for words in asked_for if "models" in words
    }
    assert most - {("llama3.1-8b", 1, 1024), ("llama3.1-8b", 16, 1024)} == {part[:3] for part in PARTS}


@pytest.mark.usefixtures("tool")
def test_the_page_is_a_page_and_says_what_is_not_met():
    verdicts = sys.modules["machine_verdicts"]
    step = {
        "kind": "step", "part": "llama-8b", "model": "m", "format": "bf16", "kernels": "fused", "batch": 1,
        "context": 1024, "measured_s": 0.010, "least_s": 0.010, "ratio": 1.25, "bound_s": 0.008,
        "read_bound_s": 0.0087, "estimate_error": None, "cause": "",
    }  # fmt: skip
    check = {"kind": "check", "part": "llama-8b", "name": "cache: x", "passed": False, "detail": "1 B"}
    ceilings = {"kind": "ceilings", "part": "ceilings", "memory_bandwidth_bytes_per_s": 4.4e12, "peak_flop_per_s": {}}
    page = verdicts.summary([check, *[step] * 100, ceilings])
    assert len(page) == 80
    assert page[0] == "FAILED llama-8b: cache: x: 1 B"
    assert "1.15 on what was read" in page[1]
    assert [line.partition(":")[0] for line in page[-3:]] == ["NOT MET", "not measured", "met"]
    assert "0.87" in page[-1]
    faster = step | {"least_s": 0.0085}
    page = verdicts.summary([faster, ceilings, check | {"name": "bound: y", "passed": True}])
    assert page[-2].startswith("NOT MET: bound")


@pytest.mark.usefixtures("small_models")
def test_prompts_batches_and_fp8_are_parts(tool, tmp_path):
    parts = sys.modules["machine_parts"]
    for name, work in {
        "prefill": partial(parts.prefill, model="smollm2-135m", prompts=(16, 40)),
        "capacity": partial(parts.capacity, model="smollm2-135m", context=64),
        "fp8": parts.fp8,
    }.items():
        assert tool.run_part(tool.Part(name, 60, work), asked(tmp_path)) == 0
    rows = rows_of(tmp_path)
    assert [(row["part"], row["kind"]) for row in rows] == [
        ("prefill", "prefill"), ("prefill", "prefill"), ("capacity", "capacity"), ("fp8", "bench"),
    ]  # fmt: skip
    assert rows[2]["predicted_batch"] == 3
