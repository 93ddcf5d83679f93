"""Measured times against bound and estimate: where they go, and what would move them."""

from __future__ import annotations

import re
import time
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvcalc.core.errors import InputError
from kvcalc.core.sums import added
from kvcalc.questions.measured import described, measured_run, start_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration, Interval
    from kvcalc.core.reports.calibrate import MeasuredPoint, MeasuredReport
    from kvcalc.evidence.benchmarks.read import Benchmark
    from kvcalc.evidence.cases import Case
    from kvcalc.questions.measured import MeasuredRun

__all__ = ["is_address", "measured_gaps", "scraped"]

_TIMEOUT_S, _BETWEEN_S = 5.0, 2.0
_MAX_BYTES = 32 * 2**20
# What makes a term of the estimate shorter.
_ADVICE = {
    "matrix": "narrower weights, more GPUs, or more requests at once, which share the reading of the weights",
    "experts": "narrower experts, or expert parallel: each rank then reads fewer experts for more tokens",
    "attention": "a narrower cache, shorter contexts, or more GPUs to share it",
    "launches": "CUDA graphs or compilation for this batch size, and fused kernels",
    "step": "asynchronous scheduling, and a faster host",
    "tokens": "a cheaper sampler, asynchronous output, and a faster host",
    "collectives": "fewer ranks of tensor parallel, or a custom all-reduce",
    "links": "fewer ranks of tensor parallel, or faster links between them",
    "prompts": "smaller chunks of prompts, a prefix cache, or engines of their own for prompts",
    "request": "a faster tokeniser and HTTP server, or several of them",
    "steps_before": "shorter steps: fewer requests at once",
    "queue": "fewer requests at once, more replicas, or a prefix cache",
}


def is_address(name: str) -> bool:
    """Whether a name is the address of a server's metrics."""
    return re.match(r"https?://", name) is not None


def scraped(address: str) -> tuple[str, str, float]:
    """Return the metrics of a server on this machine twice, and the seconds between.

    Raises:
        InputError: a server elsewhere, or one that does not answer.
    """
    host = urlsplit(address).hostname or ""
    if host != "localhost" and not _is_loopback(host):
        raise InputError(f"{address}: only metrics of this machine are asked for",
                         hint=f"curl {address} > metrics.txt, then give the file")  # fmt: skip
    first, began = _answer(address), time.monotonic()
    time.sleep(_BETWEEN_S)
    return first, _answer(address), time.monotonic() - began


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _answer(address: str) -> str:
    from urllib.request import ProxyHandler, build_opener

    try:
        with build_opener(ProxyHandler({})).open(address, timeout=_TIMEOUT_S) as answered:
            content: bytes = answered.read(_MAX_BYTES)
    except (OSError, ValueError) as error:
        raise InputError(f"{address} does not answer: {error}", hint="is it the address of /metrics?") from None
    return content.decode("utf-8", errors="replace")


def measured_gaps(
    files: Sequence[Benchmark],
    given: Mapping[str, Any],
    *,
    calibration: str | None = None,
    counted: tuple[Mapping[str, float], float] | None = None,
    **asked: Any,
) -> MeasuredReport:
    """Return measured times against bound and estimate.

    Args:
        files: files of measurements of one deployment.
        given: arguments of `kvcalc.deployment`.
        calibration: the one to estimate with; that which applies where left out.
        counted: FLOP and bytes of one accelerator by the engine's own counters, and the seconds they took.
        asked: ``model``, ``gpu``, ``engine`` and ``lengths``, as `measured_run` takes them.

    Raises:
        KvcalcError: a deployment that is not known, or measurements that cannot be computed.
    """
    from kvcalc.core.reports.calibrate import MeasuredReport

    run = measured_run(files, given, **asked)
    used, notes = start_of(run, calibration)
    rates = _engine_shares(run, counted)
    return MeasuredReport(
        deployment=described(run),
        files=run.files,
        calibration=used.name,
        rows=tuple(_point(case, used) for case in run.cases),
        engine_mbu_share=rates[0],
        engine_mfu_share=rates[1],
        assumed=run.assumed,
        notes=(*run.notes, *notes),
    )


def _engine_shares(
    run: MeasuredRun, counted: tuple[Mapping[str, float], float] | None
) -> tuple[float | None, float | None]:
    hardware = run.deployment.hardware
    if counted is None or hardware is None or "flop" not in counted[0]:
        return None, None
    counts, seconds = counted
    moved = counts.get("read_bytes", 0.0) + counts.get("written_bytes", 0.0)
    peak = hardware.peak(run.deployment.formats.hidden.name)
    return moved / seconds / hardware.memory_bandwidth_bytes_per_s, counts["flop"] / seconds / peak


def _point(case: Case, used: Calibration) -> MeasuredPoint:
    from kvcalc.core.reports.calibrate import MeasuredPoint
    from kvcalc.cost.estimate import pass_kind
    from kvcalc.cost.roofline import step_time
    from kvcalc.evidence.estimates import case_seconds
    from kvcalc.evidence.gate import bound_s
    from kvcalc.evidence.serving import served_kind

    seconds = case_seconds(case, used)
    bounds = [(each.times, step_time(each.cost, case.hardware)) for each in case.likely or case.passes]
    limiter = max(bounds, key=lambda pair: pair[0] * pair[1].ideal_s)[1].limiter
    served = case.first is not None or case.likely
    kind = served_kind(case) if served else pass_kind(case.passes[0].cost)
    spread = used.spread(kind, is_compute=limiter == "compute")
    terms = _terms(case, used)
    record = case.record
    return MeasuredPoint(
        id=record.row or record.id,
        quantity=record.phase,
        batch=record.batch,
        prompt_tokens=record.prompt_tokens,
        output_tokens=record.output_tokens,
        measured_s=case.measured_s,
        bound_s=bound_s(case),
        estimate_s=seconds,
        low_s=seconds * spread.low,
        high_s=seconds * spread.high,
        mbu_share=added(times * each.memory_s for times, each in bounds) / case.measured_s,
        mfu_share=added(times * each.compute_s for times, each in bounds) / case.measured_s,
        limiter=limiter,
        terms_s=terms,
        reason=_reason(case.measured_s / seconds, spread),
        advice=_ADVICE[next(iter(terms))],
    )


def _terms(case: Case, used: Calibration) -> dict[str, float]:
    """Return the estimate by term, the largest first."""
    from kvcalc.evidence.own.terms import timed

    seconds_of_terms: dict[str, float] = {}
    for by, parts in timed(case, used).pieces:
        for name, seconds in parts.items():
            seconds_of_terms[by or name] = seconds_of_terms.get(by or name, 0.0) + seconds
    return dict(sorted(seconds_of_terms.items(), key=lambda pair: -pair[1]))


def _reason(ratio: float, spread: Interval) -> str:
    if spread.low <= ratio <= spread.high:
        return "within the interval: as fast as this engine is on such GPUs"
    if ratio > spread.high:
        return (
            "slower than four of five: a setting, other work on the GPUs, clocks or an older version; kvcalc calibrate "
            "says which term"
        )
    return "faster than nine of ten: a prefix cache, speculation, or other formats or lengths than taken here"
