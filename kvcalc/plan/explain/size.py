"""Explaining a size: bytes of the cache, parameters and bytes of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Compressed, State
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.cost.cache import block_cache_bytes, entry_bytes, held_tokens, state_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.cost.sharding import rank_parameters, rank_stage
from kvcalc.plan.deployment import held_weight_bytes
from kvcalc.plan.explain.cache import cache_text
from kvcalc.plan.explain.parameters import parameter_steps
from kvcalc.plan.explain.text import ASKED, profile_source, share, stored, total
from kvcalc.plan.size import size_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain_size"]


def explain_size(deployment: Deployment, *, context: int, batch: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a size report."""
    model, formats = deployment.model, deployment.formats
    steps = [step for block in model.block_counts for step in _entry_steps(model, block, formats)]
    report = size_report(deployment, context=context, batch=batch)
    kv, each = report.kv, report.per_gpu
    steps.append(_token_step(model, formats, context, kv.bytes_per_token))
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
    return (
        *steps,
        _rank_cache_step(deployment, context, batch, each.kv_bytes),
        *parameter_steps(model),
        _weights_step(deployment),
        _rank_weights_step(deployment, each.weight_bytes),
    )


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


def _token_step(model: ModelProfile, formats: Formats, context: int, value: int) -> ExplainedStep:
    terms: list[str] = []
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            more = held_tokens(mixer, context + 1) - held_tokens(mixer, context)
            if more:
                terms.append(f"{count} * {more} * {entry_bytes(mixer, formats)}")
            if isinstance(mixer, Compressed):
                after, before = (_compressed_bytes(mixer, block, formats, tokens) for tokens in (context + 1, context))
                terms.append(f"{count} * ({after} - {before})")
    return ExplainedStep(
        quantity="kv.bytes_per_token",
        formula="sum over layers of layers x tokens that one more token adds x bytes per token",
        expression=total(terms),
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _compressed_bytes(mixer: Compressed, block: Block, formats: Formats, tokens: int) -> int:
    """Return the bytes that a layer keeps beside the entries of its window."""
    return block_cache_bytes(block, tokens, formats).growing - held_tokens(mixer, tokens) * entry_bytes(mixer, formats)


def _rank_cache_step(deployment: Deployment, context: int, batch: int, value: int) -> ExplainedStep:
    model, formats, parallel = deployment.model, deployment.formats, deployment.parallel
    layers = rank_stage(model, formats, parallel, tokens=context)
    held = total(f"{count} * {size.total}" for size, count in layers)
    return ExplainedStep(
        quantity="per_gpu.kv_bytes",
        formula="sequences of a copy x sum over the layers of the fullest stage of layers x bytes on one GPU",
        expression=f"{share(batch, parallel.data)} * ({held})",
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
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
                terms.append(f"{count} * {_compressed_bytes(mixer, block, formats, context)}")
    return ExplainedStep(
        quantity="kv.bytes_per_sequence",
        formula="sum over layers of layers x tokens held x bytes per token, and layers x state",
        expression=total(terms),
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _weights_step(deployment: Deployment) -> ExplainedStep:
    model = deployment.model
    if model.held_weight_bytes is not None and deployment.own_weights:
        formula, expression = "the bytes of the weight file's own tensors", str(model.held_weight_bytes)
    else:
        by_part, expression = _parts_text(parameters(model), deployment.formats)
        formula = f"parameters x b, {by_part}"
    return ExplainedStep(
        quantity="weights.total_bytes",
        formula=formula,
        expression=expression,
        value=held_weight_bytes(deployment),
        unit="B",
        sources=profile_source(model, "blocks"),
    )


def _rank_weights_step(deployment: Deployment, value: int) -> ExplainedStep:
    formula, expression = "weights.total_bytes, all on one GPU", str(value)
    if deployment.parallel.gpus > 1:
        parts = rank_parameters(deployment.model, deployment.formats, deployment.parallel)
        by_part, expression = _parts_text(parts, deployment.formats)
        formula = f"parameters on the fullest GPU x b, {by_part}"
    return ExplainedStep(
        quantity="per_gpu.weight_bytes",
        formula=formula,
        expression=expression,
        value=value,
        unit="B",
        sources=(*profile_source(deployment.model, "blocks"), ASKED),
    )


def _parts_text(parts: Mapping[str, int], formats: Formats) -> tuple[str, str]:
    """Return formats and bytes of parameters, by part."""
    named = (f"{part} x b ({formats.of(part).name})" for part in parts)
    texts = (stored(str(size), size, formats.of(part)) for part, size in parts.items())
    return f"by part: {', '.join(named)}", total(texts)
