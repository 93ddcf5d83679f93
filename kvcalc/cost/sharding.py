"""The share of one rank: matrices, experts and layers under tensor, expert and pipeline parallelism."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.identity import ById
from kvcalc.core.model import Mixture, counted
from kvcalc.core.units import ceil_div
from kvcalc.cost.cache import CacheBytes, block_cache_bytes
from kvcalc.cost.parameters import block_matrices, expert_parameters, outer_parameters

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.model import Block, ModelProfile, Tower
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.cost.parameters import Matrix

__all__ = [
    "experts_per_rank",
    "rank_cache",
    "rank_cache_bytes",
    "rank_matrix",
    "rank_parameters",
    "rank_stage",
    "rank_weight_bytes",
    "splits_evenly",
    "stage_blocks",
]


# Parts that are lookup tables, whose rows the ranks of the first stage share.
_TABLES = ("embedding", "lookup")


def rank_matrix(matrix: Matrix, tensor: int) -> tuple[int, int, int]:
    """Return inputs, outputs and elements of a matrix on the fullest of ``tensor`` ranks.

    Source: Shoeybi et al. 2019, arXiv 1909.08053 (column- and row-parallel linear layers).

    >>> from kvcalc.cost.parameters import Matrix
    >>> key = Matrix(name="key", part="attention", inputs=8, outputs=32, elements=256, split="outputs", pieces=2)
    >>> rank_matrix(key, 4)
    (8, 16, 128)
    """
    if matrix.split == "none" or tensor == 1:
        return matrix.inputs, matrix.outputs, matrix.elements
    pieces = ceil_div(matrix.pieces, tensor)
    if matrix.split == "outputs":
        outputs = matrix.outputs * pieces // matrix.pieces
        return matrix.inputs, outputs, ceil_div(matrix.elements * pieces, matrix.pieces)
    inputs = matrix.inputs * pieces // matrix.pieces
    return inputs, matrix.outputs, ceil_div(matrix.elements * pieces, matrix.pieces)


def experts_per_rank(mixture: Mixture, parallel: Parallel) -> tuple[int, int]:
    """Count the experts of the fullest rank, and the slices that each of them is cut into.

    Source: Rajbhandari et al. 2022, arXiv 2201.05596 (expert parallelism, with slicing over the remaining ranks).

    >>> from kvcalc.core.workload import Parallel
    >>> experts_per_rank(Mixture(experts=8, experts_per_token=2, width=4), Parallel(tensor=4, expert=2))
    (4, 2)
    """
    if parallel.expert == 1:
        return mixture.experts, parallel.tensor
    return ceil_div(mixture.experts, parallel.expert), max(1, parallel.tensor // parallel.expert)


def splits_evenly(model: ModelProfile, tensor: int) -> bool:
    """Whether tensor-parallel ranks share all heads of attention evenly; a rank has one key head at least.

    Source: Shoeybi et al. 2019, arXiv 1909.08053; key heads are replicated where there are fewer than ranks.

    >>> from kvcalc.core.model import Block, Full, ModelProfile
    >>> block = Block(mixers=(Full(heads=24, kv_heads=8, head_dim=64),))
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=1, context_limit=None, blocks=(block,),
    ...     embeddings=(), head=None)
    >>> [tensor for tensor in range(1, 25) if splits_evenly(model, tensor)]
    [1, 2, 4, 8, 24]
    """
    return all(mixer.splits_evenly(tensor) for mixer in model.mixers)


def stage_blocks(model: ModelProfile, stages: int) -> tuple[tuple[Block, ...], ...]:
    """Return the layers of each pipeline stage: equal counts, the later stages but the last taking the remainder.

    Source: Huang et al. 2018, arXiv 1811.06965 (consecutive layers); the place of the remainder as vLLM's
    ``get_pp_indices`` has it.

    >>> from kvcalc.core.model import Block, ModelProfile
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=1, context_limit=None, blocks=(Block(),) * 7,
    ...     embeddings=(), head=None)
    >>> [len(stage) for stage in stage_blocks(model, 3)]
    [2, 3, 2]
    """
    return _stage_blocks(ById(model), stages)


@lru_cache(maxsize=256)
def _stage_blocks(of: ById[ModelProfile], stages: int) -> tuple[tuple[Block, ...], ...]:
    model = of.value
    size, rest = divmod(model.layers, stages)
    sizes = [size] * stages
    for index in range(rest):
        sizes[-(index + 2) if stages > 1 else 0] += 1
    cuts = [sum(sizes[:index]) for index in range(stages + 1)]
    return tuple(model.blocks[start:end] for start, end in pairwise(cuts))


def rank_cache_bytes(model: ModelProfile, formats: Formats, parallel: Parallel, *, tokens: int, batch: int) -> int:
    """Return the cache bytes on the fullest rank: its stage's layers, its sequences, states and encoder keys included.

    Source: the three kinds of `rank_cache` together.
    """
    return rank_cache(model, formats, parallel, tokens=tokens, batch=batch).total


def rank_cache(model: ModelProfile, formats: Formats, parallel: Parallel, *, tokens: int, batch: int) -> CacheBytes:
    """Return the bytes that the fullest rank holds for a batch of sequences of ``tokens`` tokens, by kind.

    Source: `block_cache_bytes` over the layers of `stage_blocks`; sequences are dealt to data-parallel ranks.
    """
    layers = rank_stage(model, formats, parallel, tokens=tokens)
    return _sum(layers).times(ceil_div(batch, parallel.data))


def rank_stage(
    model: ModelProfile, formats: Formats, parallel: Parallel, *, tokens: int
) -> list[tuple[CacheBytes, int]]:
    """Return the bytes that one layer of each kind holds for a sequence on the fullest rank, and its number of layers.

    Source: `block_cache_bytes` over the layers of `stage_blocks`.
    """
    stages = [
        [
            (block_cache_bytes(block, tokens, formats, tensor=parallel.tensor), count)
            for block, count in counted(blocks).items()
        ]
        for blocks in stage_blocks(model, parallel.pipeline)
    ]
    return max(stages, key=lambda layers: _sum(layers).total)


def _sum(layers: Sequence[tuple[CacheBytes, int]]) -> CacheBytes:
    return sum((size.times(count) for size, count in layers), CacheBytes(growing=0, state=0, cross=0))


def rank_weight_bytes(model: ModelProfile, formats: Formats, parallel: Parallel) -> int:
    """Return the bytes of weights on the fullest rank.

    Source: `rank_matrix`, `experts_per_rank` and `stage_blocks`; vectors are replicated, tables split by rows. Towers
    stand in the first stage, shared by ranks that divide their heads (vLLM, ``mm_encoder_tp_mode`` ``weights``).
    """
    return _part_bytes(rank_parameters(model, formats, parallel), formats)


def rank_parameters(model: ModelProfile, formats: Formats, parallel: Parallel) -> Mapping[str, int]:
    """Return the parameters on the rank whose weights take the most bytes, by part.

    Source: as `rank_weight_bytes`.
    """
    return max(_stage_parameters(ById(model), parallel), key=lambda parts: _part_bytes(parts, formats))


def _part_bytes(parts: Mapping[str, int], formats: Formats) -> int:
    return sum(int(formats.of(part).bytes(size)) for part, size in parts.items())


@lru_cache(maxsize=1024)
def _stage_parameters(of: ById[ModelProfile], parallel: Parallel) -> tuple[Counter[str], ...]:
    """Return for each pipeline stage the parameters on one of its ranks, by part; stages that are alike count once."""
    model, stages = of.value, stage_blocks(of.value, parallel.pipeline)
    outer = outer_parameters(model, tables=True)
    tied = model.head is not None and model.head.tied
    counts: list[Counter[str]] = []
    for index, blocks in enumerate(stages):
        first, last = index == 0, index == parallel.pipeline - 1
        parts: Counter[str] = Counter()
        for block, count in counted(blocks).items():
            for part, size in _rank_parameters(block, model.hidden_size, parallel).items():
                parts[part] += size * count
        if first:
            for tower in model.towers:
                parts[tower.part] += _rank_tower(tower, parallel.tensor)
            parts.update({name: ceil_div(outer[name], parallel.tensor) for name in _TABLES if name in outer})
            if model.encoder is not None:
                hidden = model.encoder.hidden_size
                parts += sum((_rank_parameters(b, hidden, parallel) for b in model.encoder.blocks), Counter())
        if last or (first and tied):
            parts["head"] += ceil_div(outer.get("head", 0), parallel.tensor)
        if last:
            parts["vector"] += outer["vector"]
            parts["other"] += outer["other"]
        if parts not in counts:
            counts.append(parts)
    return tuple(counts)


def _rank_tower(tower: Tower, tensor: int) -> int:
    shared = tower.heads is not None and tower.heads % tensor == 0
    return ceil_div(tower.parameters, tensor) if shared else tower.parameters


def _rank_parameters(block: Block, hidden: int, parallel: Parallel) -> Counter[str]:
    parts: Counter[str] = Counter({"vector": block.vector_parameters})
    for matrix in block_matrices(block, hidden):
        if matrix.stored:
            parts[matrix.part] += rank_matrix(matrix, parallel.tensor)[2]
    if isinstance(block.mlp, Mixture):
        experts, slices = experts_per_rank(block.mlp, parallel)
        parts["experts"] += experts * ceil_div(expert_parameters(block.mlp, hidden), slices)
    return parts
