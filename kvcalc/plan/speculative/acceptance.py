"""How often drafted tokens are accepted: a rate, a list by position, or counts of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvcalc.core.errors import InputError
from kvcalc.cost.speculation import acceptance_from_counts

__all__ = ["Acceptance", "parse_acceptance"]

_MOST_POSITIONS = 256
_LONGEST_NUMBER = 30
_HINT = "a rate (0.8), one for each position (0.9,0.8,0.7), or counts: drafts:accepted at each position (1000:814,602)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """The probability that a drafted token is accepted if all before it were.

    Args:
        rates: for each position.
        constant: whether there is one that holds for all.
    """

    rates: tuple[float, ...]
    constant: bool = False

    def __post_init__(self) -> None:
        if not 1 <= len(self.rates) <= (1 if self.constant else _MOST_POSITIONS):
            raise InputError(f"acceptance of {len(self.rates)} positions; from 1 to {_MOST_POSITIONS}", hint=_HINT)
        for rate in self.rates:
            if not (0 <= rate <= 1 and math.isfinite(rate)):
                raise InputError(f"acceptance must be from 0 to 1, not {rate:g}", hint=_HINT)

    @property
    def positions(self) -> int | None:
        """How many positions are known; none where one rate holds for all."""
        return None if self.constant else len(self.rates)

    def by_depth(self, gamma: int) -> tuple[float, ...]:
        """Return the acceptance of the first ``gamma`` positions.

        Raises:
            InputError: it is known for fewer.
        """
        if self.positions is None:
            return self.rates * gamma
        if gamma > self.positions:
            raise InputError(
                f"acceptance is given for {self.positions} positions, and gamma is {gamma}",
                hint="give as many as gamma, or one rate for all",
            )
        return self.rates[:gamma]


def parse_acceptance(text: str) -> Acceptance:
    """Read a rate, a list by position, or counts.

    Raises:
        InputError: none of these, or numbers that cannot be.

    >>> parse_acceptance("0.8").rates, parse_acceptance("0.9, 0.5").rates, parse_acceptance("100:80,60").rates
    ((0.8,), (0.9, 0.5), (0.8, 0.75))
    """
    drafts, colon, accepted = text.partition(":")
    if colon:
        counts = [_count(part) for part in accepted.split(",")]
        return Acceptance(rates=acceptance_from_counts(_count(drafts), counts))
    rates = tuple(_rate(part) for part in text.split(","))
    return Acceptance(rates=rates, constant=len(rates) == 1)


def _rate(text: str) -> float:
    try:
        return float(text[:_LONGEST_NUMBER])
    except ValueError:
        raise InputError(f"acceptance: {text.strip()[:_LONGEST_NUMBER]!r} is not a number", hint=_HINT) from None


def _count(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InputError(f"acceptance: {text.strip()[:_LONGEST_NUMBER]!r} is not a count", hint=_HINT)
    return int(text)
