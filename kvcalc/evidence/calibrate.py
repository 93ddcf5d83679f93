"""From records to calibrations: fitted to some campaigns, with the interval that the others show."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.core.errors import InputError
from kvcalc.cost.estimate import pass_terms
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.estimates import estimated_passes
from kvcalc.evidence.families import FAMILIES
from kvcalc.evidence.fit import Sample, fit, interval, left_out, sample_seconds
from kvcalc.evidence.gate import judge
from kvcalc.plan.estimates import best_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration, Reach
    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.families import Family

__all__ = ["fit_families"]

# Records that an interval of their own needs: held-out ones, and any.
_ENOUGH, _FEWEST = 20, 5


def fit_families(cases: Sequence[Case], families: Sequence[Family] = FAMILIES) -> tuple[Calibration, ...]:
    """Return the calibrations of the families, fitted to the cases that are not held out.

    A case belongs to the family that would estimate it; those that beat their bound are left out.

    Raises:
        InputError: a family without a record to fit to.
    """
    fitted: dict[str, Calibration] = {}
    usable = [case for case in cases if estimated_passes(case) and not judge(case).beaten]
    for family in families:
        own = [
            case for case in usable if best_calibration(families, case.hardware, (engine_of(case.record),)) is family
        ]
        fitted[family.name] = _fit(family, family.start(fitted), own)
    return tuple(fitted.values())


def _fit(family: Family, start: Calibration, cases: Sequence[Case]) -> Calibration:
    training = [case for case in cases if not family.judges(campaign(case.record))]
    if not training:
        raise InputError(f"there is no record that {family.name} could be fitted to")
    samples = [_sample(case) for case in training]
    judging = [_sample(case) for case in cases if family.judges(campaign(case.record))]
    found = fit(start, samples, family.free)
    judged = [(sample, sample.measured_s / sample_seconds(sample, found)) for sample in judging]
    others = left_out(found, samples, family.free)
    compute, memory = (_spread(judged, others, compute=compute) for compute in (True, False))
    measured = replace(
        start.measured,
        device=", ".join(sorted({case.hardware.name for case in training})),
        versions={engine: ", ".join(versions) for engine, versions in _versions(training).items()},
        trained_on=tuple(sorted({sample.campaign for sample in samples})),
        held_out=tuple(sorted({campaign(case.record) for case in cases} - {sample.campaign for sample in samples})),
        records=len(samples),
    )
    reach = {**found.reach, **_in_16_bit(found.reach)} if family.also_16_bit else found.reach
    return replace(found, reach=reach, memory_interval=memory, compute_interval=compute, measured=measured)


def _in_16_bit(reach: Mapping[str, Reach]) -> dict[str, Reach]:
    """Return what operators reach of the 16-bit peak, which is half that of 8-bit integers."""
    narrow = {kind.removesuffix(":int8"): found for kind, found in reach.items() if kind.endswith(":int8")}
    return {kind: replace(found, flop_share=min(1.0, 2 * found.flop_share)) for kind, found in narrow.items()}


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
    found = [interval([(sample.campaign, ratio) for sample, ratio in pairs]) for pairs in taken]
    return Interval(low=min(1, *(one.low for one in found)), high=max(1, *(one.high for one in found)))


def _versions(cases: Sequence[Case]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        if case.record.engine_version:
            found.setdefault(case.record.engine, set()).add(case.record.engine_version)
    return {engine: sorted(versions) for engine, versions in sorted(found.items())}


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
    )
