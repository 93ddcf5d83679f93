"""Laws of speculative decoding, over random functions, drafts and trees."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.speculation import DraftTree, chain
from kvcalc.cost.speculation import (
    acceptance_from_counts,
    best_tree,
    break_even_rate,
    expected_tokens,
    expected_tokens_at_rate,
    expected_tokens_of_tree,
    largest_draft_ratio,
    speedup,
    tree_acceptance,
)
from kvcalc.simulate.speculative import decode, greedy, greedy_tree, speculate, speculate_batch

VOCABULARY = 4


@st.composite
def functions(draw):
    """A next-token function: any table over the last two tokens and the length."""
    table = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=64, max_size=64))
    return lambda context: table[(16 * len(context) + sum(4**place * t for place, t in enumerate(context[-2:]))) % 64]


@st.composite
def trees(draw):
    """A draft tree of up to eight nodes in which no node has more children than there are tokens."""
    parents = []
    for node in range(draw(st.integers(0, 8))):
        open_ones = [place for place in range(-1, node) if parents.count(place) < VOCABULARY]
        parents.append(draw(st.sampled_from(open_ones)))
    return DraftTree(parents=tuple(parents))


@given(functions(), functions(), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 20), st.integers(0, 5))
def test_greedy_speculation_generates_what_the_target_would(target, draft, prompt, tokens, gamma):
    run = speculate(greedy(target, draft), prompt, tokens=tokens, tree=chain(gamma))
    assert run.tokens == decode(target, prompt, tokens=tokens)
    assert math.ceil(tokens / (gamma + 1)) <= run.target_passes <= tokens
    assert all(found.ending == "correction" for found in run.rounds if len(found.accepted) < gamma)


@given(functions(), functions(), trees(), st.integers(0, 12), st.booleans())
def test_a_tree_and_an_aligned_batch_generate_what_the_target_would(target, draft, tree, tokens, aligned):
    def ranked(context, wanted):
        return [(draft(context) + place) % VOCABULARY for place in range(wanted)]

    batch = speculate_batch([greedy_tree(target, ranked)] * 2, [(), (1,)], tokens=tokens, tree=tree, aligned=aligned)
    assert [run.tokens for run in batch.runs] == [decode(target, prompt, tokens=tokens) for prompt in ((), (1,))]
    assert math.ceil(tokens / (len(tree.level_widths) + 1)) <= batch.target_passes


rates = st.floats(0, 1)
ratios = st.floats(0.01, 4)


@given(rates, st.integers(0, 40))
def test_the_closed_form_is_the_sum_over_positions(rate, gamma):
    exact = expected_tokens_at_rate(rate, gamma)
    assert exact == pytest.approx(expected_tokens((rate,) * gamma), rel=1e-9)
    assert exact * (1 + 1e-12) >= 1
    assert exact <= (gamma + 1) * (1 + 1e-12)


@given(st.lists(rates, max_size=12))
def test_a_chain_is_a_tree(by_depth):
    tree = chain(len(by_depth))
    assert tree_acceptance(tree, by_depth) == tuple(by_depth)
    assert expected_tokens_of_tree(tree, by_depth) == pytest.approx(expected_tokens(by_depth))


@given(rates, st.integers(1, 12), ratios, ratios)
def test_at_the_break_even_rate_nothing_is_won_or_lost(rate, gamma, c, v):
    found = break_even_rate(tree=chain(gamma), gamma=gamma, draft_ratio=c, verify_ratio=v)
    gain = speedup(expected=expected_tokens_at_rate(rate, gamma), gamma=gamma, draft_ratio=c, verify_ratio=v)
    if found is None:
        assert gain < 1
    else:
        assert (gain >= 1 - 1e-9) if rate >= found else (gain <= 1 + 1e-9)


@given(rates, st.integers(1, 12), ratios)
def test_the_largest_draft_breaks_even(rate, gamma, v):
    expected = expected_tokens_at_rate(rate, gamma)
    ratio = largest_draft_ratio(expected=expected, gamma=gamma, verify_ratio=v)
    if ratio > 0:
        assert speedup(expected=expected, gamma=gamma, draft_ratio=ratio, verify_ratio=v) == pytest.approx(1)


@given(st.integers(1, 1000), st.lists(rates, min_size=1, max_size=6))
def test_counts_give_back_how_many_tokens_were_accepted(drafts, shares):
    accepted, left = [], drafts
    for share in shares:
        left = int(left * share)
        accepted.append(left)
    mean = 1 + sum(accepted) / drafts
    assert expected_tokens(acceptance_from_counts(drafts, accepted)) == pytest.approx(mean)


def every_tree(nodes, depth, children):
    """All trees of so many nodes: for each node any earlier one as its parent, or the context."""
    for parents in product(*(range(-1, node) for node in range(nodes))):
        tree = DraftTree(parents=parents)
        if max(tree.depths, default=0) <= depth and max(map(len, tree.children)) <= children:
            yield tree


@given(st.lists(st.lists(rates, min_size=2, max_size=2), min_size=2, max_size=2), st.integers(0, 5))
def test_no_tree_of_as_many_nodes_gives_more_tokens_than_the_best(rows, nodes):
    acceptance = [sorted((first, second * (1 - first)), reverse=True) for first, second in rows]

    def value(tree):
        shares = [acceptance[depth - 1][rank] for depth, rank in zip(tree.depths, tree.ranks, strict=True)]
        return expected_tokens_of_tree(tree, shares)

    found = best_tree(acceptance, nodes=nodes)
    assert found.nodes == nodes
    assert value(found) == pytest.approx(max(value(tree) for tree in every_tree(nodes, 2, 2)))
