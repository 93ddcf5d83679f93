"""Architectures, by the differences of their graphs from Llama's.

Source: llama.cpp commit 0c1e57098bba, ``src/models``; names are those of GGUF files and of Hugging Face configs.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.architectures import architecture_key

__all__ = ["DEEPSEEK_V2", "DEEPSEEK_V3", "FAMILIES", "Family", "Routing"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """The choice of experts.

    Args:
        gate: function of the router's scores; ``chosen`` is a softmax over the chosen ones alone.
        corrected: whether a bias is added before the choice.
        normed: whether the chosen weights are divided by their sum.
        scaled: whether they are scaled.
        before: whether they scale the experts' inputs instead of their outputs, and choose by the raw scores.
        groups: groups of experts, the best half of which is chosen from; of models with 256 experts.
        router_bias: whether the router has a bias.
        shared_gate: what scales the shared expert: nothing, its sigmoid, or SiLU(x)/x.
    """

    gate: Literal["soft_max", "sigmoid", "chosen"] = "soft_max"
    corrected: bool = False
    normed: bool = True
    scaled: bool = False
    before: bool = False
    groups: int = 1
    router_bias: bool = False
    shared_gate: Literal["", "sigmoid", "silu"] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Differences of an architecture from Llama.

    Args:
        norm: the norm; ``rms_norm`` may write over its argument, ``norm`` may not.
        norm_bias: whether norms have biases.
        bare_norm: whether norms have no weights at all.
        pre_norm: whether norms stand before attention and MLP.
        post_norm: whether further norms stand behind attention.
        post_ffn_norm: whether further norms stand behind the MLP.
        fused_qkv: whether queries, keys and values are one matrix.
        qkv_bias: whether they have biases.
        out_bias: whether the attention's output has a bias.
        head_norm: norm of each query and key head.
        flat_norm: whether queries and keys are normed before they are cut into heads.
        rope: layers that rotate: all, none, those with windows or the first three of four.
        per_token: positions given for each token.
        turned_norm: whether rotated queries and keys are normed.
        temperature: queries that are multiplied with a number of each token: none, all, or those not rotated.
        query_scale: whether queries are scaled before attention.
        soft_cap: whether attention scores are capped.
        sinks: whether attention has sinks.
        ffn: the MLP's kind, as `Context.ffn` has them.
        ffn_bias: whether its projections have biases.
        parallel: whether attention and MLP read the same norm; by name, as their sums stand in different orders.
        first: whether the residual is the first argument of sums: none, behind the MLP, or both.
        residual_scale: whether what is added to the residual is scaled.
        embedding_scale: whether the embedded tokens are scaled, as a part of embedding or behind it.
        embedding_norm: whether they are normed.
        positions: whether a table of positions is added to them.
        logits: operations on the logits, in order.
        head_bias: whether the head has a bias.
        deepstack: further vectors of each token's input, added behind the first layers.
        late_outputs: whether the tokens with logits are picked behind the last norm, not in the last layer.
        kept_residual: whether the last layer's output is kept.
        routing: the choice of experts.
    """

    norm: str = "rms_norm"
    norm_bias: bool = False
    bare_norm: bool = False
    pre_norm: bool = True
    post_norm: bool = False
    post_ffn_norm: bool = False
    fused_qkv: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    head_norm: str = ""
    flat_norm: bool = False
    rope: Literal["all", "none", "windowed", "three of four"] = "all"
    per_token: int = 1
    turned_norm: bool = False
    temperature: Literal["", "all", "unrotated"] = ""
    query_scale: bool = False
    soft_cap: bool = False
    sinks: bool = False
    ffn: str = "gated"
    ffn_bias: bool = False
    parallel: Literal["", "cohere", "falcon", "neox", "phi"] = ""
    first: Literal["", "ffn", "both"] = ""
    residual_scale: bool = False
    embedding_scale: Literal["", "within", "behind"] = ""
    embedding_norm: bool = False
    positions: bool = False
    logits: tuple[str, ...] = ()
    head_bias: bool = False
    deepstack: int = 0
    late_outputs: bool = False
    kept_residual: bool = False
    routing: Routing = Routing()


_LLAMA = Family()
_QWEN2 = Family(qkv_bias=True)
_QWEN3 = Family(head_norm="rms_norm")
_LAYER_NORM = Family(norm="norm", norm_bias=True)
_GPT2 = replace(
    _LAYER_NORM, fused_qkv=True, qkv_bias=True, out_bias=True, rope="none", positions=True, ffn="plain", ffn_bias=True
)
_PHI3 = Family(fused_qkv=True, ffn="fused", query_scale=True, first="ffn")
_OLMO2 = Family(pre_norm=False, post_norm=True, post_ffn_norm=True, flat_norm=True)
_GEMMA = Family(embedding_scale="behind", query_scale=True)
_CAPPED = ("scale", "unary", "scale")
_GEMMA2 = replace(_GEMMA, post_norm=True, post_ffn_norm=True, soft_cap=True, logits=_CAPPED)
_SIGMOID = Routing(gate="sigmoid", corrected=True)
_GRANITE = Family(embedding_scale="within", residual_scale=True, logits=("scale",))

DEEPSEEK_V2 = Routing(normed=False)
DEEPSEEK_V3 = Routing(gate="sigmoid", corrected=True, scaled=True, groups=8)
_UNGROUPED = replace(DEEPSEEK_V3, groups=1)
_NEMOTRON_H = Family(rope="none", ffn="squared", late_outputs=True, routing=replace(_SIGMOID, scaled=True))
_QWEN35 = Family(per_token=4, late_outputs=True)
_QWEN35_MOE = replace(_QWEN35, routing=Routing(shared_gate="sigmoid"))

_BY_NAME: dict[str, Family] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _LLAMA,
    "arcee": Family(ffn="squared"),
    "ernie4_5": _LLAMA,
    "exaone": _LLAMA,
    "gpt_neox": replace(_LAYER_NORM, fused_qkv=True, qkv_bias=True, out_bias=True, ffn="plain", ffn_bias=True,
                        parallel="neox"),
    "internlm2": _LLAMA,
    "ministral3": Family(temperature="all"),
    "mistral3": Family(temperature="all"),
    "olmoe": Family(flat_norm=True, routing=Routing(normed=False)),
    "orion": _LAYER_NORM,
    "seed_oss": _QWEN2,
    "smollm3": Family(rope="three of four"),
    "qwen2": _QWEN2,
    "qwen2_vl": replace(_QWEN2, per_token=4),
    "qwen2_5_vl": replace(_QWEN2, per_token=4),
    "qwen2_moe": replace(_QWEN2, routing=Routing(normed=False, shared_gate="silu")),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": replace(_QWEN3, per_token=4, deepstack=3),
    "qwen3_vl_moe": replace(_QWEN3, per_token=4, deepstack=3),
    "phi3": _PHI3,
    "phimoe": replace(
        _PHI3, fused_qkv=False, qkv_bias=True, out_bias=True, norm_bias=True, head_bias=True
    ),
    "phi": replace(_LAYER_NORM, qkv_bias=True, out_bias=True, query_scale=True, ffn="plain", ffn_bias=True,
                   parallel="phi", head_bias=True),
    "phi2": replace(_LAYER_NORM, qkv_bias=True, out_bias=True, query_scale=True, ffn="plain", ffn_bias=True,
                    parallel="phi", head_bias=True),
    "cohere": Family(norm="norm", parallel="cohere", logits=("scale",)),
    "command-r": Family(norm="norm", parallel="cohere", logits=("scale",)),
    "cohere2": Family(norm="norm", parallel="cohere", logits=("scale",), rope="windowed"),
    "exaone4": Family(pre_norm=False, post_norm=True, post_ffn_norm=True, head_norm="rms_norm", rope="windowed"),
    "minimax_m2": Family(flat_norm=True, routing=_SIGMOID),
    "bloom": replace(_GPT2, positions=False, embedding_norm=True),
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "starcoder": _GPT2,
    "starcoder2": replace(_LAYER_NORM, qkv_bias=True, out_bias=True, ffn="plain", ffn_bias=True),
    "ernie4_5_moe": Family(routing=Routing(corrected=True)),
    "glm4": Family(qkv_bias=True, post_norm=True, post_ffn_norm=True, ffn="fused"),
    "glm4_moe": Family(qkv_bias=True, routing=_SIGMOID),
    "glm4v_moe": Family(qkv_bias=True, routing=_SIGMOID, per_token=4),
    "granite": _GRANITE,
    "granitemoe": _GRANITE,
    "hy_v3": Family(head_norm="rms_norm", late_outputs=True, routing=replace(_SIGMOID, scaled=True)),
    "nemotron": replace(_LAYER_NORM, ffn="squared"),
    "olmo": Family(norm="norm", bare_norm=True),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3": replace(_GEMMA2, head_norm="rms_norm", soft_cap=False, logits=()),
    "gemma3n": Family(embedding_scale="behind", logits=_CAPPED),
    "gemma4": Family(embedding_scale="behind", late_outputs=True, logits=_CAPPED),
    "gpt_oss": Family(
        qkv_bias=True, out_bias=True, sinks=True, late_outputs=True, kept_residual=True,
        routing=Routing(gate="chosen", normed=False, router_bias=True),
    ),
    "falcon": Family(norm="norm", norm_bias=True, fused_qkv=True, ffn="plain", parallel="falcon"),
    "llama4": Family(
        rope="three of four", turned_norm=True, temperature="unrotated",
        routing=Routing(gate="sigmoid", normed=False, before=True),
    ),
    # with recurrent layers
    "bamba": Family(),
    "falcon_h1": Family(),
    "falcon_mamba": Family(),
    "granite_hybrid": _GRANITE,
    "granitemoehybrid": _GRANITE,
    "jamba": Family(rope="none", first="both", routing=Routing(normed=False)),
    "lfm2": Family(head_norm="rms_norm", first="both"),
    "lfm2_moe": Family(head_norm="rms_norm", first="both", routing=_SIGMOID),
    "mamba": Family(),
    "mamba2": Family(),
    "nemotron_h": _NEMOTRON_H,
    "nemotron_h_moe": _NEMOTRON_H,
    "qwen35": _QWEN35,
    "qwen35moe": _QWEN35_MOE,
    "qwen3_5": _QWEN35,
    "qwen3_next": replace(_QWEN35_MOE, per_token=1),
    "qwen3_5_moe": _QWEN35_MOE,
    # with latent attention
    "deepseek2": Family(routing=DEEPSEEK_V2),
    "deepseek_v2": Family(routing=DEEPSEEK_V2),
    "deepseek_v3": Family(routing=DEEPSEEK_V3),
    "deepseek32": Family(routing=DEEPSEEK_V3),
    "deepseek_v32": Family(routing=DEEPSEEK_V3),
    "glm4_moe_lite": Family(routing=_UNGROUPED),
    "glm_dsa": Family(routing=_UNGROUPED),
    "glm_moe_dsa": Family(routing=_UNGROUPED),
    "kimi_k2": Family(routing=_UNGROUPED),
}  # fmt: skip
FAMILIES = {architecture_key(name): family for name, family in _BY_NAME.items()}
