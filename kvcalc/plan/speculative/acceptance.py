"""Acceptance of drafted tokens, in each form that engines and papers print, and the one form that formulas take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

from kvcalc.core.errors import InputError, about
from kvcalc.core.records import dataclass
from kvcalc.core.speculation import DraftTree, chain
from kvcalc.core.units import counted
from kvcalc.cost.speculation import (
    acceptance_by_position,
    acceptance_from_counts,
    expected_tokens_of_tree,
    rate_for,
    tree_acceptance,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Unpack

__all__ = ["FORMS", "Acceptance", "AcceptanceForms", "draft_tree", "read_acceptance"]

_MAX_POSITIONS = 256
_LONGEST_NUMBER = 30
_HINT = "a rate (0.8) or counts: drafts:accepted at each position (1000:814,602)"
_LIST_HINT = (
    "--acceptance-by-position as engines print it, of all drafts (0.543,0.357,0.264); "
    "--acceptance-conditional where each is given that those before it were accepted (0.543,0.657,0.739)"
)
_RATE_HINT = "accepted over drafted tokens, the target's own (bonus) token not counted: from 0 to 1"
_LENGTH_HINT = "mean tokens per pass, the bonus token included: from 1 to one more than the draft"


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
        if not 1 <= len(self.rates) <= (1 if self.constant else _MAX_POSITIONS):
            raise InputError(f"acceptance of {len(self.rates)} positions; from 1 to {_MAX_POSITIONS}", hint=_HINT)
        for rate in self.rates:
            if not 0 <= rate <= 1:  # NaN is not either
                raise InputError(f"acceptance must be from 0 to 1, not {rate:g}", hint=_HINT)

    def constant_rate(self, tree: DraftTree) -> float:
        """Return the constant rate that gives a draft as many tokens a pass."""
        if self.constant:
            return self.rates[0]
        by_depth = self.by_depth(len(tree.level_widths))
        rate = rate_for(expected_tokens_of_tree(tree, tree_acceptance(tree, by_depth)), tree)
        return 1.0 if rate is None else rate

    @property
    def positions(self) -> int | None:
        """Positions for which it is known; none where one rate holds for all."""
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


class AcceptanceForms(TypedDict, total=False):
    """The forms in which acceptance is given, one of them at a time; `read_acceptance` says what each means."""

    acceptance: float | str | Acceptance | None
    acceptance_by_position: str | Sequence[float] | None
    acceptance_conditional: str | Sequence[float] | None
    accepted_length: float | None
    draft_rate: float | None


FORMS = tuple(AcceptanceForms.__annotations__)


def read_acceptance(tree: DraftTree | None = None, **forms: Unpack[AcceptanceForms]) -> Acceptance:
    """Return acceptance from the one form of it that is given.

    - ``acceptance``: a rate for all positions; or counts, ``drafts:accepted at each position``.
    - ``acceptance_by_position``: the share of all drafts of which each position was accepted, as vLLM prints it.
    - ``acceptance_conditional``: for each position the probability that it is accepted if all before it were.
    - ``accepted_length``: tokens of a pass on average, the target's own (bonus) token included: vLLM's mean acceptance
      length, SGLang's accept length. It becomes the constant rate that gives as many.
    - ``draft_rate``: accepted over drafted tokens, which vLLM prints as average draft acceptance rate. Likewise.

    Args:
        tree: the draft for which the last two were measured.
        forms: the acceptance.

    Raises:
        InputError: none or several of them, numbers that cannot be, or no one draft for the last two.

    >>> read_acceptance(acceptance=0.8).rates, read_acceptance(acceptance="100:80,60").rates
    ((0.8,), (0.8, 0.75))
    >>> read_acceptance(acceptance_by_position="0.5, 0.25").rates
    (0.5, 0.5)
    >>> read_acceptance(acceptance_conditional=(0.5, 0.25)).rates
    (0.5, 0.25)
    >>> round(read_acceptance(chain(2), accepted_length=1.75).rates[0], 9)
    0.5
    >>> round(read_acceptance(chain(2), draft_rate=0.375).rates[0], 9)
    0.5
    """
    given = {name: value for name, value in forms.items() if value is not None}
    with about(next(iter(given), "acceptance").replace("_", "-")):
        return _read_form(tree, given, forms)


def _read_form(tree: DraftTree | None, given: Mapping[str, Any], forms: AcceptanceForms) -> Acceptance:
    unknown = sorted(given.keys() - set(FORMS))
    if unknown:
        raise InputError(f"there is no argument {unknown[0]}", hint=f"acceptance is one of {', '.join(FORMS)}")
    if len(given) != 1:
        options = [f"--{name.replace('_', '-')}" for name in given]
        what = f"{' and '.join(options)} say the same thing" if given else "acceptance is missing"
        raise InputError(what, hint=f"one of {', '.join(name.replace('_', '-') for name in FORMS)}")
    if (by_position := forms.get("acceptance_by_position")) is not None:
        return Acceptance(rates=acceptance_by_position(_numbers(by_position, "acceptance-by-position")))
    if (conditional := forms.get("acceptance_conditional")) is not None:
        return Acceptance(rates=_numbers(conditional, "acceptance-conditional"))
    if (length := forms.get("accepted_length")) is not None:
        return _of_length(length, tree, f"accepted-length {length:g}", hint=_LENGTH_HINT)
    if (rate := forms.get("draft_rate")) is not None:
        return _of_length(1 + rate * (tree.nodes if tree else 0), tree, f"draft-rate {rate:g}", hint=_RATE_HINT)
    acceptance = forms["acceptance"]
    return acceptance if isinstance(acceptance, Acceptance) else _rate_or_counts(acceptance)


def draft_tree(gammas: Sequence[int] | None, widths: Sequence[int] | None, nodes: int | None) -> DraftTree | None:
    """Return the one draft that is asked for; none where there are several, or where its best shape is looked for."""
    if nodes is not None:
        return None
    if widths is not None:
        return DraftTree.branching(widths)
    return chain(gammas[0]) if gammas is not None and len(gammas) == 1 else None


def _of_length(tokens: float, tree: DraftTree | None, what: str, *, hint: str) -> Acceptance:
    """Return the constant rate at which a draft gives so many tokens a pass."""
    if tree is None:
        raise InputError(f"{what} is that of drafts of one length", hint="give --gamma, the drafted tokens of a pass")
    rate = rate_for(tokens, tree) if tokens >= 1 else None
    if rate is None:
        raise InputError(f"{what} cannot be for {counted(tree.nodes, 'drafted token')}", hint=hint)
    return Acceptance(rates=(rate,), constant=True)


def _rate_or_counts(given: object) -> Acceptance:
    if isinstance(given, int | float):
        return Acceptance(rates=(given,), constant=True)
    if not isinstance(given, str) or ("," in given and ":" not in given):
        raise InputError(f"acceptance {given} is a list by position, which has two readings", hint=_LIST_HINT)
    drafts, colon, accepted = given.partition(":")
    if colon:
        counts = [_count(part) for part in accepted.split(",")]
        return Acceptance(rates=acceptance_from_counts(_count(drafts), counts))
    return Acceptance(rates=(_rate(given, "acceptance"),), constant=True)


def _numbers(given: str | Sequence[float], what: str) -> tuple[float, ...]:
    return tuple(_rate(part, what) for part in given.split(",")) if isinstance(given, str) else tuple(given)


def _rate(text: str, what: str) -> float:
    try:
        return float(text[:_LONGEST_NUMBER])
    except ValueError:
        raise InputError(f"{what}: {text.strip()[:_LONGEST_NUMBER]!r} is not a number", hint=_HINT) from None


def _count(text: str) -> int:
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) <= _LONGEST_NUMBER):
        raise InputError(f"acceptance: {text.strip()[:_LONGEST_NUMBER]!r} is not a count", hint=_HINT)
    return int(text)
