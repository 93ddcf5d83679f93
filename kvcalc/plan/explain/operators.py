"""Spelling a pass: the numbers behind each operator, in the order in which `forward_cost` lists them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.model import Attention, Mixture, counted
from kvcalc.core.units import ceil_div
from kvcalc.cost.collectives import all_reduces, expert_spread
from kvcalc.cost.parameters import block_matrices, head_matrix
from kvcalc.cost.sharding import experts_per_rank, rank_matrix, stage_blocks
from kvcalc.plan.explain.mixers import mixer_terms
from kvcalc.plan.explain.parameters import expert_text, matrix_text
from kvcalc.plan.explain.text import factor, share, stored, total

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.core.workload import Formats, Parallel, TokenGroup
    from kvcalc.cost.parameters import Matrix

    # Fields of an operator: the formula, and the same with numbers.
    Term = tuple[str, str]
    Terms = Mapping[str, Term]

__all__ = ["Scene", "Spelling", "stage_spellings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The numbers behind one operator.

    Args:
        name: the operator's name in `forward_cost`.
        path: the model's field that its sizes come from.
        terms: for each of its fields the formula, and the same with numbers.
    """

    name: str
    path: str
    terms: Terms = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A pass on the busiest rank.

    Args:
        model: the model.
        group: the sequences of that rank.
        all_tokens: new tokens of all ranks.
        formats: number formats.
        parallel: how the model is spread.
    """

    model: ModelProfile
    group: TokenGroup
    all_tokens: int
    formats: Formats
    parallel: Parallel

    @property
    def tokens(self) -> str:
        """New tokens of the rank."""
        return _times(self.group.sequences, self.group.query_tokens)

    @property
    def one_gpu(self) -> str:
        """Return the words on a split size."""
        return " of one GPU" if self.parallel.tensor > 1 else ""

    def hidden(self, elements: int, text: str = "") -> str:
        """Return the bytes of that many elements of a hidden state."""
        return factor(stored(text or str(elements), elements, self.formats.hidden))


def _times(sequences: int, tokens: int) -> str:
    return str(sequences) if tokens == 1 else f"{sequences} * {tokens}"


def stage_spellings(scene: Scene) -> Iterator[list[Spelling]]:
    """Return the operators of each pipeline stage."""
    stages = stage_blocks(scene.model, scene.parallel.pipeline)
    for index, blocks in enumerate(stages):
        found = list(_input_ops(scene)) if index == 0 else [_pipeline_op(scene)]
        found += _block_ops(scene, blocks)
        if index == len(stages) - 1:
            found += _output_ops(scene)
        yield found


def _input_ops(scene: Scene) -> Iterator[Spelling]:
    fmt = scene.formats.of("embedding")
    rows = total(stored(str(table.width), table.width, fmt) for table in scene.model.embeddings)
    terms = {"weight_bytes": (f"tokens x rows of the tables x b ({fmt.name})", f"{scene.tokens} * {factor(rows)}")}
    yield Spelling(name="embedding", path="embeddings", terms=terms)
    if scene.model.encoder is not None and scene.group.encoder_pass:
        yield from _encoder_ops(scene)


def _encoder_ops(scene: Scene) -> Iterator[Spelling]:
    encoder = scene.model.encoder
    if encoder is None:
        return
    sequences = scene.group.sequences
    tokens = f"{sequences} * {encoder.tokens}"
    for block, count in counted(encoder.blocks).items():
        for matrix in block_matrices(block, encoder.hidden_size):
            yield _matrix_op(scene, matrix, f"encoder.{matrix.name}", "encoder", tokens, count)
        for mixer in block.mixers:
            if isinstance(mixer, Attention):
                heads = f"{share(mixer.heads, scene.parallel.tensor)} * ({mixer.head_dim} + {mixer.value_dim})"
                flop = f"{count} * 2 * {tokens} * {encoder.tokens} * {heads}"
                formula = "layers x 2 x sequences x tokens x tokens x heads x (head_dim + value_head_dim)"
                yield Spelling(name="encoder.attention", path="encoder", terms={"flop": (formula, flop)})
        if isinstance(block.mlp, Mixture):
            yield _experts_op(scene, block.mlp, "encoder.experts", "encoder", tokens, count, encoder.hidden_size)
        yield _vector_op(scene, str(block.vector_parameters), block.vector_parameters, "encoder.vectors", count)
    if encoder.matrix_parameters:
        yield _outer_op(scene, "encoder.other", "encoder", encoder.matrix_parameters, tokens)
    if encoder.vector_parameters:
        size = encoder.vector_parameters
        yield _vector_op(scene, str(size), size, "encoder.final_vectors", 1)


def _block_ops(scene: Scene, blocks: tuple[Block, ...]) -> Iterator[Spelling]:
    model, group = scene.model, scene.group
    counts = counted(blocks)
    for block, count in counts.items():
        prefix = f"{block.name}." if len(counts) > 1 and block.name else ""
        path = f"blocks.{block.name}"
        for matrix in block_matrices(block, model.hidden_size):
            rows = f"{group.sequences} * {block.encoder_tokens}" if matrix.encoder else scene.tokens
            if matrix.used and (group.encoder_pass or not matrix.encoder):
                yield _matrix_op(scene, matrix, prefix + matrix.name, path, rows, count)
        for mixer in block.mixers:
            yield _mixer_op(scene, mixer, prefix, path, count)
        if isinstance(block.mlp, Mixture):
            reached = _tokens_at_experts(scene)
            yield _experts_op(scene, block.mlp, f"{prefix}experts", path, reached, count, model.hidden_size)
        yield from _collective_ops(scene, block, prefix, path, count)
    size = sum(block.vector_parameters * count for block, count in counts.items())
    if size:
        text = total(
            f"{count} * {block.vector_parameters}" for block, count in counts.items() if block.vector_parameters
        )
        yield _vector_op(scene, text, size, "vectors", 1)


def _output_ops(scene: Scene) -> Iterator[Spelling]:
    model, group = scene.model, scene.group
    bias = model.head.rows if model.head is not None and model.head.bias else 0
    vectors = model.vector_parameters + bias
    if vectors:
        text = f"{model.vector_parameters} + {bias}" if bias else str(vectors)
        yield _vector_op(scene, text, vectors, "final_vectors", 1, "vector_parameters")
    if model.matrix_parameters:
        yield _outer_op(scene, "other", "matrix_parameters", model.matrix_parameters, scene.tokens)
    head = head_matrix(model)
    if head is not None:
        yield _head_op(scene, head, _times(group.sequences, min(group.logit_tokens, group.query_tokens)))


def _head_op(scene: Scene, head: Matrix, wanted: str) -> Spelling:
    found = _matrix_op(scene, head, "head", "head", wanted, 1)
    tensor = scene.parallel.tensor
    logits = scene.hidden(ceil_div(head.outputs, tensor), share(head.outputs, tensor))
    terms = dict(found.terms)
    terms["io_bytes"] = (f"tokens with logits x vocabulary{scene.one_gpu} x b", f"{wanted} * {logits}")
    terms["activation_bytes"] = ("tokens with logits x hidden x b", f"{wanted} * {scene.hidden(head.inputs)}")
    return Spelling(name="head", path="head", terms=terms)


def _rank_elements(matrix: Matrix, tensor: int) -> str:
    """Spell the elements of a matrix on the fullest rank: its share of the pieces that are not cut."""
    text = matrix_text(matrix)
    if matrix.split == "none" or tensor == 1:
        return f"({text})" if " " in text else text
    pieces = ceil_div(matrix.pieces, tensor)
    if matrix.elements * pieces % matrix.pieces:
        return f"(-(-{text} * {pieces} // {matrix.pieces}))"
    return f"({text} / {tensor})" if matrix.pieces % tensor == 0 else f"({text} * {pieces} / {matrix.pieces})"


def _matrix_op(scene: Scene, matrix: Matrix, name: str, path: str, tokens: str, layers: int) -> Spelling:
    inputs, outputs, elements = rank_matrix(matrix, scene.parallel.tensor)
    text, fmt = _rank_elements(matrix, scene.parallel.tensor), scene.formats.of(matrix.part)
    read_formula = f"layers x elements{scene.one_gpu} x b ({fmt.name})"
    read = f"{layers} * {stored(text, elements, fmt)}"
    through_formula = f"layers x tokens x (inputs + outputs){scene.one_gpu} x b"
    through = f"{layers} * {tokens} * {scene.hidden(inputs + outputs, f'{inputs} + {outputs}')}"
    terms = {"flop": (f"layers x 2 x tokens x elements{scene.one_gpu}", f"{layers} * 2 * {tokens} * {text}")}
    if matrix.stored:
        terms["weight_bytes"] = (read_formula, read)
        terms["activation_bytes"] = (through_formula, through)
    else:
        terms["activation_bytes"] = (
            f"{through_formula} + an earlier layer's weights, {read_formula}",
            f"{through} + {read}",
        )
    return Spelling(name=name, path=path, terms=terms)


def _outer_op(scene: Scene, name: str, path: str, size: int, tokens: str) -> Spelling:
    tensor, fmt = scene.parallel.tensor, scene.formats.of("other")
    text = share(size, tensor)
    terms = {
        "flop": (f"2 x tokens x elements{scene.one_gpu}", f"2 * {tokens} * {text}"),
        "weight_bytes": (f"elements{scene.one_gpu} x b ({fmt.name})", stored(text, ceil_div(size, tensor), fmt)),
    }
    return Spelling(name=name, path=path, terms=terms)


def _vector_op(scene: Scene, text: str, size: int, name: str, layers: int, path: str = "blocks") -> Spelling:
    fmt = scene.formats.of("vector")
    read = f"{layers} * {stored(text, size, fmt)}" if layers > 1 else stored(text, size, fmt)
    terms = {"weight_bytes": (f"layers x elements x b ({fmt.name})", read)}
    return Spelling(name=name, path="encoder" if name.startswith("encoder.") else path, terms=terms)


def _mixer_op(scene: Scene, mixer: Mixer, prefix: str, path: str, count: int) -> Spelling:
    found = mixer_terms(mixer, scene.group, scene.formats, scene.parallel.tensor)
    terms = {
        name: (f"layers x sequences x {factor(formula)}", f"{count} * {scene.group.sequences} * {factor(expression)}")
        for name, (formula, expression) in found.items()
    }
    return Spelling(name=prefix + mixer.kind, path=path, terms=terms)


def _tokens_at_experts(scene: Scene) -> str:
    """Spell the tokens that reach the experts this rank shares with others."""
    spread = expert_spread(scene.parallel)
    return scene.tokens if spread == 1 else f"min({scene.tokens} * {spread}, {scene.all_tokens})"


def _experts_op(
    scene: Scene, mixture: Mixture, name: str, path: str, tokens: str, layers: int, hidden: int
) -> Spelling:
    held, slices = experts_per_rank(mixture, scene.parallel)
    cut = f" / {slices}" if slices > 1 else ""
    (size_formula, size), (matrix_formula, matrices) = (
        expert_text(mixture, hidden, biases=biases) for biases in (True, False)
    )
    fmt, chosen = scene.formats.of("experts"), mixture.experts_per_token
    choices = f"({mixture.experts} + {mixture.zero_experts})" if mixture.zero_experts else str(mixture.experts)
    # of the k experts of a token, those that do something, and of these those on this rank
    used = f"{chosen} * {held} / {choices}" if mixture.zero_experts or held < mixture.experts else str(chosen)
    exponent = f"({tokens})" if " * " in tokens else tokens
    idle = mixture.experts + mixture.zero_experts > chosen
    touched = f"{held} * (1 - (1 - {chosen} / {choices}) ** {exponent})" if idle else str(held)
    width = f"{mixture.branches} * {mixture.width}{cut}"
    through = stored(f"2 * {mixture.inputs or hidden} + 2 * {width}", 0, scene.formats.hidden)
    share_formula = f"k{_experts_note(scene, mixture)}"
    terms = {
        "flop": (
            f"layers x 2 x tokens x {share_formula} x ({matrix_formula}){scene.one_gpu}",
            f"{layers} * 2 * {tokens} * {used} * ({matrices}){cut}",
        ),
        "weight_bytes": (
            f"{_touched_formula(scene, mixture)} x ({size_formula}){scene.one_gpu} x b ({fmt.name})",
            f"{layers} * {touched} * {stored(f'({size}){cut}', 0, fmt)}",
        ),
        "activation_bytes": (
            f"layers x tokens x {share_formula} x (2 x inputs + 2 x inner width{scene.one_gpu}) x b",
            f"{layers} * {tokens} * {used} * {through}",
        ),
    }
    return Spelling(name=name, path=path, terms=terms)


def _touched_formula(scene: Scene, mixture: Mixture) -> str:
    held = "E of one GPU" if experts_per_rank(mixture, scene.parallel)[0] < mixture.experts else "E"
    return f"layers x {held} x (1 - (1 - k / {_choices_word(mixture)}) ^ tokens) (the expected number touched)"


def _choices_word(mixture: Mixture) -> str:
    return "(E + zero experts)" if mixture.zero_experts else "E"


def _experts_note(scene: Scene, mixture: Mixture) -> str:
    """Note the share of a token's k experts that do something on this rank."""
    held = experts_per_rank(mixture, scene.parallel)[0]
    if held < mixture.experts:
        return f" x E of one GPU / {_choices_word(mixture)}"
    return " x E / (E + zero experts)" if mixture.zero_experts else ""


def _link_op(name: str, path: str, least: Term, usual: Term, steps: str) -> Spelling:
    terms = {
        "link_bytes": least,
        "collective_bytes": usual,
        "collective_steps": ("messages that follow each other", steps),
    }
    return Spelling(name=name, path=path, terms=terms)


def _pipeline_op(scene: Scene) -> Spelling:
    size = ("tokens x hidden x b", f"{scene.tokens} * {scene.hidden(scene.model.hidden_size)}")
    return _link_op("pipeline", "hidden_size", size, size, "1")


def _collective_ops(scene: Scene, block: Block, prefix: str, path: str, count: int) -> Iterator[Spelling]:
    tensor, hidden = scene.parallel.tensor, scene.hidden(scene.model.hidden_size)
    sums = all_reduces(block)
    if tensor > 1 and sums:
        least = ("layers x sums x tokens x hidden x b", f"{count} * {sums} * {scene.tokens} * {hidden}")
        usual = (f"{least[0]} x 2 x (ranks - 1) / ranks", f"{least[1]} * 2 * ({tensor} - 1) / {tensor}")
        yield _link_op(f"{prefix}all_reduce", path, least, usual, f"{count} * {sums} * 2 * ({tensor} - 1)")
    spread = expert_spread(scene.parallel)
    if isinstance(block.mlp, Mixture) and spread > 1:
        formula, sent = "layers x 2 x tokens x hidden x b", f"{count} * 2 * {scene.tokens} * {hidden}"
        k = block.mlp.experts_per_token
        copies = f"{k} * ({spread} - 1) / {spread}"
        reached = f"min(({spread} - 1) * (1 - (1 - 1 / {spread}) ** {k}), {copies})"
        least = (f"{formula} x other ranks that hold one of the k experts, as expected", f"{sent} * {reached}")
        usual = (f"{formula} x k x (ranks - 1) / ranks", f"{sent} * {copies}")
        yield _link_op(f"{prefix}expert_exchange", path, least, usual, f"{count} * 2 * ({spread} - 1)")
