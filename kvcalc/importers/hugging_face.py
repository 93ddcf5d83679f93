"""A model profile from a Hugging Face ``config.json``: by the rule of its ``model_type``, or refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import KvcalcError, ProfileError, UnsupportedError, did_you_mean
from kvcalc.core.formats import parse_format
from kvcalc.core.model import ModelProfile
from kvcalc.core.provenance import Source
from kvcalc.importers.config_reader import Config, KeyUse
from kvcalc.importers.families import find_rule, known_types
from kvcalc.importers.quantization import weight_formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["import_config", "lint", "read_config", "read_config_file"]

# The largest real config known is 120 kB; nesting is at most five deep.
_MOST_BYTES = 8 * 2**20
_DEEPEST = 64

# Where multimodal configs keep the text model, in the order they are looked for.
_TEXT_PARTS = ("text_config", "language_config", "llm_config", "thinker_config", "language_model")


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a JSON file as a mapping.

    Raises:
        ProfileError: it cannot be read, is too large or too deep, or is not a JSON object.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ProfileError(f"the file has more than {_MOST_BYTES} bytes: not a model config", where=str(path))
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"cannot be read: {_reason(error)}", where=str(path)) from error
    return read_config(text, where=str(path))


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def read_config(text: str, *, where: str = "config.json") -> dict[str, Any]:
    """Read JSON text as a mapping; a key may repeat with the same value only.

    Raises:
        ProfileError: not a JSON object, or too deeply nested.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found and found[key] != value:
                raise ProfileError(f"the key {key!r} stands twice, with different values", where=where)
            found[key] = value
        return found

    try:
        data = json.loads(text, object_pairs_hook=unique)
    except json.JSONDecodeError as error:
        raise ProfileError(f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}") from error
    except (RecursionError, ValueError) as error:
        raise ProfileError("not usable JSON: nested too deeply or a number too long", where=where) from error
    if not isinstance(data, dict):
        raise ProfileError("the file holds no JSON object", where=where, hint="give a model's config.json")
    if _depth(data) > _DEEPEST:
        raise ProfileError("the file is nested too deeply to be a model config", where=where)
    return data


def _depth(value: Any, level: int = 0) -> int:
    if level > _DEEPEST or not isinstance(value, dict | list):
        return level
    inner = value.values() if isinstance(value, dict) else value
    return max((_depth(entry, level + 1) for entry in inner), default=level)


def import_config(
    data: Mapping[str, Any], *, name: str, where: str = "config.json", url: str = "", date: str = ""
) -> tuple[ModelProfile, dict[str, KeyUse]]:
    """Return the profile that a config describes, and what became of each key that was looked at.

    Args:
        data: the config.
        name: catalogue name for the profile.
        where: the file, for messages and provenance.
        url: where the config can be read.
        date: the day it was read, ISO 8601.

    Raises:
        UnsupportedError: an architecture or scheme that kvcalc does not know.
        ProfileError: a known architecture with a key that is missing or makes no sense.
    """
    uses: dict[str, KeyUse] = {}
    top = Config(data, where=where, uses=uses)
    text = _text_part(top)
    model_type = text.text("model_type", default="")
    rule = find_rule(model_type)
    if rule is None:
        raise _unknown_architecture(top, model_type)
    shape = rule(text)
    dtype = _dtype(text, top)
    formats = weight_formats(top, text, shape, dtype=dtype)
    source = Source(kind="model_config", url=url, date=date, note="" if url else where)
    profile = ModelProfile(
        name=name,
        architecture=model_type,
        hidden_size=shape.hidden_size,
        context_limit=shape.context_limit,
        blocks=shape.blocks,
        embeddings=shape.embeddings,
        head=shape.head,
        dtype=dtype,
        weight_formats=formats.parts,
        kv_dtype=formats.kv,
        activation_dtype=formats.activations,
        encoder=shape.encoder,
        matrix_parameters=shape.matrix_parameters,
        vector_parameters=shape.vector_parameters,
        sources={"config": source},
        provenance={"default": "config"},
        notes=(*shape.notes, *_default_notes(uses)),
    )
    return profile, uses


# Keys that never decide bytes or FLOP, and words in a key that suggest it may.
_HARMLESS = re.compile(
    r"_token|token_|dropout|pdrop|_eps|epsilon|init|theta|rope_|rotary|_act$|activation_function|hidden_act|loss|coef|"
    r"use_cache|version|architectures|auto_map|id2label|label2id|return_|output_(hidden|attentions|router)|_name|"
    r"softcap|scal|multiplier|temperature|top_p|max_length|task_specific|torch_dtype|^dtype$|_range$|_std$|beam|penalty|pooler|"
    r"vision|image|video|audio|projector|norm_topk|routed_scaling|scoring|n_group|topk_group|topk_method|aux|jitter|seq_aux"
)
_TELLING = re.compile(
    r"layer|head|kv|hidden|size|dim|rank|expert|window|chunk|cache|state|conv|ssm|mamba|attn|attention|moe|vocab|quant|"
    r"bias|tie|ffn|intermediate|block|pattern|position|nextn|mtp|groups|width|lora|index"
)


def lint(path: Path) -> list[KeyUse]:
    """Return what becomes of each key of a config file that decides memory or compute, or looks as if it might.

    ``used`` keys were read; ``defaulted`` ones are absent and stand at the config class's value; ``ignored`` ones are in
    the file and were not read: those that look as if they mattered say so in ``why``.

    Raises:
        UnsupportedError: an architecture that is not known.
        ProfileError: a file that cannot be read.
    """
    data = read_config_file(path)
    _, uses = import_config(data, name="linted", where=str(path))
    found = dict(uses)
    for key, value in _leaves(data, ""):
        if any(key == used or (key.startswith(f"{used}.") and _is_leaf_use(uses[used])) for used in uses):
            continue
        name = key.rpartition(".")[2]
        if not _HARMLESS.search(key) and _TELLING.search(name):
            found[key] = KeyUse(
                key, value, "ignored", "not read by the rule of this architecture, though it looks relevant"
            )
        else:
            found[key] = KeyUse(key, value, "ignored", "decides neither memory nor compute")
    return sorted(found.values(), key=lambda use: (("used", "defaulted", "ignored").index(use.use), use.key))


def _is_leaf_use(use: KeyUse) -> bool:
    return use.use == "used" and not isinstance(use.value, dict)


def _leaves(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, entry in value.items():
        inner = f"{path}.{key}" if path else key
        if isinstance(entry, dict) and entry:
            yield from _leaves(entry, inner)
        else:
            yield inner, entry


# Without these a config says nothing of its own model.
_SIZES = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "hidden_size", "n_embd", "d_model")


def _default_notes(uses: Mapping[str, KeyUse]) -> tuple[str, ...]:
    """Return a warning where a model's very size comes from the defaults of its config class."""
    assumed = [f"{key} = {use.value}" for key, use in uses.items()
               if use.use == "defaulted" and key.rpartition(".")[2] in _SIZES and isinstance(use.value, int)]  # fmt: skip
    if not assumed:
        return ()
    return (f"the config does not give its own size; the defaults of its class stand in: {', '.join(assumed)}",)


def _text_part(top: Config) -> Config:
    """Descend to the text model of a multimodal config, with its class's defaults."""
    current = top
    for _ in range(3):
        part = next((key for key in _TEXT_PARTS if isinstance(current.data.get(key), dict)), None)
        if part is None:
            break
        outer = current.data.get("model_type", "")
        inner = dict(current.data[part])
        inner.setdefault("model_type", _text_type(outer, part))
        tied = current.data.get("tie_word_embeddings", _class_defaults(str(outer)).get("tie_word_embeddings"))
        if tied is not None:
            inner.setdefault("tie_word_embeddings", tied)
        current = Config(inner, where=top.where, path=current.key_path(part), uses=top.uses)
    model_type = current.data.get("model_type", "")
    return Config(
        current.data,
        where=top.where,
        path=current.path,
        defaults=_class_defaults(model_type if isinstance(model_type, str) else ""),
        uses=top.uses,
    )


def _text_type(outer: object, part: str) -> str:
    declared = _class_defaults(outer if isinstance(outer, str) else "").get(f"{part}_type")
    return declared if isinstance(declared, str) else f"{outer}_text"


def _class_defaults(model_type: str) -> dict[str, Any]:
    """Return what transformers' config class gives to absent keys."""
    global _defaults  # noqa: PLW0603  read once; 200 kB that most runs never need
    if _defaults is None:
        file = Path(__file__).with_name("class_defaults.json")
        _defaults = json.loads(file.read_text(encoding="utf-8"))["defaults"]
    found: dict[str, Any] = _defaults.get(model_type, {})
    return found


_defaults: dict[str, Any] | None = None


def _unknown_architecture(top: Config, model_type: str) -> KvcalcError:
    if not model_type:
        return ProfileError("the config names no model_type", where=top.where, hint="is this a model's config.json?")
    hint = did_you_mean(model_type, known_types())
    return UnsupportedError(
        f"model_type {model_type!r} is not known to kvcalc, and is not guessed",
        where=f"{top.where}, model_type",
        hint=f"{hint + ' ' if hint else ''}describe its layers in a profile (kvcalc models show llama3.1-8b is an example)",
    )


def _dtype(text: Config, top: Config) -> str:
    """Return the format of the checkpoint's unquantised tensors."""
    named = text.raw("dtype", "torch_dtype", default=None) or top.raw("dtype", "torch_dtype", default=None)
    if named is None or named == "auto":
        return "bf16"
    if not isinstance(named, str):
        raise text.bad("dtype", named, "the name of a format")
    return parse_format(named.removeprefix("torch.")).name
