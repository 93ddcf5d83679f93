"""How many experts a pass touches, against the fewest, the most and the enumeration of every choice."""

from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.cost.linear import experts_touched

from .strategies import mixtures

many = st.integers(1, 300)


def _touched(mixture, tokens, routing="expected"):
    return experts_touched(
        experts=mixture.experts,
        chosen=mixture.experts_per_token,
        zero_experts=mixture.zero_experts,
        tokens=tokens,
        routing=routing,
    )


@given(mixtures(), many)
def test_expected_experts_lie_between_the_fewest_and_the_most(mixture, tokens):
    best, expected, worst = (_touched(mixture, tokens, routing) for routing in ("best", "expected", "worst"))
    assert best <= expected * (1 + 1e-12)
    assert expected <= worst * (1 + 1e-12)
    assert worst <= mixture.experts


@given(mixtures(), many)
def test_more_tokens_touch_more_experts_until_all_are(mixture, tokens):
    now, then = _touched(mixture, tokens), _touched(mixture, tokens + 1)
    assert now < then or now == then == pytest.approx(mixture.experts)


@pytest.mark.parametrize(
    ("experts", "zero", "chosen", "tokens"),
    [(4, 0, 1, 3), (4, 0, 2, 3), (3, 1, 2, 3), (2, 2, 1, 4), (5, 0, 5, 1), (5, 0, 4, 2)],
)
def test_expected_experts_equal_the_mean_over_every_choice(experts, zero, chosen, tokens):
    choices = list(combinations(range(experts + zero), chosen))
    outcomes = [len({e for one in outcome for e in one if e < experts}) for outcome in product(choices, repeat=tokens)]
    touched = experts_touched(experts=experts, chosen=chosen, zero_experts=zero, tokens=tokens, routing="expected")
    assert touched == pytest.approx(sum(outcomes) / len(outcomes))
