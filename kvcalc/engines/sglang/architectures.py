"""SGLang (0.5.23): which architectures it serves, and which of them have other pools than one of tokens.

The names are the ``model_type`` of Hugging Face configs, of the text model where there are several. SGLang decides by
the class that the config names; those here are the ones that go with the type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import UnsupportedError, did_you_mean
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["Architecture", "find_architecture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The pools that SGLang gives an architecture, and what it decides for it.

    Args:
        pools: one pool of tokens; one each for full and windowed layers; states beside tokens; compressed entries.
        window_excess: tokens by which the profile's window is larger than the one that the pool is checked against.
        radix: how its states outlive a request in the radix cache: with a buffer beside it, without one, or kept by
            no rule of its own.
        own_class: whether SGLang has a class of its own for it; transformers' class runs in its place where not.
        latent_class: whether its latent attention runs in the class of DeepSeek-V3.
    """

    pools: Literal["tokens", "windows", "states", "compressed"] = "tokens"
    window_excess: int = 1
    radix: Literal["extra_buffer", "no_buffer", "none"] = "none"
    own_class: bool = True
    latent_class: bool = False


_TOKENS = frozenset({
    "Yi", "afmoe", "apertus", "arcee", "baichuan", "bailing_moe", "bailing_moe_v2", "chatglm", "cohere", "cohere2",
    "cohere2_moe", "dbrx", "deci", "deepseek", "deepseek_v2", "ernie4_5_moe", "ernie4_5_vl_moe_text", "exaone",
    "exaone4", "exaone_moe", "gemma", "gemma2", "gemma3_text", "gemma3n_text", "glm4", "glm4_moe", "glm4_moe_lite",
    "glm4v", "glm4v_moe_text", "glm4v_text", "glm_ocr_text", "gpt-sw3", "gpt2", "gpt_bigcode", "gptj", "granite",
    "granitemoe", "granitemoeshared", "grok-1", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3",
    "internlm2", "internlm3", "iquestcoder", "llama", "mimo", "minicpm", "minicpm3", "minicpmv", "minimax_m2",
    "minimax_m3", "minimax_m3_vl_text", "ministral3", "mistral", "mixtral", "mllama_text_model", "nemotron-nas",
    "olmo", "olmo2", "olmoe", "opt", "orion", "paddleocr_vl_text", "persimmon", "phi", "phi3", "phi3small", "phimoe",
    "qwen", "qwen2", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen3", "qwen3_moe",
    "qwen3_omni_moe_text", "qwen3_vl_moe_text", "qwen3_vl_text", "sarvam_mla", "sarvam_moe", "stablelm", "starcoder2",
    "whisper", "xverse",
})  # fmt: skip
# Latent attention by the class of DeepSeek-V3, which takes other kernels on Blackwell; sparse where there is an index.
_LATENT = frozenset({"deepseek_v3", "deepseek_v32", "glm_moe_dsa", "hy_v4", "kimi_k2", "longcat_flash"})
# Without a class of SGLang's own, and transformers' attention can be replaced.
_BY_TRANSFORMERS = frozenset({
    "apertus1p5_text", "aria_text", "axk1", "axk2", "bert", "bert-generation", "bitnet", "camembert", "codegen",
    "cohere_compass_text", "ctrl", "cwm", "data2vec-text", "deepseek_ocr2_text", "diffllama", "doge", "dory", "dots1",
    "electra", "ernie", "ernie4_5", "exaone4_5_text", "flex_olmo", "flint", "glm", "gpt_neox", "granite_docling_text",
    "helium", "hunyuan_vl_text", "hyperclovax", "idefics", "jais2", "jetmoe", "kolibri1", "kosmos_2_5_text_model",
    "kosmos_2_text_model", "kyutai_speech_to_text", "lfm3", "minimax", "ministral", "mistral4", "mistral_large4_text",
    "modernbert-decoder", "molmo2_text", "moshi", "nanochat", "nemotron", "olmo3", "phi4_multimodal",
    "qwen2_5_omni_text", "recurrent_gemma", "roberta", "roberta-prelayernorm", "roc_bert", "seed_oss", "smollm3",
    "solar_open", "vaultgemma", "voxtral_realtime_text", "xlm-roberta", "xlm-roberta-xl", "xmod", "youtu",
})  # fmt: skip
# Without a class of its own, and transformers' attention cannot be replaced.
_REFUSED = frozenset({
    "bamba", "bart", "big_bird", "bigbird_pegasus", "biogpt", "blenderbot", "blenderbot-small",
    "blip_text_model", "bloom", "canary", "cohere_asr", "dia", "falcon", "fsmt", "git", "gpt_neo",
    "gpt_neox_japanese", "inkling2_loop_text", "inkling2_text", "internlm", "jamba", "lara_mini", "led", "longt5",
    "m2m_100", "marian", "mbart", "megatron-bert", "minimax_m1", "minimax_text_01", "moonshine",
    "moonshine_streaming", "mpt", "mt5", "mvp", "nllb-moe", "olmo_hybrid", "openai-gpt", "openelm", "pegasus",
    "pegasus_x", "phi3_v", "pix2struct_text_model", "plbart", "pop2piano", "prophetnet", "rembert", "roformer",
    "rwkv", "rwkv5", "rwkv6", "rwkv7", "seamless_m4t", "seamless_m4t_v2", "speech_to_text", "speecht5",
    "switch_transformers", "t5", "t5gemma", "trocr", "udop", "umt5", "xglm", "xlm", "xlstm", "zamba", "zamba2",
})  # fmt: skip
# Windows that the class says one less of, with the new token that a profile counts; and those of the config itself.
_WINDOWS = frozenset({
    "beam", "gemma4_text", "gemma4_unified_text", "gpt_oss", "mellum", "mimo_v2", "mimo_v2_flash",
    "muse_glimmer_text",
})  # fmt: skip
_WHOLE_WINDOWS = frozenset({"granite_swa", "granitemoe_swa", "laguna", "llama4_text", "step3p5", "step3p7"})
_STATES_WITH_BUFFER = frozenset({
    "bailing_hybrid", "falcon_h1", "granitemoehybrid", "kimi_linear", "nemotron_h", "qwen3_5_moe_text", "qwen3_5_text",
    "qwen3_next", "qwen4_exp_text",
})  # fmt: skip
_TABLE = {
    **dict.fromkeys(_TOKENS, Architecture()),
    **dict.fromkeys(_LATENT, Architecture(latent_class=True)),
    **dict.fromkeys(_BY_TRANSFORMERS, Architecture(own_class=False)),
    **dict.fromkeys(_WINDOWS, Architecture(pools="windows")),
    **dict.fromkeys(_WHOLE_WINDOWS, Architecture(pools="windows", window_excess=0)),
    "dots3_note_text": Architecture(pools="windows", window_excess=0, latent_class=True),
    "glm5_next_text": Architecture(pools="states", radix="extra_buffer", latent_class=True),
    "muse_spark_text": Architecture(pools="windows", window_excess=0, own_class=False),
    **dict.fromkeys(_STATES_WITH_BUFFER, Architecture(pools="states", radix="extra_buffer")),
    **dict.fromkeys(("lfm2", "lfm2_moe", "zaya"), Architecture(pools="states", radix="no_buffer")),
    **dict.fromkeys(("falcon_mamba", "mamba", "mamba2"), Architecture(pools="states")),
    **dict.fromkeys(("deepseek_ref", "deepseek_v4"), Architecture(pools="compressed")),
}
# Types whose class beside images is another than that of the text model alone.
_TEXT_ALONE = {"llama4_text": Architecture()}
_BESIDE_IMAGES = {"lfm2": Architecture(pools="states")}


def find_architecture(model: ModelProfile) -> Architecture:
    """Return the pools that SGLang gives a model.

    Source: SGLang 0.5.23, ``EntryClass`` of ``srt/models``, ``model_loader/utils.py`` (which of transformers 5.24's
    classes it falls back to), ``configs/model_config.py`` (``is_hybrid_swa_model``), ``configs/hybrid_arch.py`` and
    ``arg_groups/overrides.py`` (the radix cache of states).

    Raises:
        UnsupportedError: a model that SGLang refuses, or whose pools are not known.

    >>> from kvcalc.core.model import ModelProfile
    >>> model = ModelProfile(name="x", architecture="gpt_oss", hidden_size=1, context_limit=None, blocks=(),
    ...     embeddings=(), head=None)
    >>> find_architecture(model).pools
    'windows'
    """
    name = model.architecture
    if name in _REFUSED:
        raise UnsupportedError(
            f"SGLang does not serve {model.name}: it has no class for the architecture {name!r}, and transformers' "
            "does not run in it"
        )
    special = _BESIDE_IMAGES if model.towers else _TEXT_ALONE
    architecture = special.get(name) or _TABLE.get(name)
    if architecture is None:
        raise UnsupportedError(
            f"the pools of SGLang are not known for the architecture {name[:60]!r}, and are not guessed",
            hint=did_you_mean(name[:60], _TABLE) or "leave out --engine for the logical bytes",
        )
    return architecture
