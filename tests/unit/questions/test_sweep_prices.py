"""Prices of a sweep: by card or one for all, and the cheapest point within limits."""

import pytest

from kvcalc.core.errors import InputError
from kvcalc.questions import ask

ASKED = {"model": "llama3.1-8b", "gpu": "h100-sxm,l40s", "batch": "1,32", "context": "1024", "slo": "tpot_p95=80ms"}


def test_the_cheapest_tokens_within_the_limits_are_the_best():
    fastest = ask("sweep", ASKED)
    assert (fastest.best["gpu"], fastest.best["batch"]) == ("h100-sxm", 32)
    assert fastest.best["usd_per_million_tokens"] is None
    cheapest = ask("sweep", {**ASKED, "price": "h100-sxm=9.5,l40s=0.1"})
    assert (cheapest.best["gpu"], cheapest.best["batch"]) == ("l40s", 32)
    for row in cheapest.rows:
        price = {"h100-sxm": 9.5, "l40s": 0.1}[row["gpu"]]
        assert row["usd_per_million_tokens"] == pytest.approx(price / 3600 / row["tokens_per_s"] * 1e6)


def test_simulations_cost_what_their_gpus_do():
    asked = {"model": "llama3.1-8b", "gpu": "h100-sxm", "gpus": "2", "report": "simulate", "prompt": "100",
             "output_tokens": "20", "rate": "1,5", "requests": "50", "price": "2.5", "slo": "ttft_p95=1s"}  # fmt: skip
    found = ask("sweep", asked)
    for row in found.rows:
        cost = 2 * 2.5 / 3600 / row["summary.output_tokens_per_s"] * 1e6
        assert row["summary.usd_per_million_output_tokens"] == pytest.approx(cost)
    assert found.best["rate"] == 5


@pytest.mark.parametrize(
    ("price", "said"), [("h100-sxm=2", "no price of l40s"), ("b200=2", "no price of h100-sxm, l40s is given"),
     ("h100-sxm=2,l40s=1,h200=3", "h200 is priced"), ("x", "x")],
)  # fmt: skip
def test_prices_that_name_other_cards_are_refused(price, said):
    with pytest.raises(InputError, match=said):
        ask("sweep", {**ASKED, "price": price})
