"""Explaining a pass: each operator's FLOP and bytes, their sums, and the times these take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.units import GIB
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.deployment import memory_needed, rank_weights
from kvcalc.plan.explain.operators import Scene, Spelling, stage_spellings
from kvcalc.plan.explain.text import ASKED, factor, number, profile_source, total
from kvcalc.plan.explain.times import time_steps
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain_decode", "explain_prefill"]

# Fields of an operator with their units, in the order in which they are explained; the first are summed.
_SUMMED = {"flop": "FLOP", "weight_bytes": "B", "kv_read_bytes": "B", "kv_write_bytes": "B", "io_bytes": "B"}
_FIELDS = _SUMMED | {"activation_bytes": "B", "link_bytes": "B", "collective_bytes": "B", "collective_steps": "steps"}
# What is said of an operator that is not spelled out.
_UNKNOWN = ("as forward_cost counts it", "")


def explain_decode(deployment: Deployment, *, batch: int, context: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a decode report."""
    steps = _pass_steps(deployment, decode_step(batch=batch, context=context))
    found = {step.quantity: step.value for step in steps}
    ideal, latency = found["ideal_s"], found.get("latency_s", found["ideal_s"])
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch / ideal_s",
        expression=f"{batch} / {number(ideal)}",
        value=batch / ideal,
        unit="tokens/s",
        sources=(ASKED,),
    )
    alone = ExplainedStep(
        quantity="tokens_per_s_per_sequence",
        formula="1 / latency_s" if "latency_s" in found else "1 / ideal_s",
        expression=f"1 / {number(latency)}",
        value=1 / latency,
        unit="tokens/s",
    )
    spread = _spread_steps(deployment, batch=batch, context=context)
    needed = _needed_step(deployment, batch=batch, tokens=context)
    gpus = deployment.parallel.gpus
    per_memory = ExplainedStep(
        quantity="tokens_per_s_per_gib",
        formula="tokens_per_s / (memory_needed_bytes x GPUs / GiB)",
        expression=f"{number(rate.value)} / ({needed.value} * {gpus} / {GIB})",
        value=rate.value / (needed.value * gpus / GIB),
        unit="tokens/s/GiB",
    )
    return (*steps, *spread, rate, alone, needed, per_memory)


def _spread_steps(deployment: Deployment, *, batch: int, context: int) -> Iterator[ExplainedStep]:
    """Return the ideal times if the fewest or the most experts were touched."""
    if not any(isinstance(block.mlp, Mixture) for block in deployment.model.block_counts):
        return
    routings: tuple[tuple[Routing, str], ...] = (("best", "fewest"), ("worst", "most"))
    for routing, which in routings:
        time = timed_step(deployment, decode_step(batch=batch, context=context), routing=routing).time
        yield ExplainedStep(
            quantity=f"experts.{routing}_s",
            formula=f"max(memory_s, compute_s, link_s) where the tokens touch the {which} experts",
            expression=f"max({number(time.memory_s)}, {number(time.compute_s)}, {number(time.link_s)})",
            value=time.ideal_s,
            unit="s",
        )


def _needed_step(deployment: Deployment, *, batch: int, tokens: int) -> ExplainedStep:
    model = deployment.model
    cache = rank_cache_bytes(model, deployment.formats, deployment.parallel, tokens=tokens, batch=batch)
    return ExplainedStep(
        quantity="memory_needed_bytes",
        formula="weights + cache, on the fullest GPU",
        expression=f"{rank_weights(deployment)} + {cache}",
        value=memory_needed(deployment, tokens=tokens, batch=batch),
        unit="B",
        sources=(*profile_source(model, "blocks"), ASKED),
    )


def explain_prefill(deployment: Deployment, *, batch: int, prompt: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a prefill report."""
    steps = _pass_steps(deployment, prefill_pass(batch=batch, prompt=prompt))
    ideal = next(step.value for step in steps if step.quantity == "ideal_s")
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch x prompt / ideal_s",
        expression=f"{batch} * {prompt} / {number(ideal)}",
        value=batch * prompt / ideal,
        unit="tokens/s",
        sources=(ASKED,),
    )
    return (*steps, rate, _needed_step(deployment, batch=batch, tokens=prompt))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """An operator of the pass with the numbers behind it; the name says its stage and tells like ones apart."""

    name: str
    cost: OpCost
    spelling: Spelling


def _pass_steps(deployment: Deployment, group: TokenGroup) -> tuple[ExplainedStep, ...]:
    step = timed_step(deployment, group)
    scene = Scene(
        model=deployment.model,
        group=replace(group, sequences=-(-group.sequences // deployment.parallel.data)),
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
        ranks = cost.shares[0][0]
        formula, expression = f"{formula} of one GPU x the {ranks} GPUs of a stage", f"{ranks} * {factor(listed)}"
    for ranks, stages in cost.shares[1:]:
        rest = sum(getattr(op, name) for stage in stages for op in stage)
        formula += f" + those with fewer sequences x {ranks}"
        expression += f" + {ranks} * {number(rest)}"
    return ExplainedStep(
        quantity=name, formula=formula, expression=expression, value=cost.total(name), unit=_SUMMED[name]
    )
