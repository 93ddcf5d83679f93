"""A whole model's graph: embedding, layers, norm and head.

Source: llama.cpp commit 0c1e57098bba, ``src/models``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Chunked, Full, Latent, Mixture, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.architectures import architecture_key
from kvcalc.engines.llama_cpp.graphs.context import Context
from kvcalc.engines.llama_cpp.graphs.families import DEEPSEEK_V2, DEEPSEEK_V3, FAMILIES, Family
from kvcalc.engines.llama_cpp.graphs.gemma import gemma4_layer, per_layer_inputs
from kvcalc.engines.llama_cpp.graphs.gemma3n import SPARSE_LAYERS, gemma3n_layer, joined_streams, split_streams
from kvcalc.engines.llama_cpp.graphs.latent import latent
from kvcalc.engines.llama_cpp.graphs.layers import attend, deepstacked, layer, mixture_of, mlp, picked
from kvcalc.engines.llama_cpp.graphs.recurrent import Recurrence, gated_attention, recurrent
from kvcalc.engines.llama_cpp.graphs.shapes import Attention, Cells

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.engines.llama_cpp.graphs.shapes import Batch, Homes
    from kvcalc.engines.llama_cpp.graphs.tensors import Graph, Tensor
    from kvcalc.engines.llama_cpp.layers import Layer

__all__ = ["Plan", "build", "check_described", "family_of", "is_described", "layer_kinds"]

# Of four layers of Llama 4 the last one does not rotate.
_FOUR = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Parts of a graph that are the same under every placement.

    Args:
        model: the model.
        layers: its layers as the cache has them.
        batch: the micro-batch.
        cells: cells of each cache, by its role.
        widest: elements of the widest layer's values.
        slots: rows of recurrent states.
        factors: elements of the rotary factors that are a weight of each layer.
        kinds: sort of each layer: equal for layers of equal graphs.
    """

    model: ModelProfile
    layers: tuple[Layer, ...]
    batch: Batch
    cells: Mapping[str, int]
    widest: int
    slots: int
    factors: int
    kinds: tuple[Hashable, ...]


# Architectures whose last layers read the caches of earlier ones.
_SHARING = ("gemma3n", "gemma4")
_PLAIN = (Full, Sliding, Chunked)
# Experts from which on a DeepSeek-V2 file is one of V3.
_V3_EXPERTS = 256
# Positions given for each token of a model that sees.
_SECTIONS = 4
# Rows of the table of Falcon-Mamba, whose files have the name of Mamba.
_FALCON_ROWS = 65_024


def family_of(model: ModelProfile) -> Family:
    """Return the architecture of a model; Llama's for one that is not described."""
    family = FAMILIES.get(architecture_key(model.architecture), Family())
    mixtures = [block.mlp for block in model.block_counts if isinstance(block.mlp, Mixture)]
    if _may_see(model):
        return replace(family, per_token=_SECTIONS)
    if family.routing == DEEPSEEK_V2 and mixtures and mixtures[0].experts >= _V3_EXPERTS:
        return replace(family, routing=DEEPSEEK_V3)
    untied = model.head is not None and not model.head.tied
    if architecture_key(model.architecture) == "granitehybrid" and untied and not mixtures:
        return FAMILIES["bamba"]  # has the name of Granite's in files; Granite's without experts tie their head
    return family


def layer_kinds(model: ModelProfile, layers: Sequence[Layer]) -> tuple[Hashable, ...]:
    """Return the sort of each layer of a model: equal for layers of equal graphs."""
    family = family_of(model)
    numbers = {block: number for number, block in enumerate(model.block_counts)}
    known: dict[int, int] = {}
    kinds = []
    for index, (block, layer_) in enumerate(zip(model.blocks, layers, strict=True)):
        number = known.setdefault(id(block), numbers[block])
        turn = index % _FOUR if family.rope == "three of four" else 0
        turn += index < SPARSE_LAYERS and architecture_key(model.architecture) == "gemma3n"
        kinds.append((number, layer_.window, turn, min(index, family.deepstack)))
    return tuple(kinds)


def check_described(model: ModelProfile) -> None:
    """Check that a graph can be built of the model's layers, if only as Llama's.

    Raises:
        UnsupportedError: layers that no described architecture has.
    """
    why = _undescribed(model)
    if why:
        named = f"the compute buffers of {model.architecture[:60]} in llama.cpp are not described"
        raise UnsupportedError(f"{named}: {why}")


def _undescribed(model: ModelProfile) -> str:
    """Say why no graph can be built of a model's layers; nothing where one can."""
    key = architecture_key(model.architecture)
    if model.encoder is not None:
        return "its encoder runs in a graph of its own"
    kinds = (*_PLAIN, State, Latent) if key in FAMILIES else _PLAIN
    others = {
        mixer.kind
        for mixer in model.mixers
        if not isinstance(mixer, kinds) and not (key in _SHARING and isinstance(mixer, Shared))
    }
    if others:
        return f"its layers of kind {' and '.join(sorted(others))} are not those of a described graph"
    if not all(block.mixers for block in model.block_counts) and not key.startswith("nemotronh"):
        return "it has layers without attention or states"
    return ""


def is_described(model: ModelProfile) -> bool:
    """Whether the graph of the model's architecture is described."""
    return architecture_key(model.architecture) in FAMILIES and not _may_see(model)


def _may_see(model: ModelProfile) -> bool:
    """Whether a GLM file may be of a model that sees: these have the same name, and no layers that predict."""
    seen = architecture_key(model.architecture) == "glm4moe" and model.is_gguf
    return seen and not model.prediction_layers


def build(plan: Plan, homes: Homes, order: Sequence[int]) -> Graph:
    """Return the graph of a model with the layers in ``order``, the last layer of the model among them."""
    return _Builder(plan, homes).build(order)


class _Builder:
    """Builds one graph."""

    def __init__(self, plan: Plan, homes: Homes) -> None:
        model = plan.model
        self.plan = plan
        self.model = model
        self.key = architecture_key(model.architecture)
        self.family = family_of(model)
        self.ctx = Context(plan.batch, homes, hidden=model.hidden_size)
        windowed = "swa" in plan.cells
        self.caches = {
            role: Cells(count, plan.widest, windowed=windowed and role in ("full", "swa"))
            for role, count in plan.cells.items()
        }
        falcon = self.key == "falconmamba" or (self.key == "mamba" and model.embeddings[0].rows == _FALCON_ROWS)
        self.memory = Recurrence(
            self.ctx,
            plan.slots,
            normed=falcon or self.key == "jamba",
            scaled=self.key == "jamba",
            joint=self.key == "qwen3next",
            inner_norm=self.key != "falconh1",
        )

    def build(self, order: Sequence[int]) -> Graph:
        ctx, family = self.ctx, self.family
        current = self._embedded()
        self._add_inputs(current)
        if self.key == "gemma3n":
            current = split_streams(ctx, current)
        last = len(self.plan.layers) - 1
        for number in order:
            ctx.layer = number
            ctx.begins[number] = len(ctx.nodes)
            current = self._layer(number, current, last=number == last and not family.late_outputs)
            if number < family.deepstack:
                current = deepstacked(ctx, current)
        if family.kept_residual:
            current.kept = True
        if self.key == "gemma3n":
            current = picked(ctx, joined_streams(ctx, current))
        return self._headed(current)

    def _add_inputs(self, current: Tensor) -> None:
        """Add the inputs that each layer gets beside the hidden state (Gemma 4)."""
        table = next((table for table in self.model.embeddings if table.name == "per_layer"), None)
        self.inputs = None
        if table is not None:
            rows, layers = max(table.rows, self.model.embeddings[0].rows), self.model.layers
            width = table.width // layers
            self.inputs = per_layer_inputs(self.ctx, current, rows=rows, width=width, layers=layers)

    def _embedded(self) -> Tensor:
        ctx, family, model = self.ctx, self.family, self.model
        tables = model.embeddings
        current = ctx.embedding(tables[0].rows, ctx.hidden * (1 + family.deepstack))
        if family.embedding_scale:
            current = ctx.like("scale", current)
            if family.embedding_scale == "within":
                ctx.expand(current)
        if family.positions:
            table = ctx.weight("position_embd", ctx.hidden, tables[1].rows, outside=True)
            current = ctx.like("add", current, ctx.rows(table, ctx.position()))
        if family.embedding_norm:
            current = ctx.like("norm", current)
            for op, name in (("mul", "token_embd_norm"), ("add", "token_embd_norm.bias")):
                current = ctx.like(op, current, ctx.weight(name, ctx.hidden, outside=True))
        return current

    def _headed(self, current: Tensor) -> Graph:
        ctx, family, head = self.ctx, self.family, self.model.head
        if family.kept_residual:
            current = picked(ctx, current)
        current = ctx.norm(current, "" if family.bare_norm else "output_norm", kind=family.norm, bias=family.norm_bias)
        current.kept = True
        if family.late_outputs and not family.kept_residual:
            current = picked(ctx, current)
            current.kept = True
        if head is not None:
            current = ctx.matmul(ctx.weight("output", ctx.hidden, head.rows, outside=True), current)
            if family.head_bias:
                current = ctx.like("add", current, ctx.weight("output.bias", head.rows, outside=True))
            for op in family.logits:
                current = ctx.like(op, current)
        current.kept = True
        ctx.expand(current)
        return ctx

    def _layer(self, number: int, current: Tensor, *, last: bool) -> Tensor:
        block, shape = self.model.blocks[number], self.plan.layers[number]
        if self.model.has(State):
            return self._recurrent_layer(block, shape, current, last=last)
        mixer = block.mixers[0]
        if isinstance(mixer, Latent):
            return self._latent_layer(block, mixer, current, last=last)
        if self.key == "gemma4":
            return self._gemma4_layer(block, shape, current)
        if self.key == "gemma3n" and self.inputs is not None:
            heads, cells = self._heads(shape), self._cells(shape)
            source = self._source(shape)
            return gemma3n_layer(self.ctx, block, current, shape=heads, cells=cells, source=source, inputs=self.inputs)
        return layer(
            self.ctx,
            self.family,
            current,
            shape=self._heads(shape),
            cells=self._cells(shape),
            mlp_=block.mlp,
            rotated=self._rotated(number, shape),
            factors=self.plan.factors,
            last=last,
        )

    def _heads(self, shape: Layer) -> Attention:
        entry = shape.entry or Full(heads=1, kv_heads=1, head_dim=1)
        return Attention(
            heads=entry.heads,
            kv_heads=entry.kv_heads,
            key=entry.head_dim,
            value=entry.value_dim,
            soft_cap=self.family.soft_cap,
            sinks=self.family.sinks,
        )

    def _cells(self, shape: Layer) -> Cells:
        if "swa" not in self.caches:
            return self.caches["main"]
        return self.caches["full" if shape.window is None else "swa"]

    def _rotated(self, number: int, shape: Layer) -> bool:
        rope = self.family.rope
        if rope == "windowed":
            return shape.window is not None or "swa" not in self.caches
        return rope == "all" or (rope == "three of four" and (number + 1) % _FOUR != 0)

    def _source(self, shape: Layer) -> int:
        """Return the layer whose keys and values are read by those without their own."""
        own = sum(layer_.stored for layer_ in self.plan.layers)
        return own - (1 if shape.window is None else 2)

    def _gemma4_layer(self, block: Block, shape: Layer, current: Tensor) -> Tensor:
        return gemma4_layer(
            self.ctx,
            block,
            current,
            shape=self._heads(shape),
            cells=self._cells(shape),
            factors=self.plan.factors if shape.window is None else 0,
            source=self._source(shape),
            inputs=self.inputs,
        )

    def _latent_layer(self, block: Block, mixer: Latent, current: Tensor, *, last: bool) -> Tensor:
        ctx, residual = self.ctx, current
        normed = ctx.norm(current, "attn_norm")
        current = latent(ctx, mixer, normed, cells=self.caches["main"], index_cells=self.caches.get("indexer"))
        if last:
            current, residual = picked(ctx, current), picked(ctx, residual)
        return mlp(ctx, self.family, current, residual, block.mlp)

    def _recurrent_layer(self, block: Block, shape: Layer, current: Tensor, *, last: bool) -> Tensor:
        ctx, residual = self.ctx, current
        if self.key == "falconh1":
            return self._both(block, shape, current, last=last)
        if not block.mixers:
            return self._mlp_layer(block, current)
        current = ctx.norm(current, "attn_norm")
        if self.key.startswith("qwen3"):
            ctx.expand(current)
        current = recurrent(shape.states[0], self.memory, current) if shape.states else self._attended(shape, current)
        if last:
            current, residual = picked(ctx, current), picked(ctx, residual)
        if block.mlp is None:
            return ctx.like("add", current, residual)
        return mlp(ctx, self.family, current, residual, block.mlp)

    def _mlp_layer(self, block: Block, current: Tensor) -> Tensor:
        """Return a layer of an MLP alone (Nemotron-H)."""
        ctx, normed = self.ctx, self.ctx.norm(current, "attn_norm")
        if isinstance(block.mlp, Mixture):
            return ctx.like("add", mixture_of(ctx, self.family, normed, block.mlp), current)
        return ctx.like("add", ctx.ffn(normed, getattr(block.mlp, "width", 0), self.family.ffn), current)

    def _attended(self, shape: Layer, current: Tensor) -> Tensor:
        heads, cells = self._heads(shape), self.caches["main"]
        if self.key.startswith("qwen3"):
            return gated_attention(self.ctx, current, shape=heads, cells=cells, per_token=self.family.per_token)
        rotated = self.family.rope == "all"
        return attend(self.ctx, self.family, current, shape=heads, cells=cells, rotated=rotated, factors=0)

    def _both(self, block: Block, shape: Layer, current: Tensor, *, last: bool) -> Tensor:
        """Return a layer in which attention and Mamba-2 stand side by side (Falcon-H1)."""
        ctx = self.ctx
        attended = self._attended(shape, ctx.norm(current, "attn_norm"))
        passed = recurrent(shape.states[0], self.memory, ctx.norm(current, "attn_norm"))
        current = ctx.like("add", ctx.like("add", attended, passed), current)
        if last:
            current = picked(ctx, current)
        inner = ctx.ffn(ctx.norm(current, "ffn_norm"), getattr(block.mlp, "width", 0), "gated")
        return ctx.like("add", inner, current)
