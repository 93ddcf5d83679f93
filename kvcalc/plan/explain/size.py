"""Explaining a size: bytes of the cache, parameters and bytes of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Compressed, State
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.cost.cache import block_cache_bytes, entry_bytes, held_tokens, state_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.plan.deployment import held_weight_bytes
from kvcalc.plan.explain.cache import cache_text
from kvcalc.plan.explain.parameters import parameter_steps
from kvcalc.plan.explain.text import ASKED, profile_source, stored, total
from kvcalc.plan.size import size_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain_size"]


def explain_size(deployment: Deployment, *, context: int, batch: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a size report."""
    model, formats = deployment.model, deployment.formats
    steps = [step for block in model.block_counts for step in _entry_steps(model, block, formats)]
    kv = size_report(deployment, context=context, batch=batch).kv
    steps.append(_sequence_step(model, formats, context, kv.bytes_per_sequence))
    steps.append(
        ExplainedStep(
            quantity="kv.total_bytes",
            formula="batch x bytes per sequence",
            expression=f"{batch} * {kv.bytes_per_sequence}",
            value=kv.total_bytes,
            unit="B",
            sources=(ASKED,),
        )
    )
    return (*steps, *parameter_steps(model), _weights_step(deployment))


def _entry_steps(model: ModelProfile, block: Block, formats: Formats) -> Iterator[ExplainedStep]:
    for mixer in block.mixers:
        found = cache_text(mixer, formats)
        if found is None:
            continue
        formula, expression = found
        state = isinstance(mixer, State)
        yield ExplainedStep(
            quantity=f"{block.name or 'layer'}: {mixer.kind}, bytes {'of state' if state else 'per token'}",
            formula=formula,
            expression=expression,
            value=state_bytes(mixer, formats) if isinstance(mixer, State) else entry_bytes(mixer, formats),
            unit="B",
            sources=profile_source(model, f"blocks.{block.name}"),
        )


def _sequence_step(model: ModelProfile, formats: Formats, context: int, value: int) -> ExplainedStep:
    terms: list[str] = []
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            if isinstance(mixer, State):
                terms.append(f"{count} * {state_bytes(mixer, formats)}")
            elif held_tokens(mixer, context):
                terms.append(f"{count} * {held_tokens(mixer, context)} * {entry_bytes(mixer, formats)}")
            if isinstance(mixer, Compressed):
                alone = block_cache_bytes(block, context, formats).growing
                rest = alone - held_tokens(mixer, context) * entry_bytes(mixer, formats)
                terms.append(f"{count} * {rest}")
    return ExplainedStep(
        quantity="kv.bytes_per_sequence",
        formula="sum over layers of layers x tokens held x bytes per token, and layers x state",
        expression=total(terms),
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _weights_step(deployment: Deployment) -> ExplainedStep:
    model, formats = deployment.model, deployment.formats
    if model.held_weight_bytes is not None and deployment.own_weights:
        formula, expression = "the bytes of the weight file's own tensors", str(model.held_weight_bytes)
    else:
        parts = parameters(model)
        named = (f"{part} x b ({formats.of(part).name})" for part in parts)
        formula = f"parameters x b, by part: {', '.join(named)}"
        expression = total(stored(str(size), size, formats.of(part)) for part, size in parts.items())
    return ExplainedStep(
        quantity="weights.total_bytes",
        formula=formula,
        expression=expression,
        value=held_weight_bytes(deployment),
        unit="B",
        sources=profile_source(model, "blocks"),
    )
