"""Architectures of GGUF files (``general.architecture``): the layers with attention, a window, a state.

Source: llama.cpp commit 0c1e57098bba, ``src/models`` (``load_arch_hparams``) and ``llama_model::create_memory``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError, did_you_mean

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config

__all__ = [
    "COMPRESSED",
    "DELTA",
    "HEADS_OF_LATENT",
    "INDEXED",
    "INDEXED_HEADS",
    "KIMI_DELTA",
    "LATENT",
    "PARALLEL",
    "RWKV",
    "check_known",
    "layer_windows",
]

# Attention over everything in each layer that has key-value heads: llama.cpp's plain cache.
_PLAIN = frozenset({
    "apertus", "arcee", "arctic", "baichuan", "bailingmoe", "bailingmoe2", "bitnet", "bloom", "chameleon",
    "chatglm", "codeshell", "command-r", "dbrx", "deci", "deepseek", "deepseek2-ocr", "dots1", "ernie4_5",
    "ernie4_5-moe", "exaone", "falcon", "gemma", "glm4", "glm4moe", "gpt2", "gptj", "gptneox", "granite", "granitemoe",
    "grok", "hunyuan-dense", "hunyuan-moe", "hunyuan_vl", "hy_v3", "internlm2", "jais", "jais2", "llama", "maincoder",
    "minicpm", "minimax-m2", "mistral3", "mpt", "nanbeige", "nemotron", "olmo", "olmoe", "openelm", "orion",
    "paddleocr", "pangu-embedded", "phi2", "phi3", "phimoe", "plamo", "qwen", "qwen2", "qwen2moe", "qwen2vl", "qwen3",
    "qwen3moe", "qwen3vl", "qwen3vlmoe", "refact", "seed_oss", "smollm3", "stablelm", "starcoder", "starcoder2",
    "talkie", "xverse",
})  # fmt: skip
LATENT = frozenset({"deepseek2", "deepseek32", "glm-dsa", "mistral4"})
# Latent attention of which the keys and values of all heads are kept.
HEADS_OF_LATENT = frozenset({"minicpm3", "plm"})
# Of these, layers with an index of their own keep its keys.
INDEXED = frozenset({"deepseek32", "glm-dsa"})
DELTA = frozenset({"qwen3next", "qwen35", "qwen35moe"})
RWKV = frozenset({"rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
_SELECTIVE = frozenset({
    "falcon-h1", "granitehybrid", "jamba", "mamba", "mamba2", "nemotron_h", "nemotron_h_moe", "plamo2",
})  # fmt: skip
# A window in each layer, and entries for several tokens beside it; full attention that an index chooses blocks for.
COMPRESSED, INDEXED_HEADS = "deepseek4", "minimax-m3"
# Delta attention with latent attention beside it: whether the forget gate and the output gate are of full rank.
KIMI_DELTA = {"kimi-linear": (False, False), "kimi-k3": (False, True), "bailingmoe3": (True, True)}
_OTHER_STATES = frozenset({"lfm2", "lfm2moe", "minimax-01"})
# An encoder and a decoder in one file.
TWO_STACKS = "t5"

# Names that llama.cpp has and kvcalc does not read, and why.
_DIFFUSION = "a diffusion model: llama.cpp keeps no cache and computes all tokens anew in each pass"
_NO_GENERATOR = "no model that generates text"
_DRAFTER = "a drafter, which reads the cache of the model that it drafts for"
_UNREAD = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), _DIFFUSION),
    **dict.fromkeys(("eagle3", "dflash", "gemma4-assistant"), _DRAFTER),
    **dict.fromkeys(
        (
            "bert", "clip", "eurobert", "gemma-embedding", "jina-bert-v2", "jina-bert-v3", "llama-embed", "modern-bert",
            "neo-bert", "nomic-bert", "nomic-bert-moe", "t5encoder", "wavtokenizer-dec",
        ),
        _NO_GENERATOR,
    ),
    **dict.fromkeys(("pockettts", "qwen3tts"), "a model that generates speech, whose codebooks are not described"),
    "cogvlm": "its second set of matrices, for image tokens, is not described",
    "dots3note": "its indexed layers beside windowed ones are not described",
    "glm5-next": "its indexed layers beside recurrent ones are not described",
    "graniteswitch": "its router layer, and the adapters it chooses, are not described",
    "grovemoe": "its experts that groups of experts share are not described",
    "hrm_text": "its layers that are run several times are not described",
    "hy_v4": "its index, which several layers share, is not described",
    "qwen4exp": "its tables of n-grams are not described",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Window:
    """Mix of windows and full attention in an architecture.

    Args:
        period: every so many layers one has no window; 0 where each layer is named in the file, 1 for none at all.
        first: whether the layer without a window comes first in each period.
        default: window where the file gives none; 0 for no windows at all then.
        fixed: the window wherever there is one, whatever the file says.
        layers: the one number of layers for which windows are applied.
    """

    period: int
    first: bool = False
    default: int = 0
    fixed: int | None = None
    layers: int | None = None


_WINDOWS = {
    "afmoe": _Window(4),
    "cohere2": _Window(4),
    "cohere2moe": _Window(4, first=True),
    "exaone-moe": _Window(4, default=128),
    "exaone4": _Window(4, default=4096, layers=64),
    "gemma2": _Window(2, default=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5),
    "gemma4": _Window(0),
    "gpt-oss": _Window(2),
    "granite_swa": _Window(0),
    "laguna": _Window(4, first=True),
    "llama4": _Window(4, default=8192, fixed=8192),
    "maple": _Window(0),
    "mellum": _Window(4),
    "mimo2": _Window(0),
    "muse-glimmer": _Window(4),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, first=True, fixed=4096),
    "spark2_5": _Window(0),
    "step35": _Window(0),
}
_ATTENTIONS = _PLAIN | LATENT | HEADS_OF_LATENT | {COMPRESSED, INDEXED_HEADS} | frozenset(_WINDOWS)
_KNOWN = _ATTENTIONS | DELTA | frozenset(KIMI_DELTA) | RWKV | _SELECTIVE | _OTHER_STATES | {TWO_STACKS}

# Attention and MLP side by side.
PARALLEL = frozenset({"falcon", "phi2", "command-r", "cohere2", "cohere2moe", "gptj", "plamo"})


def check_known(architecture: str, *, where: str) -> None:
    """Refuse an architecture that is not described, for its reason where it is one of llama.cpp's.

    Raises:
        UnsupportedError: it is not described.
    """
    if architecture in _KNOWN:
        return
    reason = _UNREAD.get(architecture, "not known to kvcalc, and is not guessed")
    reason_text = f"is not read: {reason}" if architecture in _UNREAD else f"is {reason}"
    raise UnsupportedError(
        f"the architecture {architecture[:60]!r} {reason_text}",
        where=f"{where}, general.architecture",
        hint=did_you_mean(architecture[:60], _KNOWN) or "describe its layers in a profile",
    )


def layer_windows(architecture: str, keys: Config, layers: int) -> tuple[int, list[bool]] | None:
    """Return the window and which layers have it; none where llama.cpp applies none.

    Raises:
        ProfileError: a pattern that makes no sense.
    """
    if architecture in ("lfm2", "lfm2moe"):
        window = keys.integer("attention.sliding_window", default=0, least=0)
        return (window, [True] * layers) if window else None
    rule = _WINDOWS.get(architecture)
    if rule is None or rule.layers not in (None, layers):
        return None
    window = keys.integer("attention.sliding_window", default=rule.default, least=0)
    if window == 0:
        return None
    window = rule.fixed or window
    pattern = keys.raw("attention.sliding_window_pattern", default=rule.period or None)
    if isinstance(pattern, list) and len(pattern) >= layers:
        return window, [bool(entry) for entry in pattern[:layers]]
    if isinstance(pattern, bool) or not isinstance(pattern, int) or pattern < 0:
        raise keys.bad("attention.sliding_window_pattern", pattern, "a period, or one flag for each layer")
    full = 0 if rule.first else pattern - 1
    return window, [pattern == 0 or layer % pattern != full for layer in range(layers)]
