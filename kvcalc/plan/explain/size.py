"""Explaining a size: bytes of the cache, parameters and bytes of the weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.layers import Full, State
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.traced import named, term_of, whole
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import bytes_beside_entries, entry_bytes, held_tokens, mixer_cache_bytes, state_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.cost.sharding import rank_parameters, rank_stage
from kvcalc.plan.explain.named import named_formats, named_model
from kvcalc.plan.explain.parameters import parameter_steps
from kvcalc.plan.explain.text import ASKED, profile_source, total
from kvcalc.plan.rank_memory import held_weight_bytes, rank_tokens
from kvcalc.plan.size import size_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.traced import Term
    from kvcalc.core.workload import Formats
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain_size"]


def explain_size(deployment: Deployment, *, context: int, batch: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a size report."""
    model, formats = deployment.model, deployment.formats
    report = size_report(deployment, context=context, batch=batch)
    kv, each = report.kv, report.per_gpu
    total_step = ExplainedStep(
        quantity="kv.total_bytes",
        formula="batch x bytes per sequence",
        expression=f"{batch} * {kv.bytes_per_sequence}",
        value=kv.total_bytes,
        unit="B",
        sources=(ASKED,),
    )
    return (
        *_entry_steps(model, formats),
        _token_step(model, formats, context, kv.bytes_per_token),
        _sequence_step(model, formats, context, kv.bytes_per_sequence),
        total_step,
        _rank_cache_step(deployment, context, batch, each.kv_bytes),
        *parameter_steps(model),
        _weights_step(deployment),
        _rank_weights_step(deployment, each.weight_bytes),
    )


def _entry_steps(model: ModelProfile, formats: Formats) -> Iterator[ExplainedStep]:
    sizes = named_formats(formats)
    for block, spelled in zip(model.block_counts, named_model(model).block_counts, strict=True):
        for mixer, same in zip(block.mixers, spelled.mixers, strict=True):
            if isinstance(mixer, State) and isinstance(same, State):
                what, value, term = "of state", state_bytes(mixer, formats), term_of(state_bytes(same, sizes))
            elif mixer.entry is not None:
                what, value, term = "per token", entry_bytes(mixer, formats), term_of(entry_bytes(same, sizes))
            else:
                continue
            yield ExplainedStep(
                quantity=f"{block.name or 'layer'}: {mixer.kind}, bytes {what}",
                formula=term.formula,
                expression=term.expression,
                value=value,
                unit="B",
                sources=profile_source(model, f"blocks.{block.name}"),
            )


def _is_plain(model: ModelProfile) -> bool:
    """Say whether all layers keep the same keys and values, both of one width, of every token."""
    mixers = {mixer for block in model.block_counts for mixer in block.mixers}
    return len(mixers) == 1 and all(
        isinstance(each, Full)
        and each.value_head_dim in (None, each.head_dim)
        and not each.value_from_key
        and each.indexer is None
        for each in mixers
    )


def _plain_token_step(model: ModelProfile, formats: Formats, value: int) -> ExplainedStep:
    """Return the formula that everybody quotes, where it holds."""
    mixer = next(mixer for block in named_model(model).block_counts for mixer in block.mixers)
    both = term_of(entry_bytes(mixer, named_formats(formats)))
    words, key = (_first_half(text) for text in (both.formula, both.expression))
    layers = sum(count * len(block.mixers) for block, count in model.block_counts.items())
    return ExplainedStep(
        quantity="kv.bytes_per_token",
        formula=f"2 (key and value) x layers x {words}",
        expression=f"2 * {layers} * {key}",
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _first_half(text: str) -> str:
    """Return the terms of the keys in a sum of those of keys and values."""
    terms = text.split(" + ")
    half = " + ".join(terms[: len(terms) // 2])
    return f"({half})" if " + " in half else half


def _token_step(model: ModelProfile, formats: Formats, context: int, value: int) -> ExplainedStep:
    if _is_plain(model):
        return _plain_token_step(model, formats, value)
    terms: list[str] = []
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            more = held_tokens(mixer, context + 1) - held_tokens(mixer, context)
            if more:
                terms.append(f"{count} * {more} * {entry_bytes(mixer, formats)}")
            after, before = (bytes_beside_entries(mixer, tokens, formats) for tokens in (context + 1, context))
            if after != before:
                terms.append(f"{count} * ({after} - {before})")
    return ExplainedStep(
        quantity="kv.bytes_per_token",
        formula="sum over layers of layers x tokens that one more token adds x bytes per token",
        expression=total(terms),
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _sequence_step(model: ModelProfile, formats: Formats, context: int, value: int) -> ExplainedStep:
    terms: list[str] = []
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            tokens = held_tokens(mixer, context)
            if tokens:
                terms.append(f"{count} * {tokens} * {entry_bytes(mixer, formats)}")
            if beside := bytes_beside_entries(mixer, context, formats):
                terms.append(f"{count} * {beside}")
            state = mixer_cache_bytes(mixer, context, formats).state
            if state:
                terms.append(f"{count} * {state}")
    return ExplainedStep(
        quantity="kv.bytes_per_sequence",
        formula="sum over layers of layers x tokens held x bytes per token, and layers x state",
        expression=total(terms),
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _rank_cache_step(deployment: Deployment, context: int, batch: int, value: int) -> ExplainedStep:
    model, formats, parallel = deployment.model, deployment.formats, deployment.parallel
    layers = rank_stage(model, formats, parallel, tokens=rank_tokens(deployment, context))
    sequences = term_of(ceil_div(named(batch, "batch"), parallel.data))
    layer_sum = total(f"{count} * {size.total}" for size, count in layers)
    return ExplainedStep(
        quantity="per_gpu.kv_bytes",
        formula="sequences of a copy x sum over the layers of the fullest stage of layers x bytes on one GPU",
        expression=f"{sequences.expression} * ({layer_sum})",
        value=value,
        unit="B",
        sources=(*profile_source(model, "layers"), ASKED),
    )


def _weights_step(deployment: Deployment) -> ExplainedStep:
    model = deployment.model
    if model.held_weight_bytes is not None and deployment.own_weights:
        formula, expression = "the bytes of the weight file's own tensors", str(model.held_weight_bytes)
    else:
        term = _parts_term(parameters(model), deployment.formats)
        formula, expression = f"parameters x b, by part: {term.formula}", term.expression
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
        term = _parts_term(parts, deployment.formats)
        formula, expression = f"parameters per GPU x b, by part: {term.formula}", term.expression
    return ExplainedStep(
        quantity="per_gpu.weight_bytes",
        formula=formula,
        expression=expression,
        value=value,
        unit="B",
        sources=(*profile_source(deployment.model, "blocks"), ASKED),
    )


def _parts_term(parts: Mapping[str, int], formats: Formats) -> Term:
    """Return the bytes of parameters, each part in its own format."""
    sizes = named_formats(formats)
    return term_of(sum(whole(sizes.of(part).bytes(named(size, part))) for part, size in parts.items()))
