"""Parameters: the matrices of a layer, once; counts, bytes and FLOP of the linear layers all follow from this list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, assert_never

from kvcalc.core.model import (
    Attention,
    Chunked,
    Compressed,
    Cross,
    Dense,
    Full,
    Gated,
    Latent,
    Mixture,
    Shared,
    Sliding,
    State,
    counted,
)
from kvcalc.core.records import dataclass
from kvcalc.core.traced import called
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, Indexer, Mixer, ModelProfile, Part
    from kvcalc.core.workload import Formats

__all__ = [
    "Matrix",
    "active_experts",
    "active_parameters",
    "block_matrices",
    "block_parameters",
    "expert_matrix_parameters",
    "expert_parameters",
    "head_matrix",
    "outer_parameters",
    "parameters",
    "tower_parameters",
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
        used: false where the checkpoint holds it and nothing is multiplied with it.
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
    used: bool = True


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
    used: bool = True,
) -> Matrix:
    whole = {"inputs": inputs, "outputs": outputs, "none": 1}[split]
    return Matrix(
        name=name,
        part=part,
        inputs=inputs,
        outputs=outputs,
        elements=called(inputs * outputs, name),
        split=split,
        pieces=pieces or whole,
        stored=stored,
        encoder=encoder,
        used=used,
    )


def _whole(name: str, elements: int, inputs: int, *, pieces: int = 0, stored: bool = True) -> Matrix:
    """Return several projections of one mixer as one matrix, of which only the size is known."""
    outputs = ceil_div(elements, inputs)
    return Matrix(
        name=name,
        part="attention",
        inputs=inputs,
        outputs=outputs,
        elements=called(elements, name),
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
                used=not isinstance(mixer, Shared),
            )
    yield _matrix(
        f"{name}.output",
        "attention",
        mixer.heads * mixer.value_dim,
        hidden,
        "inputs",
        pieces=mixer.heads,
        stored=stored,
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
    if mixer.entries == "own":
        # the entries and, where several tokens are joined in one, the weights of each in it
        sides = (2 if mixer.overlap else 1) * (2 if mixer.ratio > 1 else 1)
        yield _matrix("attention.compressor", "attention", hidden, sides * dim)
    yield _matrix(
        "attention.output_down",
        "attention",
        heads * dim // groups,
        groups * mixer.output_rank,
        "outputs",
        pieces=groups,
    )
    yield _matrix("attention.output_up", "attention", groups * mixer.output_rank, hidden, "inputs", pieces=groups)


def _indexer_matrices(indexer: Indexer, hidden: int) -> Iterator[Matrix]:
    inputs = indexer.query_inputs or hidden
    yield _matrix("indexer.query", "attention", inputs, indexer.heads * indexer.head_dim)
    if indexer.matrix_parameters:
        yield _matrix("indexer.other", "attention", 1, indexer.matrix_parameters)
    elif indexer.own_keys:
        yield _matrix("indexer.key", "attention", hidden, indexer.head_dim)
    if indexer.head_weights:
        yield _matrix("indexer.weights", "attention", hidden, indexer.heads)


def _mixer_matrices(mixer: Mixer, hidden: int) -> Iterator[Matrix]:
    match mixer:
        case Full() | Sliding() | Chunked() | Shared() | Cross():
            yield from _attention_matrices(mixer, hidden)
        case Latent():
            yield from _latent_matrices(mixer, hidden)
        case Compressed():
            yield from _compressed_matrices(mixer, hidden)
        case State():
            if mixer.matrix_parameters:
                yield _whole("state.projections", mixer.matrix_parameters, hidden)
        case _:
            assert_never(mixer)
    if mixer.indexer is not None and mixer.indexer.stored:
        yield from _indexer_matrices(mixer.indexer, hidden)


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
    if block.lookup is not None:
        matrices.append(_matrix("lookup", "mlp", block.lookup.inputs, block.lookup.outputs, "outputs"))
    if block.matrix_parameters:
        matrices.append(_matrix("other", "other", 1, block.matrix_parameters))
    return tuple(matrices)


def expert_matrix_parameters(mixture: Mixture, hidden: int) -> int:
    """Return the matrix elements of one routed expert, which a token sent to it is multiplied with.

    Source: Shazeer 2020, arXiv 2002.05202 (gated: three matrices), and Fedus et al. 2021, arXiv 2101.03961.

    >>> expert_matrix_parameters(Mixture(experts=8, experts_per_token=2, width=16), 8)
    384
    """
    return (mixture.branches + 1) * (mixture.inputs or hidden) * mixture.width


def expert_parameters(mixture: Mixture, hidden: int) -> int:
    """Return the parameters of one routed expert, biases included.

    Source: `expert_matrix_parameters`, and a bias for each output of its matrices where it has them (gpt-oss).

    >>> expert_parameters(Mixture(experts=8, experts_per_token=2, width=14336), 4096)
    176160768
    """
    biases = mixture.branches * mixture.width + (mixture.inputs or hidden) if mixture.expert_bias else 0
    return expert_matrix_parameters(mixture, hidden) + biases


def active_experts(mixture: Mixture) -> float:
    """Return the expected number of a token's k experts that do something: k * E / (E + Z), all choices being alike.

    Source: LongCat-Flash 2025, arXiv 2509.01322, section 2.1 (zero-computation experts among those chosen).

    >>> active_experts(Mixture(experts=6, experts_per_token=4, width=16, zero_experts=2))
    3.0
    """
    return mixture.experts_per_token * mixture.experts / (mixture.experts + mixture.zero_experts)


def head_matrix(model: ModelProfile) -> Matrix | None:
    """Return the output head, if the model has one.

    Source: Press and Wolf 2016, arXiv 1608.05859 (a tied head is the token table, read as a matrix).

    >>> from kvcalc.core.model import Head, ModelProfile
    >>> model = ModelProfile(name="x", architecture="x", hidden_size=8, context_limit=None, blocks=(), embeddings=(),
    ...     head=Head(rows=100))
    >>> head_matrix(model).inputs, head_matrix(model).outputs, head_matrix(model).elements
    (8, 100, 800)
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
        count = active_experts(block.mlp) if active else block.mlp.experts
        parts["experts"] = round(count * expert_parameters(block.mlp, hidden))
    return parts


def outer_parameters(model: ModelProfile, *, tables: bool) -> dict[str, int]:
    """Return the parameters outside the layers by part, the encoder's included.

    Args:
        model: the model.
        tables: whether lookup tables are counted.

    Source: Press and Wolf 2016, arXiv 1608.05859 (a tied table is counted once, as the head).
    """
    parts = {"vector": model.vector_parameters, "other": model.matrix_parameters}
    head = model.head
    tied = head is not None and head.tied
    if tables:
        for table in model.embeddings[1 if tied else 0 :]:
            parts[table.part] = parts.get(table.part, 0) + table.parameters
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
            parts["embedding"] = parts.get("embedding", 0) + sum(table.parameters for table in encoder.embeddings)
    return parts


def tower_parameters(model: ModelProfile) -> dict[str, int]:
    """Return the parameters beside the text model by part: towers for images and sound, with their projectors.

    Source: Liu et al. 2023, arXiv 2304.08485 (an encoder of images and a projector to the text model's width).
    """
    parts: dict[str, int] = {}
    for tower in model.towers:
        parts[tower.part] = parts.get(tower.part, 0) + tower.parameters
    return parts


def _part_parameters(model: ModelProfile, *, active: bool) -> dict[str, int]:
    parts = outer_parameters(model, tables=not active) | ({} if active else tower_parameters(model))
    stacks: list[tuple[Mapping[Block, int], int]] = [(model.block_counts, model.hidden_size)]
    if model.encoder is not None:
        stacks.append((counted(model.encoder.blocks), model.encoder.hidden_size))
    for counts, hidden in stacks:
        for block, count in counts.items():
            for part, size in block_parameters(block, hidden, active=active).items():
                parts[part] = parts.get(part, 0) + size * count
    return {part: size for part, size in parts.items() if size}


def parameters(model: ModelProfile) -> dict[str, int]:
    """Return the parameters of a model by part, its towers included; a tied table is counted once, as the head.

    Source: the sum over layers of `block_parameters`, tables, head, what stands outside the layers, and towers.
    """
    return _part_parameters(model, active=False)


def active_parameters(model: ModelProfile) -> int:
    """Return the parameters that a token of text is multiplied with: its experts only, no table unless tied.

    Source: Fedus et al. 2021, arXiv 2101.03961 (sparse models: active against total).
    """
    return sum(_part_parameters(model, active=True).values())


def weight_bytes(model: ModelProfile, formats: Formats) -> int:
    """Return the bytes of all weights, each part in its own format.

    Source: parameters of each part (`parameters`) times its format's true bytes per element, scales included.
    """
    return sum(int(formats.of(part).bytes(size)) for part, size in parameters(model).items())
