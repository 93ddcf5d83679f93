"""GigaChat 3.5: gated delta nets, latent attention with a full gate in some layers, and norms that gate themselves.

Source: the public classes of vLLM (``gigachat3_5.py``) and SGLang (``gigachat35.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.families.latent import first_dense, latent_attention, latent_experts, latent_mtp
from kvcalc.importers.families.linear_attention import qwen_delta_net
from kvcalc.importers.families.shape import Shape, decoder_shape, hybrid_layers, layer_kinds, mlp, refuse

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

_KINDS = {"linear_attention": "delta", "full_attention": "attention"}
# Width of the bottleneck that a gated norm's gate passes.
_GATE_RANK = 16
_GATED, _PLAIN = ("ZeroCenteredGatedNorm", "GatedNorm"), ("LlamaRMSNorm", "RMSNorm", "ZeroCenteredRMSNorm")
_DELTA_GATES = ("gated_rmsnorm", "gated_rmsnorm_sigmoid", "gated_rmsnorm_sigmoid_zero_centered")


def gigachat3_5(config: Config) -> Shape:
    """Norms before and behind both halves of a layer; each, with those of latent attention, has a low-rank gate."""
    hidden, layers = config.integer("hidden_size"), config.integer("num_hidden_layers")
    _check(config)
    gated = config.choice(config.text("norm_type"), (*_GATED, *_PLAIN), key="norm_type", what="the norm") in _GATED
    between = {"pre": 2, "pre_post": 4}
    sides = config.choice(config.text("layernorm_type"), tuple(between), key="layernorm_type", what="the norms' place")
    latent, latent_vectors = latent_attention(config, hidden, gated=config.flag("gated_attention"))
    inner = latent.kv_lora_rank + (latent.q_lora_rank or 0)
    extra = 2 * _GATE_RANK if gated else 0
    mixers: dict[str, tuple[Mixer, int]] = {
        "delta": qwen_delta_net(config, hidden),
        # the gates of its own norms are too narrow to count as more than vectors
        "attention": (latent, latent_vectors + extra * inner),
    }
    mlps = {"dense": (mlp(config.integer("intermediate_size")), 0), "sparse": (latent_experts(config), 0)}
    pairs = list(zip(_layer_kinds(config, layers), first_dense(config, layers), strict=True))
    count = between[sides]
    blocks = hybrid_layers(mixers, mlps, pairs, norms=count * hidden, matrices=count * extra * hidden)
    return decoder_shape(config, blocks, hidden=hidden, matrices=extra * hidden, notes=latent_mtp(config))


def _check(config: Config) -> None:
    if config.flag("use_shared_expert_sigmoid", default=False):
        raise refuse(config, "use_shared_expert_sigmoid", "a GigaChat whose shared expert has a gate")
    if config.has("linear_attention_type"):
        config.choice(
            config.text("linear_attention_type"),
            ("Qwen3NextGatedDeltaNet",),
            key="linear_attention_type",
            what="the state",
        )
    kind = config.text("linear_gating_type", default=_DELTA_GATES[0])
    config.choice(kind, _DELTA_GATES, key="linear_gating_type", what="the delta net's gate")


def _layer_kinds(config: Config, layers: int) -> list[str]:
    """Return each layer's kind: by ``layer_types``, or by the numbers of those with latent attention."""
    if config.has("layer_types"):
        return layer_kinds(config, "layer_types", names=_KINDS, layers=layers)
    full = config.sequence("full_attention_layers")
    if any(not isinstance(layer, int) or isinstance(layer, bool) or not 0 <= layer < layers for layer in full):
        raise config.bad("full_attention_layers", full, f"numbers below {layers}")
    return ["attention" if layer in full else "delta" for layer in range(layers)]


RULES: dict[str, Rule] = {"gigachat3_5": gigachat3_5}
