"""Fitting a calibration to measurements: a search over few physical parameters, the same numbers from the same data."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.core.search import least_near
from kvcalc.cost.estimate import reached_seconds
from kvcalc.evidence.campaigns import shared_weights
from kvcalc.evidence.together import TimedPasses

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.cost.estimate import PassTerms

__all__ = ["Sample", "beginning_at", "even_interval", "fit", "interval", "left_out", "sample_seconds"]

_MIN_SHARE, _MAX_SHARE, _MIN_SECONDS = 0.01, 0.95, 1e-9
# What a parameter must earn to move: this much of the mean error for each factor of e from where it began, and as much
# more as there are few samples, counted by the root of those of a campaign.
_PULL, _PULL_OF_FEW = 0.002, 0.05
_DIGITS = 3
# Of the ratios measured / estimate one in ten lies below the interval and one in ten above.
_TAIL = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A measurement to fit to.

    Args:
        campaign: what was measured together: a source, or a part of one that gathers many.
        measured_s: the measured time.
        passes: what it was spent on: the terms of a pass, its bound and how many of them.
        limiter: what limits them for most of their bound.
        kind: the kind of its passes, as calibrations keep their intervals by.
        group: model, accelerator and engine.
    """

    campaign: str
    measured_s: float
    passes: tuple[tuple[PassTerms, float, float], ...]
    limiter: str
    kind: str = ""
    group: str = ""


def sample_seconds(sample: Sample, calibration: Calibration) -> float:
    """Return the estimated time of a sample's passes, none below its bound."""
    return sum(times * max(bound_s, reached_seconds(terms, calibration)) for terms, bound_s, times in sample.passes)


def fit(start: Calibration, samples: Sequence[Sample], free: Iterable[str]) -> Calibration:
    """Return the calibration whose estimates are nearest to the measured times.

    The mean over samples of abs(log(estimate / measured)) is made least, where all samples of a campaign together weigh
    as much as the square root of their number. A parameter that the samples say little of stays near its start: to move
    it by a factor of e, the mean error must fall by 0.002, and more where samples are few. One parameter at a time is
    multiplied or divided by a factor as long as that helps, then by smaller ones; the result has three digits.

    Args:
        start: where the search begins; what is not free stays.
        samples: the measurements.
        free: names of parameters: ``layer_s``, ``link_share``, ``matrix.bandwidth_share``, ``attention.call_s`` …
    """
    import numpy as np

    names = tuple(free)
    began = {name: _value(start, name) for name in names}
    campaigns = [sample.campaign for sample in samples]
    weights = np.array(shared_weights(campaigns))
    pull = _PULL + _PULL_OF_FEW / sum(map(math.sqrt, Counter(campaigns).values()))
    timed, measured_s = TimedPasses([sample.passes for sample in samples]), [sample.measured_s for sample in samples]

    def loss(values: Mapping[str, float]) -> float:
        errors = np.abs(np.log(timed.seconds(_with(start, values)) / measured_s))
        return float((weights * errors).sum()) + pull * sum(
            abs(math.log(value / began[name])) for name, value in values.items()
        )

    best = least_near(loss, began, bounded=_bounded)
    return _with(start, {name: _rounded(value) for name, value in best.items()})


def _bounded(name: str, value: float) -> float:
    return min(_MAX_SHARE, max(_MIN_SHARE, value)) if name.endswith("share") else max(_MIN_SECONDS, value)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if value > _MIN_SECONDS else 0.0


def _value(calibration: Calibration, name: str) -> float:
    kind, dot, field = name.rpartition(".")
    value: float = getattr(calibration.reach[kind] if dot else calibration, field)
    return value


def _with(calibration: Calibration, values: Mapping[str, float]) -> Calibration:
    """Return a calibration with parameters replaced."""
    own: dict[str, float] = {}
    reach: dict[str, dict[str, float]] = {}
    for name, value in values.items():
        kind, dot, field = name.rpartition(".")
        (reach.setdefault(kind, {}) if dot else own)[field] = value
    changed = {kind: replace(calibration.reach[kind], **fields) for kind, fields in reach.items()}
    return replace(calibration, reach={**calibration.reach, **changed}, **own)  # type: ignore[arg-type]


def beginning_at(calibration: Calibration, neighbour: Calibration, free: Iterable[str]) -> Calibration:
    """Return a calibration with a neighbour's values: those of the free parameters that it has, times and links."""
    kept = [name for name in free if name.rpartition(".")[0] in ("", *neighbour.reach)]
    values = {name: _value(neighbour, name) for name in (*kept, "step_s", "layer_s", "collective_s", "link_share")}
    return _with(calibration, values)


def _campaign(sample: Sample) -> str:
    return sample.campaign


def left_out(
    start: Calibration,
    samples: Sequence[Sample],
    free: Iterable[str],
    *,
    part: Callable[[Sample], str] = _campaign,
) -> list[tuple[Sample, float]]:
    """Return each sample with the ratio measured / estimate of a fit that has not seen its campaign.

    With one campaign alone, that is where the search starts.

    Args:
        start: where the search begins.
        samples: the measurements.
        free: names of parameters.
        part: what is left out together with a sample, if not its campaign.
    """
    names = tuple(free)
    pairs = []
    for left in sorted(set(map(part, samples))):
        others = [sample for sample in samples if part(sample) != left]
        fitted = fit(start, others, names) if others else start
        pairs += [
            (sample, sample.measured_s / sample_seconds(sample, fitted)) for sample in samples if part(sample) == left
        ]
    return pairs


def interval(ratios: Sequence[tuple[str, float]]) -> Interval:
    """Return the interval that leaves a tenth of the ratios measured / estimate below it and a tenth above.

    Each is given with its campaign, and campaigns weigh as in `fit`.

    >>> interval([("a", ratio) for ratio in (0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7)])
    Interval(low=0.8, high=1.6, records=None)
    """
    ordered = sorted(zip((ratio for _, ratio in ratios), shared_weights([name for name, _ in ratios]), strict=True))
    low, high = (_quantile(ordered, share) for share in (_TAIL, 1 - _TAIL))
    return Interval(low=_rounded(low), high=_rounded(high))


def even_interval(ratios: Sequence[float], groups: Sequence[str] | None = None) -> Interval:
    """Return the interval that holds four of five ratios measured / estimate, and the estimate.

    A tenth lies on either side; a fifth on one, where the estimate is beyond the tenth on the other.

    Args:
        ratios: the ratios.
        groups: the group of each, if groups weigh as in `fit`; otherwise each ratio counts alike.

    >>> even_interval([0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7])
    Interval(low=0.8, high=1.6, records=10)
    >>> even_interval([1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2.0])
    Interval(low=1.0, high=1.8, records=10)
    >>> even_interval([0.9, 1.0, 1.0, 1.0, 1.0, 2.0], ["a", "a", "a", "a", "a", "b"])
    Interval(low=0.9, high=2.0, records=6)
    """
    weights = shared_weights(groups) if groups else [1 / len(ratios)] * len(ratios)
    ordered = sorted(zip(ratios, weights, strict=True))
    low, high = (_rounded(_quantile(ordered, share)) for share in (_TAIL, 1 - _TAIL))
    if low > 1:
        low, high = 1.0, _rounded(_quantile(ordered, 1 - 2 * _TAIL))
    elif high < 1:
        low, high = _rounded(_quantile(ordered, 2 * _TAIL)), 1.0
    return Interval(low=min(1.0, low), high=max(1.0, high), records=len(ratios))


def _quantile(ordered: Sequence[tuple[float, float]], share: float) -> float:
    reached = 0.0
    for value, weight in ordered:
        reached += weight
        if reached >= share - 1e-9:
            return value
    return ordered[-1][0]
