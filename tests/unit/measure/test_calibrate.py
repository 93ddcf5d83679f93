"""From benchmarks to ceilings and a calibration, on benchmarks whose answer is known."""

import pytest

from kvcalc import api
from kvcalc.core.cost_types import OpCost
from kvcalc.measure.calibrate import bench_rows, calibration_of, ceilings, drift, noise_notes
from kvcalc.measure.clock import Timing, in_turn
from kvcalc.measure.library import Device
from kvcalc.measure.probes import Probe, joined

CACHE = 32 * 2**20
LARGE = 8 * CACHE
DEVICE = Device(
    kind="cpu", title="Some CPU (R) 9000", architecture="cpu-some", memory_bytes=2**34, last_level_cache_bytes=CACHE,
    threads=2, versions={"torch": "2.13.0"},
)  # fmt: skip
BANDWIDTH, PEAK = 20e9, 400e9


def probe(kind, seconds, *, moved=0.0, flop=0.0, part="mlp", held=LARGE, batch=1, name="x", samples=None, unit="bf16"):
    op = OpCost(name=name, part=part, unit=unit, flop=flop, weight_bytes=moved)
    return Probe(
        kind=kind, name=name, format=unit, op=op, timing=Timing(samples_s=samples or (seconds,)), batch=batch,
        working_set_bytes=held,
    )  # fmt: skip


def machine(memory_share=0.5, flop_share=0.8, attention_share=0.25, call_s=1e-5):
    """Benchmarks of a machine that reaches exactly these shares."""
    moved = 1e8
    found = [
        probe("read", moved / BANDWIDTH, moved=moved),
        probe("matrix", 1.0, flop=PEAK, held=CACHE, name="square", batch=2048),
    ]
    for batch in (1, 4, 16, 64):
        flop = batch * moved
        seconds = max(moved / BANDWIDTH / memory_share, flop / PEAK / flop_share) + call_s
        found.append(probe("matrix", seconds, moved=moved, flop=flop, batch=batch))
    for batch in (1, 16):
        attended = batch * 1e7
        seconds = attended / BANDWIDTH / attention_share + call_s
        found.append(probe("attention", seconds, moved=attended, flop=4 * attended, part="cache", batch=batch))
    return [
        *found,
        probe("call", call_s, held=0),
        probe("layer", 1e-4, held=0),
        probe("step", 2e-4, held=0),
    ]


def test_ceilings_are_the_fastest_of_all():
    found = ceilings(DEVICE, [*machine(), probe("copy", 1.0, moved=2 * BANDWIDTH, name="copy")])
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(2 * BANDWIDTH)
    assert found.peak_flop_per_s == {"bf16": pytest.approx(PEAK)}
    assert found.name == "some-cpu-r-9000-2-threads"
    assert found.last_level_cache_bytes == CACHE


def test_what_a_cache_may_hold_is_no_ceiling():
    found = ceilings(DEVICE, [*machine(), probe("read", 1.0, moved=100 * BANDWIDTH, held=CACHE, name="small")])
    assert found.memory_bandwidth_bytes_per_s == pytest.approx(BANDWIDTH)


def test_narrower_numbers_can_be_widened_and_multiplied_as_fp32():
    slow, wide = (
        probe("matrix", 1.0, flop=flop, unit=unit) for unit, flop in (("fp16", PEAK / 90), ("fp32", PEAK / 4))
    )
    found = ceilings(DEVICE, [*machine(), slow, wide]).peak_flop_per_s
    assert found == {"bf16": pytest.approx(PEAK), "fp16": PEAK / 4, "fp32": PEAK / 4}


def test_one_lucky_repetition_raises_the_ceiling():
    lucky = probe("read", 0, moved=BANDWIDTH, samples=(1.0, 0.5, 1.0), name="lucky")
    assert ceilings(DEVICE, [*machine(), lucky]).memory_bandwidth_bytes_per_s == pytest.approx(2 * BANDWIDTH)


@pytest.mark.parametrize(("memory", "flop", "attention"), [(0.5, 0.8, 0.25), (0.9, 0.3, 0.9), (0.1, 1.0, 0.02)])
def test_shares_that_were_reached_are_found(memory, flop, attention):
    probes = machine(memory, flop, attention)
    found = calibration_of(DEVICE, ceilings(DEVICE, probes), probes)
    matrix, attending = found.reach_of("matrix", "bf16"), found.reach_of("attention", "bf16")
    assert matrix.bandwidth_share == pytest.approx(memory, rel=0.02)
    assert attending.bandwidth_share == pytest.approx(attention, rel=0.02)
    if flop < 4 * memory:  # else no batch is limited by compute
        assert matrix.flop_share == pytest.approx(flop, rel=0.02)
    assert (found.layer_s, found.step_s) == (1e-4, 2e-4)


def test_a_call_of_some_size_and_a_partial_overlap_are_found():
    probes = [*machine()[:2], probe("call", 1e-5, held=0)]
    for place, moved in enumerate((2e6, 2e7, 2e8)):
        for batch in (1, 4, 16, 32, 64, 256):
            memory, compute = moved / BANDWIDTH / 0.5, batch * moved / PEAK / 0.8
            seconds = 1e-5 + 4e-5 + max(memory, compute, 0.7 * (memory + compute))
            probes.append(probe("matrix", seconds, moved=moved, flop=batch * moved, batch=batch, name=str(place)))
    found = calibration_of(DEVICE, ceilings(DEVICE, probes), probes).reach_of("matrix", "bf16")
    assert found.call_s == pytest.approx(4e-5, rel=0.1)
    assert found.sum_share == pytest.approx(0.7, abs=0.02)
    assert (found.bandwidth_share, found.flop_share) == (pytest.approx(0.5, rel=0.03), pytest.approx(0.8, rel=0.03))


def test_ceilings_and_calibration_are_read_back_as_written(tmp_path):
    probes = machine()
    hardware = ceilings(DEVICE, probes)
    calibration = calibration_of(DEVICE, hardware, probes)
    api.write_profile(hardware, tmp_path / "gpu.yaml")
    api.write_profile(calibration, tmp_path / "calibration.yaml")
    assert api.load_hardware(tmp_path / "gpu.yaml") == hardware
    deployment = api.deployment("llama3.2-1b", gpu=tmp_path / "gpu.yaml")
    row = api.decode(deployment, calibration=tmp_path / "calibration.yaml").rows[0]
    assert row.estimate_s > row.ideal_s > 0


def test_rows_say_what_was_measured_over_the_bound():
    probes = machine()
    hardware = ceilings(DEVICE, probes)
    rows = bench_rows(probes, hardware, calibration_of(DEVICE, hardware, probes))
    batch_1 = next(row for row in rows if row.kind == "matrix" and row.batch == 1)
    assert batch_1.ratio == pytest.approx(2.0, rel=0.01)
    assert batch_1.estimate_s == pytest.approx(batch_1.measured_s, rel=0.02)
    assert batch_1.bytes_per_s == pytest.approx(BANDWIDTH / 2, rel=0.01)


def test_both_runs_count():
    one, other = [probe("read", 1.0)], [probe("read", 3.0), probe("copy", 1.0)]
    assert [found.timing.samples_s for found in joined(one, other)] == [(1.0, 3.0)]


def test_drift_is_how_far_the_middle_moved():
    before = [probe("read", 1.0, name=str(place)) for place in range(3)]
    after = [probe("read", seconds, name=str(place)) for place, seconds in enumerate((1.0, 1.25, 9.0))]
    assert drift(before, after) == pytest.approx(0.25)
    assert drift(after, before) == pytest.approx(0.25)
    assert drift(before, ()) == 0


def test_a_busy_machine_is_told():
    once = [probe("read", 1.0), probe("matrix", 1.0, samples=(1.0, 1.0))]
    assert "1 of 2 benchmarks were made once" in noise_notes(once)[0]
    quiet = [probe("read", 1.0, samples=(1.0, 1.01, 1.02)) for _ in range(4)]
    noisy = [probe("read", 1.0, samples=(1.0, 2.0, 2.0)) for _ in range(4)]
    assert noise_notes(quiet) == ()
    assert "4 of 8 benchmarks" in noise_notes([*quiet, *noisy])[0]


def test_times_are_taken_in_turn():
    order = []
    timings = in_turn([lambda: order.append("a"), lambda: order.append("b")], rounds=3, device=DEVICE)
    assert order == ["a", "b"] + 3 * ["a", "b"]
    assert [len(timing.samples_s) for timing in timings] == [3, 3]


def test_the_undisturbed_repetition_is_not_the_luckiest():
    timing = Timing(samples_s=tuple(float(second) for second in range(20, 0, -1)))
    assert (timing.least_s, timing.low_s, timing.median_s) == (1, 3, 11)
