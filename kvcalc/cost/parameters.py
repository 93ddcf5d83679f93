"""Parameters: the matrices of a layer, once; counts, bytes and FLOP of the linear layers all follow from this list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvcalc.core.model import Attention, Compressed, Cross, Dense, Gated, Latent, Mixture, Shared, State

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, Indexer, Mixer, ModelProfile, Part
    from kvcalc.core.workload import Formats, Parallel

__all__ = [
    "Matrix",
    "active_parameters",
    "block_matrices",
    "block_parameters",
    "experts_per_rank",
    "expert_parameters",
    "head_matrix",
    "parameters",
    "rank_matrix",
    "rank_weight_bytes",
    "stage_blocks",
    "weight_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix that multiplies a vector of every token.

    Args:
        name: for example ``attention.query``.
        part: the part of the model it is stored with.
        inputs: width it takes.
        outputs: width it gives.
        elements: its parameters.
        split: which side tensor parallelism cuts; ``none`` is replicated.
        pieces: indivisible pieces of that side (heads, KV heads, or single columns).
        stored: false where the weights are an earlier layer's.
        encoder: whether it multiplies the encoder's output once, instead of every token.
    """

    name: str
    part: Part
    inputs: int
    outputs: int
    elements: int
    split: Literal["inputs", "outputs", "none"] = "none"
    pieces: int = 1
    stored: bool = True
    encoder: bool = False


def _matrix(
    name: str,
    part: Part,
    inputs: int,
    outputs: int,
    split: Literal["inputs", "outputs", "none"] = "none",
    *,
    pieces: int = 0,
    stored: bool = True,
    encoder: bool = False,
) -> Matrix:
    whole = {"inputs": inputs, "outputs": outputs, "none": 1}[split]
    return Matrix(
        name=name,
        part=part,
        inputs=inputs,
        outputs=outputs,
        elements=inputs * outputs,
        split=split,
        pieces=pieces or whole,
        stored=stored,
        encoder=encoder,
    )


def _whole(name: str, elements: int, inputs: int, *, pieces: int = 0, stored: bool = True) -> Matrix:
    """Return several projections of one mixer as one matrix, of which only the size is known."""
    outputs = -(-elements // inputs)
    return Matrix(
        name=name,
        part="attention",
        inputs=inputs,
        outputs=outputs,
        elements=elements,
        split="outputs",
        pieces=pieces or outputs,
        stored=stored,
    )


def _attention_matrices(mixer: Attention, hidden: int) -> Iterator[Matrix]:
    inputs = mixer.inputs or hidden
    source = (mixer.encoder_inputs or hidden) if isinstance(mixer, Cross) else inputs
    cross, stored = isinstance(mixer, Cross), not mixer.shared_weights
    name = "cross" if cross else "attention"
    if mixer.projection_parameters is not None:
        yield _whole(f"{name}.projections", mixer.projection_parameters, inputs, pieces=mixer.heads, stored=stored)
        return
    query = mixer.heads * (mixer.head_dim + mixer.output_gate)
    yield _matrix(f"{name}.query", "attention", inputs, query, "outputs", pieces=mixer.heads, stored=stored)
    if not isinstance(mixer, Shared) or mixer.projects:
        widths = {"key": mixer.head_dim} if mixer.value_from_key else {"key": mixer.head_dim, "value": mixer.value_dim}
        for side, width in widths.items():
            yield _matrix(
                f"{name}.{side}",
                "attention",
                source,
                mixer.kv_heads * width,
                "outputs",
                pieces=mixer.kv_heads,
                stored=stored,
                encoder=cross,
            )
    yield _matrix(
        f"{name}.output", "attention", mixer.heads * mixer.value_dim, hidden, "inputs", pieces=mixer.heads, stored=stored
    )


def _latent_matrices(mixer: Latent, hidden: int) -> Iterator[Matrix]:
    heads = mixer.heads
    query = heads * (mixer.nope_dim + mixer.rope_dim)
    if mixer.q_lora_rank is None:
        yield _matrix("attention.query", "attention", hidden, query, "outputs", pieces=heads)
    else:
        yield _matrix("attention.query_down", "attention", hidden, mixer.q_lora_rank)
        yield _matrix("attention.query_up", "attention", mixer.q_lora_rank, query, "outputs", pieces=heads)
    yield _matrix("attention.latent", "attention", hidden, mixer.kv_lora_rank + mixer.rope_dim)
    expanded = heads * (mixer.nope_dim + mixer.value_head_dim)
    yield _matrix("attention.latent_up", "attention", mixer.kv_lora_rank, expanded, "outputs", pieces=heads)
    if mixer.output_gate:
        yield _matrix("attention.gate", "attention", hidden, mixer.output_gate, "outputs", pieces=heads)
    yield _matrix("attention.output", "attention", heads * mixer.value_head_dim, hidden, "inputs", pieces=heads)


def _compressed_matrices(mixer: Compressed, hidden: int) -> Iterator[Matrix]:
    heads, dim, groups = mixer.heads, mixer.head_dim, mixer.output_groups
    yield _matrix("attention.query_down", "attention", hidden, mixer.q_lora_rank)
    yield _matrix("attention.query_up", "attention", mixer.q_lora_rank, heads * dim, "outputs", pieces=heads)
    yield _matrix("attention.latent", "attention", hidden, dim)
    branches = 2 if mixer.overlap else 1
    yield _matrix("attention.compressor", "attention", hidden, 2 * branches * dim)
    yield _matrix("attention.output_down", "attention", heads * dim // groups, groups * mixer.output_rank, "outputs", pieces=groups)
    yield _matrix("attention.output_up", "attention", groups * mixer.output_rank, hidden, "inputs", pieces=groups)


def _indexer_matrices(indexer: Indexer, hidden: int) -> Iterator[Matrix]:
    inputs = indexer.query_inputs or hidden
    yield _matrix("indexer.query", "attention", inputs, indexer.heads * indexer.head_dim)
    if indexer.matrix_parameters:
        yield _matrix("indexer.other", "attention", 1, indexer.matrix_parameters)
    else:
        yield _matrix("indexer.key", "attention", hidden, indexer.head_dim)
    if indexer.head_weights:
        yield _matrix("indexer.weights", "attention", hidden, indexer.heads)


def _mixer_matrices(mixer: Mixer, hidden: int) -> Iterator[Matrix]:
    if isinstance(mixer, State):
        if mixer.matrix_parameters:
            yield _whole("state.projections", mixer.matrix_parameters, hidden)
    elif isinstance(mixer, Latent):
        yield from _latent_matrices(mixer, hidden)
    elif isinstance(mixer, Compressed):
        yield from _compressed_matrices(mixer, hidden)
    else:
        yield from _attention_matrices(mixer, hidden)
    indexer = getattr(mixer, "indexer", None)
    if indexer is not None and indexer.stored:
        yield from _indexer_matrices(indexer, hidden)


def _mlp_matrices(width: int, hidden: int, *, gated: bool, stored: bool = True) -> Iterator[Matrix]:
    for name in ("mlp.gate", "mlp.up") if gated else ("mlp.up",):
        yield _matrix(name, "mlp", hidden, width, "outputs", stored=stored)
    yield _matrix("mlp.down", "mlp", width, hidden, "inputs", stored=stored)


def block_matrices(block: Block, hidden: int) -> tuple[Matrix, ...]:
    """Return the matrices of one layer that every token is multiplied with; routed experts are not among them.

    Source: the modules of each architecture's reference code, in the terms of Vaswani et al. 2017, arXiv 1706.03762.

    >>> from kvcalc.core.model import Block, Full
    >>> layer = Block(mixers=(Full(heads=2, kv_heads=1, head_dim=4),), mlp=Gated(width=16))
    >>> [(m.name, m.elements) for m in block_matrices(layer, 8)][:3]
    [('attention.query', 64), ('attention.key', 32), ('attention.value', 32)]
    """
    matrices = [matrix for mixer in block.mixers for matrix in _mixer_matrices(mixer, hidden)]
    mlp = block.mlp
    if isinstance(mlp, Dense | Gated):
        matrices += _mlp_matrices(mlp.width, hidden, gated=isinstance(mlp, Gated), stored=not mlp.shared_weights)
    elif isinstance(mlp, Mixture):
        if mlp.router:
            matrices.append(_matrix("router", "router", hidden, mlp.experts + mlp.zero_experts))
        if mlp.shared_width:
            matrices += _mlp_matrices(mlp.shared_width, hidden, gated=mlp.gated)
        if mlp.shared_gate:
            matrices.append(_matrix("mlp.shared_gate", "mlp", hidden, 1))
        if mlp.inputs is not None:
            matrices.append(_matrix("experts.down", "mlp", hidden, mlp.inputs))
            matrices.append(_matrix("experts.up", "mlp", mlp.inputs, hidden))
    if block.matrix_parameters:
        matrices.append(_matrix("other", "other", 1, block.matrix_parameters))
    return tuple(matrices)


def expert_parameters(mixture: Mixture, hidden: int) -> int:
    """Return the parameters of one routed expert.

    Source: Shazeer 2020, arXiv 2002.05202 (gated: three matrices), and Fedus et al. 2021, arXiv 2101.03961.

    >>> expert_parameters(Mixture(experts=8, experts_per_token=2, width=14336), 4096)
    176160768
    """
    inputs = mixture.inputs or hidden
    matrices = (2 if mixture.gated else 1) * inputs * mixture.width + mixture.width * inputs
    biases = (2 if mixture.gated else 1) * mixture.width + inputs if mixture.expert_bias else 0
    return matrices + biases


def head_matrix(model: ModelProfile) -> Matrix | None:
    """Return the output head, if the model has one.

    Source: Press and Wolf 2016, arXiv 1608.05859 (a tied head is the token table, read as a matrix).

    >>> head_matrix.__name__
    'head_matrix'
    """
    if model.head is None:
        return None
    return _matrix("head", "head", model.head.width or model.hidden_size, model.head.rows, "outputs")


def block_parameters(block: Block, hidden: int, *, active: bool = False) -> dict[str, int]:
    """Return a layer's stored parameters by part; with ``active``, only the experts one token is sent to.

    Source: the sum of `block_matrices`, the layer's vectors and its experts.

    >>> from kvcalc.core.model import Block
    >>> block_parameters(Block(mlp=Dense(width=16), vector_parameters=8), 8)
    {'vector': 8, 'mlp': 256}
    """
    parts: dict[str, int] = {"vector": block.vector_parameters}
    for matrix in block_matrices(block, hidden):
        if matrix.stored:
            parts[matrix.part] = parts.get(matrix.part, 0) + matrix.elements
    if isinstance(block.mlp, Mixture):
        count = _active_experts(block.mlp) if active else block.mlp.experts
        parts["experts"] = round(count * expert_parameters(block.mlp, hidden))
    return parts


def _active_experts(mixture: Mixture) -> float:
    return mixture.experts_per_token * mixture.experts / (mixture.experts + mixture.zero_experts)


def _outer_parameters(model: ModelProfile, *, tables: bool) -> dict[str, int]:
    """Parameters outside the layers, the encoder's included."""
    parts = {"vector": model.vector_parameters, "other": model.matrix_parameters}
    head = model.head
    tied = head is not None and head.tied
    if tables:
        parts["embedding"] = sum(table.parameters for table in model.embeddings[1 if tied else 0 :])
    if head is not None:
        parts["vector"] += head.rows if head.bias else 0
        parts["head"] = head.rows * (head.width or model.hidden_size)
        if tied and model.embeddings:
            parts["head"] = model.embeddings[0].parameters
    encoder = model.encoder
    if encoder is not None:
        parts["vector"] += encoder.vector_parameters
        parts["other"] += encoder.matrix_parameters
        if tables:
            parts["embedding"] += sum(table.parameters for table in encoder.embeddings)
    return parts


def _part_parameters(model: ModelProfile, *, active: bool) -> dict[str, int]:
    parts = _outer_parameters(model, tables=not active)
    stacks: list[tuple[Mapping[Block, int], int]] = [(model.block_counts, model.hidden_size)]
    if model.encoder is not None:
        encoder = model.encoder
        counted = {block: encoder.blocks.count(block) for block in dict.fromkeys(encoder.blocks)}
        stacks.append((counted, encoder.hidden_size))
    for counts, hidden in stacks:
        for block, count in counts.items():
            for part, size in block_parameters(block, hidden, active=active).items():
                parts[part] = parts.get(part, 0) + size * count
    return {part: size for part, size in parts.items() if size}


def parameters(model: ModelProfile) -> dict[str, int]:
    """Return the parameters of a model by part; a tied table is counted once, as the head.

    Source: the sum over layers of `block_parameters`, tables, head and what stands outside the layers.
    """
    return _part_parameters(model, active=False)


def active_parameters(model: ModelProfile) -> int:
    """Return the parameters that a token is multiplied with: its experts only, no lookup tables unless tied to the head.

    Source: Fedus et al. 2021, arXiv 2101.03961 (sparse models: active against total).
    """
    return sum(_part_parameters(model, active=True).values())


def weight_bytes(model: ModelProfile, formats: Formats) -> int:
    """Return the bytes of all weights, each part in its own format.

    Source: parameters of each part (`parameters`) times its format's true bytes per element, scales included.
    """
    return sum(int(formats.of(part).bytes(size)) for part, size in parameters(model).items())


def rank_matrix(matrix: Matrix, tensor: int) -> tuple[int, int, int]:
    """Return inputs, outputs and elements of a matrix on the fullest of ``tensor`` ranks.

    Source: Shoeybi et al. 2019, arXiv 1909.08053 (column- and row-parallel linear layers).

    >>> rank_matrix(_matrix("attention.key", "attention", 8, 32, "outputs", pieces=2), 4)
    (8, 16, 128)
    """
    if matrix.split == "none" or tensor == 1:
        return matrix.inputs, matrix.outputs, matrix.elements
    pieces = -(-matrix.pieces // tensor)
    if matrix.split == "outputs":
        outputs = matrix.outputs * pieces // matrix.pieces
        return matrix.inputs, outputs, -(-matrix.elements * pieces // matrix.pieces)
    inputs = matrix.inputs * pieces // matrix.pieces
    return inputs, matrix.outputs, -(-matrix.elements * pieces // matrix.pieces)


def experts_per_rank(mixture: Mixture, parallel: Parallel) -> tuple[int, int]:
    """Return how many experts the fullest rank holds, and into how many slices each of them is cut.

    Source: Rajbhandari et al. 2022, arXiv 2201.05596 (expert parallelism, with slicing over the remaining ranks).

    >>> from kvcalc.core.workload import Parallel
    >>> experts_per_rank(Mixture(experts=8, experts_per_token=2, width=4), Parallel(tensor=4, expert=2))
    (4, 2)
    """
    if parallel.expert == 1:
        return mixture.experts, parallel.tensor
    return -(-mixture.experts // parallel.expert), max(1, parallel.tensor // parallel.expert)


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
    size, rest = divmod(model.layers, stages)
    sizes = [size] * stages
    for place in range(rest):
        sizes[-(place + 2) if stages > 1 else 0] += 1
    cuts = [sum(sizes[:place]) for place in range(stages + 1)]
    return tuple(model.blocks[start:end] for start, end in zip(cuts, cuts[1:], strict=False))


def rank_weight_bytes(model: ModelProfile, formats: Formats, parallel: Parallel) -> int:
    """Return the bytes of weights on the fullest rank.

    Source: `rank_matrix`, `experts_per_rank` and `stage_blocks`; vectors are replicated, tables split by rows.
    """
    return max(
        _stage_weight_bytes(model, blocks, formats, parallel, first=index == 0, last=index == parallel.pipeline - 1)
        for index, blocks in enumerate(stage_blocks(model, parallel.pipeline))
    )


def _stage_weight_bytes(
    model: ModelProfile, blocks: tuple[Block, ...], formats: Formats, parallel: Parallel, *, first: bool, last: bool
) -> int:
    tensor = parallel.tensor
    parts: dict[str, int] = {}

    def add(part: str, elements: int) -> None:
        parts[part] = parts.get(part, 0) + elements

    def add_blocks(stack: tuple[Block, ...], hidden: int) -> None:
        for block in stack:
            add("vector", block.vector_parameters)
            for matrix in block_matrices(block, hidden):
                if matrix.stored:
                    add(matrix.part, rank_matrix(matrix, tensor)[2])
            if isinstance(block.mlp, Mixture):
                experts, slices = experts_per_rank(block.mlp, parallel)
                add("experts", experts * -(-expert_parameters(block.mlp, hidden) // slices))

    add_blocks(blocks, model.hidden_size)
    outer = _outer_parameters(model, tables=True)
    tied = model.head is not None and model.head.tied
    if first:
        add("embedding", -(-outer.get("embedding", 0) // tensor))
        if model.encoder is not None:
            add_blocks(model.encoder.blocks, model.encoder.hidden_size)
    if last or (first and tied):
        add("head", -(-outer.get("head", 0) // tensor))
    if last:
        add("vector", outer["vector"])
        add("other", outer["other"])
    return sum(int(formats.of(part).bytes(size)) for part, size in parts.items())
