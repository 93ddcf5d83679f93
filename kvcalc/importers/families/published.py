"""Dense decoders whose code comes with the checkpoint: the rules follow that published code."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Head, Table
from kvcalc.importers.families.dense import alike
from kvcalc.importers.families.shape import Shape, attention_biases, heads, mlp_biases, refuse

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
    query, kv, _ = heads(config, hidden=hidden)
    bias = config.flag("attention_bias", default=False)
    shape = alike(config, biases=(bias, bias, False), norms=2 * hidden, sizes=(query, kv, hidden // query))
    tied = config.flag("tie_word_embeddings", default=True)
    return replace(shape, head=Head(rows=config.integer("vocab_size"), tied=tied))


def baichuan(config: Config) -> Shape:
    """Baichuan: one matrix for queries, keys and values, no biases; a head that may normalise its rows."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    shape = alike(config, norms=2 * hidden, sizes=(query, query, hidden // query))
    return replace(shape, context_limit=config.maybe_integer("max_position_embeddings", "model_max_length"))


def orion(config: Config) -> Shape:
    """Orion: Llama with layer norms that have biases."""
    hidden = config.integer("hidden_size")
    query, kv, _ = heads(config, hidden=hidden)
    return alike(config, norms=4 * hidden, last_norm=2 * hidden, sizes=(query, kv, hidden // query))


def qwen(config: Config) -> Shape:
    """Qwen (first generation): ``intermediate_size`` counts gate and up together; queries, keys, values have biases."""
    hidden, query = config.integer("hidden_size"), config.integer("num_attention_heads")
    width = config.integer("kv_channels", default=hidden // query)
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
        context_limit=config.maybe_integer("seq_length", "max_position_embeddings"),
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
    rows = config.integer("padded_vocab_size", "vocab_size")
    return Shape(
        hidden_size=hidden,
        context_limit=config.maybe_integer("seq_length"),
        blocks=(block,) * config.integer("num_layers"),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied=config.flag("tie_word_embeddings", default=False)),
        vector_parameters=norm if config.flag("post_layer_norm", default=True) else 0,
    )


RULES: dict[str, Rule] = {
    "baichuan": baichuan,
    "chatglm": chatglm,
    "internlm": internlm,
    "internlm2": internlm,
    "minicpm": minicpm,
    "orion": orion,
    "qwen": qwen,
}
