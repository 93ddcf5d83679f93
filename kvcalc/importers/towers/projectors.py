"""Projectors from a tower to the text model, by the ``model_type`` of the config that wraps both.

A rule names the tower's own type where the wrapper fixes it, and counts the projector from the configs of the wrapper
and the tower and the width of the text model. Source: the classes of transformers 5.24.0, built without storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.importers.towers import audio, codecs, older, queried, recent, vqgan
from kvcalc.importers.towers.bricks import linear, norm, perceptron
from kvcalc.importers.towers.vision import hidden_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config

    Projector = Callable[[Config, Config, int], int]

__all__ = ["AUDIO_WRAPPERS", "CODEC_WRAPPERS", "CODE_WRAPPERS", "TALKER_WRAPPERS", "VISION_WRAPPERS", "Wrapper"]


@dataclass(frozen=True, slots=True)
class Wrapper:
    """Join of a wrapper and a tower.

    Args:
        projector: parameters between tower and text model, from the wrapper's config, the tower's, and the text width.
        tower: the tower's type, where the wrapper decides it and not the tower's own ``model_type``.
        copies: how often the tower is built.
    """

    projector: Projector
    tower: str | None = None
    copies: int = 1


def _nothing(_top: Config, _tower: Config, _text: int) -> int:
    return 0


def _llava(top: Config, tower: Config, text: int) -> int:
    bias = top.flag("multimodal_projector_bias", default=True)
    chosen = top.raw("vision_feature_layer", default=-2)
    wide = hidden_of(tower) * (len(chosen) if isinstance(chosen, list) else 1)
    return perceptron(wide, text, text, bias=bias)


def _llava_newline(top: Config, tower: Config, text: int) -> int:
    return _llava(top, tower, text) + text


def _vipllava(top: Config, tower: Config, text: int) -> int:
    wide = len(top.sequence("vision_feature_layers", "vision_feature_layer", default=[-2, -5, -8, -11, 6]))
    wide *= hidden_of(tower)
    return norm(wide) + perceptron(wide, text, text)


def _gemma3(_top: Config, tower: Config, text: int) -> int:
    return hidden_of(tower) * text + norm(hidden_of(tower), bias=False)


def _gemma3n(_top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    return tower.integer("vocab_size") * hidden + norm(hidden, 2, bias=False) + hidden * text


def _gemma4(_top: Config, tower: Config, text: int) -> int:
    return hidden_of(tower) * text


def _paligemma(top: Config, tower: Config, text: int) -> int:
    return linear(hidden_of(tower), top.integer_or(text, "projection_dim"))


def _merged(tower: Config, top: Config) -> int:
    return hidden_of(tower) * top.integer("spatial_merge_size", default=2) ** 2


def _mistral3(top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    bias = top.flag("multimodal_projector_bias", default=False)
    merge = linear(_merged(tower, top), hidden, bias=False)
    return norm(hidden, bias=False) + merge + perceptron(hidden, text, text, bias=bias)


def _shuffled(top: Config, tower: Config, default: int) -> int:
    return hidden_of(tower) * top.integer("scale_factor", "downsample_factor", default=default) ** 2


def _idefics3(top: Config, tower: Config, text: int) -> int:
    return linear(_shuffled(top, tower, 2), text, bias=False)


def _lfm2(top: Config, tower: Config, text: int) -> int:
    wide = _shuffled(top, tower, 2)
    before = norm(wide) if top.flag("projector_use_layernorm", default=True) else 0
    bias = top.flag("projector_bias", default=True)
    return before + perceptron(wide, top.integer("projector_hidden_size", default=2560), text, bias=bias)


def _internvl(top: Config, tower: Config, text: int) -> int:
    wide = round(hidden_of(tower) / top.number("downsample_ratio", default=0.5) ** 2)
    return norm(wide) + perceptron(wide, text, text)


def _aya(top: Config, tower: Config, text: int) -> int:
    wide = _shuffled(top, tower, 2)
    inner = top.integer_or(text, "alignment_intermediate_size")
    return norm(wide) + linear(wide, inner) + linear(inner // 2, text)


def _cohere2(top: Config, tower: Config, text: int) -> int:
    inner = top.integer("alignment_intermediate_size", default=36864)
    return linear(_shuffled(top, tower, 2), inner) + linear(inner // 2, text)


def _deepseek_vl(_top: Config, tower: Config, text: int) -> int:
    return perceptron(hidden_of(tower), text, text)


def _llama4(_top: Config, tower: Config, text: int) -> int:
    return linear(tower.integer("vision_output_dim"), text, bias=False)


def _mllama(_top: Config, tower: Config, text: int) -> int:
    return linear(tower.integer("vision_output_dim"), text)


def _kimi(_top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    wide = hidden
    for size in tower.integers("merge_kernel_size", default=[2, 2]):
        wide *= size
    return norm(hidden) + perceptron(wide, wide, text)


def _minimax(top: Config, tower: Config, text: int) -> int:
    inner = top.integer_or(text, "projector_hidden_size")
    compression = top.child("img_token_compression_config")
    merge = compression.integer("spatial_merge_size", default=tower.integer("spatial_merge_size", default=2)) ** 2
    return perceptron(hidden_of(tower), inner, text) + perceptron(text * merge, inner, text)


def _step(top: Config, tower: Config, text: int) -> int:
    return linear(4 * hidden_of(tower), text, bias=top.flag("projector_bias", default=False))


def _ovis2(top: Config, tower: Config, _text: int) -> int:
    return tower.integer("vocab_size") * top.integer("hidden_size")


def _video_llama(_top: Config, tower: Config, text: int) -> int:
    return perceptron(hidden_of(tower), text, text)


def _muse(top: Config, tower: Config, text: int) -> int:
    inner = top.integer("projector_hidden_size")
    wide = hidden_of(tower) * tower.integer("merge_size") ** 2
    return perceptron(wide, inner, inner, bias=False) + linear(inner, text, bias=False)


def _lfm3(top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    wide = hidden * tower.integer("spatial_merge_size", default=2) ** 2
    bias = top.flag("projector_bias", default=True)
    return norm(hidden) + perceptron(wide, top.integer("projector_hidden_size"), text, bias=bias)


def _phi4(_top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    return 2 * hidden + perceptron(hidden, text, text)


def _hyperclovax(_top: Config, tower: Config, text: int) -> int:
    return linear(tower.integer("out_hidden_size"), text)


def _minicpm(top: Config, tower: Config, text: int) -> int:
    wide = hidden_of(tower)
    for size in top.integers("merge_kernel_size", default=[2, 2]):
        wide *= size
    times = top.integer("merger_times", default=1)
    return times * (norm(wide) + linear(wide, wide)) + (times - 1) * linear(wide, hidden_of(tower)) + linear(wide, text)


def _paddleocr(_top: Config, tower: Config, text: int) -> int:
    hidden = hidden_of(tower)
    wide = hidden * tower.integer("spatial_merge_size", default=2) ** 2
    return norm(hidden) + perceptron(wide, wide, text)


def _nemotron(top: Config, tower: Config, text: int) -> int:
    wide = round(hidden_of(tower) / top.number("downsample_ratio", default=0.5) ** 2)
    return norm(wide, bias=False) + perceptron(wide, top.integer("projector_hidden_size"), text, bias=False)


VISION_WRAPPERS: dict[str, Wrapper] = {
    "aria": Wrapper(queried.aria),
    "aya_vision": Wrapper(_aya),
    "blip": Wrapper(_nothing, "blip_vision_model"),
    "blip-2": Wrapper(queried.blip, "blip_2_vision_model"),
    "cohere2_vision": Wrapper(_cohere2),
    "cohere_compass": Wrapper(_nothing, "qwen3_vl_vision"),
    "cosmos3_edge": Wrapper(recent.cosmos_edge, "cosmos3_edge_vision"),
    "cosmos3_omni": Wrapper(_nothing, "qwen3_vl_vision"),
    "deepseek_v41": Wrapper(recent.deepseek_v41, "deepseek_v41_vision"),
    "deepseek_vl": Wrapper(_deepseek_vl),
    "ernie4_5_vl_moe": Wrapper(recent.ernie, "ernie4_5_vl_moe_vision"),
    "dots3_note": Wrapper(_nothing, "dots3_note_vision_encoder"),
    "exaone4_5": Wrapper(_nothing, "qwen2_5_vl_vision"),
    "florence2": Wrapper(older.florence, "florence_vision"),
    "gemma3": Wrapper(_gemma3),
    "gemma3n": Wrapper(_gemma3n, "gemma3n_vision"),
    "gemma4": Wrapper(_gemma4, "gemma4_vision"),
    "git": Wrapper(older.git, "git_vision_model"),
    "glm46v": Wrapper(_nothing, "glm4v_vision"),
    "glm4v": Wrapper(_nothing, "glm4v_vision"),
    "glm4v_moe": Wrapper(_nothing, "glm4v_moe_vision"),
    "glm5_next": Wrapper(_nothing, "glm5_next_vision"),
    "glm_ocr": Wrapper(_nothing, "glm_ocr_vision"),
    "glmga": Wrapper(_nothing, "glm4v_vision"),
    "granite_docling": Wrapper(_nothing, "granite_docling_vision"),
    "got_ocr2": Wrapper(queried.got_ocr2, "got_ocr2_vision"),
    "hunyuan_vl": Wrapper(_nothing, "hunyuan_vl_vision"),
    "hy_v4_vl": Wrapper(_nothing, "hy_v4_vl_vision"),
    "inkling2": Wrapper(_nothing, "inkling2_vision"),
    "inkling2_loop": Wrapper(_nothing, "inkling2_loop_vision"),
    "inkling_mm_model": Wrapper(_nothing, "inkling_vision"),
    "instructblip": Wrapper(queried.instructblip, "instructblip_vision_model"),
    "instructblipvideo": Wrapper(queried.instructblip, "instructblipvideo_vision_model"),
    "janus": Wrapper(queried.janus, "janus_vision_model"),
    "hyperclovax_vision_v2": Wrapper(_hyperclovax, "qwen2_5_vl_vision"),
    "idefics": Wrapper(_nothing, "idefics_vision"),
    "idefics2": Wrapper(queried.idefics2, "idefics2_vision"),
    "idefics3": Wrapper(_idefics3, "idefics3_vision"),
    "internvl": Wrapper(_internvl, "internvl_vision"),
    "internvl_chat": Wrapper(_internvl, "intern_vit_6b"),
    "kosmos-2": Wrapper(older.kosmos, "kosmos_2_vision_model"),
    "kosmos-2.5": Wrapper(older.kosmos, "kosmos_2_5_vision_model"),
    "kimi_k25": Wrapper(_kimi, "kimi_k25_vision"),
    "kimi_vl": Wrapper(_kimi, "kimi_k25_vision"),
    "lfm2_vl": Wrapper(_lfm2),
    "lfm3_vl": Wrapper(_lfm3, "lfm3_vl_vision"),
    "lighton_ocr": Wrapper(_mistral3, "pixtral"),
    "llama4": Wrapper(_llama4, "llama4_vision_model"),
    "llava": Wrapper(_llava),
    "llava_next": Wrapper(_llava_newline),
    "llava_next_video": Wrapper(_llava_newline),
    "llava_onevision": Wrapper(_llava_newline),
    "minicpm_ocr": Wrapper(_minicpm, "minicpm_ocr_vision"),
    "minicpmv4_6": Wrapper(_minicpm, "minicpmv4_6_vision"),
    "minicpmv4_7": Wrapper(_minicpm, "minicpmv4_7_vision"),
    "minimax_m3_vl": Wrapper(_minimax, "minimax_m3_vl_vision"),
    "mistral3": Wrapper(_mistral3),
    "mistral_large4": Wrapper(_mistral3),
    "molmo2": Wrapper(recent.molmo2, "molmo2_vision"),
    "mllama": Wrapper(_mllama, "mllama_vision_model"),
    "muse_glimmer": Wrapper(_muse, "muse_glimmer_vision"),
    "muse_spark": Wrapper(_muse, "muse_spark_vision"),
    "nemotron_h_omni": Wrapper(_nemotron, "radio"),
    "ovis2": Wrapper(_ovis2, "ovis2_vision"),
    "paddleocr_vl": Wrapper(_paddleocr, "paddleocr_vl_vision"),
    "phi4_multimodal": Wrapper(_phi4, "phi4_multimodal_vision"),
    "pix2struct": Wrapper(_nothing, "pix2struct_vision_model"),
    "pp_chart2table": Wrapper(queried.got_ocr2, "pp_chart2table_vision"),
    "paligemma": Wrapper(_paligemma),
    "qianfan_ocr": Wrapper(_internvl, "qianfan_ocr_vision"),
    "qwen2_5_omni_thinker": Wrapper(_nothing, "qwen2_5_vl_vision"),
    "qwen2_5_vl": Wrapper(_nothing, "qwen2_5_vl_vision"),
    "qwen2_vl": Wrapper(_nothing, "qwen2_vl_vision"),
    "qwen3_5": Wrapper(_nothing, "qwen3_5_vision"),
    "qwen3_5_moe": Wrapper(_nothing, "qwen3_5_vision"),
    "qwen3_omni_moe_thinker": Wrapper(_nothing, "qwen3_vl_vision"),
    "qwen3_vl": Wrapper(_nothing, "qwen3_vl_vision"),
    "qwen3_vl_moe": Wrapper(_nothing, "qwen3_vl_vision"),
    "qwen4_exp": Wrapper(_nothing, "qwen4_exp_vision"),
    "shieldgemma2": Wrapper(_gemma3),
    "smolvlm": Wrapper(_idefics3, "smolvlm_vision"),
    "step3p7": Wrapper(_step, "step3p5_vision"),
    "t5gemma2_encoder": Wrapper(_gemma3),
    "video_llama_3": Wrapper(_video_llama, "video_llama_3_vision"),
    "video_llava": Wrapper(_llava, copies=2),
    "vipllava": Wrapper(_vipllava),
}


def _flamingo(top: Config, tower: Config, text: int) -> int:
    return perceptron(audio.hidden_of(tower), text, text, bias=top.flag("projector_bias", default=True))


def _phi4_audio(_top: Config, tower: Config, text: int) -> int:
    return 2 * perceptron(audio.hidden_of(tower), text, text)


def _one_map(_top: Config, tower: Config, text: int) -> int:
    return linear(audio.hidden_of(tower), text)


def _stacked(_top: Config, tower: Config, text: int) -> int:
    return perceptron(4 * audio.hidden_of(tower), text, text, bias=False)


def _glmasr(_top: Config, tower: Config, text: int) -> int:
    return perceptron(4 * audio.hidden_of(tower), 2 * text, text)


def _moss(top: Config, tower: Config, text: int) -> int:
    wide = top.integer("audio_merge_size", default=4) * audio.hidden_of(tower)
    return perceptron(wide, text, text, bias=top.flag("projector_bias", default=True)) + norm(text)


def _qwen3_asr(_top: Config, tower: Config, _text: int) -> int:
    hidden = audio.hidden_of(tower)
    return perceptron(hidden, hidden, tower.integer("output_dim", default=3584))


AUDIO_WRAPPERS: dict[str, Wrapper] = {
    "audioflamingo3": Wrapper(_flamingo, "audioflamingo3_encoder"),
    "dots3_note": Wrapper(_nothing, "dots3_note_audio_encoder"),
    "fun_asr_nano": Wrapper(recent.fun_asr, "fun_asr_nano_encoder"),
    "gemma3n": Wrapper(_gemma3n, "gemma3n_audio"),
    "granite_speech": Wrapper(queried.granite, "granite_speech_encoder"),
    "granite_speech_plus": Wrapper(queried.granite, "granite_speech_plus_encoder"),
    "glmasr": Wrapper(_glmasr, "glmasr_encoder"),
    "inkling_mm_model": Wrapper(_nothing, "inkling_audio"),
    "moss_transcribe_diarize": Wrapper(_moss, "moss_transcribe_diarize_audio"),
    "muse_spark": Wrapper(_nothing, "muse_spark_audio"),
    "musicflamingo": Wrapper(_flamingo, "audioflamingo3_encoder"),
    "omniasr": Wrapper(_one_map, "omniasr_audio"),
    "phi4_multimodal": Wrapper(_phi4_audio, "phi4_multimodal_audio"),
    "qwen2_5_omni_thinker": Wrapper(_nothing, "qwen2_5_omni_audio_encoder"),
    "qwen2_audio": Wrapper(_one_map, "qwen2_audio_encoder"),
    "qwen3_asr": Wrapper(_qwen3_asr, "qwen3_asr_encoder"),
    "qwen3_omni_moe_thinker": Wrapper(_nothing, "qwen3_omni_moe_audio_encoder"),
    "voxtral_realtime": Wrapper(recent.voxtral_realtime, "voxtral_realtime_encoder"),
    "voxtral": Wrapper(_stacked, "voxtral_encoder"),
}

# Codecs that turn sound into codes, or codes into sound.
CODEC_WRAPPERS: dict[str, Wrapper] = {
    "csm": Wrapper(_nothing, "mimi"),
    "kyutai_speech_to_text": Wrapper(_nothing, "mimi"),
    "vibevoice_asr": Wrapper(codecs.vibevoice_map, "vibevoice_acoustic_tokenizer_encoder"),
}

# Autoencoders that turn images into codes, or codes into images.
CODE_WRAPPERS: dict[str, Wrapper] = {
    "chameleon": Wrapper(_nothing, "chameleon_vqgan"),
    "janus": Wrapper(vqgan.janus, "janus_vqgan"),
}

# Decoders that speak beside the text model.
TALKER_WRAPPERS: dict[str, Wrapper] = {
    "csm": Wrapper(_nothing, "csm_depth_decoder_model"),
}
