"""Rules that people quote, beside the exact answer: what they say, and where they mislead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.speculative import QuotedRule
from kvcalc.core.units import number_text
from kvcalc.cost.parameters import parameters
from kvcalc.cost.speculation import expected_tokens_at_rate, speedup

if TYPE_CHECKING:
    from kvcalc.plan.speculative.passes import Outcome, Passes

__all__ = ["quoted_rules", "size_ratio"]

_QUOTED_SHARE = 0.1


def size_ratio(passes: Passes, gamma: int) -> float:
    """Return the parameters of what runs at a step of the draft over those of the target; 0 where nothing runs."""
    runs = passes.drafter.runs(gamma)
    if runs is None:
        return 0.0
    return sum(parameters(runs.model).values()) / sum(parameters(passes.target.model).values())


def quoted_rules(passes: Passes, outcome: Outcome, best: Outcome, *, rate: float, batch: int) -> tuple[QuotedRule, ...]:
    """Return the rules for a round whose exact outcome is known.

    Args:
        passes: target and draft.
        outcome: the round.
        best: the round of the length that is fastest.
        rate: the constant rate of acceptance that gives as many tokens.
        batch: sequences.
    """
    times, exact, gamma, steps = outcome.times, outcome.speedup, outcome.gamma, outcome.times.steps
    size, c, v = size_ratio(passes, gamma), outcome.times.draft_ratio, outcome.times.verify_ratio
    gained = speedup(expected=1 + rate * gamma, gamma=steps, draft_ratio=size, verify_ratio=1)
    free = speedup(expected=outcome.expected_tokens, gamma=steps, draft_ratio=c, verify_ratio=1)
    one = speedup(expected=expected_tokens_at_rate(rate, 1), gamma=min(steps, 1), draft_ratio=c, verify_ratio=1)

    def rule(name: str, predicted: float | None, *, pays: bool, why: str, truth: float = exact) -> QuotedRule:
        return QuotedRule(name=name, speedup=predicted, pays=pays, agrees=pays == (truth > 1), why=why)

    costs = f"a verification takes v = {_three(v)} at batch {number_text(batch)}"
    rules = [
        rule(
            "acceptance x gamma against gamma x size of the draft",
            gained,
            pays=gained > 1,
            why=f"{_ended(outcome.expected_tokens, 1 + rate * gamma)}{_sizes(size, c)}; {costs}",
        ),
        rule(
            "verification is free (Leviathan et al., theorem 3.8): E / (gamma c + 1)",
            free,
            pays=free > 1,
            why=f"{costs}; the rule is the same at every batch",
        ),
        rule(
            "some gamma pays if acceptance > c (corollary 3.9): at least (1 + alpha) / (1 + c)",
            one,
            pays=rate > c,
            why=f"acceptance {_three(rate)} against c = {_three(c)}; {costs}; the best gamma is {best.gamma}, "
            f"{_three(best.speedup)} times",
            truth=best.speedup,
        ),
    ]
    if times.steps:
        rules.append(
            rule(
                "draft at most 1/10 of the target's size",
                None,
                pays=size <= _QUOTED_SHARE,
                why=f"size is {_three(size)}, a step {_three(c)} of the target's; "
                "it knows neither acceptance nor batch",
            )
        )
    return tuple(rules)


def _three(value: float) -> str:
    return f"{value:.3g}"


def _ended(exact: float, quoted: float) -> str:
    """Return the rejections that the rule overlooks; nothing where it counts as many tokens."""
    if _three(exact) == _three(quoted):
        return ""
    return f"a rejection ends the draft: {_three(exact)} tokens per pass, not {_three(quoted)}; "


def _sizes(size: float, c: float) -> str:
    if not size:
        return "nothing runs for a draft"
    return f"a draft of {_three(size)} of the size takes {_three(c)} of the time"
