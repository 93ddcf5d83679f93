"""Prices of accelerators, as a user gives them, and what follows from them for tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION, ceil_div

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "HOURS_PER_MONTH",
    "Price",
    "break_even_rate",
    "parse_prices",
    "price_of",
    "prices_of_cards",
    "usd_per_million",
]

HOURS_PER_MONTH = 730
_MAX_USD = 1_000_000.0
_HINT = "for example h100-sxm=2.5,h200=3.2, or a file of prices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Rent of accelerators of one kind.

    Args:
        usd_per_hour: dollars for an hour of what is rented at once.
        gpus: accelerators that are rented at once: 1, or those of a node.
        text: where, and on what terms.
    """

    usd_per_hour: float
    gpus: int = 1
    text: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.usd_per_hour <= _MAX_USD:
            what = f"a price must be above 0 and at most {_MAX_USD:,.0f} dollars an hour, not {self.usd_per_hour:g}"
            raise InputError(what, hint=_HINT, parameter="price")
        if self.gpus < 1:
            raise InputError(f"a price is for 1 GPU or more, not {self.gpus}", parameter="price")

    def of(self, gpus: int) -> float:
        """Return dollars an hour for so many accelerators; nodes are rented whole.

        >>> Price(usd_per_hour=20, gpus=8).of(9), Price(usd_per_hour=2.5).of(9)
        (40, 22.5)
        """
        return ceil_div(gpus, self.gpus) * self.usd_per_hour


def parse_prices(text: str) -> dict[str, Price]:
    """Read prices as they stand on a command line, by the names that are written there.

    Raises:
        InputError: not such a list, or a card with two prices.

    >>> parse_prices("h100-sxm=2.5, h200=3.2")["h200"].usd_per_hour
    3.2
    """
    prices: dict[str, Price] = {}
    for part in text.split(","):
        name, equals, amount = (word.strip() for word in part.partition("="))
        try:
            usd = float(amount.removeprefix("$"))
        except ValueError:
            usd = math.nan
        if not equals or not name or math.isnan(usd):
            raise InputError(f"price: {part.strip()!r} is no price of a card", hint=_HINT, parameter="price")
        if name in prices:
            raise InputError(f"price: {name} has two prices", hint="name it once", parameter="price")
        prices[name] = Price(usd_per_hour=usd)
    return prices


def prices_of_cards(
    prices: Mapping[str, Price], cards: Sequence[tuple[str, ...]], *, may_name_others: bool = False
) -> list[Price]:
    """Return the price of each card, under whichever of its names it is given.

    Args:
        prices: by the names that were written.
        cards: the names of each card, the one it was asked for by first.
        may_name_others: whether there may be prices of other cards too.

    Raises:
        InputError: cards without a price, all of them named; or prices of none of the cards.

    >>> given = parse_prices("H100=2,b200=5")
    >>> [price.usd_per_hour for price in prices_of_cards(given, [("b200",), ("h100-sxm", "h100")])]
    [5.0, 2.0]
    """
    prices_found = [price_of(prices, names) for names in cards]
    without = list(dict.fromkeys(names[0] for names, price in zip(cards, prices_found, strict=True) if price is None))
    if without:
        hint = f"add {','.join(f'{name}=2.5' for name in without)} to --price"
        raise InputError(f"no price of {', '.join(without)} is given", hint=hint, parameter="price")
    known = {name.lower() for names in cards for name in names}
    unknown = [] if may_name_others else [name for name in prices if name.lower() not in known]
    if unknown:
        what = f"{', '.join(unknown)} {'is' if len(unknown) == 1 else 'are'} priced and not among the accelerators"
        raise InputError(what, hint="name each card as --gpu does", parameter="price")
    return [price for price in prices_found if price is not None]


def usd_per_million(*, usd_per_hour: float, tokens_per_s: float) -> float:
    """Return dollars for a million tokens at a speed.

    >>> usd_per_million(usd_per_hour=3.6, tokens_per_s=1000)
    1.0
    """
    return usd_per_hour / SECONDS_PER_HOUR / tokens_per_s * TOKENS_PER_MILLION


def break_even_rate(*, usd_per_hour: float, usd_per_million_tokens: float, tokens: float) -> float:
    """Return the requests a second from which a price an hour is less than a price of a million tokens.

    Args:
        usd_per_hour: of the deployment.
        usd_per_million_tokens: of an API, prompt and answer blended.
        tokens: of a request, prompt and answer.

    >>> break_even_rate(usd_per_hour=3.6, usd_per_million_tokens=1.0, tokens=1000)
    1.0
    """
    return usd_per_hour / SECONDS_PER_HOUR * TOKENS_PER_MILLION / usd_per_million_tokens / tokens


def price_of(prices: Mapping[str, Price], names: tuple[str, ...]) -> Price | None:
    """Return the price of a card under one of its names; none where none is given."""
    lower = {name.lower(): price for name, price in prices.items()}
    return next((lower[name.lower()] for name in names if name.lower() in lower), None)
