"""The number formats of a question: as they are asked for, as a model runs in them, and as a report names them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from kvcalc.core.errors import InputError, UnknownNameError, UnsupportedError, about, did_you_mean
from kvcalc.core.formats import FORMATS, Format, cache_formats, parse_format
from kvcalc.core.model import Part
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import RunFormats
from kvcalc.core.workload import Formats
from kvcalc.cost.parameters import parameters
from kvcalc.engines.checkpoint import as_multiplied, cache_dtype, run_dtype, runs_gguf
from kvcalc.plan.weight_words import (
    WORDS,
    asked_recipe,
    is_word,
    kept_parts,
    recipe_formats,
    refuse_mixture,
    weight_word,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile

__all__ = ["AS_THE_ENGINE", "AskedFormats", "format_names", "run_formats", "stored_as"]

_PLAIN = ("bf16", "fp16", "fp32")
# The recipes of llama.cpp that are mostly meant by a number of bits.
_USUAL_RECIPES = {"2": "q2_k", "3": "q3_k_m", "4": "q4_k_m", "5": "q5_k_m", "6": "q6_k", "8": "q8_0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedFormats:
    """Names of the formats that a user asks for; what is left out is the engine's choice.

    Args:
        weights: one format for every parameter, or with exceptions: ``bf16,experts=mxfp4``.
        kv: format of the cache.
        key: format of cached keys, where it differs.
        value: format of cached values, where it differs.
        activations: format that activations are multiplied in.
    """

    weights: str | None = None
    kv: str | None = None
    key: str | None = None
    value: str | None = None
    activations: str | None = None


# Nothing is asked for: the engine decides.
AS_THE_ENGINE = AskedFormats()


def run_formats(
    model: ModelProfile,
    *,
    weights: str | None = None,
    kv: str | None = None,
    key: str | None = None,
    value: str | None = None,
    activations: str | None = None,
    engine: str | None = None,
    hardware: HardwareProfile | None = None,
    imatrix: bool = False,
) -> Formats:
    """Return the formats a model runs in: those of the checkpoint as the engine runs it, unless said otherwise.

    Args:
        model: the model.
        weights: one format for every parameter, or with exceptions: ``bf16,experts=mxfp4``; or a word for what
            checkpoints do (`kvcalc.plan.weight_words.WORDS`), or a recipe of llama.cpp (``q4_k_m``).
        kv: format of the cache.
        key: format of cached keys, where it differs.
        value: format of cached values, where it differs.
        activations: format that activations are multiplied in; the checkpoint's 16-bit format unless said otherwise, so
            that weight-only quantisation runs at the 16-bit peak. llama.cpp's is `as_multiplied`.
        engine: the engine that runs it; any common one where left out (`run_dtype`).
        hardware: the accelerator, where there is one.
        imatrix: whether a recipe's file is made with an importance matrix.

    Raises:
        UnknownNameError: no such format.
        InputError: no such part.
        UnsupportedError: a recipe for a model whose tensors are not known.
    """
    asked = AskedFormats(weights=weights, kv=kv, key=key, value=value, activations=activations)
    formats = _checkpoint_formats(model, asked, engine=engine, hardware=hardware, imatrix=imatrix)
    if activations is not None:
        return formats
    runs = "llama.cpp" if engine is None and runs_gguf(model, formats) else engine
    return as_multiplied(runs, formats, () if hardware is None else (hardware,))


def _checkpoint_formats(
    model: ModelProfile,
    asked: AskedFormats,
    *,
    engine: str | None = None,
    hardware: HardwareProfile | None = None,
    imatrix: bool = False,
) -> Formats:
    """Return the formats that were asked for, the checkpoint's own where none were; see `run_formats`."""
    weights, kv, key, value, activations = asked.weights, asked.kv, asked.key, asked.value, asked.activations
    dtype = run_dtype(model, engine, hardware)
    base = parse_format(dtype)
    with about("weights"):
        refuse_mixture(model, weights)
        recipe = asked_recipe(model, weights, engine=engine)
        if weights is None:
            whole, parts = base, {part: parse_format(name) for part, name in model.weight_formats.items()}
        else:
            stored = None if recipe is None else recipe_formats(model, recipe, dtype=dtype, imatrix=imatrix)
            whole, parts = _weight_formats(model, weights, dtype, stored)
    word = weight_word(weights)
    own = model.activation_dtype if weights is None else word.activations if word is not None else None
    with about("kv-dtype"):
        keys, values = cache_formats(_first(kv, cache_dtype(model, engine, hardware), dtype))
        keys = keys if key is None else parse_format(key)
        values = values if value is None else parse_format(value)
    with about("activations"):
        multiplied = parse_format(_first(activations, own, dtype))
    return Formats(
        weights=whole,
        parts=parts,
        recipe="" if recipe is None or weights is None else weights.strip().lower(),
        key=keys,
        value=values,
        state=keys if keys.name in _PLAIN else base,
        activations=multiplied,
        hidden=multiplied if multiplied.name in _PLAIN else base,
    )


def stored_as(model: ModelProfile, weights: str) -> tuple[ModelProfile, str]:
    """Return a model whose checkpoint stores its weights so, and in words what that is.

    A checkpoint that stores its matrices in a format of that width already is left as it is, and so is a part that
    ``weights`` names an exception for.

    Args:
        model: the model.
        weights: as for `run_formats`.

    Raises:
        UnknownNameError: no such format.
        UnsupportedError: a recipe for a model whose tensors are not known, or a mixture by parts that it does not have.
    """
    formats = _checkpoint_formats(model, AskedFormats(weights=weights))
    if ",experts=" in weights and "experts" not in parameters(model):
        raise UnsupportedError(
            f"{model.name} has no experts, which such files have in a format of their own",
            hint=f"-m {model.name} --weights says how they are stored, such as mlx-8bit",
        )
    stored = {parse_format(name).unit for name in model.weight_formats.values()}
    plain = formats.weights.unit in _PLAIN
    if formats.weights.unit in stored and not plain and "," not in weights:
        return model, "which stores its weights so"
    named = {part: _kept(model, part, formats, weights) for part in parameters(model)}
    if plain and set(named.values()) == {formats.weights.name}:
        whole = replace(model, dtype=formats.weights.name, weight_formats={}, activation_dtype=None)
        return whole, f"with weights in {whole.dtype}"
    own = {part: name for part, name in named.items() if name != model.dtype}
    multiplied = formats.activations.name
    activations = None if multiplied == run_dtype(model, None) else multiplied
    changed = replace(model, weight_formats=own, activation_dtype=activations)
    if formats.recipe:
        return changed, f"with weights in {formats.recipe.upper()}"
    others: dict[str, list[str]] = {}
    for part, name in named.items():
        others.setdefault(name, []).append(part)
    others.pop(formats.weights.name, None)
    parts = " and ".join(f"{', '.join(alike)} in {_short(parse_format(name))}" for name, alike in others.items())
    but = f" but {parts}" if parts else ""
    return changed, f"with weights in {formats.weights.name}{but}; its config.json says exactly"


def _kept(model: ModelProfile, part: str, formats: Formats, weights: str) -> str:
    """Return the format of a part: the checkpoint's own where it has the width of an exception for that part."""
    asked, own = formats.of(part), model.weight_formats.get(part)
    if own is not None and f",{part}=" in weights and parse_format(own).unit == asked.unit:
        return own
    return asked.name


def _first(*names: str | None) -> str:
    return next(name for name in names if name is not None)


def _weight_formats(
    model: ModelProfile, text: str, dtype: str, recipe: tuple[Format, Mapping[str, Format]] | None
) -> tuple[Format, dict[str, Format]]:
    """Return the format of the whole and of single parts, as formats, a word or a recipe have them."""
    whole, *exceptions = text.split(",")
    word = weight_word(text)
    form, kept = recipe or (None, {} if word is None else kept_parts(model, word, dtype))
    parts = dict(kept)
    for exception in exceptions:
        part, equals, name = exception.partition("=")
        if not equals or part.strip() not in get_args(Part):
            hint = did_you_mean(part.strip(), get_args(Part)) or f"parts: {', '.join(get_args(Part))}"
            raise InputError(f"weights: {exception!r} names no part of a model", hint=hint)
        parts[part.strip()] = parse_format(name)
    return form or _whole_format(whole if word is None else word.form), parts


def _whole_format(name: str) -> Format:
    try:
        return parse_format(name)
    except UnknownNameError as unknown:
        from kvcalc.engines.llama_cpp.recipes import RECIPES

        hint = _bits_hint(name) or did_you_mean(name.strip().lower(), {*RECIPES, *WORDS, *FORMATS})
        raise UnknownNameError(unknown.what, hint=hint or unknown.hint) from None


def _bits_hint(name: str) -> str:
    """Return a hint with the usual names of 4-bit weights for "4bit" or "q4", and so on; else nothing.

    >>> _bits_hint("q4"), _bits_hint("6-bit"), _bits_hint("q4_9")
    ('4-bit weights: q4_k_m (llama.cpp), mlx-4bit (MLX)', '6-bit weights: q6_k (llama.cpp), mlx-6bit (MLX)', '')
    """
    bits = name.strip().lower().removeprefix("q").removesuffix("s").removesuffix("bit").rstrip("- ")
    usual = _USUAL_RECIPES.get(bits)
    return "" if usual is None else f"{bits}-bit weights: {usual} (llama.cpp), mlx-{bits}bit (MLX)"


def format_names(formats: Formats) -> RunFormats:
    """Return the names of the formats, for a report."""
    exceptions = {} if is_word(formats) else formats.parts  # what a word leaves alone stands in a note
    special = [f"{part}={_short(fmt)}" for part, fmt in exceptions.items() if fmt.name != formats.weights.name]
    same = formats.key.name == formats.value.name
    return RunFormats(
        weights=formats.recipe or ",".join([formats.weights.name, *special]),
        kv=formats.key.name if same else f"{formats.key.name}/{formats.value.name}",
        activations=formats.activations.name,
    )


def _short(fmt: Format) -> str:
    """Name a format for a reader: an exact mixture by its mean."""
    method, _, ratio = fmt.name.partition("-")
    return f"{method}({fmt.bytes_per_element:.3f} B)" if "/" in ratio else fmt.name
