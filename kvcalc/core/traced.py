"""Numbers that remember how they came about, so that a formula of `kvcalc.cost` spells itself.

The functions of `kvcalc.cost` compute with them as with any number. A result then tells its formula, in the names of
the sizes that went in, and the same with numbers, which can be evaluated. Where Python's own functions would forget a
number's history, the formulas call `smaller`, `larger`, `whole`, `chance_of_any` and `called` of this module, which do
nothing else to a plain number.
"""

from __future__ import annotations

import math
import operator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "Term",
    "Traced",
    "called",
    "chance_of_any",
    "digits",
    "larger",
    "named",
    "plain",
    "smaller",
    "term_of",
    "whole",
]

# How tightly the parts of a text hold together, from a sum to a single number.
_SUM, _QUOTIENT, _PRODUCT, _ATOM = range(4)
_MAX_EXACT = 2**53
_Number = TypeVar("_Number", int, float)


def digits(value: float) -> str:
    """Return a number as it can be read back, without a fraction where it is whole.

    >>> digits(3.0), digits(0.5)
    ('3', '0.5')
    """
    return str(int(value)) if value == int(value) and abs(value) < _MAX_EXACT else repr(value)


@dataclass(frozen=True, slots=True)
class Term:
    """A number in a formula: one that was given, or what came of others.

    Args:
        value: its value.
        name: what it is called in a formula; its digits, or the terms it is made of, where left out.
        join: the operation.
        terms: what it is made of.
    """

    value: float
    name: str = ""
    join: str = ""
    terms: tuple[Term, ...] = ()

    @property
    def formula(self) -> str:
        """The formula in names."""
        return _text(self, names=True)[0]

    @property
    def expression(self) -> str:
        """The formula in numbers, which Python can evaluate with its ``min``."""
        return _text(self, names=False)[0]

    @property
    def is_whole(self) -> bool:
        """Whether its value has no fraction."""
        return self.value == int(self.value)

    def is_digits(self, value: int) -> bool:
        """Whether it is this number and nothing else."""
        return not self.name and not self.join and self.value == value


def _text(term: Term, *, names: bool) -> tuple[str, int]:
    if names and term.name:
        return term.name, _ATOM
    if term.name and term.join:
        return _bracketed(*_text(replace(term, name=""), names=False), _ATOM), _ATOM
    if not term.join:
        return digits(term.value), _ATOM
    texts = [_text(inner, names=names) for inner in term.terms]
    if term.join in ("min", "max"):
        return f"{term.join}({', '.join(text for text, _ in texts)})", _ATOM
    if term.join == "neg":
        return f"-{_bracketed(*texts[0], _PRODUCT)}", _SUM
    (left, tight), (right, other) = texts
    if term.join in "+-":
        return f"{left} {term.join} {_bracketed(right, other, _QUOTIENT if term.join == '-' else _SUM)}", _SUM
    if term.join == "ceil":
        part, divisor = _bracketed(left, tight, _QUOTIENT if names else _PRODUCT), _bracketed(right, other, _ATOM)
        return (f"ceil({part} / {divisor})" if names else f"(-(-{part} // {divisor}))"), _ATOM
    if term.join == "**":
        return f"{_bracketed(left, tight, _ATOM)} {'^' if names else '**'} {_bracketed(right, other, _ATOM)}", _PRODUCT
    left = _bracketed(left, tight, _QUOTIENT)
    if term.join == "*":
        sign = "x" if names else "*"
        return f"{left} {sign} {_bracketed(right, other, _PRODUCT)}", _QUOTIENT if tight == _QUOTIENT else _PRODUCT
    return f"{left} {term.join} {_bracketed(right, other, _ATOM)}", _QUOTIENT


def _bracketed(text: str, tight: int, min_rank: int) -> str:
    return text if tight >= min_rank else f"({text})"


class Traced:
    """Arithmetic that keeps the terms; mixed into a whole number or a float."""

    term: Term

    def __add__(self, other: Any) -> Any:
        return _joined("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _joined("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _joined("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _joined("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _joined("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _joined("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _joined("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _joined("/", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _joined("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _joined("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return _joined("%", self, other)

    def __pow__(self, other: Any) -> Any:
        return _joined("**", self, other)

    def __rpow__(self, other: Any) -> Any:
        return _joined("**", other, self)

    def __divmod__(self, other: Any) -> Any:
        """Quotient and rest as numbers of their own, which a formula names and does not spell again."""
        signs, parts = ("//", "%"), divmod(plain(self), plain(other))
        names = (Term(0, join=sign, terms=(self.term, term_of(other))).formula for sign in signs)
        return tuple(part and _made(part, Term(part, f"({name})")) for part, name in zip(parts, names, strict=True))

    def __neg__(self) -> Any:
        value, term = -plain(self), self.term
        if term.join == "neg":
            return _made(value, term.terms[0])
        rounds = term.join == "//" or (term.join == "/" and term.is_whole)
        if rounds and term.terms[0].join == "neg":  # a whole number divided and rounded up
            return _made(value, _divided(term.terms[0].terms[0], term.terms[1], "ceil"))
        return _made(value, Term(value, join="neg", terms=(term,)))

    def __round__(self) -> Any:
        return _rounded(self, round(plain(self)))


class TracedInt(Traced, int):  # type: ignore[misc]
    """A whole number with its terms."""


class TracedFloat(Traced, float):  # type: ignore[misc]
    """A float with its terms."""


def plain(value: Any) -> Any:
    """Return a number without its terms."""
    if isinstance(value, TracedInt):
        return int(value)
    return float(value) if isinstance(value, TracedFloat) else value


def term_of(value: Any) -> Term:
    """Return the terms of a number; its digits where it has none."""
    return value.term if isinstance(value, Traced) else Term(value)


def _made(value: Any, term: Term) -> Any:
    if not term.name and not term.join:
        return value
    made = (TracedFloat if isinstance(value, float) else TracedInt)(value)
    made.term = term
    return made


def named(value: _Number, name: str, beside: Any = None) -> _Number:
    """Return a number under a name; with ``beside`` only where that number has terms.

    >>> heads, width = named(8, "heads"), named(128, "head_dim")
    >>> size = 2 * heads * (width + width)
    >>> size.term.formula, size.term.expression, int(size)
    ('2 x heads x (head_dim + head_dim)', '2 * 8 * (128 + 128)', 4096)
    """
    return value if beside is not None and not isinstance(beside, Traced) else _made(value, Term(plain(value), name))


def called(value: _Number, name: str) -> _Number:
    """Return a result under a name of its own in formulas; its expression stays.

    >>> size = called(named(8, "heads") * 128, "query")
    >>> (2 * size).term.formula, (2 * size).term.expression
    ('2 x query', '2 * (8 * 128)')
    """
    if isinstance(value, Traced):
        value = _made(plain(value), replace(value.term, name=name))
    return value


def smaller(one: _Number, other: _Number) -> _Number:
    """Return the smaller of two numbers, as ``min`` does."""
    smallest = min(one, other)
    if not isinstance(smallest, Traced) or term_of(one) == term_of(other):
        return smallest
    made: _Number = _made(plain(smallest), Term(plain(smallest), join="min", terms=(term_of(one), term_of(other))))
    return made


def larger(*numbers: float) -> float:
    """Return the largest of some numbers, as ``max`` does; digits of nothing drop out of a formula."""
    largest = max(numbers)
    if not isinstance(largest, Traced):
        return largest
    terms = tuple(dict.fromkeys(term for term in map(term_of, numbers) if not term.is_digits(0)))
    if len(terms) == 1:
        return largest
    made: float = _made(plain(largest), Term(plain(largest), join="max", terms=terms))
    return made


def whole(value: float) -> int:
    """Return a number as a whole one, rounded down."""
    if isinstance(value, int):
        return value
    if not isinstance(value, Traced):
        return int(value)
    made: int = _rounded(value, int(plain(value)))
    return made


def _rounded(value: Traced, result: int) -> Any:
    """Return a result beside a number as that number rounded: down, up, or as it is."""
    if result == plain(value):
        return _made(result, value.term)
    return _made(result, Term(result, join="//" if result < plain(value) else "ceil", terms=(value.term, Term(1))))


def chance_of_any(share: float, tries: int) -> float:
    """Return 1 - (1 - share) ** tries, the chance that one of several tries succeeds; exact for small shares.

    >>> round(chance_of_any(0.25, 2), 4)
    0.4375
    """
    chance: float = -math.expm1(plain(tries) * math.log1p(-plain(share)))
    if not isinstance(share, Traced) and not isinstance(tries, Traced):
        return chance
    made: float = _made(chance, term_of(1 - (1 - share) ** tries))
    return made


_VALUES: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
}


def _joined(join: str, left: Any, right: Any) -> Any:
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return NotImplemented
    value = _VALUES[join](plain(left), plain(right))
    one, other = term_of(left), term_of(right)
    if join in ("/", "//"):
        return value if one.is_digits(0) else _made(value, _divided(one, other, join))
    return _made(value, _simplified(join, one, other) or Term(value, join=join, terms=(one, other)))


def _simplified(join: str, one: Term, other: Term) -> Term | None:
    """Return a sum, difference or product with nothing, zero or one as the other term; none where there is no such."""
    neutral = 1 if join == "*" else 0
    if join == "**":
        return one if other.is_digits(1) else Term(1) if other.is_digits(0) else None
    if other.is_digits(neutral) and join in "+-*":
        return one
    if one.is_digits(neutral) and join in ("+", "*"):
        return other
    if join == "*" and (one.is_digits(0) or other.is_digits(0)):
        return Term(0)
    back = {"+": "-", "-": "+"}.get(join)
    if back and one.join == back and not one.name and one.terms[1] == other:
        return one.terms[0]
    return None


def _divided(one: Term, other: Term, join: str) -> Term:
    """Return a quotient, shortened by a factor that stands in both; plain division where that leaves no rest."""
    if one.join == "*" and not one.name:
        factor, last = one.terms
        if last == other and (join == "/" or factor.is_whole):
            return factor
        if last.join == "/" and not last.name and last.terms[0] == other:  # a rank's share of what is divided by
            return _divided(factor, last.terms[1], join)
    if other.is_digits(1) and (join == "/" or one.is_whole):
        return one
    if join != "/" and isinstance(one.value, int) and one.value % other.value == 0:
        join = "/"
    exact = one.value / other.value
    value = exact if join == "/" else -(-one.value // other.value) if join == "ceil" else one.value // other.value
    return Term(value, join=join, terms=(one, other))
