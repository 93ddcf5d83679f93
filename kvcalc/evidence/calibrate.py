"""From records to calibrations: fitted to some campaigns, with the interval that the others show."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.core.errors import InputError
from kvcalc.cost.estimate import pass_kind, pass_terms
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.books import group_of
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.estimates import estimated_passes
from kvcalc.evidence.families import FAMILIES
from kvcalc.evidence.fit import Sample, even_interval, fit, interval, left_out, sample_seconds
from kvcalc.evidence.gate import judge
from kvcalc.evidence.serving import fit_serving, group_interval, inside_others, served_records
from kvcalc.plan.estimates import best_calibration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvcalc.core.calibration import Calibration, Reach
    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.families import Family
    from kvcalc.evidence.kernel_reach import KernelTime
    from kvcalc.evidence.serving import Judgement, Served

__all__ = ["Fits", "Judged", "Unseen", "cross_validated", "family_of", "fit_families", "usable_cases"]

# Parts that a campaign with most of a family's records is left out in.
_PARTS = 8
# Passes that are timed by serving: those of questions about a step or a prompt.
_PHASES = {
    f"{timed}, {layers}": f"{phase}, {layers}"
    for timed, phase in (("served", "decode"), ("first token", "prefill"))
    for layers in ("dense", "mixture")
}
# Records that an interval of their own needs: held-out ones, and any.
_ENOUGH, _FEWEST = 20, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """A record against a fit that has not seen it, nor what was measured with it.

    Args:
        family: the calibration's name.
        engine: its engine.
        kind: the kind of time that intervals are kept by.
        ratio: measured / estimate.
        is_compute: whether its passes are limited by FLOP/s.
        group: of a served record, its group.
        inside: and whether the interval of the other groups holds it, if it is made of such times.
    """

    family: str
    engine: str
    kind: str
    ratio: float
    is_compute: bool = False
    group: str = ""
    inside: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Calibrations, and the records that their intervals come from."""

    calibrations: tuple[Calibration, ...]
    unseen: tuple[Unseen, ...]


def fit_families(
    cases: Sequence[Case], families: Sequence[Family] = FAMILIES, *, kernels: Sequence[KernelTime] = ()
) -> Fits:
    """Return the calibrations of the families, fitted to the cases that are not held out.

    A case belongs to the family that would estimate it; those that beat their bound are left out.

    Args:
        cases: the cases.
        families: the families.
        kernels: times of kernels on their own, for engines that serve many requests.

    Raises:
        InputError: a family without a record to fit to.
    """
    fitted: dict[str, Calibration] = {}
    unseen: list[Unseen] = []
    shared = list(_shared_out(cases, families))
    served, judged = _served(shared, kernels)
    for family, own in shared:
        if family.kernels_of:
            fitted[family.name] = served[family.name]
            unseen += [
                replace(_unseen(family, each.kind, each.ratio), group=each.group, inside=inside)
                for each, inside in zip(judged, inside_others(judged), strict=True)
                if each.family == family.name
            ]
        else:
            start = family.start(fitted)
            fitted[family.name] = _fit(family, start, own, fitted.get(family.near))
            unseen += _judging(family, start, fitted[family.name], own)
    return Fits(calibrations=tuple(_by_kind(fitted, unseen)), unseen=tuple(unseen))


def _served(
    shared: Iterable[tuple[Family, Sequence[Case]]], kernels: Sequence[KernelTime]
) -> tuple[dict[str, Calibration], list[Judgement]]:
    """Return the calibrations of engines that serve many requests, and each record against a fit without it."""
    engines: dict[str, list[Served]] = {}
    for family, own in shared:
        if family.kernels_of:
            engines.setdefault(family.engine, []).append(served_records(family, own, kernels))
    fitted: dict[str, Calibration] = {}
    judged: list[Judgement] = []
    for engine in engines.values():
        calibrations, own_judged = fit_serving(engine, kernels)
        fitted |= calibrations
        judged += own_judged
    return {name: _with_group_intervals(each, judged) for name, each in fitted.items()}, judged


def _with_group_intervals(calibration: Calibration, judged: Sequence[Judgement]) -> Calibration:
    """Return a calibration with the intervals of all groups, for each kind of time that it has some records of."""
    own = Counter(each.kind for each in judged if each.family == calibration.name)
    intervals = {kind: group_interval(judged, kind) for kind in sorted(own) if own[kind] >= _FEWEST}
    return replace(
        calibration,
        memory_interval=group_interval(judged, "served"),
        compute_interval=group_interval(judged, "first token"),
        intervals=intervals | {_PHASES[kind]: spread for kind, spread in intervals.items() if kind in _PHASES},
    )


def _unseen(family: Family, kind: str, ratio: float, *, is_compute: bool = False) -> Unseen:
    return Unseen(family=family.name, engine=family.engine, kind=kind, ratio=ratio, is_compute=is_compute)


def _judging(family: Family, start: Calibration, fitted: Calibration, cases: Sequence[Case]) -> list[Unseen]:
    """Return the records of an engine against fits that have not seen them.

    Held-out ones are judged by the fit itself, others by one without their campaign; of a campaign with more than half
    of all records, by one without an eighth of its groups, theirs among them: what is left without such a campaign
    gives no such fit.
    """
    if family.engine == "kernels":
        return []
    training = [_sample(case) for case in cases if not family.judges(campaign(case.record))]
    counts = Counter(sample.campaign for sample in training)
    judging = [_sample(case) for case in cases if family.judges(campaign(case.record))]

    def part(sample: Sample) -> str:
        few = 2 * counts[sample.campaign] <= len(training)
        return sample.campaign if few else f"{sample.campaign} {_part_of(sample.group)}"

    pairs = [(sample, sample.measured_s / sample_seconds(sample, fitted)) for sample in judging]
    pairs += left_out(start, training, family.free, part=part)
    return [_unseen(family, sample.kind, ratio, is_compute=sample.limiter == "compute") for sample, ratio in pairs]


def _part_of(group: str) -> int:
    return int(sha256(group.encode()).hexdigest(), 16) % _PARTS


def _by_kind(fitted: Mapping[str, Calibration], unseen: Sequence[Unseen]) -> Iterator[Calibration]:
    """Yield the calibrations with an interval for each kind of time that has enough records.

    A family with too few, but some, takes that of the families of its engine with too few, else that of all families of
    its engine, if these have enough together. Those of engines that serve many requests have theirs.
    """
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in unseen:
        if not one.group:
            cells.setdefault((one.engine, one.kind), {}).setdefault(one.family, []).append(one.ratio)
    for name, calibration in fitted.items():
        intervals = {}
        for (engine, kind), families in sorted(cells.items()):
            few = [ratio for ratios in families.values() if len(ratios) < _ENOUGH for ratio in ratios]
            every = [ratio for ratios in families.values() for ratio in ratios]
            own = families.get(name, [])
            taken = next((each for each in (own, few, every) if len(each) >= _ENOUGH), None)
            if engine == calibration.engine and taken is not None and len(own) >= _FEWEST:
                intervals[kind] = even_interval(taken)
        yield replace(calibration, intervals={**calibration.intervals, **intervals})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A record against an estimate that has seen none of its campaign.

    Args:
        family: the calibration's name.
        campaign: the record's campaign.
        case: the record.
        error: estimate / measured - 1.
        inside: whether the interval holds it.
    """

    family: str
    campaign: str
    case: Case
    error: float
    inside: bool


def cross_validated(
    cases: Sequence[Case],
    families: Sequence[Family] = FAMILIES,
    *,
    only: Sequence[str] = (),
    kernels: Sequence[KernelTime] = (),
) -> Iterator[Judged]:
    """Yield the cases, each against a fit to all the other campaigns of its family, whatever is held out otherwise.

    The interval is that of the other campaigns, judged likewise. Of a family with a single campaign there is none.
    Shares and starts that are another family's are those of its own fit.

    Args:
        cases: the cases.
        families: the families.
        only: names of the families that are wanted; all of them if empty.
        kernels: times of kernels on their own, for engines that serve many requests.
    """
    shared = list(_shared_out(cases, families))
    served, judgements = _served(shared, kernels)
    inside_of = list(zip(judgements, inside_others(judgements), strict=True))
    fitted: dict[str, Calibration] = {}
    for family, own in shared:
        if family.kernels_of:
            fitted[family.name] = served[family.name]
            if not only or family.name in only:
                yield from (_judged(one, inside=bool(inside)) for one, inside in inside_of if one.family == family.name)
            continue
        start = family.start(fitted)
        fitted[family.name] = _fit(family, start, own, fitted.get(family.near))
        if only and family.name not in only:
            continue
        samples = [_sample(case) for case in own]
        if len({sample.campaign for sample in samples}) == 1:
            continue
        of_sample = {id(sample): case for sample, case in zip(samples, own, strict=True)}
        pairs_left_out = left_out(start, samples, family.free)
        for left, pairs in _by_campaign(pairs_left_out).items():
            others = [pair for pair in pairs_left_out if pair[0].campaign != left]
            for sample, ratio in pairs:
                even = _spread([], others, compute=sample.limiter == "compute")
                yield Judged(
                    family=family.name,
                    campaign=left,
                    case=of_sample[id(sample)],
                    error=1 / ratio - 1,
                    inside=even.low <= ratio <= even.high,
                )


def _judged(one: Judgement, *, inside: bool) -> Judged:
    return Judged(family=one.family, campaign=one.group, case=one.case, error=1 / one.ratio - 1, inside=inside)


def _by_campaign(pairs: Sequence[tuple[Sample, float]]) -> dict[str, list[tuple[Sample, float]]]:
    campaigns: dict[str, list[tuple[Sample, float]]] = {}
    for sample, ratio in pairs:
        campaigns.setdefault(sample.campaign, []).append((sample, ratio))
    return campaigns


def _shared_out(cases: Sequence[Case], families: Sequence[Family]) -> Iterator[tuple[Family, list[Case]]]:
    """Yield each family with the cases that it would estimate, without those that beat their bound."""
    usable = usable_cases(cases)
    for family in families:
        yield family, [case for case in usable if family_of(case, families) is family]


def usable_cases(cases: Iterable[Case]) -> list[Case]:
    """Return the cases that an estimate can be fitted to or judged by: those that beat their bound cannot."""
    return [case for case in cases if estimated_passes(case) and not judge(case).beaten]


def family_of(case: Case, families: Sequence[Family] = FAMILIES) -> Family | None:
    """Return the family whose calibration would estimate a case."""
    return best_calibration(families, case.hardware, (engine_of(case.record),))


def _fit(
    family: Family, start: Calibration, cases: Sequence[Case], neighbour: Calibration | None = None
) -> Calibration:
    training = [case for case in cases if not family.judges(campaign(case.record))]
    if not training:
        raise InputError(f"there is no record that {family.name} could be fitted to")
    samples = [_sample(case) for case in training]
    judging = [_sample(case) for case in cases if family.judges(campaign(case.record))]
    fitted = fit(start, samples, family.free)
    alone = not family.near and len({sample.campaign for sample in samples}) == 1
    judged = [(sample, sample.measured_s / sample_seconds(sample, fitted)) for sample in judging]
    others = left_out(fitted if alone else start, samples, family.free)
    compute, memory = (_spread(judged, others, compute=compute) for compute in (True, False))
    if neighbour is not None and len(samples) < _ENOUGH:
        compute = _widened(compute, neighbour.compute_interval)
        memory = _widened(memory, neighbour.memory_interval)
    measured = replace(
        start.measured,
        device=", ".join(sorted({case.hardware.name for case in training})),
        versions={engine: ", ".join(versions) for engine, versions in _versions(training).items()},
        trained_on=tuple(sorted({sample.campaign for sample in samples})),
        held_out=tuple(sorted({campaign(case.record) for case in cases} - {sample.campaign for sample in samples})),
        records=len(samples),
    )
    reach = {**fitted.reach, **_in_other_units(fitted.reach, family)}
    return replace(fitted, reach=reach, memory_interval=memory, compute_interval=compute, measured=measured)


def _in_other_units(reach: Mapping[str, Reach], family: Family) -> dict[str, Reach]:
    """Return the shares of other peaks at which operators reach the FLOP/s that they reach in 8-bit integers.

    The 16-bit peak is half of that, the 4-bit peak twice; the measured builds multiplied experts in mxfp4 in 8 bits.
    """
    narrow = {kind.removesuffix(":int8"): each for kind, each in reach.items() if kind.endswith(":int8")}
    others = {}
    if family.also_16_bit:
        others = {kind: replace(each, flop_share=min(1.0, 2 * each.flop_share)) for kind, each in narrow.items()}
    if family.also_fp4:
        others["experts:fp4"] = replace(narrow["experts"], flop_share=narrow["experts"].flop_share / 2)
    return others


def _spread(
    judged: Sequence[tuple[Sample, float]], others: Sequence[tuple[Sample, float]], *, compute: bool
) -> Interval:
    """Return the interval of passes that are limited by compute, or of the rest.

    It is that of the held-out records if they are enough. If they are few, it is widened to that of all records: those
    of the training are put to them, each as a fit without its campaign has it. Where even these are too few, passes
    with the other limiter are taken as well. The estimate itself is always inside.
    """
    own, with_others = (
        [pair for pair in pairs if (pair[0].limiter == "compute") == compute] for pairs in (judged, [*judged, *others])
    )
    if len(own) >= _ENOUGH:
        taken = [own]
    elif len(with_others) >= _FEWEST:
        taken = [own, with_others] if len(own) >= _FEWEST else [with_others]
    else:
        taken = [[*judged, *others]]
    intervals = [interval([(sample.campaign, ratio) for sample, ratio in pairs]) for pairs in taken]
    return Interval(
        low=min(1, *(one.low for one in intervals)),
        high=max(1, *(one.high for one in intervals)),
        records=max(map(len, taken)),
    )


def _widened(interval: Interval, other: Interval) -> Interval:
    return replace(interval, low=min(interval.low, other.low), high=max(interval.high, other.high))


def _versions(cases: Sequence[Case]) -> dict[str, list[str]]:
    versions_of: dict[str, set[str]] = {}
    for case in cases:
        if case.record.engine_version:
            versions_of.setdefault(case.record.engine, set()).add(case.record.engine_version)
    return {engine: sorted(versions) for engine, versions in sorted(versions_of.items())}


def _sample(case: Case) -> Sample:
    """Return a case as what a fit needs of it."""
    hardware, passes = case.hardware, []
    shares: dict[str, float] = {}
    for step in estimated_passes(case):
        bound = step_time(step.cost, hardware)
        passes.append((pass_terms(step.cost, hardware), bound.latency_s, step.times))
        shares[bound.limiter] = shares.get(bound.limiter, 0) + step.times * bound.latency_s
    return Sample(
        campaign=campaign(case.record),
        measured_s=case.measured_s,
        passes=tuple(passes),
        limiter=max(shares, key=shares.__getitem__),
        kind="" if case.deployment is None else pass_kind(case.passes[0].cost),
        group="" if case.deployment is None else group_of(case.record),
    )
