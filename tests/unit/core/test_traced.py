"""Formulas that numbers keep: digits that change nothing drop out of them, quantities never do, whatever their value.

A model of one layer is explained by the same formula as one of eighty.
"""

import pytest

from kvcalc.core.traced import Traced, larger, named, smaller

HEADS, LAYERS, DRAFTS = named(8, "heads"), named(1, "layers"), named(0, "drafts")


@pytest.mark.parametrize(
    ("value", "formula"),
    [
        (HEADS * LAYERS, "heads x layers"),
        (LAYERS * HEADS, "layers x heads"),
        (HEADS * DRAFTS, "heads x drafts"),
        (DRAFTS * HEADS, "drafts x heads"),
        (HEADS + DRAFTS, "heads + drafts"),
        (DRAFTS + HEADS, "drafts + heads"),
        (HEADS - DRAFTS, "heads - drafts"),
        (HEADS / LAYERS, "heads / layers"),
        (DRAFTS / HEADS, "drafts / heads"),
        (HEADS**LAYERS, "heads ^ layers"),
        (HEADS**DRAFTS, "heads ^ drafts"),
        (larger(HEADS, DRAFTS), "max(heads, drafts)"),
        (smaller(HEADS, LAYERS), "min(heads, layers)"),
    ],
)
def test_a_quantity_of_nothing_or_one_stays_in_the_formula(value, formula):
    assert value.term.formula == formula


@pytest.mark.parametrize(
    "value",
    [HEADS * 1, 1 * HEADS, HEADS + 0, 0 + HEADS, HEADS - 0, HEADS / 1, HEADS // 1, HEADS**1, larger(HEADS, 0), larger(0, HEADS)],
)  # fmt: skip
def test_digits_that_change_nothing_drop_out(value):
    assert value.term.formula == "heads"


@pytest.mark.parametrize(
    ("value", "number"), [(HEADS * 0, 0), (0 * HEADS, 0), (HEADS**0, 1), (0 / HEADS, 0), (0 // HEADS, 0)]
)
def test_what_no_quantity_can_change_has_no_formula(value, number):
    assert value == number
    assert not isinstance(value, Traced)


@pytest.mark.parametrize(
    ("value", "formula"),
    [
        (HEADS * 2, "heads x 2"), (2 * HEADS, "2 x heads"), (HEADS + 1, "heads + 1"), (1 - HEADS, "1 - heads"),
        (0 - HEADS, "0 - heads"), (1 / HEADS, "1 / heads"), (HEADS**2, "heads ^ 2"),
    ],
)  # fmt: skip
def test_other_digits_stay(value, formula):
    assert value.term.formula == formula
