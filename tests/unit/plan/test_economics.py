"""Dollars and joules of a token: by hand, at the bound's speed, absent where price or power is not known."""

import json

import pytest

import kvcalc
from kvcalc.cli.main import main


def _row(**options):
    return kvcalc.decode(kvcalc.deployment("llama3.1-8b", **options), batches=[8], contexts=[1024]).rows[0]


def test_dollars_follow_from_price_and_speed():
    row = _row(gpu="h100-sxm", gpus=2, price_per_hour_usd=1.8)
    assert row.usd_per_million_tokens == pytest.approx(2 * 1.8 / 3600 / row.tokens_per_s * 1e6)


def test_joules_follow_from_the_share_of_the_rated_power():
    whole, part = _row(gpu="h100-sxm"), _row(gpu="h100-sxm", power_share=0.5)
    assert whole.joules_per_token == pytest.approx(700 / whole.tokens_per_s)
    assert part.joules_per_token == pytest.approx(whole.joules_per_token / 2)


def test_what_is_not_known_is_absent():
    row = _row(gpu="m2-ultra-76")
    assert row.usd_per_million_tokens is None
    assert row.joules_per_token is None


def test_a_price_in_the_profile_counts_and_one_that_is_given_counts_more():
    assert _row(gpu="h200", settings=["price_per_hour_usd=3"]).usd_per_million_tokens is not None
    given = _row(gpu="h200", settings=["price_per_hour_usd=3"], price_per_hour_usd=6)
    assert given.usd_per_million_tokens == pytest.approx(
        2 * _row(gpu="h200", price_per_hour_usd=3).usd_per_million_tokens
    )


@pytest.mark.parametrize(
    "options",
    [
        {"price_per_hour_usd": 0},
        {"price_per_hour_usd": 1_000_000.01},
        {"price_per_hour_usd": float("nan")},
        {"power_share": 0},
        {"power_share": 1.001},
    ],
)
def test_prices_and_shares_that_make_no_sense_are_refused(options):
    with pytest.raises(kvcalc.InputError):
        kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", **options)


def test_the_largest_price_and_the_whole_power_are_taken():
    most = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", price_per_hour_usd=1_000_000, power_share=1)
    assert (most.hardware.price_per_hour_usd, most.power_share) == (1_000_000, 1)


def test_a_price_needs_an_accelerator():
    with pytest.raises(kvcalc.InputError, match="accelerator"):
        kvcalc.deployment("llama3.1-8b", price_per_hour_usd=2)


@pytest.mark.parametrize("command", ["decode", "prefill"])
def test_the_command_line_prints_costs_as_bounds(command, capsys):
    arguments = [command, "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--price", "2.5", "--power-share", "0.7"]
    with pytest.raises(SystemExit):
        main([*arguments, "--json"])
    report = json.loads(capsys.readouterr().out)
    assert report["price_per_hour_usd"] == 2.5
    assert report["power_w"] == pytest.approx(490)
    assert report["rows"][0]["usd_per_million_tokens"] > 0
    with pytest.raises(SystemExit):
        main(arguments)
    shown = capsys.readouterr().out
    assert "$" in shown
    assert command == "prefill" or (
        "energy per token" in shown and "cost per 1M tokens" in shown and "lower bound" in shown
    )
