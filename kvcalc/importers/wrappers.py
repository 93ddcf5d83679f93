"""Multimodal configs: where their text model stands, and which keys the wrapper decides for it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.formats import parse_format
from kvcalc.importers.config_reader import Config, KeyUse

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TEXT_PARTS", "checkpoint_dtype", "class_defaults", "class_keys", "inner_config", "nested_configs"]

# Where multimodal configs keep the text model, in the order they are looked for.
TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config", "language_model")
_DEEPEST = 3
# Wrappers whose published configs say at the top level what their text model is.
_FLAT = frozenset(("dots3_note",))
_OF_WRAPPERS = frozenset(
    ("architectures", "audio_config", "auto_map", "model_type", "quantization_config", "vision_config")
)
_TIE = "tie_word_embeddings"

# Who decides whether the text model's head is its token table. Of the wrappers not named here, an explicit value of the
# wrapper goes first, then one of the text model, then the default of the wrapper's class.
_TIED_BY: dict[str, frozenset[str]] = {
    "wrapper": frozenset((
        "cohere2_vision", "deepseek_vl", "deepseek_vl_hybrid", "florence2", "fuyu", "gemma3", "gemma4", "glm5_next",
        "glmasr", "got_ocr2", "granite_speech", "idefics3", "internvl", "janus", "lfm2_vl", "lighton_ocr", "llava_next",
        "mistral3", "muse_glimmer", "ovis2", "paligemma", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe",
        "smolvlm", "step3p7", "video_llava", "vipllava",
    )),
    "either": frozenset((
        "blip", "hunyuan_vl", "kosmos-2", "paddleocr_vl",
        "glm4v_moe", "llava", "llava_next_video", "llava_onevision", "minimax_m3_vl", "qwen2_5_vl", "qwen2_vl",
        "video_llama_3",
    )),
    "text": frozenset(("kosmos-2.5", "llama4")),
    "never": frozenset((
        "audioflamingo3", "cosmos3_edge", "mllama", "molmo2", "muse_spark", "musicflamingo", "qwen2_audio", "voxtral",
    )),
}  # fmt: skip


def nested_configs(top: Config) -> list[Config]:
    """Return the configs from the outermost to that of the text model, each with the defaults of its class."""
    chain = [_with_class(top, top.data)]
    for _ in range(_DEEPEST):
        outer = chain[-1]
        part = next((key for key in TEXT_PARTS if isinstance(outer.data.get(key), dict)), None)
        if part is None and str(outer.data.get("model_type")) in _FLAT:
            kept = {key: value for key, value in outer.data.items() if key not in _OF_WRAPPERS}
            chain.append(_with_class(outer, {**kept, "model_type": _text_type(outer, TEXT_PARTS[0])}, path=outer.path))
            break
        if part is None:
            outer.absent |= set(map(outer.key_path, TEXT_PARTS))
            break
        inner = dict(outer.data[part])
        inner.setdefault("model_type", _text_type(outer, part))
        path = outer.key_path(part)
        tied = _tie(outer, Config(inner, path=path, defaults=class_defaults(inner["model_type"])))
        if _TIE not in inner:
            outer.absent.add(f"{path}.{_TIE}")
        elif tied is not None:
            outer.uses[f"{path}.{_TIE}"] = KeyUse(f"{path}.{_TIE}", inner[_TIE], "ignored", "the wrapper decides it")
        chain.append(_with_class(outer, inner, path=path, given={} if tied is None else {_TIE: tied}))
    return chain


def inner_config(outer: Config, key: str, model_type: str) -> Config:
    """Return a part of a config as one of its own, with the defaults of a class, whatever type it names itself."""
    part = outer.data.get(key) or {}
    if not isinstance(part, dict):
        raise outer.bad(key, part, "a mapping")
    return _with_class(outer, {**part, "model_type": model_type}, path=outer.key_path(key))


def _with_class(outer: Config, data: Any, *, path: str = "", given: dict[str, KeyUse] | None = None) -> Config:
    model_type = data.get("model_type", "")
    if "model_type" not in data:
        outer.absent.add(f"{path}.model_type" if path else "model_type")
    return Config(
        data,
        where=outer.where,
        path=path,
        defaults=class_defaults(model_type),
        uses=outer.uses,
        absent=outer.absent,
        spellings=_table("spellings", model_type),
        given=given,
    )


def _text_type(outer: Config, part: str) -> str:
    declared = outer.defaults.get(f"{part}_type")
    return declared if isinstance(declared, str) else f"{outer.data.get('model_type', '')}_text"


def _tie(outer: Config, text: Config) -> KeyUse | None:
    """Return the wrapper's word on the tied head; none where the text model's own value holds."""
    by = next((who for who, types in _TIED_BY.items() if str(outer.data.get("model_type")) in types), "")
    path, own = outer.key_path(_TIE), _own_tie(outer)
    if by == "never" or (by == "wrapper" and own is None):
        never = "the wrapper's class ties the head only where the wrapper says so" if by == "wrapper" else "never tied"
        return KeyUse(path, False, "defaulted", never)
    if by == "text":
        outer.pass_over(_TIE, "the text model decides it")
        return None
    if by == "either" and own is not None and own.value is not True:
        if own.use == "used":
            outer.uses[path] = own
        return None
    if by in ("wrapper", "either") or (own is not None and own.use == "used"):
        return own
    return None if _TIE in text.data else own


def _own_tie(outer: Config) -> KeyUse | None:
    path = outer.key_path(_TIE)
    if _TIE in outer.given:
        return outer.given[_TIE]
    if _TIE in outer.data:
        return KeyUse(path, outer.data[_TIE], "used")
    outer.absent.add(path)
    if _TIE in outer.defaults:
        return KeyUse(path, outer.defaults[_TIE], "defaulted", "the default of the wrapper's class")
    return None


_tables: dict[str, dict[str, Any]] | None = None


def _table(kind: str, model_type: object) -> dict[str, Any]:
    global _tables  # noqa: PLW0603  read once; 200 kB that most runs never need
    if _tables is None:
        _tables = json.loads(Path(__file__).with_name("class_defaults.json").read_text(encoding="utf-8"))
    table: dict[str, Any] = _tables[kind].get(model_type, {}) if isinstance(model_type, str) else {}
    return table


def class_defaults(model_type: object) -> dict[str, Any]:
    """Return the defaults that transformers' config class gives to absent keys."""
    return _table("defaults", model_type)


@cache
def class_keys() -> frozenset[str]:
    """Return the names of keys that any config class has: none of them is a misspelling of another."""
    class_defaults("")
    tables = _tables or {}
    named = (keys for kind in ("defaults", "spellings") for keys in tables[kind].values())
    return frozenset(name for keys in named for name in keys)


def checkpoint_dtype(chain: Sequence[Config]) -> str:
    """Return the format of the checkpoint's unquantised tensors: the outermost config that names one decides."""
    named: object = None
    for config in chain:
        dtype = config.raw("dtype", "torch_dtype", default=None) if named is None else None
        if named is None and dtype not in (None, "auto"):
            if not isinstance(dtype, str):
                raise config.bad("dtype", dtype, "the name of a format")
            named = dtype
        elif named is not None:
            for key in ("dtype", "torch_dtype"):
                config.pass_over(key, "the wrapper decides it")
    if named is None:
        uses = chain[0].uses
        for config in chain:
            uses.pop(config.key_path("dtype"), None)
        path = chain[0].key_path("dtype")
        uses[path] = KeyUse(path, "bf16", "defaulted", "the config names no dtype; bf16 is assumed")
        return "bf16"
    return parse_format(str(named).removeprefix("torch.")).name
