"""Prices of a comparison: by card, by any of its names, for models and for accelerators alone."""

import pytest

from kvcalc.core.errors import InputError
from kvcalc.questions import ask

MODEL = {"model": "llama3.1-8b", "gpu": "h100-sxm,l40s", "context": "1024", "batch": "8"}


def values(report, quantity):
    return next(row.values for row in report.rows if row.quantity == quantity)


def test_each_side_costs_what_its_card_does():
    by_card = ask("compare", {**MODEL, "price": "H100=2.5,l40s=0.8"})
    assert [side.label for side in by_card.sides] == ["h100-sxm", "l40s"]
    for place, price in enumerate((2.5, 0.8)):
        alone = ask("compare", {**MODEL, "price": str(price)})
        quantity = "decode.usd_per_million_tokens"
        assert values(by_card, quantity)[place] == pytest.approx(values(alone, quantity)[place])


def test_accelerators_alone_have_their_prices():
    report = ask("compare", {"specs": ("h100-sxm", "h200"), "price": "h100-sxm=2.5,h200=3.2"})
    assert values(report, "gpu.price_per_hour_usd") == (2.5, 3.2)


def test_a_side_keeps_the_price_of_its_own():
    specs = ("llama3.1-8b@h100-sxm,price=9", "llama3.1-8b@l40s")
    report = ask("compare", {"specs": specs, "context": "1024", "price": "l40s=0.8"})
    priced = ("llama3.1-8b@h100-sxm,price=9", "llama3.1-8b@l40s,price=0.8")
    quantity = "decode.usd_per_million_tokens"
    assert values(report, quantity) == values(ask("compare", {"specs": priced, "context": "1024"}), quantity)


@pytest.mark.parametrize(
    ("price", "said"), [("b200=5", "no price of h100-sxm, l40s is given"), ("h100=2,l40s=1,b200=5", "b200 is priced")]
)
def test_prices_that_do_not_name_the_cards_are_refused(price, said):
    with pytest.raises(InputError, match=said):
        ask("compare", {**MODEL, "price": price})
