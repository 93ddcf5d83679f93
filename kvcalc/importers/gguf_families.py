"""A profile from GGUF metadata and tensors, by the geometry llama.cpp gives each architecture.

Layers come from the metadata, which llama.cpp sizes its cache by; the tensors say which projections exist and in which
formats. Tensors that contradict the metadata are an error. Windows are those that llama.cpp applies: not always
what the original config says (Phi-3's is left out). Sources: llama.cpp's ``src/models`` and ``src/llama-arch.cpp``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError, did_you_mean
from kvcalc.core.formats import exact_format, parse_format
from kvcalc.core.model import (
    Block,
    Chunked,
    Full,
    Head,
    Indexer,
    Latent,
    ModelProfile,
    Shared,
    Sliding,
    State,
    Table,
)
from kvcalc.core.provenance import Source
from kvcalc.cost.parameters import block_parameters, parameters
from kvcalc.importers.config_reader import Config
from kvcalc.importers.gguf_parts import layer_mlp, layer_tensors, part_of
from kvcalc.importers.gguf_states import gated_delta, kimi_delta, mamba, mamba2, short_convolution

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Mixer
    from kvcalc.importers.checkpoint import Tensor, TensorTable

__all__ = ["gguf_profile"]

# Attention over everything in each layer that has key-value heads: llama.cpp's plain cache.
_PLAIN = frozenset({
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chameleon",
    "chatglm", "codeshell", "command-r", "dbrx", "deci", "deepseek", "dots1", "ernie4_5", "ernie4_5-moe", "exaone",
    "falcon", "gemma", "glm4", "glm4moe", "gpt2", "gptj", "gptneox", "granite", "granitemoe", "grok",
    "hunyuan-dense", "hunyuan-moe", "internlm2", "jais", "llama", "maincoder", "minicpm", "minimax-m2", "mistral3",
    "mpt", "nemotron", "olmo", "olmoe", "openelm", "orion", "paddleocr", "pangu-embedded", "phi2", "phi3", "phimoe",
    "plamo", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact",
    "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2", "xverse",
})  # fmt: skip

_MOST_LAYERS = 10_000


@dataclass(frozen=True, slots=True)
class _Window:
    """How an architecture mixes windows and full attention.

    Args:
        period: every so many layers one has no window; 0 where each layer is named in the file, 1 for none at all.
        first: whether the layer without a window comes first in each period.
        default: window where the file gives none; 0 for no windows at all then.
        fixed: whether the default holds even where the file gives another.
    """

    period: int
    first: bool = False
    default: int = 0
    fixed: bool = False


_WINDOWS = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "exaone-moe": _Window(4, default=128),
    "exaone4": _Window(4, default=4096),
    "gemma2": _Window(2, default=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(0),
    "gpt-oss": _Window(2),
    "llama4": _Window(4, default=8192, fixed=True),
    "mimo2": _Window(0),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, first=True),
    "step35": _Window(0),
}
_LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa", "mistral4"})
_INDEXED = frozenset({"deepseek32", "glm-dsa"})
_DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})
_SELECTIVE = frozenset({"mamba", "jamba"})
_SELECTIVE_2 = frozenset({"mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"})
_STATES = _DELTA | _SELECTIVE | _SELECTIVE_2 | {"lfm2", "lfm2moe", "kimi-linear"}
_KNOWN = _PLAIN | _LATENT | _STATES | frozenset(_WINDOWS)

_PARALLEL = frozenset({"falcon", "phi2", "command-r", "cohere2", "gptj", "plamo"})


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
    if architecture not in _KNOWN:
        raise UnsupportedError(
            f"the architecture {architecture[:60]!r} is not known to kvcalc, and is not guessed",
            where=f"{where}, general.architecture",
            hint=did_you_mean(architecture[:60], _KNOWN) or "describe its layers in a profile",
        )
    keys = Config(
        {key.removeprefix(f"{architecture}."): value for key, value in metadata.items()}, where=where, path=architecture
    )
    return _File(architecture, keys, table).profile(name)


class _File:
    """The metadata and tensors of one model, and what follows from them."""

    def __init__(self, architecture: str, keys: Config, table: TensorTable) -> None:
        self.architecture = architecture
        self.keys = keys
        self.table = table
        self.all_layers = keys.integer("block_count")
        if self.all_layers > _MOST_LAYERS:
            raise keys.bad("block_count", self.all_layers, f"at most {_MOST_LAYERS} layers")
        # Prediction layers stand behind the others and take no part in a normal pass.
        self.layers = self.all_layers - keys.integer("nextn_predict_layers", default=0, least=0)
        if self.layers < 1:
            raise keys.bad("nextn_predict_layers", self.all_layers - self.layers, "fewer than all layers")
        self.hidden = keys.integer("embedding_length")
        self.heads = self.each("attention.head_count", default=0)
        self.kv_heads = self.each("attention.head_count_kv", default=self.heads)
        self.inner = self.each("feed_forward_length", default=0)
        self.window = self._window()

    def each(self, key: str, *, default: Any) -> list[int]:
        """Return a number for each layer, whether the file gives one for all or a list."""
        value = self.keys.raw(key, default=default)
        numbers = value if isinstance(value, list) else [value] * self.all_layers
        if len(numbers) < self.layers:
            raise self.keys.bad(key, f"{len(numbers)} numbers", f"one for each of {self.layers} layers")
        if not all(isinstance(entry, int) and 0 <= entry <= 10**9 for entry in numbers):
            raise self.keys.bad(key, value, "whole numbers of zero or more")
        return [int(entry) for entry in numbers]

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
            embeddings=self._tables(outer),
            head=self._head(outer),
            dtype="fp16",
            matrix_parameters=sum(tensor.elements for key, tensor in outer.items() if part_of(key, tensor) == "other"),
            prediction_layers=self.all_layers - self.layers,
            held_weight_bytes=self.table.total_bytes,
            sources={"file": Source(kind="model_config", note=self.table.where)},
            provenance={"default": "file"},
        )
        counted = {
            f"blk.{layer}.{key}": tensor for layer in by_layer for key, tensor in by_layer[layer].items()
        } | outer
        held = sum(tensor.elements for tensor in counted.values())
        rest = held - sum(parameters(draft).values())
        if rest < 0:
            notes.append(f"tensors of {-rest} elements that the metadata speaks of are not in the file")
        whole = replace(draft, vector_parameters=max(0, rest), notes=tuple(notes))
        return replace(whole, weight_formats=_formats(counted, whole))

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
        mixers = self._mixers(layer, tensors)
        mlp = layer_mlp(self.keys, tensors, inner=self.inner[layer], layer=layer, known=mixers)
        other = sum(tensor.elements for key, tensor in tensors.items() if part_of(key, tensor) == "other")
        parallel = self.architecture in _PARALLEL or (
            self.architecture == "gptneox" and self.keys.flag("use_parallel_residual", default=True)
        )
        if self.architecture == "stablelm" and tensors and "ffn_norm.weight" not in tensors:
            parallel = True
        block = Block(
            name=_label(mixers), mixers=mixers, mlp=mlp, parallel=parallel and bool(mlp), matrix_parameters=other
        )
        self._check(layer, block, tensors)
        vectors = sum(tensor.elements for key, tensor in tensors.items() if part_of(key, tensor) == "vector")
        return replace(block, vector_parameters=vectors)

    def _check(self, layer: int, block: Block, tensors: Mapping[str, Tensor]) -> None:
        """Refuse tensors that are not of the sizes the metadata gives; absent ones are told of later."""
        held: dict[str, int] = {}
        for key, tensor in tensors.items():
            stored = part_of(key, tensor)
            held[stored] = held.get(stored, 0) + tensor.elements
        wanted = block_parameters(block, self.hidden)
        finals = {
            "attention": ("attn_output.weight", "ssm_out.weight", "shortconv.out_proj.weight"),
            "mlp": ("ffn_down.weight", "ffn_down_shexp.weight"),
            "experts": ("ffn_down_exps.weight",),
        }
        for part, last in finals.items():
            size, whole = held.get(part, 0), wanted.get(part, 0)
            if size > whole or (size < whole and not set(last).isdisjoint(tensors)):
                raise ProfileError(
                    f"layer {layer}: {part} tensors of {size} elements, but the metadata speaks of {whole}",
                    where=self.table.where,
                    hint="the file is incomplete, or of a variant that kvcalc does not know",
                )

    def _mixers(self, layer: int, tensors: Mapping[str, Tensor]) -> tuple[Mixer, ...]:
        name = self.architecture
        if name == "falcon-h1":
            return (self._attention(layer, tensors), mamba2(self.keys, self.hidden))
        if name in _DELTA:
            return (gated_delta(self.keys, self.hidden) if self._recurrent(layer) else self._attention(layer, tensors),)
        if name in ("mamba", "mamba2"):
            return (mamba(self.keys, self.hidden) if name == "mamba" else mamba2(self.keys, self.hidden),)
        if name in ("nemotron_h", "nemotron_h_moe"):
            if self.inner[layer]:
                return ()
            return (self._attention(layer, tensors) if self.kv_heads[layer] else mamba2(self.keys, self.hidden),)
        if name in _STATES and not self.kv_heads[layer]:
            if name == "kimi-linear":
                return (kimi_delta(self.keys, self.hidden, max(self.heads)),)
            rule = {"jamba": mamba, "granitehybrid": mamba2}.get(name, short_convolution)
            return (rule(self.keys, self.hidden),)
        if name in _LATENT or name == "kimi-linear":
            return (self._latent(layer, tensors),)
        return (self._attention(layer, tensors),) if self.kv_heads[layer] else ()

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
        if self.architecture in _DELTA:
            return width
        gate = tensors.get("attn_gate.weight")
        return 0 if gate is None else gate.elements // (self.hidden * heads)

    def _own_caches(self) -> int:
        """Return how many layers, from the first on, keep a cache of their own."""
        if self.architecture == "gemma3n":
            return 20
        if self.architecture == "gemma4":
            return self.all_layers - self.keys.integer("attention.shared_kv_layers", default=0, least=0)
        return self.all_layers

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
        indexed = self.architecture in _INDEXED and (not tensors or "indexer.attn_k.weight" in tensors)
        return Latent(
            heads=self.heads[layer],
            kv_lora_rank=rank,
            rope_dim=rope,
            nope_dim=nope,
            value_head_dim=keys.integer("attention.value_length_mla"),
            q_lora_rank=query or None,
            indexer=self._indexer(query or 0, stored=indexed) if self.architecture in _INDEXED else None,
        )

    def _indexer(self, query: int, *, stored: bool) -> Indexer:
        return Indexer(
            heads=self.keys.integer("attention.indexer.head_count"),
            head_dim=self.keys.integer("attention.indexer.key_length"),
            top_k=self.keys.integer("attention.indexer.top_k"),
            query_inputs=query,
            stored=stored,
        )

    def _recurrent(self, layer: int) -> bool:
        named = self.keys.raw("attention.recurrent_layers", default=None)
        if isinstance(named, list) and len(named) >= self.layers:
            return bool(named[layer])
        return (layer + 1) % self.keys.integer("full_attention_interval", default=4) != 0

    def _window(self) -> tuple[int, list[bool]] | None:
        """Return the window and which layers have it; none where llama.cpp applies none."""
        if self.architecture in ("lfm2", "lfm2moe"):
            window = self.keys.integer("attention.sliding_window", default=0, least=0)
            return (window, [True] * self.layers) if window else None
        rule = _WINDOWS.get(self.architecture)
        if rule is None or (self.architecture == "exaone4" and self.layers != 64):  # noqa: PLR2004
            return None
        window = self.keys.integer("attention.sliding_window", default=rule.default, least=0)
        if window == 0:
            return None
        if rule.fixed:
            window = rule.default
        elif self.architecture == "smallthinker":
            window = 4096
        default = rule.period or None
        pattern = self.keys.raw("attention.sliding_window_pattern", default=default)
        if isinstance(pattern, list) and len(pattern) >= self.layers:
            return window, [bool(entry) for entry in pattern[: self.layers]]
        if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
            raise self.keys.bad("attention.sliding_window_pattern", pattern, "a period, or one flag for each layer")
        full = 0 if rule.first else pattern - 1
        return window, [pattern == 0 or layer % pattern != full for layer in range(self.layers)]


def _label(mixers: tuple[Mixer, ...]) -> str:
    if not mixers:
        return "mlp"
    kinds = {Full: "attention", Sliding: "local", Chunked: "local", Shared: "shared", Latent: "latent", State: "state"}
    return "+".join(kinds.get(type(mixer), "layer") for mixer in mixers)


def _formats(tensors: Mapping[str, Tensor], profile: ModelProfile) -> dict[str, str]:
    """Return each part's format: the one its tensors are stored in, or the exact mixture of their bytes."""
    tied = profile.head is not None and profile.head.tied
    sizes: dict[str, dict[str, int]] = {}
    for key, tensor in tensors.items():
        part = part_of(re.sub(r"^blk\.\d+\.", "", key), tensor)
        stored = sizes.setdefault("head" if tied and key == "token_embd.weight" else part, {})
        stored[tensor.dtype] = stored.get(tensor.dtype, 0) + tensor.size
    formats: dict[str, str] = {}
    for name, elements in parameters(profile).items():
        stored = sizes.get(name, {})
        if stored:
            main = max(stored, key=lambda dtype: stored[dtype])
            main = {"int16": "fp16", "int32": "fp32"}.get(main, main)
            formats[name] = exact_format(sum(stored.values()), elements, names=(main,), unit=parse_format(main).unit)
    return {name: form for name, form in formats.items() if form != profile.dtype}
