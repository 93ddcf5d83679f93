"""Explaining parameters: matrix by matrix, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture, counted
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.traced import called, named, plain, term_of
from kvcalc.cost.parameters import active_parameters, block_parameters, outer_parameters, parameters, tower_parameters
from kvcalc.plan.explain.named import named_model
from kvcalc.plan.explain.text import profile_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, ModelProfile

__all__ = ["parameter_steps"]


def parameter_steps(model: ModelProfile) -> Iterator[ExplainedStep]:
    """Return the parameters of each kind of layer, by part, in all, and those a token is multiplied with."""
    spelled = named_model(model)
    for active in (False, True):
        for prefix, hidden, counts in _stacks(spelled):
            for block in counts:
                if not active or isinstance(block.mlp, Mixture):
                    yield _layer_step(model, prefix, block, hidden, active=active)
        if not active:
            for part, size in parameters(model).items():
                yield _part_step(model, spelled, part, size)
        yield _sum_step(model, spelled, active=active)


def _stacks(model: ModelProfile) -> list[tuple[str, int, Mapping[Block, int]]]:
    """Return the stacks of layers: prefix of names, hidden size, kinds of layers."""
    stacks = [("", model.hidden_size, model.block_counts)]
    if model.encoder is not None:
        stacks.append(("encoder.", model.encoder.hidden_size, counted(model.encoder.blocks)))
    return stacks


def _layer_name(prefix: str, block: Block) -> str:
    return f"{prefix}blocks.{block.name or 'layer'}"


def _layer_step(model: ModelProfile, prefix: str, block: Block, hidden: int, *, active: bool) -> ExplainedStep:
    size = sum(block_parameters(block, hidden, active=active).values())
    term = term_of(size)
    return ExplainedStep(
        quantity=f"{_layer_name(prefix, block)}.{'active_parameters' if active else 'parameters'}",
        formula=f"sum of matrices (inputs x outputs) and vectors: {term.formula if size else 'none'}",
        expression=term.expression,
        value=plain(size),
        unit="parameters",
        sources=profile_source(model, "encoder" if prefix else f"blocks.{block.name}"),
    )


def _layers(spelled: ModelProfile, part: str = "", *, active: bool = False) -> int:
    """Return the parameters of all layers, of one part or of all: layers x those of a layer of each kind."""
    size = 0
    for prefix, hidden, counts in _stacks(spelled):
        for block, count in counts.items():
            parts = block_parameters(block, hidden, active=active)
            of_layer = plain(parts.get(part, 0) if part else sum(parts.values()))
            if of_layer:
                size += named(count, "layers") * named(of_layer, _layer_name(prefix, block))
    return size


def _part_step(model: ModelProfile, spelled: ModelProfile, part: str, size: int) -> ExplainedStep:
    towers = {name: called(tower, f"{name} tower") for name, tower in tower_parameters(spelled).items()}
    term = term_of(_layers(spelled, part) + outer_parameters(spelled, tables=True).get(part, 0) + towers.get(part, 0))
    return ExplainedStep(
        quantity=f"weights.parts.{part}",
        formula=f"the part's parameters: {term.formula}",
        expression=term.expression,
        value=size,
        unit="parameters",
        sources=profile_source(model, "towers" if part in towers else "blocks"),
    )


def _sum_step(model: ModelProfile, spelled: ModelProfile, *, active: bool) -> ExplainedStep:
    outer = {name: called(size, name) for name, size in outer_parameters(spelled, tables=not active).items()}
    towers = {} if active else tower_parameters(spelled)
    named_towers = [called(size, f"{name} tower") for name, size in towers.items()]
    term = term_of(_layers(spelled, active=active) + sum(outer.values()) + sum(named_towers))
    what = "layers with the experts a token is sent to, no tables" if active else "layers, tables, head and towers"
    return ExplainedStep(
        quantity=f"weights.{'active_parameters' if active else 'parameters'}",
        formula=f"{what}: {term.formula}",
        expression=term.expression,
        value=active_parameters(model) if active else sum(parameters(model).values()),
        unit="parameters",
        sources=profile_source(model, "layers"),
    )
