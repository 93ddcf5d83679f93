"""Step times, for a simulator that asks a million times.

Times are whole ticks of 2**-100 s. Sums of whole numbers do not depend on their order, so a simulator that jumps over a
thousand steps arrives at the very tick of one that adds them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from kvcalc.core.errors import InputError
from kvcalc.core.units import parse_seconds
from kvcalc.simulate.step_terms import step_terms

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.mixer_work import Counts
    from kvcalc.simulate.step_terms import AffineTerm

__all__ = [
    "NEVER",
    "SECONDS_PER_TICK",
    "TICKS_PER_S",
    "AffineRun",
    "ConstantTimer",
    "EstimateTimer",
    "RooflineTimer",
    "StepTimer",
    "step_timer",
    "sums_of",
    "ticks",
]

TICKS_PER_S = 2**100
SECONDS_PER_TICK = 2.0**-100
# A tick that is never reached.
NEVER = 2**250
# A line that holds for as many steps as anybody asks for.
_ALWAYS = 2**62
_BOUNDS: dict[str, Literal["ideal", "serial"]] = {"ideal": "ideal", "serial": "serial"}


def ticks(seconds: float) -> int:
    """Return a time in ticks."""
    return round(seconds * TICKS_PER_S)


# Durations of steps that follow each other: ticks of the first, how much each takes more than the one before, for how
# many steps this holds, and the limiter: ``memory``, ``compute`` or ``interconnect``, or empty where it is not told.
AffineRun = tuple[int, int, int, str]


class StepTimer(Protocol):
    """Durations of steps.

    A step computes one token each of some sequences, at given contexts, and chunks of others. Of the first it is told
    their number, the sum of their contexts, and for each cap the sum of min(context, cap), for each period the sum of
    (context - 1) mod period + 1.
    """

    @property
    def caps(self) -> tuple[int, ...]:
        """Contexts at which a sequence's cost changes its slope."""

    @property
    def periods(self) -> tuple[int, ...]:
        """Lengths after which a sequence's cost falls back to that of its first token."""

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> AffineRun:
        """Return the duration of a step, and of those that follow while the same sequences advance.

        Args:
            tokens: new tokens of the step.
            logits: tokens whose logits are wanted.
            sums: over sequences with one new token: their number, contexts, capped contexts, contexts in periods.
            slopes: how much each of these grows from step to step.
            chunks: of each other sequence the new tokens, 2 or more, and those in the cache before; with any, only
                the first step is meant.
        """


def sums_of(contexts: Sequence[int], timer: StepTimer) -> tuple[int, ...]:
    """Return the timer's sums over the sequences with one new token: see `StepTimer.line`."""
    return (
        len(contexts),
        sum(contexts),
        *(sum(min(context, cap) for context in contexts) for cap in timer.caps),
        *(sum((context - 1) % period + 1 for context in contexts) for period in timer.periods),
    )


_MAX_STEP_S = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTimer:
    """Every step takes the same time."""

    step_s: float
    caps: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.step_s > 0:
            raise InputError(f"a step must take some time, not {self.step_s} s")
        if self.step_s > _MAX_STEP_S:
            what = f"a step must take at most {_MAX_STEP_S:,} s, not {self.step_s:g}"
            raise InputError(what, parameter="step-times")

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> AffineRun:
        """Return the one duration."""
        del tokens, logits, sums, slopes, chunks
        return ticks(self.step_s), 0, _ALWAYS, ""


class _Term(NamedTuple):
    """One of the times of which the largest counts, in ticks.

    Args:
        limiter: what limits where it is the largest.
        speaking: at no token, for each token and for each logit, in a step with logits.
        silent: the same in a step without.
        per_sequence: for each sequence with one new token.
        per_context: for each token of their contexts.
        capped: for each of the sums over capped contexts and contexts in periods.
        experts: a function of the step's tokens, and ticks for each of what it returns.
        chunks: place among the works, and ticks for each of the three numbers it gives of a chunk.
    """

    limiter: str
    speaking: tuple[int, ...]
    silent: tuple[int, ...]
    per_sequence: int
    per_context: int
    capped: tuple[int, ...]
    experts: tuple[tuple[Callable[[int], float], float], ...]
    chunks: tuple[tuple[int, tuple[int, ...]], ...]


def _term(term: AffineTerm) -> _Term:
    per_sequence, per_context, *capped = map(ticks, term.decode)
    return _Term(
        limiter=term.limiter,
        speaking=tuple(map(ticks, term.with_logits)),
        silent=tuple(map(ticks, term.without_logits)),
        per_sequence=per_sequence,
        per_context=per_context,
        capped=tuple(capped),
        experts=tuple((touched, scale * TICKS_PER_S) for touched, scale in term.experts),
        chunks=tuple((index, tuple(map(ticks, values))) for index, values in term.chunks),
    )


def _firsts(
    terms: Sequence[_Term], tokens: int, logits: int, sums: Sequence[int], works: Sequence[Counts]
) -> list[int]:
    """Return the ticks of each term in one step, with each mixer's work for its chunks."""
    firsts = []
    count, contexts = sums[0], sums[1]
    for _, speaking, silent, per_sequence, per_context, capped, experts, chunks in terms:
        fixed, per_token, per_logit = speaking if logits else silent
        first = fixed + tokens * per_token + logits * per_logit + count * per_sequence + contexts * per_context
        if works:
            for index, (of_first, of_second, of_third) in chunks:
                one, two, three = works[index]
                first += one * of_first + two * of_second + three * of_third
        if capped:
            first += sum(map(mul, capped, sums[2:]))
        if experts:
            first += sum([round(touched(tokens) * scale) for touched, scale in experts])
        firsts.append(first)
    return firsts


def _largest(terms: Sequence[_Term], firsts: Sequence[int], slopes: Sequence[int]) -> AffineRun:
    """Return the largest of some terms, and for how many steps it stays the largest."""
    rises = [slopes[1] * term.per_context + sum(map(mul, term.capped, slopes[2:])) for term in terms]
    first, slope, index = max(zip(firsts, rises, range(len(terms)), strict=True))
    steps = _ALWAYS
    for other, rise in zip(firsts, rises, strict=True):
        if rise > slope:
            steps = min(steps, (first - other) // (rise - slope) + 1)
    return first, slope, steps, terms[index].limiter


class _Straight:
    """A maximum whose terms are affine in the contexts of decoding sequences."""

    def __init__(self, terms: Sequence[_Term]) -> None:
        self._terms = terms
        self._decoding: dict[int, tuple[list[tuple[int, int, int, str]], int]] = {}
        self._mixed: dict[tuple[int, int], list[tuple[int, int, _Term]]] = {}

    def line(self, count: int, contexts: int) -> AffineRun:
        """Return the duration of a step in which some sequences decode, and of those that follow."""
        known = self._decoding.get(count)
        if known is None:
            bases = _firsts(self._terms, count, count, (count, 0), ())
            rows = [
                (base, term.per_context, count * term.per_context, term.limiter)
                for base, term in zip(bases, self._terms, strict=True)
            ]
            known = self._decoding[count] = rows, max(row[2] for row in rows)
        terms, steepest = known
        first, slope, limiter = -1, 0, ""
        for base, per_context, rise, name in terms:
            ticks_now = base + contexts * per_context
            if ticks_now > first:
                first, slope, limiter = ticks_now, rise, name
        steps = _ALWAYS
        if slope == steepest:
            return first, slope, steps, limiter
        for base, per_context, rise, _ in terms:
            if rise > slope:
                steps = min(steps, (first - base - contexts * per_context) // (rise - slope) + 1)
        return first, slope, steps, limiter

    def step(self, tokens: int, logits: int, sums: Sequence[int], works: Sequence[Counts]) -> AffineRun:
        """Return the duration of a step with chunks."""
        count, contexts = sums
        known = self._mixed.get((count, logits))
        if known is None:
            terms = [term._replace(experts=()) for term in self._terms]
            bases = _firsts(terms, 0, logits, (count, 0), ())
            each = [(term.speaking if logits else term.silent)[1] for term in terms]
            known = self._mixed[count, logits] = list(zip(bases, each, self._terms, strict=True))
        first, limiter = -1, ""
        for base, per_token, (name, _, _, _, per_context, _, experts, chunks) in known:
            ticks_now = base + tokens * per_token + contexts * per_context
            for index, (of_first, of_second, of_third) in chunks:
                one, two, three = works[index]
                ticks_now += one * of_first + two * of_second + three * of_third
            if experts:
                ticks_now += sum([round(touched(tokens) * scale) for touched, scale in experts])
            if ticks_now > first:
                first, limiter = ticks_now, name
        return first, 0, 1, limiter


class RooflineTimer:
    """The times of `step_time`, from a sum of maxima over affine terms; see `kvcalc.simulate.step_terms`.

    Args:
        deployment: the model, its formats, how it is spread, the accelerator.
        kind: ``ideal``, everything overlapped (``StepTime.latency_s``: the batch passes one pipeline stage after
            another), ``serial``, operator after operator (``StepTime.serial_s``), or a calibration for the rates
            reached, without the bound (`reached_seconds`).
        alike: whether data-parallel copies are taken to be equally busy; the times are then those of one of them.

    Raises:
        InputError: no accelerator, or data-parallel copies that are not alike (each is a replica of its own).
        UnsupportedError: a model whose attention costs have no such structure, or one with an encoder.
    """

    def __init__(
        self,
        deployment: Deployment,
        *,
        kind: Literal["ideal", "serial"] | Calibration = "ideal",
        alike: bool = False,
    ) -> None:
        read = step_terms(deployment, kind=kind, alike=alike)
        self.caps, self.periods = read.caps, read.periods
        self._works = read.works
        maxima = [tuple(map(_term, terms)) for terms in read.maxima]
        self._moving = [terms for terms in maxima if any(term.chunks for term in terms)]
        self._fixed = [terms for terms in maxima if terms not in self._moving]
        self._fixed_ticks: dict[tuple[int, int], int] = {}
        self._tells = kind == "ideal"
        alone = self._tells and len(maxima) == 1 and not self.caps and not self.periods
        self._straight = _Straight(maxima[0]) if alone else None

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> AffineRun:
        """Return the duration of a step, and of those that follow while the same sequences advance."""
        straight = self._straight
        works: list[Counts] = []
        if chunks:
            for work in self._works:  # one or two: a comprehension costs more
                works.append(work.chunk(*chunks[0]) if len(chunks) == 1 else work.chunks(chunks))  # noqa: PERF401
            if straight is not None:
                return straight.step(tokens, logits, sums, works)
        elif straight is not None and tokens == logits == sums[0]:
            return straight.line(tokens, sums[1])
        first = self._fixed_time(tokens, logits) if self._fixed else 0
        slope, steps, limiter, most = 0, _ALWAYS, "", -1
        for terms in self._moving:
            firsts = _firsts(terms, tokens, logits, sums, works)
            if works:
                largest = max(firsts)
                run = largest, 0, 1, terms[firsts.index(largest)].limiter
            else:
                run = _largest(terms, firsts, slopes)
            first += run[0]
            slope += run[1]
            steps = min(steps, run[2])
            if run[0] > most:
                most, limiter = run[0], run[3]
        return first, slope, steps, limiter if self._tells else ""

    def _fixed_time(self, tokens: int, logits: int) -> int:
        """Return the ticks of the maxima that do not depend on attention."""
        fixed = self._fixed_ticks.get((tokens, logits))
        if fixed is None:
            fixed = sum(max(_firsts(terms, tokens, logits, (0, 0), ())) for terms in self._fixed)
            self._fixed_ticks[tokens, logits] = fixed
        return fixed


class EstimateTimer:
    """The estimate of `estimate_time`: the time at the rates that were reached, and never less than the bound.

    Args:
        deployment: the model, its formats, how it is spread, the accelerator.
        calibration: what was reached.
        alike: as for `RooflineTimer`.

    Raises:
        InputError: as `RooflineTimer`.
        UnsupportedError: as `RooflineTimer`.
    """

    def __init__(self, deployment: Deployment, calibration: Calibration, *, alike: bool = False) -> None:
        self.calibration = calibration
        self._bound = RooflineTimer(deployment, kind="ideal", alike=alike)
        self._reached = RooflineTimer(deployment, kind=calibration, alike=alike)
        self.caps, self.periods = self._bound.caps, self._bound.periods

    def line(
        self,
        tokens: int,
        logits: int,
        sums: Sequence[int],
        slopes: Sequence[int],
        chunks: Sequence[tuple[int, int]],
    ) -> AffineRun:
        """Return the duration of a step, and of those that follow while the same sequences advance."""
        bound, rise, bound_steps, limiter = self._bound.line(tokens, logits, sums, slopes, chunks)
        reached, slope, steps, _ = self._reached.line(tokens, logits, sums, slopes, chunks)
        (first, slope), (other, rise) = max((reached, slope), (bound, rise)), min((reached, slope), (bound, rise))
        steps = min(steps, bound_steps)
        if rise > slope:
            steps = min(steps, (first - other) // (rise - slope) + 1)
        return first, slope, steps, limiter


def step_timer(
    deployment: Deployment, step_times: str, calibration: Calibration | None = None, *, alike: bool = False
) -> StepTimer:
    """Return the timer that an option names.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        step_times: ``ideal`` or ``serial`` bounds, ``estimate``, or a duration: ``20ms``.
        calibration: what an estimate stands on.
        alike: whether data-parallel copies are taken to be equally busy; the times are then those of one of them.

    Raises:
        InputError: another name, or an estimate without a calibration.
    """
    if step_times in _BOUNDS:
        return RooflineTimer(deployment, kind=_BOUNDS[step_times], alike=alike)
    if step_times == "estimate":
        if calibration is None:
            raise InputError("no calibration applies to this deployment", hint="ideal gives the bound alone")
        return EstimateTimer(deployment, calibration, alike=alike)
    try:
        step_s = parse_seconds(step_times)
    except InputError:
        raise InputError(
            f"step times {step_times!r} are not known",
            hint="ideal, serial, estimate, or a duration such as 20ms",
            parameter="step-times",
        ) from None
    return ConstantTimer(step_s=step_s)
