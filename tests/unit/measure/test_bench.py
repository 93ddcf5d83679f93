"""The benchmarks on working sets too small to say anything of a machine: that all of them run, and what comes of them."""

import json
from dataclasses import replace

import pytest
import torch

from kvcalc.measure import machine
from kvcalc.measure.bench import bench_report
from kvcalc.measure.calibrate import bench_rows
from kvcalc.measure.clock import Timing
from kvcalc.measure.crosscheck import Questions, crosscheck_report
from kvcalc.measure.machine import fp8_probes, probe_all
from kvcalc.measure.probes import Plan
from kvcalc.plan.deployment import deploy
from kvcalc.render.charts import chart_spec
from kvcalc.render.output import OUTPUTS, render

from .models import DEVICE, MODELS

pytestmark = pytest.mark.usefixtures("small_working_sets")

PLAN = Plan(formats=("bf16", "fp32"), stream_rounds=2, rounds=1, small_sets=True)


def quiet(_):
    pass


def test_every_kind_of_benchmark_is_run():
    probes = list(probe_all(DEVICE, PLAN, progress=quiet))
    assert {probe.kind for probe in probes} == {"read", "write", "copy", "matrix", "attention", "call", "layer", "step"}
    assert len({(probe.key, probe.working_set_bytes) for probe in probes}) == len(probes)
    assert all(len(probe.timing.samples_s) in (1, 2) for probe in probes)


@pytest.mark.parametrize("cache", [2**13, 2**16])
def test_no_cache_holds_what_is_passed_through(cache):
    device = replace(DEVICE, last_level_cache_bytes=cache)
    plan = replace(PLAN, formats=("bf16",), small_sets=False)
    probes = [probe for probe in probe_all(device, plan, progress=quiet) if probe.working_set_bytes]
    assert all(probe.working_set_bytes >= 4 * cache for probe in probes if probe.name != "32 x 32")
    report = bench_report(device, plan, progress=quiet)
    assert report.hardware.memory_bandwidth_bytes_per_s > 0
    assert {"matrix", "matrix:bf16", "attention:bf16"} == set(report.calibration.reach)


def test_the_peak_of_fp32_is_measured_beside_a_narrower_format():
    peaks = bench_report(DEVICE, replace(PLAN, formats=("fp16",)), progress=quiet).hardware.peak_flop_per_s
    assert set(peaks) == {"fp16", "fp32"}
    assert peaks["fp16"] >= peaks["fp32"]


@pytest.mark.parametrize(("seconds", "side"), [(1e-3, 2048), (0.1, 1024), (9.0, 256)])
def test_a_slow_multiplication_is_made_smaller(seconds, side, monkeypatch):
    monkeypatch.setattr(machine, "_SQUARE", {"cpu": 2048})

    def in_turn(calls, **_):
        rows = calls[0]().shape[0]
        return [Timing(samples_s=(seconds * (rows / 512) ** 3,))]

    monkeypatch.setattr(machine, "in_turn", in_turn)
    assert machine._side(DEVICE, torch.float32) == side  # noqa: SLF001  its own test


def test_the_cache_that_is_read_has_the_predicted_bytes():
    rows = bench_report(DEVICE, PLAN, progress=quiet).rows
    attending = [row for row in rows if row.kind == "attention"]
    assert len(attending) == 4
    assert all(row.predicted_kv_bytes == row.allocated_kv_bytes > 0 for row in attending)


def test_no_benchmark_beats_the_ceilings():
    report = bench_report(DEVICE, PLAN, progress=quiet)
    # the fastest is the ceiling itself, but for the last bit of its quotient
    assert all(row.ratio > 1 - 1e-12 for row in report.rows if row.kind in ("read", "write", "copy", "matrix"))
    assert set(report.hardware.peak_flop_per_s) == {"bf16", "fp32"}
    assert {"matrix:bf16", "attention:bf16", "matrix:fp32", "attention:fp32", "matrix"} == set(report.calibration.reach)


def test_what_was_measured_before_an_interruption_is_kept():
    def stop(step):
        if step == "attention in fp32":
            raise KeyboardInterrupt

    report = bench_report(DEVICE, PLAN, progress=stop)
    assert report.interrupted
    assert {row.format for row in report.rows if row.kind == "attention"} == {"bf16"}


def test_an_interruption_before_a_ceiling_is_known_is_passed_on():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench_report(DEVICE, PLAN, progress=stop)


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_bench_is_printed_in_every_output(output):
    report = bench_report(DEVICE, PLAN, progress=quiet)
    printed = render(report, output)
    assert "attention" in printed
    if output == "json":
        assert json.loads(printed)["calibration"]["reach"]["matrix:fp32"]["bandwidth_share"] > 0
    assert chart_spec(report)["layer"]


def test_bench_steps_bench():
    told = []
    deployment = deploy(MODELS["GQA"], weights="fp32", kv="fp32", activations="fp32")
    asked = Questions(deployments=(deployment,), batches=(1, 2), contexts=(8,), rounds=2)
    report = crosscheck_report(DEVICE, asked, progress=told.append)
    first, last = (told.index("memory bandwidth"), len(told) - 1 - told[::-1].index("memory bandwidth"))
    assert first < told.index("GQA: weights in fp32") < last
    assert report.gpu == report.ceilings.name == report.calibration.applies_to[0]
    assert all(row.estimate_s >= row.bound_s for row in report.rows)
    assert chart_spec(report)["layer"]
    assert "Decode steps: time" in render(report)


def test_fp8_matrices_are_costed_in_fp8():
    probes = list(fp8_probes(DEVICE, 1))
    assert [(probe.name, probe.batch) for probe in probes] == [("32 x 32", 32), ("64 x 128", 1), ("64 x 128", 8)]
    assert probes[1].op.weight_bytes == 64 * 128
    assert probes[1].working_set_bytes >= 2**14
    hardware = bench_report(DEVICE, PLAN, progress=quiet).hardware
    rows = bench_rows(probes, replace(hardware, peak_flop_per_s={**hardware.peak_flop_per_s, "fp8": 1e15}), None)
    assert all(row.flop_per_s > 0 for row in rows)
