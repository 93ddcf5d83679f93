"""Architectures of llama.cpp, as far as they depart from "every attention layer caches the whole context"."""

from __future__ import annotations

from kvcalc.core.errors import UnsupportedError, did_you_mean
from kvcalc.core.records import dataclass

__all__ = ["Architecture", "architecture_key", "find_architecture"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Treatment of an architecture's layers by llama.cpp.

    Args:
        windows: whether sliding windows are applied; where not, such a layer caches the whole context.
        fixed_window: window in tokens that holds whatever the checkpoint says.
        window_excess: tokens by which the checkpoint's window is larger than the one in its GGUF file.
        window_layers: the one number of layers for which windows are applied.
        own_caches: layers, from the first on, that keep a cache of their own; the profile decides where left out.
        keys_only: whether a token's entry is one vector, kept as keys without values.
        latent_as_heads: whether latent attention keeps the uncompressed keys and values of all heads.
        encoded_anew: whether layers compute keys and values of an encoder's output anew for each token.
        one_vector: whether windowed layers keep keys and values as one vector, too.
        index_values: whether an index beside plain attention has room for values, too.
        pooled_index: vectors of an index that pools tokens: the key, its gate and the pooled value.
        states: the one kind of states that its recurrent layers may have.
        rollback: whether recurrent states can be kept for several past tokens.
    """

    windows: bool = False
    fixed_window: int | None = None
    window_excess: int = 0
    window_layers: int | None = None
    own_caches: int | None = None
    keys_only: bool = False
    latent_as_heads: bool = False
    encoded_anew: bool = False
    one_vector: bool = False
    index_values: bool = False
    pooled_index: int = 0
    states: str | None = None
    rollback: bool = False


# One plain cache: every layer with attention keeps all tokens, windows are ignored (Phi-3, Mistral, StarCoder2, Qwen2).
# The names are those of the Hugging Face configs and, where they differ, of GGUF files.
_PLAIN = frozenset({
    "apertus", "arcee", "arctic", "baichuan", "bailing_moe", "bailing_moe_v2", "bailingmoe2", "bitnet", "bloom",
    "chameleon", "chatglm", "codeshell", "cogvlm", "cohere", "command-r", "dbrx", "deci", "deepseek", "deepseek2-ocr",
    "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "falcon", "gemma", "glm", "glm4", "glm4_moe", "glm4v", "glm4v_moe",
    "glm_ocr", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "granitemoe", "granitemoeshared", "grok", "grok-1",
    "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hunyuan_vl", "hunyuan-dense", "hunyuan-moe", "hy_v3",
    "internlm2", "internlm3", "iquestcoder", "jais", "jais2", "llama", "maincoder", "minicpm", "minimax_m2",
    "ministral3", "mistral", "mistral3", "mixtral", "mpt", "nanbeige", "nemotron", "nemotron-nas", "olmo", "olmoe",
    "openelm", "orion", "paddleocr", "paddleocr_vl", "pangu-embedded", "phi", "phi2", "phi3", "phimoe", "plamo", "qwen",
    "qwen2", "qwen2_5_omni", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_moe", "qwen3_omni_moe", "qwen3_vl",
    "qwen3_vl_moe", "refact", "sarvam_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder", "starcoder2",
    "talkie", "xverse", "yi",
})  # fmt: skip
_LATENT = frozenset({"deepseek_v2", "deepseek_v3", "deepseek2", "glm4_moe_lite", "kimi_k2", "mistral4", "youtu"})
_INDEXED = frozenset({"deepseek_v32", "deepseek32", "glm_moe_dsa", "glm-dsa"})
_STATES = frozenset({
    "arwkv7", "bamba", "falcon_h1", "falcon_mamba", "granitehybrid", "granitemoehybrid", "jamba", "kimi_linear",
    "mamba", "mamba2", "minimax_m1", "minimax_text_01", "minimax-01", "plamo2", "qwen3_next", "rwkv6", "rwkv6qwen2",
    "rwkv7",
})  # fmt: skip
_STATES_WITH_ROLLBACK = frozenset(
    {"bailingmoe3", "kimi-k3", "lfm2", "lfm2_moe", "nemotron_h", "nemotron_h_moe", "qwen3_5", "qwen3_5_moe"}
    | {"qwen35", "qwen35moe"}
)
_WINDOWED = frozenset({
    "afmoe", "cohere2", "cohere2_moe", "exaone_moe", "gemma2", "gemma3", "gemma4", "gemma4_unified", "gpt_oss",
    "granite_swa", "granitemoe_swa", "laguna", "maple", "mellum", "mimo2", "muse_glimmer", "olmo2", "olmo3", "plamo3",
    "spark2_5", "step35", "step3p5", "step3p7",
})  # fmt: skip
_ENCODED = frozenset({"mt5", "t5", "umt5"})
# What the converter of that commit has no class for, among the models that kvcalc knows.
_NOT_RUN = frozenset({
    "bart", "biogpt", "blenderbot", "blenderbot-small", "codegen", "ctrl", "cwm", "diffllama", "doge", "flex_olmo",
    "gpt_neo", "gptj", "helium", "internlm", "jetmoe", "longcat_flash", "m2m_100", "marian", "mbart", "mimo",
    "mllama", "mllama_text_model", "moonshine", "nanochat", "nllb-moe", "olmo_hybrid", "opt", "pegasus",
    "persimmon", "phi3small", "phi4_multimodal", "plbart", "recurrent_gemma", "rwkv", "vaultgemma", "whisper",
    "xglm", "xlstm", "zamba", "zamba2", "zaya",
})  # fmt: skip
_SPECIAL = {
    # Ling 3; of the same name Ling 2.5, with lightning attention, is not run
    "bailing_hybrid": Architecture(rollback=True, states="gated_delta"),
    "deepseek4": Architecture(windows=True, keys_only=True, rollback=True),
    "deepseek_v4": Architecture(windows=True, keys_only=True, rollback=True),
    "dots3_note": Architecture(windows=True, one_vector=True),
    "exaone4": Architecture(windows=True, window_layers=64),
    "exaone4_5": Architecture(windows=True, window_layers=64),
    "glm5_next": Architecture(rollback=True, pooled_index=3),
    "minimax_m3": Architecture(index_values=True),
    "minimax_m3_vl": Architecture(index_values=True),
    "gemma3n": Architecture(windows=True, own_caches=20),
    "llama4": Architecture(windows=True, fixed_window=8192),
    "minicpm3": Architecture(latent_as_heads=True),
    "plm": Architecture(latent_as_heads=True),
    "mimo_v2_flash": Architecture(windows=True, window_excess=1),
    "smallthinker": Architecture(windows=True, fixed_window=4096),
}


def architecture_key(name: str) -> str:
    """Return a name as both spellings of an architecture have it: ``qwen3_moe`` and ``qwen3moe`` are one.

    >>> architecture_key("qwen3_vl_moe_text"), architecture_key("falcon-h1")
    ('qwen3vlmoe', 'falconh1')
    """
    return name.lower().removesuffix("_text").replace("_", "").replace("-", "")


_TABLE = {
    **{architecture_key(name): Architecture() for name in _PLAIN | _LATENT | _INDEXED | _STATES},
    **{architecture_key(name): Architecture(rollback=True) for name in _STATES_WITH_ROLLBACK},
    **{architecture_key(name): Architecture(windows=True) for name in _WINDOWED},
    **{architecture_key(name): Architecture(encoded_anew=True) for name in _ENCODED},
    **{architecture_key(name): entry for name, entry in _SPECIAL.items()},
}


_NOT_RUN_KEYS = frozenset(map(architecture_key, _NOT_RUN))


def find_architecture(name: str) -> Architecture:
    """Find llama.cpp's treatment of an architecture, named as in a Hugging Face config or in a GGUF file.

    Source: llama.cpp commit 0c1e57098bba, ``src/models`` and ``src/llama-arch.cpp``; what was measured of it stands in
    the conformance tests.

    Raises:
        UnsupportedError: an architecture that llama.cpp does not run, or whose memory is not described here.

    >>> find_architecture("gemma3_text").windows, find_architecture("phi3").windows
    (True, False)
    """
    key = architecture_key(name)
    architecture = _TABLE.get(key)
    if architecture is not None:
        return architecture
    if key in _NOT_RUN_KEYS:
        raise UnsupportedError(
            f"llama.cpp does not run the architecture {name[:60]!r}", hint="leave out --engine for the logical bytes"
        )
    raise UnsupportedError(
        f"the memory of llama.cpp is not known for the architecture {name[:60]!r}, and is not guessed",
        hint=did_you_mean(name[:60], _PLAIN | _LATENT | _STATES | _WINDOWED)
        or "leave out --engine for the logical bytes",
    )
