"""A profile from GGUF metadata and tensors, by the geometry llama.cpp gives each architecture.

Layers come from the metadata, which llama.cpp sizes its cache by; the tensors say which projections exist and in which
formats. Tensors that contradict the metadata are an error. Windows are those that llama.cpp applies: not always
what the original config says (Phi-3's is left out). Sources: llama.cpp's ``src/models`` and ``src/llama-arch.cpp``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.model import Block, Chunked, Full, Head, Latent, ModelProfile, Shared, Sliding, State, Table
from kvcalc.core.provenance import Source
from kvcalc.importers.config_reader import Config
from kvcalc.importers.gguf_architectures import PARALLEL, TWO_STACKS, check_known
from kvcalc.importers.gguf_layers import LayerMixers
from kvcalc.importers.gguf_parts import ROUTES, check_sizes, layer_mlp, layer_tensors, part_of, whole_profile
from kvcalc.importers.gguf_stacks import two_stacks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Mixer
    from kvcalc.importers.checkpoint import Tensor, TensorTable

__all__ = ["gguf_profile"]

_MAX_LAYERS = 10_000


def gguf_profile(metadata: Mapping[str, Any], table: TensorTable, *, name: str) -> ModelProfile:
    """Return the profile of a model file.

    Args:
        metadata: its keys.
        table: its tensors.
        name: catalogue name for the profile.

    Raises:
        UnsupportedError: an architecture that kvcalc does not know.
        ProfileError: keys that are missing or make no sense, or tensors that contradict them.
    """
    where = table.where
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ProfileError("the file names no general.architecture", where=where)
    check_known(architecture, where=where)
    keys = Config(
        {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}, where=where, path=architecture
    )
    if keys.integer("num_loops", default=1) > 1:
        raise UnsupportedError(
            "layers that are run several times, with a cache each, are not described",
            where=f"{where}, {architecture}.num_loops",
        )
    if architecture == TWO_STACKS:
        return two_stacks(keys, table, name=name)
    return _File(architecture, keys, table).profile(name)


class _File:
    """The metadata and tensors of one model, and what follows from them."""

    def __init__(self, architecture: str, keys: Config, table: TensorTable) -> None:
        self.architecture = architecture
        self.keys = keys
        self.table = table
        self.all_layers = keys.integer("block_count")
        if self.all_layers > _MAX_LAYERS:
            raise keys.bad("block_count", self.all_layers, f"at most {_MAX_LAYERS} layers")
        # Prediction layers stand behind the others and take no part in a normal pass.
        self.layers = self.all_layers - keys.integer("nextn_predict_layers", default=0, least=0)
        if self.layers < 1:
            raise keys.bad("nextn_predict_layers", self.all_layers - self.layers, "fewer than all layers")
        self.hidden = keys.integer("embedding_length")
        self.mixers = LayerMixers(
            architecture, keys, layers=self.layers, all_layers=self.all_layers, hidden=self.hidden
        )

    def profile(self, name: str) -> ModelProfile:
        """Return the profile."""
        by_layer, outer = layer_tensors(self.table, self.layers)
        blocks: dict[Block, Block] = {}
        made = [self._block(layer, by_layer.get(layer, {})) for layer in range(self.layers)]
        notes = [f"weight bytes as stored in {self.table.where.rpartition('/')[2]}"]
        if self.layers < self.all_layers:
            skipped = self.all_layers - self.layers
            notes.append(f"{skipped} multi-token-prediction layer{'s are' if skipped > 1 else ' is'} not counted")
        draft = ModelProfile(
            name=name,
            architecture=self.architecture,
            hidden_size=self.hidden,
            context_limit=self.keys.maybe_integer("context_length"),
            blocks=tuple(blocks.setdefault(block, block) for block in made),
            embeddings=(*self._tables(outer), *self._routes(by_layer)),
            head=self._head(outer),
            dtype="fp16",
            matrix_parameters=sum(tensor.elements for key, tensor in outer.items() if part_of(key, tensor) == "other"),
            prediction_layers=self.all_layers - self.layers,
            held_weight_bytes=self.table.total_bytes,
            sources={"file": Source(kind="model_config", note=self.table.where)},
            provenance={"default": "file"},
        )
        counted = [pair for tensors in by_layer.values() for pair in tensors.items()] + list(outer.items())
        return whole_profile(draft, counted, notes)

    # Outside the layers.

    def _tables(self, outer: Mapping[str, Tensor]) -> tuple[Table, ...]:
        token = outer.get("token_embd.weight")
        if token is None:
            rows = self.keys.maybe_integer("vocab_size")
            return (Table(name="token", rows=rows, width=self.hidden),) if rows else ()
        tables = [self._table("token", token)]
        if tables[0].width != self.hidden:
            raise self.keys.bad("embedding_length", self.hidden, f"the width of the token table, {tables[0].width}")
        for key, label in (
            ("position_embd", "position"),
            ("token_types", "type"),
            ("per_layer_token_embd", "per_layer"),
        ):
            if f"{key}.weight" in outer:
                tables.append(self._table(label, outer[f"{key}.weight"]))
        return tuple(tables)

    def _routes(self, by_layer: Mapping[int, Mapping[str, Tensor]]) -> list[Table]:
        """Return the tables by which a token's experts are looked up, where layers have them."""
        tables = ((layer, tensors.get(f"{ROUTES}.weight")) for layer, tensors in by_layer.items())
        return [self._table(f"routes-{layer}", tensor) for layer, tensor in tables if tensor is not None]

    def _table(self, label: str, tensor: Tensor) -> Table:
        if len(tensor.shape) != 2 or 0 in tensor.shape:  # noqa: PLR2004
            raise ProfileError(f"the {label} table has the shape {tensor.shape}", where=self.table.where)
        return Table(name=label, rows=tensor.shape[1], width=tensor.shape[0])

    def _head(self, outer: Mapping[str, Tensor]) -> Head | None:
        own = outer.get("output.weight")
        if own is not None:
            table = self._table("output", own)
            return Head(rows=table.rows, width=table.width, bias="output.bias" in outer)
        tables = self._tables(outer)
        return Head(rows=tables[0].rows, width=tables[0].width, tied=True) if tables else None

    # One layer.

    def _block(self, layer: int, tensors: Mapping[str, Tensor]) -> Block:
        mixers = self.mixers.of(layer, tensors)
        mlp = layer_mlp(self.keys, tensors, inner=self.mixers.inner[layer], layer=layer, known=mixers)
        other = sum(tensor.elements for key, tensor in tensors.items() if part_of(key, tensor) == "other")
        parallel = self.architecture in PARALLEL or (
            self.architecture == "gptneox" and self.keys.flag("use_parallel_residual", default=True)
        )
        if self.architecture == "stablelm" and tensors and "ffn_norm.weight" not in tensors:
            parallel = True
        block = Block(
            name=_label(mixers), mixers=mixers, mlp=mlp, parallel=parallel and bool(mlp), matrix_parameters=other
        )
        check_sizes(block, tensors.items(), hidden=self.hidden, what=f"layer {layer}", where=self.table.where)
        vectors = sum(tensor.elements for key, tensor in tensors.items() if part_of(key, tensor) == "vector")
        return replace(block, vector_parameters=vectors)


def _label(mixers: tuple[Mixer, ...]) -> str:
    if not mixers:
        return "mlp"
    kinds = {Full: "attention", Sliding: "local", Chunked: "local", Shared: "shared", Latent: "latent", State: "state"}
    return "+".join(kinds.get(type(mixer), "layer") for mixer in mixers)
