"""Times of many passes at once: the estimate's own formula, with arrays in place of numbers."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from kvcalc.cost.estimate import OperatorTerms, PassTerms, SumTerms, reached_seconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import TypeAlias

    from kvcalc.core.calibration import Calibration

    # a NumPy array of floats: NumPy is loaded by fits alone
    Array: TypeAlias = Any

__all__ = ["TimedPasses", "largest_of", "least_of", "stacked_operators"]

# Fields of an operator's terms that are numbers come first.
_NUMBERS = 5


def largest_of(*arrays: Array) -> Array:
    """Return the largest at each place, as ``max`` does of numbers."""
    import numpy as np

    largest = arrays[0]
    for array in arrays[1:]:
        largest = np.maximum(largest, array)
    return largest


def least_of(one: Array, other: Array) -> Array:
    """Return the smaller at each place, as ``min`` does of numbers."""
    import numpy as np

    return np.minimum(one, other)


def stacked_operators(operators: Iterable[OperatorTerms], *, is_joined: bool = False) -> OperatorTerms:
    """Return operators as one whose numbers are arrays with a place for each."""
    import numpy as np

    columns: Array = np.array([op[:_NUMBERS] for op in operators], dtype=float).T
    return OperatorTerms(*columns)._replace(is_joined=is_joined)


def _stacked(passes: Sequence[PassTerms]) -> PassTerms:
    """Return passes as one whose numbers are arrays: the first operator of a kind beside the first of all others."""
    slots: dict[tuple[str, str, bool, int], list[OperatorTerms]] = {}
    nothing = OperatorTerms(0.0, 0.0, 0)
    for row, terms in enumerate(passes):
        for (kind, unit), operators in terms.operators.items():
            for is_joined in (False, True):
                for index, op in enumerate(op for op in operators if op.is_joined is is_joined):
                    slots.setdefault((kind, unit, is_joined, index), [nothing] * len(passes))[row] = op
    columns: dict[tuple[str, str], list[OperatorTerms]] = {}
    for (kind, unit, is_joined, _), column in sorted(slots.items()):
        columns.setdefault((kind, unit), []).append(stacked_operators(column, is_joined=is_joined))
    stacked = {name: tuple(each) for name, each in columns.items()}
    return PassTerms(operators=stacked, sums=_stacked_sums(passes), **_counts(passes))


def _stacked_sums(passes: Sequence[PassTerms]) -> tuple[SumTerms, ...]:
    import numpy as np

    nothing = SumTerms(0, 0.0, 0.0)
    columns = zip_longest(*(terms.sums for terms in passes), fillvalue=nothing)
    return tuple(SumTerms(*np.array(column, dtype=float).T) for column in columns)


def _counts(passes: Sequence[PassTerms]) -> dict[str, Array]:
    import numpy as np

    names = ("layers", "collectives", "link_s", "logits")
    return {name: np.array([getattr(terms, name) for terms in passes], dtype=float) for name in names}


class TimedPasses:
    """Samples as passes, for a search that asks for their times with many calibrations.

    Args:
        samples: for each sample its passes: terms, bound and how many.
    """

    def __init__(self, samples: Sequence[Sequence[tuple[PassTerms, float, float]]]) -> None:
        import numpy as np

        every = [each for passes in samples for each in passes]
        self._terms = _stacked([terms for terms, _, _ in every])
        self._bound_s = np.array([bound_s for _, bound_s, _ in every])
        self._times = np.array([times for _, _, times in every])
        self._sample = np.repeat(np.arange(len(samples)), [len(passes) for passes in samples])
        self._count = len(samples)

    def seconds(self, calibration: Calibration) -> Array:
        """Return the estimated time of each sample, no pass below its bound."""
        import numpy as np

        reached = reached_seconds(self._terms, calibration, most=largest_of, lesser=least_of)
        return np.bincount(
            self._sample, weights=self._times * np.maximum(self._bound_s, reached), minlength=self._count
        )
