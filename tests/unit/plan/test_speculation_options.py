"""Which drafts may be asked for, and which are looked among: the first and the last that can be."""

import math

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.speculation import MAX_NODES
from kvcalc.plan.speculative.acceptance import Acceptance
from kvcalc.plan.speculative.options import SpeculationOptions, check_gamma

CONSTANT = Acceptance(rates=(0.8,), constant=True)


def options(**more):
    return SpeculationOptions(**({"acceptance": CONSTANT} | more))


@pytest.mark.parametrize("rate", [0, 1, 0.5])
def test_a_rate_may_be_nothing_and_all(rate):
    assert Acceptance(rates=(rate,), constant=True).by_depth(3) == (rate, rate, rate)


@pytest.mark.parametrize("rate", [-1e-9, 1 + 1e-9, math.nan, math.inf, -math.inf])
def test_a_rate_beyond_them_or_that_is_no_number_is_refused(rate):
    with pytest.raises(InputError, match="acceptance must be from 0 to 1"):
        Acceptance(rates=(0.5, rate))


@pytest.mark.parametrize(
    ("rates", "constant", "held"),
    [((), False, False), ((0.5,), False, True), ((0.5,) * 256, False, True), ((0.5,) * 257, False, False),
     ((), True, False), ((0.5,), True, True), ((0.5, 0.5), True, False)],
)  # fmt: skip
def test_a_constant_is_one_rate_and_positions_are_1_to_256(rates, constant, held):
    if held:
        assert Acceptance(rates=rates, constant=constant).positions == (None if constant else len(rates))
    else:
        with pytest.raises(InputError, match=f"acceptance of {len(rates)} positions"):
            Acceptance(rates=rates, constant=constant)


def test_positions_are_known_up_to_the_last_one_given():
    known = Acceptance(rates=(0.9, 0.7, 0.5))
    assert (known.by_depth(1), known.by_depth(3)) == ((0.9,), (0.9, 0.7, 0.5))
    with pytest.raises(InputError, match="given for 3 positions, and gamma is 4"):
        known.by_depth(4)


@pytest.mark.parametrize(("gamma", "held"), [(0, False), (1, True), (256, True), (257, False)])
def test_a_draft_has_1_to_256_tokens(gamma, held):
    if held:
        check_gamma(gamma)
        assert options(gammas=(gamma,)).gammas == (gamma,)
    else:
        for refused in (lambda: check_gamma(gamma), lambda: options(gammas=(4, gamma))):
            with pytest.raises(InputError, match=f"gamma must be from 1 to 256, not {gamma}"):
                refused()


@pytest.mark.parametrize(("nodes", "held"), [(0, False), (1, True), (MAX_NODES, True), (MAX_NODES + 1, False)])
def test_a_tree_has_no_more_nodes_than_a_verification_holds(nodes, held):
    if held:
        assert options(nodes=nodes).nodes == nodes
    else:
        with pytest.raises(InputError, match="tree-nodes must be from 1"):
            options(nodes=nodes)


@pytest.mark.parametrize(
    ("more", "held"),
    [
        ({}, True),
        ({"gammas": (2,)}, True),
        ({"gammas": (3,)}, False),
        ({"gammas": (2, 3)}, False),
        ({"nodes": 9}, False),
    ],
)
def test_a_tree_of_given_widths_has_its_own_length_and_nodes(more, held):
    if held:
        assert options(widths=(3, 2), **more).lengths() == (2,)
    else:
        with pytest.raises(InputError, match="a tree of 2 levels"):
            options(widths=(3, 2), **more)


def test_lengths_to_choose_from_are_1_to_16_what_is_asked_for_and_no_more_than_are_known():
    assert options().lengths() == tuple(range(1, 17))
    assert options(gammas=(4, 32)).lengths() == (*range(1, 17), 32)
    known = Acceptance(rates=(0.9, 0.7, 0.5))
    assert options(acceptance=known).lengths() == (1, 2, 3)
    for more in ({"gammas": (4,)}, {"widths": (2, 1, 1, 1)}):
        with pytest.raises(InputError, match="given for 3 positions"):
            options(acceptance=known, **more).lengths()


def test_a_tree_is_the_one_given_a_chain_or_the_best_of_so_many_nodes():
    rates = (0.6, 0.6, 0.6)
    assert options(widths=(3, 2)).shape()(rates).level_widths == (3, 6)
    assert options().shape()(rates).level_widths == (1, 1, 1)
    # 0.6 for the first child, 0.6 x 0.6 for its child, then its sibling with 0.6 x 0.4
    assert options(nodes=1).shape()(rates).level_widths == (1,)
    assert options(nodes=2).shape()(rates).level_widths == (1, 1)
    assert options(nodes=4).shape()(rates).level_widths == (2, 1, 1)


def test_no_more_than_64_siblings_are_looked_at_however_rarely_each_is_accepted():
    """At 1 in 1000 the first hundred children of the context are all likelier than any child of theirs."""
    rare = (0.001, 0.001)
    assert options(nodes=64).shape()(rare).level_widths == (64,)
    assert options(nodes=70).shape()(rare).level_widths == (64, 6)
