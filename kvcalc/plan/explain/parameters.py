"""Explaining parameters: matrix by matrix, layer by layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture, counted
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.cost.parameters import active_parameters, block_matrices, block_parameters, parameters, tower_parameters
from kvcalc.plan.explain.text import profile_source, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, Encoder, Head, ModelProfile, Table
    from kvcalc.cost.parameters import Matrix

    Term = tuple[str, str]

__all__ = ["expert_text", "matrix_text", "parameter_steps"]


def matrix_text(matrix: Matrix) -> str:
    """Return the elements of a matrix: inputs x outputs, or their number where only that is known."""
    if matrix.inputs == 1 or matrix.inputs * matrix.outputs != matrix.elements:
        return str(matrix.elements)
    return f"{matrix.inputs} * {matrix.outputs}"


def expert_text(mixture: Mixture, hidden: int, *, biases: bool = True) -> Term:
    """Return formula and numbers of one routed expert's parameters; without biases, of those it multiplies with."""
    inputs, branches = mixture.inputs or hidden, mixture.branches
    formula = f"{branches + 1} x {'hidden' if mixture.inputs is None else 'inputs'} x width"
    text = f"{branches + 1} * {inputs} * {mixture.width}"
    if mixture.expert_bias and biases:
        return f"{formula} + biases", f"{text} + {branches} * {mixture.width} + {inputs}"
    return formula, text


def parameter_steps(model: ModelProfile) -> Iterator[ExplainedStep]:
    """Return the parameters of each kind of layer, by part, in all, and those a token is multiplied with."""
    for active in (False, True):
        stacks = _stacks(model)
        for prefix, hidden, counts in stacks:
            for block in counts:
                if not active or isinstance(block.mlp, Mixture):
                    yield _layer_step(model, prefix, block, hidden, active=active)
        if not active:
            for part, size in parameters(model).items():
                yield _part_step(model, part, size)
        yield _sum_step(model, active=active)


def _stacks(model: ModelProfile) -> list[tuple[str, int, Mapping[Block, int]]]:
    """Return the stacks of layers: prefix of names, hidden size, kinds of layers."""
    stacks = [("", model.hidden_size, model.block_counts)]
    if model.encoder is not None:
        stacks.append(("encoder.", model.encoder.hidden_size, counted(model.encoder.blocks)))
    return stacks


def _layer_terms(block: Block, hidden: int, *, active: bool) -> Iterator[Term]:
    for matrix in block_matrices(block, hidden):
        if matrix.stored:
            yield matrix.name, matrix_text(matrix)
    if block.vector_parameters:
        yield "vectors", str(block.vector_parameters)
    if isinstance(block.mlp, Mixture):
        yield _experts_term(block.mlp, hidden, active=active)


def _experts_term(mixture: Mixture, hidden: int, *, active: bool) -> Term:
    formula, each = expert_text(mixture, hidden)
    if not active:
        return f"experts x ({formula})", f"{mixture.experts} * ({each})"
    chosen = f"{mixture.experts_per_token} * ({each})"
    if not mixture.zero_experts:
        return f"experts per token x ({formula})", chosen
    choices = f"({mixture.experts} + {mixture.zero_experts})"
    return (
        f"experts per token x experts / (experts + zero experts) x ({formula}), rounded",
        f"({chosen} * {mixture.experts} / {choices} + 1 / 2) // 1",
    )


def _layer_step(model: ModelProfile, prefix: str, block: Block, hidden: int, *, active: bool) -> ExplainedStep:
    terms = list(_layer_terms(block, hidden, active=active))
    return ExplainedStep(
        quantity=f"{_layer_name(prefix, block)}.{'active_parameters' if active else 'parameters'}",
        formula=f"sum of matrices (inputs x outputs) and vectors: {' + '.join(name for name, _ in terms) or 'none'}",
        expression=total(text for _, text in terms),
        value=sum(block_parameters(block, hidden, active=active).values()),
        unit="parameters",
        sources=_layer_source(model, prefix, block),
    )


def _layer_name(prefix: str, block: Block) -> str:
    return f"{prefix}blocks.{block.name or 'layer'}"


def _layer_source(model: ModelProfile, prefix: str, block: Block) -> tuple[str, ...]:
    return profile_source(model, "encoder" if prefix else f"blocks.{block.name}")


def _part_step(model: ModelProfile, part: str, size: int) -> ExplainedStep:
    terms = []
    for prefix, hidden, counts in _stacks(model):
        for block, count in counts.items():
            held = block_parameters(block, hidden).get(part, 0)
            if held:
                terms.append((f"layers x {_layer_name(prefix, block)}", f"{count} * {held}"))
    terms += [(name, text) for owner, name, text in _outer_terms(model, active=False) if owner == part]
    return ExplainedStep(
        quantity=f"weights.parts.{part}",
        formula=f"the part's parameters: {' + '.join(name for name, _ in terms)}",
        expression=total(text for _, text in terms),
        value=size,
        unit="parameters",
        sources=profile_source(model, "towers" if part in tower_parameters(model) else "blocks"),
    )


def _sum_step(model: ModelProfile, *, active: bool) -> ExplainedStep:
    terms = []
    for prefix, hidden, counts in _stacks(model):
        for block, count in counts.items():
            held = sum(block_parameters(block, hidden, active=active).values())
            name = _layer_name(prefix, block)
            terms.append((f"layers x {name}", f"{count} * {held}"))
    terms += [(name, text) for _, name, text in _outer_terms(model, active=active)]
    what = "layers with the experts a token is sent to, no tables" if active else "layers, tables, head and towers"
    return ExplainedStep(
        quantity=f"weights.{'active_parameters' if active else 'parameters'}",
        formula=f"{what}: {' + '.join(name for name, _ in terms)}",
        expression=total(text for _, text in terms),
        value=active_parameters(model) if active else sum(parameters(model).values()),
        unit="parameters",
        sources=profile_source(model, "layers"),
    )


def _outer_terms(model: ModelProfile, *, active: bool) -> Iterator[tuple[str, str, str]]:
    """Return the matrices outside the layers: part, name, numbers."""
    head = model.head
    tied = head is not None and head.tied
    if head is not None:
        yield from _head_terms(model, head)
    if not active:
        for table in model.embeddings[1 if tied else 0 :]:
            yield "embedding", f"{table.name} table", _table_text(table)
    if model.vector_parameters:
        yield "vector", "vectors outside the layers", str(model.vector_parameters)
    if model.matrix_parameters:
        yield "other", "matrices outside the layers", str(model.matrix_parameters)
    if model.encoder is not None:
        yield from _encoder_terms(model.encoder, active=active)
    for tower in () if active else model.towers:
        yield tower.part, f"{tower.part} tower", str(tower.parameters)


def _head_terms(model: ModelProfile, head: Head) -> Iterator[tuple[str, str, str]]:
    if head.tied and model.embeddings:
        yield "head", "tied head and token table (once)", _table_text(model.embeddings[0])
    else:
        yield "head", "head", f"{head.rows} * {head.width or model.hidden_size}"
    if head.bias:
        yield "vector", "head's bias", str(head.rows)


def _encoder_terms(encoder: Encoder, *, active: bool) -> Iterator[tuple[str, str, str]]:
    if encoder.vector_parameters:
        yield "vector", "encoder's vectors", str(encoder.vector_parameters)
    if encoder.matrix_parameters:
        yield "other", "encoder's matrices", str(encoder.matrix_parameters)
    for table in () if active else encoder.embeddings:
        yield "embedding", f"encoder's {table.name} table", _table_text(table)


def _table_text(table: Table) -> str:
    return f"{table.rows} * {table.width}"
