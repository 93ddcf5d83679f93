"""Terms of an estimate that a few measurements of one deployment may correct, each by a factor of its time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.core.sums import added
from kvcalc.cost.estimate import pass_terms, reached_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvcalc.core.calibration import Calibration, Reach
    from kvcalc.cost.estimate import PassTerms
    from kvcalc.evidence.cases import Case

__all__ = ["TERMS", "Term", "Timed", "limits", "part_seconds", "slowed", "timed"]


class Term(NamedTuple):
    """A term.

    Args:
        meaning: what takes its time.
        spread: deviation of the logarithm of its factor from one deployment to the next, before anything is measured.
    """

    meaning: str
    spread: float


# The spreads are about those of factors fitted to each deployment of `silicon.csv` with many points: wide for what
# engines, models and hosts differ in, narrow for the share of others' prompts, which has a physical range.
TERMS = {
    "matrix": Term("matrix multiplications", 0.8),
    "experts": Term("routed experts", 0.8),
    "attention": Term("attention and states", 1.0),
    "launches": Term("calls, and each layer besides its operators", 0.8),
    "step": Term("each pass besides its layers", 0.8),
    "tokens": Term("each sampled token", 2.0),
    "collectives": Term("each collective", 0.8),
    "links": Term("bytes over links", 1.0),
    "prompts": Term("prompts of others that a step waits for", 0.3),
    "request": Term("a request besides its passes", 1.0),
    "steps_before": Term("steps that a new request waits for", 1.0),
    "queue": Term("prompts of others that a new request waits for", 1.0),
}
_KINDS = {"matrix": ("matrix",), "experts": ("experts",), "attention": ("attention", "latent", "state")}
_FLOORS = {"step": "step_s", "tokens": "sample_s", "collectives": "collective_s", "request": "request_s",
           "steps_before": "request_steps", "prompts": "prompt_share", "queue": "queue_share"}  # fmt: skip
_PASS = ("matrix", "experts", "attention", "launches", "step", "tokens", "collectives", "links")
_MAX = {"prompt_share": 1.0, "queue_share": 1.0, "request_steps": 1000.0}
_DIGITS, _MIN_SHARE = 4, 1e-4
_MIN_FACTOR, _MAX_FACTOR = 0.02, 100.0


def slowed(calibration: Calibration, factors: Mapping[str, float]) -> Calibration:
    """Return a calibration whose terms take so many times as long.

    Shares of peak rates stay at most 1, and so do the shares of prompts.

    Args:
        calibration: where to begin.
        factors: by the names of `TERMS`; those left out are 1.
    """
    changed: dict[str, Any] = {}
    for name, field in _FLOORS.items():
        if factors.get(name, 1) != 1:
            changed[field] = min(_MAX.get(field, 3600.0), _rounded(getattr(calibration, field) * factors[name]))
    if factors.get("launches", 1) != 1:
        changed["layer_s"] = _rounded(calibration.layer_s * factors["launches"])
    if factors.get("links", 1) != 1:
        changed |= {
            "link_share": _share(calibration.link_share / factors["links"]),
            "direct_share": calibration.direct_share and _share(calibration.direct_share / factors["links"]),
            "staged_s": _rounded(calibration.staged_s * factors["links"]),
        }
    reach = {kind: _slowed(own, kind, factors) for kind, own in calibration.reach.items()}
    return replace(calibration, reach=reach, **changed)


def _slowed(reach: Reach, kind: str, factors: Mapping[str, float]) -> Reach:
    work = factors.get(_term_of(kind), 1.0)
    calls = _rounded(reach.call_s * factors.get("launches", 1.0))
    if work == 1:
        return replace(reach, call_s=calls)
    return replace(
        reach,
        call_s=calls,
        bandwidth_share=_share(reach.bandwidth_share / work),
        flop_share=_share(reach.flop_share / work),
        activation_share=reach.activation_share and _share(reach.activation_share / work),
    )


def _term_of(kind: str) -> str:
    bare = kind.partition(":")[0]
    return next(name for name, kinds in _KINDS.items() if bare in kinds)


def _share(share: float) -> float:
    return min(1.0, max(_MIN_SHARE, _rounded(share)))


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def limits(calibration: Calibration, samples: Iterable[Timed], name: str) -> tuple[float, float]:
    """Return the least and the largest factor of a term: those at which its shares become those of a peak."""
    if name in _KINDS:
        shares = [sample.shares[name] for sample in samples if name in sample.shares]
        return max(shares, default=_MIN_FACTOR), _MAX_FACTOR
    if name == "links":
        return max(calibration.link_share, calibration.direct_share or 0.0), _MAX_FACTOR
    max_floor = _MAX.get(_FLOORS.get(name, ""))
    start = getattr(calibration, _FLOORS[name]) if max_floor else 0.0
    return _MIN_FACTOR, max_floor / start if max_floor and start else _MAX_FACTOR


def part_seconds(terms: PassTerms, calibration: Calibration) -> dict[str, float]:
    """Return the time of a pass by the term that it is of; together they are the whole."""
    whole = reached_seconds(terms, calibration)
    parts = {name: reached_seconds(terms, slowed(calibration, {name: 2.0})) - whole for name in _PASS}
    return {name: seconds for name, seconds in parts.items() if seconds > 1e-4 * whole}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A measured time as sums of terms.

    Args:
        pieces: sums of seconds by term, each with the term that multiplies it; an empty name where none does.
        measured_s: the measured time.
        shares: for each kind of operator, the largest share of the peak that limits one of its formats.
    """

    pieces: tuple[tuple[str, Mapping[str, float]], ...]
    measured_s: float
    shares: Mapping[str, float]


def timed(case: Case, calibration: Calibration) -> Timed:
    """Return a measurement as sums of terms, at a calibration's values."""
    hardware = case.hardware

    def parts(cost: Any, times: float) -> dict[str, float]:
        seconds = part_seconds(pass_terms(cost, hardware), calibration)
        return {name: times * each for name, each in seconds.items()}

    pieces: list[tuple[str, Mapping[str, float]]] = []
    own_passes = case.likely or case.passes
    if case.first is not None:
        own = parts(case.first.prompt.cost, 1.0)
        queue = calibration.queue_share * case.first.others
        pieces = [
            ("", own),
            ("", {"request": calibration.request_s}),
            ("steps_before", parts(case.first.step.cost, calibration.request_steps)),
            ("queue", {name: queue * seconds for name, seconds in own.items()}),
        ]
    else:
        for step in own_passes:
            share = calibration.prompt_share if step.is_beside else 1.0
            pieces.append(("prompts" if step.is_beside else "", parts(step.cost, step.times * share)))
    shares: dict[str, float] = {}
    for step in own_passes:
        for name, share in _limiting_shares(pass_terms(step.cost, hardware), calibration):
            shares[name] = max(share, shares.get(name, 0.0))
    return Timed(pieces=tuple(pieces), measured_s=case.measured_s, shares=shares)


def _limiting_shares(terms: PassTerms, calibration: Calibration) -> Iterator[tuple[str, float]]:
    """Yield for each kind of operator its share of the peak of memory or of compute, whichever takes longer."""
    for (kind, unit), operators in terms.operators.items():
        reach = calibration.reach_of(kind, unit)
        memory = added(op.memory_s for op in operators) / reach.bandwidth_share
        compute = added(op.compute_s for op in operators) / reach.flop_share
        name = next(each for each, own in calibration.reach.items() if own is reach)
        yield _term_of(name), reach.bandwidth_share if memory >= compute else reach.flop_share
