"""The rate at which weights are read once, from the benchmarks of a machine."""

from __future__ import annotations

from kvcalc.core.cost_types import OpCost
from kvcalc.measure.calibrate import weight_reading
from kvcalc.measure.clock import Timing
from kvcalc.measure.library import Device
from kvcalc.measure.probes import Probe

_DEVICE = Device(
    kind="cpu", title="x", architecture="x", memory_bytes=1, last_level_cache_bytes=2**20, threads=2, versions={}
)


def _probe(kind: str, seconds: tuple[float, ...], *, batch: int | None = None, size: int = 2**30) -> Probe:
    op = OpCost(name=kind, part="other", unit="fp32", io_bytes=size)
    return Probe(kind=kind, name=kind, format="fp32", op=op, timing=Timing(samples_s=seconds), working_set_bytes=size,
                 batch=batch)  # fmt: skip


def test_it_is_the_undisturbed_rate_of_reads_and_of_matrices_with_one_vector() -> None:
    probes = [
        _probe("read", (0.2, 0.1, 0.3)),
        _probe("matrix", (0.05, 0.08), batch=1),
        # writes and copies read no weights, larger batches compute, and a cache holds what is small
        _probe("copy", (0.001,)),
        _probe("matrix", (0.001,), batch=8),
        _probe("read", (0.000001,), size=2**20),
    ]
    assert weight_reading(_DEVICE, probes) == 2**30 / 0.05
    assert weight_reading(_DEVICE, probes[:1]) == 2**30 / 0.1


def test_a_single_fast_repetition_of_many_does_not_count() -> None:
    assert weight_reading(_DEVICE, [_probe("read", (0.01, *[0.1] * 19))]) == 2**30 / 0.1


def test_without_a_read_there_is_none() -> None:
    assert weight_reading(_DEVICE, [_probe("write", (0.1,))]) is None
