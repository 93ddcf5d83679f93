"""Dense decoders whose code comes with the checkpoint: the rules follow that published code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Head, Table
from kvcalc.importers.families.dense import alike, llama
from kvcalc.importers.families.shape import (
    Shape,
    attention_biases,
    decoder_shape,
    head_width,
    mlp,
    mlp_biases,
    refuse,
    stack,
)
from kvcalc.importers.families.windowed import qwen2

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]


def internlm(config: Config) -> Shape:
    """InternLM: Llama with biases in the attention, output included (``bias``); none in the MLP."""
    bias = config.flag("bias", default=True)
    return alike(config, biases=(bias, bias, False), norms=2 * config.integer("hidden_size"))


def minicpm(config: Config) -> Shape:
    """MiniCPM: Llama with scaling factors and a tied head; its mixture and sparse-attention variants are refused."""
    for key, what in (("num_experts", "a MiniCPM with experts"), ("sparse_config", "a MiniCPM with sparse attention")):
        if config.raw(key, default=None):
            raise refuse(config, key, what)
    hidden = config.integer("hidden_size")
    query = config.integer("num_attention_heads")
    kv = config.integer_or(query, "num_key_value_heads")
    bias = config.flag("attention_bias", default=False)
    shape = alike(
        config, biases=(bias, bias, False), norms=2 * hidden, sizes=(query, kv, head_width(config, hidden, query))
    )
    tied = config.flag("tie_word_embeddings", default=True)
    return replace(shape, head=Head(rows=config.integer("vocab_size"), tied=tied))


def baichuan(config: Config) -> Shape:
    """Baichuan: one matrix for queries, keys and values, no biases; a head that may normalise its rows."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = alike(config, norms=2 * hidden, sizes=(query, query, head_width(config, hidden, query)))
    return replace(
        shape, context_limit=config.maybe_integer("max_position_embeddings") or config.maybe_integer("model_max_length")
    )


def orion(config: Config) -> Shape:
    """Orion: Llama with layer norms that have biases."""
    hidden = config.integer("hidden_size")
    query = config.integer("num_attention_heads")
    kv = config.integer_or(query, "num_key_value_heads")
    return alike(config, norms=4 * hidden, last_norm=2 * hidden, sizes=(query, kv, head_width(config, hidden, query)))


def qwen(config: Config) -> Shape:
    """Qwen (first generation): ``intermediate_size`` counts gate and up together; queries, keys, values have biases."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = head_width(config, hidden, query, "kv_channels")
    inner = config.integer("intermediate_size") // 2
    bias = not config.flag("no_bias", default=True)
    vectors = 2 * hidden + attention_biases(query, query, width, hidden, inputs=True, output=bias)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=query, head_dim=width),),
        mlp=Gated(width=inner),
        vector_parameters=vectors + (mlp_biases(inner, hidden) if bias else 0),
    )
    rows = config.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("seq_length") or config.maybe_integer("max_position_embeddings"),
        blocks=(block,) * config.integer("num_hidden_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=False)),
        vector_parameters=hidden,
    )


def chatglm(config: Config) -> Shape:
    """ChatGLM2, ChatGLM3 and GLM-4 with their own code: few KV heads, gate and up projection in one matrix.

    The first ChatGLM-6B shares the name but is another architecture; it is refused.
    """
    if not config.has("ffn_hidden_size"):
        raise refuse(config, "ffn_hidden_size", "the first ChatGLM (no ffn_hidden_size)")
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    width, inner = config.integer("kv_channels"), config.integer("ffn_hidden_size")
    kv = config.integer("multi_query_group_num") if config.flag("multi_query_attention", default=False) else query
    bias = config.flag("add_bias_linear", default=False)
    norm = hidden if config.flag("rmsnorm", default=True) else 2 * hidden
    in_bias = bias or config.flag("add_qkv_bias", default=False)
    vectors = 2 * norm + attention_biases(query, kv, width, hidden, inputs=in_bias, output=bias)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=Gated(width=inner),
        vector_parameters=vectors + (mlp_biases(inner, hidden) if bias else 0),
    )
    rows = config.maybe_integer("padded_vocab_size") or config.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("seq_length"),
        blocks=(block,) * config.integer("num_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=False)),
        vector_parameters=norm if config.flag("post_layer_norm", default=True) else 0,
    )


def phi3small(config: Config) -> Shape:
    """Phi-3-small: layer norms and biases everywhere, gate and up projection in one matrix, the head tied.

    Layers that attend to blocks of the past only keep every token all the same.
    """
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv, width = config.integer("num_key_value_heads"), head_width(config, hidden, query)
    inner = config.integer("ff_intermediate_size")
    if config.has("ff_dim_multiplier"):
        raise refuse(config, "ff_dim_multiplier", "a Phi-3-small whose MLP is sized by a multiplier")
    vectors = 4 * hidden + attention_biases(query, kv, width, hidden, inputs=True, output=True)
    block = Block(
        name="decoder",
        mixers=(Full(heads=query, kv_heads=kv, head_dim=width),),
        mlp=Gated(width=inner),
        vector_parameters=vectors + mlp_biases(inner, hidden),
    )
    tied = config.flag("tie_word_embeddings", default=True)
    shape = decoder_shape(config, (block,) * config.integer("num_hidden_layers"), hidden=hidden, vectors=2 * hidden)
    notes = ("layers that attend to blocks of the past are cached whole, and reads are counted in full",)
    return replace(shape, head=Head(rows=config.integer("vocab_size"), tied=tied), notes=notes)


def deci(config: Config) -> Shape:
    """DeciLM-7B: Llama whose layers may differ in their KV heads."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    query, inner = config.integer("num_attention_heads"), config.integer("intermediate_size")
    width = head_width(config, hidden, query)
    counts = _counts(config, "num_key_value_heads_per_layer", layers)
    for key in ("attention_bias", "mlp_bias"):
        if config.flag(key, default=False):
            raise refuse(config, key, "a DeciLM with biases")
    mixers = [(Full(heads=query, kv_heads=kv, head_dim=width), 0) for kv in counts]
    blocks = stack(mixers, [(Gated(width=inner), 0)] * layers, norms=2 * hidden)
    return decoder_shape(config, blocks, hidden=hidden)


def _counts(config: Config, key: str, layers: int) -> list[int]:
    counts = config.sequence(key, length=layers)
    if not all(isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in counts):
        raise config.bad(key, counts, "a list of positive whole numbers")
    return counts


def openelm(config: Config) -> Shape:
    """OpenELM: heads and the MLP's width grow from layer to layer; each layer's numbers stand in lists.

    Source: Mehta et al. 2024, arXiv 2404.14619.
    """
    hidden, layers = config.integer("model_dim", "hidden_size"), config.integer("num_transformer_layers")
    width, divisor = config.integer("head_dim"), config.integer("ffn_dim_divisor")
    queries, keys = _counts(config, "num_query_heads", layers), _counts(config, "num_kv_heads", layers)
    factors = config.sequence("ffn_multipliers", length=layers)
    if not all(isinstance(factor, int | float) and 0 < factor < divisor for factor in factors):
        raise config.bad("ffn_multipliers", factors, "a list of positive numbers")
    gated = config.flag("ffn_with_glu")
    norms = 2 * hidden + (2 * width if config.flag("normalize_qk_projections") else 0)
    mixers = [(Full(heads=query, kv_heads=kv, head_dim=width), 0) for query, kv in zip(queries, keys, strict=True)]
    feeds = [(mlp(_divisible(factor * hidden, divisor), gated=gated), 0) for factor in factors]
    rows = config.integer("vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("max_context_length"),
        blocks=stack(mixers, feeds, norms=norms),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("share_input_output_layers")),
        vector_parameters=hidden,
    )


def _divisible(value: float, divisor: int) -> int:
    """Return the nearest multiple of the divisor, but none more than a tenth below the value."""
    nearest = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return nearest + divisor if nearest < 0.9 * value else nearest


def minicpmv(config: Config) -> Shape:
    """MiniCPM-V with the text model's keys at the top level: Llama 3 in version 2.5, Qwen2 in version 2.6."""
    config.raw("num_key_value_heads")
    texts = {"2.5": llama, "2.6": qwen2}
    version = str(config.raw("version"))
    return texts[config.choice(version, tuple(texts), key="version", what="the version")](config)


RULES: dict[str, Rule] = {
    "baichuan": baichuan,
    "chatglm": chatglm,
    "deci": deci,
    "internlm": internlm,
    "internlm2": internlm,
    "minicpm": minicpm,
    "minicpmv": minicpmv,
    "openelm": openelm,
    "orion": orion,
    "phi3small": phi3small,
    "qwen": qwen,
}
