"""Decoders of the Llama line: RMSNorm, rotary positions, full attention, one MLP, all layers alike."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Head
from kvcalc.importers.families.shape import attention_biases, decoder_shape, head_width, heads, mlp, mlp_biases, refuse

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES", "alike", "llama"]


def alike(
    config: Config,
    *,
    biases: tuple[bool, bool, bool] = (False, False, False),
    norms: int,
    gated: bool = True,
    vectors: int = 0,
    last_norm: int | None = None,
    parallel: bool = False,
    sizes: tuple[int, int, int] | None = None,
    notes: tuple[str, ...] = (),
) -> Shape:
    """Return a decoder whose layers are all the same.

    Args:
        config: the config.
        biases: whether queries, keys and values, the attention's output, and the MLP have biases.
        norms: elements of a layer's norms of the hidden state.
        gated: whether the MLP has three matrices or two.
        vectors: further vector elements of a layer.
        last_norm: elements of the last norm; the hidden size where left out.
        parallel: whether attention and MLP read the same input.
        sizes: query heads, KV heads and head width, where the usual keys do not give them.
        notes: what a user should know.
    """
    hidden = config.integer("hidden_size")
    query, kv, width = sizes or heads(config, hidden=hidden)
    inner = config.integer("intermediate_size")
    inputs, output, in_mlp = biases
    vectors += norms + attention_biases(query, kv, width, hidden, inputs=inputs, output=output)
    vectors += mlp_biases(inner, hidden, gated=gated) if in_mlp else 0
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=mlp(inner, gated=gated),
        parallel=parallel,
        vector_parameters=vectors,
    )
    layers = config.integer("num_hidden_layers", "num_layers")
    return decoder_shape(config, (block,) * layers, hidden=hidden, vectors=last_norm, notes=notes)


def _attention_bias(config: Config) -> bool:
    return config.flag("attention_bias", default=False)


def _mlp_bias(config: Config) -> bool:
    return config.flag("mlp_bias", default=False)


def llama(config: Config) -> Shape:
    """Two norms, grouped heads, a gated MLP; biases only where ``attention_bias`` and ``mlp_bias`` ask for them."""
    bias = _attention_bias(config)
    return alike(config, biases=(bias, bias, _mlp_bias(config)), norms=2 * config.integer("hidden_size"))


def internlm3(config: Config) -> Shape:
    """InternLM3: ``qkv_bias`` for queries, keys and values, ``bias`` for the attention's output and the MLP."""
    bias = config.flag("bias", "mlp_bias", default=False)
    biases = (config.flag("qkv_bias", "attention_bias", default=False), bias, bias)
    return alike(config, biases=biases, norms=2 * config.integer("hidden_size"))


def gemma(config: Config) -> Shape:
    """Llama with a head width of its own and a token table tied to the head; the MLP never has biases."""
    bias = _attention_bias(config)
    return alike(config, biases=(bias, bias, False), norms=2 * config.integer("hidden_size"))


def helium(config: Config) -> Shape:
    """Llama whose output projection never has a bias."""
    hidden = config.integer("hidden_size")
    query, _, width = heads(config, hidden=hidden)
    if query * width != hidden:
        raise refuse(config, "head_dim", "a Helium whose heads together are not as wide as the hidden state")
    return alike(config, biases=(_attention_bias(config), False, _mlp_bias(config)), norms=2 * hidden)


def glm(config: Config) -> Shape:
    """GLM-4 as ported: biases on queries, keys and values alone, gate and up projection stored as one matrix."""
    biases = (_attention_bias(config), False, False)
    return alike(config, biases=biases, norms=2 * config.integer("hidden_size"))


def glm4(config: Config) -> Shape:
    """GLM-4-0414: as `glm`, with a norm before and after attention and MLP each."""
    biases = (_attention_bias(config), False, False)
    return alike(config, biases=biases, norms=4 * config.integer("hidden_size"))


def glm4v(config: Config) -> Shape:
    """The text model of GLM-4V: as `glm4`, with biases on queries, keys and values whatever the config says.

    As first published (GLM-4.1V) its keys stand at the top level.
    """
    config.pass_over("attention_bias", "queries, keys and values always have biases")
    config.raw("num_key_value_heads")
    return alike(config, biases=(True, False, False), norms=4 * config.integer("hidden_size"))


def glm_ocr(config: Config) -> Shape:
    """The text model of GLM-OCR: as `glm4`, never with biases."""
    return alike(config, norms=4 * config.integer("hidden_size"))


def chameleon(config: Config) -> Shape:
    """Chameleon: queries and keys normalised, with a weight and a bias for each element of each head."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    if config.flag("swin_norm", default=False):
        config.pass_over("swin_norm", "norms stand behind attention and MLP, as many as before them")
    query, kv, width = heads(config, hidden=hidden)
    vectors = 2 * (query + kv) * width
    return alike(config, biases=(bias, bias, _mlp_bias(config)), norms=2 * hidden, vectors=vectors)


def molmo2(config: Config) -> Shape:
    """Molmo 2's text model: queries and keys normalised head by head; tokens of images have rows of their own."""
    hidden, bias = config.integer("hidden_size"), config.flag("qkv_bias", "attention_bias", default=False)
    config.choice(config.text("qk_norm_type"), ("qwen3",), key="qk_norm_type", what="the norm of queries and keys")
    if config.flag("norm_after", default=False):
        raise refuse(config, "norm_after", "a Molmo 2 with norms after attention and MLP")
    *_, width = heads(config, hidden=hidden)
    shape = alike(config, biases=(bias, False, False), norms=2 * hidden, vectors=2 * width)
    token = shape.embeddings[0]
    further = config.integer("additional_vocab_size", least=0)
    return replace(shape, embeddings=(replace(token, rows=token.rows + further),), head=Head(rows=token.rows))


def seed_oss(config: Config) -> Shape:
    """Llama with separate switches for the biases of the attention's inputs and its output."""
    biases = (_attention_bias(config), config.flag("attention_out_bias", default=False), _mlp_bias(config))
    return alike(config, biases=biases, norms=2 * config.integer("hidden_size"))


def ernie4_5(config: Config) -> Shape:
    """Llama with one switch, ``use_bias``, for every matrix of a layer."""
    bias = config.flag("use_bias", default=False)
    return alike(config, biases=(bias, bias, bias), norms=2 * config.integer("hidden_size"))


def hunyuan(config: Config) -> Shape:
    """HunYuan dense: queries and keys are normalised head by head, with one weight vector each for all heads."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    *_, width = heads(config, hidden=hidden)
    return alike(config, biases=(bias, bias, False), norms=2 * hidden, vectors=2 * width)


def olmo(config: Config) -> Shape:
    """OLMo: layer norms without weights."""
    bias = _attention_bias(config)
    return alike(config, biases=(bias, bias, False), norms=0, last_norm=0)


def olmo2(config: Config) -> Shape:
    """OLMo-2: norms after attention and MLP; all queries together, and all keys together, have a norm."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    query, kv, width = heads(config, hidden=hidden)
    return alike(config, biases=(bias, bias, False), norms=2 * hidden, vectors=(query + kv) * width)


def diffllama(config: Config) -> Shape:
    """Differential attention: four vectors of the head width weigh the two attention maps against each other.

    Keys and values are stored as in grouped attention; the norm of the heads' outputs has no weights.
    """
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    *_, width = heads(config, hidden=hidden)
    return alike(config, biases=(bias, bias, False), norms=2 * hidden, vectors=4 * width)


def arcee(config: Config) -> Shape:
    """Llama with an MLP of two matrices (squared ReLU)."""
    bias = _attention_bias(config)
    biases = (bias, bias, _mlp_bias(config))
    return alike(config, biases=biases, norms=2 * config.integer("hidden_size"), gated=False)


def nemotron(config: Config) -> Shape:
    """Nemotron-4 and Jais 2: layer norms with biases, an MLP of two matrices (squared ReLU)."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    return alike(config, biases=(bias, bias, _mlp_bias(config)), norms=4 * hidden, gated=False, last_norm=2 * hidden)


def nanochat(config: Config) -> Shape:
    """nanochat: norms without weights, an MLP of two matrices without biases (squared ReLU)."""
    bias = _attention_bias(config)
    return alike(config, biases=(bias, bias, False), norms=0, gated=False, last_norm=0)


def apertus(config: Config) -> Shape:
    """Apertus: an MLP of two matrices whose xIELU activation has two learned numbers; norms on queries and keys."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    *_, width = heads(config, hidden=hidden)
    learned = 2 if config.text("hidden_act", default="xielu") == "xielu" else 0
    return alike(config, biases=(bias, bias, False), norms=2 * hidden, gated=False, vectors=2 * width + learned)


def apertus1p5(config: Config) -> Shape:
    """Apertus 1.5: the vocabulary covers codes of images and sound, which ``output_vocab_size`` cuts from the head."""
    shape = apertus(config)
    rows = config.maybe_integer("output_vocab_size")
    return shape if rows is None else replace(shape, head=Head(rows=rows))


def bitnet(config: Config) -> Shape:
    """BitNet b1.58: further norms before the attention's output projection and before the MLP's."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    inner = config.integer("intermediate_size")
    return alike(config, biases=(bias, bias, False), norms=3 * hidden, vectors=inner)


def cohere(config: Config) -> Shape:
    """Command R: attention and MLP side by side behind one layer norm; optional norms with a weight for each head."""
    hidden, bias = config.integer("hidden_size"), _attention_bias(config)
    query, kv, width = heads(config, hidden=hidden)
    vectors = (query + kv) * width if config.flag("use_qk_norm", default=False) else 0
    return alike(config, biases=(bias, bias, False), norms=hidden, vectors=vectors, parallel=True)


def hyperclovax(config: Config) -> Shape:
    """HyperCLOVA X: Llama with scaling factors, and further norms after attention and MLP unless switched off."""
    bias = _attention_bias(config)
    norms = 4 if config.flag("use_post_norm", default=True) else 2
    return alike(config, biases=(bias, bias, _mlp_bias(config)), norms=norms * config.integer("hidden_size"))


def stablelm(config: Config) -> Shape:
    """StableLM: layer norms with biases, rotary positions on part of a head, optional norms with a weight a head."""
    hidden = config.integer("hidden_size")
    query = config.integer("num_attention_heads")
    kv = config.integer_or(query, "num_key_value_heads")
    width = head_width(config, hidden, query)
    parallel = config.flag("use_parallel_residual", default=False)
    return alike(
        config,
        biases=(config.flag("use_qkv_bias", default=False), False, False),
        norms=(2 if parallel else 4) * hidden,
        vectors=(query + kv) * width if config.flag("qk_layernorm", default=False) else 0,
        last_norm=2 * hidden,
        parallel=parallel,
        sizes=(query, kv, width),
    )


RULES: dict[str, Rule] = {
    "Yi": llama,
    "apertus": apertus,
    "apertus1p5_text": apertus1p5,
    "arcee": arcee,
    "bitnet": bitnet,
    "chameleon": chameleon,
    "cohere": cohere,
    "cosmos3_edge_text": arcee,
    "diffllama": diffllama,
    "emu3_text_model": llama,
    "ernie4_5": ernie4_5,
    "exaone": llama,
    "gemma": gemma,
    "glm": glm,
    "glm4": glm4,
    "glm4v": glm4v,
    "glm4v_text": glm4v,
    "glm_ocr_text": glm_ocr,
    "granite": llama,
    "granite4_vision_text": llama,
    "granite_docling_text": llama,
    "helium": helium,
    "hunyuan_v1_dense": hunyuan,
    "hunyuan_vl_text": hunyuan,
    "hyperclovax": hyperclovax,
    "internlm3": internlm3,
    "iquestcoder": llama,
    "jais2": nemotron,
    "llama": llama,
    "molmo2_text": molmo2,
    "nanochat": nanochat,
    "nemotron": nemotron,
    "olmo": olmo,
    "olmo2": olmo2,
    "paddleocr_vl_text": ernie4_5,
    "seed_oss": seed_oss,
    "stablelm": stablelm,
}
