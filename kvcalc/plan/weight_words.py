"""Words for how a whole model is quantised: what such checkpoints store, and the recipes of llama.cpp's files."""

from __future__ import annotations

import re
from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.records import dataclass
from kvcalc.cost.parameters import parameters
from kvcalc.engines.loads import does_not_load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = [
    "WORDS", "WeightWord", "asked_recipe", "is_word", "kept_parts", "loading_notes", "recipe_formats", "recipe_notes",
    "refuse_mixture", "unknown_mixture", "weight_word", "word_notes",
]  # fmt: skip

# What such checkpoints quantise; embedding, head, router, norms and towers stay as they are.
_QUANTISED = ("attention", "mlp", "experts")
# What has the checkpoint's format whatever is quantised beside it: tables of n-grams.
_OF_ITS_OWN = ("lookup",)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightWord:
    """Meaning of a word.

    Args:
        form: format of the quantised matrices.
        activations: format they are multiplied in, where the kind quantises activations too.
        others: formats of further parts that the kind quantises.
    """

    form: str
    activations: str | None = None
    others: Mapping[str, str] = field(default_factory=dict)


# The usual group is 128 with a 16-bit scale; AWQ and GPTQ pack a zero point beside it.
# Sources: llm-compressor's schemes W4A16, W8A8, FP8, FP8_DYNAMIC, FP8_BLOCK, NVFP4, NVFP4A16 and MXFP4; the defaults of
# AutoAWQ, GPTQModel, AutoRound, ModelOpt, HQQ (groups of 64) and bitsandbytes (blocks of 64, scales quantised again as
# QLoRA has it); SGLang's w4afp8.
WORDS = {
    "autoround": WeightWord(form="int4-g128"),
    "awq": WeightWord(form="int4-g128-zp4"),
    "bitnet": WeightWord(form="int2", activations="int8"),
    "bnb-4bit": WeightWord(form="nf4_double"),
    "bnb-8bit": WeightWord(form="int8"),
    "fp8": WeightWord(form="fp8"),
    "fp8-block": WeightWord(form="fp8_block128", activations="fp8"),
    "fp8-dynamic": WeightWord(form="fp8", activations="fp8"),
    "gptq": WeightWord(form="int4-g128-zp4"),
    "gptq-int3": WeightWord(form="int3-g128-zp3"),
    "gptq-int8": WeightWord(form="int8-g128-zp8"),
    "hqq": WeightWord(form="int4-g64-zp"),
    "int4": WeightWord(form="int4-g128"),
    "mxfp4-w4a4": WeightWord(form="mxfp4", activations="mxfp4"),
    "mxfp8-w8a8": WeightWord(form="mxfp8", activations="mxfp8"),
    "nvfp4": WeightWord(form="nvfp4", activations="nvfp4"),
    "nvfp4a16": WeightWord(form="nvfp4"),
    "torchao-int4": WeightWord(form="int4-g128-zp"),
    "w4a16": WeightWord(form="int4-g128"),
    "w4a8": WeightWord(form="int4-g128", activations="int8"),
    "w4afp8": WeightWord(form="int4-g128", activations="fp8"),
    "w8a16": WeightWord(form="int8"),
    "w8a8": WeightWord(form="int8", activations="int8"),
}
# Other spellings of words, after blanks and underscores have become hyphens.
_SAME = {
    "auto-round": "autoround", "awq-4bit": "awq", "awq-g128": "awq", "awq-int4": "awq", "awq-marlin": "awq",
    "gptq-4bit": "gptq", "gptq-8bit": "gptq-int8", "gptq-g128": "gptq", "gptq-int4": "gptq", "gptq-marlin": "gptq",
    "hqq-4bit": "hqq", "int8-w8a8": "w8a8", "nvfp4-w4a4": "nvfp4", "w4a8-int": "w4a8", "w4a8-fp8": "w4afp8",
    "w8a8-int8": "w8a8", "w8a8-fp8": "fp8-dynamic",
}  # fmt: skip
_HEAD_BITS = 6
# Formats by whose names people mean a kind of checkpoint, and the word for that kind.
_WHOLE = {"int8": "w8a16 or w8a8", "mxfp4": "mxfp4-w4a4", "mxfp8": "mxfp8-w8a8", "nf4": "bnb-4bit"}
# Files of publishers, whose mixture differs from model to model: Unsloth's dynamic ones (UD-), and extra large ones.
_MIXTURE = re.compile(r"ud-i?q\d_\w{1,6}|q\d_k_xl")
_MLX = ("2bit", "3bit", "4bit", "5bit", "6bit", "8bit")


def weight_word(text: str | None) -> WeightWord | None:
    """Return the meaning of the first word of asked weights; none where it is a format for every parameter.

    MLX quantises tables too, in groups of 64 with a 16-bit scale and bias; EXL2 and EXL3 take 6 bits for the head.

    Source: ``mlx.nn.quantize`` of MLX 0.29; turboderp-org/exllamav3, doc/convert.md, ``--head_bits``.

    >>> weight_word("int4,head=fp8").form, weight_word("GPTQ g128").form, weight_word("q4_0")
    ('int4-g128', 'int4-g128-zp4', None)
    >>> weight_word("exl3-4bpw").others
    {'head': 'exl3-6bpw'}
    """
    if text is None:
        return None
    key = _key(text)
    method, _, bits = key.partition("-")
    if method == "mlx" and bits in _MLX:
        form = f"int{bits[0]}-g64-zp"
        return WeightWord(form=form, others={"embedding": form, "head": form})
    if method in ("exl2", "exl3") and bits.endswith("bpw"):
        return WeightWord(form=key, others={"head": f"{method}-{_HEAD_BITS}bpw"})
    return WORDS.get(_SAME.get(key, key))


def _key(text: str) -> str:
    return "-".join(text.partition(",")[0].lower().replace("_", "-").split())


def loading_notes(engine: str | None, text: str | None) -> tuple[str, ...]:
    """Note that an engine loads no checkpoint of the kind that asked weights name, and formats that are no kind.

    ``int8`` and ``mxfp4`` are formats of every parameter, beside words such as ``fp8`` and ``int4`` for what
    checkpoints do.
    """
    if text is None:
        return ()
    key = _key(text)
    word = _SAME.get(key, key)
    if key in _WHOLE and "," not in text:
        other = _WHOLE[key]
        return (f"--weights {key} is one format for every parameter, tables and norms too; {other} is for checkpoints",)
    from kvcalc.engines.llama_cpp.recipes import find_recipe

    recipe = find_recipe(text.partition(",")[0]) if weight_word(text) is None else None
    note = does_not_load(engine, word, is_recipe=recipe is not None and not _is_format(recipe))
    return (note,) if note else ()


def kept_parts(model: ModelProfile, word: WeightWord, dtype: str) -> dict[str, Format]:
    """Return the parts of a model that such a checkpoint does not store as its matrices, and their formats.

    Args:
        model: the model.
        word: the kind of checkpoint.
        dtype: the unquantised format that it is run in.
    """
    own = {part: model.weight_formats.get(part, dtype) for part in _OF_ITS_OWN}
    kept = {**own, **word.others}
    return {part: parse_format(kept.get(part, dtype)) for part in parameters(model) if part not in _QUANTISED}


def is_word(formats: Formats) -> bool:
    """Whether weights are quantised as a word says: matrices in its form, and everything else plain."""
    kept = {part for part, form in formats.parts.items() if form.block_elements == 1 and form.block_bytes > 1}
    whole = kept == formats.parts.keys() and kept.isdisjoint(_QUANTISED) and {"head", "vector"} <= kept
    return whole and formats.weights.name in {word.form for word in WORDS.values()}


def word_notes(model: ModelProfile, text: str | None, dtype: str) -> tuple[str, ...]:
    """Name the meaning that a word was taken for; nothing where a format was asked for."""
    word = weight_word(text)
    if word is None or text is None:
        return ()
    parts = parameters(model)
    stored = ", ".join(part for part in _QUANTISED if part in parts)
    kept = ", ".join(
        part for part in kept_parts(model, word, dtype) if f"{part}=" not in text and part not in word.others
    )
    also = "".join(
        f", {part} in {form}" for part, form in word.others.items() if part in parts and f"{part}=" not in text
    )
    multiplied = f", multiplied in {word.activations}," if word.activations else ""
    name = text.partition(",")[0].strip()
    note = f"--weights {name} follows common checkpoints: {stored} in {word.form}{multiplied}{also}"
    head = "" if "head" in word.others else f" (head={word.form} after a comma quantises the head too)"
    return (f"{note} and {kept} in {dtype}{head}",)


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


def refuse_mixture(model: ModelProfile, text: str | None) -> None:
    """Refuse asked weights that name a publisher's own mixture: their bytes stand in the file's header alone.

    Raises:
        UnsupportedError: ``UD-Q4_K_XL`` and the like.
    """
    if text is None:
        return
    name = text.partition(",")[0].strip().replace("-", "_").lower().replace("ud_", "ud-")
    if _MIXTURE.fullmatch(name):
        raise unknown_mixture(f"the size of {model.name} in {text.strip()[:40]!r}", name.upper(), model.name)


def unknown_mixture(what: str, mixture: str, name: str) -> UnsupportedError:
    """Return the error for weights in a publisher's own mixture.

    Args:
        what: what is not known, as the beginning of a sentence.
        mixture: the mixture, as its files are named.
        name: the model's name, for the recipe of llama.cpp that comes close.
    """
    from kvcalc.engines.llama_cpp.recipes import find_recipe

    own = mixture.removeprefix("UD-")
    close = (find_recipe(each) for each in (own.replace("_XL", "_M"), own.replace("_XL", ""), own.replace("K_XL", "0")))
    recipe = next(filter(None, close), None)
    near = "" if recipe is None else f"; -m {name} --weights {recipe} is llama.cpp's own recipe"
    header = "give the .gguf file, whose header says it (-m hf:OWNER/REPO/FILE.gguf fetches that alone)"
    return UnsupportedError(
        f"{what} is not known: {mixture} is its publisher's own mixture of formats", hint=f"{header}{near}"
    )


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
    size = f"{file.bits_per_weight:.2f} bits per weight"
    return (f"{recipe.upper()} by llama-quantize{matrix}: {size}; matrices: {file.mixture}; norms in fp32{needed}",)
