"""How long a step takes, for a simulator that asks a million times.

Times are whole ticks of 2**-80 s. Sums of whole numbers do not depend on their order, so a simulator that jumps over a
thousand steps arrives at the very tick of one that adds them one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import mul
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from kvcalc.core.errors import InputError
from kvcalc.simulate.step_terms import step_terms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.step_terms import AffineTerm, Work

__all__ = ["TICKS_PER_S", "Chunk", "ConstantTimer", "Line", "RooflineTimer", "StepTimer", "ticks"]

TICKS_PER_S = 2**80
# A line that holds for as many steps as anybody asks for.
_ALWAYS = 2**62


def ticks(seconds: float) -> int:
    """Return a time in ticks."""
    return round(seconds * TICKS_PER_S)


class Chunk(NamedTuple):
    """Tokens of one sequence that a step computes together: of a prompt, or of drafts to verify.

    Args:
        tokens: new tokens, 2 or more (a single token is a decode step at its context).
        past: tokens of the sequence already in the cache.
    """

    tokens: int
    past: int


class Line(NamedTuple):
    """Durations of steps that follow each other.

    Args:
        first: ticks of the first step.
        slope: ticks that each step takes more than the one before.
        steps: for how many steps this holds.
        limiter: ``memory``, ``compute`` or ``interconnect``; empty where the timer does not tell.
    """

    first: int
    slope: int
    steps: int
    limiter: str


class StepTimer(Protocol):
    """How long steps take.

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
        self, *, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[Chunk]
    ) -> Line:
        """Return the duration of a step, and of those that follow while the same sequences advance.

        Args:
            tokens: new tokens of the step.
            logits: tokens whose logits are wanted.
            sums: over sequences with one new token: their number, contexts, capped contexts, contexts in periods.
            slopes: how much each of these grows from step to step.
            chunks: the other sequences; with any, only the first step is meant.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantTimer:
    """Every step takes the same time."""

    step_s: float
    caps: tuple[int, ...] = ()
    periods: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.step_s > 0:
            raise InputError(f"a step must take some time, not {self.step_s} s")

    def line(
        self, *, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[Chunk]
    ) -> Line:
        """Return the one duration."""
        del tokens, logits, sums, slopes, chunks
        return Line(ticks(self.step_s), 0, _ALWAYS, "")


class _Term:
    """One of the times of which the largest counts."""

    __slots__ = ("chunks", "decode", "experts", "limiter", "with_logits", "without_logits")

    def __init__(self, term: AffineTerm) -> None:
        self.limiter = term.limiter
        self.with_logits = tuple(map(ticks, term.with_logits))
        self.without_logits = tuple(map(ticks, term.without_logits))
        self.experts = tuple((touched, scale * TICKS_PER_S) for touched, scale in term.experts)
        self.decode = tuple(map(ticks, term.decode))
        self.chunks = tuple((work, quantity, scale * TICKS_PER_S) for work, quantity, scale in term.chunks)

    def base(self, tokens: int, logits: int) -> int:
        """Return the ticks that depend on the step's tokens and logits alone."""
        fixed, per_token, per_logit = self.with_logits if logits else self.without_logits
        found = fixed + tokens * per_token + logits * per_logit
        for touched, scale in self.experts:
            found += round(touched(tokens) * scale)
        return found


class _Maximum:
    """The largest of some terms."""

    __slots__ = ("_bases", "terms")

    def __init__(self, terms: Sequence[AffineTerm]) -> None:
        self.terms = tuple(_Term(term) for term in terms)
        self._bases: dict[tuple[int, int], tuple[int, ...]] = {}

    def bases(self, tokens: int, logits: int) -> tuple[int, ...]:
        """Return each term's ticks that depend on the step's tokens and logits alone."""
        found = self._bases.get((tokens, logits))
        if found is None:
            found = tuple(term.base(tokens, logits) for term in self.terms)
            self._bases[tokens, logits] = found
        return found

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], works: Sequence[Sequence[Work]]
    ) -> Line:
        """Return the largest, and for how many steps it stays the largest."""
        lines = []
        for term, base in zip(self.terms, self.bases(tokens, logits), strict=True):
            first = base + sum(map(mul, term.decode, sums))
            for work in works:
                for index, quantity, scale in term.chunks:
                    first += round(work[index][quantity] * scale)
            lines.append((first, sum(map(mul, term.decode, slopes)), term.limiter))
        first, slope, limiter = max(lines)
        steps = _ALWAYS
        for other, rise, _ in lines:
            if rise > slope:
                steps = min(steps, (first - other) // (rise - slope) + 1)
        return Line(first, slope, steps, limiter)


class RooflineTimer:
    """The times of `step_time`, from a sum of maxima over affine terms; see `kvcalc.simulate.step_terms`.

    Args:
        deployment: the model, its formats, how it is spread, the accelerator.
        kind: ``ideal``, everything overlapped (``StepTime.latency_s``: the batch passes one pipeline stage after
            another), or ``serial``, operator after operator (``StepTime.serial_s``).

    Raises:
        InputError: no accelerator, or data-parallel copies (each is a replica of its own).
        UnsupportedError: a model whose attention costs have no such structure, or one with an encoder.
    """

    def __init__(self, deployment: Deployment, *, kind: Literal["ideal", "serial"] = "ideal") -> None:
        found = step_terms(deployment, kind=kind)
        self.caps, self.periods = found.caps, found.periods
        self._works = found.works
        self._moving = tuple(_Maximum(terms) for terms in found.maxima if any(any(term.decode) for term in terms))
        self._fixed = tuple(_Maximum(terms) for terms in found.maxima if not any(any(term.decode) for term in terms))
        self._fixed_ticks: dict[tuple[int, int], int] = {}
        self._tells = kind == "ideal"

    def line(
        self, *, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[Chunk]
    ) -> Line:
        """Return the duration of a step, and of those that follow while the same sequences advance."""
        first = self._fixed_ticks.get((tokens, logits))
        if first is None:
            first = sum(max(maximum.bases(tokens, logits)) for maximum in self._fixed)
            self._fixed_ticks[tokens, logits] = first
        slope, steps, limiter, most = 0, _ALWAYS, "", -1
        works = [[work.chunk(*chunk) for work in self._works] for chunk in chunks]
        for maximum in self._moving:
            found = maximum.line(tokens, logits, sums, slopes, works)
            first += found.first
            slope += found.slope
            steps = min(steps, found.steps)
            if found.first > most:
                most, limiter = found.first, found.limiter
        return Line(first, slope, steps, limiter if self._tells else "")
