"""Explaining speculation: the passes of a round, what a round gives, and what it adds to the memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.sums import added
from kvcalc.core.traced import digits, named, term_of
from kvcalc.core.workload import decode_step
from kvcalc.cost.speculation import expected_tokens, expected_tokens_of_tree, speedup, tree_acceptance
from kvcalc.plan.contexts import default_context
from kvcalc.plan.explain.text import ASKED, total
from kvcalc.plan.explain.times import time_steps
from kvcalc.plan.speculative.limits import batch_limit
from kvcalc.plan.speculative.passes import draft_memory
from kvcalc.plan.speculative.report import ask
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.speculation import DraftTree
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.options import SpeculationOptions
    from kvcalc.plan.speculative.passes import Outcome, Passes, Speculation

__all__ = ["explain_speculation"]

_LEVIATHAN = "Leviathan et al. 2023, arXiv 2211.17192, equation 1 and theorem 3.8"
_TREES = "Chen et al. 2024 (Sequoia), arXiv 2402.12374, section 3.1"


def explain_speculation(
    target: Deployment,
    draft: Deployment | None,
    options: SpeculationOptions,
    *,
    batch: int,
    context: int | None,
    calibration: Calibration | None = None,
) -> tuple[ExplainedStep, ...]:
    """Return the steps behind the first row of a speculation report, which has the first length asked for."""
    length = default_context(target.model, target.engine) if context is None else context
    asked = ask(target, draft, options, calibration)
    outcome = asked.asked_for(batch, length, options.gammas[0] if options.gammas else None)
    by_depth = options.acceptance.by_depth(outcome.gamma)
    limit = batch_limit(asked, length, options.gammas[0] if options.gammas else None).break_even_batch
    return (
        *_pass_steps(asked.passes, outcome.tree, batch=batch, context=length),
        *_round_steps(outcome, by_depth, constant=options.acceptance.constant),
        *_estimate_steps(asked.passes, outcome, batch=batch, context=length),
        _rate_step(outcome, batch),
        *_break_even_steps(outcome, limit),
        _best_step(asked, batch, length),
        _memory_step(asked.passes, outcome.tree, batch=batch, context=length),
    )


def _pass_steps(passes: Passes, tree: DraftTree, *, batch: int, context: int) -> Iterator[ExplainedStep]:
    """Return the times of a plain step, a verification and each kind of step of the draft."""
    yield from _timed("plain", passes.target, batch, context, 1)
    yield from _timed("verify", passes.target, batch, context, tree.nodes + 1)
    runs = passes.drafter.runs(len(tree.level_widths))
    if runs is None:
        return
    steps = passes.drafter.steps(tree)
    for tokens in dict.fromkeys(steps):
        yield from _timed(_draft_name(tokens), runs, batch, context, tokens)
    times = passes.draft_times(batch, context, tree)
    yield ExplainedStep(
        quantity="draft_s",
        formula="sum of the draft's steps",
        expression=total(digits(time.latency_s) for time in times),
        value=added(time.latency_s for time in times),
        unit="s",
    )


def _draft_name(tokens: int) -> str:
    return "draft" if tokens == 1 else f"draft of {tokens}"


def _timed(name: str, runs: Deployment, batch: int, context: int, query_tokens: int) -> Iterator[ExplainedStep]:
    group = decode_step(batch=batch, context=context, query_tokens=query_tokens)
    for step in time_steps(runs, timed_step(runs, group)):
        yield replace(step, quantity=f"{name}.{step.quantity}")


def _round_steps(outcome: Outcome, by_depth: Sequence[float], *, constant: bool) -> Iterator[ExplainedStep]:
    """Explain the tokens of a round, and its time over that of a plain step."""
    times = outcome.times
    gain = term_of(
        speedup(
            expected=named(outcome.expected_tokens, "E"),
            gamma=named(times.steps, "steps"),
            draft_ratio=named(times.draft_ratio, "c"),
            verify_ratio=named(times.verify_ratio, "v"),
        )
    )
    drafted = f"{digits(times.draft_s)} / {times.steps} / {digits(times.plain_s)}"
    yield ExplainedStep(
        quantity="draft_ratio",
        formula="c = draft_s / steps / plain_s" if times.steps else "c = 0: no pass drafts",
        expression=drafted if times.steps else "0",
        value=times.draft_ratio,
        unit="plain steps",
    )
    yield ExplainedStep(
        quantity="verify_ratio",
        formula="v = verify_s / plain_s",
        expression=f"{digits(times.verify_s)} / {digits(times.plain_s)}",
        value=times.verify_ratio,
        unit="plain steps",
    )
    yield _expected_step(outcome, by_depth, constant=constant)
    yield ExplainedStep(
        quantity="break_even_tokens_per_pass",
        formula="steps x c + v, which E reaches at the break-even acceptance",
        expression=f"{times.steps} * {digits(times.draft_ratio)} + {digits(times.verify_ratio)}",
        value=times.steps * times.draft_ratio + times.verify_ratio,
        unit="tokens",
        sources=(_LEVIATHAN,),
    )
    yield ExplainedStep(
        quantity="speedup",
        formula=gain.formula,
        expression=gain.expression,
        value=outcome.speedup,
        unit="times",
        sources=(_LEVIATHAN,),
    )


def _estimate_steps(passes: Passes, outcome: Outcome, *, batch: int, context: int) -> Iterator[ExplainedStep]:
    """Explain the estimate of a round: the host's work, and the speed-up; nothing where there is none."""
    estimated = passes.estimated
    if estimated is None:
        return
    times, terms = passes.ratios(batch, context, outcome.tree, "estimate_s"), estimated.terms
    calibration = f"calibration {estimated.calibration.name}"
    yield ExplainedStep(
        quantity="estimate_host_s",
        formula="round_s + batch x sequence_s",
        expression=f"{digits(terms.round_s)} + {batch} * {digits(terms.sequence_s)}",
        value=times.host_s,
        unit="s",
        sources=(f"rounds of {terms.engine}",),
    )
    yield ExplainedStep(
        quantity="estimate_speedup",
        formula="E x plain / (draft + verification + host), passes at the rates reached",
        expression=f"{digits(outcome.expected_tokens)} * {digits(times.plain_s)} / "
        f"({digits(times.draft_s)} + {digits(times.verify_s)} + {digits(times.host_s)})",
        value=times.speedup(outcome.expected_tokens),
        unit="times",
        sources=(calibration,),
    )


def _rate_step(outcome: Outcome, batch: int) -> ExplainedStep:
    times = outcome.times
    return ExplainedStep(
        quantity="tokens_per_s",
        formula="batch x E / (draft_s + verify_s)",
        expression=f"{batch} * {digits(outcome.expected_tokens)} / "
        f"({digits(times.draft_s)} + {digits(times.verify_s)})",
        value=batch * outcome.expected_tokens / (times.draft_s + times.verify_s),
        unit="tokens/s",
        sources=(ASKED,),
    )


def _break_even_steps(outcome: Outcome, limit: int | None) -> Iterator[ExplainedStep]:
    """Explain the searched numbers where they are found: there is no closed form to put numbers in."""
    rate = outcome.times.break_even(outcome.tree)
    if rate is not None:
        yield ExplainedStep(
            quantity="break_even_acceptance",
            formula="the alpha at which E(alpha) = steps x c + v, by bisection",
            expression=digits(rate),
            value=rate,
            unit="of the drafted tokens",
            sources=(_LEVIATHAN,),
        )
    if limit is not None:
        yield ExplainedStep(
            quantity="break_even_batch",
            formula="the last batch at which the speed-up is above 1, by bisection; 0 where there is none",
            expression=str(limit),
            value=limit,
            unit="sequences",
            sources=(ASKED,),
        )


def _best_step(asked: Speculation, batch: int, context: int) -> ExplainedStep:
    rounds = [asked.at(batch, context, gamma, kind=asked.basis) for gamma in asked.gammas]
    best = asked.best(batch, context)
    pairs = ", ".join(f"({digits(each.speedup)}, -{each.gamma})" for each in rounds)
    return ExplainedStep(
        quantity="best_gamma",
        formula="the gamma with the greatest of (speed-up, gamma), the shortest of equals; 0 where none is above 1",
        expression=f"-max((1, 0), {pairs})[1]",
        value=best.gamma if best.speedup > 1 else 0,
        unit="tokens",
        sources=(ASKED,),
    )


def _expected_step(outcome: Outcome, by_depth: Sequence[float], *, constant: bool) -> ExplainedStep:
    rates = [named(rate, f"a{depth}") for depth, rate in enumerate(by_depth, 1)]
    if outcome.tree.is_chain:
        formula, source = "E = 1 + a1 + a1 a2 + ...", _LEVIATHAN
        expression = term_of(expected_tokens(rates)).expression
    else:
        formula, source = "E = 1 + the sum over the nodes of the product of acceptances that lead to them", _TREES
        by_node = tree_acceptance(outcome.tree, rates)
        expression = term_of(expected_tokens_of_tree(outcome.tree, by_node)).expression
    if constant and outcome.tree.is_chain and by_depth[0] < 1:
        formula = "E = (1 - alpha^(gamma + 1)) / (1 - alpha)"
        expression = f"(1 - {digits(by_depth[0])} ** {outcome.gamma + 1}) / (1 - {digits(by_depth[0])})"
    return ExplainedStep(
        quantity="expected_tokens_per_pass",
        formula=formula,
        expression=expression,
        value=outcome.expected_tokens,
        unit="tokens",
        sources=(source, ASKED),
    )


def _memory_step(passes: Passes, tree: DraftTree, *, batch: int, context: int) -> ExplainedStep:
    added = draft_memory(passes.target, passes.drafter, tree, batch=batch, context=context)
    return ExplainedStep(
        quantity="memory.total_bytes",
        formula="weights of the draft + its cache + slots for draft tokens, per GPU",
        expression=f"{added.weight_bytes} + {added.kv_bytes} + {added.lookahead_bytes}",
        value=added.total_bytes,
        unit="B",
    )
