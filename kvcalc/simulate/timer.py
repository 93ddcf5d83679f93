"""Step times, for a simulator that asks a million times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from kvcalc.core.errors import InputError
from kvcalc.core.units import parse_seconds
from kvcalc.simulate.maxima import ALWAYS, FixedMaxima, Straight, firsts_of, largest_of, term_in_ticks
from kvcalc.simulate.step_terms import StepReader
from kvcalc.simulate.ticks import ticks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.maxima import AffineRun
    from kvcalc.simulate.mixer_work import Counts

__all__ = [
    "ConstantTimer",
    "EstimateTimer",
    "RooflineTimer",
    "StepTimer",
    "step_timer",
    "sums_of",
]

_BOUNDS: dict[str, Literal["ideal", "serial"]] = {"ideal": "ideal", "serial": "serial"}


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
        return ticks(self.step_s), 0, ALWAYS, ""


class RooflineTimer:
    """The times of `step_time`, from a sum of maxima over affine terms; see `kvcalc.simulate.step_terms`.

    Args:
        deployment: the model, its formats, how it is spread, the accelerator.
        kind: ``ideal``, everything overlapped (``StepTime.latency_s``: the batch passes one pipeline stage after
            another), ``serial``, operator after operator (``StepTime.serial_s``), or a calibration for the rates
            reached, without the bound (`reached_seconds`).
        alike: whether data-parallel copies are taken to be equally busy; the times are then those of one of them.
        reader: of the deployment's passes, where they are made already.

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
        reader: StepReader | None = None,
    ) -> None:
        read = (reader or StepReader(deployment, alike=alike)).terms(kind)
        self.caps, self.periods = read.caps, read.periods
        self._works = read.works
        maxima = [tuple(map(term_in_ticks, terms)) for terms in read.maxima]
        self._moving = [terms for terms in maxima if any(term.chunks for term in terms)]
        fixed = [terms for terms in maxima if not any(term.chunks for term in terms)]
        self._fixed = FixedMaxima(fixed) if fixed else None
        self._tells = kind == "ideal"
        alone = self._tells and len(maxima) == 1 and not self.caps and not self.periods
        self._straight = Straight(maxima[0]) if alone else None

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
        first = self._fixed.ticks(tokens, logits) if self._fixed is not None else 0
        slope, steps, limiter, largest_run = 0, ALWAYS, "", -1
        for terms in self._moving:
            firsts = firsts_of(terms, tokens, logits, sums, works)
            if works:
                largest = max(firsts)
                run = largest, 0, 1, terms[firsts.index(largest)].limiter
            else:
                run = largest_of(terms, firsts, slopes)
            first += run[0]
            slope += run[1]
            steps = min(steps, run[2])
            if run[0] > largest_run:
                largest_run, limiter = run[0], run[3]
        return first, slope, steps, limiter if self._tells else ""


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
        reader = StepReader(deployment, alike=alike)
        self._bound = RooflineTimer(deployment, kind="ideal", alike=alike, reader=reader)
        self._reached = RooflineTimer(deployment, kind=calibration, alike=alike, reader=reader)
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
