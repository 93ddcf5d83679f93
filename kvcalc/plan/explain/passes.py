"""Explaining a pass: each operator's FLOP and bytes, their sums, and the times these take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.units import GIB, ceil_div
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.decode import decode_row
from kvcalc.plan.deployment import rank_weights
from kvcalc.plan.explain.estimates import estimate_steps
from kvcalc.plan.explain.operators import Scene, Spelling, stage_spellings
from kvcalc.plan.explain.text import ASKED, factor, number, profile_source, total
from kvcalc.plan.explain.times import time_steps
from kvcalc.plan.prefill import prefill_row
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.reports.speed import DecodeRow, PrefillRow, StepSpread
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["explain_decode", "explain_prefill"]

# Fields of an operator with their units, in the order in which they are explained; the first are summed.
_SUMMED = {"flop": "FLOP", "weight_bytes": "B", "kv_read_bytes": "B", "kv_write_bytes": "B", "io_bytes": "B"}
_FIELDS = _SUMMED | {"activation_bytes": "B", "link_bytes": "B", "collective_bytes": "B", "collective_steps": "steps"}
# What is said of an operator that is not spelled out.
_UNKNOWN = ("as forward_cost counts it", "")


def explain_decode(
    deployment: Deployment, *, batch: int, context: int, calibration: Calibration | None = None
) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a decode report."""
    group = decode_step(batch=batch, context=context)
    step, row = timed_step(deployment, group), decode_row(deployment, batch=batch, context=context)
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch / ideal_s",
        expression=f"{batch} / {number(row.ideal_s)}",
        value=row.tokens_per_s,
        unit="tokens/s",
        sources=(ASKED,),
    )
    alone = ExplainedStep(
        quantity="tokens_per_s_per_sequence",
        formula="1 / latency_s" if len(step.cost.stages) > 1 else "1 / ideal_s",
        expression=f"1 / {number(step.time.latency_s)}",
        value=row.tokens_per_s_per_sequence,
        unit="tokens/s",
    )
    per_memory = ExplainedStep(
        quantity="tokens_per_s_per_gib",
        formula="tokens_per_s / (memory_needed_bytes x GPUs / GiB)",
        expression=f"{number(row.tokens_per_s)} / ({row.memory_needed_bytes} * {deployment.parallel.gpus} / {GIB})",
        value=row.tokens_per_s_per_gib,
        unit="tokens/s/GiB",
    )
    spread = () if row.experts is None else _spread_steps(deployment, group, row.experts)
    return (
        *_pass_steps(deployment, group, step),
        *spread,
        rate,
        alone,
        _needed_step(deployment, row, tokens=context),
        per_memory,
        *(() if calibration is None else estimate_steps(deployment, step, calibration)),
    )


def _spread_steps(deployment: Deployment, group: TokenGroup, spread: StepSpread) -> Iterator[ExplainedStep]:
    """Return the ideal times if the fewest or the most experts were touched."""
    routings: tuple[tuple[Routing, str, float], ...] = (
        ("best", "fewest", spread.best_s),
        ("worst", "most", spread.worst_s),
    )
    for routing, which, ideal_s in routings:
        time = timed_step(deployment, group, routing=routing).time
        yield ExplainedStep(
            quantity=f"experts.{routing}_s",
            formula=f"max(memory_s, compute_s, link_s) where the tokens touch the {which} experts",
            expression=f"max({number(time.memory_s)}, {number(time.compute_s)}, {number(time.link_s)})",
            value=ideal_s,
            unit="s",
        )


def _needed_step(deployment: Deployment, row: DecodeRow | PrefillRow, *, tokens: int) -> ExplainedStep:
    model = deployment.model
    cache = rank_cache_bytes(model, deployment.formats, deployment.parallel, tokens=tokens, batch=row.batch)
    return ExplainedStep(
        quantity="memory_needed_bytes",
        formula="weights + cache, on the fullest GPU",
        expression=f"{rank_weights(deployment)} + {cache}",
        value=row.memory_needed_bytes,
        unit="B",
        sources=(*profile_source(model, "blocks"), ASKED),
    )


def explain_prefill(
    deployment: Deployment, *, batch: int, prompt: int, calibration: Calibration | None = None
) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a prefill report."""
    group = prefill_pass(batch=batch, prompt=prompt)
    row = prefill_row(deployment, batch=batch, prompt=prompt)
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch x prompt / ideal_s",
        expression=f"{batch} * {prompt} / {number(row.ideal_s)}",
        value=row.tokens_per_s,
        unit="tokens/s",
        sources=(ASKED,),
    )
    step = timed_step(deployment, group)
    estimate = () if calibration is None else estimate_steps(deployment, step, calibration)
    return (*_pass_steps(deployment, group, step), rate, _needed_step(deployment, row, tokens=prompt), *estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """An operator of the pass with the numbers behind it; the name says its stage and tells like ones apart."""

    name: str
    cost: OpCost
    spelling: Spelling


def _pass_steps(deployment: Deployment, group: TokenGroup, step: TimedStep) -> tuple[ExplainedStep, ...]:
    scene = Scene(
        model=deployment.model,
        group=replace(group, sequences=ceil_div(group.sequences, deployment.parallel.data)),
        all_tokens=group.tokens,
        formats=deployment.formats,
        parallel=deployment.parallel,
    )
    operators = list(_operators(step.cost, scene))
    steps: list[ExplainedStep] = []
    for name in _FIELDS:
        steps += _operator_steps(deployment, operators, name)
        if name in _SUMMED:
            steps.append(_total_step(step.cost, operators, name))
    return (*steps, *time_steps(deployment, step))


def _operators(cost: StepCost, scene: Scene) -> Iterator[_Operator]:
    several = len(cost.stages) > 1
    for index, (ops, spellings) in enumerate(zip(cost.stages, stage_spellings(scene), strict=True), 1):
        waiting: dict[str, list[Spelling]] = {}
        for spelling in spellings:
            waiting.setdefault(spelling.name, []).append(spelling)
        seen: dict[str, int] = {}
        for op in ops:
            seen[op.name] = seen.get(op.name, 0) + 1
            alike = waiting.get(op.name)
            name = (f"stage{index}." if several else "") + op.name
            yield _Operator(
                name=name if seen[op.name] == 1 else f"{name}#{seen[op.name]}",
                cost=op,
                spelling=alike.pop(0) if alike else Spelling(name=op.name, path="blocks"),
            )


def _operator_steps(deployment: Deployment, operators: Sequence[_Operator], name: str) -> Iterator[ExplainedStep]:
    for operator in operators:
        value = getattr(operator.cost, name)
        if not value:
            continue
        formula, expression = operator.spelling.terms.get(name, _UNKNOWN)
        # the weights of a matrix are read once, whatever the batch
        asked = name not in ("weight_bytes", "collective_steps") or operator.cost.part in ("embedding", "experts")
        yield ExplainedStep(
            quantity=f"{operator.name}.{name}",
            formula=formula,
            expression=expression or number(value),
            value=value,
            unit=_FIELDS[name],
            sources=(*profile_source(deployment.model, operator.spelling.path), *([ASKED] if asked else ())),
        )


def _total_step(cost: StepCost, operators: Sequence[_Operator], name: str) -> ExplainedStep:
    values = (getattr(operator.cost, name) for operator in operators)
    listed = total(number(value) for value in values if value)
    formula, expression = "sum over the operators", listed
    if cost.ranks > 1:
        ranks = cost.rank_kinds[0][0]
        formula, expression = f"{formula} of one GPU x the {ranks} GPUs of a stage", f"{ranks} * {factor(listed)}"
    for ranks, stages in cost.rank_kinds[1:]:
        rest = sum(getattr(op, name) for stage in stages for op in stage)
        formula += f" + those with fewer sequences x {ranks}"
        expression += f" + {ranks} * {number(rest)}"
    return ExplainedStep(
        quantity=name, formula=formula, expression=expression, value=cost.total(name), unit=_SUMMED[name]
    )
