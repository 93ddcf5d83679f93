"""Towers beside the text model: how many parameters read images and sound, from the configs of wrapper and tower."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.model import Tower
from kvcalc.importers.towers import audio, codecs, dots, inkling, older, queried, recent, vision, vqgan
from kvcalc.importers.towers.projectors import (
    AUDIO_WRAPPERS,
    CODE_WRAPPERS,
    CODEC_WRAPPERS,
    TALKER_WRAPPERS,
    VISION_WRAPPERS,
)
from kvcalc.importers.wrappers import inner_config

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.model import TowerPart
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.towers.projectors import Wrapper

__all__ = ["TOWERS", "count_towers"]

_VISION = vision.VISION | queried.VISION | inkling.VISION | older.VISION | recent.VISION | dots.VISION
_AUDIO = audio.AUDIO | queried.AUDIO | inkling.AUDIO | recent.AUDIO | dots.AUDIO
# Where configs keep towers, what these are, and the rules for them.
_PLACES: tuple[tuple[str, TowerPart, Mapping[str, Wrapper], Mapping[str, Callable[[Config], int]]], ...] = (
    ("vision_config", "vision", VISION_WRAPPERS, _VISION),
    ("audio_config", "audio", AUDIO_WRAPPERS, _AUDIO),
    ("encoder_config", "audio", AUDIO_WRAPPERS, queried.AUDIO),
    ("codec_config", "audio", CODEC_WRAPPERS, codecs.CODEC),
    ("acoustic_tokenizer_encoder_config", "audio", CODEC_WRAPPERS, codecs.CODEC),
    ("semantic_tokenizer_encoder_config", "audio", CODEC_WRAPPERS, codecs.CODEC),
    ("vq_config", "vision", CODE_WRAPPERS, vqgan.CODES),
    ("depth_decoder_config", "talker", TALKER_WRAPPERS, codecs.TALKER),
)
# Encoders beside a decoder that have towers of their own, by the model's type.
_ENCODERS_THAT_SEE = {"t5gemma2": "t5gemma2_encoder"}
# Sizes that decide most of a tower's parameters.
_SIZES = re.compile(
    r"(?:\w+_)?(?:layers|depth|hidden_size|intermediate_size|embed_dim|d_model|ffn_dim)|(?:image|patch)_size"
)
TOWERS = tuple(key for key, *_ in _PLACES)
# Where others keep theirs, for which there is no rule.
_ELSEWHERE = re.compile(
    r"(?:acoustic|audio|code2wav|encoder|image|semantic|speech|talker|token2wav|video|vision|visual|vq)\w*_config|"
    r"embd_layer|img_processor|visual|audio_processor"
)


def count_towers(
    chain: Sequence[Config], text_hidden: int, *, encoder: bool = False
) -> tuple[tuple[Tower, ...], tuple[str, ...]]:
    """Return the towers that a config's wrappers hold, projectors included, and notes on those that have no rule.

    Args:
        chain: the configs from the outermost to that of the text model.
        text_hidden: width of the text model.
        encoder: whether the model's rule has read ``encoder_config`` as the encoder that its decoder attends to.

    Raises:
        ProfileError: something that is no mapping in place of a tower.
    """
    towers: list[Tower] = []
    notes: list[str] = []
    for top in (*chain, *_encoders(chain[0])):
        for key, part, wrappers, rules in _PLACES:
            if encoder and key == "encoder_config":
                continue
            wrapper = wrappers.get(str(top.data.get("model_type", "")))
            top.has(key)  # a misspelt one is held against it
            given = top.data.get(key, {})
            if given is not None and not isinstance(given, dict):
                raise top.bad(key, given, "a mapping")
            if given == {} and wrapper is not None and f"{key}_type" in top.defaults:
                notes.append(f"the config does not describe its {part} tower; the defaults of its class stand in")
            elif not given:
                # models that hear are published with such a null, those that see are not
                if given is None and part == "vision" and wrapper is not None:
                    notes.append(f"{top.key_path(key)} is null: no {part} tower is counted")
                continue
            try:
                towers.append(_tower(top, key, part, wrapper, rules, text_hidden))
                notes += _left_out(top, key, part) if given else ()
            except KvcalcError as error:
                notes.append(f"the {part} tower is not counted among the weights: {error.what}")
    if chain[0].data.get("model_type") == "fuyu":
        towers.append(Tower(part="vision", parameters=recent.fuyu(chain[0], text_hidden)))
    others = [key for top in chain for key in top.data if key not in TOWERS and _is_tower(key, top.data[key])]
    notes += [f"what {key} describes is not counted among the weights: it has no rule" for key in others]
    return tuple(towers), tuple(notes)


def _encoders(top: Config) -> list[Config]:
    """Return the encoder that holds a tower in place of the model that wraps both."""
    kind = _ENCODERS_THAT_SEE.get(str(top.data.get("model_type")))
    return [inner_config(top, "encoder", kind)] if kind else []


def _left_out(top: Config, key: str, part: TowerPart) -> list[str]:
    """Return a note on the sizes that a described tower leaves to its class."""
    prefix = f"{top.key_path(key)}."
    sizes = [
        f"{use.key} = {use.value}"
        for use in top.uses.values()
        if use.key.startswith(prefix) and use.use == "defaulted" and use.why != "absent"
        if _SIZES.fullmatch(use.key.removeprefix(prefix)) and use.value
    ]
    reason = f"left out of the {part} tower, so that the default of its class holds"
    return [f"{reason}: {', '.join(sizes)}"] if sizes else []


def _is_tower(key: str, value: object) -> bool:
    return isinstance(value, dict) and bool(value) and _ELSEWHERE.fullmatch(key) is not None


def _tower(
    top: Config,
    key: str,
    part: TowerPart,
    wrapper: Wrapper | None,
    rules: Mapping[str, Callable[[Config], int]],
    text_hidden: int,
) -> Tower:
    if wrapper is None:
        raise UnsupportedError(f"model_type {top.data.get('model_type')!r} has no rule for it")
    inner = wrapper.tower or str(top.child(key).data.get("model_type") or top.defaults.get(f"{key}_type", ""))
    if inner not in rules:
        raise UnsupportedError(f"{inner!r} has no rule")
    tower = inner_config(top, key, inner)
    named = ("num_attention_heads", "num_heads", "attention_heads", "encoder_attention_heads")
    staged = isinstance(tower.raw(*named, default=None), list)
    heads = None if staged else tower.maybe_integer(*named)
    size = wrapper.copies * rules[inner](tower) + wrapper.projector(top, tower, text_hidden)
    return Tower(
        part=part,
        parameters=size,
        heads=heads,
        layers=tower.maybe_integer("vt_num_hidden_layers", "num_hidden_layers"),
        hidden_size=tower.maybe_integer("vt_hidden_size", "hidden_size"),
    )
