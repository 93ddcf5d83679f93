"""Model types that are known and have no rule, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["REFUSED"]

_AT_ONCE = "writes its whole output in one pass and keeps no cache"
_DRAFTS = "drafts for another model over that model's keys and values, and keeps none of its own"
_JOINS_THREE = "joins an encoder of text, a decoder and a codec, each of any kind"
_JOINS = "joins two models of any kind: give the config of the one that decodes"
_SUMMARIES = (
    "chooses its keys by summaries of eight tokens that it keeps beside them, and no checkpoint shows its sizes"
)

REFUSED: Mapping[str, str] = {
    "bark": "is three models in turn and a codec, each with a cache of its own",
    "cpmant": "puts prompt_length vectors of its own before every text, and caches them",
    "diffusion_gemma_text": "writes blocks by diffusion, with an encoder and a decoder over one cache",
    "blt": "runs over patches of bytes whose lengths follow from the text",
    "encoder-decoder": _JOINS,
    "evolla": "reads proteins, through an encoder and adapters that have no rule",
    "fastspeech2_conformer": _AT_ONCE,
    "fastspeech2_conformer_with_hifigan": _AT_ONCE,
    "gemma4_assistant": _DRAFTS,
    "gemma4_unified_assistant": _DRAFTS,
    "muse_glimmer_assistant": "drafts blocks for another model, from that model's hidden states",
    "musicgen": _JOINS_THREE,
    "musicgen_melody": _JOINS_THREE,
    "pi0": "writes actions by flow matching over the cache of another model",
    "pp_formulanet_text": "decodes over the patches of an image as an encoder's output, which has no rule",
    "reformer": "keeps hidden states and hashes in place of keys and values",
    "speech-encoder-decoder": _JOINS,
    "step5": _SUMMARIES,
    "step5_vl": _SUMMARIES,
    "unlimited_ocr_text": "keeps the whole prompt and a window of what it writes",
    "vision-encoder-decoder": _JOINS,
    "vits": _AT_ONCE,
    "xlnet": "keeps the hidden states of the last mem_len tokens in place of keys and values",
}
