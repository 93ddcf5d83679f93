"""Explaining a pass: each operator's FLOP and bytes, their sums, and the times these take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.sums import added
from kvcalc.core.traced import digits, named, term_of
from kvcalc.core.units import GIB
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.decode import decode_row
from kvcalc.plan.explain.estimates import estimate_steps
from kvcalc.plan.explain.named import named_formats, named_model, named_parallel
from kvcalc.plan.explain.text import ASKED, factor, profile_source, total
from kvcalc.plan.explain.times import time_steps
from kvcalc.plan.prefill import prefill_row
from kvcalc.plan.rank_memory import rank_weights
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.speed import DecodeRow, PrefillRow, StepSpread
    from kvcalc.core.workload import Routing, TokenGroup
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.steps import TimedStep

__all__ = ["explain_decode", "explain_prefill"]

# Fields of an operator with their units, in the order in which they are explained; the first are summed.
_SUMMED = {"flop": "FLOP", "weight_bytes": "B", "kv_read_bytes": "B", "kv_write_bytes": "B", "io_bytes": "B"}
_FIELDS = _SUMMED | {"activation_bytes": "B", "link_bytes": "B", "collective_bytes": "B", "collective_steps": "steps"}
# The fields of the model that the sizes of operators outside the layers come from.
_PATHS = {
    "embedding": "embeddings",
    "pipeline": "hidden_size",
    "vectors": "blocks",
    "final_vectors": "vector_parameters",
    "other": "matrix_parameters",
    "head": "head",
}


def explain_decode(
    deployment: Deployment, *, batch: int, context: int, calibration: Calibration | None = None
) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a decode report."""
    group = decode_step(batch=batch, context=context)
    sizes = decode_step(batch=named(batch, "batch"), context=named(context, "context"))
    step, row = timed_step(deployment, group), decode_row(deployment, batch=batch, context=context)
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch / ideal_s",
        expression=f"{batch} / {digits(row.ideal_s)}",
        value=row.tokens_per_s,
        unit="tokens/s",
        sources=(ASKED,),
    )
    alone = ExplainedStep(
        quantity="tokens_per_s_per_sequence",
        formula="1 / latency_s" if len(step.cost.stages) > 1 else "1 / ideal_s",
        expression=f"1 / {digits(step.time.latency_s)}",
        value=row.tokens_per_s_per_sequence,
        unit="tokens/s",
    )
    per_memory = ExplainedStep(
        quantity="tokens_per_s_per_gib",
        formula="tokens_per_s / (memory_needed_bytes x GPUs / GiB)",
        expression=f"{digits(row.tokens_per_s)} / ({row.memory_needed_bytes} * {deployment.parallel.gpus} / {GIB})",
        value=row.tokens_per_s_per_gib,
        unit="tokens/s/GiB",
    )
    spread = () if row.experts is None else _spread_steps(deployment, group, row.experts)
    return (
        *_pass_steps(deployment, sizes, step),
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
            expression=f"max({digits(time.memory_s)}, {digits(time.compute_s)}, {digits(time.link_s)})",
            value=ideal_s,
            unit="s",
        )


def _needed_step(deployment: Deployment, row: DecodeRow | PrefillRow, *, tokens: int) -> ExplainedStep:
    model = deployment.model
    cache = rank_cache_bytes(model, deployment.formats, deployment.parallel, tokens=tokens, batch=row.batch)
    return ExplainedStep(
        quantity="memory_needed_bytes",
        formula="weights + KV cache, per GPU",
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
        expression=f"{batch} * {prompt} / {digits(row.ideal_s)}",
        value=row.tokens_per_s,
        unit="tokens/s",
        sources=(ASKED,),
    )
    step = timed_step(deployment, group)
    estimate = () if calibration is None else estimate_steps(deployment, step, calibration)
    sizes = prefill_pass(batch=named(batch, "batch"), prompt=named(prompt, "prompt"))
    return (*_pass_steps(deployment, sizes, step), rate, _needed_step(deployment, row, tokens=prompt), *estimate)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operator:
    """An operator of the pass.

    Args:
        name: says its stage and tells like ones apart.
        path: the model's field that its sizes come from.
        cost: what it costs.
        spelled: the same in numbers that remember how they came about.
    """

    name: str
    path: str
    cost: OpCost
    spelled: OpCost


def _pass_steps(deployment: Deployment, sizes: TokenGroup, step: TimedStep) -> tuple[ExplainedStep, ...]:
    operators = list(_operators(deployment, sizes, step.cost))
    steps: list[ExplainedStep] = []
    for name in _FIELDS:
        steps += _operator_steps(deployment, operators, name)
        if name in _SUMMED:
            steps.append(_total_step(step.cost, operators, name))
    return (*steps, *time_steps(deployment, step))


def _operators(deployment: Deployment, sizes: TokenGroup, cost: StepCost) -> Iterator[_Operator]:
    """Yield the operators of a pass, whose costs the same formulas give again from sizes with names."""
    model, formats = named_model(deployment.model), named_formats(deployment.formats)
    spelled = forward_cost(model, (sizes,), formats, parallel=named_parallel(deployment.parallel))
    several = len(cost.stages) > 1
    for index, stage in enumerate(zip(cost.stages, spelled.stages, strict=True), 1):
        seen: dict[str, int] = {}
        for op, same in zip(*stage, strict=True):
            seen[op.name] = seen.get(op.name, 0) + 1
            name = (f"stage{index}." if several else "") + op.name
            yield _Operator(
                name=name if seen[op.name] == 1 else f"{name}#{seen[op.name]}",
                path=_path(op.name, deployment.model),
                cost=op,
                spelled=same,
            )


def _path(name: str, model: ModelProfile) -> str:
    """Return the model's field that an operator's sizes come from."""
    if name.startswith("encoder."):
        return "encoder"
    names = [block.name for block in model.block_counts]
    own = next((each for each in names if name.startswith(f"{each}.")), names[0])
    return _PATHS.get(name, f"blocks.{own}")


def _operator_steps(deployment: Deployment, operators: Sequence[_Operator], name: str) -> Iterator[ExplainedStep]:
    for operator in operators:
        value = getattr(operator.cost, name)
        if not value:
            continue
        term = term_of(getattr(operator.spelled, name))
        touched = operator.cost.part == "experts" and name == "weight_bytes"
        # the weights of a matrix are read once, whatever the batch
        asked = name not in ("weight_bytes", "collective_steps") or operator.cost.part in ("embedding", "experts")
        yield ExplainedStep(
            quantity=f"{operator.name}.{name}",
            formula=term.formula + (" (the expected number touched)" if touched else ""),
            expression=term.expression,
            value=value,
            unit=_FIELDS[name],
            sources=(*profile_source(deployment.model, operator.path), *([ASKED] if asked else ())),
        )


def _total_step(cost: StepCost, operators: Sequence[_Operator], name: str) -> ExplainedStep:
    values = (getattr(operator.cost, name) for operator in operators)
    listed = total(digits(value) for value in values if value)
    formula, expression = "sum over the operators", listed
    if cost.ranks > 1:
        ranks = cost.rank_kinds[0][0]
        formula, expression = f"{formula} of one GPU x the {ranks} GPUs of a stage", f"{ranks} * {factor(listed)}"
    for ranks, stages in cost.rank_kinds[1:]:
        rest = added(getattr(op, name) for stage in stages for op in stage)
        formula += f" + those with fewer sequences x {ranks}"
        expression += f" + {ranks} * {digits(rest)}"
    return ExplainedStep(
        quantity=name, formula=formula, expression=expression, value=cost.total(name), unit=_SUMMED[name]
    )
