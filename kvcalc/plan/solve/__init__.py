"""Solving for the unknown: the largest batch, the longest context, the fewest GPUs, the rate that is needed.

Every trial is a question that `fit`, `decode`, `prefill` and `speculate` answer: nothing is computed here but where to
look (`search`) and what must hold there (`question`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.core.reports.solve import SolveConstraint, SolveReport, SolveRow
from kvcalc.core.units import counted
from kvcalc.plan.contexts import check_batch, check_context, sequence_tokens
from kvcalc.plan.decode import decode_row
from kvcalc.plan.deployment import started
from kvcalc.plan.formats import format_names
from kvcalc.plan.room import BudgetTerms
from kvcalc.plan.solve.question import NO_TARGETS, Drafting, Question, Targets, Trial
from kvcalc.plan.solve.search import SOLVERS
from kvcalc.plan.steps import pipeline_notes

if TYPE_CHECKING:
    from kvcalc.core.reports.speed import DecodeRow
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.solve.question import Check, Solution

__all__ = ["UNKNOWNS", "Drafting", "Targets", "solve_report"]

# The unknowns, with the unit of the answer and which end of what meets the constraints it is.
UNKNOWNS: dict[str, tuple[str, str]] = {
    "batch": ("sequences", "largest"),
    "context": ("tokens", "longest"),
    "gpus": ("GPUs", "fewest"),
    "bandwidth": ("bytes/s", "least"),
    "price": ("USD/hour", "most"),
    "acceptance": ("share", "least"),
}
# From here on numbers are told without decimals.
_MIN_WHOLE = 100_000


def solve_report(
    deployment: Deployment,
    unknown: str,
    *,
    context: int | None = None,
    batch: int = 1,
    targets: Targets = NO_TARGETS,
    engine: str | None = None,
    options: EngineOptions | None = None,
    terms: BudgetTerms | None = None,
    drafting: Drafting | None = None,
) -> SolveReport:
    """Return the value of one quantity at the edge of what memory, speed and cost allow.

    Args:
        deployment: model, accelerator, formats and parallel sizes; those of an unknown number of GPUs are searched.
        unknown: what is left open.
        context: tokens of each sequence; 4,096 or the model's limit where left out.
        batch: sequences.
        targets: what must be reached besides fitting into memory.
        engine: another engine whose memory model is used.
        options: that engine's options.
        terms: terms of the budget that are given instead of computed.
        drafting: how is drafted, where the acceptance is the unknown.

    Raises:
        InputError: sizes that make no sense, or nothing that bounds the unknown.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    if unknown not in UNKNOWNS:
        hint = did_you_mean(unknown, UNKNOWNS) or f"it can be {', '.join(UNKNOWNS)}"
        raise InputError(f"{unknown!r} cannot be solved for", hint=hint)
    check_batch(batch)
    deployment = started(deployment, engine or deployment.served_by, options)
    tokens = sequence_tokens(deployment, context)
    notes = check_context(deployment.model, tokens)
    if unknown == "acceptance":
        targets = replace(targets, speedup=targets.speedup or 1.0)
    elif targets.speedup is not None:
        raise InputError("a speed-up bounds the acceptance alone", hint="leave --acceptance as ?")
    question = Question(
        targets=targets,
        terms=terms or BudgetTerms(),
        memory=unknown not in ("bandwidth", "price", "acceptance"),
        starts_as_asked=unknown == "context" or context is not None,
        drafting=drafting or Drafting(),
    )
    start = Trial(deployment=deployment, batch=batch, context=tokens)
    solution = SOLVERS[unknown](start, question)
    return SolveReport(
        engine=deployment.served_by,
        formats=format_names(deployment.formats),
        rows=(_row(unknown, solution, question),),
        notes=(
            *notes,
            *_notes(question, solution),
            *pipeline_notes(solution.trial.deployment),
            *deployment.model.notes,
        ),
    )


def _notes(question: Question, solution: Solution) -> tuple[str, ...]:
    deployment = solution.trial.deployment
    limit, engine = deployment.model.context_limit, deployment.served_by
    unasked = deployment.options.max_model_len is None and question.memory
    if not unasked or limit is None or limit <= solution.trial.context or engine not in ("vllm", "sglang"):
        return deployment.notes
    if question.starts_as_asked:
        note = (
            f"started for {counted(solution.trial.context, 'token')}; without --max-model-len {engine} takes {limit:,}"
        )
    else:
        note = f"{engine} is started for the model's {limit:,} tokens unless --context or --max-model-len says fewer"
    return (*deployment.notes, note)


def _row(unknown: str, solution: Solution, question: Question) -> SolveRow:
    trial = solution.trial
    deployment, parallel = trial.deployment, trial.deployment.parallel
    here = question.checks(trial)
    there = {check.quantity: check for check in question.checks(solution.beyond)} if solution.beyond is not None else {}
    failing = {check.quantity for check in here if not check.holds}
    failing = failing or {name for name, check in there.items() if not check.holds}
    binding = [check.quantity for check in here if check.quantity in failing] or [solution.stop] * bool(solution.stop)
    speed: DecodeRow | None = None
    if deployment.hardware is not None:
        speed = decode_row(deployment, batch=trial.batch, context=trial.context)
    unit, extreme = UNKNOWNS[unknown]
    drafting = question.drafting if unknown == "acceptance" else None
    drafted = None if drafting is None else drafting.outcome(trial)
    fit = question.fit(trial if drafting is None or drafted is None else drafting.in_memory(trial, drafted))
    return SolveRow(
        unknown=unknown,
        answer=solution.answer,
        unit=unit,
        extreme=extreme,
        binding=tuple(binding),
        reason=_reason(unknown, here, there, solution),
        model=deployment.model.name,
        gpu="" if deployment.hardware is None else deployment.hardware.name,
        gpus=parallel.gpus,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        expert=parallel.expert,
        data=parallel.data,
        batch=trial.batch,
        context=trial.context,
        fits=fit.holds,
        misfit=fit.reason,
        tokens_per_s=None if speed is None else speed.tokens_per_s,
        tokens_per_s_per_sequence=None if speed is None else speed.tokens_per_s_per_sequence,
        usd_per_million_tokens=None if speed is None else speed.usd_per_million_tokens,
        acceptance=trial.acceptance if unknown == "acceptance" else None,
        gamma=None if drafted is None else drafted.gamma,
        expected_tokens_per_pass=None if drafted is None else drafted.expected_tokens,
        constraints=tuple(
            SolveConstraint(
                quantity=check.quantity,
                relation=check.relation,
                target=check.target,
                reached=check.reached,
                beyond=there[check.quantity].reached if check.quantity in there else None,
                beyond_target=there[check.quantity].target if check.quantity in there else None,
                holds=check.holds,
                binds=check.quantity in binding,
                reason=check.reason or (there[check.quantity].reason if check.quantity in there else ""),
            )
            for check in here
        ),
    )


def _reason(unknown: str, here: list[Check], there: dict[str, Check], solution: Solution) -> str:
    """Name the limit at the answer, or the target that cannot be met."""
    if unknown == "gpus" and solution.answer is None and solution.stop:
        return solution.stop  # numbers of GPUs that could not be tried: what stops is not the one that was
    missed = [check for check in here if not check.holds]
    beyond = [check for check in there.values() if not check.holds]
    if not missed and not beyond:
        return solution.stop
    if not missed and unknown in ("bandwidth", "price", "acceptance"):
        return f"{' and '.join(check.quantity for check in beyond)} would miss the target by a little"
    reasons = "; ".join(
        check.reason
        or f"{check.quantity} would be {_digits(check.reached)}, not {check.relation} {_digits(check.target)}"
        for check in missed or beyond
    )
    fewer = solution.beyond.deployment.parallel.gpus if solution.beyond is not None else 0
    return f"on {fewer}: {reasons}" if unknown == "gpus" and not missed else reasons


def _digits(value: float | None) -> str:
    """Return six digits, never as a power of ten unless it is a small number."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= _MIN_WHOLE else f"{value:.6g}"
