"""Maxima over affine terms, in ticks: of which term a step's time is, and for how many steps it stays the largest."""

from __future__ import annotations

from operator import mul
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.simulate.ticks import NEVER, TICKS_PER_S, ticks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.simulate.mixer_work import Counts
    from kvcalc.simulate.step_terms import AffineTerm

__all__ = ["ALWAYS", "AffineRun", "FixedMaxima", "Straight", "Term", "firsts_of", "largest_of", "term_in_ticks"]

# Durations of steps that follow each other: ticks of the first, how much each takes more than the one before, for how
# many steps this holds, and the limiter: ``memory``, ``compute`` or ``interconnect``, or empty where it is not told.
AffineRun = tuple[int, int, int, str]
# A line that holds for as many steps as anybody asks for.
ALWAYS = 2**62


class Term(NamedTuple):
    """One of the times of which the largest counts, in ticks.

    Args:
        limiter: what limits where it is the largest.
        speaking: at no token, for each token and for each logit, in a step with logits.
        silent: the same in a step without.
        per_sequence: for each sequence with one new token.
        per_context: for each token of their contexts.
        capped: for each of the sums over capped contexts and contexts in periods.
        of_tokens: a function of the step's tokens, and ticks for each of what it returns.
        chunks: place among the works, and ticks for each of the three numbers it gives of a chunk.
    """

    limiter: str
    speaking: tuple[int, ...]
    silent: tuple[int, ...]
    per_sequence: int
    per_context: int
    capped: tuple[int, ...]
    of_tokens: tuple[tuple[Callable[[int], float], float], ...]
    chunks: tuple[tuple[int, tuple[int, ...]], ...]


def term_in_ticks(term: AffineTerm) -> Term:
    """Return a term with its times in ticks."""
    per_sequence, per_context, *capped = map(ticks, term.decode)
    return Term(
        limiter=term.limiter,
        speaking=tuple(map(ticks, term.with_logits)),
        silent=tuple(map(ticks, term.without_logits)),
        per_sequence=per_sequence,
        per_context=per_context,
        capped=tuple(capped),
        of_tokens=tuple((touched, scale * TICKS_PER_S) for touched, scale in term.of_tokens),
        chunks=tuple((index, tuple(map(ticks, values))) for index, values in term.chunks),
    )


def firsts_of(
    terms: Sequence[Term], tokens: int, logits: int, sums: Sequence[int], works: Sequence[Counts]
) -> list[int]:
    """Return the ticks of each term in one step, with each mixer's work for its chunks."""
    firsts = []
    count, contexts = sums[0], sums[1]
    for _, speaking, silent, per_sequence, per_context, capped, of_tokens, chunks in terms:
        fixed, per_token, per_logit = speaking if logits else silent
        first = fixed + tokens * per_token + logits * per_logit + count * per_sequence + contexts * per_context
        if works:
            for index, (of_first, of_second, of_third) in chunks:
                one, two, three = works[index]
                first += one * of_first + two * of_second + three * of_third
        if capped:
            first += sum(map(mul, capped, sums[2:]))
        if of_tokens:
            first += sum([round(touched(tokens) * scale) for touched, scale in of_tokens])
        firsts.append(first)
    return firsts


def largest_of(terms: Sequence[Term], firsts: Sequence[int], slopes: Sequence[int]) -> AffineRun:
    """Return the largest of some terms, and for how many steps it stays the largest."""
    rises = [slopes[1] * term.per_context + sum(map(mul, term.capped, slopes[2:])) for term in terms]
    first, slope, index = max(zip(firsts, rises, range(len(terms)), strict=True))
    steps = ALWAYS
    for other, rise in zip(firsts, rises, strict=True):
        if rise > slope:
            steps = min(steps, (first - other) // (rise - slope) + 1)
    return first, slope, steps, terms[index].limiter


class Straight:
    """A maximum whose terms are affine in the contexts of decoding sequences."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = terms
        self._decoding: dict[int, tuple[list[tuple[int, int, int, str]], int]] = {}
        self._mixed: dict[tuple[int, int], list[tuple[int, int, Term]]] = {}

    def line(self, count: int, contexts: int) -> AffineRun:
        """Return the duration of a step in which some sequences decode, and of those that follow."""
        known = self._decoding.get(count)
        if known is None:
            bases = firsts_of(self._terms, count, count, (count, 0), ())
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
        steps = ALWAYS
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
            terms = [term._replace(of_tokens=()) for term in self._terms]
            bases = firsts_of(terms, 0, logits, (count, 0), ())
            each = [(term.speaking if logits else term.silent)[1] for term in terms]
            known = self._mixed[count, logits] = list(zip(bases, each, self._terms, strict=True))
        first, limiter = -1, ""
        for base, per_token, (name, _, _, _, per_context, _, of_tokens, chunks) in known:
            ticks_now = base + tokens * per_token + contexts * per_context
            for index, (of_first, of_second, of_third) in chunks:
                one, two, three = works[index]
                ticks_now += one * of_first + two * of_second + three * of_third
            if of_tokens:
                ticks_now += sum([round(touched(tokens) * scale) for touched, scale in of_tokens])
            if ticks_now > first:
                first, limiter = ticks_now, name
        return first, 0, 1, limiter


class _FixedRow(NamedTuple):
    """A term that does not depend on attention, in steps that all have logits or all have none.

    Args:
        line: ticks at no token, for each token and for each logit.
        of_tokens: as those of a `Term`.
    """

    line: tuple[int, ...]
    of_tokens: tuple[tuple[Callable[[int], float], float], ...]

    def covers(self, other: _FixedRow) -> bool:
        """Whether it is never less than another at all counts of tokens and logits, what depends on tokens alone."""
        coefficients = zip(self.line, other.line, strict=True)
        return all(mine >= theirs for mine, theirs in coefficients) and other.of_tokens in ((), self.of_tokens)


class FixedMaxima:
    """A sum of maxima that do not depend on attention.

    Terms that another one covers are left out, and maxima of one term are summed up beforehand.

    Args:
        maxima: the terms of each.
    """

    def __init__(self, maxima: Sequence[Sequence[Term]]) -> None:
        self._silent = _summed([[_FixedRow(term.silent, term.of_tokens) for term in terms] for terms in maxima])
        self._speaking = _summed([[_FixedRow(term.speaking, term.of_tokens) for term in terms] for terms in maxima])
        self._known: dict[tuple[int, int], int] = {}

    def ticks(self, tokens: int, logits: int) -> int:
        """Return the sum in a step of so many tokens, with so many logits."""
        known = self._known.get((tokens, logits))
        if known is not None:
            return known
        total = 0
        for rows in self._speaking if logits else self._silent:
            largest = -NEVER
            for (fixed, per_token, per_logit), of_tokens in rows:
                row = fixed + tokens * per_token + logits * per_logit
                for touched, scale in of_tokens:
                    row += round(touched(tokens) * scale)
                if row > largest:  # noqa: PLR1730  the innermost loop
                    largest = row
            total += largest
        self._known[tokens, logits] = total
        return total


def _summed(maxima: Sequence[Sequence[_FixedRow]]) -> list[list[_FixedRow]]:
    """Return maxima with the same sum: of those that are left with one row, their sum, and the others."""
    left = [_uncovered(rows) for rows in maxima]
    single = [rows[0] for rows in left if len(rows) == 1]
    line = tuple(sum(row.line[index] for row in single) for index in range(3))
    of_tokens = tuple(each for row in single for each in row.of_tokens)
    return [[_FixedRow(line, of_tokens)], *(rows for rows in left if len(rows) > 1)]


def _uncovered(rows: Sequence[_FixedRow]) -> list[_FixedRow]:
    """Return the rows without those that another one covers, the first of equal ones."""
    kept: list[_FixedRow] = []
    for row in rows:
        if not any(other.covers(row) for other in kept):
            kept = [other for other in kept if not row.covers(other)] + [row]
    return kept
