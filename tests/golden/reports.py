"""Fixed reports of the commands that measure, or that read hundreds of records: another figure in each column."""

from __future__ import annotations

from typing import Any

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.reports.machine import FoundDevice, FoundHost, MachineReport
from kvcalc.core.reports.measure import (
    BatchCrossing,
    BenchReport,
    BenchRow,
    ContextGrowth,
    CrosscheckReport,
    CrosscheckRow,
    LoopCheck,
    MeasuredSpeculation,
)
from kvcalc.core.reports.validate import Figures, Outcome, SourceFigures, ValidateReport, ValidateSummary

__all__ = ["REPORTS"]

_MACHINE: dict[str, Any] = {
    "device": "cpu",
    "title": "A processor",
    "threads": 6,
    "versions": {"torch": "2.9.1", "system": "Linux 6.1"},
    "date": "2026-11-30",
    "gpu": "processor-6-threads",
}
_CEILINGS = HardwareProfile(
    name="processor-6-threads",
    title="A processor, measured",
    vendor="measured",
    memory_label_bytes=32e9,
    memory_bandwidth_bytes_per_s=41.5e9,
    peak_flop_per_s={"fp32": 310e9, "bf16": 720e9},
)
_CALIBRATION = Calibration(
    name="processor-6-threads-loop",
    engine="kvcalc-torch",
    applies_to=("processor-6-threads",),
    reach={
        "matrix": Reach(bandwidth_share=0.81, flop_share=0.72),
        "matrix:bf16": Reach(bandwidth_share=0.83, flop_share=0.74, call_s=2.5e-6, sum_share=0.61),
        "attention:fp32": Reach(bandwidth_share=0.37, flop_share=0.29, call_s=4e-6),
    },
    memory_interval=Interval(low=0.91, high=1.12),
    compute_interval=Interval(low=0.85, high=1.23),
    step_s=150e-6,
    layer_s=23e-6,
    measured=Measured(device="processor-6-threads", date="2026-11-30"),
)


def _bench() -> BenchReport:
    stream = BenchRow(
        kind="copy", name="copy", format="fp32", working_set_bytes=2**28, moved_bytes=2**29, measured_s=0.0141,
        median_s=0.0145, samples_s=(0.0141, 0.0145), ratio=1.07, bytes_per_s=38.1e9,
    )  # fmt: skip
    matrix = BenchRow(
        kind="matrix", name="512 x 4096 x 1024", format="bf16", batch=512, working_set_bytes=2**23, moved_bytes=13e6,
        flop=4.29e9, bound_s=0.00596, estimate_s=0.0081, measured_s=0.0079, median_s=0.0083, samples_s=(0.0079, 0.0083),
        ratio=1.33, bytes_per_s=1.65e9, flop_per_s=543e9,
    )  # fmt: skip
    attention = BenchRow(
        kind="attention", name="8 heads over 2", format="fp32", batch=3, context=700, working_set_bytes=3 * 2**20,
        moved_bytes=3.2e6, flop=17e6, predicted_kv_bytes=3_145_728, allocated_kv_bytes=3_145_729, bound_s=77e-6,
        estimate_s=190e-6, measured_s=201e-6, median_s=240e-6, samples_s=(201e-6, 240e-6), ratio=2.61,
        bytes_per_s=15.9e9, flop_per_s=84.6e9,
    )  # fmt: skip
    return BenchReport(
        **_MACHINE,
        hardware=_CEILINGS,
        calibration=_CALIBRATION,
        rows=(stream, matrix, attention),
        weight_read_bytes_per_s=35.2e9,
        notes=("other programs ran",),
    )


def _crosscheck() -> CrosscheckReport:
    row = CrosscheckRow(
        model="small", layers=4, format="bf16", batch=3, context=700, predicted_kv_bytes=1_234_567,
        allocated_kv_bytes=1_234_568, allocator_kv_bytes=1_310_720, predicted_weight_bytes=98_765_432,
        allocated_weight_bytes=98_765_433, bound_s=0.00241, serial_s=0.00263, estimate_s=0.0035, estimate_low_s=0.0031,
        estimate_high_s=0.0039, measured_s=0.0033, least_s=0.0032, median_s=0.0036, samples_s=(0.0032, 0.0036),
        ratio=1.37, serial_ratio=1.25, estimate_error=0.06, touched_experts=None, cache_resident=False, cause="",
    )  # fmt: skip
    other = CrosscheckRow(
        model="tiny", layers=2, format="fp32", batch=1, context=16, predicted_kv_bytes=4096, allocated_kv_bytes=4097,
        allocator_kv_bytes=None, predicted_weight_bytes=65_536, allocated_weight_bytes=65_537, bound_s=20e-6,
        serial_s=21e-6, estimate_s=None, estimate_low_s=None, estimate_high_s=None, measured_s=19e-6, least_s=18e-6,
        median_s=22e-6, samples_s=(18e-6, 22e-6), ratio=0.95, serial_ratio=0.9, estimate_error=None, touched_experts=5,
        cache_resident=True, cause="",
    )  # fmt: skip
    crossings = (
        BatchCrossing(model="small", format="bf16", context=64, bound_batch=18, estimate_batch=23.4, measured_batch=25.6,
                      largest_batch=128, largest_batch_limiter="compute", short_context=True),
        BatchCrossing(model="small", format="fp32", context=4096, bound_batch=None, estimate_batch=None,
                      measured_batch=None, largest_batch=64, largest_batch_limiter="memory", short_context=False),
    )  # fmt: skip
    growth = ContextGrowth(
        model="small", format="bf16", batch=3, from_context=128, to_context=2048, bound_s_per_token=61e-9,
        estimate_s_per_token=150e-9, measured_s_per_token=170e-9,
    )  # fmt: skip
    speculation = MeasuredSpeculation(
        target="small", draft="tiny", format="fp32", gamma_tokens=4, acceptance=0.71, tokens_per_pass=2.83,
        expected_tokens_per_pass=2.79, draft_s=0.00031, verify_s=0.0042, plain_s=0.0033, measured_speedup=1.72,
        predicted_speedup=1.69, identical=True,
    )  # fmt: skip
    return CrosscheckReport(
        **_MACHINE,
        ceilings=_CEILINGS,
        calibration=_CALIBRATION,
        rows=(row, other),
        checks=(
            LoopCheck(name="cache bytes", passed=True, detail="equal in 2 of 2 steps"),
            LoopCheck(name="bounds", passed=False, detail="1 of 2 beaten"),
        ),
        crossings=crossings,
        growth=(growth,),
        speculation=speculation,
        median_abs_error={"bf16": 0.061},
        p90_abs_error={"bf16": 0.137},
        passed=False,
    )


def _figures(records: int) -> Figures:
    """Return figures of a group that differ from each other, and from those of a group of another size."""
    return Figures(
        records=records, held=records - 1, scored=records - 3, fitted=records - 5, without_profile=1,
        without_calibration=2, excluded=4, explained=7, bound_violations=6, median_share=0.61, least_share=0.42,
        most_share=1.04, median_error=-0.031, p90_error=0.172, median_abs_error=0.083, interval_coverage=0.79,
    )  # fmt: skip


def _validate() -> ValidateReport:
    shared: dict[str, Any] = {"suite": "decode", "source": "a/table.md", "first_hand": True, "unit": "s"}
    outcomes = (
        Outcome(id="first", quantity="decode", status="violates", model="llama2-7b", hardware="l4", gpus=2, batch=8,
                measured=0.021, bound=0.024, estimate=0.03, estimate_least=0.027, estimate_most=0.034, **shared),
        Outcome(id="second", quantity="decode", status="explained", reason="it may stay in the cache", measured=0.011,
                bound=0.012, **shared),
        Outcome(id="third", quantity="ttft", status="holds", reason="long prompts", measured=0.5, bound=0.2, **shared),
        Outcome(id="fourth", quantity="decode", status="excluded", reason="its batch is not printed", **shared),
        Outcome(id="fifth", quantity="decode", status="no profile", reason="no profile of 'x'", **shared),
    )  # fmt: skip
    sources = (
        SourceFigures(suite="decode", source="a/table.md", first_hand=True, quantity="decode", figures=_figures(40)),
        SourceFigures(suite="logs", source="b/log.txt", first_hand=False, quantity="kv_gib", figures=_figures(30)),
    )
    return ValidateReport(
        records_file="mine.yaml",
        summary=ValidateSummary(
            records=70, held=68, scored=64, fitted=60, without_profile=2, without_calibration=4, excluded=8,
            explained=14, bound_violations=12,
        ),
        suites={"decode": _figures(40), "logs": _figures(30)},
        sources=sources,
        outcomes=outcomes,
        notes=("one record was read twice",),
    )  # fmt: skip


def _devices() -> MachineReport:
    card = FoundDevice(
        title="NVIDIA GeForce RTX 4090", card="rtx-4090", memory_bytes=24564 * 2**20, used_bytes=507 * 2**20,
        memory_bandwidth_bytes_per_s=1.008e12, pcie="4x16", driver="550.163.01", tool="nvidia-smi",
    )  # fmt: skip
    own = FoundDevice(title="Raphael", card=None, memory_bytes=67108864, unified=True, tool="rocm-smi")
    host = FoundHost(
        cpu="AMD Ryzen 9 7950X", card=None, threads=32, memory_bytes=64 * 2**30, used_bytes=9 * 2**30,
        memory_kind="DDR5", memory_transfers_per_s=6e9, memory_channels=2, memory_bandwidth_bytes_per_s=96e9,
        bandwidth_from="dmidecode",
    )  # fmt: skip
    return MachineReport(devices=(card, own), host=host, notes=("Raphael is not in the catalogue",))


REPORTS = {"bench": _bench, "devices": _devices, "crosscheck": _crosscheck, "validate": _validate}
