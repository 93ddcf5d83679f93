"""Words for how a whole model is quantised: what such checkpoints store, and the recipes of llama.cpp's files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.cost.parameters import parameters

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = [
    "WORDS", "WeightWord", "asked_recipe", "is_word", "kept_parts", "recipe_formats", "recipe_notes", "weight_word",
    "word_notes",
]  # fmt: skip

# What such checkpoints quantise; embedding, head, router, norms and towers stay as they are.
_QUANTISED = ("attention", "mlp", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightWord:
    """What a word means.

    Args:
        form: format of the quantised matrices.
        activations: format they are multiplied in, where the kind quantises activations too.
    """

    form: str
    activations: str | None = None


# The usual group is 128 with a 16-bit scale; AWQ and GPTQ pack a 4-bit zero point beside it.
# Sources: llm-compressor's schemes W4A16, W8A8, FP8 and FP8_DYNAMIC; the defaults of AutoAWQ, GPTQModel and ModelOpt.
WORDS = {
    "awq": WeightWord(form="int4-g128-zp4"),
    "fp8": WeightWord(form="fp8"),
    "fp8-dynamic": WeightWord(form="fp8", activations="fp8"),
    "gptq": WeightWord(form="int4-g128-zp4"),
    "int4": WeightWord(form="int4-g128"),
    "nvfp4": WeightWord(form="nvfp4"),
    "w4a16": WeightWord(form="int4-g128"),
    "w8a8": WeightWord(form="int8", activations="int8"),
}


def weight_word(text: str | None) -> WeightWord | None:
    """Return what the first word of asked weights means; none where it is a format for every parameter.

    >>> weight_word("int4,head=fp8"), weight_word("q4_0")
    (WeightWord(form='int4-g128', activations=None), None)
    """
    return None if text is None else WORDS.get(text.partition(",")[0].strip().lower().replace("_", "-"))


def kept_parts(model: ModelProfile, dtype: str) -> dict[str, Format]:
    """Return the parts of a model that such a checkpoint leaves alone, and their format.

    Args:
        model: the model.
        dtype: the unquantised format that it is run in.
    """
    return {part: parse_format(dtype) for part in parameters(model) if part not in _QUANTISED}


def is_word(formats: Formats) -> bool:
    """Whether weights are quantised as a word says: matrices in its form, and everything else plain."""
    kept = {part for part, form in formats.parts.items() if form.block_elements == 1 and form.block_bytes > 1}
    whole = kept == formats.parts.keys() and kept.isdisjoint(_QUANTISED) and {"head", "vector"} <= kept
    return whole and formats.weights.name in {word.form for word in WORDS.values()}


def word_notes(model: ModelProfile, text: str | None, dtype: str) -> tuple[str, ...]:
    """Say what a word was taken for; nothing where a format was asked for."""
    word = weight_word(text)
    if word is None or text is None:
        return ()
    parts = parameters(model)
    stored = ", ".join(part for part in _QUANTISED if part in parts)
    kept = ", ".join(part for part in kept_parts(model, dtype) if f"{part}=" not in text)
    multiplied = f", multiplied in {word.activations}," if word.activations else ""
    told = f"--weights {text.partition(',')[0].strip()} is what checkpoints do: {stored} in {word.form}{multiplied}"
    return (f"{told} and {kept} in {dtype} (head={word.form} after a comma quantises the head too)",)


def asked_recipe(model: ModelProfile, text: str | None, *, engine: str | None) -> str | None:
    """Return the recipe of llama.cpp that asked weights name; none where they name formats.

    Names of recipes that are formats too (``q4_0``) mean the recipe where they stand alone and the model's tensors are
    known; 16 and 32 bits do so for llama.cpp alone, since every engine runs these.

    Args:
        model: the model.
        text: the weights that were asked for.
        engine: the engine that was asked for.
    """
    if text is None:
        return None
    from kvcalc.engines.llama_cpp.recipes import RECIPES, find_recipe  # with llama.cpp's layouts, which few need

    first, *exceptions = text.split(",")
    recipe = find_recipe(first)
    if recipe is None or not _is_format(recipe):
        return recipe
    plain = exceptions or (FORMATS[RECIPES[recipe]].block_elements == 1 and engine != "llama.cpp")
    return None if plain or _unlisted(model) is not None else recipe


def _is_format(recipe: str) -> bool:
    from kvcalc.engines.llama_cpp.recipes import RECIPES

    return recipe in FORMATS or FORMATS[RECIPES[recipe]].block_elements == 1


def _unlisted(model: ModelProfile) -> str | None:
    from kvcalc.engines.llama_cpp.tensors import unlisted  # which few questions need

    return unlisted(model)


def recipe_formats(model: ModelProfile, recipe: str, *, dtype: str, imatrix: bool) -> tuple[Format, dict[str, Format]]:
    """Return the format of most matrices of a model's file by a recipe, and the exact format of each part.

    Args:
        model: the model.
        recipe: the recipe.
        dtype: the unquantised format, which its towers stay in.
        imatrix: whether the file is made with an importance matrix.

    Raises:
        UnsupportedError: a model whose tensors are not known.
    """
    from kvcalc.engines.llama_cpp.quantised import quantised_file
    from kvcalc.engines.llama_cpp.recipes import RECIPES

    parts: dict[str, str] = dict.fromkeys((tower.part for tower in model.towers), dtype)
    parts |= quantised_file(model, recipe, imatrix=imatrix).parts
    return FORMATS[RECIPES[recipe]], {part: parse_format(name) for part, name in parts.items()}


def recipe_notes(model: ModelProfile, text: str | None, *, engine: str | None, imatrix: bool) -> tuple[str, ...]:
    """Say the mixture that a recipe makes, or that a recipe's name was taken for a format."""
    if text is None or "," in text:
        return ()
    from kvcalc.engines.llama_cpp.recipes import RECIPES, find_recipe

    recipe = asked_recipe(model, text, engine=engine)
    if recipe is None:
        named = find_recipe(text)
        if named is None or FORMATS[RECIPES[named]].block_elements == 1:
            return ()
        return (f"--weights {text} is one format for every parameter, no recipe: {_unlisted(model)}",)
    from kvcalc.engines.llama_cpp.quantised import quantised_file

    file = quantised_file(model, recipe, imatrix=imatrix)
    matrix = " with an importance matrix" if imatrix else ""
    needed = "; llama-quantize asks for an importance matrix" if file.needs_imatrix and not imatrix else ""
    size = f"{file.bits_per_weight:.2f} bits a weight"
    return (f"{recipe.upper()} by llama-quantize{matrix}: {size}; matrices: {file.mixture}; norms in fp32{needed}",)
