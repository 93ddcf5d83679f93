"""A sum of maxima without the terms that others cover is that of all terms, to the tick."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import example, given
from hypothesis import strategies as st

from kvcalc.simulate.maxima import FixedMaxima, Term, firsts_of

if TYPE_CHECKING:
    from collections.abc import Callable

_EXPERTS: tuple[Callable[[int], float], ...] = (lambda tokens: min(8.0, 1.7 * tokens), lambda tokens: tokens / 3)
# few values, so that terms are often equal or cover each other in some of their coefficients; a read one may be below 0
_TICKS = st.sampled_from([-3, 0, 1, 2, 50, 10**20])
_TRIPLES = st.tuples(_TICKS, _TICKS, _TICKS)
_TOUCHED = st.lists(st.tuples(st.sampled_from(_EXPERTS), st.sampled_from([0.4, 7.0])), max_size=2).map(tuple)


def term(speaking: tuple[int, int, int], silent: tuple[int, int, int], experts: tuple = ()) -> Term:  # type: ignore[type-arg]
    return Term("memory", speaking, silent, per_sequence=0, per_context=0, capped=(), of_tokens=experts, chunks=())


_COVERED_BUT_FOR_EXPERTS = [term((9, 9, 9), (9, 9, 9)), term((1, 1, 1), (1, 1, 1), ((_EXPERTS[0], 7.0),))]


@given(
    maxima=st.lists(st.lists(st.builds(term, _TRIPLES, _TRIPLES, _TOUCHED), min_size=1, max_size=4), max_size=4),
    tokens=st.integers(0, 5000),
    logits=st.integers(0, 3),
)
@example(maxima=[_COVERED_BUT_FOR_EXPERTS], tokens=2, logits=1)
@example(maxima=[[term((5, 0, 0), (0, 5, 0)), term((0, 5, 0), (5, 0, 0))]], tokens=3, logits=0)
@example(maxima=[[term((-3, 0, 0), (-3, 0, 0))], [term((1, 1, 1), (1, 1, 1))] * 2], tokens=1, logits=1)
def test_terms_that_others_cover_change_no_tick(maxima: list[list[Term]], tokens: int, logits: int) -> None:
    whole = sum(max(firsts_of(terms, tokens, logits, (0, 0), ())) for terms in maxima)
    fixed = FixedMaxima(maxima)
    assert [fixed.ticks(tokens, logits), fixed.ticks(tokens, logits)] == [whole, whole]
