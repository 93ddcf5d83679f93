"""Models layer by layer: blocks of mixers and MLPs, tables, head, formats.

A `ModelProfile` says what the model's own config says and nothing of hardware or engines. A layer is a `Block`: the
token mixers it runs (usually one), its MLP, and what else it holds. The classes here, in `layers` and in `mlps` are the
one definition of the profile schema: the YAML loader validates against them, and the JSON Schema is made from them.
"""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.formats import parse_format
from kvcalc.core.identity import ById
from kvcalc.core.layers import (
    MIXERS,
    Attention,
    Chunked,
    Compressed,
    Cross,
    Full,
    Indexer,
    Latent,
    Mixer,
    Shared,
    Sliding,
    State,
)
from kvcalc.core.mlps import MLPS, Dense, Gated, Mixture, Mlp
from kvcalc.core.provenance import Source
from kvcalc.core.records import dataclass
from kvcalc.core.units import bytes_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.core.tensors import Tensor

__all__ = [
    "MIXERS",
    "MLPS",
    "Attention",
    "Block",
    "Chunked",
    "Compressed",
    "Cross",
    "Dense",
    "Encoder",
    "Full",
    "Gated",
    "Head",
    "Indexer",
    "Latent",
    "Lookup",
    "Mixer",
    "Mixture",
    "Mlp",
    "ModelProfile",
    "Part",
    "Shared",
    "Sliding",
    "State",
    "Table",
    "Tower",
    "TowerPart",
    "counted",
]

# What a parameter belongs to; a checkpoint may keep each part in a format of its own.
Part = Literal[
    "embedding",
    "lookup",
    "head",
    "attention",
    "mlp",
    "experts",
    "router",
    "vector",
    "other",
    "vision",
    "audio",
    "talker",
]
# Of these, what stands beside the text model.
TowerPart = Literal["vision", "audio", "talker"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A projection of rows looked up by the last n-grams, into the residual stream (Engram, arXiv 2601.07372).

    Args:
        inputs: width of the rows of a token together.
        outputs: width they are projected to.
    """

    __pydantic_config__ = _STRICT
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One layer.

    Args:
        name: what the profile calls this kind of layer.
        mixers: token mixers, in the order they run; empty for a layer without any.
        mlp: the MLP; left out for a layer without one.
        lookup: the projection of rows of an n-gram table, for a layer that adds them.
        matrix_parameters: further matrix elements that every token is multiplied with.
        parallel: whether mixer and MLP read the same input (one collective under tensor parallelism, not two).
        vector_parameters: norms, biases, convolution kernels and the like, of the whole layer.
    """

    name: str = ""
    mixers: tuple[Mixer, ...] = ()
    mlp: Mlp | None = None
    lookup: Lookup | None = None
    parallel: bool = False
    matrix_parameters: int = 0
    vector_parameters: int = 0

    @property
    def encoder_tokens(self) -> int:
        """Tokens of the encoder's output that the layer attends to; 0 without cross-attention."""
        return max((mixer.encoder_tokens for mixer in self.mixers if isinstance(mixer, Cross)), default=0)


def counted(blocks: Iterable[Block]) -> Mapping[Block, int]:
    """Return distinct layers and how often each stands there, in order of first appearance.

    >>> [(block.name, count) for block, count in counted([Block(name="a"), Block(name="b"), Block(name="a")]).items()]
    [('a', 2), ('b', 1)]
    """
    return _counted(ById(tuple(blocks)))


@lru_cache(maxsize=256)
def _counted(blocks: ById[tuple[Block, ...]]) -> Mapping[Block, int]:
    same: dict[int, list[Block]] = {}  # mostly one object stands for many layers, and hashing one goes deep
    for block in blocks.value:
        same.setdefault(id(block), []).append(block)
    counts: dict[Block, int] = {}
    for block, *others in same.values():
        counts[block] = counts.get(block, 0) + 1 + len(others)
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A lookup table (token, position, per-layer or n-gram embeddings).

    Args:
        name: what it is for.
        rows: rows.
        width: elements of a row.
        lookups: rows that are read for a token.
        part: ``lookup`` for a table of n-grams, which may have a format and, in an engine, a memory of its own.
    """

    __pydantic_config__ = _STRICT
    name: str
    rows: int
    width: int
    lookups: int = 1
    part: Literal["embedding", "lookup"] = "embedding"

    @property
    def parameters(self) -> int:
        """Elements of the table."""
        return self.rows * self.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The output head: hidden state to logits.

    Args:
        rows: logits.
        width: width it multiplies; the hidden size where left out.
        tied: whether it is the token table itself (stored once).
        bias: whether it has a bias.
    """

    __pydantic_config__ = _STRICT
    rows: int
    width: int | None = None
    tied: bool = False
    bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """An encoder that runs once over a sequence's input before decoding; it keeps no cache of its own.

    Args:
        hidden_size: width of its hidden state.
        blocks: its layers.
        tokens: tokens of its output for one sequence.
        embeddings: tables of its own (a table shared with the decoder is not repeated here).
        matrix_parameters: further matrix elements, multiplied for each token.
        vector_parameters: norms, biases and convolutions outside its layers.
    """

    hidden_size: int
    blocks: tuple[Block, ...]
    tokens: int
    embeddings: tuple[Table, ...] = ()
    matrix_parameters: int = 0
    vector_parameters: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tower:
    """A part beside the text model that reads images or sound, or speaks: loaded with it, run by no pass over text.

    Args:
        part: what it is for.
        parameters: elements of the tower and of what leads from it to the text model.
        heads: attention heads; tensor-parallel ranks that divide them share the tower, others hold it whole.
        layers: layers, where its config names them.
        hidden_size: width that its config names: of the hidden state, for Qwen2-VL of what leaves the tower.
    """

    __pydantic_config__ = _STRICT
    part: TowerPart
    parameters: int
    heads: int | None = None
    layers: int | None = None
    hidden_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelProfile:
    """A model, as its checkpoint's own config describes it.

    Args:
        name: catalogue name.
        architecture: the config's ``model_type``.
        hidden_size: width of the hidden state.
        context_limit: tokens the model was made for; none where it has no limit.
        blocks: the layers, in order, one entry a layer.
        embeddings: lookup tables, the token table first.
        head: the output head; none for a model without logits.
        dtype: format of the checkpoint's unquantised tensors, and of activations and cache unless said otherwise.
        weight_formats: formats of the parts that differ from ``dtype``.
        kv_dtype: format of the cache where the checkpoint declares one.
        activation_dtype: format the checkpoint's matrices are multiplied in, where it declares one.
        rotary_positions: positions that global layers have rotary tables for, where a scaling stretches the limit.
        encoder: the encoder of an encoder-decoder model.
        towers: what reads images and sound beside the text model.
        matrix_parameters: further matrix elements outside the layers, multiplied for each token.
        vector_parameters: norms and biases outside the layers.
        rotary_factors: elements of rotary factors that a conversion to GGUF stores beside the parameters.
        prediction_layers: layers behind the others that predict further tokens; no pass over text runs them.
        held_weight_bytes: exact bytes of the weights where the profile was read from the weight file itself.
        file_tensors: the tensors of the GGUF file that it was read from, by name; of other profiles none.
        aliases: other names, such as the Hugging Face id.
        alias_fields: what the checkpoint of an alias has otherwise: ``context_limit``, ``dtype``, ``kv_dtype``, or
            ``text_only`` where it has no towers, ``weights`` where they are stored as such a word says.
        sources: named sources.
        provenance: dotted field path to the name of its source; ``default`` covers the rest.
        notes: what a user should know.
    """

    name: str
    architecture: str
    hidden_size: int
    context_limit: int | None
    blocks: tuple[Block, ...]
    embeddings: tuple[Table, ...]
    head: Head | None
    dtype: str = "bf16"
    weight_formats: Mapping[str, str] = field(default_factory=dict)
    kv_dtype: str | None = None
    activation_dtype: str | None = None
    rotary_positions: int | None = None
    encoder: Encoder | None = None
    towers: tuple[Tower, ...] = ()
    matrix_parameters: int = 0
    vector_parameters: int = 0
    rotary_factors: int = 0
    prediction_layers: int = 0
    held_weight_bytes: int | None = None
    file_tensors: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    aliases: tuple[str, ...] = ()
    alias_fields: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    sources: Mapping[str, Source] = field(default_factory=dict)
    provenance: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def under(self, alias: str) -> ModelProfile:
        """Return the model as the checkpoint of that alias has it; itself where the alias has nothing of its own."""
        own = next((own for name, own in self.alias_fields.items() if name.lower() == alias.strip().lower()), None)
        if not own:
            return self
        fields = {name: value for name, value in own.items() if name not in ("text_only", "weights")}
        assumptions = [
            *(f"{name} {value}" for name, value in fields.items()),
            *(["no towers"] if own.get("text_only") else ()),
            *([f"weights as {own['weights']}"] if own.get("weights") else ()),
        ]
        if own.get("text_only"):
            fields["towers"] = ()
        return replace(self, **fields, notes=(*self.notes, f"as {alias.strip()} has it: {', '.join(assumptions)}"))

    def text_only(self, why: str = "") -> ModelProfile:
        """Return the model without its towers for images and sound; itself where it has none.

        Args:
            why: why they are left out, for the note.
        """
        if not self.towers:
            return self
        weight_bytes = self.held_weight_bytes
        if weight_bytes is not None:
            formats = {tower: parse_format(self.weight_formats.get(tower.part, self.dtype)) for tower in self.towers}
            weight_bytes -= sum(int(form.bytes(tower.parameters)) for tower, form in formats.items())
        parts = " and ".join(f"{tower.part} tower ({tower.parameters:,} parameters)" for tower in self.towers)
        note = f"without its {parts}{f': {why}' if why else ''}"
        return replace(self, towers=(), held_weight_bytes=weight_bytes, notes=(*self.notes, note))

    def without_lookups(self, where: str) -> ModelProfile:
        """Return the model without its tables of n-grams; itself where it has none.

        Args:
            where: where they are kept instead, for the note.
        """
        tables = [table for table in self.embeddings if table.part == "lookup"]
        if not tables:
            return self
        form = parse_format(self.weight_formats.get("lookup", self.dtype))
        size = sum(int(form.bytes(table.parameters)) for table in tables)
        row = sum(int(form.bytes(table.lookups * table.width)) for table in tables)
        weight_bytes = None if self.held_weight_bytes is None else self.held_weight_bytes - size
        kept = tuple(table for table in self.embeddings if table.part != "lookup")
        note = f"its n-gram tables ({bytes_text(size)}) are {where}; a token reads {bytes_text(row)} of them from there"
        return replace(self, embeddings=kept, held_weight_bytes=weight_bytes, notes=(*self.notes, note))

    @cached_property
    def block_counts(self) -> Mapping[Block, int]:
        """Distinct layers and how often each stands in the model, in order of first appearance."""
        return counted(self.blocks)

    @cached_property
    def mixers(self) -> tuple[Mixer, ...]:
        """Distinct mixers of the layers, in order of first appearance."""
        return tuple(dict.fromkeys(mixer for block in self.block_counts for mixer in block.mixers))

    @property
    def is_mixture(self) -> bool:
        """Whether a layer has a mixture of experts."""
        return any(isinstance(block.mlp, Mixture) for block in self.block_counts)

    def has(self, *kinds: type[Mixer]) -> bool:
        """Whether a layer has a mixer of one of these kinds."""
        return any(isinstance(mixer, kinds) for mixer in self.mixers)

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.blocks)

    @property
    def is_gguf(self) -> bool:
        """Whether the profile was read from a GGUF file."""
        return any(source.note.endswith(".gguf") for source in self.sources.values())
