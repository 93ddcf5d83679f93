"""A serving run over time, in a bounded number of slices that double in length as the run goes on."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from kvcalc.core.reports.simulate import SeriesRow
from kvcalc.simulate.observers import Waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.simulate.observers import Run, Served

__all__ = ["Series"]

_MAX_SLICES = 240
_MIN_SLICE_S = 2.0**-20
# What is summed up in a slice: sequences, waiting requests and blocks times seconds, tokens, gaps and their seconds,
# first tokens and their seconds.
_RUNNING, _WAITING, _BLOCKS, _TOKENS, _GAPS, _GAP_S, _FIRSTS, _FIRST_S, _SUMS = range(9)


class Series(Waits):
    """An observer that sums up what happens in slices of time.

    Args:
        usable_blocks: blocks of all replicas that can have an owner.
    """

    def __init__(self, *, usable_blocks: int) -> None:
        super().__init__()
        self._blocks = usable_blocks
        self._slice_s = _MIN_SLICE_S
        self._slices: list[list[float]] = [[0.0] * _SUMS]
        self._end_s = _MIN_SLICE_S
        self._last_s = 0.0
        # by how much the requests that wait all through a slice are more than in the one before
        self._between = [0] * (_MAX_SLICES + 1)

    def runs(self, runs: Sequence[Run]) -> None:
        """Take in some runs of steps; what happens in one is spread evenly over its time."""
        for start_s, end_s, steps, _, _, decodes, _, output, running, _, blocks, end_blocks, _, _ in runs:
            if end_s > self._end_s:
                self._reach(end_s)
            slice_s, slices = self._slice_s, self._slices
            index, begin_s, share = int(start_s / slice_s), start_s, float(steps)
            while True:
                edge_s = (index + 1) * slice_s
                inside_s = min(end_s, edge_s) - begin_s
                if inside_s < end_s - start_s:
                    share = steps * inside_s / (end_s - start_s)
                sums = slices[index]
                sums[_RUNNING] += inside_s * running
                sums[_BLOCKS] += inside_s * (blocks + end_blocks) / 2
                sums[_TOKENS] += share * output
                sums[_GAPS] += share * decodes
                sums[_GAP_S] += inside_s * decodes
                if end_s <= edge_s:
                    break
                index, begin_s = index + 1, edge_s
        self._last_s = max(self._last_s, runs[-1].end_s)

    def waited(self, start_s: float, end_s: float) -> None:
        """Take in a time in the queue, in the slices in which it lies."""
        if end_s > self._end_s:
            self._reach(end_s)
        end = len(self._slices) - 1
        first, last = min(int(start_s / self._slice_s), end), min(int(end_s / self._slice_s), end)
        if first == last:
            self._slices[first][_WAITING] += end_s - start_s
            return
        self._slices[first][_WAITING] += (first + 1) * self._slice_s - start_s
        self._slices[last][_WAITING] += end_s - last * self._slice_s
        self._between[first + 1] += 1
        self._between[last] -= 1

    def finished(self, served: Served) -> None:
        """Take in a request's first token, in the slice in which it came."""
        if served.first_token_s > self._end_s:
            self._reach(served.first_token_s)
        sums = self._slices[min(int(served.first_token_s / self._slice_s), len(self._slices) - 1)]
        sums[_FIRSTS] += 1
        sums[_FIRST_S] += served.first_token_s - served.request.arrival_s

    def _reach(self, time_s: float) -> None:
        """Add slices up to a time; where they would be too many, join them in pairs."""
        while time_s > self._slice_s * _MAX_SLICES:
            self._settle()
            self._slice_s *= 2
            pairs = zip(self._slices[::2], [*self._slices[1::2], [0.0] * _SUMS], strict=False)
            self._slices = [[one + other for one, other in zip(*pair, strict=True)] for pair in pairs]
        while len(self._slices) * self._slice_s < time_s:
            self._slices.append([0.0] * _SUMS)
        self._end_s = len(self._slices) * self._slice_s

    def _settle(self) -> None:
        """Add the time of the requests that waited all through a slice."""
        for sums, waiting in zip(self._slices, accumulate(self._between), strict=False):
            sums[_WAITING] += waiting * self._slice_s
        self._between = [0] * (_MAX_SLICES + 1)

    def rows(self, end_s: float) -> tuple[SeriesRow, ...]:
        """Return the slices up to the end of the run, the last one cut there."""
        self._settle()
        return tuple(
            self._row(sums, index * self._slice_s, min(end_s, (index + 1) * self._slice_s))
            for index, sums in enumerate(self._slices)
            if index * self._slice_s < end_s
        )

    def so_far(self) -> tuple[SeriesRow, ...]:
        """Return the slices up to now while the run goes on.

        A wait is counted when it ends, and a first token when its request has finished, so that both are still too few
        in the last slices; running sequences, blocks and tokens are those of the steps that were taken in.
        """
        return self.rows(self._last_s) if self._last_s else ()

    def _row(self, sums: list[float], start_s: float, end_s: float) -> SeriesRow:
        length_s = end_s - start_s
        return SeriesRow(
            start_s=start_s,
            end_s=end_s,
            running_requests=sums[_RUNNING] / length_s,
            waiting_requests=sums[_WAITING] / length_s,
            cache_used_share=sums[_BLOCKS] / (length_s * self._blocks),
            output_tokens_per_s=sums[_TOKENS] / length_s,
            ttft_s=sums[_FIRST_S] / sums[_FIRSTS] if sums[_FIRSTS] else None,
            inter_token_s=sums[_GAP_S] / sums[_GAPS] if sums[_GAPS] else None,
        )
