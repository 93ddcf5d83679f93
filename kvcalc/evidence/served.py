"""Calibrations of serving engines: kernels as they are on their own, and what served steps say of the rest.

A step's time is linear in what is fitted: the floors of a step, of a sampled token, of a layer and of a collective,
and for each kind of operator how much longer its calls and its work take inside an engine than on their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.calibration import Reach
from kvcalc.core.search import least_near
from kvcalc.cost.estimate import operator_seconds, reached_seconds, sum_seconds
from kvcalc.evidence.campaigns import shared_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.cost.estimate import PassTerms
    from kvcalc.evidence.together import Array

__all__ = [
    "ServedSample",
    "TokenSample",
    "first_token_seconds",
    "fit_first_token",
    "fit_served",
    "served_seconds",
]

# A factor of e from where a parameter begins costs so much of the mean error. Of 0.0015 to 0.05, with 0.016 the mean
# error of groups that the fit had not seen was least, those that judge left out.
_PULL = 0.016
_FIRST_PULL = 0.0015
# What grows with no model (HTTP, tokenising) is one time for all engines: fitted alone, TensorRT-LLM has 12 ms and vLLM
# 16 ms. SGLang was measured with large models alone, where it cannot be told from steps that pass before.
_REQUEST_S = 0.014
_FLOORS = {"step_s": 4e-4, "sample_s": 8e-6, "layer_s": 1.2e-5}
_LEAST_FLOOR, _MOST = 1e-8, 1e3
_PROMPTS = "prompt_share"
_FIRST = {"request_steps": 8.0, "queue_share": 0.1}
# Errors beyond a factor of e count no more: some rows say other than what was run.
_CAP = 1.0
_DIGITS = 3
# Parameters that a trial of a search changes at most, before the sums are made anew.
_FEW = 3
# First tokens of so few users that they hardly wait count so many times: they say what a request takes on its own.
_FEW_WEIGH = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedSample:
    """A served step to fit to.

    Args:
        group: model, accelerator and engine.
        kind: what was timed, as calibrations keep their intervals by.
        passes: terms of the passes, how many of each a step is, and whether they are prompts of others.
        measured_s: the measured time.
    """

    group: str
    kind: str
    passes: tuple[tuple[PassTerms, float, bool], ...]
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSample:
    """A time to first token to fit to: its prompt, a step of the others, and how many of them there are."""

    group: str
    kind: str
    prompt: PassTerms
    step: PassTerms
    others: float
    measured_s: float


_Parts = dict[str, float]


def _parts(terms: PassTerms, base: Calibration) -> _Parts:
    """Return the parts of a pass's time, by the parameter that multiplies them."""
    seconds_of: _Parts = {
        "step_s": 1.0,
        "sample_s": terms.logits,
        "layer_s": terms.layers,
        "collective_s": terms.collectives,
        "link": terms.link_s / base.link_share + sum(each.calls * sum_seconds(each, base) for each in terms.sums),
    }
    for (kind, unit), operators in terms.operators.items():
        name, reach = base_kind(base, kind, unit), base.reach_of(kind, unit)
        calls = sum(0 if base.joins_inputs and op.is_joined else op.calls for op in operators)
        work = sum(operator_seconds(op, reach) for op in operators)
        for part, seconds in ((f"{name}/calls", calls * reach.call_s), (f"{name}/work", work)):
            seconds_of[part] = seconds_of.get(part, 0.0) + seconds
    return seconds_of


def base_kind(base: Calibration, kind: str, unit: str) -> str:
    """Return the name under which a kind's factors are fitted: experts by format, the rest in all formats together."""
    return f"{kind}:{unit}" if kind == "experts" and f"{kind}:{unit}" in base.reach else kind


def fit_served(base: Calibration, samples: Sequence[ServedSample]) -> Calibration:
    """Return a calibration whose floors and factors are nearest to served steps.

    The mean over samples of abs(log(estimate / measured)), no more than 1 each, is made least; groups weigh as much as
    the root of their size. A parameter stays near its start unless the error falls by 0.016 for a factor of e, and
    more where groups are few.

    Args:
        base: kernels on their own; floors are those of the start where they are 0.
        samples: the steps.
    """
    import numpy as np

    split = [_split(sample, base) for sample in samples]
    start = _start(base, [parts for own, others in split for parts in (own, others)])
    sums = _Sums(split, start)
    weights = np.array(shared_weights([sample.group for sample in samples]))
    measured_s = [sample.measured_s for sample in samples]

    def loss(values: Mapping[str, float]) -> float:
        own, others = sums.at(values)
        errors = np.minimum(_CAP, np.abs(np.log((own + values[_PROMPTS] * others) / measured_s)))
        moved = sum(abs(math.log(value / start[name])) for name, value in values.items())
        return float((weights * errors).sum()) + pull * moved

    pull = _PULL + _PULL * 5 / math.sqrt(max(1, len({sample.group for sample in samples})))
    nearest = least_near(loss, start, bounded=_bounds(base)) if samples else start
    return _folded(base, nearest)


class _Sums:
    """Sums of parts times their parameters over many samples, kept as long as few of the parameters change."""

    def __init__(self, split: Sequence[tuple[_Parts, _Parts]], start: Mapping[str, float]) -> None:
        import numpy as np

        columns = {name: [[parts[index].get(name, 0.0) for parts in split] for index in (0, 1)] for name in start}
        self._columns: dict[str, Array] = {name: np.array(column) for name, column in columns.items()}
        self._at: dict[str, float] = {}
        self._sums: Array = np.zeros((2, len(split)))

    def at(self, values: Mapping[str, float]) -> Array:
        """Return the sums of own parts, and of others' prompts, for each sample."""
        changed = [name for name, value in values.items() if value != self._at.get(name)]
        if len(changed) > _FEW:
            self._at = dict.fromkeys(values, 0.0)
            self._sums = 0.0 * self._sums
            self._at, self._sums = dict(values), self._moved(values, list(values))
            return self._sums
        return self._moved(values, changed)

    def _moved(self, values: Mapping[str, float], changed: Iterable[str]) -> Array:
        sums = self._sums
        for name in changed:
            sums = sums + (values[name] - self._at[name]) * self._columns[name]
        return sums


def _split(sample: ServedSample, base: Calibration) -> tuple[_Parts, _Parts]:
    """Return the parts of a step's own time, and of others' prompts."""
    sums: tuple[_Parts, _Parts] = {}, {}
    for terms, times, is_beside in sample.passes:
        for name, seconds in _parts(terms, base).items():
            if seconds:
                sums[is_beside][name] = sums[is_beside].get(name, 0.0) + times * seconds
    return sums


def _start(base: Calibration, parts: Iterable[_Parts]) -> dict[str, float]:
    start = {name: getattr(base, name) or first for name, first in _FLOORS.items()}
    start |= {"collective_s": base.collective_s or 5e-6, "link": 1.0, _PROMPTS: base.prompt_share}
    return start | {name: 1.0 for each in parts for name in each if "/" in name}


def _bounds(base: Calibration) -> Callable[[str, float], float]:
    """Return the limits of each number: no share of a peak above 1."""
    lowest = {"link": base.link_share}
    for kind, reach in base.reach.items():
        name = kind if kind.startswith("experts:") else kind.partition(":")[0]
        shares = max(reach.bandwidth_share, reach.flop_share, reach.activation_share or 0)
        lowest[f"{name}/work"] = max(lowest.get(f"{name}/work", 0), shares)

    def bounded(name: str, value: float) -> float:
        if name == _PROMPTS:
            return min(1.0, max(0.05, value))
        return min(_MOST, max(lowest.get(name, _LEAST_FLOOR), value))

    return bounded


def _folded(base: Calibration, values: Mapping[str, float]) -> Calibration:
    """Return the calibration with the factors in its calls and shares."""
    reach = {}
    for kind, own in base.reach.items():
        name = kind if f"{kind}/work" in values or f"{kind}/calls" in values else kind.partition(":")[0]
        reach[kind] = _slowed(own, values.get(f"{name}/calls", 1.0), values.get(f"{name}/work", 1.0))
    floors: dict[str, Any] = {name: _rounded(values[name]) for name in (*_FLOORS, "collective_s", _PROMPTS)}
    return replace(_slowed_links(base, values["link"]), reach=reach, **floors)


def _slowed_links(base: Calibration, factor: float) -> Calibration:
    """Return a calibration whose bytes over links take so many times as long, shares at most 1."""
    return replace(
        base,
        link_share=min(1.0, _rounded(base.link_share / factor)),
        direct_share=base.direct_share and min(1.0, _rounded(base.direct_share / factor)),
        staged_s=_rounded(base.staged_s * factor),
    )


def _slowed(reach: Reach, calls: float, work: float) -> Reach:
    shares = {name: min(1.0, _rounded(getattr(reach, name) / work)) for name in ("bandwidth_share", "flop_share")}
    passed = reach.activation_share and min(1.0, _rounded(reach.activation_share / work))
    return replace(reach, call_s=_rounded(reach.call_s * calls), activation_share=passed, **shares)


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if value > _LEAST_FLOOR else 0.0


def served_seconds(sample: ServedSample, calibration: Calibration) -> float:
    """Return the estimated time of a sample's step."""
    return sum(
        times * (calibration.prompt_share if is_beside else 1.0) * reached_seconds(terms, calibration)
        for terms, times, is_beside in sample.passes
    )


def first_token_seconds(sample: TokenSample, calibration: Calibration) -> float:
    """Return the estimated time to a sample's first token."""
    prompt, step = (reached_seconds(terms, calibration) for terms in (sample.prompt, sample.step))
    waited = calibration.request_steps * step + prompt * calibration.queue_share * sample.others
    return calibration.request_s + waited + prompt


def fit_first_token(samples: Sequence[tuple[TokenSample, Calibration]]) -> dict[str, float]:
    """Return the times of a request besides its passes, by the names of a calibration's fields.

    Args:
        samples: times to a first token, each with the calibration that its passes are estimated with.
    """
    import numpy as np

    prompt = np.array([reached_seconds(sample.prompt, known) for sample, known in samples])
    step = np.array([reached_seconds(sample.step, known) for sample, known in samples])
    others = np.array([sample.others for sample, _ in samples])
    measured_s = [sample.measured_s for sample, _ in samples]
    even = np.array(shared_weights([sample.group for sample, _ in samples]))
    weights = even * np.where(others < _FEW, _FEW_WEIGH, 1)

    def loss(values: Mapping[str, float]) -> float:
        estimate_s = _REQUEST_S + values["request_steps"] * step + prompt * (1 + values["queue_share"] * others)
        errors = np.minimum(_CAP, np.abs(np.log(estimate_s / measured_s)))
        moved = sum(abs(math.log(value / _FIRST[name])) for name, value in values.items())
        return float((weights * errors).sum()) + _FIRST_PULL * moved

    highest = {"queue_share": 1.0}
    values = least_near(loss, _FIRST, bounded=lambda name, value: min(highest.get(name, _MOST), max(1e-4, value)))
    return {"request_s": _REQUEST_S} | {name: _rounded(value) for name, value in values.items()}
