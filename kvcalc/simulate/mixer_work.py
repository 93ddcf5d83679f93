"""Work of one mixer for one sequence, in the form in which a step adds it up.

What attention costs is a sum over the sequences; for a decoding sequence it is affine in its context between knees
(windows, chosen tokens) or within periods (chunks), for a chunk of a prompt in three numbers of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Attention, Cross
from kvcalc.core.workload import TokenGroup
from kvcalc.cost.attention import causal_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.model import Mixer

__all__ = ["BYTES", "FLOP", "MOVED", "Counts", "MixerWork", "Work", "knees"]

# Quantities of an operator, in the order in which works give the first three.
FLOP, BYTES, MOVED = range(3)
Work = tuple[float, float, float]
Counts = tuple[int, int, int]


class MixerWork:
    """Work of one mixer for one sequence: FLOP, compulsory bytes, bytes moved when it runs on its own.

    Args:
        mixer: the mixer.
        of: its work for a group of tokens.
        caps: all knees that the model has.
        periods: all periods that the model has.

    Attributes:
        decode: for each of the three, what goes with each of a step's sums over sequences with one new token.
        chunk: three numbers of a chunk of some tokens after a past.
        of_chunk: for each of the three kinds of work, what goes with each of these numbers.
    """

    def __init__(
        self, mixer: Mixer, of: Callable[[TokenGroup], Work], *, caps: Sequence[int], periods: Sequence[int]
    ) -> None:
        self._of = of
        self._known: dict[tuple[int, int], Counts] = {}
        self.decode = tuple(zip(*self._decode_coefficients(mixer, caps, periods), strict=True))
        self.chunk: Callable[[int, int], Counts] = self._look_up
        self.of_chunk: tuple[Work, Work, Work] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
        if isinstance(mixer, Attention) and mixer.indexer is None and mixer.bends.restart is None:
            self.chunk, self.of_chunk = _counts(mixer.span), self._count_coefficients(mixer.span)

    def chunks(self, chunks: Sequence[tuple[int, int]]) -> Counts:
        """Return the sums of the three numbers over some chunks."""
        one = two = three = 0
        for tokens, past in chunks:
            more = self.chunk(tokens, past)
            one, two, three = one + more[0], two + more[1], three + more[2]
        return one, two, three

    def _decode_coefficients(self, mixer: Mixer, caps: Sequence[int], periods: Sequence[int]) -> list[list[float]]:
        """Return, for each of a step's sums, the work that goes with it: read off at the knees and between them."""
        coefficients = [[0.0] * 3 for _ in range(2 + len(caps) + len(periods))]
        own = sorted(knees(mixer))
        if mixer.bends.restart is not None:
            first, second = self._at(1), self._at(2)
            slope = [after - before for before, after in zip(first, second, strict=True)]
            coefficients[2 + len(caps) + periods.index(mixer.bends.restart)] = slope
            coefficients[0] = [value - rise for value, rise in zip(first, slope, strict=True)]
            return coefficients
        points = [1, *own, (own[-1] if own else 1) + 1]
        values = [self._at(point) for point in points]
        for quantity in range(3):
            slopes = [
                (values[index + 1][quantity] - values[index][quantity]) / (points[index + 1] - points[index])
                for index in range(len(points) - 1)
            ]
            coefficients[1][quantity] = slopes[-1]
            coefficients[0][quantity] = values[0][quantity] - slopes[0]
            for index, cap in enumerate(own):
                coefficients[2 + caps.index(cap)][quantity] = slopes[index] - slopes[index + 1]
        return coefficients

    def _at(self, context: int) -> Work:
        return self._of(TokenGroup(sequences=1, query_tokens=1, past_tokens=context - 1))

    def _look_up(self, tokens: int, past: int) -> Counts:
        cost = self._known.get((tokens, past))
        if cost is None:
            flop, compulsory, moved = self._of(TokenGroup(sequences=1, query_tokens=tokens, past_tokens=past))
            # whole numbers, so that sums do not depend on their order
            cost = round(flop), round(compulsory), round(moved)
            self._known[tokens, past] = cost
        return cost

    def _count_coefficients(self, window: int | None) -> tuple[Work, Work, Work]:
        """Return the work for each of `_counts`: scores go with pairs, reads with the past, writes with the tokens."""
        flop = self._at(1)[FLOP]
        _, written, _ = self._of(TokenGroup(sequences=1, query_tokens=2))
        _, both, moved = self._of(TokenGroup(sequences=1, query_tokens=2, past_tokens=1))
        write, read, reread = written / min(2, window or 2), both - written, moved - both
        return (flop, 0, 0), (0, read, write), (0, read + reread, write)


def _counts(window: int | None) -> Callable[[int, int], Counts]:
    """Return a function that counts a chunk's pairs, the past tokens it reads and the tokens it writes."""
    if window is None:
        return lambda tokens, past: (tokens * past + tokens * (tokens + 1) // 2, past, tokens)
    return lambda tokens, past: (causal_pairs(tokens, past, window), min(past, window - 1), min(tokens, window))


def knees(mixer: Mixer) -> set[int]:
    """Return the contexts at which what a decode step costs in a layer changes its slope."""
    bends = mixer.bends
    if isinstance(mixer, Cross) or bends.group > 1 or bends.pool > 1:
        raise UnsupportedError(f"serving with {mixer.kind} attention of this kind is not modelled")
    return {knee for knee in bends.knees if knee > 1}
