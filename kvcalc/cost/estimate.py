"""The estimate: the roofline of each operator at the rates reached, plus what passes, layers and calls take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.calibration import joins, kind_of, pass_name
from kvcalc.core.cost_types import PlacedStage, StepEstimate
from kvcalc.core.records import dataclass
from kvcalc.core.traced import larger, smaller
from kvcalc.cost.roofline import stage_seconds, stages_time, step_time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration, Phase, Reach
    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.hardware import HardwareProfile

__all__ = [
    "OperatorTerms",
    "PassTerms",
    "SumTerms",
    "estimate_stages",
    "estimate_time",
    "operator_seconds",
    "pass_kind",
    "pass_terms",
    "reached_seconds",
    "stage_terms",
    "sum_seconds",
]


class OperatorTerms(NamedTuple):
    """Terms of one operator.

    Args:
        compute_s: its FLOP over the peak.
        memory_s: the bytes it moves over the bandwidth.
        calls: how often it is run.
        row_s: the FLOP of one row more for each of its matrices over the peak.
        activation_s: of ``memory_s``, what activations are in and out.
        is_joined: whether an engine may run it in one call with the operator before.
    """

    compute_s: float
    memory_s: float
    calls: int
    row_s: float = 0.0
    activation_s: float = 0.0
    is_joined: bool = False


class SumTerms(NamedTuple):
    """Terms of sums over ranks that are alike.

    Args:
        calls: how often they are made.
        ring_s: the bytes that a ring sends for one of them, over the link's rate.
        direct_s: the bytes of one of them over the link's rate if each rank sends all others its whole vector.
    """

    calls: int
    ring_s: float
    direct_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassTerms:
    """Terms that the estimate of a pass adds up; they follow from the accelerator's peaks and from no calibration.

    Args:
        operators: for each kind of operator and arithmetic format, the terms of the operators.
        layers: layers that a token passes.
        collectives: collectives that follow each other.
        sums: those of them that are sums over ranks.
        link_s: the others' bytes over the link's rate.
        logits: tokens that the pass samples.
    """

    operators: Mapping[tuple[str, str], tuple[OperatorTerms, ...]]
    layers: float = 0
    collectives: int = 0
    sums: tuple[SumTerms, ...] = ()
    link_s: float = 0.0
    logits: int = 0


def pass_terms(cost: StepCost, hardware: HardwareProfile) -> PassTerms:
    """Return the terms of a pass on alike accelerators: its operators one after another, through all stages.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785; as `stage_terms`.
    """
    link = hardware.link(cost.exchange_gpus)
    terms = stage_terms(PlacedStage(ops=cost.ops, hardware=hardware, link=link, layers=cost.layers))
    return replace(terms, logits=cost.logits)


def stage_terms(stage: PlacedStage) -> PassTerms:
    """Return the terms of a stage: its operators one after another.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (FLOP over peak, bytes over bandwidth).

    >>> from kvcalc.core.cost_types import OpCost
    >>> from kvcalc.core.hardware import HardwareProfile
    >>> card = HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9, peak_flop_per_s={"bf16": 1e14},
    ...     memory_bandwidth_bytes_per_s=1e12)
    >>> terms = stage_terms(PlacedStage(ops=(OpCost(name="op", part="mlp", weight_bytes=5e9),), hardware=card))
    >>> {kind: [op[:3] for op in ops] for kind, ops in terms.operators.items()}
    {('matrix', 'bf16'): [(0.0, 0.005, 1)]}
    """
    link, hardware = stage.link, stage.hardware
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    operators: dict[tuple[str, str], list[OperatorTerms]] = {}
    collectives, link_s = 0, 0.0
    sums: list[SumTerms] = []
    for op in stage.ops:
        if op.collective_steps:
            collectives += op.calls if link is not None else 0
            sent_s = op.collective_bytes / link.bytes_per_s if link is not None else 0
            if op.direct_bytes and link is not None:
                sums.append(SumTerms(op.calls, sent_s / op.calls, op.direct_bytes / link.bytes_per_s / op.calls))
            else:
                link_s += sent_s
            continue
        link_s += op.link_bytes / link.bytes_per_s if link is not None else 0
        peak = hardware.peak(op.unit)
        terms = OperatorTerms(
            op.flop / peak,
            op.moved_bytes / bandwidth,
            op.calls,
            op.row_flop / peak,
            0.0 if op.part == "cache" else op.activation_bytes / bandwidth,
            joins(op.name),
        )
        operators.setdefault((kind_of(op), op.unit), []).append(terms)
    return PassTerms(
        operators={kind: tuple(ops) for kind, ops in operators.items()},
        layers=stage.layers,
        collectives=collectives,
        sums=tuple(sums),
        link_s=link_s,
    )


def reached_seconds(
    terms: PassTerms,
    calibration: Calibration,
    *,
    most: Callable[[float, float, float], float] = larger,
    lesser: Callable[[float, float], float] = smaller,
) -> float:
    """Return the time of a pass at the rates that were reached.

    step_s + logits * sample_s + layers * layer_s
    + the sum over operators of calls * call_s + max(c, m, sum_share * (c + m))
    + collectives * collective_s + `sum_seconds` of sums over ranks + other link bytes / (link_share * rate),
    where c = (FLOP + padding_rows * FLOP of a row) / (flop_share * peak)
    and m = (moved bytes - activations) / (bandwidth_share * bandwidth) + activations / (activation_share * bandwidth).

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785 (reached ceilings below the peaks);
    Hockney 1994, doi 10.1016/S0167-8191(06)80021-9 (a start-up time plus bytes over an asymptotic rate). That
    compute and memory overlap in part is this project's: from the larger of both (0.5) to their sum (1).

    Args:
        terms: the pass's terms; arrays in place of numbers are passes side by side.
        calibration: the rates.
        most: the largest of times, as `larger`; of arrays, at each place.
        lesser: the smaller of two times, likewise.

    >>> from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
    >>> half = Calibration(name="half", engine="any", applies_to=("any",), layer_s=0.5, collective_s=2, link_share=0.1,
    ...     reach={"matrix": Reach(bandwidth_share=0.5, flop_share=0.25, call_s=1)}, measured=Measured(device="x"),
    ...     memory_interval=Interval(low=1, high=1), compute_interval=Interval(low=1, high=1))
    >>> reached_seconds(PassTerms(operators={("matrix", "bf16"): (OperatorTerms(1, 3, 2),)}, layers=4), half)
    10.0
    >>> attention = {("attention", "bf16"): (OperatorTerms(2, 3, 2),)}
    >>> reached_seconds(PassTerms(operators=attention, collectives=3, link_s=1), half)
    26.0
    """
    total = calibration.step_s + terms.logits * calibration.sample_s + terms.layers * calibration.layer_s
    total += terms.collectives * calibration.collective_s + terms.link_s / calibration.link_share
    for each in terms.sums:
        total += each.calls * sum_seconds(each, calibration, lesser=lesser)
    for (kind, unit), operators in terms.operators.items():
        reach = calibration.reach_of(kind, unit)
        for op in operators:
            calls = 0 if calibration.joins_inputs and op.is_joined else op.calls
            total += calls * reach.call_s + operator_seconds(op, reach, most=most)
    return total


def operator_seconds(
    op: OperatorTerms, reach: Reach, *, most: Callable[[float, float, float], float] = larger
) -> float:
    """Return the time of an operator without its call.

    Source: as `reached_seconds`; that a kernel computes whole tiles, so that each matrix costs some rows more than its
    tokens: Abdelkhalek et al. 2022, arXiv 2206.02874 (tensor cores multiply fragments of fixed shape).

    >>> from kvcalc.core.calibration import Reach
    >>> op = OperatorTerms(1, 2, 1)
    >>> [operator_seconds(op, Reach(bandwidth_share=1, flop_share=0.5, sum_share=share)) for share in (0.5, 0.75, 1)]
    [2.0, 3.0, 4.0]
    >>> padded = Reach(bandwidth_share=1, flop_share=0.5, padding_rows=8, activation_share=0.25)
    >>> operator_seconds(OperatorTerms(1, 2, 1, row_s=0.125, activation_s=1), padded)
    5.0
    """
    compute = (op.compute_s + reach.padding_rows * op.row_s) / reach.flop_share
    activations = op.activation_s / (reach.activation_share or reach.bandwidth_share)
    memory = (op.memory_s - op.activation_s) / reach.bandwidth_share + activations
    return most(compute, memory, reach.sum_share * (compute + memory))


def sum_seconds(
    terms: SumTerms, calibration: Calibration, *, lesser: Callable[[float, float], float] = smaller
) -> float:
    """Return the time of a sum over ranks besides ``collective_s``: of the two ways to make it, the faster.

    Each rank sends its whole vector to all others, or the ranks first sum a part each and then hand these round, which
    moves less but takes ``staged_s`` more.

    Source: Thakur et al. 2005, doi 10.1177/1094342005051521 (algorithms by message size); that engines choose between
    one and two steps: vLLM's ``custom_all_reduce.cuh`` and TensorRT-LLM's ``AllReduceStrategy`` (ONESHOT, TWOSHOT).

    >>> from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
    >>> even = Interval(low=1, high=1)
    >>> found = Calibration(name="x", engine="any", applies_to=("any",), reach={"matrix": Reach(bandwidth_share=1,
    ...     flop_share=1)}, memory_interval=even, compute_interval=even, measured=Measured(device="x"), link_share=0.5,
    ...     direct_share=0.25, staged_s=4)
    >>> [sum_seconds(SumTerms(1, ring_s=size, direct_s=4 * size), found) for size in (0.25, 1)]
    [4.0, 6.0]
    """
    staged = calibration.staged_s + terms.ring_s / calibration.link_share
    if calibration.direct_share is None:
        return staged
    return lesser(terms.direct_s / calibration.direct_share, staged)


def estimate_time(cost: StepCost, hardware: HardwareProfile, calibration: Calibration) -> StepEstimate:
    """Return the time of a pass, from first to last stage, with the interval that holds four of five measurements.

    None of the three is below the bound. The interval is that of passes of the same kind, or with the same limiter.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785; see `reached_seconds`.
    """
    bound = step_time(cost, hardware)
    seconds = reached_seconds(pass_terms(cost, hardware), calibration)
    spread = calibration.spread(pass_kind(cost), is_compute=bound.limiter == "compute")
    estimate, low, high = (max(bound.latency_s, seconds * factor) for factor in (1, spread.low, spread.high))
    return StepEstimate(estimate_s=estimate, low_s=low, high_s=high)


def estimate_stages(stages: Sequence[PlacedStage], calibrations: Sequence[Calibration], phase: Phase) -> StepEstimate:
    """Return the time of a pass through stages, each at the rates that its own calibration says are reached.

    The stages follow one another; what a pass takes besides its layers counts once, the largest. The interval is the
    mean of the stages' own, each with its share of the time: their errors are taken to go together. Each stage has the
    interval that `estimate_time` gives the whole pass: that of its kind, or of its own limiter.

    Source: Williams, Waterman and Patterson 2009, doi 10.1145/1498765.1498785; see `reached_seconds`.

    Args:
        stages: the stages.
        calibrations: a calibration for each of them.
        phase: whether the pass decodes or reads a prompt.

    >>> from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
    >>> from kvcalc.core.cost_types import OpCost
    >>> from kvcalc.core.hardware import HardwareProfile
    >>> half = Calibration(name="half", engine="any", applies_to=("any",), step_s=1, measured=Measured(device="x"),
    ...     reach={"matrix": Reach(bandwidth_share=0.5, flop_share=0.5)}, memory_interval=Interval(low=0.5, high=2),
    ...     compute_interval=Interval(low=1, high=1))
    >>> card = HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9, peak_flop_per_s={"bf16": 1e14},
    ...     memory_bandwidth_bytes_per_s=1e12)
    >>> stage = PlacedStage(ops=(OpCost(name="op", part="mlp", weight_bytes=1e12),), hardware=card)
    >>> estimate_stages([stage, stage], [half, half], "decode")
    StepEstimate(estimate_s=5.0, low_s=2.5, high_s=10.0)
    """
    bound = stages_time(stages)
    step = max(calibration.step_s for calibration in calibrations)
    kind = _kind(phase, (op for stage in stages for op in stage.ops))
    low = high = total = 0.0
    for stage, calibration in zip(stages, calibrations, strict=True):
        seconds = reached_seconds(stage_terms(stage), calibration) - calibration.step_s
        compute, memory, wire = stage_seconds(stage.ops, stage.hardware, stage.link)
        spread = calibration.spread(kind, is_compute=compute > max(memory, wire))
        total, low, high = total + seconds, low + seconds * spread.low, high + seconds * spread.high
    factors = (low / total, high / total) if total else (1.0, 1.0)
    estimate, low_s, high_s = (max(bound.latency_s, (total + step) * factor) for factor in (1.0, *factors))
    return StepEstimate(estimate_s=estimate, low_s=low_s, high_s=high_s)


def pass_kind(cost: StepCost) -> str:
    """Return the kind of a pass that intervals are kept by: ``decode`` or ``prefill``, ``dense`` or ``mixture``.

    Source: the cells of phase and layers that measurements are judged in (docs/estimates.md).

    >>> from kvcalc.core.cost_types import OpCost, StepCost
    >>> pass_kind(StepCost(rank_kinds=((1, ((OpCost(name="experts", part="experts"),),)),), tokens=8, logits=8))
    'decode, mixture'
    """
    return _kind("decode" if cost.tokens <= cost.logits else "prefill", cost.ops)


def _kind(phase: Phase, ops: Iterable[OpCost]) -> str:
    return pass_name(phase, is_mixture=any(op.part == "experts" for op in ops))
