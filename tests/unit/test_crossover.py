"""Crossovers from memory to compute: of the bound, of times that are made up, and of the reports that were measured here."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from kvcalc import api
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.reports.measure import CrosscheckReport, CrosscheckRow
from kvcalc.core.workload import decode_step
from kvcalc.measure.crossover import bound_crossover, crossings, knee_batch
from kvcalc.measure.scale import with_layers
from kvcalc.plan.deployment import deploy
from kvcalc.plan.steps import timed_step
from kvcalc.render.reports.crosscheck import parts

REPORTS = sorted((Path(__file__).parents[1] / "measurements").glob("*.json"))
CROSSING = next(path for path in REPORTS if "crossing" in path.name)


def deployed(model, hardware, *, weights="bf16", layers=None):
    profile = api.load_model(model)
    cut = with_layers(profile, layers or profile.layers)
    return replace(deploy(cut, weights=weights, kv=weights, activations=weights), hardware=hardware)


def hardware_of(report):
    """The ceilings that a report stands on, as a profile."""
    found = report["ceilings"]
    names = ("name", "title", "vendor", "memory_label_bytes", "memory_bandwidth_bytes_per_s", "peak_flop_per_s")
    return HardwareProfile(**{name: found[name] for name in names})


def recomputed(report):
    """The crossings of a stored report, from its rows."""
    rows = [CrosscheckRow(**row | {"samples_s": tuple(row["samples_s"])}) for row in report["rows"]]
    built = {(row.model, row.format, row.layers) for row in rows}
    hardware = hardware_of(report)
    return crossings(
        rows, [deployed(model, hardware, weights=name, layers=layers) for model, name, layers in sorted(built)]
    )


# An H200 reads 4.8 TB/s and computes 989.5 TFLOP/s in bf16: the 15.0 GB of llama3.1-8b take 3.13 ms, a sequence 15.2 us of compute.
# The cache of one of 1,024 tokens takes 28 us. One of smollm2-360m of 128 tokens reads 5.2 MB, 1.09 us, and computes for 0.75 us.
BOUNDS = [
    ("llama3.1-8b", 16, 214),
    ("llama3.1-8b", 128, 269),
    ("llama3.1-8b", 1024, None),
    ("smollm2-360m", 128, None),
]


@pytest.mark.parametrize(("model", "context", "batch"), BOUNDS)
def test_the_bound_crosses_at_the_least_batch_that_compute_limits(model, context, batch):
    deployment = deployed(model, api.load_hardware("h200"))
    assert bound_crossover(deployment, context=context) == batch

    def limiter(sequences):
        return timed_step(deployment, decode_step(batch=sequences, context=context)).time.limiter

    if batch is None:
        assert {limiter(sequences) for sequences in (1, 256, 1024, 2**16)} == {"memory"}
    else:
        assert [limiter(batch - 1), limiter(batch)] == ["memory", "compute"]


BATCHES = [1, 16, 64, 128, 192, 256, 384, 512, 768, 1024]


@pytest.mark.parametrize("launch_s", [0, 1e-3])
def test_the_knee_of_a_roof_is_where_its_lines_meet_whatever_each_step_takes_beside(launch_s):
    times = [launch_s + max(3.155e-3, 3.155e-3 / 212 * batch) for batch in BATCHES]
    assert knee_batch(BATCHES, times) == pytest.approx(212)


@pytest.mark.parametrize(
    ("batches", "times"),
    [
        (BATCHES, [1e-3 + 1e-5 * batch for batch in BATCHES]),
        (BATCHES, [3e-3] * len(BATCHES)),
        (BATCHES, [max(3.0, 0.1 * batch) if batch > 1 else 4.0 for batch in [1] * 7 + [1024] * 3]),
        ([1, 2, 4, 64, 128], [1, 1, 1, 16, 32]),
    ],
    ids=["memory and compute that add up", "no compute", "a jump", "five steps"],
)
def test_times_without_a_knee_have_none(batches, times):
    assert knee_batch(batches, times) is None


@pytest.mark.parametrize("path", REPORTS, ids=[path.stem for path in REPORTS])
def test_stored_reports_say_what_their_rows_do(path):
    report = json.loads(path.read_text())
    for stored, crossing in zip(report["crossings"], recomputed(report), strict=True):
        expected = asdict(crossing)
        assert stored.pop("estimate_batch") == pytest.approx(expected.pop("estimate_batch"))
        assert stored == expected


def crossing_rows(times_s):
    report = json.loads(CROSSING.read_text())
    rows = [row | {"measured_s": taken, "median_s": taken} for row, taken in zip(report["rows"], times_s, strict=True)]
    return report | {"rows": rows}


def test_what_was_measured_here_is_the_bounds_crossover_and_no_knee():
    crossing = recomputed(json.loads(CROSSING.read_text()))[0]
    assert (crossing.bound_batch, crossing.measured_batch, crossing.largest_batch_limiter) == (14, None, "compute")
    assert crossing.estimate_batch == pytest.approx(13.06, abs=0.01)


def test_a_measured_knee_needs_repetitions_that_agree():
    roof = [max(40e-3, 4e-3 * batch) for batch in (1, 2, 4, 8, 16, 32, 64, 128)]
    report = crossing_rows(roof)
    assert recomputed(report)[0].measured_batch == pytest.approx(10)
    for row in report["rows"]:
        row["median_s"] = max(60e-3, 4e-3 * row["batch"])
    assert recomputed(report)[0].measured_batch is None


def test_growth_of_the_cache_with_the_batch_is_no_crossover():
    report = crossing_rows([max(40e-3, 4e-3 * batch) for batch in (1, 2, 4, 8, 16, 32, 64, 128)])
    report["ceilings"]["peak_flop_per_s"] = {"bf16": 989e12}
    crossing = recomputed(report)[0]
    assert (crossing.bound_batch, crossing.estimate_batch, crossing.measured_batch) == (None, None, None)
    assert (crossing.largest_batch_limiter, crossing.short_context) == ("memory", False)


def test_the_table_shows_the_limiter_beside_the_crossover():
    report = json.loads(CROSSING.read_text())
    fields = report | {
        "ceilings": hardware_of(report), "calibration": None, "growth": (), "checks": (), "crossings": recomputed(report),
        "rows": (),
    }  # fmt: skip
    grids = parts(CrosscheckReport(**fields))
    assert any("128: compute" in str(part) and "14" in str(part) for part in grids)
