"""A model profile from a Hugging Face ``config.json``: by the rule of its ``model_type``, or refused by name."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import KvcalcError, ProfileError, UnsupportedError, did_you_mean
from kvcalc.core.model import Attention, ModelProfile
from kvcalc.core.provenance import Source
from kvcalc.files import read_text, unique_keys
from kvcalc.importers.config_reader import Config, KeyUse
from kvcalc.importers.contradictions import contradiction_notes
from kvcalc.importers.families import find_rule, known_types
from kvcalc.importers.families.refused import REFUSED
from kvcalc.importers.misspelt import refuse_misspelt
from kvcalc.importers.mistral_params import is_mistral_params, renamed
from kvcalc.importers.quantization import weight_formats
from kvcalc.importers.towers import count_towers
from kvcalc.importers.unread import looks_relevant, refuse_unread
from kvcalc.importers.wrappers import TEXT_PARTS, checkpoint_dtype, nested_configs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kvcalc.core.model import Block

__all__ = ["import_config", "lint", "read_config", "read_config_file"]

# The largest real config known has 2.8 MB, for its list of quantised modules; nesting is at most five deep.
_MAX_BYTES = 8 * 2**20
_DEEPEST = 64
_LONGEST_TYPE = 80
_LONGEST_SHOWN = 60


def read_config_file(path: Path) -> dict[str, Any]:
    """Read a JSON file as a mapping.

    Raises:
        ProfileError: it cannot be read, is too large or too deep, or is not a JSON object.
    """
    return read_config(read_text(path, max_bytes=_MAX_BYTES, what="a model config"), where=str(path))


def read_config(text: str, *, where: str = "config.json") -> dict[str, Any]:
    """Read JSON text as a mapping, Mistral's ``params.json`` by transformers' names; no key repeats with another value.

    Raises:
        ProfileError: not a JSON object, or too deeply nested.
    """
    try:
        data = json.loads(text, object_pairs_hook=unique_keys)
    except ProfileError as error:
        raise ProfileError(error.what, where=where) from None
    except json.JSONDecodeError as error:
        raise ProfileError(f"not valid JSON: {error.msg}", where=f"{where}:{error.lineno}") from error
    except (RecursionError, ValueError) as error:
        raise ProfileError("not usable JSON: nested too deeply or a number too long", where=where) from error
    if not isinstance(data, dict):
        raise ProfileError("the file holds no JSON object", where=where, hint="give a model's config.json")
    if _depth(data) > _DEEPEST:
        raise ProfileError("the file is nested too deeply to be a model config", where=where)
    return renamed(data, where=where) if is_mistral_params(data) else data


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
    chain = nested_configs(top)
    text = chain[-1]
    model_type = text.text("model_type", default="")
    rule = find_rule(model_type)
    if rule is None or str(chain[0].data.get("model_type")) in REFUSED:
        raise _unknown_architecture(chain[0], text, model_type)
    shape = rule(text)
    refuse_unread(text, shape)
    dtype = checkpoint_dtype(chain)
    formats = weight_formats(top, text, shape, dtype=dtype)
    towers, unknown = count_towers(chain, shape.hidden_size, encoder=shape.encoder is not None)
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
        weight_formats={**shape.formats, **formats.parts},
        kv_dtype=formats.kv,
        activation_dtype=formats.activations,
        rotary_positions=_rotary_positions(text, shape.context_limit),
        encoder=shape.encoder,
        towers=towers,
        matrix_parameters=shape.matrix_parameters,
        vector_parameters=shape.vector_parameters,
        rotary_factors=_rotary_factors(text, shape.blocks),
        prediction_layers=_prediction_layers(text),
        sources={"config": source},
        provenance={"default": "config"},
        notes=(*shape.notes, *unknown, *formats.notes, *_default_notes(uses), *contradiction_notes(chain)),
    )
    refuse_misspelt(chain)  # after all that reads the config
    return profile, uses


def _rotary_positions(text: Config, limit: int | None) -> int | None:
    """Return the positions that a linear or dynamic scaling stretches the limit to; none where nothing does."""
    for key in ("rope_scaling", "rope_parameters"):
        value = text.raw(key, default=None)
        for scaling in (value, *value.values()) if isinstance(value, dict) else ():
            kind = (scaling.get("rope_type") or scaling.get("type")) if isinstance(scaling, dict) else None
            if kind in ("linear", "dynamic") and limit is not None:
                stretched = int(Config(scaling, where=text.where, path=text.key_path(key)).number("factor") * limit)
                return stretched if stretched > limit else None
    return None


def lint(path: Path) -> list[KeyUse]:
    """Return the use of each key of a config file that decides memory or compute, or looks as if it might.

    ``used`` keys were read; ``defaulted`` ones are absent and stand at the value in force; ``ignored`` ones are in the
    file and were not read: those that look as if they mattered say so in ``why``.

    Raises:
        UnsupportedError: an architecture that is not known.
        ProfileError: a file that cannot be read.
    """
    data = read_config_file(path)
    _, uses = import_config(data, name="linted", where=str(path))
    unique = dict(uses)
    for key, value in _leaves(data, ""):
        if any(key == used or (key.startswith(f"{used}.") and _is_leaf_use(uses[used])) for used in uses):
            continue
        if looks_relevant(key):
            unique[key] = KeyUse(
                key, value, "ignored", "not read by the rule of this architecture, though it looks relevant"
            )
        else:
            unique[key] = KeyUse(key, value, "ignored", "decides neither memory nor compute")
    return sorted(unique.values(), key=lambda use: (("used", "defaulted", "ignored").index(use.use), use.key))


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
# The longest context has these names.
_LIMITS = (
    "context_length", "max_context_length", "max_position_embeddings", "max_seq_len", "model_max_length", "n_positions",
    "seq_length",
)  # fmt: skip
_TOWERS = ("vision_config.", "audio_config.", "thinker_config.vision_config.", "thinker_config.audio_config.")


def _default_notes(uses: Mapping[str, KeyUse]) -> tuple[str, ...]:
    """Name the defaults of keys that decide memory or compute and that the config does not give."""
    # what is merely absent is of no other config of the class either
    absent = [
        use
        for key, use in uses.items()
        if not key.startswith(_TOWERS) and use.use == "defaulted" and use.why != "absent" and _decides(key)
    ]
    assumed = [use for use in absent if use.key.rpartition(".")[2] in _SIZES and isinstance(use.value, int)]
    others = [use for use in absent if use not in assumed and _says(use)]
    dtype = [use for use in uses.values() if use.key == "dtype" and use.use == "defaulted" and use.why != "absent"]
    notes = (
        ("the config does not give its own size; the defaults of its class stand in", assumed),
        ("left out by the config, so that the default of its class holds", others),
    )
    texts = tuple(f"{what}: {', '.join(map(_shown_default, defaults))}" for what, defaults in notes if defaults)
    return (*texts, *(use.why for use in dtype))


def _says(use: KeyUse) -> bool:
    """Whether a default is more than that something is absent or off."""
    return bool(use.value) or type(use.value) is int or use.key.endswith("tie_word_embeddings")


def _decides(path: str) -> bool:
    return looks_relevant(path) or path.rpartition(".")[2] in _LIMITS


def _shown_default(use: KeyUse) -> str:
    value = use.value
    if isinstance(value, list) and value and all(isinstance(kind, str) for kind in value):
        return f"{use.key} = {', '.join(f'{count} {kind}' for kind, count in Counter(value).items())}"
    shown = json.dumps(value)
    return f"{use.key} = {shown if len(shown) <= _LONGEST_SHOWN else f'{shown[:_LONGEST_SHOWN]}…'}"


def _unknown_architecture(top: Config, text: Config, model_type: str) -> KvcalcError:
    if not model_type:
        return ProfileError("the config names no model_type", where=top.where, hint="is this a model's config.json?")
    refused = next((name for name in (str(top.data.get("model_type")), model_type) if name in REFUSED), None)
    if refused is not None:
        return UnsupportedError(
            f"model_type {refused!r} {REFUSED[refused]}",
            where=f"{top.where}, model_type",
            hint="describe its layers in a profile if you know what it holds",
        )
    if text.path and "model_type" not in _at(top.data, text.path):
        return ProfileError(
            f"{text.path} names no model_type, and that of its wrapper does not say which text model it holds",
            where=top.where,
            hint=f"add the text model's own model_type to {text.path}",
        )
    part = next((part for part in TEXT_PARTS if isinstance(top.defaults.get(f"{part}_type"), str)), None)
    if part is not None and text is top:
        return ProfileError(
            f"model_type {model_type!r} wraps a text model, and the config has no {part} that describes it",
            where=top.where,
            hint="give the whole config.json; a text model by itself has a model_type of its own",
        )
    model_type = model_type[:_LONGEST_TYPE]
    hint = did_you_mean(model_type, known_types())
    example = "kvcalc models show llama3.1-8b is an example"
    return UnsupportedError(
        f"model_type {model_type!r} is not known to kvcalc, and is not guessed",
        where=f"{top.where}, model_type",
        hint=f"{hint + ' ' if hint else ''}describe its layers in a profile ({example})",
    )


def _at(data: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    for key in path.split("."):
        data = data[key]
    return data


def _rotary_factors(text: Config, blocks: Iterable[Block]) -> int:
    """Return the elements of the rotary factors: Llama 3.1's for each pair of a head's dimensions, or LongRoPE's lists.

    Args:
        text: the text model's config.
        blocks: its layers.

    Source: llama.cpp, ``convert_hf_to_gguf.py``, ``generate_extra_tensors`` (``rope_freqs``, ``rope_factors_long`` and
    ``rope_factors_short``).
    """
    scaling = next((text.raw(key) for key in ("rope_scaling", "rope_parameters") if text.has(key)), None)
    if not isinstance(scaling, dict):
        return 0
    if "llama3" in (scaling.get("rope_type"), scaling.get("type")):
        mixers = (mixer for block in blocks for mixer in block.mixers)
        return next((mixer.head_dim // 2 for mixer in mixers if isinstance(mixer, Attention)), 0)
    given = next(key for key in ("rope_scaling", "rope_parameters") if text.has(key))
    part = text.child(given)
    lists = [part.raw(key, default=None) for key in ("long_factor", "short_factor")]
    return sum(len(factors) for factors in lists if isinstance(factors, list))


def _prediction_layers(text: Config) -> int:
    """Count the layers behind the others that predict further tokens.

    Raises:
        ProfileError: the config names no whole number of them.
    """
    key = "num_nextn_predict_layers"
    return text.integer(key, least=0) if text.has(key) else 0
