"""The closed forms of attention's pairs against the sums they stand for."""

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cost.attention import causal_pairs, chunk_pairs, compressed_pairs

from .strategies import maybe

query = st.integers(1, 70)
past = st.integers(0, 70)
limit = st.integers(1, 80)


def _positions(query: int, past: int) -> range:
    return range(past + 1, past + query + 1)


@given(query, past, maybe(limit))
def test_causal_pairs_are_the_tokens_each_query_sees(query, past, window):
    seen = (seen if window is None else min(seen, window) for seen in _positions(query, past))
    assert causal_pairs(query, past, window) == sum(seen)


@given(query, past, limit)
def test_chunk_pairs_are_the_tokens_of_each_querys_own_chunk(query, past, chunk):
    assert chunk_pairs(query, past, chunk) == sum((seen - 1) % chunk + 1 for seen in _positions(query, past))


@given(query, past, st.integers(1, 9), maybe(st.integers(0, 20)))
def test_compressed_pairs_are_the_entries_each_query_sees(query, past, ratio, most):
    entries = [seen // ratio for seen in _positions(query, past)]
    assert compressed_pairs(query, past, ratio, most) == sum(e if most is None else min(e, most) for e in entries)
