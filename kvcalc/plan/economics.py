"""Least costs of a token: money from the price of a GPU-hour, energy from the power it draws.

Both follow from the bound on speed, so they are bounds themselves: no run at that price, or at that power, does better.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.readers import number
from kvcalc.core.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

__all__ = ["cost_fields", "joules_per_token", "price_per_hour_usd", "usd_per_million_tokens", "with_costs"]

_MAX_USD_PER_HOUR = 1_000_000


def usd_per_million_tokens(*, price_per_hour_usd: float, gpus: int, tokens_per_s: float) -> float:
    """Return the least dollars for a million tokens: GPUs * price / 3600 / tokens a second * 10^6.

    Args:
        price_per_hour_usd: rent of one GPU.
        gpus: how many work together.
        tokens_per_s: the bound on their speed.

    >>> usd_per_million_tokens(price_per_hour_usd=3.6, gpus=2, tokens_per_s=1000)
    2.0
    """
    return gpus * price_per_hour_usd / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PER_MILLION


def price_per_hour_usd(*, usd_per_million_tokens: float, gpus: int, tokens_per_s: float) -> float:
    """Return the most that a GPU-hour may cost for a price of a million tokens; `usd_per_million_tokens` turned round.

    >>> price_per_hour_usd(usd_per_million_tokens=2, gpus=2, tokens_per_s=1000)
    3.6
    """
    return usd_per_million_tokens * tokens_per_s / TOKENS_PER_MILLION * SECONDS_PER_HOUR / gpus


def joules_per_token(*, power_w: float, gpus: int, tokens_per_s: float) -> float:
    """Return the least energy of a token: GPUs * power / tokens a second.

    Args:
        power_w: what each GPU draws on average.
        gpus: how many work together.
        tokens_per_s: the bound on their speed.

    >>> joules_per_token(power_w=700, gpus=2, tokens_per_s=1000)
    1.4
    """
    return gpus * power_w / tokens_per_s


def cost_fields(deployment: Deployment, tokens_per_s: float) -> dict[str, float | None]:
    """Return dollars and joules of a token at a speed; none where price or power is not known."""
    hardware, gpus = deployment.hardware, deployment.parallel.gpus
    price = hardware.price_per_hour_usd if hardware is not None else None
    power = deployment.power_w
    return {
        "usd_per_million_tokens": None
        if price is None
        else usd_per_million_tokens(price_per_hour_usd=price, gpus=gpus, tokens_per_s=tokens_per_s),
        "joules_per_token": None
        if power is None
        else joules_per_token(power_w=power, gpus=gpus, tokens_per_s=tokens_per_s),
    }


def with_costs(deployment: Deployment, *, price_per_hour_usd: float | None, power_share: float | None) -> Deployment:
    """Return the deployment at another price, or at a share of the rated power.

    Raises:
        InputError: no accelerator to pay for, a price of nothing, or a share that is not above 0 and at most 1.
    """
    price_per_hour_usd, power_share = _number(price_per_hour_usd, "price"), _number(power_share, "power-share")
    if power_share is not None:
        if not 0 < power_share <= 1:
            raise InputError(f"power-share must be above 0 and at most 1, not {power_share}", hint="for example 0.7")
        deployment = replace(deployment, power_share=power_share)
    if price_per_hour_usd is None:
        return deployment
    if not 0 < price_per_hour_usd <= _MAX_USD_PER_HOUR:
        raise InputError(f"price must be above 0 dollars a GPU-hour, not {price_per_hour_usd}", hint="for example 2.5")
    if deployment.hardware is None:
        raise InputError("a price needs an accelerator that is paid for", hint="give --gpu")
    return replace(deployment, hardware=replace(deployment.hardware, price_per_hour_usd=price_per_hour_usd))


def _number(given: float | None, what: str) -> float | None:
    return None if given is None else number(given, what)
