"""The one formula: what a forward pass over groups of tokens costs.

Prefill, a chunk of it, a decode step, the verification of drafted tokens and a mixed continuous batch are all a call of
`forward_cost` with other groups.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost, StepCost
from kvcalc.core.identity import ById
from kvcalc.core.model import Attention, Mixture, counted
from kvcalc.core.sums import added
from kvcalc.core.traced import named, smaller
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import Parallel
from kvcalc.cost.attention import encoder_flop, mixer_work
from kvcalc.cost.collectives import Collective, all_reduce, all_reduces, expert_exchange, expert_spread, stage_transfer
from kvcalc.cost.linear import experts_cost, matrix_cost, vector_cost
from kvcalc.cost.parameters import block_matrices, head_matrix
from kvcalc.cost.sharding import stage_blocks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.core.workload import Formats, Routing, TokenGroup

__all__ = ["forward_cost", "section_ops"]

_SINGLE = Parallel()
_MAX_KEPT = 4096


def forward_cost(
    model: ModelProfile,
    groups: Sequence[TokenGroup],
    formats: Formats,
    *,
    parallel: Parallel = _SINGLE,
    routing: Routing = "expected",
) -> StepCost:
    """Return the costs of one forward pass, operator by operator, on the busiest rank of each pipeline stage.

    Args:
        model: the model.
        groups: the sequences of the pass: how many, with how many new and past tokens.
        formats: the formats of weights, cache and activations.
        parallel: how the model is spread. Sequences are dealt to data-parallel ranks; the fullest is taken.
        routing: which experts the tokens of the pass are taken to touch.

    Source: Pope et al. 2022, arXiv 2211.05102, and the definitions that each operator's function cites.
    """
    kinds = []
    for ranks, rank_groups in _dealt(groups, parallel.data):
        stages = _stages(model, rank_groups, groups, formats, parallel, routing)
        kinds.append((ranks * parallel.tensor, stages))
    return StepCost(
        rank_kinds=tuple(kinds),
        tokens=sum(group.tokens for group in groups),
        layers=_layers_passed(model, groups),
        exchange_gpus=parallel.exchange_gpus,
        logits=sum(group.sequences * min(group.logit_tokens, group.query_tokens) for group in groups),
    )


def _layers_passed(model: ModelProfile, groups: Sequence[TokenGroup]) -> int:
    encodes = any(group.encoder_pass for group in groups)
    return model.layers + (len(model.encoder.blocks) if model.encoder is not None and encodes else 0)


def _dealt(groups: Sequence[TokenGroup], data: int) -> list[tuple[int, list[TokenGroup]]]:
    """Deal sequences to data-parallel ranks: kinds of ranks, the fullest first, with what each of them gets."""
    if data == 1:
        return [(1, list(groups))]
    edges = sorted({0, data, *(group.sequences % data for group in groups)})
    dealt = []
    for start, end in pairwise(edges):
        counts = [group.sequences // data + (start < group.sequences % data) for group in groups]
        dealt.append((end - start, [replace(g, sequences=n) for g, n in zip(groups, counts, strict=True) if n]))
    return dealt


def _stages(
    model: ModelProfile,
    rank_groups: Sequence[TokenGroup],
    groups: Sequence[TokenGroup],
    formats: Formats,
    parallel: Parallel,
    routing: Routing,
) -> tuple[tuple[OpCost, ...], ...]:
    """Return the operators of one rank of each stage."""
    stages = stage_blocks(model, parallel.pipeline)
    last = len(stages) - 1
    tokens = sum(group.tokens for group in rank_groups)
    costs = []
    for index, blocks in enumerate(stages):
        ops = section_ops(
            model,
            blocks,
            rank_groups,
            formats,
            is_first=index == 0,
            is_last=index == last,
            parallel=parallel,
            routing=routing,
            all_groups=groups,
        )
        if index > 0:
            moved = stage_transfer(formats.hidden.bytes(model.hidden_size), tokens)
            ops.insert(0, _collective_op("pipeline", moved, 1, formats))
        # a rank that was dealt no sequence only serves its experts
        costs.append(tuple(op for op in ops if tokens or op.part == "experts"))
    return tuple(costs)


def section_ops(
    model: ModelProfile,
    blocks: tuple[Block, ...],
    groups: Sequence[TokenGroup],
    formats: Formats,
    *,
    is_first: bool = False,
    is_last: bool = False,
    parallel: Parallel = _SINGLE,
    routing: Routing = "expected",
    all_groups: Sequence[TokenGroup] = (),
) -> list[OpCost]:
    """Return the operators of some consecutive layers on one rank.

    Args:
        model: the model.
        blocks: the layers; none for what stands outside of all layers.
        groups: the sequences of the rank.
        formats: number formats.
        is_first: whether the embedding, and an encoder, come before them.
        is_last: whether the output head comes after them.
        parallel: how the model is spread.
        routing: which experts the tokens are taken to touch.
        all_groups: the sequences of all data-parallel ranks; the rank's own where left out.

    Source: Pope et al. 2022, arXiv 2211.05102; as `forward_cost`.
    """
    ops: list[OpCost] = []
    if is_first:
        ops += _input_ops(model, groups, formats, parallel, routing)
    ops += _block_ops(model, blocks, groups, all_groups or groups, formats, parallel, routing)
    if is_last:
        ops += _output_ops(model, groups, formats, parallel)
    return ops


def _input_ops(
    model: ModelProfile,
    groups: Sequence[TokenGroup],
    formats: Formats,
    parallel: Parallel,
    routing: Routing,
) -> Iterator[OpCost]:
    """Embedding rows in; and, for the sequences that need it, the encoder."""
    tokens = sum(group.tokens for group in groups)
    rows = sum(formats.of(table.part).bytes(table.lookups * table.width) for table in model.embeddings)
    yield OpCost(name="embedding", part="embedding", unit=formats.hidden.unit, weight_bytes=tokens * rows)
    sequences = sum(group.sequences for group in groups if group.encoder_pass)
    if model.encoder is None or not sequences:
        return
    encoder = model.encoder
    encoded = sequences * encoder.tokens
    for block, alike in counted(encoder.blocks).items():
        count = named(alike, "layers", beside=model.hidden_size)
        for matrix in block_matrices(block, encoder.hidden_size):
            yield matrix_cost(
                matrix,
                name=f"encoder.{matrix.name}",
                tokens=encoded,
                layers=count,
                formats=formats,
                tensor=parallel.tensor,
            )
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                flop = encoder_flop(mixer, sequences, encoder.tokens, tensor=parallel.tensor)
                yield OpCost(
                    name="encoder.attention",
                    part="attention",
                    unit=formats.hidden.unit,
                    flop=count * flop,
                    calls=count,
                )
        if isinstance(block.mlp, Mixture):
            yield experts_cost(
                block.mlp,
                name="encoder.experts",
                hidden=encoder.hidden_size,
                tokens=encoded,
                layers=count,
                formats=formats,
                parallel=parallel,
                routing=routing,
            )
        yield vector_cost(block.vector_parameters, name="encoder.vectors", layers=count, formats=formats)
    if encoder.matrix_parameters:
        yield _outer_matrices("encoder.other", encoder.matrix_parameters, encoded, formats, parallel)
    if encoder.vector_parameters:
        yield vector_cost(encoder.vector_parameters, name="encoder.final_vectors", layers=1, formats=formats)


def _outer_matrices(name: str, parameters: int, tokens: int, formats: Formats, parallel: Parallel) -> OpCost:
    """Matrices outside the layers, of which only the number of elements is known."""
    elements = ceil_div(parameters, parallel.tensor)
    return OpCost(
        name=name,
        part="other",
        unit=formats.multiplied_as("other"),
        flop=2 * tokens * elements,
        weight_bytes=formats.of("other").bytes(elements),
    )


def _block_ops(
    model: ModelProfile,
    blocks: tuple[Block, ...],
    rank_groups: Sequence[TokenGroup],
    groups: Sequence[TokenGroup],
    formats: Formats,
    parallel: Parallel,
    routing: Routing,
) -> Iterator[OpCost]:
    tokens = sum(group.tokens for group in rank_groups)
    encoded = sum(group.sequences for group in rank_groups if group.encoder_pass)
    counts = counted(blocks)
    vectors = 0
    for block, alike in counts.items():
        count = named(alike, "layers", beside=model.hidden_size)
        prefix = f"{block.name}." if len(counts) > 1 and block.name else ""
        vectors += block.vector_parameters * count
        sizes = (model.hidden_size, prefix, count, tokens, encoded * block.encoder_tokens, parallel.tensor)
        yield from _matrix_ops(ById(block), ById(formats), *sizes)
        for mixer in block.mixers:
            yield _mixer_op(mixer, prefix, count, rank_groups, formats, parallel)
        if isinstance(block.mlp, Mixture):
            reached = _tokens_at_experts(rank_groups, groups, parallel)
            yield experts_cost(
                block.mlp,
                name=f"{prefix}experts",
                hidden=model.hidden_size,
                tokens=reached,
                layers=count,
                formats=formats,
                parallel=parallel,
                routing=routing,
            )
        yield from _block_collectives(model, block, prefix, count, tokens, formats, parallel)
    if vectors:
        yield vector_cost(vectors, name="vectors", layers=1, formats=formats)


@lru_cache(maxsize=_MAX_KEPT)
def _matrix_ops(
    block: ById[Block],
    formats: ById[Formats],
    hidden_size: int,
    prefix: str,
    count: int,
    tokens: int,
    encoder_tokens: int,
    tensor: int,
) -> tuple[OpCost, ...]:
    """The matrices of layers of a kind: they do not depend on contexts, over which one asks again and again."""
    ops = []
    for matrix in block_matrices(block.value, hidden_size):
        rows = encoder_tokens if matrix.encoder else tokens
        if rows and matrix.used:
            name = prefix + matrix.name
            ops.append(matrix_cost(matrix, name=name, tokens=rows, layers=count, formats=formats.value, tensor=tensor))
    return tuple(ops)


def _tokens_at_experts(rank_groups: Sequence[TokenGroup], groups: Sequence[TokenGroup], parallel: Parallel) -> int:
    """Tokens that reach the experts shared by an expert-parallel group: those of all its data-parallel ranks."""
    on_rank = sum(group.tokens for group in rank_groups)
    return smaller(on_rank * expert_spread(parallel), sum(group.tokens for group in groups))


def _mixer_op(
    mixer: Mixer, prefix: str, count: int, groups: Sequence[TokenGroup], formats: Formats, parallel: Parallel
) -> OpCost:
    works = [mixer_work(mixer, group, formats, tensor=parallel.tensor) for group in groups]
    return OpCost(
        name=f"{prefix}{mixer.kind}",
        part="cache",
        unit=formats.hidden.unit,
        flop=count * added(work.flop for work in works),
        kv_read_bytes=count * added(work.read_bytes for work in works),
        kv_write_bytes=count * added(work.write_bytes for work in works),
        activation_bytes=count * added(work.reread_bytes for work in works),
        calls=count,
    )


def _block_collectives(
    model: ModelProfile, block: Block, prefix: str, count: int, tokens: int, formats: Formats, parallel: Parallel
) -> Iterator[OpCost]:
    hidden = formats.hidden.bytes(model.hidden_size)
    if parallel.tensor > 1:
        sums = all_reduces(block)
        reduced = all_reduce(hidden * tokens, parallel.tensor)
        if sums:
            yield _collective_op(f"{prefix}all_reduce", reduced, count * sums, formats)
    if isinstance(block.mlp, Mixture):
        exchange = expert_exchange(hidden, tokens, block.mlp, parallel)
        if exchange.steps:
            yield _collective_op(f"{prefix}expert_exchange", exchange, count, formats)


def _collective_op(name: str, moved: Collective, times: int, formats: Formats) -> OpCost:
    return OpCost(
        name=name,
        part="interconnect",
        unit=formats.hidden.unit,
        link_bytes=times * moved.least_bytes,
        collective_bytes=times * moved.bytes,
        collective_steps=times * moved.steps,
        direct_bytes=times * moved.direct_bytes,
        calls=times,
    )


def _output_ops(
    model: ModelProfile, groups: Sequence[TokenGroup], formats: Formats, parallel: Parallel
) -> Iterator[OpCost]:
    """Return the matrices outside the layers, and the output head for the tokens whose logits are wanted."""
    tokens = sum(group.tokens for group in groups)
    wanted = sum(group.sequences * min(group.logit_tokens, group.query_tokens) for group in groups)
    bias = model.head.rows if model.head is not None and model.head.bias else 0
    if model.vector_parameters + bias:
        yield vector_cost(model.vector_parameters + bias, name="final_vectors", layers=1, formats=formats)
    if model.matrix_parameters:
        yield _outer_matrices("other", model.matrix_parameters, tokens, formats, parallel)
    head = head_matrix(model)
    if head is not None and wanted:
        cost = matrix_cost(head, name="head", tokens=wanted, layers=1, formats=formats, tensor=parallel.tensor)
        logits = formats.hidden.bytes(wanted * ceil_div(head.outputs, parallel.tensor))
        states = formats.hidden.bytes(wanted * head.inputs)
        yield replace(cost, io_bytes=logits, activation_bytes=states)
