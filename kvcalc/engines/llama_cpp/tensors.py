"""The tensors of a model's GGUF file, as llama.cpp's converter writes it in 16 bits: names, shapes and parts.

Only architectures whose tensors are known are listed; the others are refused by name. Norms, biases, convolutions and
the like of a layer stand together as one entry in 32 bits: no recipe treats them apart. Projectors for images and
layers that predict further tokens are not in it.

Source: llama.cpp commit 0c1e57098bba, ``convert_hf_to_gguf.py``, held against the headers that it wrote of 69 models.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Full, Latent, Mixture, State
from kvcalc.cost.parameters import block_matrices, parameters
from kvcalc.engines.llama_cpp.architectures import architecture_key
from kvcalc.engines.llama_cpp.recipes import Geometry, GgufTensor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.cost.parameters import Matrix

__all__ = ["VECTORS", "geometry", "gguf_tensors", "unlisted"]

# End of the name of an entry that stands for norms, biases, convolutions and the like, of a layer or outside of all.
VECTORS = "norms and other vectors"
_FIRST_NORM, _ROTARY = "token_embd_norm: ", "rope_freqs: "
# Files with a norm behind the token table.
_NORM_OF_TABLE = frozenset({"bloom"})

# Architectures whose tensors the converter was seen to write as listed here.
_SEEN = frozenset({
    "bamba", "bloom", "cohere", "deepseek_v2", "deepseek_v3", "deepseek_v32", "ernie4_5_moe", "exaone4", "falcon",
    "falcon_h1", "falcon_mamba", "gemma", "gemma2", "gemma3", "gemma3n", "gemma4", "glm4", "glm4_moe", "glm4_moe_lite",
    "glm4v_moe", "glm_moe_dsa", "gpt2", "gpt_bigcode", "gpt_oss", "granite", "granitemoehybrid", "hy_v3", "jamba",
    "lfm2", "llama", "llama4", "mamba", "mamba2", "minimax_m2", "mistral", "mixtral", "nemotron", "nemotron_h", "olmo",
    "olmo2", "olmo3", "phi", "phi3", "phimoe", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5",
    "qwen3_5_moe", "qwen3_moe", "qwen3_vl", "starcoder2",
})  # fmt: skip
# Those that its source converts as one of the above.
_ALIKE = frozenset({
    "cohere2", "exaone", "gpt_neox", "internlm2", "kimi_k2", "ministral3", "olmoe", "orion", "qwen3_vl_moe", "seed_oss",
    "smollm3", "stablelm",
})  # fmt: skip
# GGUF's own names of these.
_IN_FILES = frozenset({
    "command-r", "deepseek2", "deepseek32", "ernie4_5-moe", "falcon-h1", "glm4moe", "glm-dsa", "gpt-oss", "gptneox",
    "granitehybrid", "mistral3", "minimax-m2", "nemotron_h_moe", "phi2", "qwen35", "qwen35moe", "starcoder",
})  # fmt: skip


def _keys(*names: str) -> frozenset[str]:
    return frozenset(map(architecture_key, names))


_LISTED = _keys(*_SEEN, *_ALIKE, *_IN_FILES)
_FUSED_QKV = _keys("bloom", "falcon", "gpt2", "gpt_bigcode", "gpt_neox", "phi3", "starcoder")
_FUSED_GATE = _keys("glm4", "phi3")
# Router corrections that configs count as no parameter.
_ROUTER_BIAS = _keys(
    "deepseek_v3", "deepseek_v32", "glm4_moe", "glm4_moe_lite", "glm4v_moe", "glm_moe_dsa", "hy_v3", "kimi_k2",
    "minimax_m2", "nemotron_h",
)  # fmt: skip
# Files that count layers which predict further tokens among their layers.
_PREDICTING = _keys(
    "deepseek_v32", "deepseek32", "glm4_moe", "glm4v_moe", "glm_moe_dsa", "glm-dsa", "nemotron_h", "nemotron_h_moe"
)  # fmt: skip
# Experts of a Nemotron-H that has none: the default of its config's class, which the converter writes.
_NEMOTRON_EXPERTS = 8
# Files that give key-value heads layer by layer, none to those without attention.
_HEADS_BY_LAYER = _keys("bamba", "granitehybrid", "granitemoehybrid", "jamba", "lfm2", "nemotron_h", "nemotron_h_moe")
_LLAMA = _keys("llama", "mistral", "mixtral")
_LAYERS_OF_70B = 80
# Bytes of an element that is not quantised, at the least.
_PLAIN_BYTES = 2

_NAMES = {
    "attention.query": "attn_q", "attention.key": "attn_k", "attention.value": "attn_v",
    "attention.output": "attn_output", "attention.query_down": "attn_q_a", "attention.query_up": "attn_q_b",
    "attention.latent": "attn_kv_a_mqa", "indexer.query": "indexer.attn_q_b", "indexer.key": "indexer.attn_k",
    "indexer.weights": "indexer.proj", "mlp.gate": "ffn_gate", "mlp.up": "ffn_up", "mlp.down": "ffn_down",
    "router": "ffn_gate_inp", "experts.down": "ffn_latent_down", "experts.up": "ffn_latent_up",
}  # fmt: skip
_TABLES = {
    "token": "token_embd", "position": "position_embd", "type": "token_types", "per_layer": "per_layer_token_embd"
}  # fmt: skip


def unlisted(model: ModelProfile) -> str | None:
    """Return why the tensors of the model's file in 16 bits are not known; none where they are."""
    key = architecture_key(model.architecture)
    if key not in _LISTED:
        return f"the tensors of a GGUF file of the architecture {model.architecture[:60]!r} are not known"
    if model.encoder is not None:
        return "the tensors of its encoder are not known"
    return _unlisted_file(model) if model.is_gguf else None


def _unlisted_file(model: ModelProfile) -> str | None:
    """Return why the tensors of a file's own profile are not all of its tensors in 16 bits; none where they are."""
    formats = {part: parse_format(model.weight_formats.get(part, model.dtype)) for part in parameters(model)}
    if any(form.bytes_per_element < _PLAIN_BYTES for form in formats.values()):
        return "the file is quantised already"
    counted = sum(int(formats[part].bytes(size)) for part, size in parameters(model).items())
    if model.held_weight_bytes not in (None, counted):
        return "the file holds tensors beside those of its layers"
    return None


def geometry(model: ModelProfile) -> Geometry:
    """Return the numbers that recipes look at beside the tensors."""
    key = architecture_key(model.architecture)
    first = model.blocks[:1] if key in _HEADS_BY_LAYER else model.blocks
    attention = next((mixer for block in first for mixer in block.mixers if not isinstance(mixer, State)), None)
    heads = 0 if attention is None else attention.heads
    shared = getattr(attention, "kv_heads", 1)
    layers = model.layers + (model.prediction_layers if key in _PREDICTING else 0)
    experts = max((block.mlp.experts for block in model.block_counts if isinstance(block.mlp, Mixture)), default=0)
    return Geometry(
        architecture=key,
        layers=layers,
        group=heads // shared,
        experts=_NEMOTRON_EXPERTS if key == "nemotronh" and not experts else experts,
        seventy=layers == _LAYERS_OF_70B and (key == "qwen2" or (key in _LLAMA and heads != shared)),
    )


def gguf_tensors(model: ModelProfile) -> tuple[GgufTensor, ...]:
    """Return the tensors of the model's GGUF file in 16 bits; the vectors of each layer stand in one entry.

    Args:
        model: the model; its towers are left out.

    Raises:
        UnsupportedError: an architecture whose tensors are not known, a model with an encoder, or a file that is
            already quantised.
    """
    why = unlisted(model)
    if why is not None:
        raise UnsupportedError(
            f"no recipe of llama.cpp for {model.name}: {why}",
            hint="--weights q4_k,head=q6_k takes one format for every matrix; a quantised .gguf file is read as it is",
        )
    tensors = [*_outer(model)]
    for layer, block in enumerate(model.blocks):
        tensors += [_in_layer(layer, tensor) for tensor in (*_block(model, block), *_layer_vectors(model, block))]
    return (*tensors, *_outer_vectors(model))


def _in_layer(layer: int, tensor: GgufTensor) -> GgufTensor:
    return GgufTensor(f"blk.{layer}.{tensor.name}", tensor.shape, tensor.part, tensor.kept)


def _layer_vectors(model: ModelProfile, block: Block) -> Iterator[GgufTensor]:
    """Yield a layer's norms and the like, with what the converter writes that is no parameter: router corrections."""
    key = architecture_key(model.architecture)
    count = block.vector_parameters
    if not model.is_gguf:
        count += block.mlp.experts if key in _ROUTER_BIAS and isinstance(block.mlp, Mixture) else 0
        count += 1 if key == "gemma4" else 0  # a scale
    if count:
        yield GgufTensor(VECTORS, (count,), "vector")


def _outer_vectors(model: ModelProfile) -> Iterator[GgufTensor]:
    """Yield the vectors outside the layers: a norm behind the table, rotary factors, and the rest, of the output."""
    text = model.text_only()
    sizes = parameters(text)
    rest = sizes.get("vector", 0) - sum(block.vector_parameters for block in text.blocks)
    rotary = 0 if model.is_gguf else _rotary_factors(model)
    first = rest // 2 if architecture_key(model.architecture) in _NORM_OF_TABLE else 0
    for name, count in ((_FIRST_NORM, first), (_ROTARY, rotary), ("", rest - first)):
        if count:
            yield GgufTensor(f"{name}{VECTORS}", (count,), "vector")


def _rotary_factors(model: ModelProfile) -> int:
    """Return the elements of rotary factors; Gemma 4's are of half a head of the layers without a window."""
    if architecture_key(model.architecture) != "gemma4":
        return model.rotary_factors
    widths = [mixer.head_dim for block in model.blocks for mixer in block.mixers if isinstance(mixer, Full)]
    return model.rotary_factors + max(widths, default=0) // 2


def _outer(model: ModelProfile) -> Iterator[GgufTensor]:
    tied = model.head is not None and model.head.tied
    for index, table in enumerate(model.embeddings):
        rows = table.rows
        if table.name == "per_layer":
            rows = max(rows, model.embeddings[0].rows)  # padded to the token table's
        yield GgufTensor(
            f"{_TABLES[table.name]}.weight", (table.width, rows), "head" if tied and index == 0 else "embedding"
        )
    if model.head is not None and not tied:
        yield GgufTensor("output.weight", (model.head.width or model.hidden_size, model.head.rows), "head")
    if model.matrix_parameters:
        yield GgufTensor("per_layer_model_proj.weight", (1, model.matrix_parameters), "other", "fp16")


def _block(model: ModelProfile, block: Block) -> Iterator[GgufTensor]:
    key = architecture_key(model.architecture)
    matrices = {matrix.name: matrix for matrix in block_matrices(block, model.hidden_size) if matrix.stored}
    for mixer in block.mixers:
        yield from _special(mixer, matrices, model)
    if key in _FUSED_QKV:
        yield _fused("attn_qkv", [matrices.pop(f"attention.{side}") for side in ("query", "key", "value")])
    if key in _FUSED_GATE and "mlp.gate" in matrices:
        yield _fused("ffn_up", [matrices.pop("mlp.gate"), matrices.pop("mlp.up")])
    if isinstance(block.mlp, Mixture):
        if key != "gemma4":
            yield from _shared_experts(matrices)
        yield from _experts(block.mlp, model.hidden_size, fused=key == "gemma4")
    if "other" in matrices:
        yield from _per_layer(model, matrices.pop("other").elements)
    for name, matrix in matrices.items():
        yield _tensor(_NAMES[name], matrix)


def _tensor(name: str, matrix: Matrix) -> GgufTensor:
    return GgufTensor(f"{name}.weight", (matrix.inputs, matrix.outputs), matrix.part)


def _fused(name: str, matrices: list[Matrix]) -> GgufTensor:
    outputs = sum(matrix.outputs for matrix in matrices)
    return GgufTensor(f"{name}.weight", (matrices[0].inputs, outputs), matrices[0].part)


def _special(mixer: Mixer, matrices: dict[str, Matrix], model: ModelProfile) -> Iterator[GgufTensor]:
    """Yield the matrices of a mixer that a file holds otherwise than one by one, and take them off the list."""
    if isinstance(mixer, Latent):
        whole = matrices.pop("attention.latent_up")
        for name, shape in (
            ("attn_k_b", (mixer.nope_dim, mixer.kv_lora_rank, mixer.heads)),
            ("attn_v_b", (mixer.kv_lora_rank, mixer.value_head_dim, mixer.heads)),
        ):
            yield GgufTensor(f"{name}.weight", shape, whole.part)
    if isinstance(mixer, State):
        matrices.pop("state.projections")
        for name, inputs, outputs in _STATES[mixer.variant](mixer, model.hidden_size):
            yield GgufTensor(f"{name}.weight", (inputs, outputs), "attention")


def _mamba(mixer: State, hidden: int) -> list[tuple[str, int, int]]:
    inner, states = mixer.conv_channels, mixer.key_dim
    rank = (mixer.matrix_parameters - 3 * hidden * inner - 2 * inner * states) // (2 * inner)
    return [
        ("ssm_in", hidden, 2 * inner),
        ("ssm_x", inner, rank + 2 * states),
        ("ssm_dt", rank, inner),
        ("ssm_out", inner, hidden),
    ]


def _mamba2(mixer: State, hidden: int) -> list[tuple[str, int, int]]:
    inner = mixer.heads * mixer.value_dim
    return [("ssm_in", hidden, inner + mixer.conv_channels + mixer.heads), ("ssm_out", inner, hidden)]


def _gated_delta(mixer: State, hidden: int) -> list[tuple[str, int, int]]:
    values = mixer.heads * mixer.value_dim
    return [
        ("attn_qkv", hidden, mixer.conv_channels),
        ("attn_gate", hidden, values),
        ("ssm_alpha", hidden, mixer.heads),
        ("ssm_beta", hidden, mixer.heads),
        ("ssm_out", values, hidden),
    ]


def _short_convolution(mixer: State, hidden: int) -> list[tuple[str, int, int]]:
    return [
        ("shortconv.in_proj", hidden, 3 * mixer.conv_channels),
        ("shortconv.out_proj", mixer.conv_channels, hidden),
    ]


_STATES: dict[str, Callable[[State, int], list[tuple[str, int, int]]]] = {
    "mamba": _mamba,
    "mamba2": _mamba2,
    "gated_delta": _gated_delta,
    "short_conv": _short_convolution,
}


def _shared_experts(matrices: dict[str, Matrix]) -> Iterator[GgufTensor]:
    """Yield the matrices that every token passes beside the routed experts; Gemma 4 has them as a layer's usual MLP."""
    for side in ("gate", "up", "down"):
        if shared := matrices.pop(f"mlp.{side}", None):
            yield _tensor(f"ffn_{side}_shexp", shared)
    if gate := matrices.pop("mlp.shared_gate", None):
        yield GgufTensor("ffn_gate_inp_shexp.weight", (gate.inputs,), gate.part)


def _experts(mixture: Mixture, hidden: int, *, fused: bool) -> Iterator[GgufTensor]:
    inputs, width = mixture.inputs or hidden, mixture.width
    into = {"ffn_gate_up_exps": 2 * width} if fused else {"ffn_gate_exps": width, "ffn_up_exps": width}
    if not mixture.gated:
        into = {"ffn_up_exps": width}
    shapes = {name: (inputs, columns) for name, columns in into.items()} | {"ffn_down_exps": (width, inputs)}
    for name, (rows, columns) in shapes.items():
        yield GgufTensor(f"{name}.weight", (rows, columns, mixture.experts), "experts")
        if mixture.expert_bias:
            yield GgufTensor(f"{name}.bias", (columns, mixture.experts), "experts")


def _per_layer(model: ModelProfile, elements: int) -> Iterator[GgufTensor]:
    """Yield the matrices of Gemma's per-layer inputs, and of Gemma 3n's learned residuals beside them."""
    hidden = model.hidden_size
    width = model.embeddings[-1].width // model.layers
    yield GgufTensor("inp_gate.weight", (hidden, width), "other")
    yield GgufTensor("proj.weight", (width, hidden), "other")
    rest = elements - 2 * hidden * width
    if rest:
        streams = (model.matrix_parameters - hidden * width * model.layers) // (2 * hidden * hidden) + 1
        coefficients = streams**2 + streams**3
        yield GgufTensor("laurel and altup_router.weight", (1, rest - coefficients), "other", "fp16")
        yield GgufTensor("altup_coef.weight", (1, coefficients), "other")
