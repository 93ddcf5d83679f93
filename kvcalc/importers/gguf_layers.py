"""Token mixers of a GGUF file's layers: attention, latent attention, a recurrence, by keys and tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Chunked, Compressed, Full, Indexer, Latent, Shared, Sliding
from kvcalc.importers.gguf_architectures import (
    COMPRESSED,
    DELTA,
    HEADS_OF_LATENT,
    INDEXED,
    INDEXED_HEADS,
    KIMI_DELTA,
    LATENT,
    RWKV,
    layer_windows,
)
from kvcalc.importers.gguf_states import (
    gated_delta,
    kimi_delta,
    lightning,
    mamba,
    mamba2,
    rwkv,
    selective_heads,
    short_convolution,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Mixer, State
    from kvcalc.importers.checkpoint import Tensor
    from kvcalc.importers.config_reader import Config

__all__ = ["LayerMixers"]

# Entries for so few tokens look at those of the entry before too, and have an index (DeepSeek-V4).
_OVERLAPPING_RATIO = 4


class LayerMixers:
    """The token mixers of a file's layers.

    Args:
        architecture: llama.cpp's name.
        keys: the metadata.
        layers: layers of a normal pass.
        all_layers: those of prediction included, for which lists in the file have entries too.
        hidden: width of the hidden state.
    """

    def __init__(self, architecture: str, keys: Config, *, layers: int, all_layers: int, hidden: int) -> None:
        self.architecture = architecture
        self.keys = keys
        self.layers = layers
        self.all_layers = all_layers
        self.hidden = hidden
        self.heads = self.each("attention.head_count", default=0)
        self.kv_heads = self.each("attention.head_count_kv", default=self.heads)
        self.inner = self.each("feed_forward_length", default=0)
        self.window = layer_windows(architecture, keys, layers)

    def each(self, key: str, *, default: Any) -> list[int]:
        """Return a number for each layer, whether the file gives one for all or a list.

        Raises:
            ProfileError: too few numbers, or none.
        """
        value = self.keys.raw(key, default=default)
        numbers = value if isinstance(value, list) else [value] * self.all_layers
        if len(numbers) < self.layers:
            raise self.keys.bad(key, f"{len(numbers)} numbers", f"one for each of {self.layers} layers")
        if not all(isinstance(entry, int) and 0 <= entry <= 10**9 for entry in numbers):
            raise self.keys.bad(key, value, "whole numbers of zero or more")
        return [int(entry) for entry in numbers]

    def of(self, layer: int, tensors: Mapping[str, Tensor]) -> tuple[Mixer, ...]:
        """Return the mixers of one layer.

        Raises:
            ProfileError: keys that are missing or make no sense.
            UnsupportedError: a variant that is not described.
        """
        name = self.architecture
        if name == "falcon-h1":
            return (self._attention(layer, tensors), mamba2(self.keys, self.hidden))
        if name in ("nemotron_h", "nemotron_h_moe") and self.inner[layer]:
            return ()
        state = self._state(layer, tensors)
        if state is not None:
            return (state,)
        if name == COMPRESSED:
            return (self._compressed(layer),)
        if name == INDEXED_HEADS:
            return (self._indexed_heads(layer, tensors),)
        if name in HEADS_OF_LATENT:
            return (self._heads_of_latent(layer),)
        if name in LATENT or name in KIMI_DELTA:
            return (self._latent(layer, tensors),)
        return (self._attention(layer, tensors),) if self.kv_heads[layer] else ()

    def _state(self, layer: int, tensors: Mapping[str, Tensor]) -> State | None:
        """Return the state of a recurrent layer; none for a layer with attention, or with an MLP alone."""
        name, keys, hidden = self.architecture, self.keys, self.hidden
        if name in RWKV:
            return rwkv(keys, hidden, tensors, shifts=2 if name in ("rwkv6", "rwkv7") else 1)
        if name in DELTA:
            return gated_delta(keys, hidden) if self._recurrent(layer, every=4) else None
        if name == "minimax-01":
            return lightning(keys, hidden, self.heads[layer], tensors) if self._recurrent(layer, every=8) else None
        if name == "mamba":
            return mamba(keys, hidden)
        if name == "mamba2":
            return mamba2(keys, hidden)
        if self.kv_heads[layer]:
            return None
        rules = {"granitehybrid": mamba2, "jamba": mamba, "nemotron_h": mamba2, "nemotron_h_moe": mamba2}
        rules |= dict.fromkeys(("lfm2", "lfm2moe"), short_convolution)
        if name in KIMI_DELTA:
            forget, gate = KIMI_DELTA[name]
            return kimi_delta(keys, hidden, max(self.heads), full_forget=forget, full_gate=gate)
        if name == "plamo2":
            return selective_heads(keys, tensors)
        return rules[name](keys, hidden) if name in rules else None

    def _recurrent(self, layer: int, *, every: int) -> bool:
        named = self.keys.raw("attention.recurrent_layers", default=None)
        if isinstance(named, list) and len(named) >= self.layers:
            return bool(named[layer])
        return (layer + 1) % self.keys.integer("full_attention_interval", default=every) != 0

    def _attention(self, layer: int, tensors: Mapping[str, Tensor]) -> Mixer:
        heads, kv = self.heads[layer], self.kv_heads[layer]
        if heads < 1 or kv < 1:
            raise self.keys.bad("attention.head_count", heads, f"heads for the attention of layer {layer}")
        windowed = self.window is not None and self.window[1][layer]
        usual = self.hidden // max(1, self.heads[0] or heads)
        width = self.keys.integer("attention.key_length", default=max(1, usual))
        value = self.keys.integer("attention.value_length", default=max(1, usual))
        if windowed:
            width = self.keys.integer("attention.key_length_swa", default=width)
            value = self.keys.integer("attention.value_length_swa", default=value)
        fields: dict[str, Any] = {
            "heads": heads,
            "kv_heads": kv,
            "head_dim": width,
            "value_head_dim": None if value == width else value,
            "output_gate": self._gate(heads, width, tensors),
        }
        window = self.window[0] if self.window is not None and windowed else None
        if layer >= self._own_caches():
            return Shared(**fields, window=window, projects="attn_k.weight" in tensors)
        if "attn_k.weight" in tensors and "attn_v.weight" not in tensors:
            fields["value_from_key"] = True
        if window is None:
            return Full(**fields)
        return Chunked(**fields, chunk=window) if self.architecture == "llama4" else Sliding(**fields, window=window)

    def _gate(self, heads: int, width: int, tensors: Mapping[str, Tensor]) -> int:
        """Return the elements of the gate on a head's output: in the query projection, or a tensor of its own."""
        if self.architecture in DELTA:
            return width
        gate = tensors.get("attn_gate.weight")
        return 0 if gate is None else gate.elements // (self.hidden * heads)

    def _own_caches(self) -> int:
        """Count the layers, from the first on, that keep a cache of their own."""
        if self.architecture == "gemma3n":
            return 20
        if self.architecture == "gemma4":
            return self.all_layers - self.keys.integer("attention.shared_kv_layers", default=0, least=0)
        return self.all_layers

    def _heads_of_latent(self, layer: int) -> Full:
        """Return low-rank attention of which all heads' keys and values are kept (MiniCPM3, PLM)."""
        keys, heads = self.keys, self.heads[layer]
        width = keys.integer("attention.key_length")
        value = keys.integer("attention.value_length", default=max(1, self.hidden // max(1, heads)))
        rank, rope = keys.integer("attention.kv_lora_rank"), keys.integer("rope.dimension_count")
        query = keys.maybe_integer("attention.q_lora_rank", least=0)
        asking = query * (self.hidden + heads * width) if query else self.hidden * heads * width
        kept = self.hidden * (rank + rope) + rank * heads * (width - rope + value)
        return Full(
            heads=heads,
            kv_heads=heads,
            head_dim=width,
            value_head_dim=None if value == width else value,
            projection_parameters=asking + kept + heads * value * self.hidden,
        )

    def _indexed_heads(self, layer: int, tensors: Mapping[str, Tensor]) -> Mixer:
        """Return attention of which an index chooses blocks of tokens, but in the leading dense layers (MiniMax-M3)."""
        plain = self._attention(layer, tensors)
        if layer < self.keys.integer("leading_dense_block_count", default=0, least=0) or not isinstance(plain, Full):
            return plain
        index = self._indexer(0, stored=True)
        tokens = index.top_k * self.keys.integer("attention.indexer.block_size")
        return replace(plain, indexer=replace(index, top_k=tokens, head_weights=False))

    def _compressed(self, layer: int) -> Sliding | Compressed:
        """Return a window, alone or beside entries for several tokens each (DeepSeek-V4)."""
        keys, heads, hidden = self.keys, self.heads[layer], self.hidden
        width, window = keys.integer("attention.key_length"), keys.integer("attention.sliding_window")
        rank, ratio = keys.integer("attention.q_lora_rank"), self.each("attention.compress_ratios", default=None)[layer]
        groups, output = keys.integer("attention.output_group_count"), keys.integer("attention.output_lora_rank")
        if ratio == 0:
            asking = hidden * rank + rank * heads * width + hidden * width
            projections = asking + heads * width * output + groups * output * hidden
            return Sliding(heads=heads, kv_heads=1, head_dim=width, window=window, projection_parameters=projections)
        overlap = ratio == _OVERLAPPING_RATIO
        index = self._indexer(rank, stored=True) if overlap else None
        return Compressed(
            heads=heads,
            head_dim=width,
            window=window,
            ratio=ratio,
            overlap=overlap,
            q_lora_rank=rank,
            output_groups=groups,
            output_rank=output,
            indexer=None if index is None else replace(index, matrix_parameters=4 * hidden * index.head_dim),
        )

    def _latent(self, layer: int, tensors: Mapping[str, Tensor]) -> Latent:
        keys = self.keys
        if not keys.has("attention.key_length_mla"):
            raise UnsupportedError(
                "an old conversion without attention.key_length_mla, for which llama.cpp keeps uncompressed heads",
                where=keys.where,
                hint="convert the model again with a present llama.cpp",
            )
        rank = keys.integer("attention.kv_lora_rank")
        rope = keys.integer("rope.dimension_count", default=keys.integer("attention.key_length") - rank)
        query = keys.maybe_integer("attention.q_lora_rank", least=0)
        nope = keys.integer("attention.key_length_mla") - rope
        if nope < 0:
            raise keys.bad("attention.key_length_mla", nope + rope, f"at least rope.dimension_count = {rope}")
        gate = tensors.get("attn_gate.weight")
        indexed = self.architecture in INDEXED and (not tensors or "indexer.attn_k.weight" in tensors)
        return Latent(
            heads=self.heads[layer],
            kv_lora_rank=rank,
            rope_dim=rope,
            nope_dim=nope,
            value_head_dim=keys.integer("attention.value_length_mla"),
            q_lora_rank=query or None,
            output_gate=0 if gate is None else gate.elements // self.hidden,
            indexer=self._indexer(query or 0, stored=indexed) if self.architecture in INDEXED else None,
        )

    def _indexer(self, query: int, *, stored: bool) -> Indexer:
        return Indexer(
            heads=self.keys.integer("attention.indexer.head_count"),
            head_dim=self.keys.integer("attention.indexer.key_length"),
            top_k=self.keys.integer("attention.indexer.top_k"),
            query_inputs=query,
            stored=stored,
        )
